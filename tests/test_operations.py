"""Handlers that hand work to a provider: with a real worker and a provider that loses, doubles and delays webhooks."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock import App, Context, testing
from penstock.postgres import db as database
from penstock.sdk.operations import Operation, Settled
from penstock.worker.reconcile import Reconcile

pytestmark = pytest.mark.every_postgres


class Refused(Exception):
    """As HTTP clients raise it."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers, json=dict)


class Provider:
    """Converts what it is given; a test decides when a job is finished and what is lost."""

    def __init__(self) -> None:
        self.jobs: dict[str, UUID] = {}
        self.finished: dict[str, str] = {}
        self.canceled: list[str] = []
        self.crashes = 0
        self.refusals: list[Exception] = []
        """Raised by the next submissions, which the provider does not take."""

    async def submit(self, operation: Operation) -> str:
        if self.refusals:
            raise self.refusals.pop(0)
        external = f"cc_{len(self.jobs) + 1}"
        self.jobs[external] = operation.id
        if self.crashes:
            self.crashes -= 1
            raise ConnectionError("the answer of the provider is lost")
        return external

    async def find(self, operation: Operation) -> str | None:
        return next((name for name, tag in self.jobs.items() if tag == operation.id), None)

    async def check(self, operation: Operation) -> Settled | None:
        state = self.finished.get(operation.external_id or "")
        if state is None:
            return None
        return (
            Settled("completed", {"file": state}) if state != "error" else Settled("failed", message="broken")
        )

    async def cancel(self, operation: Operation) -> None:
        self.canceled.append(operation.external_id or "")


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain, provider: Provider) -> App:
    made = drain.use(App(database_url=db.dsn))

    @made.task(max_attempts=3, backoff="0s")
    async def convert(ctx: Context, slide: int) -> Any:
        return await ctx.operation(
            f"slide:{slide}", submit=provider.submit, check=provider.check, find=provider.find,
            cancel=provider.cancel, timeout="5m", checks=["30s", "1m", "2m"],
        )  # fmt: skip

    made.operations.add("convert", check=provider.check, find=provider.find, cancel=provider.cancel)
    return made


def reconcile(app: App, db: testing.Database) -> int:
    async def once() -> int:
        async with database.pool(db.dsn, max_size=2) as pool:
            return await Reconcile(pool, app).once()

    return asyncio.run(once())


def tell(db: testing.Database, external: str) -> str:
    query = "select penstock.tell_operation('convert', null, %s) as told"
    return db.execute(query, [external])[0]["told"]


def status(db: testing.Database) -> list[str]:
    return [row["status"] for row in db.execute("select status from penstock.task_list order by id")]


def test_webhook_wakes_the_handler_and_the_provider_decides(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider
) -> None:
    """R4.3/deliveries: a webhook is a hint; an early one changes nothing."""
    job = app.tasks["convert"].start(1)
    drain(app)
    assert status(db) == ["waiting"]
    assert tell(db, "cc_1") == "applied"
    drain(app)
    assert status(db) == ["waiting"], "the provider has not finished"
    provider.finished["cc_1"] = "thumb.png"
    for _ in range(5):
        tell(db, "cc_1")
    drain(app)
    assert job.result(timeout=5) == {"file": "thumb.png"}
    assert len(provider.jobs) == 1
    assert tell(db, "cc_1") == "stale"


