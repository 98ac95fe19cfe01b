"""Sign-in, sign-out and the color theme.

The sign-in form stores an API key or token in a cookie that scripts cannot read. Each request verifies it
again, so a revoked or expired credential stops working at once.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from penstock.api.callers import Callers
from penstock.api.limits import Rate
from penstock.dashboard import forms, pages
from penstock.dashboard.pages import PublicPage, redirect, render
from penstock.errors import Unauthenticated

router = APIRouter(route_class=PublicPage)

NextQuery = Annotated[str, Query(max_length=4000)]


@router.get("/sign-in")
async def show_sign_in(request: Request, next: NextQuery = "/") -> Response:
    """Show the sign-in form."""
    return render(request, "sign_in.html", next=forms.local(next), problem=None)


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Store the credential in a cookie if it is valid."""
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
        return render(request, "sign_in.html", 401, next=target, problem=error.message)
    response = redirect(request, target)
    forms.set_cookie(request, response, pages.LOGIN_COOKIE, form.get("credential"))
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Delete the credential cookie."""
    callers: Callers = request.app.state.callers
    response = redirect(request, "/sign-in")
    callers.forget(response)
    response.delete_cookie(pages.LOGIN_COOKIE, path=request.scope.get("root_path") or "/")
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
