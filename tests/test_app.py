"""The SDK: tasks, jobs, contexts, options and results."""

from __future__ import annotations

import asyncio
import enum
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
import structlog
from psycopg.types.json import Jsonb

import penstock
from penstock import App, Conflict, Context, Fail, Invalid, JobFailed, NotFound, TimedOut, testing
from penstock.contract import jobs
from penstock.formatting import seconds
from penstock.sdk.load import load


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


class Colour(enum.Enum):
    RED = "red"


class Document(pydantic.BaseModel):
    title: str
    pages: int = 1


@dataclass
class Point:
    x: int
    y: int


def states(db: testing.Database, job: penstock.Started[Any]) -> dict[str, str]:
    rows = db.execute("select key, status from penstock.task_list where job_id = %s", [job.id])
    return {row["key"]: row["status"] for row in rows}


def only_task(db: testing.Database, job: penstock.Started[Any]) -> dict[str, Any]:
    [row] = db.execute("select * from penstock.task_list where job_id = %s", [job.id])
    return row


def test_the_package_exports_only_the_public_names() -> None:
    """The public names are a promise to users: a change of this list breaks their code."""
    assert penstock.__all__ == [
        *(
            "Answer",
            "App",
            "AsyncClient",
            "BulkRow",
            "Change",
            "Client",
            "Conflict",
            "Context",
            "Fail",
            "Forbidden",
            "FunctionRequest",
            "FunctionResponse",
            "Guard",
            "Invalid",
            "Job",
            "JobFailed",
        ),
        *(
            "LeaseLost",
            "Limited",
            "NotFound",
            "PageAction",
            "PenstockError",
            "Prompt",
            "Reschedule",
            "Retry",
            "RowError",
            "Started",
            "Step",
            "TimedOut",
            "Unavailable",
            "UpgradeRequired",
        ),
        "WaitTimedOut",
        "Worker",
    ]
    assert all(hasattr(penstock, name) for name in penstock.__all__)


# --- inputs and outputs ------------------------------------------------------------------------------------


def test_calling_a_task_runs_its_function() -> None:
    app = App()

    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def greet(ctx: Context, name: str) -> str:
        ctx.progress(1, of=2, message="half")
        await ctx.aheartbeat()
        assert await ctx.aadd_tasks([{"kind": "double"}]) == [1]
        assert (await ctx.asave("a.txt", b"abc"))["bytes"] == 3
        return f"{name} {ctx.fraction} {ctx.attempt}"

    assert double(4) == 8
    assert double.__name__ == "double" and repr(double) == "<task double>"
    assert asyncio.run(greet(Context.fake(attempt=3), "Ada")) == "Ada 0.5 3"


def test_arguments_and_results_keep_their_types(app: App, drain: testing.Drain) -> None:
    """Inputs and outputs are converted by pydantic, here with the sync calls."""
    seen: list[Any] = []

    @app.task
    def typed(
        when: datetime,
        ident: uuid.UUID,
        price: Decimal,
        colour: Colour,
        point: Point,
        document: Document,
        tags: set[str],
        pair: tuple[int, str],
        path: Path,
        json: str,
        maybe: int | None = None,
        rest: Annotated[list[int], pydantic.Field(max_length=3)] = [1],  # noqa: B006 as a default it is a value
    ) -> Document:
        seen.append((when, ident, price, colour, point, document, tags, pair, path, json, maybe, rest))
        return Document(title=document.title.upper(), pages=document.pages + 1)

    now, ident = datetime.now(UTC), uuid.uuid4()
    document = Document(title="a")
    arguments: Any = (
        *(now, ident, Decimal("1.10"), Colour.RED, Point(1, 2), document, {"t"}, (1, "b"), Path("/x"), "{}"),
    )
    job = typed.start(*arguments)
    drain(app)
    assert job.result(timeout=5) == Document(title="A", pages=2)
    assert seen == [(*arguments, None, [1])]


