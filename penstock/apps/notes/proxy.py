"""`anthropic-proxy`: managed calls of signed-in users. The quota is reserved before anything else."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Literal, LiteralString
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock import FunctionRequest, FunctionResponse, Invalid
from penstock.apps.notes import ideas, managed
from penstock.apps.notes.prompts import (
    DISCOVER_BATCH,
    DISCOVER_CANON,
    DISCOVER_WITH_CUSTOM,
    TRANSCRIBE,
)
from penstock.apps.notes.telemetry import send
from penstock.errors import Limited, NotFound, PenstockError, Unavailable
from penstock.postgres import db
from penstock.types import Prompt

MOST_NOTES = 25
_CALLS: dict[str, LiteralString] = {
    "begin": "select notes.begin_call(%s, %s, %s)",
    "end": "select notes.end_call(%s, %s, %s, %s, %s, %s)",
    "release": "select penstock.release_hold(%s, %s)",
    "commit": "select penstock.commit_hold(%s, null, %s)",
    "acquire": "select penstock.acquire_api_capacity('anthropic', %s, %s, %s, null, 120)",
    "let_go": "select penstock.release_api_capacity('anthropic', %s, %s, %s, %s)",
}


class Note(BaseModel):
    """A note whose ideas are wanted."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=100)
    text: str = Field(min_length=1, max_length=20_000)


