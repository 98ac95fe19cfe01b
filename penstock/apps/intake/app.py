"""The tasks and jobs.

    scan ── admit ─┬─ read 1…8 ──┬─ arrange ── plan ── pass 1 ─┬─ pass 2 ─┬─ pass 3 ── store ─┬─ settle
                   ├─ read 9…16 ─┤                             └─ store   └─ store            │
                   …             …                                                            …

If an outside provider is to read pages, `plan` first adds `look`, and `arrange` and `plan` once more.
`admit`, `plan` and `settle` also run after a failure, so that a file always gets a final status. An upload
starts the job; `maintain` runs every minute for what crashes and cancellations leave behind.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

from penstock import App, Context, Fail, Step, providers
from penstock.apps.intake import layout, models, passes, places, reading, scanning
from penstock.apps.intake.settings import settings
from penstock.contract import artifacts
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.redaction import redact_personal
from penstock.types import Starter

PAGES_PER_TASK = 8
MOST_IMAGES = 3
MOST_PICTURES = 20
"""Pages of a document that are stored as images with boxes."""
_LARGEST_LAYOUT = 64 << 20
SERVICE: tuple[Starter, ...] = ("service",)
"""Who may start these kinds: they take a file from their input."""

app = App(
    tenant="intake",
    schema="intake",
    sql=Path(__file__).parent / "sql",
    # Views whose updates change settings and providers. For the service only.
    writable_tables=("system_configuration", "api_rate_limits"),
)

PROMPTS = {
    name: app.prompt(f"intake.{name}", question, max_tokens=passes.OUTPUT_TOKENS)
    for name, question in passes.QUESTIONS.items()
}
"""The questions of the passes. Other versions can be activated without a deployment."""


class Scanned(BaseModel):
    """The result of the scan."""

    content_type: str
    pages: int
    warnings: list[str]


class Laid(BaseModel):
    """The layout of a document, stored as a file, and how well it was read."""

    artifact_id: UUID
    path: str
    lines: int
    characters: int
    score: float
    methods: dict[str, int]
    poor_pages: list[int]
    outside_pages: list[int] = []
    """Pages that an outside provider is to read."""
    parts: int = 1
    """In how many parts pass 2 reads the document."""
    turned_pages: dict[int, float] = {}


class Answered(BaseModel):
    """The answer of a pass, and what gave it."""

    answer: dict[str, Any]
    model: str
    prompt_name: str
    prompt_version: int


class File(BaseModel):
    """The stored original of a file."""

    path: str
    mime_type: str


# Tasks


@app.task(kind="fast_queue_security", phase="security", timeout="5m", category="fast", starters=SERVICE)
async def scan(ctx: Context, shell_file_id: UUID) -> Scanned:
    """Check the file before anything else opens it."""
    ctx.progress(0, message="scanning")
    async with _original(ctx, shell_file_id) as (path, file):
        found = await ctx.acompute(scanning.scan, str(path), file.mime_type, settings().clamd)
    return Scanned(**found)


@app.task(kind="intake_admit", phase="security", transactional=True, starters=SERVICE)
async def admit(ctx: Context, shell_file_id: UUID, scanned: Scanned | None) -> str:
    """Take a scanned file into processing and add the tasks that read it, or end it."""
    if scanned is None:
        return await _settle(ctx, shell_file_id)
    statement = "select status from intake.admit_file(%s, %s, %s, %s)"
    arguments = (ctx.tenant_id, shell_file_id, scanned.pages, db.Json(scanned.warnings))
    [(status,)] = await db.rows(ctx.connection, statement, arguments)
    drawn = intake_reading.draw({"shell_file_id": shell_file_id, "pages": scanned.pages})
    await ctx.aadd_tasks(drawn.tasks)
    return status


@app.task(kind="fast_queue_ocr", phase="ocr", timeout="15m", category="fast", starters=SERVICE)
async def read(ctx: Context, shell_file_id: UUID, first: int, last: int) -> list[dict[str, Any]]:
    """Read the words of some pages, with their boxes."""
    ctx.progress(0, message=f"reading pages {first} to {last}")
    has_ocr = not settings().reads_all_scans_outside
    async with _original(ctx, shell_file_id) as (path, file):
        return await ctx.acompute(reading.read, str(path), file.mime_type, first, last, has_ocr)


@app.task(kind="intake_look", phase="ocr", timeout="10m", max_attempts=5, category="ai", starters=SERVICE)
async def look(ctx: Context, shell_file_id: UUID, pages: list[int]) -> list[dict[str, Any]]:
    """Let an outside provider read some pages: those that it found words on, with their boxes."""
    chosen = settings()
    provider = ctx.provider or chosen.ocr
    if provider is None:
        raise Fail("these pages are for an outside provider, but INTAKE_OCR is not set here", code="no_ocr")
    await _check_consent(ctx, shell_file_id)
    found: list[dict[str, Any]] = []
    async with _original(ctx, shell_file_id) as (path, file):

        async def read_outside(number: int) -> dict[str, Any]:
            data, width, height = await ctx.acompute(reading.scan, str(path), file.mime_type, number)
            wanted = providers.VisionRequest(providers.Image(data, "image/jpeg"))
            answer = await providers.ask(ctx, wanted, provider=provider, url=chosen.ocr_url)
            if answer.text.strip() and not answer.words:
                raise Fail(f"{provider} returns texts without their places", code="bad_answer")
            return places.page_of(number, answer.words, width, height)

        for done, number in enumerate(pages):
            ctx.progress(done, len(pages), message=f"asking {provider} for page {number}")
            # A page is paid for once, however often the task runs.
            page = await ctx.step(f"page-{number}", read_outside, number)
            if page["words"]:
                found.append(page)
    return found


@app.task(kind="fast_queue_spatial", phase="spatial", timeout="5m", category="fast", starters=SERVICE)
async def arrange(
    ctx: Context,
    shell_file_id: UUID,
    parts: list[list[dict[str, Any]]],
    looked: list[list[dict[str, Any]]] | None = None,
) -> Laid:
    """Arrange the words of all pages: lines, blocks, reading order, tables. What was read outside counts."""
    pages = list({page["number"]: page for part in [*parts, *(looked or [])] for page in part}.values())
    poor = [page["number"] for page in pages if reading.is_poor(page)]
    outside = poor if settings().ocr is not None and looked is None else []
    if not outside and looked is None and any(page["method"] == "none" for page in pages):
        raise Fail("scans were left for an outside provider, but INTAKE_OCR is not set here", code="no_ocr")
    document = await ctx.acompute(layout.arrange, pages)
    text = json.dumps({"shell_file_id": str(shell_file_id), **document}, ensure_ascii=False)
    saved = await ctx.asave("layout.json", text.encode(), "application/json")
    methods: dict[str, int] = {}
    for page in pages:
        methods[page["method"]] = methods.get(page["method"], 0) + 1
    return Laid(
        artifact_id=saved["artifact_id"],
        path=saved["path"],
        lines=document["lines"],
        characters=len(layout.text_of(document)),
        score=round(sum(page["score"] for page in pages) / max(1, len(pages)), 4),
        methods=methods,
        poor_pages=poor,
        outside_pages=outside,
        parts=len(passes.parts(layout.lines_of(document))),
        turned_pages={page["number"]: page["rotation"] for page in pages if page["rotation"]},
    )


@app.task(kind="intake_plan", phase="spatial", transactional=True, starters=SERVICE)
async def plan(ctx: Context, shell_file_id: UUID, laid: Laid | None) -> str:
    """Store the layout and add the passes, or end the file."""
    if laid is None:
        return await _settle(ctx, shell_file_id)
    if laid.outside_pages:
        await ctx.aadd_tasks(intake_looking.draw({"shell_file_id": shell_file_id, "laid": laid}).tasks)
        return "processing"
    summary = laid.model_dump(mode="json", exclude={"artifact_id", "path", "outside_pages"})
    await _store(ctx, shell_file_id, "ocr", summary, None)
    await _store(ctx, shell_file_id, "spatial", summary, laid.artifact_id)
    arguments = (ctx.tenant_id, shell_file_id, ctx.job_id)
    await db.rows(ctx.connection, "select intake.note_ai_start(%s, %s, %s)", arguments)
    await ctx.aadd_tasks(intake_passes.draw({"shell_file_id": shell_file_id, "laid": laid}).tasks)
    return "processing"


@app.task(kind="ai_queue_pass1", phase="pass1", timeout="3m", max_attempts=5, category="ai", starters=SERVICE)
async def pass1(ctx: Context, shell_file_id: UUID, laid: Laid) -> Answered:
    """What the document is. Pages that OCR read poorly go along as images, unless the text is redacted."""
    images: list[bytes] = []
    if laid.poor_pages and not settings().redacts:
        async with _original(ctx, shell_file_id) as (path, file):
            for number in laid.poor_pages[:MOST_IMAGES]:
                images.append(await ctx.acompute(reading.image, str(path), file.mime_type, number))
    return await _pass(ctx, "pass1", shell_file_id, laid, {}, images)


@app.task(kind="ai_queue_pass2", phase="pass2", timeout="3m", max_attempts=5, category="ai", starters=SERVICE)
async def pass2(ctx: Context, shell_file_id: UUID, laid: Laid, first: Answered, part: int = 1) -> Answered:
    """The facts of a part, each with the place that it comes from, and images of their pages with boxes."""
    answered = await _pass(ctx, "pass2", shell_file_id, laid, {"pass1": first.answer}, [], part)
    # The first page too, so that every file has an image.
    boxes: dict[int, list[list[float]]] = {1: []} if part == 1 else {}
    for place in (place for fact in answered.answer["facts"] for place in fact["places"]):
        boxes.setdefault(place["page"], []).append(place["box"])
    lines: dict[int, list[list[float]]] = {}
    for line in (await _lines(laid)).values():
        lines.setdefault(line["page"], []).append(line["box"])
    pictures: dict[str, str] = {}
    async with _original(ctx, shell_file_id) as (path, file):
        for number in sorted(boxes)[:MOST_PICTURES]:
            turn = laid.turned_pages.get(number, 0)
            marked = await ctx.acompute(
                reading.image,
                str(path),
                file.mime_type,
                number,
                boxes=boxes[number],
                lines=lines.get(number, []),
                rotation=turn,
            )
            saved = await ctx.asave(f"page-{number}.png", marked, "image/png")
            pictures[str(number)] = saved["artifact_id"]
    answered.answer["pictures"] = pictures
    return answered


@app.task(kind="ai_queue_pass3", phase="pass3", timeout="3m", max_attempts=5, category="ai", starters=SERVICE)
async def pass3(
    ctx: Context, shell_file_id: UUID, laid: Laid, first: Answered, second: list[Answered]
) -> Answered:
    """A summary for people: of the beginning of the document, and of the facts of all its parts."""
    facts = [
        {key: fact[key] for key in ("kind", "name", "value", "unit", "date")}
        for part in second
        for fact in part.answer["facts"]
    ]
    return await _pass(ctx, "pass3", shell_file_id, laid, {"pass1": first.answer, "facts": facts}, [])


@app.task(kind="intake_store", phase="finishing", transactional=True, starters=SERVICE)
async def store(ctx: Context, shell_file_id: UUID, name: str, answered: list[Answered]) -> None:
    """Store the result of a pass: the row, its audit line and the end of the task are one commit."""
    summary, pictures = answered[0].answer, dict[str, str]()
    if name == "pass2":
        # An image that two parts made of one page has the boxes of the earlier one.
        for part in reversed(answered):
            pictures |= part.answer["pictures"]
        facts = [fact for part in answered for fact in part.answer["facts"]]
        summary = {"facts": facts, "pictures": pictures}
    await _store(ctx, shell_file_id, name, summary, None, answered[0])
    for picture in pictures.values():
        subject = f"intake.shell_file:{shell_file_id}"
        await artifacts.keep(ctx.connection, artifact_id=UUID(picture), subject=subject)


@app.task(kind="intake_settle", phase="finishing", transactional=True, starters=SERVICE)
async def settle(ctx: Context, shell_file_id: UUID) -> str:
    """Set the final status of the file."""
    return await _settle(ctx, shell_file_id)


@app.task(kind="system_maintenance", timeout="10m", starters=SERVICE)
async def maintain(ctx: Context) -> dict[str, int]:
    """Finish uploads whose client died, start files that wait for quota, end files whose job is gone."""
    async with app.connections() as pool:
        adopted = await artifacts.adopt_uploads(pool, app.storage, finish_upload, key_prefix="intake:")
        started = 0
        for tenant_id, file_id in await db.rows(pool, "select tenant_id, id from intake.waiting_files()", ()):
            tasks, options = _first_tasks(file_id)
            statement = "select intake.start_waiting_file(%s, %s, %s, %s)"
            [(is_started,)] = await db.rows(pool, statement, (tenant_id, file_id, tasks, options))
            started += is_started
        [(swept,)] = await db.rows(pool, "select intake.sweep_files()", ())
    return {"adopted": adopted, "started": started, "swept": swept}


# Jobs


@app.job(
    phases={"security": 5, "ocr": 35, "spatial": 10, "pass1": 15, "pass2": 15, "pass3": 15, "finishing": 5}
)
def intake(shell_file_id: UUID) -> Any:
    """Process an uploaded file."""
    scanned = scan.options(key="scan").step(shell_file_id)
    return admit.options(key="admit", after_failure="run").step(shell_file_id, scanned)


@app.job
def intake_reading(shell_file_id: UUID, pages: int) -> None:
    """The part of the job that reads the pages. `admit` adds it."""
    parts = [
        read.step(shell_file_id, first, min(pages, first + PAGES_PER_TASK - 1))
        for first in range(1, pages + 1, PAGES_PER_TASK)
    ]
    laid = arrange.step(shell_file_id, parts)
    plan.options(after_failure="run").step(shell_file_id, laid)


@app.job
def intake_looking(shell_file_id: UUID, laid: Laid) -> None:
    """The part of the job that an outside provider reads. `plan` adds it."""
    numbers, count = laid.outside_pages, sum(laid.methods.values())
    looked = [
        look.options(provider=settings().ocr, units={"requests": len(some)}).step(shell_file_id, some)
        for some in (
            numbers[start : start + PAGES_PER_TASK] for start in range(0, len(numbers), PAGES_PER_TASK)
        )
    ]
    # The outputs of the tasks that read the pages here.
    parts = [Step(f"{read.kind}-{number}") for number in range(1, math.ceil(count / PAGES_PER_TASK) + 1)]
    again = arrange.options(key="arrange-again").step(shell_file_id, cast("Any", parts), looked)
    plan.options(key="plan-again", after_failure="run").step(shell_file_id, again)


@app.job
def intake_passes(shell_file_id: UUID, laid: Laid) -> None:
    """The part of the job that asks models. `plan` adds it."""
    chosen = settings()
    tokens = min(laid.characters, passes.MOST_CHARACTERS) // 2 + 500
    units = {"input_tokens": tokens, "output_tokens": passes.OUTPUT_TOKENS}
    summing = {**units, "input_tokens": tokens + passes.MOST_KNOWN // 4 * (laid.parts > 1)}
    vision = {**units, "input_tokens": tokens + 1500 * min(MOST_IMAGES, len(laid.poor_pages))}
    looks = chosen.vision_model if laid.poor_pages else chosen.model
    first = pass1.options(provider=looks, units=vision).step(shell_file_id, laid)
    second = [
        pass2.options(provider=chosen.model, units=units).step(shell_file_id, laid, first, part)
        for part in range(1, laid.parts + 1)
    ]
    third = pass3.options(provider=chosen.model, units=summing).step(shell_file_id, laid, first, second)
    stored = [
        store.step(shell_file_id, name, answered)
        for name, answered in (("pass1", [first]), ("pass2", second), ("pass3", [third]))
    ]
    settle.options(after_failure="run", after=stored).step(shell_file_id)


app.schedule(maintain, "* * * * *", name="intake_maintenance")


# Parts of tasks


def _first_tasks(shell_file_id: UUID) -> tuple[db.Json, db.Json]:
    """The tasks of a new job of type `intake`, and its options."""
    drawn = intake.draw({"shell_file_id": shell_file_id})
    return db.Json(drawn.tasks), db.Json({"result": drawn.result_option})


@app.upload("intake:")
async def finish_upload(conn: db.Connection, stored: Any) -> None:
    """The app's writes when an upload is stored: kept, counted, on record and with a job, in one commit."""
    statement = "select id from intake.shell_files where artifact_id = %s"
    rows = await db.rows(conn, statement, (stored.id,))
    if not rows:
        raise NotFound("there is no file for this upload", code="unknown_file")
    tasks, options = _first_tasks(rows[0][0])
    await db.rows(conn, "select intake.finish_shell_file(%s, %s, %s)", (stored.id, tasks, options))


