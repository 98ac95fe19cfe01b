"""PostgreSQL for the fault runs: with fsync, and on a disk image that can be filled where one can be mounted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from penstock import testing
from penstock.postgres import db, embedded

SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "1GB", "max_connections": "300", "logging_collector": "on",
            "log_filename": "postgresql.log", "log_rotation_age": "0", "log_rotation_size": "0"}  # fmt: skip
DATABASE = "faults"
DISK_BYTES = 6 << 30


class Postgres:
    """A server of our own. It keeps its address."""

    def __init__(self, folder: Path, major: int = 18) -> None:
        self.cluster = embedded.Cluster(folder, testing.binaries(major), SETTINGS)
        self.cluster.join()
        self.cluster.start()
        self.cluster.create_database(DATABASE)
        self.dsn = self.cluster.dsn(DATABASE)
        self.tcp_dsn = self.cluster.dsn(DATABASE, tcp=True)
        self.port = int(str(conninfo_to_dict(self.tcp_dsn)["port"]))

    def create(self, database: str) -> str:
        """Another database of this server: its address."""
        self.cluster.create_database(database)
        return self.cluster.dsn(database)

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.cluster.data.glob("log/*.log"))

    def execute(self, query: str, params: Any = None) -> list[db.Row]:
        with db.connect(self.dsn, name="faults") as connection:
            cursor = connection.execute(query.encode(), params)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """kill -9 the server and all its processes, as when the power fails."""
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        for victim in (pid, *self._children()):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)

    def stop_immediately(self) -> None:
        """What `pg_ctl stop -m immediate` does: no checkpoint, no farewell."""
        os.kill(self._pid(), signal.SIGQUIT)

    def kill_backend(self) -> None:
        """kill -9 one of its processes: the server disconnects all clients and recovers."""
        for row in self.execute(
            "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid() "
            "order by random() limit 1"
        ):
            os.kill(row["pid"], signal.SIGKILL)

    def start(self) -> None:
        """Start it again, at the same address, once the dead have left it."""
        deadline = time.monotonic() + 30
        while not self.cluster.answers() and time.monotonic() < deadline:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", self.port))
                except OSError:
                    time.sleep(0.01)
                    continue
            break
        self.cluster.start()
        assert self.cluster.dsn(DATABASE) == self.dsn

    def close(self) -> None:
        self.cluster.leave()
        self.cluster.stop()

    def _pid(self) -> int:
        return int((self.cluster.data / "postmaster.pid").read_text().split()[0])

    def _children(self) -> list[int]:
        pid = self._pid()
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Disk:
    """A separate file system in a file, so that it can be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave next to nothing free."""
        free = shutil.disk_usage(self.folder).free
        with self._ballast.open("wb") as file:
            # As root we may also take what is kept for root.
            for size in (free, 64 << 20, 8 << 20, 1 << 20, 64 << 10):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
                        if size == free:
                            break

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextmanager
def place(*, is_disk_wanted: bool) -> Iterator[tuple[Path, Disk | None, str]]:
    """A folder for everything, the disk below it if one can be made, and otherwise why not."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-faults-"))
    folder.chmod(0o755)
    disk, why = None, "not wanted"
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    try:
        if is_disk_wanted:
            disk, why = _mount(image, mounted)
        yield folder, disk, why
    finally:
        if disk is not None:
            subprocess.run(["umount", "--lazy", mounted], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _mount(image: Path, folder: Path) -> tuple[Disk | None, str]:
    try:
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        text = (
            error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else ""
        )
        return None, f"no disk of our own could be mounted: {text.strip() or error}"
    folder.chmod(0o755)
    return Disk(folder), ""
