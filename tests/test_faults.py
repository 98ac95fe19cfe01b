"""Bad luck: workers killed and paused, connections cut, PostgreSQL killed. Nothing acknowledged is lost, and
nothing that is written with a task's end is there twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from faults import check as checker
from faults import rpc
from faults.figures import figures_of
from faults.proxy import Proxy
from faults.server import Postgres, place
from penstock import App, Context, Reschedule, Unavailable, Worker, api, testing
from penstock.contract import jobs
from penstock.postgres import db as database
from penstock.postgres import migrate
from penstock.server import ensure_login
from penstock.settings import Settings


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def count(db: Any, table: str, where: str = "true") -> int:
    return db.execute(f"select count(*) as n from {table} where {where}")[0]["n"]


def check(db: Any) -> None:
    """What holds at the end, whatever happened on the way."""
    assert count(db, "penstock.jobs", "status <> 'completed'") == 0
    assert count(db, "penstock.leases") + count(db, "penstock.ready") + count(db, "penstock.parked") == 0
    assert count(db, "penstock.tasks") == count(db, "penstock.results", "outcome = 'succeeded'") > 0
    assert count(db, "penstock.phases", "succeeded <> total") == 0
    # The fence: no attempt that was given up has a number above that of the one that counts.
    late = "penstock.attempts a join penstock.results r using (job_id, task_id)"
    assert count(db, late, "a.lease >= r.lease") == 0


def backends(db: testing.Database, where: str) -> list[dict[str, Any]]:
    return db.execute(f"select * from pg_stat_activity where datname = current_database() and {where}")


# --- a worker is killed ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["claiming", "running", "posting", "completing"])
def test_a_worker_killed_at_any_step_loses_nothing(
    moment: str,
    workload: Any,
    start_worker: Any,
    db: testing.Database,
    clock: testing.Clock,
    drain: testing.Drain,
    eventually: Any,
) -> None:
    """Bad luck: SIGKILL at every step between claim and complete; R1.6/dead-worker: the tasks run elsewhere."""
    blocker = psycopg.connect(db.dsn)
    kind = {"claiming": "quick", "running": "hold", "posting": "post", "completing": "quick"}[moment]
    arguments = {"gate": "open"} if kind in ("hold", "post") else {}
    started = [getattr(workload, kind).start(**arguments) for _ in range(3)]
    if moment == "claiming":
        blocker.execute("lock table penstock.leases in share mode")
    elif moment == "completing":
        blocker.execute("select from penstock.phases for update")
    process: subprocess.Popen[str] = start_worker(concurrency=2, kinds=[kind])
    if moment in ("claiming", "completing"):
        query = {"claiming": "claim_tasks", "completing": "complete_tasks"}[moment]
        is_stuck = f"wait_event_type = 'Lock' and query like '%{query}%'"
        eventually(lambda: backends(db, is_stuck), "it waits for our lock")
    else:
        eventually(lambda: count(db, "effects", "word = 'begun'") == 2)
    process.kill()
    process.wait()
    blocker.close()
    eventually(lambda: not backends(db, "application_name like 'penstock worker%'"), "its sessions end")
    if moment == "posting":
        eventually(lambda: not backends(db, "application_name like 'penstock task%'"))
        assert count(db, "effects", "word = 'posted'") == 0

    db.execute("insert into gates values ('open')")
    clock.advance(minutes=1)
    drain(workload.app)
    check(db)
    assert [job.get().status for job in started] == ["completed"] * 3
    if moment == "posting":
        written = "effects e join penstock.results r using (task_id)"
        assert count(db, "effects", "word = 'posted'") == 3
        assert count(db, written, "e.word = 'posted' and e.lease = r.lease") == 3


@pytest.mark.slow
def test_killed_workers_never_spend_more_than_the_budget(
    workload: Any, start_worker: Any, db: testing.Database, clock: testing.Clock, eventually: Any
) -> None:
    """Each call that a killed worker had begun may be billed: 2 USD each, so five of them fit into 11 USD."""
    call = {"kind": "hold", "input": {"gate": "never"}, "provider": "test/paid"}
    options = {
        "tenant_id": str(db.execute("select penstock.ensure_tenant('a') as id")[0]["id"]),
        "budget": 11,
    }
    db.execute("select penstock.define_kind('hold')")
    db.execute("select penstock.set_provider('test/paid', '{}')")
    db.execute("select penstock.set_price('test/paid', 'requests', 2)")
    db.execute(
        "select penstock.start_job('calls', '{}', %s, %s)", [json.dumps([call] * 10), json.dumps(options)]
    )
    killed = 0
    while killed < 5:
        wanted = min(2, 5 - killed)
        process: subprocess.Popen[str] = start_worker(concurrency=2, kinds=["hold"])
        eventually(lambda n=killed + wanted: count(db, "effects", "word = 'begun'") == n)
        process.kill()
        process.wait()
        eventually(lambda: not backends(db, "application_name like 'penstock worker%'"), "its sessions end")
        killed += wanted
        clock.advance(minutes=5)

        def spent() -> int:
            clock.advance(seconds=5)
            db.execute("select penstock.upkeep()")
            return db.execute("select sum(base_amount)::int as n from penstock.cost_entries")[0]["n"]

        eventually(lambda n=killed: spent() == 2 * n, "what was lost is booked")
    start_worker(concurrency=2, kinds=["hold"])
    eventually(lambda: count(db, "penstock.jobs", "status = 'paused' and status_reason like 'budget:%'") == 1)
    assert count(db, "effects", "word = 'begun'") == 5 == count(db, "penstock.cost_entries", "is_estimate")
    assert db.execute("select * from penstock.check_accounts()") == []


@pytest.mark.slow
def test_a_zombies_late_words_are_refused(
    workload: Any, start_worker: Any, db: testing.Database, clock: testing.Clock, drain: testing.Drain,
    eventually: Any,
) -> None:  # fmt: skip
    """B6/fenced, R1.2/fence: a worker that was paused for longer than its lease comes back and finds itself fenced off."""
    held, posted = workload.hold.start("open"), workload.post.start("open")
    zombie: subprocess.Popen[str] = start_worker(concurrency=2, kinds=["hold", "post"])
    eventually(lambda: count(db, "effects", "word = 'begun'") == 2)
    zombie.send_signal(signal.SIGSTOP)
    db.execute("insert into gates values ('open')")
    clock.advance(minutes=1)
    drain(workload.app)
    assert held.result(timeout=5) == str(os.getpid()) and posted.get().status == "completed"
    before = db.execute("select * from penstock.results order by task_id")

    zombie.send_signal(signal.SIGCONT)
    eventually(lambda: not backends(db, "application_name like 'penstock task%'"), "its transaction is over")
    zombie.terminate()
    assert zombie.wait(20) == 0
    assert db.execute("select * from penstock.results order by task_id") == before
    assert count(db, "effects", "word = 'posted'") == 1, "what the zombie wrote went with its transaction"
    check(db)


# --- connections -------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_connections_that_end_are_made_again(app: App, db: testing.Database, eventually: Any) -> None:
    """All of a worker's sessions are ended again and again; it goes on, and each task counts once."""

    @app.task
    async def work(n: int) -> int:
        await asyncio.sleep(0.002)
        return n

    @app.job
    def many() -> Any:
        return [work.step(n) for n in range(400)]

    job = many.draw({})
    async with app.connections() as where:
        await app.declare(where)
        job_id = await jobs.start(where, type="many", tasks=job.tasks, tenant_id=await app.tenant_id(where))
    worker = Worker(app, lease_seconds=1, concurrency=4)
    running = asyncio.create_task(worker.run())
    for part in (20, 100, 200):
        await eventually.aio(lambda part=part: count(db, "penstock.results") >= part)
        db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and application_name ~ '^penstock (worker|beat|listen)'"
        )
    await eventually.aio(lambda: count(db, "penstock.results") == 400)
    worker.stop()
    await running
    await app.aclose()
    check(db)
    assert count(db, "penstock.results", "output is null") == 0 and job_id