def test_start_rejects_bad_input_and_names_the_field(app: App, db: testing.Database) -> None:
    @app.task
    def resize(
        document: Document, width: Annotated[int, pydantic.Field(gt=0)], mode: str = "fit"
    ) -> None: ...

    def anything_at_all(value: Any) -> None: ...

    anything: Any = app.task(anything_at_all)

    @app.job
    def resize_all(document: Document, widths: list[int]) -> None:
        for width in widths:
            resize.step(document, width)

    document = Document(title="a")
    refusals: list[tuple[str, Callable[[], Any]]] = [
        ("width", lambda: resize.start(document, "wide")),  # type: ignore[arg-type]
        ("width", lambda: resize.start(document, 0)),
        ("document.title", lambda: resize.start({"pages": 1}, 5)),  # type: ignore[arg-type]
        ("widths.1", lambda: resize_all.start(document, [1, "x"])),  # type: ignore[list-item]
        ("width", lambda: resize_all.start(document, [1, -1])),
        ("value", lambda: anything.start(object())),
        ("value", lambda: anything.start({"a": [b"\xff"]})),
        ("tasks[0].input.value", lambda: anything.start("a\0b")),
        ("tasks[0].input.value.k[0]", lambda: anything.start({"k": ["\ud800"]})),
        ("tasks[0].input.value", lambda: anything.start(float("nan"))),
    ]
    for field, start in refusals:
        with pytest.raises(Invalid) as refused:
            start()
        assert refused.value.details["field"] == field, refused.value
    for call in (lambda: resize.start(document), lambda: resize.start(document, 1, colour="red")):  # type: ignore[call-arg]
        with pytest.raises(Invalid, match=r"width|colour"):
            call()
    assert db.execute("select 1 from penstock.jobs") == []


def test_bad_input_fails_the_task_permanently(app: App, drain: testing.Drain, db: testing.Database) -> None:
    """A job that was started from SQL or by older code may have input that the handler does not accept."""

    @app.task
    def resize(width: int) -> None: ...

    good = resize.start(1)
    rows = db.execute(
        "select penstock.start_job('resize', p_tasks => %s, p_options => %s) as id",
        [
            Jsonb(
                [{"kind": "resize", "input": {"width": "wide"}}, {"kind": "resize", "input": {"colour": 1}}]
            ),
            Jsonb({"tenant_id": str(good.get().tenant_id)}),
        ],
    )
    drain(app)
    found = db.execute(
        "select reason, error_code, error_message, attempts from penstock.dead_letters where job_id = %s",
        [rows[0]["id"]],
    )
    assert [(row["reason"], row["error_code"], row["attempts"]) for row in found] == [
        ("permanent", "bad_input", 1)
    ] * 2
    assert [row["error_message"].split(":")[0] for row in found] == ["width", "colour"]


@pytest.mark.parametrize(
    "value",
    ["text", {"title": 3}, [1], 10**5000],
    ids=["text", "wrong field", "list", "huge number"],
)
def test_an_output_of_the_wrong_type_fails_the_task_permanently(
    app: App, drain: testing.Drain, db: testing.Database, value: Any
) -> None:
    @app.task
    def write() -> Document:
        return value

    job = write.start()
    drain(app)
    assert only_task(db, job)["error_code"] == "bad_output"
    with pytest.raises(JobFailed, match="write: bad_output: the output"):
        job.result(timeout=5)


