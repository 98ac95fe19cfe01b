"""Sessions: where the viewer is signed in. Operators see all sessions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from penstock.contract import sessions
from penstock.dashboard import actors, forms
from penstock.dashboard.pages import Conn, CurrentViewer, Page, redirect, render
from penstock.errors import Invalid
from penstock.types import Scope


class SessionPage(Page):
    """A page that every viewer may use, whatever the scopes of the viewer's key."""

    scope: Scope = "read"


router = APIRouter(route_class=SessionPage)


@router.get("/sessions")
async def list_sessions(request: Request, conn: Conn, viewer: CurrentViewer) -> Response:
    """List the viewer's sessions; for operators all sessions."""
    found = await sessions.list(conn)
    names = await actors.names(conn, viewer, [f"user:{each.subject}" for each in found if each.subject], [])
    return render(request, "sessions.html", sessions=found, actor_names=names, live=None)


@router.post("/sessions/end")
async def end_session(request: Request, conn: Conn) -> Response:
    """End a session, or all other sessions of the viewer."""
    form: forms.Form = request.state.form
    if form.get("others"):
        count = await sessions.end_others(conn)
        return redirect(request, "/sessions", flash=f"Ended {count} other session{'s' * (count != 1)}.")
    session_id = form.id("id")
    if session_id is None:
        raise Invalid("id is required", code="invalid_form")
    await sessions.end(conn, session_id=session_id)
    return redirect(request, "/sessions", flash="Session ended.")
