"""The MCP server: tools for language models, over stdio or HTTP. It holds no rights of its own: it calls the
HTTP API with the caller's key, so roles, limits and row-level security are those of the API."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from penstock import __version__, extras
from penstock.client import AsyncClient
from penstock.errors import Invalid, Unauthenticated

with extras.required():
    import uvicorn
    from mcp.server.mcpserver import Context, MCPServer
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.datastructures import Headers
    from starlette.responses import JSONResponse
    from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.mcp import tools
from penstock.mcp.answers import INSTRUCTIONS

VERBS = ("start", "retry", "pause", "resume", "cancel")
"""What may be allowed. Without any, the server only reads."""
_BEARER = re.compile(r"Bearer ([\x21-\x7e]{1,8192})")


def allowed(names: Iterable[str]) -> frozenset[str]:
    """The verbs of these names."""
    chosen = frozenset(names)
    if unknown := sorted(chosen.difference(VERBS)):
        raise Invalid(f"unknown action {unknown[0]!r}: allowed are {', '.join(VERBS)}", code="invalid_verb")
    return chosen


async def run_stdio(url: str | None, key: str | None, verbs: frozenset[str]) -> None:
    """Serve the process at the other end of standard input and output, with this key."""
    async with AsyncClient(url, key) as client:
        server = _server(lambda _: tools.shared(client), verbs)
        await server.run_stdio_async()


def application(url: str | None, verbs: frozenset[str]) -> ASGIApp:
    """The application for HTTP. Each request brings the key of its caller; the server has none."""
    # Fails now if the address is missing or invalid.
    AsyncClient(url, "unused")

    @asynccontextmanager
    async def opening(ctx: Context[Any, Any]) -> AsyncGenerator[AsyncClient]:
        async with AsyncClient(url, _key(ctx.headers)) as client:
            yield client

    server = _server(opening, verbs)
    # Pages of other hosts have no key, and a request without a key is rejected first.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return RequireKey(server.streamable_http_app(stateless_http=True, transport_security=security))


def run_http(url: str | None, verbs: frozenset[str], listening: socket.socket) -> None:
    """Serve over HTTP at `/mcp` until stopped."""
    config = uvicorn.Config(application(url, verbs), log_level="warning", server_header=False)
    uvicorn.Server(config).run(sockets=[listening])


class RequireKey:
    """Rejects requests without a key before anything reads them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                _key(Headers(scope=scope))
            except Unauthenticated as error:
                answer = {"code": error.code, "message": error.message}
                response = JSONResponse(answer, 401, headers={"WWW-Authenticate": "Bearer"})
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _key(headers: Mapping[str, str] | None) -> str:
    found = _BEARER.fullmatch((headers or {}).get("authorization") or "")
    if found is None:
        raise Unauthenticated("send a Penstock key: Authorization: Bearer KEY")
    return found[1]


def _server(opening: tools.Opening, verbs: frozenset[str]) -> MCPServer[Any]:
    # Clients read the log level as theirs; the process logs to stderr.
    server: MCPServer[Any] = MCPServer(
        "penstock", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    tools.add_to(server, opening, verbs)
    return server
