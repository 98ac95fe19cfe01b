"""Posted forms and their protection against cross-site request forgery.

Each form carries a token derived from a cookie that only this site can read and from the caller. Requests
that the browser marks as coming from another site are rejected even with a valid token.
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
_MAX_FIELDS = 10_000


def token(request: Request, caller: Caller) -> str:
    """Return the token for the forms of this caller."""
    return _token(_seed(request), caller)


def _token(seed: str, caller: Caller) -> str:
    return hmac.new(seed.encode(), caller.name.encode(), "sha256").hexdigest()


def _seed(request: Request) -> str:
    """Return the value of the form cookie: the existing one, or a new one that the response will set."""
    if not hasattr(request.state, "form_seed"):
        request.state.form_seed = request.cookies.get(COOKIE, "")[:100] or secrets.token_urlsafe(24)
    return request.state.form_seed


def set_form_cookie(request: Request, response: Response) -> None:
    """Set the cookie that the tokens of this page's forms are derived from, unless it exists."""
    if not request.cookies.get(COOKIE) and hasattr(request.state, "form_seed"):
        set_cookie(request, response, COOKIE, request.state.form_seed)


def set_cookie(
    request: Request, response: Response, name: str, value: str, *, days: int | None = None
) -> None:
    """Set a cookie for the dashboard's paths that scripts cannot read."""
    response.set_cookie(
        name,
        value,
        path=request.scope.get("root_path") or "/",
        max_age=days * 86400 if days else None,
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )


def host_cookie(request: Request, name: str) -> str:
    """Return the name of a cookie for this host: behind TLS with the prefix that no other host can set."""
    return f"__Host-{name}" if is_secure(request) else name


def is_secure(request: Request) -> bool:
    """Whether the browser reaches the dashboard over TLS."""
    return base_url(request).startswith("https://")


def base_url(request: Request) -> str:
    """Return the address of this server as browsers reach it, without a path."""
    public_url: str | None = request.app.state.settings.public_url
    return public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"


def set_host_cookie(request: Request, response: Response, name: str, value: str, *, seconds: int) -> None:
    """Set a cookie that scripts cannot read and that the browser sends to this host only."""
    response.set_cookie(
        host_cookie(request, name),
        value,
        max_age=seconds,
        path="/",
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )


def delete_host_cookie(request: Request, response: Response, name: str) -> None:
    """Delete a cookie of this host."""
    response.delete_cookie(
        host_cookie(request, name), path="/", httponly=True, samesite="lax", secure=is_secure(request)
    )


class Form:
    """The fields of a posted form."""

    def __init__(self, fields: dict[str, list[str]]) -> None:
        self._fields = fields

    def get(self, name: str) -> str:
        """Return the value of a field, or an empty string if it is missing."""
        return self._fields.get(name, [""])[0].strip()

    def id(self, name: str) -> UUID | None:
        """Return the id in a field, or None if it is empty or missing."""
        try:
            return UUID(self.get(name)) if self.get(name) else None
        except ValueError:
            raise Invalid(f"{name} must be an id", code="invalid_form") from None

    def all(self, name: str) -> list[str]:
        """Return all values of a field that may occur several times."""
        return self._fields.get(name, [])

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the first values of all fields whose name starts with this, by full name."""
        return {name: self.get(name) for name in self._fields if name.startswith(prefix)}


async def read(request: Request, caller: Caller) -> Form:
    """Read a posted form and check that it comes from a page of this dashboard."""
    _check_origin(request)
    body = await read_body(request, request.app.state.limits)
    try:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise Invalid("the request body is not a form", code="invalid_form") from error
    form = Form(fields)
    given = request.cookies.get(COOKIE, "")[:100]
    if not given or not hmac.compare_digest(_token(given, caller).encode(), form.get(FIELD).encode()):
        raise Forbidden(
            "the form has expired or comes from another site", code="cross_site", hint="Reload the page."
        )
    return form


def _check_origin(request: Request) -> None:
    """Reject requests that the browser marks as cross-site. Requests without a mark still need the token."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    # Compare hosts only: behind a proxy the scheme may be unknown.
    is_other = origin is not None and origin.partition("://")[2] != request.headers.get("host", "")
    if site not in (None, "same-origin", "none") or (site is None and is_other):
        raise Forbidden("the request comes from another site", code="cross_site")


def local(target: str) -> str:
    """Return the target if it is a path within the dashboard, otherwise "/"."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "/"
    is_local = target.startswith("/") and not target.startswith(("//", "/\\")) and not parts.netloc
    return target if is_local and not parts.scheme and target.isprintable() and "\\" not in target else "/"