def test_lost_answer_of_the_submission_is_found_by_its_tag(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """The provider has one job, although the worker never learned its id."""
    clock.freeze()
    provider.crashes = 1
    job = app.tasks["convert"].start(1)
    drain(app)
    clock.advance(seconds=11)
    drain(app)
    provider.finished["cc_1"] = "thumb.png"
    clock.advance(seconds=60)
    drain(app)
    assert job.result(timeout=5) == {"file": "thumb.png"}
    assert len(provider.jobs) == 1


def test_success_after_the_timeout_is_used(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """R4.3/late-success, R4.3/timeout: the retry asks the old operation before it begins another."""
    clock.freeze()
    job = app.tasks["convert"].start(1)
    drain(app)
    for _ in range(12):
        clock.advance(seconds=30)
        drain(app)
    assert [row["status"] for row in db.execute("select status from penstock.operations order by number")] == [
        "timeout", "processing",
    ]  # fmt: skip
    assert set(provider.canceled) == {"cc_1"}, "the old one still ran when the new one began"
    provider.finished["cc_1"] = "late.png"
    clock.advance(minutes=2)
    drain(app)
    assert job.result(timeout=5) == {"file": "late.png"}
    found = db.execute("select status, is_late from penstock.operations order by number")
    assert [tuple(row.values()) for row in found] == [("completed", True), ("canceled", False)]
    assert "cc_2" in provider.canceled


def test_late_success_that_is_found_by_its_tag_has_the_id_of_the_provider(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """The answer of the submission was lost, and no worker ran until the operation had timed out."""
    clock.freeze()
    provider.crashes = 1
    job = app.tasks["convert"].start(1)
    drain(app)
    clock.advance(hours=2)
    db.execute("select penstock._end_operations()")
    found = "select status, external_id from penstock.operations"
    assert db.execute(found) == [{"status": "timeout", "external_id": None}]
    provider.finished["cc_1"] = "late.png"
    drain(app)
    assert job.result(timeout=5) == {"file": "late.png"}
    assert db.execute(found) == [{"status": "completed", "external_id": "cc_1"}]


def test_reconciliation_notes_the_id_of_an_operation_that_it_finds_by_its_tag(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider
) -> None:
    provider.crashes = 1
    job = app.tasks["convert"].start(1)
    drain(app)
    db.execute("select penstock.cancel_job(%s)", [job.id])
    db.execute("select penstock._end_operations()")
    found = "select status, external_id from penstock.operations"
    assert db.execute(found) == [{"status": "canceled", "external_id": None}]
    assert reconcile(app, db) == 1 and provider.canceled == ["cc_1"]
    assert db.execute(found) == [{"status": "canceled", "external_id": "cc_1"}]


def test_failing_conversions_end_after_their_attempts(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """Three attempts begin three operations, never more."""
    clock.freeze()
    app.tasks["convert"].start(1)
    for number in range(1, 8):
        provider.finished[f"cc_{number}"] = "error"
    for _ in range(10):
        drain(app)
        clock.advance(seconds=60)
    assert status(db) == ["failed"] and len(provider.jobs) == 3


@pytest.mark.slow
def test_many_objects_with_lost_doubled_and_early_webhooks(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """R4.3/polling: every object has its result, and the provider exactly one job for each."""
    chance = random.Random(4)
    clock.freeze()
    jobs = [app.tasks["convert"].start(n) for n in range(100)]
    drain(app)
    for external in list(provider.jobs):
        if chance.random() < 0.1:
            tell(db, external)
    drain(app)
    for external in list(provider.jobs):
        provider.finished[external] = external
        for _ in range(chance.choice([0, 1, 1, 2])):
            tell(db, external)
    drain(app)
    clock.advance(minutes=2)
    drain(app)
    assert {job.get().status for job in jobs} == {"completed"}
    assert len(provider.jobs) == 100


def operations(db: testing.Database) -> list[tuple[Any, ...]]:
    rows = db.execute("select status, is_late from penstock.operations order by number")
    return [tuple(row.values()) for row in rows]


def expire(app: App, drain: testing.Drain, clock: testing.Clock) -> None:
    """Let five minutes pass, with a worker that checks."""
    for seconds in (30, 60, 120, 120):
        clock.advance(seconds=seconds)
        drain(app)


@pytest.mark.slow
def test_success_after_the_dead_letter_is_found_and_used(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """R4.3/late-success: all webhooks are lost, and all attempts have failed."""
    clock.freeze()
    job = app.tasks["convert"].start(1)
    for _ in range(3):
        drain(app)
        expire(app, drain, clock)
    assert status(db) == ["failed"] and len(provider.jobs) == 3
    provider.finished["cc_2"] = "late.png"
    clock.advance(minutes=11)
    assert reconcile(app, db) == 3
    drain(app)
    assert job.get().status == "completed" and status(db) == ["succeeded"]
    assert operations(db) == [("timeout", False), ("completed", True), ("timeout", False)]
    assert len(provider.jobs) == 3, "nothing is submitted again"


def test_operation_of_a_canceled_job_is_canceled_at_the_provider(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider
) -> None:
    """The row here is canceled at once, the job at the provider by a worker."""
    job = app.tasks["convert"].start(1)
    drain(app)
    db.execute("select penstock.cancel_job(%s)", [job.id])
    drain(app)
    assert operations(db) == [("canceled", False)] and provider.canceled == []
    assert reconcile(app, db) == 1
    assert provider.canceled == ["cc_1"]
    assert reconcile(app, db) == 0


def test_canceled_operation_is_begun_again_by_the_next_attempt(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider
) -> None:
    job = app.tasks["convert"].start(1)
    drain(app)
    db.execute("select penstock.cancel_operation(id) from penstock.operations")
    drain(app)
    assert operations(db) == [("canceled", False), ("processing", False)]
    [attempt] = db.execute("select error_code from penstock.attempts")
    assert attempt["error_code"] == "operation_canceled"
    provider.finished["cc_2"] = "thumb.png"
    tell(db, "cc_2")
    drain(app)
    assert job.result(timeout=5) == {"file": "thumb.png"}


@pytest.mark.parametrize(("code", "headers", "attempts"), [(429, {"retry-after": "7"}, 0), (503, {}, 1)])
def test_refused_submission_is_made_again(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock,
    code: int, headers: dict[str, str], attempts: int,
) -> None:  # fmt: skip
    """the operation stays pending, and the provider gets one job."""
    clock.freeze()
    db.execute("select penstock.set_provider('cc/jobs', '{\"concurrency\": 5}')")
    provider.refusals.append(Refused(code, **headers))
    job = app.tasks["convert"].options(provider="cc/jobs").start(1)
    drain(app)
    assert operations(db) == [("pending", False)] and provider.jobs == {}
    closed = db.execute("select 1 from penstock.endpoint_states where closed_until > penstock._now()")
    assert bool(closed) == (code == 429)
    for _ in range(4):
        clock.advance(seconds=10)
        drain(app)
    provider.finished["cc_1"] = "thumb.png"
    clock.advance(minutes=1)
    drain(app)
    assert job.result(timeout=5) == {"file": "thumb.png"}
    assert len(provider.jobs) == 1
    assert len(db.execute("select 1 from penstock.attempts")) == attempts


@pytest.mark.slow
def test_exhausted_account_closes_the_provider_and_leaves_no_live_operation(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock
) -> None:
    """402 on every submission. The object is free again when the task is a dead letter."""
    clock.freeze()
    db.execute("select penstock.set_provider('cc/jobs', '{\"concurrency\": 5}')")
    provider.refusals.extend(Refused(402) for _ in range(20))
    app.tasks["convert"].options(provider="cc/jobs").start(1)
    drain(app)
    closed = db.execute("select 1 from penstock.endpoint_states where closed_until > penstock._now()")
    assert closed
    for _ in range(20):
        clock.advance(minutes=16)
        drain(app)
    live = db.execute("select 1 from penstock.operations where status in ('pending', 'processing')")
    assert (provider.jobs, status(db), live) == ({}, ["failed"], [])


@pytest.mark.parametrize("days", [-1, 1])
def test_wall_clock_of_the_worker_has_no_effect(
    app: App, drain: testing.Drain, db: testing.Database, provider: Provider, clock: testing.Clock,
    monkeypatch: pytest.MonkeyPatch, days: int,
) -> None:  # fmt: skip
    """R4.3/timeout: the database decides when an operation times out."""
    clock.freeze()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + days * 86_400)
    job = app.tasks["convert"].start(1)
    drain(app)
    clock.advance(minutes=4)
    drain(app)
    assert operations(db) == [("processing", False)]
    clock.advance(minutes=2)
    drain(app)
    assert operations(db)[0] == ("timeout", False)
    provider.finished["cc_1"] = "thumb.png"
    clock.advance(minutes=2)
    drain(app)
    assert job.result(timeout=5) == {"file": "thumb.png"}


def test_result_is_kept_if_the_handler_fails_after_the_operation(
    db: testing.Database, drain: testing.Drain, provider: Provider
) -> None:
    """the download fails, and the retry submits nothing."""
    app = drain.use(App(database_url=db.dsn))
    failures = [OSError("the download broke")]

    @app.task(max_attempts=2, backoff="0s")
    async def convert(ctx: Context, slide: int) -> Any:
        done = await ctx.operation(
            f"slide:{slide}", submit=provider.submit, check=provider.check, timeout="5m", checks=["30s"]
        )
        if failures:
            raise failures.pop()
        return done

    job = convert.start(1)
    drain(app)
    provider.finished["cc_1"] = "thumb.png"
    tell(db, "cc_1")
    drain(app)
    drain(app)
    assert job.result(timeout=5) == {"file": "thumb.png"}
    assert len(provider.jobs) == 1 and operations(db) == [("completed", False)]
