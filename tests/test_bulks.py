"""Bulk jobs in Python: rows are checked, packed, drawn and loaded; results are applied, confirmed and undone."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from penstock import (
    App,
    BulkRow,
    Change,
    Conflict,
    Context,
    Fail,
    Invalid,
    RowError,
    Started,
    sources,
    testing,
)
from penstock.contract import bulks, jobs, tasks
from penstock.contract.bulks import Taken
from penstock.postgres import json_batches
from penstock.sdk.bulk_rows import pack
from penstock.sdk.bulk_type import BulkType
from penstock.types import BulkResult


class Idea(pydantic.BaseModel):
    title: str
    seconds: int = pydantic.Field(5, ge=1)


class Note(pydantic.BaseModel):
    id: str
    source: str
    text: str


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


@pytest.fixture
def ideas(app: App) -> BulkType[Idea]:
    @app.task(max_attempts=2, backoff=0)
    async def write(title: str) -> str:
        if title == "bad":
            raise ValueError("no words")
        return title.upper()

    @app.task
    async def render(text: str, seconds: int) -> dict[str, Any]:
        return {"url": f"/{text}.mp4", "seconds": seconds}

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea, style: str = "plain") -> Any:
        if row.title == "undrawable":
            raise KeyError(style)
        return render.step(write.step(f"{row.title}"), row.seconds)

    return ideas


@pytest.fixture
def tags(app: App, db: testing.Database) -> BulkType[Note]:
    """Notes are tagged in batches of four, sources together; the tags go into a table, and out of it again."""
    db.execute("create table tags (note text, tag text, primary key (note, tag))")

    @app.task
    async def tag(rows: list[BulkRow[Note]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row in rows:
            match row.data.text:
                case "poison":
                    found[row.key] = RowError(message="it tells us what to do", code="screened")
                case "lost":
                    pass
                case text:
                    found[row.key] = text.split()
        return found

    @app.bulk(row=Note, key=["id"], batch=4, group_by="source", exclusive=True)
    def tags(rows: list[BulkRow[Note]]) -> Any:
        return tag.step(rows)

    @tags.apply
    async def apply(ctx: Context, connection: Any, row: BulkRow[Note], result: list[str]) -> list[Change]:
        changes: list[Change] = []
        for each in result:
            if each == "never":
                raise Fail("this tag is not allowed", code="not_allowed")
            await connection.execute("insert into tags values (%s, %s)", (row.key, each))
            changes.append(Change(name=each, after=each))
        return changes

    @tags.undo
    async def undo(ctx: Context, connection: Any, row: BulkRow[Note], change: Change) -> None:
        await connection.execute("delete from tags where note = %s and tag = %s", (row.key, change.after))

    return tags


def notes(*texts: str, source: str = "s") -> Iterator[dict[str, Any]]:
    return ({"id": f"n{n}", "source": source, "text": text} for n, text in enumerate(texts, 1))


def rows(app: App, job: Started[Any]) -> dict[str, BulkResult]:
    async def read() -> dict[str, BulkResult]:
        async with app.connections() as where:
            return {row.key: row async for row in bulks.results(where, job_id=job.id)}

    return app.block(read())


def states(app: App, job: Started[Any]) -> dict[str, str]:
    return {key: row.state for key, row in rows(app, job).items()}


def do(app: App, function: Any, **arguments: Any) -> Any:
    async def call() -> Any:
        async with app.connections() as where:
            return await function(where, **arguments)

    return app.block(call())


def tagged(db: testing.Database) -> dict[str, list[str]]:
    found = db.execute(
        "select note, array_agg(tag order by tag) as tags from tags group by note order by note"
    )
    return {row["note"]: row["tags"] for row in found}


def test_a_row_becomes_a_graph(app: App, ideas: BulkType[Idea], drain: testing.Drain) -> None:
    """R0.1/bad-rows: good rows are done, bad ones are refused with their column, a failed one has its reason."""
    source = [
        {"title": "otters", "seconds": "7"},
        {"title": "bad"},
        {"title": "herons", "seconds": "long"},
        {"seconds": "3"},
        {"title": "otters"},
        {"title": "undrawable"},
    ]
    job = ideas.start(source)
    drain(app)
    found = rows(app, job)
    assert states(app, job) == {
        "otters": "succeeded", "bad": "failed", "herons": "refused", "4": "refused", "5": "refused", "undrawable": "refused",
    }  # fmt: skip
    assert found["otters"].output == {"url": "/OTTERS.mp4", "seconds": 7}
    assert (found["bad"].error_code, found["bad"].error_message, found["bad"].retries) == (
        "handler_error",
        "no words",
        2,
    )
    assert [(found[key].problem or {})["column"] for key in ("herons", "4", "5")] == [
        "seconds",
        "title",
        "title",
    ]
    assert found["5"].error_message == "row 1 has the same key"
    assert "KeyError" in (found["undrawable"].error_message or "")
    bulk = do(app, bulks.get, job_id=job.id)
    assert (bulk.rows.total, bulk.rows.loaded, bulk.rows.refused, bulk.rows.waiting) == (6, 2, 4, 0)
    assert [(cause.kind, cause.count) for cause in bulk.failures] == [("write", 1)]
    assert job.get().status == "failed"


def test_preview_confirm_apply_undo(
    app: App, tags: BulkType[Note], db: testing.Database, drain: testing.Drain
) -> None:
    """R2.7/preview, R2.7/confirm, R2.7/undo, R2.7/poisoned, R2.7/one-at-a-time: the first batch is shown and nothing applied; then all is; one poisoned row sinks no batch; undo
    takes back a value, then all the rest, and never twice."""
    texts = ["a b", "poison", "lost", "c", "never", "d", "e e2", "f", "g"]
    job = tags.options(preview=True).start(notes(*texts))
    drain(app)
    assert tagged(db) == {}
    bulk = do(app, bulks.get, job_id=job.id)
    assert (bulk.rows.loaded, bulk.rows.waiting, bulk.to_confirm) == (4, 5, 2)
    assert rows(app, job)["n1"].state == "queued"
    with pytest.raises(Conflict) as refused:
        tags.start(notes("x"))
    assert refused.value.code == "another_runs"

    assert do(app, jobs.confirm, job_id=job.id) == 2
    drain(app)
    assert job.get().status == "completed"
    assert states(app, job) == {
        "n1": "succeeded", "n2": "failed", "n3": "failed", "n4": "succeeded", "n5": "failed", "n6": "succeeded",
        "n7": "succeeded", "n8": "succeeded", "n9": "succeeded",
    }  # fmt: skip
    found = rows(app, job)
    assert [found[key].error_code for key in ("n2", "n3", "n5")] == ["screened", "no_result", "not_allowed"]
    assert found["n1"].output == ["a", "b"]
    assert tagged(db) == {
        "n1": ["a", "b"], "n4": ["c"], "n6": ["d"], "n7": ["e", "e2"], "n8": ["f"], "n9": ["g"],
    }  # fmt: skip

    one = do(app, bulks.undo, job_id=job.id, rows=[7], names=["e2"])
    drain(app)
    assert do(app, jobs.get, job_id=one).status == "completed"
    assert tagged(db)["n7"] == ["e"]
    do(app, bulks.undo, job_id=job.id)
    do(app, bulks.undo, job_id=job.id)
    drain(app)
    assert tagged(db) == {}
    with pytest.raises(Conflict) as refused:
        do(app, bulks.undo, job_id=job.id)
    assert refused.value.code == "nothing_to_undo"
    assert (rows(app, job)["n7"].changes, rows(app, job)["n7"].undone) == (2, 2)


def test_done_rows_are_skipped_and_sources_grow(
    app: App, ideas: BulkType[Idea], drain: testing.Drain
) -> None:
    """R0.1/row-once, R2.7/skip-done: what succeeded before is left out; a source that is read again adds its new rows only."""
    first = ideas.start([{"title": "a"}, {"title": "bad"}])
    drain(app)
    again = ideas.options(skip_done=True).start([{"title": "a"}, {"title": "bad"}, {"title": "b"}])
    added = do(
        app,
        bulks.add_rows,
        job_id=again.id,
        rows=numbered({"title": "a"}, {"title": "bad"}, {"title": "b"}, {"title": "c"}),
    )
    assert (added.added, added.known) == (1, 3)
    drain(app)
    assert states(app, again) == {"a": "skipped", "bad": "failed", "b": "succeeded", "c": "succeeded"}
    assert str(first.id) in (rows(app, again)["a"].error_message or "")
    with pytest.raises(Conflict):
        do(app, bulks.add_rows, job_id=again.id, rows=numbered({"title": "d"}))


def numbered(*data: dict[str, Any]) -> Any:
    return bulks.numbered(data)


def groups(*sizes: int) -> list[Taken]:
    return [
        Taken(number, str(number), f"g{place}", {})
        for place, size in enumerate(sizes)
        for number in range(sum(sizes[:place]), sum(sizes[: place + 1]))
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([2, 2, 1], [4, 1]),
        ([3, 2, 2], [3, 4]),
        ([9, 1], [4, 4, 2]),
        ([4, 4], [4, 4]),
        ([1] * 9, [4, 4, 1]),
        ([], []),
    ],
)
def test_packing(sizes: list[int], expected: list[int]) -> None:
    """R2.7/packing: at most B rows, in order, and no group that fits is split."""
    packed = pack(groups(*sizes), 4, is_grouped=True)
    assert [len(batch) for batch in packed] == expected
    assert [row.number for batch in packed for row in batch] == list(range(sum(sizes)))
    for place, size in enumerate(sizes):
        holders = [batch for batch in packed if any(row.group == f"g{place}" for row in batch)]
        assert len(holders) == 1 or size > 4


def test_check_needs_no_database() -> None:
    """R0.1/bad-rows: every bad row with its line, column and reason; also what the source cannot read."""
    app = App()

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea) -> Any: ...

    file = io.BytesIO(b"title,seconds\na,1\n,2\nb,long\na,3\nc,1,1\n")
    with sources.open(file, name="ideas.csv") as source:
        found = ideas.check(source)
    assert (found.rows, found.good) == (5, 1)
    assert [(each.line, each.column, each.code) for each in found.problems] == [
        (3, "title", "missing"), (4, "seconds", "bad_value"),
        (5, "title", "duplicate_key"), (6, "column_3", "too_many_cells"),
    ]  # fmt: skip


LARGE_TEXTS = ["x" * 262_070, "x" * 262_200, "é" * 131_100, '"' * 131_100, "\u0001" * 43_700, "x" * 1000]


def test_check_and_the_job_refuse_the_same_large_rows(app: App, db: testing.Database) -> None:
    """R0.1: `check` finds the rows that the database refuses as too large, with their size and the limit."""

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea) -> Any: ...

    rows = [{"title": f"{n}{text}", "seconds": 1} for n, text in enumerate(LARGE_TEXTS)]
    rows = [{"title": str(n), "text": row["title"]} for n, row in enumerate(rows)]
    found = ideas.check(rows)
    too_large = [each.line for each in found.problems]
    assert too_large == [2, 3, 4, 5] and {each.code for each in found.problems} == {"too_large"}
    assert "262,144" in found.problems[0].message and "262,2" in found.problems[0].message
    job = ideas.start(rows)
    stored = db.execute(
        "select number, problem from penstock.bulk_rows where job_id = %s order by number", [job.id]
    )
    assert [row["number"] for row in stored if row["problem"]] == too_large
    sizes = [each.message.replace(",", "") for each in found.problems]
    assert [row["problem"]["message"] for row in stored if row["problem"]] == sizes


def test_the_default_limit_of_a_row_is_the_database_s(db: testing.Database) -> None:
    [row] = db.execute("select penstock._setting('max_input_bytes') as value")
    assert int(row["value"]) == bulks.MAX_ROW_BYTES


async def test_large_rows_are_sent_in_parts_of_bounded_size() -> None:
    """The memory does not grow with the rows: no part is much larger than eight megabytes."""
    sizes: list[int] = []

    async def send(part: Any) -> None:
        sizes.append(len(part.dumps(part.obj)))

    rows = ({"number": n, "data": {"text": "x" * 1_000_000}} for n in range(40))
    await json_batches.send_in_batches(rows, send, max_items=5000, dumps=json.dumps)
    assert max(sizes) < 10_000_000 and sum(sizes) > 40_000_000
    sizes.clear()
    await json_batches.send_in_batches(
        ({"n": n} for n in range(20_000)), send, max_items=5000, dumps=json.dumps
    )
    assert len(sizes) == 4, "small rows go in few parts"


def test_a_forecast_counts_only_rows_that_would_run(app: App) -> None:
    """Rows with a duplicate key, without a key or too large cost nothing."""

    @app.task
    async def render(seconds: int) -> None: ...

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea) -> Any:
        return render.step(row.seconds)

    rows = [{"title": title} for title in ("a", "b", "a", "a", "c")]
    rows += [{"title": "x" * 1001}, {"title": "d", "text": "x" * 300_000}, {"seconds": 1}]
    assert ideas.forecast(rows).tasks == 3 == ideas.check(rows).good


def test_declarations_that_make_no_sense(app: App) -> None:
    def body(row: Idea) -> Any: ...

    for options, text in (
        ({"key": ["name"]}, "no column 'name'"),
        ({"group_by": "title"}, "requires batch"),
        ({"batch": 2, "group_by": "colour"}, "no column 'colour'"),
    ):
        with pytest.raises(Invalid, match=text):
            app.bulk(row=Idea, **options)(body)  # pyright: ignore[reportArgumentType]
    app.bulk(row=Idea)(body)
    with pytest.raises(Invalid, match="already exists"):
        app.bulk(row=Idea)(body)
    with pytest.raises(Invalid, match="not an option of a bulk job"):
        app.bulks["body"].options(provider="x/y")


def test_forecast_of_many_rows(app: App, db: testing.Database) -> None:
    """B2/range: of many rows some are drawn; the true price is inside of the range."""
    db.execute("select penstock.set_provider('sim/video', '{}')")
    db.execute("select penstock.set_price('sim/video', 'seconds', 0.01)")
    drawn: list[int] = []

    @app.task
    async def render(seconds: int) -> None: ...

    @app.bulk(row=Idea)
    def ideas(row: Idea) -> Any:
        drawn.append(row.seconds)
        return render.options(provider="sim/video", units={"seconds": row.seconds}).step(row.seconds)

    source = [{"title": f"{n}", "seconds": 1 + n * n % 40} for n in range(5000)]
    truth = Decimal(sum(row["seconds"] for row in source)) / 100  # pyright: ignore[reportArgumentType]
    found = ideas.options(budget=1).forecast(source)
    assert (found.tasks, len(drawn)) == (5000, 1000)
    assert found.cost.low < truth < found.cost.high < truth * Decimal("1.2")
    assert not found.fits
    with pytest.raises(Invalid, match="no valid rows"):
        ideas.forecast([{"seconds": 1}])


def test_a_row_that_the_database_refuses(app: App, drain: testing.Drain) -> None:
    """One input that is too large is that row's problem; what is wrong with all is the job's."""

    @app.task
    async def work(text: str) -> int:
        return len(text)

    @app.bulk(row=Idea)
    def ideas(row: Idea, provider: str = "") -> Any:
        options: dict[str, Any] = {"provider": provider} if provider else {}
        return work.options(**options).step(row.title * row.seconds)

    job = ideas.start([{"title": "a", "seconds": 10**6}, {"title": "b"}, {"title": "\0"}])
    drain(app)
    assert [(row.state, row.error_code, row.output) for row in rows(app, job).values()] == [
        ("refused", "too_large", None), ("succeeded", None, 5), ("refused", "unstorable_text", None),
    ]  # fmt: skip
    job = ideas.start([{"title": f"{n}"} for n in range(30)], provider="no/such")
    drain(app)
    assert (job.get().status, set(states(app, job).values())) == ("failed", {"waiting"})


def test_large_outputs_and_other_results(app: App, drain: testing.Drain) -> None:
    """A row is through with its result, whatever else its graph does; a batch's output may be a file."""

    @app.task
    async def work(title: str) -> str:
        return title

    @app.task(max_attempts=1)
    async def note(title: str) -> None:
        raise ValueError(title)

    @app.task
    async def long(rows: list[BulkRow[Idea]]) -> dict[str, str]:
        return {row.key: "x" * 300_000 for row in rows}

    @app.bulk(row=Idea)
    def ideas(row: Idea) -> Any:
        result = work.step(row.title)
        note.step(row.title)
        return result

    @app.bulk(row=Idea, batch=10)
    def large(rows: list[BulkRow[Idea]]) -> Any:
        return long.step(rows)

    job, other = ideas.start([{"title": "a"}]), large.start([{"title": "a"}, {"title": "b"}])
    drain(app)
    assert [(row.state, row.output) for row in rows(app, job).values()] == [("succeeded", "a")]
    assert [row.state for row in rows(app, other).values()] == ["succeeded", "succeeded"]
    assert "$artifact" in rows(app, other)["1"].output


