"""The addresses that the server answers under, and HSTS.

A request whose `Host` header names another host is rejected: it comes through DNS rebinding, or from a proxy
that passes on what the client sent, and links made from it would lead elsewhere.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api import problems
from penstock.errors import Forbidden
from penstock.settings import Settings

HSTS = "max-age=31536000"
_PROBES = ("/healthz", "/readyz")


class Hosts:
    """Middleware that checks the `Host` header and adds HSTS behind TLS."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = frozenset(settings.allowed_hosts)
        self._is_secure = (settings.public_url or "").startswith("https://")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_secure = self._is_secure or scope.get("scheme") == "https"

        async def sending(message: Message) -> None:
            if is_secure and message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Strict-Transport-Security", HSTS)
            await send(message)

        if self._hosts and scope["path"] not in _PROBES and not self._is_known(Headers(scope=scope)):
            refusal = Forbidden(
                "the Host header names a host that this server does not serve",
                code="unknown_host",
                hint="Add it to PENSTOCK_ALLOWED_HOSTS.",
            )
            await problems.answer(refusal, scope.get("state", {}).get("request_id"))(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    def _is_known(self, headers: Headers) -> bool:
        given = headers.getlist("host")
        return len(given) == 1 and _name(given[0]) in self._hosts


def _name(host: str) -> str:
    """The host without its port."""
    name = host.lower()
    return name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
