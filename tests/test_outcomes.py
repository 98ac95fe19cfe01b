"""How an attempt ends: what a handler chooses, and anything else it may return or raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import App, Context, Fail, LeaseLost, Reschedule, Retry, testing
from penstock.upkeep import Upkeep

both_modes = pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def errors(db: testing.Database) -> list[dict[str, Any]]:
    return db.execute("select * from penstock.attempts order by task_id, lease")


def test_a_failed_handler_runs_again_only_when_the_database_hands_its_task_out(
    app: App, drain: testing.Drain, clock: testing.Clock, db: testing.Database
) -> None:
    """R1.6/one-place: the worker reports the failure; each run of the handler is a claim with a lease of its own."""
    leases: list[int] = []

    @app.task(max_attempts=3, backoff=60)
    async def fail(ctx: Context) -> None:
        leases.extend(row["lease"] for row in db.execute("select lease from penstock.leases"))
        raise RuntimeError("no")

    fail.start()
    for attempts in (1, 2, 3, 3):
        drain(app)
        assert len(leases) == len(set(leases)) == attempts
        clock.advance(hours=1)
    assert [row["lease"] for row in errors(db)] == leases


def test_a_drain_runs_tasks_that_its_empty_claim_requeued(
    app: App,
    drain: testing.Drain,
    clock: testing.Clock,
    db: testing.Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without upkeep for 5 seconds, as on a busy machine, a claim that finds nothing requeues what is due."""
    attempts: list[int] = []

    @app.task(backoff=60)
    async def fail_once(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("no")

    async def wait_for_ever(upkeep: Upkeep, **_: Any) -> None:
        await asyncio.Event().wait()

    fail_once.start()
    drain(app)
    assert attempts == [1]
    clock.advance(hours=1)
    monkeypatch.setattr(Upkeep, "run", wait_for_ever)
    db.execute("update penstock.upkeep_runs set done_at = now() - interval '1 minute'")
    drain(app)
    assert attempts == [1, 2]


def test_fail_is_permanent_retry_waits_and_reschedule_costs_no_attempt(
    app: App, drain: testing.Drain, clock: testing.Clock, db: testing.Database
) -> None:
    """R0.3/retry-after: the outcomes that a handler chooses."""
    words: list[Exception] = [
        Reschedule("10m", "not yet\0"),
        Reschedule(0, "again"),
        Retry("busy", after="2h", code="provider_busy"),
        Fail("no", code="refused", details={"why": "\ud800", "n": 1}),
    ]
    attempts: list[int] = []

    @app.task(max_attempts=2)
    async def speak(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise words.pop(0)

    speak.start()
    drain(app)
    [task] = db.execute("select status, waiting_for from penstock.task_list")
    assert task == {"status": "queued", "waiting_for": "not yet\ufffd"}
    clock.advance(minutes=11)
    drain(app)
    assert attempts == [1, 1, 1]
    clock.advance(minutes=119)
    drain(app)
    assert attempts == [1, 1, 1], "not before the time of Retry"
    clock.advance(minutes=2)
    drain(app)
    assert attempts == [1, 1, 1, 2]
    first, second = errors(db)
    assert first["error_code"] == "provider_busy" and first["retry_in_seconds"] >= 7200
    assert (second["error_code"], second["error_message"]) == ("refused", "no")
    assert second["error_details"]["details"] == {"why": "\ufffd", "n": 1}
    assert db.execute("select reason from penstock.dead_letters") == [{"reason": "permanent"}]


class Slow(Exception):
    """Like the exceptions of HTTP clients."""

    def __init__(self, retry_after: Any) -> None:
        super().__init__("slow down")
        self.retry_after = retry_after


def test_retry_after_of_an_exception_is_honoured(
    app: App, drain: testing.Drain, db: testing.Database, clock: testing.Clock
) -> None:
    """R0.3/retry-after: an upstream Retry-After of any type sets the minimum delay."""
    clock.freeze()
    cases: list[tuple[Any, float]] = [
        (100, 100), (7.5, 7.5), ("30", 30), (timedelta(minutes=2), 120), (None, 0), ("soon", 0), (-5, 0),
        (float("inf"), 0), (float("nan"), 0), ([], 0), (10**400, 0),
    ]  # fmt: skip

    @app.task(backoff="1s", backoff_cap="1s")
    async def call(number: int) -> None:
        raise Slow(cases[number][0])

    @app.job
    def calls() -> None:
        for number in range(len(cases)):
            call.step(number)

    calls.start()
    drain(app)
    for (value, least), error in zip(cases, errors(db), strict=True):
        assert least <= error["retry_in_seconds"] <= max(least, 1), value
        assert (error["error_code"], error["error_message"]) == ("handler_error", "slow down")


class BadString(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class BadCode(Exception):
    @property
    def code(self) -> str:
        raise RuntimeError("no code")


RAISED: list[tuple[Callable[[], BaseException], str, str]] = [
    (lambda: ValueError("a\0b\ud800"), "handler_error", "a\ufffdb\ufffd"),
    (lambda: ValueError("x" * 100_000), "handler_error", "x" * 10_000),
    (lambda: ValueError(), "handler_error", "ValueError"),
    (lambda: BadString(), "handler_error", "BadString (no details: RuntimeError)"),
    (lambda: BadCode(), "handler_error", "BadCode (no details: RuntimeError)"),
    (lambda: SystemExit(3), "3", "3"),
    (lambda: asyncio.CancelledError(), "handler_error", "CancelledError"),
    (lambda: TimeoutError(), "handler_error", "TimeoutError"),
    (lambda: StopIteration(), "handler_error", "coroutine raised StopIteration"),
    (lambda: Fail("a", code="x" * 500), "x" * 100, "a"),
    (lambda: Fail("a", details=object()), "failed", "a"),
    (lambda: Fail("a", details={"n": float("nan")}), "failed", "a"),
    (lambda: Fail("a", details="x" * 10_000_000), "failed", "a"),
    (lambda: LeaseLost("not really"), "lease_lost", "not really"),
    (lambda: BaseExceptionGroup("group", [KeyError("k")]), "handler_error", "group (1 sub-exception)"),
]


@both_modes
def test_any_exception_is_stored_and_the_worker_continues(
    app: App, drain: testing.Drain, db: testing.Database, is_async: bool
) -> None:
    """No exception leaves a task stuck, ends a slot, or ends the worker. The worker has one slot."""

    async def in_loop(number: int) -> None:
        raise RAISED[number][0]()

    def in_thread(number: int) -> None:
        raise RAISED[number][0]()

    bad = app.task(kind="bad", max_attempts=1)(in_loop if is_async else in_thread)

    @app.job
    def bads() -> None:
        for number in range(len(RAISED)):
            bad.step(number)

    job = bads.start()
    drain(app, concurrency=1)
    assert job.get().progress.failed == len(RAISED)
    for (make, code, message), error in zip(RAISED, errors(db), strict=True):
        if isinstance(make(), StopIteration) and not is_async:
            message = error["error_message"]
        assert (error["error_code"], error["error_message"]) == (code, message), make()
    assert db.execute("select 1 from penstock.leases") == []


DEEP: Any = 1
for _ in range(50_000):
    DEEP = [DEEP]
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)

RETURNED: list[tuple[Any, Any, Any]] = [
    # returned, stored in the database (None: it fails), passed to the next step
    ("a\0b", {"$value": "a\ufffdb", "$cleaned": True}, "a\ufffdb"),
    ({"k\0": ["\ud800"]}, {"k\ufffd": ["\ufffd"], "$cleaned": True}, {"k\ufffd": ["\ufffd"]}),
    ("\U0001f600 \\u0000", "\U0001f600 \\u0000", "\U0001f600 \\u0000"),
    (10**300, 10**300, 10**300),
    ({"none": None}, {"none": None}, {"none": None}),
    (float("nan"), None, None),
    ([float("inf")], None, None),
    (b"\xff", None, None),
    (object(), None, None),
    ("x" * 300_000, None, None),
    ("x" * 3_000_000, None, None),
    (10**400, None, None),
    (10**5000, None, None),
    (DEEP, None, None),
    (CIRCLE, None, None),
]


@both_modes
def test_any_return_value_is_stored_or_fails_the_task(
    app: App, drain: testing.Drain, db: testing.Database, is_async: bool
) -> None:
    """An odd return value is cleaned and flagged, or fails the task permanently; no task gets stuck."""

    async def in_loop(number: int) -> Any:
        return RETURNED[number][0]

    def in_thread(number: int) -> Any:
        return RETURNED[number][0]

    seen: dict[int, Any] = {}

    @app.task
    async def see(number: int, what: Any) -> None:
        seen[number] = what

    give = app.task(kind="give")(in_loop if is_async else in_thread)

    async def nowhere(*_: Any) -> Any:
        pytest.fail("the handler saved nothing")

    # An app that stores files itself: a large output does not become an artifact.
    app.artifacts = nowhere

    @app.job
    def gives() -> None:
        for number in range(len(RETURNED)):
            see.step(number, give.step(number))

    job = gives.start()
    drain(app)
    progress = job.get().progress
    bad = sum(kept is None for _, kept, _ in RETURNED)
    assert (progress.failed, progress.canceled, progress.succeeded) == (bad, bad, 2 * (len(RETURNED) - bad))
    rows = db.execute("select * from penstock.task_list where kind = 'give' order by id")
    for number, ((_, kept, given), row) in enumerate(zip(RETURNED, rows, strict=True)):
        if kept is None:
            assert (row["status"], row["error_code"], row["attempt"]) == ("failed", "bad_output", 1), number
        else:
            assert (row["status"], row["output"], seen[number]) == ("succeeded", kept, given), number


def test_an_error_raised_from_itself_fails_the_attempt(
    app: App, db: testing.Database, drain: testing.Drain
) -> None:
    """A chain of causes without an end must not keep the worker busy."""

    @app.task(max_attempts=1)
    async def work() -> None:
        error = ValueError("from itself")
        raise error from error

    work.start()
    drain(app)
    assert db.execute("select error_message as text from penstock.attempts") == [{"text": "from itself"}]