@pytest.mark.parametrize("moment", ["add_tasks", "mark_bulk_rows", "complete"])
def test_a_loader_that_dies(
    app: App,
    ideas: BulkType[Idea],
    drain: testing.Drain,
    clock: testing.Clock,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """R0.1/row-once: wherever it dies, the rows are loaded once and in full by the next one."""
    monkeypatch.setattr("penstock.sdk.bulk_type.PART", 100)
    job = ideas.start([{"title": f"{n}"} for n in range(120)])
    deaths: list[str] = []

    def dying(call: Any) -> Any:
        async def die(*arguments: Any, **named: Any) -> Any:
            found = await call(*arguments, **named)
            if len(deaths) < 2:
                deaths.append(moment)
                raise RuntimeError("it died")
            return found

        return die

    home, name = {
        "add_tasks": (jobs, "add_tasks"), "mark_bulk_rows": (bulks, "mark_rows"), "complete": (tasks, "complete"),
    }[moment]  # fmt: skip
    monkeypatch.setattr(home, name, dying(getattr(home, name)))
    for _ in range(4):
        drain(app, lease_seconds=2)
        clock.advance(seconds=60)
    assert len(deaths) == 2
    bulk = do(app, bulks.get, job_id=job.id)
    assert (bulk.rows.loaded, bulk.job.status, bulk.job.progress.failed) == (120, "completed", 0)
    phases = {phase.name: phase.total for phase in bulk.job.progress.phases}
    assert (phases["write"], phases["rows"]) == (120, 120)


def test_packing_leaves_what_may_still_grow() -> None:
    rows = groups(3, 3)
    assert pack(rows, 4, is_grouped=True, is_more=True) == [rows[:3]]
    other = Taken(9, "9", "other", {})
    assert pack(rows, 4, is_grouped=True, is_more=True, following=other) == [rows[:3]]
    assert pack(groups(9), 4, is_grouped=True, is_more=True) == [groups(9)[:4], groups(9)[4:8]]
    assert pack(groups(2), 4, is_grouped=True, is_more=True, following=other) == [groups(2)]