@asynccontextmanager
async def _original(ctx: Context, shell_file_id: UUID) -> AsyncGenerator[tuple[Path, File]]:
    """The original as a local file, as long as the block runs."""
    statement = """\
select a.path, f.mime_type from intake.shell_files f join penstock.artifacts a on a.id = f.artifact_id
where f.tenant_id = %s and f.id = %s and a.status = 'stored'"""
    async with app.connections() as pool:
        rows = await db.rows(pool, statement, (ctx.tenant_id, shell_file_id))
    if not rows:
        raise Fail(f"the tenant has no stored file {shell_file_id}", code="unknown_file")
    file = File(path=rows[0][0], mime_type=rows[0][1])
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "original"
        with path.open("wb") as target:
            async for chunk in (await app.storage.get(file.path)).chunks:
                target.write(chunk)
        yield path, file


async def _pass(
    ctx: Context,
    name: str,
    shell_file_id: UUID,
    laid: Laid,
    before: dict[str, Any],
    images: list[bytes],
    part: int = 1,
) -> Answered:
    ctx.progress(0, message=f"asking the model, {name}")
    chosen = settings()
    await _check_consent(ctx, shell_file_id)
    lines = await _lines(laid)
    shown = passes.parts(lines)[part - 1]
    if chosen.redacts:
        shown = {number: {**line, "text": redact_personal(line["text"])} for number, line in shown.items()}
    question = await ctx.aprompt(PROMPTS[name])
    provider = ctx.provider or chosen.model
    answer = await models.ask(
        ctx,
        passes.SCHEMAS[name],
        passes.schema(name, laid.lines),
        passes.prompt(question.render(), str(shell_file_id), shown, before, part, laid.parts),
        provider=provider,
        url=chosen.url,
        images=images,
        max_tokens=question.max_tokens or passes.OUTPUT_TOKENS,
    )
    made = answer.model_dump()
    if isinstance(answer, passes.Facts):
        made = {"facts": passes.checked_facts(answer, {number: lines[number] for number in shown})}
    return Answered(answer=made, model=provider, prompt_name=question.name, prompt_version=question.version)