class Call(BaseModel):
    """The body of a call."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["transcribe", "discover", "discover_batch"]
    text: str | None = Field(None, min_length=1, max_length=20_000)
    image: str | None = Field(None, description="An image, base64.")
    notes: list[Note] = Field(default=[], max_length=MOST_NOTES)
    custom_ideas: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[], alias="customIdeas", max_length=200
    )


class _Work(BaseModel):
    """What a call sends to the model."""

    prompt: Any
    system: str
    parts: list[dict[str, Any]]
    form: dict[str, Any]
    custom: list[str] = []
    screened: list[str] = []
    is_unchecked: bool = False
    is_sent: bool = False


async def call_model(request: FunctionRequest) -> FunctionResponse:
    """Call the managed model for the caller."""
    if request.user_id is None:
        raise Invalid("only a signed-in user can call the model", code="forbidden")
    wanted = _read(request)
    action = "transcribe" if wanted.action == "transcribe" else "discover"
    # Never from the client: a key that exists already would reserve nothing.
    key = f"notes:{uuid4().hex}"
    try:
        async with request.service() as conn:
            begun = await _value(conn, "begin", request.user_id, action, key)
    except Limited as error:
        send("managed_ai_rate_limit_hit", request.user_id, action=action)
        return _refused(error)
    except NotFound:
        return FunctionResponse(500, json={"error": "profile_missing"})
    tenant_id, hold_id = UUID(begun["tenant_id"]), UUID(begun["hold_id"])
    work: _Work | None = None
    try:
        work = await _prepare(wanted)
        if not work.parts:
            raise Invalid("every text gives instructions to the model", code="screened")
        answer, model = await _ask(request, work, begun["model"], key)
    except BaseException as error:
        # A call that was interrupted after it was sent may have been paid for: it counts.
        is_counted = work is not None and work.is_sent and not isinstance(error, PenstockError)
        async with request.service() as conn:
            await _value(conn, "commit" if is_counted else "release", hold_id, tenant_id)
        raise
    details = {**work.prompt.details, "fail_open": work.is_unchecked}
    tokens = {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens}
    async with request.service() as conn:
        provider = f"{managed.PROVIDER}/{model}"
        await _value(conn, "end", tenant_id, hold_id, action, provider, db.Json(tokens), db.Json(details))
    send("managed_ai_call_succeeded", request.user_id, action=action, **details)
    if work.prompt.is_fallback:
        send("prompt_fallback", request.user_id, prompt_name=work.prompt.name)
    if work.is_unchecked:
        send("guardrail_fail_open", request.user_id, action=action)
    return FunctionResponse(json=_result(wanted, work, answer))


def _read(request: FunctionRequest) -> Call:
    try:
        wanted = Call.model_validate(request.json())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Invalid(f"{field}: {first['msg']}", code="invalid_call", details={"field": field}) from None
    needs = {"transcribe": wanted.image, "discover": wanted.text, "discover_batch": wanted.notes}
    if not needs[wanted.action]:
        name = {"transcribe": "image", "discover": "text", "discover_batch": "notes"}[wanted.action]
        raise Invalid(f"{wanted.action} needs {name}", code="invalid_call", details={"field": name})
    texts = [wanted.text or "", *(note.text for note in wanted.notes)]
    if any(text.startswith("enc:v1:") for text in texts):
        raise Invalid("encrypted text cannot be read by a model", code="encrypted")
    return wanted


async def _prepare(wanted: Call) -> _Work:
    if wanted.action == "transcribe":
        try:
            data = base64.b64decode(wanted.image or "", validate=True)
        except (binascii.Error, ValueError):
            raise Invalid("image must be base64", code="invalid_image") from None
        prompt = await TRANSCRIBE.aget()
        form = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        return _Work(prompt=prompt, system=prompt.render(), parts=[managed.image_part(data)], form=form)
    texts = {note.id: note.text for note in wanted.notes} or {"note": wanted.text or ""}
    if wanted.action == "discover":
        texts = {"note": wanted.text or ""}
    guarded = await managed.guard(texts)
    named = await managed.guard({str(number): name for number, name in enumerate(wanted.custom_ideas)})
    custom = [name for name in named.texts.values() if name]
    prompt, system = await discover_prompt(wanted.action == "discover_batch", custom)
    return _Work(
        prompt=prompt,
        system=system,
        parts=[{"type": "text", "text": f"Note {key}:\n{text}"} for key, text in guarded.texts.items()],
        form=ideas.schema(list(guarded.texts), custom),
        custom=custom,
        screened=guarded.screened,
        is_unchecked=guarded.is_unchecked,
    )


async def discover_prompt(is_batch: bool, custom: list[str]) -> tuple[Prompt, str]:
    """The prompt of a discovery, and its text."""
    declared = DISCOVER_BATCH if is_batch else DISCOVER_WITH_CUSTOM if custom else DISCOVER_CANON
    prompt = await declared.aget()
    values = {} if declared is DISCOVER_CANON else {"customList": ", ".join(custom)}
    return prompt, prompt.render(**values)


async def _ask(
    request: FunctionRequest, work: _Work, default_model: str, key: str
) -> tuple[managed.Answer, str]:
    model, most = work.prompt.model or default_model, work.prompt.max_tokens or 1024
    estimate = managed.estimate(work.system + json.dumps(work.form), work.parts, most)
    async with request.service() as conn:
        if not await _value(conn, "acquire", model, estimate, key):
            wait = {"retry_after_seconds": 5}
            raise Unavailable("the model has no capacity now", code="provider_busy", details=wait)
    actual = 0
    work.is_sent = True
    try:
        answer = await managed.ask(model, work.system, work.parts, work.form, most)
        actual = answer.input_tokens + answer.output_tokens
        return answer, model
    finally:
        async with request.service() as conn:
            await _value(conn, "let_go", model, estimate, actual, key)


def _result(wanted: Call, work: _Work, answer: managed.Answer) -> dict[str, Any]:
    flags = {"_promptFallback": work.prompt.is_fallback, "_failOpen": work.is_unchecked}
    if wanted.action == "transcribe":
        fields: Any = answer.document
        return {"text": str(fields["text"]) if _has_text(fields) else "", **flags}
    keys = list(work.form["properties"])
    found = ideas.parse(answer.document, keys, work.custom)
    results: dict[str, Any] = {key: each.model_dump() for key, each in found.items()}
    results |= {key: {"error": "screened"} for key in work.screened}
    if wanted.action == "discover":
        return {**results.get("note", {"core": [], "supporting": []}), **flags}
    return {"results": results, **flags}


def _has_text(document: Any) -> bool:
    return isinstance(document, dict) and "text" in document


def _refused(error: PenstockError) -> FunctionResponse:
    told = {name: error.details.get(name) for name in ("used", "limit", "resets_at")}
    wait = error.details.get("retry_after_seconds")
    headers = {"Retry-After": str(int(float(wait)))} if wait is not None else {}
    return FunctionResponse(429, json={"error": "quota_exceeded", **told}, headers=headers)


async def _value(conn: db.Connection, call: str, *values: Any) -> Any:
    [(found,)] = await db.rows(conn, _CALLS[call], values)
    return found
