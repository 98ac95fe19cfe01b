"""Signing in and out, and how the pages look.

Whoever has a token or an API key gives it here once. It is kept in a cookie that no script can read, and is
checked with every request like any other: what is revoked or has expired is refused at once.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Callers
from penstock.api.limits import Rate
from penstock.dashboard import forms, pages
from penstock.dashboard.pages import OpenPage, render, to
from penstock.errors import Unauthenticated

router = APIRouter(route_class=OpenPage)

NextQuery = Annotated[str, Query(max_length=4000)]


@router.get("/sign-in")
async def show_sign_in(request: Request, next: NextQuery = "/") -> Response:
    """The form for a credential."""
    return render(request, "sign_in.html", next=forms.local(next), problem=None)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Keep the credential, if it is a good one."""
    form: forms.Form = request.state.form
    callers: Callers = request.app.state.callers
    rate: Rate = request.app.state.rate
    rate.take(f"nobody:{request.client.host if request.client else ''}")
    wanted = forms.local(form.get("next"))
    try:
        caller = await callers.bearing(form.get("credential"))
        if caller.role == "anon" or caller.is_worker:
            raise Unauthenticated("this credential is not for people")
    except Unauthenticated as error:
        return render(request, "sign_in.html", 401, next=wanted, problem=error.message)
    response = to(request, wanted)
    forms.set_cookie(request, response, pages.LOGIN_COOKIE, form.get("credential"))
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Forget the credential."""
    callers: Callers = request.app.state.callers
    response = to(request, "/sign-in")
    callers.forget(response)
    response.delete_cookie(pages.LOGIN_COOKIE, path=request.scope.get("root_path") or "/")
    return response


@router.post("/theme")
async def set_theme(request: Request) -> Response:
    """Light, dark, or as the system has it."""
    form: forms.Form = request.state.form
    response = to(request, forms.local(form.get("next")))
    theme = form.get("theme")
    if theme in ("light", "dark"):
        forms.set_cookie(request, response, pages.THEME_COOKIE, theme, days=365)
    else:
        response.delete_cookie(pages.THEME_COOKIE, path=request.scope.get("root_path") or "/")
    return response