def test_invalid_declarations_are_rejected() -> None:
    app = App()

    @app.task
    def known() -> None: ...

    def positional(a: int, /) -> None: ...
    def many(*rest: int) -> None: ...
    def after(after: int) -> None: ...
    async def coroutine() -> None: ...
    def plain() -> None: ...
    def with_context(ctx: Context) -> None: ...
    def unknown_type(a: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821
    def odd_type() -> Iterator: ...  # type: ignore[type-arg]

    @app.job
    def book() -> None: ...

    refusals: list[tuple[str, Callable[[], Any]]] = [
        ("task of kind 'known' already exists", lambda: app.task(kind="known")(plain)),
        ("job type named 'book' already exists", lambda: app.job(name="book")(plain)),
        ("cannot be passed by name", lambda: app.task(positional)),
        ("cannot be passed by name", lambda: app.task(many)),
        ("'after'", lambda: app.task(after)),
        ("plain function", lambda: app.job(coroutine)),
        ("plain function", lambda: app.task(cpu_bound=True)(coroutine)),
        ("cannot take a Context", lambda: app.task(cpu_bound=True)(with_context)),
        ("top level of its module", lambda: app.task(cpu_bound=True)(plain)),
        ("must take a Context", lambda: app.task(transactional=True)(plain)),
        ("unknown type", lambda: app.task(unknown_type)),
        ("invalid duration", lambda: app.task(timeout="soon")(plain)),
        ("duration must be between", lambda: app.task(timeout=-1)(plain)),
    ]
    for message, declare in refusals:
        with pytest.raises(Invalid, match=message):
            declare()


def test_durations_are_parsed_or_rejected() -> None:
    assert [seconds(value) for value in (1.5, "90s", "2m", "1h30m", "1d", "250ms")] == [
        1.5, 90, 120, 5400, 86400, 0.25,
    ]  # fmt: skip
    for wrong in ("", "5", "5 m", "m5", "-5s", "1y", -1, float("nan"), float("inf"), "1000d"):
        with pytest.raises(Invalid):
            seconds(wrong)


# --- context -----------------------------------------------------------------------------------------------


async def test_progress_of_a_running_task_moves_its_job(
    app: App, drain: testing.Drain, eventually: Any
) -> None:
    """R1.5/running: a running task's progress moves its job's progress before it ends."""
    seen = asyncio.Event()

    @app.task
    async def paint(ctx: Context) -> None:
        ctx.progress(1, of=4, message="first\0coat")
        await asyncio.wait_for(seen.wait(), 20)
        ctx.progress(float("nan"), of=0)

    async with app:
        job = await paint.astart()
        working = asyncio.create_task(drain.arun(app))

        async def moved() -> Any:
            progress = (await job.aget()).progress
            return progress if progress.percent else None

        now = await eventually.aio(moved)
        assert (now.percent, now.message, now.running) == (25, "first\ufffdcoat", 1)
        seen.set()
        await working
        assert (await job.aget()).progress.percent == 100


def test_a_context_identifies_its_task_in_logs(app: App, drain: testing.Drain) -> None:
    seen: list[Context] = []

    @app.task(kind="who")
    def handler(ctx: Context) -> None:
        seen.append(ctx)
        ctx.log.info("hello", extra=1)

    with structlog.testing.capture_logs() as lines:
        job = handler.options(key="me").start()
        drain(app)
    [ctx] = seen
    assert (ctx.job_id, ctx.kind, ctx.key, ctx.attempt, ctx.max_attempts) == (job.id, "who", "me", 1, 3)
    assert ctx.tenant_id == job.get().tenant_id
    [line] = [line for line in lines if line["event"] == "hello"]
    assert (line["job_id"], line["task_id"], line["extra"]) == (str(job.id), ctx.task_id, 1)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
def test_a_running_task_adds_tasks_that_depend_on_it(
    app: App, drain: testing.Drain, db: testing.Database, is_async: bool
) -> None:
    """A running task may add tasks to its job; they get its output."""
    new = [
        {
            "kind": "leaf",
            "key": f"leaf-{n}",
            "after": ["root"],
            "input": {"number": n, "root": {"$from": "root"}},
        }
        for n in range(3)
    ]

    async def branch(ctx: Context) -> int:
        assert len(await ctx.aadd_tasks(new)) == 3
        return 10

    def branch_in_thread(ctx: Context) -> int:
        assert len(ctx.add_tasks(new)) == 3
        return 10

    @app.task
    def leaf(number: int, root: int) -> int:
        return number + root

    job = app.task(kind="root")(branch if is_async else branch_in_thread).options(key="root").start()
    drain(app)
    assert job.get().status == "completed"
    assert states(db, job) == {
        "root": "succeeded",
        "leaf-0": "succeeded",
        "leaf-1": "succeeded",
        "leaf-2": "succeeded",
    }
    rows = db.execute("select output from penstock.task_list where kind = 'leaf' order by key")
    assert [row["output"] for row in rows] == [10, 11, 12]


def test_an_app_can_store_files_itself(app: App, drain: testing.Drain) -> None:
    kept: dict[str, bytes] = {}

    @app.task
    def draw(ctx: Context) -> Any:
        return ctx.save("a.png", b"png", "image/png")

    async def keep(ctx: Context, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        kept[f"{ctx.job_id}/{ctx.kind}/{name}"] = data
        return {"path": name, "type": content_type}

    app.artifacts = keep
    job = draw.start()
    drain(app)
    assert job.result() == {"path": "a.png", "type": "image/png"}
    assert kept == {f"{job.id}/draw/a.png": b"png"}


def test_a_thread_can_heartbeat_and_an_async_handler_must_await(app: App, drain: testing.Drain) -> None:
    @app.task
    def in_thread(ctx: Context) -> str:
        ctx.heartbeat()
        return "beaten"

    @app.task(max_attempts=1)
    async def in_loop(ctx: Context) -> None:
        ctx.heartbeat()

    good, bad = in_thread.start(), in_loop.start()
    drain(app)
    assert good.result() == "beaten"
    with pytest.raises(JobFailed, match="use_await"):
        bad.result()


# --- graphs ------------------------------------------------------------------------------------------------


def test_nested_placeholders_become_outputs_after_fan_in(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    """R1.3/order, R1.3/outputs: a step starts once its dependencies have succeeded, and receives their outputs in its arguments."""

    @app.task
    async def write(topic: str) -> dict[str, Any]:
        return {"topic": topic, "text": topic * 2}

    @app.task
    def join(parts: list[dict[str, Any]], extra: dict[str, Any], model: Any) -> str:
        return (
            "+".join(part["text"] for part in parts)
            + extra["deep"][0]["first"]["topic"]
            + model["title"]["topic"]
        )

    @app.task
    def finish() -> str:
        return "done"

    class Loose(pydantic.BaseModel):
        title: Any

    @app.job
    def publish(topics: list[str], note: dict[str, str]) -> Any:
        parts = [write.step(topic) for topic in topics]
        joined = join.step(parts, {"deep": [{"first": parts[0]}], "note": note}, Loose(title=parts[1]))
        last = finish.options(after=[joined, parts[0]], key="last").step()
        return {"text": joined, "all": parts, "last": last, "constant": 5}

    job = publish.start(["a", "b"], {"$from": "nowhere"})
    waiting = db.execute(
        "select key, array(select p.key from penstock.edges e join penstock.tasks p on p.id = e.parent_id "
        "where e.child_id = t.id order by 1) as parents from penstock.tasks t order by id"
    )
    assert [(row["key"], row["parents"]) for row in waiting] == [
        ("write-1", []),
        ("write-2", []),
        ("join-1", ["write-1", "write-2"]),
        ("last", ["join-1", "write-1"]),
    ]
    drain(app)
    assert job.result(timeout=5) == {
        "text": "aa+bbab",
        "all": [{"topic": "a", "text": "aa"}, {"topic": "b", "text": "bb"}],
        "last": "done",
        "constant": 5,
    }
    assert job.get().params == {"topics": ["a", "b"], "note": {"$from": "nowhere"}}


def test_the_result_of_a_body_without_return_is_the_last_output(app: App, drain: testing.Drain) -> None:
    @app.task
    def number(n: int) -> int | None:
        return n or None

    @app.job
    def count(to: int) -> None:
        for n in range(to + 1):
            number.step(to - n)

    job = count.start(2)
    drain(app)
    assert job.result() is None


@pytest.mark.parametrize(
    "misuse",
    [
        lambda step: step.upper(),
        lambda step: step["key"],
        lambda step: f"{step}",
        lambda step: str(step),
        lambda step: [*step],
        lambda step: len(step),
        lambda step: "yes" if step else "no",
        lambda step: step == "x",
        lambda step: step + "x",
        lambda step: "x" + step,
        lambda step: step < 3,
        lambda step: int(step),
        lambda step: "x" in step,
        lambda step: step(),
    ],
)
def test_using_a_placeholder_as_an_output_is_rejected(misuse: Callable[[Any], Any]) -> None:
    app = App()

    @app.task
    def write() -> str:
        return ""

    @app.job
    def publish() -> None:
        misuse(write.step())

    with pytest.raises(Invalid, match="step 'write-1' has no output yet") as refused:
        publish.draw({})
    assert "another task" in str(refused.value)


def test_invalid_job_bodies_are_rejected() -> None:
    app = App()

    @app.task
    def write(topic: str, n: int = 1) -> str:
        return ""

    def drawing(body: Callable[[], Any]) -> None:
        app.job_types.clear()
        app.job(name="job")(body).draw({})

    with pytest.raises(Invalid, match=r"write.step\(\) was called outside of a job's body"):
        write.step("a")
    with pytest.raises(Invalid, match="added no step"):
        drawing(lambda: None)
    with pytest.raises(Invalid, match="n: Input should be a valid integer"):
        drawing(lambda: write.step(write.step("a"), n="x"))  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="option of a job"):
        drawing(lambda: write.options(idempotency_key="a").step("a"))
    with pytest.raises(Invalid, match="after must be a list of steps"):
        drawing(lambda: write.options(after=["write-1"]).step("a"))
    with pytest.raises(Invalid, match="returned cannot be stored: a object cannot be stored as JSON"):
        drawing(lambda: write.step("a") and object() if False else [write.step("a"), object()])
    with pytest.raises(Invalid, match="option of a step"):
        app.job(name="other")(lambda: None).options(key="a")
    with pytest.raises(Invalid, match="colour"):
        write.options(colour="red")


def test_a_failed_step_cancels_its_dependents_unless_after_failure_is_set(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    """`after_failure` decides about the descendants of a failed step."""

    @app.task
    def broken() -> str:
        raise Fail("no")

    @app.task
    def show(text: str | None) -> str:
        return f"got {text}"

    @app.job
    def both() -> None:
        step = broken.step()
        show.options(key="canceled").step(step)
        show.options(key="run", after_failure="run").step(step)

    job = both.start()
    drain(app)
    assert states(db, job) == {"broken-1": "failed", "canceled": "canceled", "run": "succeeded"}
    with pytest.raises(JobFailed, match="1 of 3 tasks failed; broken: failed: no") as failure:
        job.result()
    assert failure.value.details == {"job_id": str(job.id), "status": "failed"}


# --- options -----------------------------------------------------------------------------------------------


def test_a_tenants_tasks_run_in_order_of_priority(app: App, drain: testing.Drain) -> None:
    """Priority is 0 to 10, lower first; 0 is a priority too, not its absence."""
    ran: list[int] = []

    @app.task
    async def note(priority: int) -> None:
        ran.append(priority)

    @app.job
    def notes() -> None:
        for priority in (9, 1):
            note.options(priority=priority).step(priority)

    for priority in (10, 5, 0):
        job = note.options(priority=priority).start(priority)
        assert job.get().priority == priority
    notes.start()
    drain(app, concurrency=1)
    assert ran == [0, 1, 5, 9, 10]
    with pytest.raises(Invalid, match="priority"):
        note.options(priority=11).start(1)


def test_a_delay_or_run_at_postpones_the_start(app: App, drain: testing.Drain, clock: testing.Clock) -> None:
    @app.task
    async def work() -> int:
        return 1

    @app.job
    def later() -> None:
        work.options(run_at=clock.now() + timedelta(hours=3)).step()

    delayed = work.options(delay="1h").start()
    timed = work.options(run_at=clock.now() + timedelta(hours=2)).start()
    step = later.start()
    everything = [delayed, timed, step]
    for ended in range(4):
        drain(app)
        assert [job.get().status == "completed" for job in everything] == [n < ended for n in range(3)]
        clock.advance(hours=1, seconds=1)
    with pytest.raises(Invalid, match="time zone"):
        work.options(run_at=datetime(2030, 1, 1))
    with pytest.raises(Invalid, match="option of a job"):
        app.job(name="wrong")(lambda: work.options(delay=1).step()).start()


def test_an_idempotency_key_starts_one_job(app: App, db: testing.Database) -> None:
    """R0.1/idempotent: the same key twice starts one job; with other parameters it is rejected (409)."""

    @app.task
    def work(n: int) -> None: ...

    @app.job
    def works(n: int) -> None:
        work.step(n)

    first = work.options(idempotency_key="k", delay="1h").start(1)
    assert work.options(idempotency_key="k", delay="1h").start(1).id == first.id
    with pytest.raises(Conflict) as refused:
        work.options(idempotency_key="k", delay="1h").start(2)
    assert refused.value.code == "idempotency_key_reused"
    assert works.options(idempotency_key="w").start(1).id == works.options(idempotency_key="w").start(1).id
    with pytest.raises(Conflict):
        works.options(idempotency_key="w").start(2)
    assert len(db.execute("select 1 from penstock.jobs")) == 2


def test_a_job_belongs_to_the_given_tenant_or_the_apps(
    app: App, db: testing.Database, tenant: uuid.UUID
) -> None:
    @app.task
    def work() -> None: ...

    [one] = [work.start().get().tenant_id]
    assert work.options(tenant_id=tenant).start().get().tenant_id == tenant
    assert one != tenant
    with App(database_url=db.dsn, tenant=tenant).task(work.function).app as other:
        assert other.tasks["work"].start().get().tenant_id == tenant
    with pytest.raises(NotFound):
        work.options(tenant_id=uuid.uuid4()).start()


def test_a_paused_job_waits_and_on_failure_stop_cancels_the_rest(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    ran: list[int] = []

    @app.task(max_attempts=1)
    async def work(n: int) -> None:
        ran.append(n)
        if n == 0:
            raise ValueError("first")

    @app.job(on_failure="stop")
    def works() -> None:
        steps: list[Any] = []
        for n in range(3):
            steps.append(work.options(after=steps[-1:], after_failure="run").step(n))

    paused = work.options(paused=True).start(7)
    drain(app)
    assert ran == [] and paused.get().status == "paused"

    job = works.start()
    drain(app)
    assert ran == [0] and job.get().status == "failed"


def test_a_step_can_have_its_own_max_attempts_and_timeout(
    app: App, drain: testing.Drain, db: testing.Database
) -> None:
    @app.task(max_attempts=5)
    async def fail() -> None:
        raise ValueError("no")

    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    once = fail.options(max_attempts=1).start()
    slow = hang.options(timeout="20ms", max_attempts=1).start()
    drain(app)
    assert only_task(db, once)["status"] == "failed"
    assert only_task(db, slow)["error_code"] == "timeout"


# --- results -----------------------------------------------------------------------------------------------


async def test_async_and_sync_calls_work_in_one_program(app: App, drain: testing.Drain) -> None:
    @app.task
    async def work(n: int) -> int:
        # A handler starts another job through the same app.
        return n if n == 0 else (await work.astart(n - 1)) and n

    async with app:
        # All at once on a new event loop: they share one pool.
        started = await asyncio.gather(*(work.astart(n) for n in (1, 2, 3)))
        await drain.arun(app)
        assert await asyncio.gather(*(job.aresult(timeout="5s") for job in started)) == [1, 2, 3]
        assert await asyncio.to_thread(work.start(0).get) is not None
        await drain.arun(app)
        assert len(await _all_jobs(app)) == 3 + 1 + 2 + 3 + 1
        with pytest.raises(TimedOut, match=r"within 0\.01 s"):
            await (await work.options(delay="1h").astart(0)).aresult(timeout="10ms")


async def _all_jobs(app: App) -> list[Any]:
    async with app.connections() as where:
        return await jobs.list(where, limit=100)


def test_pools_of_closed_event_loops_are_dropped(app: App, db: testing.Database) -> None:
    @app.task
    async def work() -> None: ...

    async def start() -> None:
        async with app:
            await work.astart()

    for _ in range(5):
        asyncio.run(start())
    assert len(db.execute("select 1 from penstock.jobs")) == 5
    assert len(app._pools) == 0  # pyright: ignore[reportPrivateUsage]


def test_the_result_of_a_canceled_job_raises(app: App) -> None:
    @app.task
    async def work() -> None: ...

    job = work.start()

    async def cancel() -> None:
        async with app.connections() as where:
            await jobs.cancel(where, job_id=job.id, reason="changed my mind")

    app.block(cancel())
    with pytest.raises(JobFailed, match="canceled: changed my mind") as failure:
        job.result(timeout=5)
    assert failure.value.details["status"] == "canceled"


# --- the rest ----------------------------------------------------------------------------------------------


def test_load_finds_an_app_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loadable_site.py").write_text("from penstock import App\napp = App()\nother = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load("loadable_site:app"), App) and load("loadable_site") is load("loadable_site:app")
    for path, message in (
        ("loadable_site:other", "is of type int, not an App"),
        ("loadable_site:missing", "loadable_site:missing does not exist\nThe module has loadable_site:app."),
        ("nowhere:app", "there is no module 'nowhere'"),
    ):
        with pytest.raises(Invalid, match=message):
            load(path)


@pytest.mark.parametrize("turn", [1, 2])
def test_modules_and_import_path_of_a_test_are_forgotten_after_it(
    turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_spec("written_by_a_test") is None and "/added/by/a/test" not in sys.path
    sys.path.append("/added/by/a/test")
    (tmp_path / "written_by_a_test.py").write_text(f"from penstock import App\napp = App()\nturn = {turn}\n")
    monkeypatch.chdir(tmp_path)
    load("written_by_a_test:app")
    assert sys.modules["written_by_a_test"].turn == turn


@pytest.mark.parametrize(
    ("program", "message", "line"),
    [
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'", 1),
        ("x = 1\ndef broken(:\n", "SyntaxError: invalid syntax", 2),
        ("\n\nimport json\njson.loads('{')\n", "JSONDecodeError: Expecting property name", 4),
        ("from penstock import App\napp = App()\napp.schedule(1, 'x')\n", "", 3),
    ],
)
def test_load_names_the_line_of_the_users_file(
    program: str, message: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash(program))}"
    (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Invalid) as failure:
        load(f"{name}:app")
    assert f"{name}:app cannot be loaded: {message}" in failure.value.message
    assert f"({name}.py, line {line})" in failure.value.message
    assert (failure.value.code, failure.value.exit_code) == ("cannot_load", 2)
    assert (failure.value.hint or "").strip() == program.splitlines()[line - 1].strip()


def test_importing_an_app_connects_to_nothing() -> None:
    """Creating an app opens no connection and starts no thread or server."""
    script = (
        "import threading, penstock; app = penstock.App()\n"
        "@app.task\ndef f(): ...\n"
        "assert threading.active_count() == 1; app.close()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
