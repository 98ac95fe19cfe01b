"""Handlers that hand work to a provider: with a real worker and a provider that loses, doubles and delays webhooks."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from penstock import App, Context, testing
from penstock.sdk.operations import Operation, Settled


class Provider:
    """Converts what it is given; a test decides when a job is finished and what is lost."""

    def __init__(self) -> None:
        self.jobs: dict[str, UUID] = {}
        self.finished: dict[str, str] = {}
        self.canceled: list[str] = []
        self.crashes = 0

    async def submit(self, operation: Operation) -> str:
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

    return made


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
