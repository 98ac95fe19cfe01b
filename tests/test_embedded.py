"""The embedded server is shared, survives every kill, and never loses committed data (B4/embedded)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from penstock.postgres import embedded

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands the server to another account")

COUNT = """
import sys; from pathlib import Path; import psycopg; from penstock.postgres import embedded
with psycopg.connect(embedded.dsn(Path(sys.argv[1]))) as connection:
    connection.execute("select pg_advisory_xact_lock(1)")
    connection.execute("create table if not exists visits (id int generated always as identity)")
    connection.execute("insert into visits default values")
    print(connection.execute("select system_identifier from pg_control_system()").fetchone()[0])
"""
THEN_DIE = (
    COUNT
    + "\nimport os, signal; sys.stdout.flush(); connection.close(); os.kill(os.getpid(), signal.SIGKILL)\n"
)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the server's account can access; for root, pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-home-"))
    folder.chmod(0o755)
    yield folder / "home"
    embedded.of(folder / "home").leave()
    embedded.stop(folder / "home")
    shutil.rmtree(folder)


def run(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(home)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)


def visits(home: Path) -> int:
    with psycopg.connect(embedded.dsn(home)) as connection:
        row = connection.execute("select count(*) from visits").fetchone()
    return row[0] if row else 0


def server_pid(home: Path) -> int:
    return int((embedded.of(home).data / "postmaster.pid").read_text().split()[0])


def test_processes_share_one_server_and_the_last_one_stops_it(home: Path) -> None:
    """Four processes start on an empty folder: one creates the data, all use it."""
    with ThreadPoolExecutor(4) as threads:
        outputs = {done.stdout for done in threads.map(run, [COUNT] * 4, [home] * 4)}
    assert len(outputs) == 1 and outputs != {""}
    assert not embedded.of(home).answers()
    assert visits(home) == 4
    assert run(COUNT, home).returncode == 0
    assert embedded.of(home).answers(), "another process leaving does not stop it"
    assert visits(home) == 5


@pytest.mark.slow
def test_committed_data_survives_killing_the_starter_or_the_server(home: Path) -> None:
    assert run(THEN_DIE, home).returncode == -signal.SIGKILL
    survivor = server_pid(home)
    assert embedded.of(home).answers(), "the server outlives the process that started it"
    assert visits(home) == 1
    assert server_pid(home) == survivor

    os.kill(survivor, signal.SIGKILL)
    assert visits(home) == 1
    assert server_pid(home) != survivor


@pytest.mark.slow
def test_a_server_that_is_stopping_is_started_again(home: Path) -> None:
    embedded.dsn(home)
    cluster, pid = embedded.of(home), server_pid(home)
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGQUIT)
    with ThreadPoolExecutor(1) as other:
        starting = other.submit(cluster.start)
        time.sleep(0.5)  # by now it has found a server that does not answer
        os.kill(pid, signal.SIGCONT)
        starting.result(60)
    assert cluster.answers()
    assert server_pid(home) != pid


@pytest.mark.slow
def test_a_stale_pid_of_another_process_does_not_prevent_the_start(home: Path) -> None:
    embedded.dsn(home)
    embedded.stop(home)
    cluster = embedded.of(home)
    owner = cluster.data.stat()
    other = subprocess.Popen(["sleep", "60"], user=owner.st_uid if os.geteuid() == 0 else None)
    stale = cluster.data / "postmaster.pid"
    stale.write_text(f"{other.pid}\n{cluster.data}\n1700000000\n5432\n/tmp\n127.0.0.1\n 1 1\nready   \n")
    os.chown(stale, owner.st_uid, owner.st_gid)
    try:
        psycopg.connect(embedded.dsn(home)).close()
    finally:
        other.kill()
        other.wait()


def test_fsync_is_on_and_other_users_have_no_access(home: Path) -> None:
    with psycopg.connect(embedded.dsn(home)) as connection:
        for name in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums"):
            row = connection.execute("select current_setting(%s)", [name]).fetchone()
            assert row == ("on",), name
    address = embedded.dsn(home, tcp=True)
    psycopg.connect(address).close()
    password = (home / "postgres" / "password").read_text()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(address.replace(password, "guess"))
    assert (home / "postgres").stat().st_mode & 0o777 == 0o700, (
        "other users cannot access the socket, which needs no password"
    )


@pytest.mark.slow
def test_a_path_that_is_too_long_for_a_socket_works(home: Path) -> None:
    deep = home / ("a" * 60) / ("b" * 60)
    psycopg.connect(embedded.dsn(deep)).close()
    embedded.of(deep).leave()


@pytest.mark.slow
@needs_root
def test_root_changes_no_permissions_for_the_servers_account(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account can access neither the folder nor the programs: both are placed where it can."""
    elsewhere = home.parent / "elsewhere"
    monkeypatch.setattr(embedded, "ELSEWHERE", elsewhere)
    closed = home.parent / "closed"
    closed.mkdir(mode=0o700)
    wheel = embedded.binaries().parents[1]
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        shutil.copytree(part, closed / part.name, symlinks=True)
    programs = closed / embedded.binaries().relative_to(wheel.parent)
    monkeypatch.setattr(embedded, "binaries", lambda: programs)

    psycopg.connect(embedded.dsn(closed)).close()
    assert (closed / "postgres").is_symlink()
    assert (closed / "postgres").resolve().parent == elsewhere
    assert closed.stat().st_mode & 0o777 == 0o700
    embedded.of(closed).leave()
