"""An upgrade and its rollback under load: workers of the old and the new release at once, and no task fails.

The old release comes from the repository's history.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from penstock import testing
from penstock.postgres import db, migrate
from tests.conftest import Eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
OLD = "2aa614c"
"""The commit of release 0.1.0."""
OLD_MIGRATION = 11
"""The last migration of that release."""
KINDS = ("ask", "render", "busy")
PER_STAGE = 120
"""Tasks that succeed at least in each stage."""
START = "select penstock.start_job('rehearsal', '{}', %s::jsonb, %s::jsonb)"


@dataclass
class Installation:
    """A database, and workers of both releases on it."""

    database: testing.Database
    folders: dict[str, Path]
    logs: Path
    workers: dict[str, list[subprocess.Popen[bytes]]] = field(
        default_factory=lambda: {"old": list[subprocess.Popen[bytes]](), "new": []}
    )

    def run(self, release: str, *arguments: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DATABASE_URL": self.database.dsn,
            "PYTHONPATH": str(self.folders[release]),
            "RELEASE": release,
            "PENSTOCK_ALLOW_UNSAFE": "1",
        }
        with (self.logs / f"{release}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env=environment, cwd=self.logs, stdout=log, stderr=subprocess.STDOUT, process_group=0,
            )  # fmt: skip

    def migrate_to_old(self) -> None:
        """Migrate with the old release's own program."""
        assert self.run("old", "-m", "penstock", "migrate").wait(120) == 0, self.log("old")

    def start_workers(self, release: str, eventually: Eventually) -> None:
        """Start two and wait until they are ready."""
        app, before = str(Path(__file__).with_name("release_app.py")), self.started(release)
        self.workers[release] += [self.run(release, app) for _ in range(2)]
        eventually(lambda: self.started(release) == before + 2, f"workers of the {release} release start")

    def started(self, release: str) -> int:
        path = self.logs / f"{release}.log"
        return path.read_text().count("worker.started") if path.exists() else 0

    def stop_workers(self, release: str) -> None:
        """Stop as a platform does: SIGTERM, then wait."""
        for process in self.workers[release]:
            process.terminate()
        codes = [process.wait(40) for process in self.workers[release]]
        self.workers[release].clear()
        assert set(codes) == {0}, self.log(release)

    def kill(self) -> None:
        for process in [*self.workers["old"], *self.workers["new"]]:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self, release: str) -> str:
        return (self.logs / f"{release}.log").read_text()[-5000:]

    def succeeded(self, release: str) -> int:
        rows = self.database.execute(
            "select count(*) as n from penstock.results where outcome = 'succeeded' and output #>> '{}' = %s",
            [release],
        )
        return rows[0]["n"]

    def count(self, what: str) -> int:
        return self.database.execute(f"select count(*) as n from penstock.{what}")[0]["n"]


@pytest.fixture
def installation(server: testing.Server, tmp_path: Path) -> Iterator[Installation]:
    """The old release, installed, on a database of its own with the real clock."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", OLD, "penstock"], capture_output=True)
    if found.returncode:
        pytest.skip("the history of the repository is not here")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(tmp_path / "release", filter="data")
    database = testing.Database(server, server.create())
    made = Installation(database, {"old": tmp_path / "release", "new": ROOT}, tmp_path)
    try:
        made.migrate_to_old()
        yield made
    finally:
        made.kill()
        database.close()
        server.drop(database.name)
        for release in made.folders:
            with suppress(FileNotFoundError):
                print(f"--- workers of the {release} release ---", made.log(release), sep="\n")


class Load:
    """Starts jobs of three tasks all the time, in one session; `start_job` is the same in both releases."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.jobs, self.errors = dsn, 0, list[str]()
        self._running, self._idle, self._end = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with db.connect(self.dsn) as connection:
            tenant = connection.execute("select penstock.create_tenant('rehearsal') as id").fetchone()
            assert tenant
            options = json.dumps({"tenant_id": str(tenant["id"])})
            while not self._end.is_set() and not self.errors:
                if not self._running.wait(0.01):
                    self._idle.set()
                    continue
                n = self.jobs
                tasks = [{"kind": kind, "key": kind, "input": {"n": n}} for kind in KINDS[:2]]
                tasks.append({"kind": "busy", "input": {"n": n}, "after": ["ask"]})
                try:
                    connection.execute(START, [json.dumps(tasks), options])
                except psycopg.Error as error:
                    self.errors.append(f"{type(error).__name__}: {error}")
                self.jobs += 1
                self._end.wait(0.02)
        self._idle.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        self._running.set()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join()

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Between a rollback of the database and the old release's migrate there are no functions to call."""
        self._running.clear()
        self._idle.clear()
        assert self._idle.wait(10)
        yield
        self._running.set()


@pytest.mark.timeout(400)
def test_no_task_fails_in_an_upgrade_and_its_rollback(
    installation: Installation, eventually: Eventually
) -> None:
    """Expand, roll out, roll back, roll out again, contract, and back to the old release's database."""
    here, load = installation, Load(installation.database.dsn)
    here.start_workers("old", eventually)

    def stage(*releases: str) -> None:
        """Wait until each of these releases has run tasks of its own since now."""
        wanted = {release: here.succeeded(release) + PER_STAGE for release in releases}
        eventually(
            lambda: load.errors or all(here.succeeded(release) >= n for release, n in wanted.items()),
            f"workers of the releases {releases} run tasks",
        )
        assert load.errors == []

    with load.running():
        stage("old")
        migrate.migrate(here.database.dsn)
        stage("old")
        here.start_workers("new", eventually)
        stage("old", "new")
        here.stop_workers("old")
        stage("new")
        # The roll-out is taken back: old workers on the expanded database.
        here.start_workers("old", eventually)
        here.stop_workers("new")
        stage("old")
        here.start_workers("new", eventually)
        here.stop_workers("old")
        migrate.migrate(here.database.dsn, contract=True)
        stage("new")
        # Back after the contract: workers stop, tasks stay queued, and the old release has its database again.
        with load.held_back():
            here.stop_workers("new")
            migrate.rollback(here.database.dsn, OLD_MIGRATION)
            here.migrate_to_old()
        here.start_workers("old", eventually)
        stage("old")
    eventually(lambda: here.count("jobs where status = 'completed'") == load.jobs, "all jobs are completed")
    assert here.count("results where outcome <> 'succeeded'") == 0
    assert here.count("dead_letters") == 0
    assert here.count("results") == 3 * load.jobs
    assert here.count("attempts where outcome = 'lost'") == 0, "no worker was cut off"
    assert here.count("attempts where error_code <> 'busy'") == 0
    here.stop_workers("old")