@asynccontextmanager
async def proxied(db: testing.Database) -> AsyncIterator[tuple[Proxy, str]]:
    port = str(conninfo_to_dict(db.tcp_dsn)["port"])
    proxy = Proxy(int(port))
    async with proxy.listening() as own_port:
        yield proxy, db.tcp_dsn.replace(f":{port}/", f":{own_port}/")


async def test_a_start_whose_answer_was_lost_is_tried_again_with_its_key(db: testing.Database) -> None:
    """Bad luck: the connection drops after COMMIT was sent. R0.1/idempotent: one key, one job."""
    async with proxied(db) as (proxy, dsn):
        app = App(database_url=dsn)

        @app.task
        async def work(n: int) -> None: ...

        async with app:
            first = await work.options(idempotency_key="0").astart(0)
            for n in range(1, 4):
                proxy.drops.append(b"start_job")
                with pytest.raises(Unavailable):
                    await work.options(idempotency_key=str(n)).astart(n)
                again = await work.options(idempotency_key=str(n)).astart(n)
                assert again.id != first.id
    assert len(proxy.dropped) == 3 and count(db, "penstock.jobs") == 4


@pytest.mark.parametrize(
    "what", ["complete_tasks", "claim_tasks", "fail_tasks", "reschedule_tasks", "COMMIT"]
)
async def test_a_report_whose_answer_was_lost_counts_once(
    db: testing.Database, eventually: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """DESIGN 10: an unknown outcome is not a failure: the worker says it again with the same lease."""
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    db.execute("create table effects (n int)")
    async with proxied(db) as (proxy, dsn):
        app = App(database_url=dsn)
        ran: list[int] = []

        @app.task(transactional=what == "COMMIT", backoff=0)
        async def work(ctx: Context) -> str:
            ran.append(ctx.attempt)
            if ctx.connection is not None:
                await ctx.connection.execute("insert into effects values (1)")
            if len(ran) == 1:
                proxy.drops.append(what.encode())
                if what == "fail_tasks":
                    raise ValueError("once")
                if what == "reschedule_tasks":
                    raise Reschedule(0)
            return "done"

        worker = Worker(app, lease_seconds=1)
        async with app:
            if what == "claim_tasks":
                ran.append(0)
                proxy.drops.append(b"claim_tasks")
            job = await work.astart()
            running = asyncio.create_task(worker.run())
            await eventually.aio(lambda: len(proxy.dropped) == 1)
            assert await job.aresult(timeout=20) == "done"
            worker.stop()
            await running
    check(db)
    lost = [row["outcome"] for row in db.execute("select outcome from penstock.attempts")]
    expected: dict[str, tuple[list[int], list[str]]] = {
        "complete_tasks": ([1], []),
        "claim_tasks": ([0, 2], ["lost"]),
        "fail_tasks": ([1, 2], ["failed"]),
        "reschedule_tasks": ([1, 1], []),
        "COMMIT": ([1], []),
    }
    assert (ran, lost) == expected[what] or (what == "claim_tasks" and ran == [0, 1] and lost == [])
    assert count(db, "effects") == (1 if what == "COMMIT" else 0)


# --- PostgreSQL is killed ----------------------------------------------------------------------------------


@pytest.fixture
def power() -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, with fsync, to be killed."""
    with place(is_disk_wanted=False) as (folder, _, _):
        server = Postgres(folder / "postgres")
        migrate.migrate(server.dsn)
        yield server
        server.close()


@pytest.mark.slow
async def test_postgres_killed_under_load_loses_nothing_acknowledged(
    power: Postgres, eventually: Any
) -> None:
    """Bad luck: PostgreSQL killed and restarted. Clients repeat with the same key what was not acknowledged,
    the worker resumes by itself, what was acknowledged completes, and every effect is there once (B6/crashes)."""
    power.execute("create table effects (n int)")
    app = App(database_url=power.dsn)
    acknowledged: dict[str, Any] = {}
    is_over = asyncio.Event()

    @app.task(transactional=True, backoff="10ms", backoff_cap="10ms", max_attempts=20)
    async def work(ctx: Context, n: int) -> int:
        await ctx.connection.execute("insert into effects values (%s)", [n])
        return n

    async def client(number: int) -> None:
        n = number
        while not is_over.is_set():
            with suppress(Unavailable):
                job = await work.options(idempotency_key=str(n)).astart(n)
                assert acknowledged.setdefault(str(n), job.id) == job.id
                n += 10
            await asyncio.sleep(0.005)

    worker = Worker(app, lease_seconds=2, concurrency=8)
    async with app:
        running = asyncio.create_task(worker.run())
        clients = [asyncio.create_task(client(number)) for number in range(4)]
        for least in (50, 100):
            await eventually.aio(lambda least=least: len(acknowledged) >= least)
            await asyncio.to_thread(power.kill)
            await asyncio.to_thread(power.start)
            known = len(acknowledged)
            await eventually.aio(lambda known=known: len(acknowledged) > known + 20, "clients go on")
        is_over.set()
        await asyncio.gather(*clients)
        await eventually.aio(
            lambda: count(power, "penstock.jobs", "status <> 'completed'") == 0, "all is done"
        )
        assert not running.done(), "the worker has resumed by itself"
        worker.stop()
        await running
    check(power)
    found = {row["idempotency_key"]: row["id"] for row in power.execute("select * from penstock.jobs")}
    assert acknowledged.items() <= found.items(), "nothing acknowledged is lost"
    assert count(power, "effects") == count(power, "(select distinct n from effects) as d") == len(found)


@pytest.mark.slow
async def test_what_starts_while_postgres_is_away_waits_for_it(power: Postgres, eventually: Any) -> None:
    """A worker and an API that come up in an outage need nobody to start them again; stopped there, they leave."""
    app, away = App(database_url=power.dsn), App(database_url=power.dsn)

    @app.task
    async def work() -> str:
        return "done"

    serving = api.create(
        Settings(database_url=power.dsn, api_url=ensure_login(power.dsn), jwt_secret="s" * 32), app
    )
    async with app:
        job = await work.astart()
        await asyncio.to_thread(power.kill)
        worker, stopped = Worker(app), Worker(away)
        running, leaving = asyncio.create_task(worker.run()), asyncio.create_task(stopped.run())
        started = asyncio.Event()

        async def serve() -> None:
            async with serving.router.lifespan_context(serving):
                started.set()

        service = asyncio.create_task(serve())
        await asyncio.sleep(1)
        assert not (running.done() or leaving.done() or service.done() or started.is_set())
        stopped.stop()
        await asyncio.to_thread(power.start)
        assert await job.aresult(timeout=30) == "done"
        await asyncio.gather(leaving, service)
        worker.stop()
        await running


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_worker_that_never_finds_its_database_says_so_unless_it_was_told_to_stop(
    monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    @asynccontextmanager
    async def nowhere(*_: object, **__: object) -> AsyncIterator[None]:
        raise Unavailable("there is none")
        yield

    monkeypatch.setattr("penstock.postgres.db.pool", nowhere)
    worker = Worker(App(database_url="postgresql://127.0.0.1:1/none"))
    if is_told:
        worker.stop()
        await worker.run()
    else:
        with pytest.raises(Unavailable):
            await worker.run()


async def test_what_begins_is_begun_again_while_the_database_is_away() -> None:
    answers = iter([Unavailable("away"), Unavailable("still away"), None])

    async def begin() -> None:
        if error := next(answers):
            raise error

    await database.retry_until_available(begin)
    assert next(answers, "all asked") == "all asked"
    with pytest.raises(Unavailable):
        answers = iter([Unavailable("away")])
        await database.retry_until_available(begin, wait_seconds=-1)


# --- the checker of the fault runs -------------------------------------------------------------------------

LOST_CONNECTIONS = [
    {"code": "unavailable", "message": "consuming input failed: server closed the connection unexpectedly"},
    {"code": "handler_error", "message": "x", "details": {"type": "AdminShutdown"}},
    {"code": "handler_error", "message": "terminating connection due to administrator command"},
    {"code": "57P01", "message": "x"},
]
OTHER_FAILURES = [
    {"code": "handler_error", "message": "not yet", "details": {"type": "ValueError"}},
    {"code": "unavailable", "message": "canceling statement due to user request"},
    {"code": "handler_error", "message": "x", "details": {"type": "DiskFull"}},
]


@pytest.fixture
def faulted(db: testing.Database) -> testing.Database:
    """A database with the fault runs' tables and triggers."""
    db.execute(checker.TABLES)
    return db


def start(db: testing.Database, kind: str, tasks: int = 1) -> list[int]:
    """Start a job of tasks of one kind, which fail at most three times; their ids."""
    db.execute('select penstock.define_kind(%s, \'{"max_attempts": 3, "backoff_seconds": 0}\')', [kind])
    tenant = db.execute("select penstock.ensure_tenant('a') as id")[0]["id"]
    [job] = db.execute(
        "select penstock.start_job('x', '{}', %s, %s) as id",
        [
            database.Json([{"kind": kind, "key": str(n)} for n in range(tasks)]),
            database.Json({"tenant_id": str(tenant)}),
        ],
    )
    return [row["id"] for row in db.execute("select id from penstock.tasks where job_id = %s", [job["id"]])]


def claim(db: testing.Database, worker: str, seconds: int = 10) -> list[dict[str, Any]]:
    return db.execute("select id, lease from penstock.claim_tasks(%s, 100, null, %s)", [worker, seconds])


def violations(db: testing.Database, group: str, checks: Any = checker.CHECKS) -> dict[str, int]:
    """The sentences of a group that are violated, with the number of rows."""
    with database.connect(db.dsn) as connection:
        found = checker.check(connection, [group], checks)
    return {sentence: len(rows) for sentence, rows in found.wrong[group].items()}


@pytest.mark.parametrize("kind", ["post", "warm_post"])
def test_attempts_charged_to_database_trouble_are_found(faulted: testing.Database, kind: str) -> None:
    start(faulted, kind, len(LOST_CONNECTIONS) + len(OTHER_FAILURES))
    for held, error in zip(claim(faulted, "w"), LOST_CONNECTIONS + OTHER_FAILURES, strict=True):
        faulted.execute(
            "select * from penstock.fail_tasks('w', array[%s], array[%s::bigint], array[%s::jsonb])",
            [held["id"], held["lease"], database.Json(error)],
        )
    assert list(violations(faulted, "trouble").values()) == [len(LOST_CONNECTIONS)]
    assert list(violations(faulted, "warm").values()) == ([len(LOST_CONNECTIONS)] if "warm" in kind else [])


def test_a_task_that_the_idle_worker_lost_or_dead_lettered_is_found(
    faulted: testing.Database, clock: testing.Clock
) -> None:
    [task] = start(faulted, "warm_plain")
    for _ in range(3):
        claim(faulted, "w")
        clock.advance(minutes=1)
        faulted.execute("select penstock.upkeep()")
    found = violations(faulted, "warm")
    assert found == {
        "a task of the idle worker was lost": 3,
        "a task of the idle worker was dead-lettered": 1,
    }
    # A claim whose answer PostgreSQL could not send is no violation.
    faulted.execute(
        "insert into faults.strikes select extract(epoch from started_at), 'x' from penstock.attempts"
    )
    assert "a task of the idle worker was lost" not in violations(faulted, "warm")
    assert task


def test_starts_that_met_a_deadlock_and_failed_migrates_are_found(faulted: testing.Database) -> None:
    faulted.execute(
        "insert into faults.unknown values ('a', 'deadlock detected'), ('b', 'server closed the connection'); "
        "insert into faults.refusals values ('c', 'canceling statement due to lock timeout'); "
        "insert into faults.migrations values (10, 1, null), (20, 1, 'Unavailable'), (30, 1, 'Unavailable'); "
        "insert into faults.outages values (28, 29.5, 'postgres.killed')"
    )
    assert violations(faulted, "migrates") == {
        "a job start met a deadlock or a lock timeout": 2,
        "a migrate failed while PostgreSQL was up": 1,
    }


def test_late_reclaims_and_late_retries_of_http_only_workers_are_found(faulted: testing.Database) -> None:
    start(faulted, "remote", 2)
    [held, failed] = claim(faulted, "rpc-1-x", seconds=1)
    faulted.execute("select penstock.fail_task(%s, 'rpc-1-x', 'x', %s, 0.1)", [failed["id"], failed["lease"]])
    assert violations(faulted, "upkeep", checker.RPC_CHECKS) == {}
    late = "set expires_at = clock_timestamp() - interval '20 seconds'"
    faulted.execute(f"update penstock.leases {late}")
    faulted.execute("update penstock.parked set until = clock_timestamp() - interval '20 seconds'")
    both = {"an expired lease was not taken back in time": 1, "a retry was not queued in time": 1}
    assert violations(faulted, "upkeep", checker.RPC_CHECKS) == both
    faulted.execute("select penstock.upkeep()")
    assert violations(faulted, "upkeep", checker.RPC_CHECKS) == both, "also once they are back"
    faulted.execute(
        "insert into faults.outages select x - 20, x - 3, 'postgres.killed' from extract(epoch from now()) as x"
    )
    assert violations(faulted, "upkeep", checker.RPC_CHECKS) == {}, "PostgreSQL was down"
    assert held


def test_times_after_kills_and_stops_are_measured_apart(faulted: testing.Database) -> None:
    """A task begins again under a later lease, or under the same one when it had not begun."""
    for task, pid, begun_at in ((1, 11, 12), (2, 22, 9), (3, 22, 30)):
        faulted.execute(
            "insert into faults.moves (what, task_id, lease, worker_id, is_gated, at) values "
            "('granted', %(task)s, 1, %(worker)s, false, to_timestamp(0)), "
            "('granted', %(task)s, 2, 'vm-99-x', false, to_timestamp(%(at)s))",
            {"task": task, "worker": f"vm-{pid}-x", "at": begun_at},
        )
    faulted.execute("delete from faults.moves where task_id = 2 and lease = 2")
    [task] = start(faulted, "plain")
    faulted.execute(
        "insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, "
        "outcome, error_code) select job_id, 1, 1, tenant_id, 1, 'vm-11-x', to_timestamp(0), to_timestamp(11), "
        "'lost', 'x' from penstock.tasks"
    )
    with database.connect(faulted.dsn) as connection:
        checker.load(connection, [
            {"event": "killed", "at": 1, "pid": 0, "victim": 11, "by": "us"},
            {"event": "stopped", "at": 1, "pid": 0, "victim": 22, "seconds": 8, "is_short": True},
            {"event": "outage", "at": 1, "pid": 0, "down_at": 20, "up_at": 24, "why": "postgres.killed"},
            {"event": "began", "at": 12.5, "pid": 99, "task": 1, "lease": 2},
            {"event": "began", "at": 9.5, "pid": 22, "task": 2, "lease": 1},
            {"event": "began", "at": 0.5, "pid": 22, "task": 3, "lease": 1},
            {"event": "began", "at": 30, "pid": 99, "task": 3, "lease": 2},
        ])  # fmt: skip
        figures = figures_of(connection)
    assert figures["killed → begun again, most (s)"] == 11.5
    assert figures["stopped → begun again, most (s)"] == 8.5
    assert figures["stopped → begun again with PostgreSQL restarted in between, most (s)"] == 29
    assert (
        figures["stopped → begun again with PostgreSQL restarted in between, p99 less the outage (s)"] == 25
    )
    assert task


def test_calls_of_an_http_only_worker_are_repeated_until_they_are_answered() -> None:
    answers = iter([503, 200, 410])
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        return httpx.Response(next(answers), json=[])

    caller = rpc.Caller("http://x", "key")
    caller.http = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x/rest/v1/rpc/")
    assert caller.call("claim_tasks", p_worker_id="w") == []
    assert sent == ["/rest/v1/rpc/claim_tasks"] * 2
    with pytest.raises(rpc.Rejected):
        caller.call("fail_task")
