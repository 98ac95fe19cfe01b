"""Logs of tasks: `ctx.log` and `logging` while a handler runs, in the event loop and in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock import App, Context, testing
from penstock.worker import logs as worker_logs
from tests.conftest import CommandResult


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def lines(db: testing.Database) -> list[tuple[str, str]]:
    rows = db.execute("select level, message from penstock.task_logs order by task_id, id")
    return [(row["level"], row["message"]) for row in rows]


def test_lines_of_a_handler_are_stored_beside_its_task(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    other = logging.getLogger("some.library")

    @app.task
    async def speak(ctx: Context) -> None:
        ctx.log.debug("not stored")
        ctx.log.info("step %s", 1, size=3)
        ctx.log.bind(part="a").warning("slow")
        other.warning("from %s", "logging")
        try:
            raise ValueError("odd")
        except ValueError:
            ctx.log.exception("caught")

    speak.start()
    other.warning("outside of a handler")
    drain(app)
    assert lines(db) == [
        ("info", "step 1"),
        ("warning", "slow"),
        ("warning", "from logging"),
        ("error", "caught"),
    ]
    fields = [row["fields"] for row in db.execute("select fields from penstock.task_logs order by id")]
    assert fields == [
        {"size": 3},
        {"part": "a"},
        {"logger": "some.library"},
        {"exception": "ValueError('odd')"},
    ]
    assert not [h for h in logging.getLogger().handlers if type(h).__name__ == "Capture"], (
        "removed at the end"
    )


def test_lines_of_threads_and_of_many_tasks_do_not_mix(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    @app.task
    def thread(ctx: Context, n: int) -> None:
        logging.getLogger("x").warning("thread %s", n)

    @app.task
    async def loop(ctx: Context, n: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            logging.getLogger("x").warning("loop %s", n)

    for n in range(5):
        thread.start(n)
        loop.start(n)
    drain(app)
    rows = db.execute(
        "select t.kind || ' ' || (t.input ->> 'n') as expected, l.message from penstock.task_logs l"
        " join penstock.tasks t on t.job_id = l.job_id and t.id = l.task_id"
    )
    assert len(rows) == 20 and all(row["expected"] == row["message"] for row in rows)


def test_an_attempt_has_a_limited_number_of_lines(
    app: App, drain: testing.Drain, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "MAX_PER_ATTEMPT", 3)

    @app.task
    async def speak(ctx: Context) -> None:
        for n in range(10):
            ctx.log.info(f"line {n}")

    speak.start()
    drain(app)
    assert lines(db) == [
        ("info", "line 0"),
        ("info", "line 1"),
        ("warning", "no more than 3 lines are stored"),
    ]


def test_lines_after_an_attempt_are_not_stored(app: App, drain: testing.Drain, db: testing.Database) -> None:
    """A background task that a handler started may work for another tenant by then."""
    background: list[asyncio.Task[None]] = []
    has_ended = asyncio.Event()

    @app.task
    async def speak(ctx: Context) -> str:
        async def go_on() -> None:
            await has_ended.wait()
            ctx.log.info("from the context, late")
            logging.getLogger("some.library").warning("from logging, late")

        background.append(asyncio.create_task(go_on()))
        ctx.log.info("in time")
        return "spoken"

    @app.task
    async def wait(given: str) -> str:
        has_ended.set()
        await asyncio.gather(*background)
        return given

    @app.job
    def both() -> Any:
        return wait.step(speak.step())

    job = both.start()
    drain(app)
    assert job.result(timeout=5) == "spoken"
    assert lines(db) == [("info", "in time")]


def test_half_a_private_key_is_not_stored(app: App, drain: testing.Drain, db: testing.Database) -> None:
    """Lines and their fields are cut after credentials were removed, not before."""
    key = f"-----BEGIN PRIVATE KEY-----\n{'MIIEvQ' * 500}\n-----END PRIVATE KEY-----"

    @app.task
    async def speak(ctx: Context) -> None:
        ctx.log.info(f"{'x' * 500} {key}", given=f"{'y' * 500} {key}")

    speak.start()
    drain(app)
    [row] = db.execute("select message || fields::text as line from penstock.task_logs")
    assert "MIIEvQ" not in row["line"] and row["line"].count("[redacted]") == 2


def test_a_log_that_cannot_be_stored_fails_no_task(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    """Best effort: the lines are dropped."""
    db.execute("alter table penstock.task_logs add constraint no_lines check (level = 'none') not valid")

    @app.task
    async def speak(ctx: Context) -> str:
        ctx.log.info("hello")
        return "done"

    job = speak.start()
    drain(app)
    assert (job.result(timeout=5), lines(db)) == ("done", [])


def test_a_value_without_text_fails_no_task(app: App, drain: testing.Drain, db: testing.Database) -> None:
    """Best effort: only its own line is lost."""

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @app.task
    async def speak(ctx: Context) -> str:
        ctx.log.info("lost", value=Mute())
        ctx.log.info("stored")
        return "done"

    job = speak.start()
    drain(app)
    assert (job.result(timeout=5), lines(db)) == ("done", [("info", "stored")])


def test_the_command_and_unit_tests_of_handlers_know_logs(
    app: App, drain: testing.Drain, penstock: Callable[..., CommandResult]
) -> None:
    @app.task
    async def speak(ctx: Context, name: str) -> None:
        ctx.log.info(f"hello {name}", size=3)

    Context.fake().log.info("stored nowhere")
    job: Any = speak.start("ann")
    drain(app)
    assert isinstance(job.id, UUID)
    (line,) = penstock("jobs", "logs", str(job.id)).out.splitlines()
    assert line.endswith("#1 info     hello ann size=3")
    assert penstock("jobs", "logs", str(job.id), "--follow").out.splitlines() == [line]
    (found,) = penstock("jobs", "logs", str(job.id), "-o", "json").json
    assert (found["message"], found["fields"]) == ("hello ann", {"size": 3})
    assert penstock("jobs", "logs", str(job.id), "--task", "999999").out == ""


def test_follow_shows_lines_that_are_stored_after_the_end_of_the_job(
    app: App, drain: testing.Drain, db: testing.Database, penstock: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    @app.task
    async def speak(ctx: Context) -> None:
        ctx.log.info("last words")

    job: Any = speak.start()
    drain(app)
    [line] = db.execute("delete from penstock.task_logs returning *")

    async def pause(seconds: float) -> None:
        """What the worker sends meanwhile."""
        columns = [name for name in line if name not in ("id", "fields")]
        db.execute(
            f"insert into penstock.task_logs ({', '.join(columns)}) values ({', '.join(['%s'] * len(columns))})",
            [line[name] for name in columns],
        )

    monkeypatch.setattr("penstock.cli.logs.asyncio", SimpleNamespace(sleep=pause))
    assert "last words" in penstock("jobs", "logs", str(job.id), "--follow").out
