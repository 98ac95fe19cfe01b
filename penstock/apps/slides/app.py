"""The tasks, the webhook and the HTTP functions.

thumbnail ── thumbnail_settle        one pair per slide; SQL draws them, so that an upload, its slide and
                                     its job are one commit
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

from pydantic import BaseModel

from penstock import App, Context, Fail, FunctionRequest, FunctionResponse, Invalid, Reschedule, Retry
from penstock.apps.slides import cloudconvert, local, pages
from penstock.apps.slides.settings import settings, webhook_secrets
from penstock.contract import artifacts, operations
from penstock.errors import Conflict
from penstock.postgres import db
from penstock.sdk.operations import Operation, Settled
from penstock.sdk.webhooks import Event
from penstock.storage import content
from penstock.types import Artifact, WebhookOutcome

CLOUDCONVERT = "cloudconvert/jobs"
BATCH = 500
"""Slides that one step of the retroactive selection queues."""
UPLOADS = "slides/"
"""Idempotency keys of uploads: slides/SPEECH_ID/ANYTHING."""
_MAX_FILE = 100 << 20

app = App(
    tenant="slides",
    schema="slides",
    sql=Path(__file__).parent / "sql",
    writable_tables=["events", "sessions", "speeches"],
)
pages.declare(app)


class Thumbnail(BaseModel):
    """The thumbnail of a slide, or why none was made."""

    artifact_id: UUID | None = None
    skipped: str | None = None


# Conversions


@app.task(kind="thumbnail", max_attempts=3, backoff="2s", timeout="4m")
async def convert(ctx: Context, slide_id: UUID) -> Thumbnail:
    """Make the thumbnail of a slide at the task's provider."""
    file = await _call("begin_thumbnail", ctx.tenant_id, slide_id, ctx.job_id)
    if "artifact_id" in file:
        # An earlier run made it and died before its end. CloudConvert's part was charged when it was done.
        if ctx.provider != local.PROVIDER:
            await ctx.ausage(requests=0, thumbnails=0)
        return Thumbnail(artifact_id=file["artifact_id"])
    if "skipped" in file and not file.get("is_converting"):
        # Nothing was converted, so nothing is counted.
        await ctx.ausage(requests=0, thumbnails=0)
        return Thumbnail(skipped=file["skipped"])
    if ctx.provider == local.PROVIDER:
        saved = await _convert_here(ctx, file)
    else:
        try:
            saved = await _convert_there(ctx, slide_id, file)
        except Conflict as error:
            if error.code != "operation_live":
                raise
            # An older job of this slide still converts; its operation ends within minutes.
            raise Reschedule("10s", "another conversion of this slide is running") from error
    artifact_id = UUID(saved["artifact_id"])
    await _call("finish_thumbnail", ctx.tenant_id, slide_id, ctx.job_id, artifact_id)
    return Thumbnail(artifact_id=artifact_id, skipped=file.get("skipped"))


async def _convert_there(ctx: Context, slide_id: UUID, file: dict[str, Any]) -> dict[str, Any]:
    """Convert at CloudConvert. A webhook only wakes this handler; the job itself says what became of it."""
    chosen = settings()

    async def submit(operation: Operation) -> str:
        async with cloudconvert.connect(chosen) as client:
            job = await client.create(str(operation.id))
            await client.upload(job, file["name"], await _read(file["path"]))
            return job["id"]

    async def check(operation: Operation) -> Settled | None:
        if operation.external_id is None:
            return None
        async with cloudconvert.connect(chosen) as client:
            job = await client.get(operation.external_id)
            if job is not None and job["status"] == "finished":
                return _finished(await _save(ctx, await client.download(job)))
            # The worker may have died between the creation of the job and the upload. A slide that was
            # deleted in the meantime has no file.
            if job is not None and job["status"] != "error" and "path" in file:
                await client.upload(job, file["name"], await _read(file["path"]))
            return _settled(job)

    return await ctx.operation(
        f"slide:{slide_id}", submit=submit, find=_find, check=check, cancel=_cancel,
        timeout=chosen.timeout, checks=chosen.checks,
    )  # fmt: skip


def _finished(result: Any) -> Settled:
    return Settled("completed", result, {"thumbnails": 1, "requests": 1})


def _settled(job: dict[str, Any] | None) -> Settled | None:
    """What CloudConvert says about a job that is not there, has failed or still runs."""
    if job is None:
        return Settled("canceled", message="CloudConvert has no such job any more")
    if job["status"] == "error":
        code, message = cloudconvert.failure(job)
        return Settled("failed", code=code, message=message)
    return None


async def _find(operation: Operation) -> str | None:
    async with cloudconvert.connect(settings()) as client:
        return await client.find(str(operation.id))


async def _cancel(operation: Operation) -> None:
    if operation.external_id is not None:
        async with cloudconvert.connect(settings()) as client:
            await client.cancel(operation.external_id)


async def _ask(operation: Operation) -> Settled | None:
    """The state at CloudConvert of a conversion that timed out here. Its task downloads the thumbnail."""
    async with cloudconvert.connect(settings()) as client:
        job = await client.get(operation.external_id or "")
    return _finished(None) if job is not None and job["status"] == "finished" else _settled(job)


app.operations.add(CLOUDCONVERT, check=_ask, find=_find, cancel=_cancel)


