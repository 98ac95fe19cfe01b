"""Sign-in, sign-out and the color theme.

The sign-in form takes an API key or token and opens a session on the server. The browser gets the session's
token in a cookie that scripts cannot read, never the key. Each request checks the session and its key again.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Caller, Callers
from penstock.api.limits import Rate
from penstock.dashboard import forms, pages
from penstock.dashboard.pages import PublicPage, redirect, render
from penstock.errors import Unauthenticated

router = APIRouter(route_class=PublicPage)

COOKIE_SECONDS = 366 * 86400
"""Longer than any session: the server ends sessions, not the cookie."""

NextQuery = Annotated[str, Query(max_length=4000)]


@router.get("/sign-in")
async def show_sign_in(request: Request, next: NextQuery = "/") -> Response:
    """Show the sign-in form."""
    return render(request, "sign_in.html", next=forms.local(next), problem=None)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Open a session if the credential is valid."""
    form: forms.Form = request.state.form
    callers: Callers = request.app.state.callers
    rate: Rate = request.app.state.rate
    rate.take(f"nobody:{request.client.host if request.client else ''}")
    target = forms.local(form.get("next"))
    try:
        caller = await callers.bearing(form.get("credential"))
        if caller.role == "anon" or caller.is_worker:
            raise Unauthenticated("worker keys and anonymous tokens cannot sign in")
    except Unauthenticated as error:
        storms = getattr(request.app.state, "storms", None)
        if storms is not None:
            storms.note(request, "failed_logins", f"address:{request.client.host if request.client else ''}")
        return render(request, "sign_in.html", 401, next=target, problem=error.message)
    response = redirect(request, target)
    await begin_session(request, response, caller)
    return response


async def begin_session(request: Request, response: Response, caller: Caller) -> None:
    """Open a session for the caller and end the browser's previous one."""
    callers: Callers = request.app.state.callers
    await _end_session(request)
    token = await callers.open_session(caller, request.headers.get("user-agent"))
    forms.set_host_cookie(request, response, pages.SESSION_COOKIE, token, seconds=COOKIE_SECONDS)


async def _end_session(request: Request) -> None:
    callers: Callers = request.app.state.callers
    if token := request.cookies.get(forms.host_cookie(request, pages.SESSION_COOKIE)):
        await callers.close_session(token)


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """End the session on the server and delete its cookie."""
    callers: Callers = request.app.state.callers
    response = redirect(request, "/sign-in")
    callers.forget(response)
    await _end_session(request)
    forms.delete_host_cookie(request, response, pages.SESSION_COOKIE)
    return response


@router.post("/theme")
async def set_theme(request: Request) -> Response:
    """Set the theme: light, dark, or the system's."""
    form: forms.Form = request.state.form
    response = redirect(request, forms.local(form.get("next")))
    theme = form.get("theme")
    if theme in ("light", "dark"):
        forms.set_cookie(request, response, pages.THEME_COOKIE, theme, days=365)
    else:
        response.delete_cookie(pages.THEME_COOKIE, path=request.scope.get("root_path") or "/")
    return response
