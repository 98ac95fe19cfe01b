"""Handlers that wait and remember steps, with a real worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import App, Context, Invalid, WaitTimedOut, cli, testing
from penstock.sdk.context import Waiting

pytestmark = pytest.mark.every_postgres


class Draft(BaseModel):
    text: str
    pages: int


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def only_task(db: testing.Database) -> dict[str, Any]:
    [task] = db.execute("select * from penstock.task_list")
    return task


def answer(db: testing.Database, option: str | None, payload: str = "{}", name: str = "approval") -> None:
    query = "select penstock.answer_wait(id, %s, %s) from penstock.waits where name = %s"
    db.execute(query, [option, payload, name])


def test_approval_parks_the_task_until_the_answer(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    """B10/free: the handler runs again from its start; steps before the wait are not repeated."""
    calls: list[str] = []

    def write(topic: str) -> Draft:
        calls.append(f"write {topic}")
        return Draft(text=f"about {topic}", pages=3)

    async def send(text: str) -> None:
        calls.append("send")

    @app.task
    async def publish(ctx: Context, topic: str) -> str:
        calls.append("run")
        draft = await ctx.step("write", write, topic)
        assert isinstance(draft, Draft)
        answer = await ctx.wait_for(
            "approval", timeout="3d", options=["approve", "reject"], fields={"note": "text?"}
        )
        await ctx.step("send", send, draft.text)
        return f"{answer.option} {answer.payload.get('note')} {draft.pages}"

    job = publish.start("foxes")
    drain(app)
    assert only_task(db)["status"] == "waiting"
    assert calls == ["run", "write foxes"]
    answer(db, "approve", '{"note": "good"}')
    drain(app)
    assert job.result(timeout=5) == "approve good 3"
    assert calls == ["run", "write foxes", "run", "send"]
    assert db.execute("select * from penstock.attempts") == []


def test_retry_does_not_repeat_a_finished_step(app: App, drain: testing.Drain, db: testing.Database) -> None:
    calls: list[str] = []

    @app.task(max_attempts=3, backoff="0s")
    async def work(ctx: Context) -> int:
        first = await ctx.step("pay", lambda: calls.append("pay") or len(calls))
        if len(calls) < 3:
            calls.append("fail")
            raise RuntimeError("later")
        return first

    job = work.start()
    drain(app)
    assert job.result(timeout=5) == 1
    assert calls == ["pay", "fail", "fail"]


def test_handler_in_a_thread_waits(app: App, drain: testing.Drain, db: testing.Database) -> None:
    runs: list[int] = []

    @app.task
    def work(ctx: Context) -> str | None:
        number = ctx.step_sync("number", lambda: len(runs))
        runs.append(number)
        return ctx.wait_for_sync("approval", options=["yes"]).option

    job = work.start()
    drain(app)
    answer(db, "yes")
    drain(app)
    assert (job.result(timeout=5), runs) == ("yes", [0, 0])


def test_sleep_takes_no_slot(
    app: App, drain: testing.Drain, db: testing.Database, clock: testing.Clock
) -> None:
    runs: list[str] = []

    @app.task
    async def work(ctx: Context) -> int:
        runs.append("run")
        await ctx.sleep("6h")
        await ctx.sleep("30m")
        return len(runs)

    clock.freeze()
    job = work.start()
    drain(app)
    assert only_task(db)["waiting_for"] == "sleep: sleep 1"
    clock.advance(hours=6)
    drain(app)
    assert only_task(db)["waiting_for"] == "sleep: sleep 2"
    clock.advance(minutes=30)
    drain(app)
    assert job.result(timeout=5) == 3


@pytest.mark.parametrize("default", ["reject", None])
def test_timeout_gives_the_default_or_fails(
    app: App, drain: testing.Drain, db: testing.Database, clock: testing.Clock, default: str | None
) -> None:
    @app.task(max_attempts=3)
    async def work(ctx: Context) -> str:
        found = await ctx.wait_for("approval", timeout="1h", options=["approve", "reject"], default=default)
        assert found.is_default and found.by is None
        return f"{found.option}"

    clock.freeze()
    job = work.start()
    drain(app)
    clock.advance(hours=1)
    drain(app)
    task = only_task(db)
    if default:
        assert job.result(timeout=5) == "reject"
    else:
        assert (task["status"], task["error_code"]) == ("failed", "wait_timeout")


def test_except_exception_does_not_swallow_a_wait(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    cleaned: list[str] = []

    @app.task
    async def work(ctx: Context) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.wait_for("one"))
                group.create_task(ctx.wait_for("two"))
        except Exception:
            cleaned.append("swallowed")
        finally:
            cleaned.append("cleaned up")

    work.start()
    drain(app)
    assert only_task(db)["status"] == "waiting"
    assert cleaned == ["cleaned up"]


def test_transactional_task_cannot_wait(app: App, drain: testing.Drain, db: testing.Database) -> None:
    @app.task(transactional=True, max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.sleep("1h")

    work.start()
    drain(app)
    assert only_task(db)["error_code"] == "transactional_wait"


def test_thread_must_use_the_sync_methods(app: App, drain: testing.Drain, db: testing.Database) -> None:
    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        _ = ctx.sleep("1h")

    work.start()
    drain(app)
    assert only_task(db)["error_code"] == "use_sync"


def test_step_whose_result_is_not_json_fails(app: App, drain: testing.Drain, db: testing.Database) -> None:
    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        await ctx.step("bad", lambda: float("nan"))

    work.start()
    drain(app)
    assert only_task(db)["error_code"] == "bad_step"


def test_command_line_lists_and_answers(
    app: App, drain: testing.Drain, db: testing.Database, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.execute(["--database", db.dsn, *arguments])
        out, err = capsys.readouterr()
        return code, out + err

    @app.task
    async def work(ctx: Context) -> str:
        found = await ctx.wait_for("approval", options=["yes", "no"], fields={"note": "text", "n": "number?"})
        return f"{found.option} {found.payload}"

    job = work.start()
    drain(app)
    code, text = run("waits", "ls", "status:open")
    assert code == 0 and "yes, no" in text
    code, text = run("jobs", "why", str(job.id))
    assert code == 0 and "an answer to approval" in text
    wait_id = str(db.execute("select id from penstock.waits")[0]["id"])
    assert run("waits", "answer", wait_id, "maybe", "--set", "note=x")[0] == 2
    assert run("waits", "answer", wait_id, "yes", "--set", "note")[0] == 2
    assert run("waits", "answer", wait_id, "yes", "--set", "note=7", "--set", "n=3")[0] == 0
    assert run("waits", "answer", wait_id, "no", "--set", "note=x")[0] == 6
    assert "answered" in run("waits", "show", wait_id)[1]
    drain(app)
    assert job.result(timeout=5) == "yes {'n': 3, 'note': '7'}"


async def test_fake_context_answers_with_the_first_option() -> None:
    ctx = Context.fake()
    assert (await ctx.wait_for("approval", options=["yes", "no"])).option == "yes"
    await ctx.sleep("1h")
    assert await ctx.step("add", lambda: 1 + 1) == 2
    assert (await ctx.answer_url("approval", base="https://x.example/")) == "https://x.example/answers/test"
    with pytest.raises(Invalid):
        await ctx.sleep("soon")
    assert issubclass(Waiting, BaseException) and not issubclass(Waiting, Exception)
    assert issubclass(WaitTimedOut, Exception)
