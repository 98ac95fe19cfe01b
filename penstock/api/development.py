"""What `penstock dev` adds to the API: a login for the developer, and protection for it.

The developer is an operator, who sees everything, and can switch to the view of an owner of the tenant.

The login token replaces a password. So every request that could come from another machine is rejected:
requests through a proxy, and requests under a host name other than localhost (DNS rebinding).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from urllib.parse import parse_qs
from uuid import UUID

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api import problems
from penstock.api.limits import Rate, read_body
from penstock.api.sessions import Sessions
from penstock.errors import Forbidden, Unauthenticated
from penstock.settings import is_loopback

HOME = "/dashboard/"
"""Page to open after the login."""

_PROXIES = ("forwarded", "via", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Development:
    """The developer's user id, session cookie and login token."""

    user_id: UUID
    cookie: str
    """Name of the session cookie. Contains the port, because cookies are shared by all ports of a host."""
    tenant: str = "default"
    """Name of the tenant that `user_id` is an owner of."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The token for `/dev/login`. Needed because other users of this machine can reach the port."""
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs the sessions. The same secret keeps the browser logged in across restarts."""

    def claims(self, view: str) -> dict[str, str]:
        """The claims of an operator, who sees all tenants, or of an owner of the tenant."""
        role = "authenticated" if view == "tenant" else "service_role"
        return {"role": role, "sub": str(self.user_id)}


def add_to(app: FastAPI, development: Development) -> Sessions:
    """Add the login and the protection. Returns the sessions that the login creates."""
    sessions = Sessions(development.cookie, development.secret)
    app.state.developer = development
    router = APIRouter(prefix="/dev", include_in_schema=False)

    @router.get("/login")
    async def log_in(request: Request, token: str = "") -> Response:
        if not secrets.compare_digest(token.encode(), development.token.encode()):
            rate: Rate = request.app.state.rate
            rate.take(f"nobody:{request.client.host if request.client else ''}")
            raise Unauthenticated("invalid login link", hint="Open the link that `penstock dev` printed.")
        response = RedirectResponse(
            HOME, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        )
        sessions.begin(response, development.claims("operator"))
        return response

    @router.post("/view")
    async def view_as(request: Request) -> Response:
        """View the dashboard as the operator or as an owner of the tenant."""
        if sessions.claims(request) is None:
            raise Unauthenticated("not logged in", hint="Open the link that `penstock dev` printed.")
        form = parse_qs((await read_body(request, request.app.state.limits)).decode("utf-8", "replace"))
        response = RedirectResponse(HOME, 303, {"Cache-Control": "no-store"})
        sessions.begin(response, development.claims(form.get("as", [""])[0]))
        return response

    app.include_router(router)
    app.add_middleware(_LocalOnly)
    return sessions


class _LocalOnly:
    """Middleware that rejects requests from other machines."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_local(scope):
            await self._app(scope, receive, send)
            return
        refusal = Forbidden(
            "`penstock dev` accepts requests only from this machine, to localhost and without a proxy",
            code="not_local",
            hint="Use `penstock serve` to serve other machines.",
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
