"""Actions: what is to be done to how many and at what cost, then that it is done, then how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock import actions, dead_letters, jobs
from penstock.dashboard import forms
from penstock.dashboard.pages import Held, Page, Seen, Viewer, render, to
from penstock.errors import Forbidden, Invalid
from penstock.types import Action, Weight

router = APIRouter(route_class=Page)

Noun = Literal["jobs", "dead-letters"]
VERBS: dict[str, tuple[str, ...]] = {
    "jobs": ("retry", "pause", "resume", "cancel"),
    "dead-letters": ("replay", "discard"),
}
DONE = {
    "pause": "paused",
    "resume": "resumed",
    "cancel": "canceled",
    "retry": "retried",
    "replay": "replayed",
    "discard": "discarded",
}
MOST = 500_000


@router.get("/confirm")
async def confirm(
    request: Request,
    held: Held,
    viewer: Seen,
    noun: Noun,
    verb: Annotated[str, Query(max_length=20)],
    id: Annotated[Sequence[str], Query(max_length=1000)] = (),
    every: Annotated[str, Query(max_length=10)] = "",
    filter: Annotated[str, Query(max_length=2000)] = "",
    next: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """How many it would be, and what it costs."""
    _check(viewer, request, noun, verb)
    if not every and not id:
        return to(request, forms.local(next or f"/{noun}"), said="Nothing was selected.")
    weight = await _weigh(held, viewer, noun, verb, None if every else list(id), filter)
    return render(
        request,
        "confirm.html",
        noun=noun,
        verb=verb,
        ids=[] if every else list(id),
        every=every,
        filter=filter,
        next=forms.local(next or f"/{noun}"),
        weight=weight,
        most=MOST,
    )


@router.post("/act")
async def act(request: Request, held: Held, viewer: Seen) -> Response:
    """Do it: to a few at once, to more in the background."""
    form: forms.Form = request.state.form
    noun, verb = form.get("noun"), form.get("verb")
    _check(viewer, request, noun, verb)
    ids = None if form.get("every") else form.all("id")
    reason = form.get("reason") or None
    action_id = await _act(held, viewer, noun, verb, ids, form.get("filter"), reason)
    action = await actions.get(held, action_id=action_id)
    if action.finished_at is None or action.refused:
        return to(request, f"/actions/{action_id}", next=forms.local(form.get("next")))
    return to(request, forms.local(form.get("next")), said=_said(action, noun))


@router.get("/actions/{action_id}")
async def show_action(
    request: Request, held: Held, action_id: UUID, next: Annotated[str, Query(max_length=4000)] = ""
) -> Response:
    """How far an action is."""
    action = await actions.get(held, action_id=action_id)
    return render(
        request,
        "action.html",
        action=action,
        noun="dead letters" if action.verb in VERBS["dead-letters"] else "jobs",
        done=DONE[action.verb],
        next=forms.local(next) if next else "",
        # Moves by itself, without a line in the audit log for each bite.
        live={"often": action.finished_at is None},
    )


async def _weigh(
    held: Held, viewer: Viewer, noun: str, verb: str, ids: list[str] | None, filter: str
) -> Weight:
    own = viewer.tenant_ids
    if noun == "jobs":
        return await jobs.weigh(held, verb=verb, filter=filter, ids=_uuids(ids), tenant_ids=own)  # pyright: ignore[reportArgumentType]
    return await dead_letters.weigh(held, verb=verb, filter=filter, ids=_numbers(ids), tenant_ids=own)  # pyright: ignore[reportArgumentType]


async def _act(
    held: Held,
    viewer: Viewer,
    noun: str,
    verb: str,
    ids: list[str] | None,
    filter: str,
    reason: str | None,
) -> UUID:
    own = viewer.tenant_ids
    if noun == "jobs":
        return await jobs.act(
            held,
            verb=verb,  # pyright: ignore[reportArgumentType]
            filter=filter,
            ids=_uuids(ids),
            tenant_ids=own,
            reason=reason,
        )
    return await dead_letters.act(held, verb=verb, filter=filter, ids=_numbers(ids), tenant_ids=own)  # pyright: ignore[reportArgumentType]


def _check(viewer: Viewer, request: Request, noun: str, verb: str) -> None:
    if verb not in VERBS.get(noun, ()):
        raise Invalid("there is no such action", code="invalid_verb")
    if request.app.state.settings.read_only:
        raise Forbidden("this dashboard only shows: it changes nothing", code="read_only")
    if not viewer.may_act():
        raise Forbidden("a viewer only looks")


def _uuids(ids: list[str] | None) -> list[UUID] | None:
    try:
        return None if ids is None else [UUID(each) for each in ids]
    except ValueError:
        raise Invalid("this is not the id of a job", code="invalid_selection") from None


def _numbers(ids: list[str] | None) -> list[int] | None:
    if ids is not None and not all(each.isdecimal() and len(each) < 19 for each in ids):
        raise Invalid("this is not the id of a dead letter", code="invalid_selection")
    return None if ids is None else [int(each) for each in ids]


def _said(action: Action, noun: str) -> str:
    singular = "job" if noun == "jobs" else "dead letter"
    what = f"1 {singular}" if action.done == 1 else f"{action.done:,} {singular}s"
    return f"{what} {DONE[action.verb]}."
