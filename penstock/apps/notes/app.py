"""The tasks, the bulk type and the HTTP functions.

Discovery on the server is for libraries that are not encrypted: rows hold ids only, and the text is read when
a task runs. Encrypted libraries are discovered by the device.
"""

from __future__ import annotations

from typing import Any, LiteralString

from pydantic import BaseModel

from penstock import (
    BulkRow,
    Change,
    Context,
    FunctionRequest,
    FunctionResponse,
    Invalid,
    Retry,
    RowError,
)
from penstock.apps.notes import billing, ideas, images, managed, pages, proxy
from penstock.apps.notes.instance import SYNCED, app
from penstock.apps.notes.prompts import DISCOVER_BATCH
from penstock.apps.notes.telemetry import send
from penstock.errors import Forbidden, Unavailable
from penstock.postgres import db
from penstock.types import Starter

__all__ = ["SYNCED", "app", "discover"]

billing.add(app)
images.add(app)
pages.declare(app)
app.function("anthropic-proxy", max_bytes=8 << 20, timeout=90)(proxy.call_model)

_ENTITLEMENTS: LiteralString = "select notes.my_entitlements()"
_APPROVE: LiteralString = "select notes.approve_waitlist(%s)"
_TEXTS: LiteralString = "select note_id, text, is_encrypted from notes.texts_to_discover(%s, %s)"
_CUSTOM: LiteralString = "select notes.custom_idea_names(%s)"
_MODEL: LiteralString = "select penstock.get_setting('notes.model') #>> '{}'"
_APPLY: LiteralString = "select notes.apply_ideas(%s, %s, %s)"
_REMOVE: LiteralString = "select notes.remove_idea(%s, %s, %s)"
_OLD_IMAGES: LiteralString = "select notes.delete_old_images()"
PROVIDER = "anthropic/claude-haiku-4-5"
SERVICE: tuple[Starter, ...] = ("service",)
"""Who may start tasks that count managed calls: users start the bulk job, which sets what it counts."""


@app.function("me-entitlements", methods=["GET", "POST"])
async def me_entitlements(request: FunctionRequest) -> FunctionResponse:
    """What the caller may do: tier, limits and capabilities."""
    async with request.acting() as conn:
        [(found,)] = await db.rows(conn, _ENTITLEMENTS, ())
    return FunctionResponse(json=found)


@app.function("approve-waitlist")
async def approve_waitlist(request: FunctionRequest) -> FunctionResponse:
    """Approve a request of the waitlist. For the service."""
    if not request.is_service:
        raise Forbidden("only the service approves requests")
    body = request.json()
    email = body.get("email") if isinstance(body, dict) else None  # pyright: ignore
    if not isinstance(email, str):
        raise Invalid("the body must have an email", details={"field": "email"})
    async with request.service() as conn:
        [(found,)] = await db.rows(conn, _APPROVE, (email,))
    return FunctionResponse(json=found)


# Discovery


class Orphan(BaseModel):
    """A note without ideas. Its text stays where it is."""

    note_id: str
    source: str = ""


@app.task(kind="discover", max_attempts=3, backoff="5s", timeout="3m", starters=SERVICE)
async def find_ideas(ctx: Context, rows: list[BulkRow[Orphan]]) -> dict[str, Any]:
    """Ask the model for the ideas of a batch of notes. The batch counts as one call."""
    async with app.connections() as pool:
        found = await db.rows(pool, _TEXTS, (ctx.tenant_id, [row.key for row in rows]))
        [(custom,)] = await db.rows(pool, _CUSTOM, (ctx.tenant_id,))
        [(default_model,)] = await db.rows(pool, _MODEL, ())
    texts = {key: text for key, text, is_encrypted in found if not is_encrypted}
    output: dict[str, Any] = {row.key: ideas.Ideas().model_dump() for row in rows}
    for key, _, is_encrypted in found:
        if is_encrypted:
            output[key] = RowError(message="the note is encrypted", code="encrypted").model_dump()
    guarded = await managed.guard(texts)
    for key in guarded.screened:
        output[key] = RowError(
            message="the note gives instructions to the model", code="screened"
        ).model_dump()
    if guarded.is_unchecked:
        ctx.log.warning("guard.fail_open")
    if not guarded.texts:
        await ctx.ausage(requests=0, managed_ai=0)
        return output
    prompt = await ctx.aprompt(DISCOVER_BATCH)
    system = prompt.render(customList=", ".join(custom))
    parts = [{"type": "text", "text": f"Note {key}:\n{text}"} for key, text in guarded.texts.items()]
    form = ideas.schema(list(guarded.texts), custom)
    try:
        answer = await managed.ask(
            prompt.model or default_model, system, parts, form, prompt.max_tokens or 4096
        )
    except Unavailable as error:
        raise Retry(error.message, code=error.code) from error
    await ctx.ausage(
        managed_ai=1, requests=1, input_tokens=answer.input_tokens, output_tokens=answer.output_tokens
    )
    for key, each in ideas.parse(answer.document, guarded.texts, custom).items():
        output[key] = each.model_dump()
    return output


@app.bulk(row=Orphan, name="discover", key=["note_id"], batch=25, group_by="source", exclusive=True)
def discover(rows: list[BulkRow[Orphan]]) -> Any:
    """Find ideas for notes that have none."""
    return find_ideas.options(provider=PROVIDER, units={"managed_ai": 1}).step(rows)


@discover.apply
async def apply(ctx: Context, connection: Any, row: BulkRow[Orphan], result: dict[str, Any]) -> list[Change]:
    """Tag a note. The role of an idea is in the change, never in the tags."""
    added = ideas.applied(ideas.Ideas(**result))
    values = (ctx.tenant_id, row.key, [each.name for each in added])
    [(names,)] = await db.rows(connection, _APPLY, values)
    return [
        Change(name=each.name, after={"name": each.name, "role": each.role})
        for each in added
        if each.name in names
    ]


@discover.undo
async def undo(ctx: Context, connection: Any, row: BulkRow[Orphan], change: Change) -> None:
    """Remove an idea that the job added. How often, by role, is what shows whether discovery is good."""
    send("bulk_discovery_idea_undone", ctx.tenant_id, role=change.after["role"])
    await db.rows(connection, _REMOVE, (ctx.tenant_id, row.key, change.name))


@app.task(kind="notes_images", timeout="5m", starters=SERVICE)
async def delete_images(ctx: Context) -> int:
    """Delete images of notes that were deleted long ago."""
    async with app.connections() as pool:
        [(count,)] = await db.rows(pool, _OLD_IMAGES, ())
    return count


app.schedule(delete_images, "17 3 * * *", missed="once")
