"""Jobs, dead letters, kinds, tenants and workers from Python: thin wrappers, so each is called and read back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from penstock import testing
from penstock.contract import dead_letters, filters, jobs, kinds, tenants, workers
from penstock.errors import Conflict, Invalid, NotFound, TooLarge
from penstock.postgres import db as database
from penstock.postgres import json_batches
from penstock.types import Job, Phase

STEP = {"name": "step", "max_attempts": 2, "backoff_seconds": 0}


def steps(count: int, **input: Any) -> Iterator[dict[str, Any]]:
    return ({"kind": "step", "input": {"n": n, **input}} for n in range(count))


async def test_a_job_is_started_and_read_back(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        await kinds.define_job_type(pool, name="publish", phases=[{"name": "step", "weight": 2}])
        graph = [{"kind": "step", "key": "a"}, {"kind": "step", "key": "b", "after": ["a"], "priority": 1}]
        options: Any = {"tenant_id": tenant, "idempotency_key": "k", "priority": 3, "run_at": None}
        job_id = await jobs.start(pool, type="publish", params={"topic": "otters"}, tasks=graph, **options)
        assert (
            await jobs.start(pool, type="publish", params={"topic": "otters"}, tasks=graph, **options)
            == job_id
        )
        with pytest.raises(Conflict) as refused:
            await jobs.start(pool, type="publish", params={"topic": "herons"}, tasks=graph, **options)
        assert refused.value.code == "idempotency_key_reused"
        job = await jobs.get(pool, job_id=job_id)
        first, second = await jobs.tasks(pool, job_id=job_id)
        [listed] = await jobs.list(pool, tenant_id=tenant, type="publish", status="queued")
        assert await jobs.tasks(pool, job_id=job_id, status="blocked", kind="step", after=first.id) == [
            second
        ]
    assert (job.tenant_id, job.type, job.params, job.priority) == (tenant, "publish", {"topic": "otters"}, 3)
    assert job.progress.phases == (Phase("step", 2, 2, 0, 0, 0),)
    assert job.created_at.tzinfo is not None
    assert (listed.id, listed.created_at, listed.progress.total) == (job_id, job.created_at, 2)
    assert (first.key, first.status, second.status) == ("a", "queued", "blocked")
    assert (first.priority, second.priority) == (3, 1)


async def test_a_delay_is_measured_by_the_databases_clock(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        later: Any = {"type": "t", "tenant_id": tenant}
        delayed = await jobs.start(pool, tasks=steps(1), delay_seconds=60, **later)
        assert (await jobs.get(pool, job_id=delayed)).run_at == clock.now() + timedelta(seconds=60)
        at = datetime(2030, 1, 2, tzinfo=UTC)
        dated = await jobs.start(pool, tasks=steps(1), run_at=at, **later)
        assert (await jobs.get(pool, job_id=dated)).run_at == at
        with pytest.raises(Invalid, match="time zone"):
            await jobs.start(pool, tasks=steps(1), run_at=datetime(2030, 1, 2), **later)


async def test_start_many_reads_tasks_while_it_sends_them(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        options: Any = {"type": "many", "tenant_id": tenant, "idempotency_key": "k"}
        job_id = await jobs.start_many(pool, tasks=steps(2501), chunk=1000, **options)
        assert (await jobs.get(pool, job_id=job_id)).progress.total == 2501
        untouched = steps(1)
        assert await jobs.start_many(pool, tasks=untouched, **options) == job_id
        assert len(list(untouched)) == 1
        with pytest.raises(Conflict):
            await jobs.start_many(pool, tasks=steps(1), digest="other tasks", **options)
    [row] = db.execute("select count(distinct input -> 'n') as n from penstock.tasks")
    assert row["n"] == 2501


async def test_large_tasks_are_sent_in_small_batches() -> None:
    async def chunks(tasks: Any, max_items: int) -> list[Any]:
        sent: list[Any] = []

        async def send(part: Any) -> None:
            sent.append(part)

        assert await json_batches.send_in_batches(tasks, send, max_items=max_items) == len(sent)
        return sent

    parts = await chunks(steps(100, text="x" * 200_000), 10_000)
    assert [len(part.obj) for part in parts] == [40, 40, 20]
    parts = await chunks(steps(250), 120)
    assert [len(part.obj) for part in parts] == [120, 120, 10]
    assert json.loads(parts[2].dumps(parts[2].obj)) == parts[2].obj if parts[2].dumps else False


@pytest.mark.parametrize(
    ("tasks", "error", "code", "field"),
    [
        ([], Invalid, "no_tasks", "tasks"),
        ([{"kind": "step"}, {"kind": "unknown"}], Invalid, "unknown_kind", "tasks[1].kind"),
        ([{"kind": "step", "input": {"a": ["x\0"]}}], Invalid, "unstorable_text", "tasks[0].input.a[0]"),
        ([{"kind": "step", "input": {"a": "\ud800"}}], Invalid, "unstorable_text", "tasks[0].input.a"),
        ([{"kind": "step", "input": {"a": "x" * 300_000}}], TooLarge, "too_large", "tasks[0].input"),
    ],
)
async def test_a_rejected_start_leaves_nothing_behind(
    db: testing.Database,
    tenant: UUID,
    tasks: list[dict[str, Any]],
    error: type[Invalid],
    code: str,
    field: str,
) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        for start in (jobs.start, jobs.start_many):
            with pytest.raises(error) as refused:
                await start(pool, type="t", tasks=tasks, tenant_id=tenant)
            assert (refused.value.code, refused.value.details["field"]) == (code, field)
        assert await jobs.list(pool) == []


async def test_a_job_starts_in_the_callers_transaction(db: testing.Database, tenant: UUID) -> None:
    db.execute("select penstock.define_kind('step')")
    what: Any = {
        "type": "t",
        "params": {"a": 1},
        "tasks": [{"kind": "step"}],
        "tenant_id": tenant,
        "delay_seconds": 5,
    }
    address = db.dsn.replace("postgresql://", "postgresql+psycopg://")

    connection = db.connect()
    with connection.transaction() as transaction:
        jobs.start_sync(connection, **what)
        raise_rollback(transaction)
    engine = sqlalchemy.create_engine(address)
    with Session(engine) as session:
        jobs.start_sync(session, **what)
        session.rollback()
        kept = [jobs.start_sync(session, **what)]
        session.commit()
        with pytest.raises(Invalid) as refused:
            unknown: Any = {**what, "tasks": [{"kind": "unknown"}]}
            jobs.start_sync(session, **unknown)
        assert refused.value.code == "unknown_kind"
    engine.dispose()
    async_engine = create_async_engine(address)
    async with AsyncSession(async_engine) as session:
        kept.append(await jobs.start_in(session, **what))
        await session.commit()
        await jobs.start_in(session, **what)
    await async_engine.dispose()
    async with database.pool(db.dsn) as pool, database.transaction(pool) as conn:
        kept.append(await jobs.start_in(conn, **what))
    assert [row["id"] for row in db.execute("select id from penstock.jobs order by id")] == kept


def raise_rollback(transaction: Any) -> None:
    import psycopg

    raise psycopg.Rollback(transaction)


async def test_watch_yields_changes_until_the_job_ends(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        job_id = await jobs.start(
            pool, type="t", tasks=[{"kind": "step", "key": "a"}, {"kind": "step"}], tenant_id=tenant
        )
        seen: list[Job] = []
        async for job in jobs.watch(pool, job_id=job_id, interval=0.01):
            seen.append(job)
            if job.status == "queued":
                db.execute("select id from penstock.claim_tasks('w', 2)")
            elif job.progress.done == 0:
                [task, _] = await jobs.tasks(pool, job_id=job_id)
                db.execute("select penstock.complete_task(%s, 'w', '{\"x\": 1}')", [task.id])
            elif job.progress.done == 1:
                [_, task] = await jobs.tasks(pool, job_id=job_id)
                db.execute("select penstock.complete_task(%s, 'w', '2')", [task.id])
        assert [job.progress.done for job in seen] == [0, 0, 1, 2]
        assert (await jobs.ended(pool, job_id=job_id)).status == "completed"
        assert list((await jobs.outputs(pool, job_id=job_id)).values()) == [{"x": 1}, 2]
        assert next(iter(await jobs.outputs(pool, job_id=job_id))) == "a"
        with pytest.raises(NotFound):
            await jobs.ended(pool, job_id=uuid4())


async def test_watch_waits_for_a_database_that_restarts(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn, max_size=1) as pool:
        await kinds.define(pool, kinds=[STEP])
        job_id = await jobs.start(pool, type="t", tasks=steps(1), tenant_id=tenant)
        watching = asyncio.create_task(jobs.ended(pool, job_id=job_id, interval=0.01))
        await asyncio.sleep(0.05)
        for _ in range(3):
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.02)
        db.execute("select penstock.cancel_job(%s)", [job_id])
        assert (await asyncio.wait_for(watching, 20)).status == "canceled"


async def test_jobs_are_paused_resumed_canceled_and_retried(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        job_id = await jobs.start(pool, type="t", tasks=steps(1), tenant_id=tenant, paused=True)
        assert await jobs.resume(pool, job_id=job_id) == "queued"
        assert await jobs.pause(pool, job_id=job_id, reason="lunch") == "paused"
        assert (await jobs.get(pool, job_id=job_id)).status_reason == "lunch"
        [added] = await jobs.add_tasks(pool, job_id=job_id, tasks=steps(1))
        assert isinstance(added, int)
        assert await jobs.cancel(pool, job_id=job_id, reason="no more") == "canceled"
        with pytest.raises(Conflict):
            await jobs.retry(pool, job_id=job_id)


async def test_dead_letters_are_listed_replayed_and_discarded(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        job_id = await jobs.start(pool, type="t", tasks=steps(2), tenant_id=tenant)
        for _ in range(2):
            for task in db.execute("select id from penstock.claim_tasks('w', 10)"):
                db.execute("select penstock.fail_task(%s, 'w', 'Busy', p_error_code => 'busy')", [task["id"]])
        newest, oldest = await dead_letters.list(
            pool, filter=f"job:{job_id} kind:step error:BUSY reason:attempts"
        )
        assert await dead_letters.list(pool, before=newest.id, limit=1) == [oldest]
        assert await dead_letters.get(pool, letter_id=oldest.id) == oldest
        tries = await jobs.attempts(pool, job_id=job_id, task_id=oldest.task_id)
        assert [(a.attempt, a.error_code, a.outcome) for a in tries] == [
            (1, "busy", "failed"),
            (2, "busy", "failed"),
        ]
        assert len(await jobs.attempts(pool, job_id=job_id)) == 4
        assert await dead_letters.discard(pool, filter={"ids": [oldest.id]}) == 1
        assert await dead_letters.replay(pool, filter={"tenant_id": tenant, "error_code": "busy"}) == 1
        with pytest.raises(Invalid):
            await dead_letters.replay(pool, filter={})
        with pytest.raises(NotFound):
            await dead_letters.get(pool, letter_id=oldest.id)


async def test_tenants_and_members_are_created_and_changed(db: testing.Database) -> None:
    async with database.pool(db.dsn) as pool:
        first, again = await asyncio.gather(
            tenants.ensure(pool, name="acme"), tenants.ensure(pool, name="acme")
        )
        assert first == again
        second = await tenants.create(pool, name="acme", weight=0.5)
        assert [tenant.id for tenant in await tenants.find(pool, name="acme")] == [first, second]
        assert [tenant.weight for tenant in await tenants.find(pool, name=str(second).upper())] == [0.5]
        assert [tenant.id for tenant in await tenants.list(pool, after=first, limit=1)] == [second]
        assert await tenants.names(pool, ids=[first, uuid4()]) == {first: "acme"}
        await tenants.set_weight(pool, tenant_id=first, weight=2.25)
        await tenants.set_member(pool, tenant_id=first, user_id=uuid4(), role="owner")
        with pytest.raises(Conflict):
            user_id = db.execute("select user_id from penstock.members")[0]["user_id"]
            await tenants.set_member(pool, tenant_id=first, user_id=user_id, role="viewer")
        assert (await tenants.list(pool))[0].weight == 2.25


async def test_jobs_are_filtered_by_age_and_tenant(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    """Age is by the database's clock, not this machine's; a tenant is given by name or id."""
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        old = await jobs.start(pool, type="t", tasks=steps(1), tenant_id=tenant)
        clock.advance(minutes=50)
        new = await jobs.start(pool, type="t", tasks=steps(1), tenant_id=tenant)
        clock.advance(minutes=20)
        [(name,)] = await database.rows(pool, "select name from penstock.tenants where id = %s", (tenant,))

        async def found(filter: str) -> list[UUID]:
            return [job.id for job in await jobs.list(pool, filter=filter)]

        assert (await found("age:<1h"), await found("age:>1h"), await found("age:2h")) == (
            [new],
            [old],
            [new, old],
        )
        assert await found(f"tenant:{tenant}") == await found(f"tenant:{filters.quoted(name)}") == [new, old]
        assert await found(f"-tenant:{filters.quoted(name)}") == await found("tenant:nobody") == []
        assert await found(f"tenant:nobody,{str(tenant).upper()} age:<1h") == [new]


async def test_workers_and_the_backlog_are_listed(db: testing.Database, tenant: UUID) -> None:
    with database.connect(db.dsn) as conn:
        workers.report_sync(
            conn, worker_id="w", info={"host": "h", "kinds": ["step"], "concurrency": 2, "pid": 1}
        )
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[STEP])
        await jobs.start(pool, type="t", tasks=steps(3), tenant_id=tenant)
        [worker] = await workers.list(pool)
        [lane] = await workers.backlog(pool)
    assert (worker.id, worker.kinds, worker.state, worker.is_alive) == ("w", ["step"], "running", True)
    assert (lane.kind, lane.provider, lane.waiting, lane.running) == ("step", None, 3, 0)
    assert lane.oldest_seconds is not None
