"""Streams of handlers: `ctx.stream` in the event loop, in threads and in transactions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, Context, testing
from penstock.worker import streams as worker_streams


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def streamed(db: testing.Database) -> list[list[Any]]:
    """The parts of each stream, with neighbouring texts joined."""
    found: dict[int, list[Any]] = {}
    for row in db.execute("select lease, parts from penstock.task_chunks order by lease, number"):
        parts = found.setdefault(row["lease"], [])
        for part in row["parts"]:
            if parts and isinstance(part, str) and isinstance(parts[-1], str):
                parts[-1] += part
            else:
                parts.append(part)
    return [*found.values()]


def test_parts_of_every_kind_of_handler_are_stored_in_order(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    @app.task
    async def loop(ctx: Context) -> None:
        for token in ("Hel", "lo ", "wor", "ld"):
            ctx.stream(token)
            await asyncio.sleep(0)
        ctx.stream({"tool": "search", "n": 1})
        ctx.stream("!")

    @app.task
    def thread(ctx: Context) -> None:
        for n in range(100):
            ctx.stream(str(n % 10))

    @app.task(transactional=True)
    async def transaction(ctx: Context) -> None:
        ctx.stream("in a transaction")

    @app.task(transactional=True)
    def transaction_in_thread(ctx: Context) -> None:
        ctx.stream("in a thread's transaction")

    jobs = [task.start() for task in (loop, thread, transaction, transaction_in_thread)]
    drain(app)
    for job in jobs:
        job.result(timeout=5)
    assert sorted(streamed(db), key=lambda parts: parts[0]) == [
        ["0123456789" * 10],
        ["Hello world", {"tool": "search", "n": 1}, "!"],
        ["in a thread's transaction"],
        ["in a transaction"],
    ]


def test_a_retry_begins_a_new_stream_and_failures_keep_theirs(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    @app.task(max_attempts=2, backoff=0)
    async def speak(ctx: Context) -> None:
        ctx.stream(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    speak.start()
    drain(app)
    assert streamed(db) == [["attempt 1"], ["attempt 2"]]
    rows = db.execute("select attempt from penstock.task_chunks order by lease")
    assert [row["attempt"] for row in rows] == [1, 2]


def test_a_stream_is_bounded(
    app: App, drain: testing.Drain, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_streams, "MAX_BYTES", 50_000)

    @app.task
    async def speak(ctx: Context) -> None:
        for _ in range(10):
            ctx.stream("x" * 9998)

    @app.task
    async def large(ctx: Context) -> None:
        ctx.stream({"text": "y" * 20_000})
        ctx.stream("after")

    speak.start()
    large.start()
    drain(app)
    long, event = sorted(streamed(db), key=len, reverse=True)[:2]
    if isinstance(long[0], dict):
        long, event = event, long
    assert len(long[0]) <= 50_000 and long[1] == {
        "dropped": "no more than 50000 bytes of an attempt are streamed"
    }
    assert event == [{"dropped": "an event of 20012 bytes; at most 16384 are allowed"}, "after"]
    rows = db.execute("select max(octet_length(parts::text)) as most from penstock.task_chunks")
    assert rows[0]["most"] < 17_000


def test_no_part_fails_a_task(app: App, drain: testing.Drain, db: testing.Database) -> None:
    """Best effort: NUL, lone surrogates, and values that are no JSON."""

    @app.task
    async def speak(ctx: Context) -> str:
        ctx.stream("nul \0 and \ud800 ")
        ctx.stream("")
        ctx.stream({"at": {1, 2}.__class__, "\0": float("nan")})
        loop: dict[str, Any] = {}
        loop["self"] = loop
        ctx.stream(loop)
        ctx.stream("end")
        return "done"

    job = speak.start()
    drain(app)
    assert job.result(timeout=5) == "done"
    [parts] = streamed(db)
    assert parts[0] == "nul \ufffd and \ufffd " and parts[-1] == "end"
    assert [set(part) for part in parts[1:-1]] == [{"dropped"}] * 2


def test_a_stream_that_cannot_be_stored_fails_no_task(
    app: App, drain: testing.Drain, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_streams, "END_SECONDS", 0.3)
    db.execute("alter table penstock.task_chunks add constraint none check (number = 0) not valid")

    @app.task
    async def speak(ctx: Context) -> str:
        ctx.stream("hello")
        return "done"

    job = speak.start()
    drain(app)
    assert (job.result(timeout=5), streamed(db)) == ("done", [])


def test_a_chunk_that_could_not_be_stored_is_sent_again(
    app: App, drain: testing.Drain, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was stored and only the response was lost."""
    store = worker_streams.streams.store
    calls: list[int] = []

    async def lossy(*arguments: Any) -> int:
        calls.append(await store(*arguments))
        if len(calls) == 1:
            raise ConnectionError("the response was lost")
        return calls[-1]

    monkeypatch.setattr(worker_streams.streams, "store", lossy)

    @app.task
    async def speak(ctx: Context) -> None:
        ctx.stream("once")

    speak.start()
    drain(app)
    assert (streamed(db), calls) == ([["once"]], [1, 0])


def test_parts_after_the_attempt_are_dropped(app: App, drain: testing.Drain, db: testing.Database) -> None:
    """A background task that a handler started may outlive its attempt."""
    kept: list[Context] = []

    @app.task
    async def first(ctx: Context) -> None:
        kept.append(ctx)
        ctx.stream("mine")

    @app.task
    async def second(ctx: Context) -> None:
        kept[0].stream("late")

    job = first.start()
    drain(app)
    job.result(timeout=5)
    second.start()
    drain(app)
    assert streamed(db) == [["mine"]]
    Context.fake().stream("stored nowhere")