async def _check_consent(ctx: Context, shell_file_id: UUID) -> None:
    """Fail if nothing of the file may leave: its patient has not consented, and the setting requires it."""
    async with app.connections() as pool:
        statement = "select intake.may_process(%s, %s)"
        [(may_process,)] = await db.rows(pool, statement, (ctx.tenant_id, shell_file_id))
    if not may_process:
        raise Fail("the patient has not consented to processing by models", code="no_consent")


async def _lines(laid: Laid) -> dict[int, dict[str, Any]]:
    """The lines of a document by number."""
    return layout.lines_of(json.loads(await app.storage.read(laid.path, limit=_LARGEST_LAYOUT)))


async def _store(
    ctx: Context,
    shell_file_id: UUID,
    name: str,
    summary: dict[str, Any],
    artifact_id: UUID | None,
    answered: Answered | None = None,
) -> None:
    statement = "select intake.store_result(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
    origin = (
        (answered.model, answered.prompt_name, answered.prompt_version) if answered else (None, None, None)
    )
    arguments = (ctx.tenant_id, shell_file_id, name, ctx.job_id, db.Json(summary), artifact_id, *origin)
    await db.rows(ctx.connection, statement, arguments)


async def _settle(ctx: Context, shell_file_id: UUID) -> str:
    statement = "select intake.settle_file(%s, %s)"
    [(status,)] = await db.rows(ctx.connection, statement, (ctx.tenant_id, shell_file_id))
    return status or "unknown"


from penstock.apps.intake import duties, pages, uploads  # noqa: E402 (they declare more of the app)

__all__ = ["app", "duties", "intake", "pages", "uploads"]
