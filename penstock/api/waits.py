"""Waits over HTTP: list what tasks ask, answer it, and the page behind a link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Annotated, Any
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from penstock.api.callers import Caller, Callers
from penstock.api.fields import RequestModel
from penstock.api.html_pages import count_anonymous, html_page
from penstock.api.limits import Limits, read_body
from penstock.api.pages import LimitQuery, Page, UuidCursor, filter_query, page
from penstock.api.routes import Conn, router
from penstock.contract import waits
from penstock.errors import Invalid, PenstockError
from penstock.types import TaskWait

routes = router("waits")

_SERVICE = Caller("service_role", {"role": "service_role"})


class AnswerRequest(RequestModel):
    """An answer: one of the options, and the fields of the payload."""

    option: str | None = Field(None, max_length=200, examples=["approve"])
    payload: dict[str, Any] = Field(default_factory=dict[str, Any], examples=[{"note": "looks good"}])


class AnswerResponse(BaseModel):
    """Whether this answer counts, or had been given by the caller before."""

    is_new: bool


@routes.get("/waits")
async def list_waits(
    conn: Conn,
    filter: Annotated[str, filter_query("status:open name:approval age:<1d")] = "",
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
) -> Page[TaskWait]:
    """List what tasks ask, newest first. Filter by id, job, task, name, status, tenant or age."""
    found = await waits.list(conn, filter=filter, before=cursor, limit=limit + 1)
    return page(found, limit, lambda wait: wait.id)


@routes.get("/waits/{wait_id}")
async def get_wait(conn: Conn, wait_id: UUID) -> TaskWait:
    """Get what a task asks, and the answer."""
    return await waits.get(conn, wait_id=wait_id)


@routes.post("/waits/{wait_id}/answer")
async def answer_wait(conn: Conn, wait_id: UUID, answer: AnswerRequest) -> AnswerResponse:
    """Answer: the task runs on. The first answer counts."""
    is_new = await waits.answer(conn, wait_id=wait_id, option=answer.option, payload=answer.payload)
    return AnswerResponse(is_new=is_new)


# Links. The token is the credential. A GET changes nothing: mail servers follow links.

links = APIRouter(include_in_schema=False)
Token = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@links.get("/answers/{token}")
async def show_link(request: Request, token: Token) -> Response:
    """Show what a link asks, with a button for each option."""
    count_anonymous(request)
    callers: Callers = request.app.state.callers
    try:
        async with callers.acting(_SERVICE, read_only=True) as conn:
            return _form(await waits.linked(conn, token=token))
    except PenstockError as error:
        return _text(error.message, error.status)


@links.post("/answers/{token}")
async def answer_link(request: Request, token: Token) -> Response:
    """Answer with the form of the link's page."""
    count_anonymous(request)
    callers: Callers = request.app.state.callers
    limits: Limits = request.app.state.limits
    try:
        sent = _fields(await read_body(request, limits))
        async with callers.acting(_SERVICE) as conn:
            asked = await waits.linked(conn, token=token)
            payload = form_payload(asked["fields"], lambda name: sent.get(name, ""))
            await waits.answer_link(conn, token=token, option=sent.get("option"), payload=payload)
        return _text("Thank you. Your answer was recorded.")
    except PenstockError as error:
        return _text(error.message, error.status)


def _fields(body: bytes) -> dict[str, str]:
    try:
        found = parse_qs(body.decode("utf-8"), strict_parsing=bool(body), max_num_fields=100)
    except (ValueError, UnicodeDecodeError):
        raise Invalid("the body is not a form", code="invalid_form") from None
    if any("\0" in value for values in found.values() for value in values):
        raise Invalid("the form contains a NUL character", code="unstorable_text")
    return {name: values[0] for name, values in found.items()}


def form_payload(fields: Mapping[str, str], value_of: Callable[[str], str]) -> dict[str, Any]:
    """The payload of an answer that was given with a form. Empty fields are left out."""
    texts = {name: value_of(f"field.{name}").strip() for name in fields}
    return {name: _typed(name, fields[name], text) for name, text in texts.items() if text}


def _typed(name: str, kind: str, text: str) -> Any:
    match kind.rstrip("?"):
        case "number":
            try:
                return int(text) if text.lstrip("-").isdecimal() else float(text)
            except ValueError:
                raise Invalid(f"{name} must be a number (got {text[:50]!r})", code="invalid_answer") from None
        case "boolean":
            return text == "true"
        case _:
            return text


def _form(asked: dict[str, Any]) -> Response:
    if asked["status"] != "open":
        state = {"answered": "was answered", "timeout": "timed out", "canceled": "is no longer needed"}
        return _text(f"This request {state[asked['status']]}.")
    inputs = "".join(_input(name, kind) for name, kind in asked["fields"].items())
    buttons = "".join(
        f'<button name="option" value="{escape(option)}">{escape(option)}</button> '
        for option in asked["options"]
    )
    message = f"<p>{escape(asked['message'])}</p>" if asked["message"] else ""
    body = f'{message}<form method="post">{inputs}<p>{buttons or "<button>Send</button>"}</p></form>'
    return html_page(asked["name"], body)


def _input(name: str, kind: str) -> str:
    label, required = escape(name), "" if kind.endswith("?") else " required"
    if kind.startswith("boolean"):
        choices = '<option value="true">yes</option><option value="false">no</option>'
        empty = "" if required else '<option value=""></option>'
        return f'<p><label>{label} <select name="field.{label}">{empty}{choices}</select></label></p>'
    form = "number" if kind.startswith("number") else "text"
    step = ' step="any"' if form == "number" else ""
    return f'<p><label>{label} <input type="{form}" name="field.{label}"{step}{required}></label></p>'


def _text(text: str, status: int = 200) -> Response:
    return html_page("Answer", f"<p>{escape(text)}</p>", status)
