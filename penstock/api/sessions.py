"""Sessions of browsers: a signed cookie says who is logged in, for a while.

Nothing is kept here. A session ends with its time, and for all when the process that holds the secret does;
what its user may see and do is asked of the database each time, as with any other credential.

A browser sends a cookie by itself, also when a page of somebody else makes it send a request. `SameSite`
stops other sites, but not other ports of the same host. So whatever may change something must come from a
page of our own, and the browser says whether it does.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import jwt
from fastapi import Request, Response

from penstock.errors import Forbidden, Unauthenticated

SECONDS = 8 * 3600
"""How long a session lasts: a working day."""

_READING = ("GET", "HEAD", "OPTIONS")


class Sessions:
    """Begins sessions, and finds them again. Without one of these, no cookie is a credential."""

    def __init__(self, cookie: str = "penstock_session") -> None:
        self._cookie = cookie
        self._secret = secrets.token_bytes(32)

    def begin(self, response: Response, claims: dict[str, Any]) -> None:
        """Log the browser that gets this response in as the caller with these claims."""
        value = jwt.encode({**claims, "exp": int(time.time()) + SECONDS}, self._secret, "HS256")
        # Not `secure`: loopback, where this is for, has no TLS.
        response.set_cookie(self._cookie, value, max_age=SECONDS, path="/", httponly=True, samesite="strict")

    def end(self, response: Response) -> None:
        """Log the browser that gets this response out."""
        response.delete_cookie(self._cookie, path="/", httponly=True, samesite="strict")

    def claims(self, request: Request) -> dict[str, Any] | None:
        """The claims of the session that a request belongs to; None if it brings no cookie.

        Raises Unauthenticated for a session that is over or none of ours, Forbidden for a request that
        another page made.
        """
        value = request.cookies.get(self._cookie)
        if value is None:
            return None
        try:
            claims = jwt.decode(value, self._secret, algorithms=["HS256"], options={"require": ["exp"]})
        except jwt.PyJWTError as error:
            raise Unauthenticated("the session is over", hint="Log in again.") from error
        if request.method not in _READING and not _is_from_own_page(request):
            raise Forbidden("the request does not come from a page of this address", code="cross_site")
        return claims


def _is_from_own_page(request: Request) -> bool:
    """Whether the browser says so, in the one header or the other, and in neither otherwise."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    return bool(site or origin) and site in (None, "same-origin") and origin in (None, own)