async def _convert_here(ctx: Context, file: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        source, target = Path(folder) / "slide", Path(folder) / "thumbnail.png"
        source.write_bytes(await _read(file["path"]))
        try:
            await ctx.acompute(local.convert, str(source), file["mime_type"], str(target))
        except (local.Missing, local.Damaged) as error:
            raise Fail(str(error), code=error.code) from error
        return await _save(ctx, target.read_bytes())


async def _read(path: str) -> bytes:
    return await app.storage.read(path, limit=_MAX_FILE)


async def _save(ctx: Context, data: bytes) -> dict[str, Any]:
    kind = content.detected(data[: content.HEAD_BYTES])
    if kind not in ("image/png", "image/jpeg"):
        raise Retry("the provider returned a file that is no picture", code="invalid_format")
    return await ctx.asave("thumbnail." + kind.removeprefix("image/"), data, kind)


async def _call(function: str, *values: Any) -> Any:
    """Call a function of the app's schema in a transaction of its own."""
    async with app.connections() as pool:
        return await _call_on(pool, function, *values)


async def _call_on(database: db.Database, function: str, *values: Any) -> Any:
    [(found,)] = await db.rows(database, _STATEMENTS[function], values)
    return found


_STATEMENTS: dict[str, LiteralString] = {
    "begin_thumbnail": "select slides.begin_thumbnail(%s, %s, %s)",
    "finish_thumbnail": "select slides.finish_thumbnail(%s, %s, %s, %s)",
    "settle_thumbnail": "select slides.settle_thumbnail(%s, %s, %s)",
    "select_slides": "select slides.select_slides(%s, %s, %s, %s)",
    "tasks": "select slides._tasks(%s)",
    "sweep_thumbnails": "select slides.sweep_thumbnails()",
    "add_slide": "select slides.add_slide(%s, %s)",
    "require_speech": "select slides.require_speech(%s)",
}


@app.task(kind="thumbnail_settle", max_attempts=10, timeout="1m", transactional=True)
async def settle(ctx: Context, slide_id: UUID) -> str:
    """Mark a slide as failed if its conversion failed, and record the failure for its event."""
    return await _call_on(ctx.connection, "settle_thumbnail", ctx.tenant_id, slide_id, ctx.job_id)


@app.task(kind="thumbnail_select", max_attempts=10, timeout="1m", transactional=True)
async def select(ctx: Context, event_id: UUID, number: int) -> int:
    """Queue the next slides of an event that was switched on."""
    found = await _call_on(ctx.connection, "select_slides", ctx.tenant_id, event_id, ctx.job_id, BATCH)
    new = await _call_on(ctx.connection, "tasks", found)
    if len(found) == BATCH:
        more = {"event_id": str(event_id), "number": number + 1}
        new.append({"kind": "thumbnail_select", "key": f"select/{number + 1}", "input": more})
    if new:
        await ctx.aadd_tasks(new)
    return len(found)


@app.task(kind="slides_sweep", timeout="1m")
async def sweep(ctx: Context) -> int:
    """Settle slides whose job was canceled, and finish uploads whose client died."""
    async with app.connections() as pool:
        await artifacts.adopt_uploads(pool, app.storage, _adopt, key_prefix=UPLOADS)
        return await _call_on(pool, "sweep_thumbnails")


app.schedule(sweep, "* * * * *", missed="skip")


# Webhooks


@app.webhooks.add("cloudconvert", scheme="cloudconvert", secrets=webhook_secrets)
async def told(event: Event) -> WebhookOutcome | None:
    """Wake the task of the conversion. It asks CloudConvert, because webhooks can be replayed."""
    if event.type == "job.created":
        return "ignored"
    job = event.payload["job"]
    try:
        operation_id = UUID(str(job.get("tag")))
    except ValueError:
        operation_id = None
    outcome = await operations.tell(
        event.connection, provider=CLOUDCONVERT, operation_id=operation_id, external_id=str(job["id"])
    )
    return {"applied": "applied", "late": "applied", "stale": "stale"}.get(outcome, "unmatched")  # type: ignore[return-value]


# Uploads


class NewSlide(BaseModel):
    """The body of `add-slide`."""

    artifact_id: UUID
    speech_id: UUID


@app.function("add-slide")
async def add_slide(request: FunctionRequest) -> FunctionResponse:
    """Finish an upload as a slide of a speech. The file, the slide and its job are one commit."""
    try:
        wanted = NewSlide.model_validate(request.json())
    except ValueError as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid("the body must have artifact_id and speech_id", details={"field": "body"}) from None
    async with request.acting() as conn:
        await _call_on(conn, "require_speech", wanted.speech_id)

    async def add(conn: db.Connection, file: Artifact) -> None:
        await add_stored(conn, wanted.speech_id, file)

    is_new = await request.finish_upload(wanted.artifact_id, add)
    async with request.acting() as conn:
        slide_id = await _call_on(conn, "add_slide", wanted.speech_id, wanted.artifact_id)
    return FunctionResponse(201 if is_new else 200, json={"id": str(slide_id)})


async def add_stored(conn: db.Connection, speech_id: UUID, file: Artifact) -> UUID:
    """Add a stored file to a speech, in the transaction that stored it."""
    return await _call_on(conn, "add_slide", speech_id, file.id)


async def _adopt(conn: db.Connection, file: Artifact) -> None:
    rows = await db.rows(conn, "select idempotency_key from penstock.artifacts where id = %s", (file.id,))
    await add_stored(conn, UUID(rows[0][0].split("/")[1]), file)
