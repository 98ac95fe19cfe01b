"""Bulk actions on jobs and dead letters: confirm with count and cost, run, show progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.contract import actions, dead_letters, job_actions
from penstock.dashboard import actors, formatting, forms
from penstock.dashboard.pages import READ_ONLY_MESSAGE, Conn, CurrentViewer, Page, Viewer, redirect, render
from penstock.errors import Forbidden, Invalid
from penstock.types import Action, Weight

router = APIRouter(route_class=Page)

Noun = Literal["jobs", "dead-letters"]
VERBS: dict[str, tuple[str, ...]] = {
    "jobs": ("retry", "pause", "resume", "cancel"),
    "dead-letters": ("replay", "discard"),
}
PAST_TENSE = {
    "pause": "paused",
    "resume": "resumed",
    "cancel": "canceled",
    "retry": "retried",
    "replay": "replayed",
    "discard": "discarded",
}
COUNT_LIMIT = 500_000


@router.get("/confirm")
async def confirm(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    noun: Noun,
    verb: Annotated[str, Query(max_length=20)],
    id: Annotated[Sequence[str], Query(max_length=1000)] = (),
    every: Annotated[str, Query(max_length=10)] = "",
    filter: Annotated[str, Query(max_length=2000)] = "",
    next: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """Ask for confirmation, with the number of items and the cost."""
    _require_write_access(viewer, request, noun, verb)
    if not every and not id:
        return redirect(request, forms.local(next or f"/{noun}"), flash="Nothing selected.")
    estimate = await _estimate(conn, viewer, noun, verb, None if every else list(id), filter)
    return render(
        request,
        "confirm.html",
        noun=noun,
        verb=verb,
        past_tense=PAST_TENSE[verb],
        ids=[] if every else list(id),
        every=every,
        filter=filter,
        next=forms.local(next or f"/{noun}"),
        estimate=estimate,
        limit=COUNT_LIMIT,
    )


@router.post("/act")
async def act(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """Run the action: on a few items at once, on more in the background."""
    form: forms.Form = request.state.form
    noun, verb = form.get("noun"), form.get("verb")
    _require_write_access(viewer, request, noun, verb)
    ids = None if form.get("every") else form.all("id")
    reason = form.get("reason") or None
    action_id = await _run(conn, viewer, noun, verb, ids, form.get("filter"), reason)
    action = await actions.get(conn, action_id=action_id)
    if action.finished_at is None or action.refused:
        return redirect(request, f"/actions/{action_id}", next=forms.local(form.get("next")))
    return redirect(request, forms.local(form.get("next")), flash=_result(action))


@router.get("/actions/{action_id}")
async def show_action(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    action_id: UUID,
    next: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """Show the progress of an action."""
    action = await actions.get(conn, action_id=action_id)
    return render(
        request,
        "action.html",
        action=action,
        actor_names=await actors.names(conn, viewer, [action.actor], viewer.tenant_ids or []),
        noun=_singular(action),
        past_tense=PAST_TENSE[action.verb],
        next=forms.local(next) if next else "",
        # Polls, because batches of an action write no audit lines of their own.
        live={"poll": action.finished_at is None},
    )


async def _estimate(
    conn: Conn, viewer: Viewer, noun: str, verb: str, ids: list[str] | None, filter: str
) -> Weight:
    tenant_ids = viewer.tenant_ids
    if noun == "jobs":
        return await job_actions.weigh(conn, verb=verb, filter=filter, ids=_uuids(ids), tenant_ids=tenant_ids)  # pyright: ignore[reportArgumentType]
    return await dead_letters.weigh(conn, verb=verb, filter=filter, ids=_numbers(ids), tenant_ids=tenant_ids)  # pyright: ignore[reportArgumentType]


async def _run(
    conn: Conn,
    viewer: Viewer,
    noun: str,
    verb: str,
    ids: list[str] | None,
    filter: str,
    reason: str | None,
) -> UUID:
    tenant_ids = viewer.tenant_ids
    if noun == "jobs":
        return await job_actions.act(
            conn,
            verb=verb,  # pyright: ignore[reportArgumentType]
            filter=filter,
            ids=_uuids(ids),
            tenant_ids=tenant_ids,
            reason=reason,
        )
    return await dead_letters.act(conn, verb=verb, filter=filter, ids=_numbers(ids), tenant_ids=tenant_ids)  # pyright: ignore[reportArgumentType]


def _require_write_access(viewer: Viewer, request: Request, noun: str, verb: str) -> None:
    if verb not in VERBS.get(noun, ()):
        raise Invalid(f"unknown action {verb!r}", code="invalid_verb")
    if request.app.state.settings.read_only:
        raise Forbidden(READ_ONLY_MESSAGE, code="read_only")
    if not viewer.may_act():
        raise Forbidden("viewers cannot change anything")


def _uuids(ids: list[str] | None) -> list[UUID] | None:
    try:
        return None if ids is None else [UUID(each) for each in ids]
    except ValueError:
        raise Invalid("invalid job id", code="invalid_selection") from None


def _numbers(ids: list[str] | None) -> list[int] | None:
    if ids is not None and not all(each.isdecimal() and len(each) < 19 for each in ids):
        raise Invalid("invalid dead letter id", code="invalid_selection")
    return None if ids is None else [int(each) for each in ids]


def _result(action: Action) -> str:
    return f"{formatting.counted(action.done, _singular(action))} {PAST_TENSE[action.verb]}."


def _singular(action: Action) -> str:
    return "dead letter" if action.verb in VERBS["dead-letters"] else "job"
