"""Sign-in, sign-out and the color theme.

The sign-in form takes an API key or token and opens a session on the server. The browser gets the session's
token in a cookie that scripts cannot read, never the key. Each request checks the session and its key again.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from penstock.api.callers import Caller, Callers
from penstock.api.limits import Rate
from penstock.api.oidc import Login, Oidc
from penstock.dashboard import forms, pages
from penstock.dashboard.pages import PublicPage, redirect, render, url
from penstock.errors import NotFound, Unauthenticated

router = APIRouter(route_class=PublicPage)

OIDC_COOKIE = "penstock_oidc"
COOKIE_SECONDS = 366 * 86400
"""Longer than any session: the server ends sessions, not the cookie."""

NextQuery = Annotated[str, Query(max_length=4000)]


@router.get("/sign-in")
async def show_sign_in(request: Request, next: NextQuery = "/") -> Response:
    """Show the sign-in form."""
    return _page(request, forms.local(next))


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Open a session if the credential is valid."""
    form: forms.Form = request.state.form
    callers: Callers = request.app.state.callers
    _count(request)
    target = forms.local(form.get("next"))
    try:
        caller = await callers.bearing(form.get("credential"))
        if caller.role == "anon" or caller.is_worker:
            raise Unauthenticated("worker keys and anonymous tokens cannot sign in")
    except Unauthenticated as error:
        storms = getattr(request.app.state, "storms", None)
        if storms is not None:
            storms.note(request, "failed_logins", f"address:{request.client.host if request.client else ''}")
        return _page(request, target, error.message)
    response = redirect(request, target)
    await begin_session(request, response, caller)
    return response


def _count(request: Request) -> None:
    """Count an attempt to sign in against the client's address."""
    rate: Rate = request.app.state.rate
    rate.take(f"nobody:{request.client.host if request.client else ''}")


def _page(request: Request, target: str, problem: str | None = None) -> Response:
    oidc = _oidc(request)
    code = 401 if problem else 200
    return render(
        request, "sign_in.html", code, next=target, problem=problem, issuer=oidc.name if oidc else None
    )


def _oidc(request: Request) -> Oidc | None:
    """Return the sign-in with the configured issuer, if there is one."""
    state = request.app.state
    if not hasattr(state, "oidc"):
        state.oidc = Oidc(state.settings) if state.settings.oidc_issuer else None
    return state.oidc


def _callback(request: Request) -> str:
    return forms.base_url(request) + url(request, "/sign-in/callback")


@router.get("/sign-in/oidc")
async def begin_oidc(request: Request, next: NextQuery = "/") -> Response:
    """Send the browser to the issuer. A cookie binds the sign-in to this browser."""
    oidc = _oidc(request)
    if oidc is None:
        raise NotFound("page not found")
    _count(request)
    address, login = await oidc.begin(_callback(request))
    response = RedirectResponse(address, 303)
    value = json.dumps([login.state, login.nonce, login.verifier, forms.local(next)])
    encoded = base64.urlsafe_b64encode(value.encode()).decode()
    forms.set_host_cookie(request, response, OIDC_COOKIE, encoded, seconds=600)
    return response


@router.get("/sign-in/callback")
async def finish_oidc(request: Request) -> Response:
    """Take the issuer's answer and open a session."""
    oidc = _oidc(request)
    if oidc is None:
        raise NotFound("page not found")
    _count(request)
    callers: Callers = request.app.state.callers
    target = "/"
    try:
        login, target = _begun(request)
        identity = await oidc.finish(login, _callback(request), dict(request.query_params))
        caller = await callers.of_identity(
            identity.issuer, identity.subject, identity.email, is_operator=oidc.is_operator(identity)
        )
        response: Response = redirect(request, target)
        await begin_session(request, response, caller)
    except Unauthenticated as error:
        response = _page(request, target, error.message)
    forms.delete_host_cookie(request, response, OIDC_COOKIE)
    return response


def _begun(request: Request) -> tuple[Login, str]:
    """Return the sign-in that this browser began, and the page to open after it."""
    try:
        encoded = request.cookies[forms.host_cookie(request, OIDC_COOKIE)]
        state, nonce, verifier, target = map(str, json.loads(base64.urlsafe_b64decode(encoded)))
    except (KeyError, ValueError, TypeError, RecursionError):
        raise Unauthenticated("the sign-in was begun in another browser or has expired") from None
    return Login(state, nonce, verifier), forms.local(target)


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
