"""Browser sessions: a signed cookie identifies the user until it expires.

Sessions are stateless. All of them end when the process ends, because the secret lives in its memory, except
in `penstock dev`, which keeps the secret in a file. The database checks permissions on every request, as with
any other credential.

A browser also sends cookies with requests that other pages trigger. `SameSite` blocks other sites, but not
other ports of the same host. So a request that may change something must come from one of our own pages,
which the browser states in `Sec-Fetch-Site` or `Origin`.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import jwt
from fastapi import Request, Response

from penstock.errors import Forbidden, Unauthenticated

SECONDS = 8 * 3600
"""Lifetime of a session: a working day."""

_READING = ("GET", "HEAD", "OPTIONS")


class Sessions:
    """Creates and verifies session cookies. Without it, cookies are not credentials."""

    def __init__(self, cookie: str = "penstock_session", secret: bytes | None = None) -> None:
        self._cookie = cookie
        self._secret = secret or secrets.token_bytes(32)

    def begin(self, response: Response, claims: dict[str, Any]) -> None:
        """Log the browser in with these claims."""
        value = jwt.encode({**claims, "exp": int(time.time()) + SECONDS}, self._secret, "HS256")
        # Not `secure`, because sessions are for loopback addresses without TLS.
        response.set_cookie(self._cookie, value, max_age=SECONDS, path="/", httponly=True, samesite="strict")

    def end(self, response: Response) -> None:
        """Log the browser out."""
        response.delete_cookie(self._cookie, path="/", httponly=True, samesite="strict")

    def claims(self, request: Request) -> dict[str, Any] | None:
        """The claims of the request's session; None if it has no cookie.

        Raises Unauthenticated if the session is invalid or expired, Forbidden if another page sent the
        request.
        """
        value = request.cookies.get(self._cookie)
        if value is None:
            return None
        try:
            claims = jwt.decode(value, self._secret, algorithms=["HS256"], options={"require": ["exp"]})
        except jwt.PyJWTError as error:
            raise Unauthenticated("the session has expired", hint="Log in again.") from error
        if request.method not in _READING and not _is_from_own_page(request):
            raise Forbidden("cross-site request rejected", code="cross_site")
        return claims


def _is_from_own_page(request: Request) -> bool:
    """Whether `Sec-Fetch-Site` or `Origin` names our own origin and neither names another."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return bool(site or origin) and site in (None, "same-origin") and origin in (None, own)
