"""Forms: what a browser posts, and that it was a page of ours that made it do so.

Each form carries a token made of a cookie that only this site can read, and of who is asking. A browser also
says where a request comes from; what comes from elsewhere is refused whatever it carries.
"""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from fastapi import Request, Response

from penstock.api.callers import Caller
from penstock.api.limits import read_body
from penstock.errors import Forbidden, Invalid

COOKIE = "penstock_form"
FIELD = "token"
_MOST_FIELDS = 10_000


def token(request: Request, caller: Caller) -> str:
    """What a form that is shown to this caller carries."""
    return _token(_seed(request), caller)


def _token(seed: str, caller: Caller) -> str:
    return hmac.new(seed.encode(), caller.name.encode(), "sha256").hexdigest()


def _seed(request: Request) -> str:
    """The value of the cookie: the one there is, or the one that the answer to this request brings."""
    if not hasattr(request.state, "form_seed"):
        request.state.form_seed = request.cookies.get(COOKIE, "")[:100] or secrets.token_urlsafe(24)
    return request.state.form_seed


def keep(request: Request, response: Response) -> None:
    """Give the browser the cookie that the forms of this page belong to."""
    if not request.cookies.get(COOKIE) and hasattr(request.state, "form_seed"):
        set_cookie(request, response, COOKIE, request.state.form_seed)


def set_cookie(
    request: Request, response: Response, name: str, value: str, *, days: int | None = None
) -> None:
    """A cookie for the dashboard alone, that no script can read."""
    response.set_cookie(
        name,
        value,
        path=request.scope.get("root_path") or "/",
        max_age=days * 86400 if days else None,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


class Form:
    """The fields of a form that was posted."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        """The field's value; empty if it is missing."""
        return self._fields.get(name, [""])[0].strip()

    def id(self, name: str) -> UUID | None:
        """The id in a field; None if it is empty or missing."""
        try:
            return UUID(self.get(name)) if self.get(name) else None
        except ValueError:
            raise Invalid(f"{name} is not an id", code="invalid_form") from None

    def all(self, name: str) -> list[str]:
        """All values of a field that may be there several times."""
        return self._fields.get(name, [])


async def read(request: Request, caller: Caller) -> Form:
    """The form that was posted, if a page of ours made the browser do it."""
    _check_origin(request)
    body = await read_body(request, request.app.state.limits)
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Invalid("this is not a form", code="invalid_form") from error
    form = Form(fields)
    given = request.cookies.get(COOKIE, "")[:100]
    if not given or not hmac.compare_digest(_token(given, caller).encode(), form.get(FIELD).encode()):
        raise Forbidden(
            "the form is not from this page, or too old", code="cross_site", hint="Open the page again."
        )
    return form


def _check_origin(request: Request) -> None:
    """Refuse what the browser says comes from elsewhere. (What says nothing still needs the token.)"""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    # Only the host: behind a proxy we may not know whether it was https.
    is_other = origin is not None and origin.partition("://")[2] != request.headers.get("host", "")
    if site not in (None, "same-origin", "none") or (site is None and is_other):
        raise Forbidden("the request comes from another site", code="cross_site")


def local(target: str) -> str:
    """An address within the dashboard to go to, whatever was asked for: never another site's."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "/"
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc
    return target if is_local and not parts.scheme and target.isprintable() and "\\" not in target else "/"
