"""What `penstock dev` adds to the API: a login for whoever started it, and walls around that.

Whoever has the token is the developer, without a password. So nothing is answered that could have come from
another machine: not by another name for this one (a site whose name leads to 127.0.0.1 all of a sudden), and
not through a proxy.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from uuid import UUID

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api import problems
from penstock.api.limits import Rate
from penstock.api.sessions import Sessions
from penstock.errors import Forbidden, Unauthenticated
from penstock.settings import is_loopback

HOME = "/dashboard/"
"""Where a login leads to."""

_PROXIES = ("forwarded", "via", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Development:
    """Who is logged in, and by what."""

    user_id: UUID
    cookie: str
    """The session's name. Cookies know hosts but not ports, and there may be another of us on this one."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """What `/dev/login` asks for. Other users of this machine can reach the port as well."""


def add_to(app: FastAPI, development: Development) -> Sessions:
    """Add the login and the walls; gives the sessions that the login begins."""
    sessions = Sessions(development.cookie)
    router = APIRouter(prefix="/dev", include_in_schema=False)

    @router.get("/login")
    async def log_in(request: Request, token: str = "") -> Response:
        if not secrets.compare_digest(token.encode(), development.token.encode()):
            rate: Rate = request.app.state.rate
            rate.take(f"nobody:{request.client.host if request.client else ''}")
            raise Unauthenticated("this is not the link", hint="Open the one that `penstock dev` printed.")
        response = RedirectResponse(
            HOME, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        )
        sessions.begin(response, {"role": "authenticated", "sub": str(development.user_id)})
        return response

    app.include_router(router)
    app.add_middleware(_Walls)
    return sessions


class _Walls:
    """Lets in what this machine sends to itself, and nothing else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_local(scope):
            await self._app(scope, receive, send)
            return
        refusal = Forbidden(
            "`penstock dev` answers nobody but this machine, directly and by the name of localhost",
            code="not_local",
            hint="`penstock serve` is for others.",
        )
        await problems.answer(refusal, scope.get("state", {}).get("request_id"))(scope, receive, send)


def _is_local(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    client = scope.get("client")
    hosts = headers.getlist("host")
    return (
        (client is None or is_loopback(client[0]))
        and len(hosts) == 1
        and is_loopback(_without_port(hosts[0].lower()))
        and not any(name.startswith("x-forwarded") or name in _PROXIES for name in headers)
    )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
