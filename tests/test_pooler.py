"""Behind pgbouncer in transaction mode, where nothing may depend on a session."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock import App, Context, Worker, testing
from penstock import worker as worker_module
from penstock.settings import Settings
from penstock.worker.wake import Wake

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="pgbouncer is not installed (Debian: apt install pgbouncer)"
)
POOL_SIZE = 4


class Pooler:
    """A pgbouncer in transaction mode in front of the test's database."""

    def __init__(self, db: testing.Database, folder: Path) -> None:
        server = conninfo_to_dict(db.dsn)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/{db.name}"
        # It refuses to run as root, so it runs as the server's account, which can access the socket.
        owner = Path(str(server["host"])).stat().st_uid
        self._account = pwd.getpwuid(owner) if os.geteuid() == 0 else None
        self._file, self._log = folder / "pgbouncer.ini", folder / "log"
        self._file.write_text(
            f"""
            [databases]
            * = host={server["host"]} port={server["port"]} user=postgres
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {self.port}
            unix_socket_dir =
            auth_type = any
            pool_mode = transaction
            default_pool_size = {POOL_SIZE}
            max_client_conn = 200
            """.replace("            ", "")
        )
        folder.chmod(0o755)
        self._file.chmod(0o644)
        self.start()

    def start(self) -> None:
        assert PROGRAM is not None
        account = self._account
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [PROGRAM, str(self._file)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )
        while self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.01)
        pytest.fail(self._log.read_text())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def pooler(db: testing.Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pooler]:
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    with tempfile.TemporaryDirectory(prefix="penstock-pooler-") as folder:
        pooler = Pooler(db, Path(folder))
        yield pooler
        pooler.kill()


async def left_behind(dsn: str) -> dict[str, list[Any]]:
    """The session state on the pooler's connections to the server, with all of them in use at once."""
    found: dict[str, list[Any]] = {}
    questions = {
        "channels": "select pg_listening_channels()",
        "statements": "select name from pg_prepared_statements",
        "locks": "select objid from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
        "settings": "select name from pg_settings where source = 'session' and name not like 'application%%'",
        "tables": "select relname from pg_class where relpersistence = 't'",
        "roles": "select current_user where current_user <> session_user",
    }
    async with AsyncExitStack() as stack:
        sessions: set[int] = set()
        for _ in range(POOL_SIZE):
            connection = await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn))
            connection.prepare_threshold = None
            row = await (await connection.execute("select pg_backend_pid()")).fetchone()
            assert row is not None
            sessions.add(row[0])
            for name, question in questions.items():
                rows = await (await connection.execute(question.encode())).fetchall()
                found.setdefault(name, []).extend(value for (value,) in rows)
        assert len(sessions) == POOL_SIZE
    return {name: rows for name, rows in found.items() if rows}


@pytest.mark.parametrize("mode", ["auto", "on"])
async def test_jobs_run_behind_a_transaction_pooler(
    db: testing.Database, pooler: Pooler, eventually: Any, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    """R1.7/wake-up: workers detect the pooler, work by polling alone, and leave no session state."""
    monkeypatch.setattr(worker_module, "settings", lambda: Settings(listen=mode))
    monkeypatch.setattr(Wake, "POLL_SECONDS_ALONE", (0.01, 0.2))
    db.execute("create table effects (n int)")
    app = App(database_url=pooler.dsn)
    begun = asyncio.Event()

    @app.task(backoff="10ms", backoff_cap="10ms")
    async def flaky(ctx: Context) -> int:
        ctx.progress(0.5, message="half")
        if ctx.attempt == 1:
            raise ValueError("again")
        return ctx.attempt

    @app.task(transactional=True)
    async def post(ctx: Context, n: int) -> int:
        await ctx.connection.execute("insert into effects values (%s)", [n])
        await ctx.aadd_tasks([{"kind": "quick"}])
        return n

    @app.task(transactional=True)
    def post_in_thread(ctx: Context, n: int) -> int:
        ctx.connection.execute("insert into effects values (%s)", [n])
        return n

    @app.task
    async def quick() -> None: ...

    @app.task
    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.job
    def everything() -> Any:
        n = flaky.step()
        return [post.step(n), post_in_thread.step(n), [quick.step() for _ in range(200)]]

    worker = Worker(app, lease_seconds=3)
    async with app:
        running = asyncio.create_task(worker.run())
        job = await everything.astart()
        assert (await job.aresult(timeout=20))[:2] == [2, 2]
        assert db.execute("select n from effects") == [{"n": 2}, {"n": 2}]

        hanging = await forever.astart()
        await asyncio.wait_for(begun.wait(), 20)
        db.execute("select penstock.cancel_job(%s)", [hanging.id])
        await eventually.aio(
            lambda: not db.execute("select 1 from penstock.leases"), "the next heartbeat stops it"
        )

        if mode == "auto":
            assert await left_behind(pooler.dsn) == {}
            assert not db.execute("select 1 from pg_stat_activity where query ilike 'listen%' "
                                  "and datname = current_database()")  # fmt: skip

        pooler.kill()
        pooler.start()

        async def again() -> Any:
            with_key = quick.options(idempotency_key="again")
            try:
                return await with_key.astart()
            except Exception:
                return None

        await (await eventually.aio(again)).aresult(timeout=20)
        worker.stop()
        await running
    assert db.execute("select count(*) as n from penstock.attempts where outcome = 'lost'") == [{"n": 0}]
