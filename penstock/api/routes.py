"""What every route under /api does around its handler.

In this order: identify the caller, check the rate limit, read the whole body, and only then take a
connection; run the handler in one transaction as the caller. A write with a known idempotency key gets the
stored response.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from penstock.api.callers import Caller, Callers, shown
from penstock.api.limits import Limits, Rate, Rates, read_body, read_json, weigh
from penstock.errors import Conflict, Forbidden, Invalid, Unauthenticated
from penstock.postgres import db
from penstock.types import Scope

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
FindCredential = Callable[[Request], str | None]
"""Finds the credential of a request."""

_PROBLEM_TEXTS: dict[int, str] = {
    401: "Missing or invalid credentials.",
    402: "The plan of the tenant does not include it.",
    403: "The caller's role does not allow it.",
    404: "Not found, or not visible to the caller.",
    408: "The request did not arrive in time.",
    409: "The current state does not allow it, or the idempotency key was used for another request.",
    410: "It was deleted.",
    413: "The request is too large.",
    422: "The request is invalid.",
    429: "Rate limit reached or quota used up. Wait for the time in `Retry-After`.",
    503: "The database is unavailable. Retry with the same idempotency key.",
}
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "Why a request failed (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stable error code."},
        "hint": {"type": "string", "description": "How to fix it."},
        "field": {"type": "string", "description": "The field of the request that is invalid."},
        "errors": {
            "type": "array",
            "description": "All invalid fields; `detail` describes the first.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "request_id": {"type": "string"},
    },
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {
            "application/problem+json": {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "example": {
                    "type": "about:blank",
                    "title": text,
                    "status": status,
                    "detail": text,
                    "code": "…",
                },
            }
        },
    }
    for status, text in _PROBLEM_TEXTS.items()
}


# Headers and responses that all routes share, for the OpenAPI document.
_CONDITIONAL: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "The `ETag` of an earlier response. If nothing has changed, the response is 304.",
            "schema": {"type": "string"},
        }
    ],
    "responses": {"304": {"description": "Not changed since the given `ETag`."}},
}
_IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "Repeating the request with the same key returns the same response, for a day.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
    ]
}


class Route(APIRoute):
    """A route of the API."""

    is_for_service = False
    """Whether only service credentials are accepted."""
    is_export = False
    """Whether the request may take long, on a connection for exports."""
    has_one_statement = False
    """Whether the handler makes one statement, or each may be a transaction of its own: see `Calls`."""
    is_key_passed_on = False
    """Whether the handler passes the idempotency key to a function that stores it."""
    scope: Scope = "start"
    """The scope that a service key needs for requests that may change something."""
    hidden: tuple[str, ...] = ()
    """Fields of the response that are not stored for a replay."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.methods == {"GET"}:
            self.openapi_extra = _CONDITIONAL
        elif not self.is_key_passed_on:
            self.openapi_extra = _IDEMPOTENT

    def get_route_handler(self) -> Handler:
        handle = self.handler()

        async def answer(request: Request) -> Response:
            callers: Callers = request.app.state.callers
            limits: Limits = request.app.state.limits
            caller = await self._caller(request)
            with callers.counting(caller):
                body = await read_body(request, limits)
            again = with_body(request, body)
            if self.body_field is not None and body:
                # FastAPI uses the value that has already been parsed.
                sent = again._json = read_json(body, limits)  # pyright: ignore[reportPrivateUsage]
                await self.prepare(request, sent)
            is_read = request.method == "GET"
            open_database = (
                callers.calling(caller, read_only=is_read)
                if self.has_one_statement
                else callers.acting(caller, read_only=is_read, is_export=self.is_export)
            )
            async with open_database as conn:
                request.state.conn = conn
                if is_read:
                    response = _tagged(request, await handle(again))
                    weigh(request, len(getattr(response, "body", b"")))
                    return response
                key = request.headers.get("idempotency-key")
                if key is None or self.is_key_passed_on:
                    return await handle(again)
                return await self._once(conn, key, again, body, handle)

        return answer

    def handler(self) -> Handler:
        """What answers the request once the caller and its database are known: by default FastAPI."""
        return super().get_route_handler()

    async def prepare(self, request: Request, sent: Any) -> None:
        """Called with the parsed body before the transaction, for what takes long."""

    async def _caller(self, request: Request) -> Caller:
        caller = await admitted(request)
        if self.is_for_service and caller.role != "service_role":
            raise Forbidden("this requires a service credential")
        caller.require("read" if request.method == "GET" else self.scope)
        return caller

    async def _once(
        self, conn: db.Database, key: str, request: Request, body: bytes, handle: Handler
    ) -> Response:
        """Answer a request with an idempotency key: replay the stored response, if there is one."""
        content = b"\n".join(
            (request.method.encode(), f"{request.url.path}?{request.url.query}".encode(), body)
        )
        before = await db.value(conn, "begin_request", p_key=key, p_digest=sha256(content).digest())
        if before is not None:
            if before["status"] is None:
                raise Conflict("a request with this idempotency key is still in progress", code="conflict")
            replayed = {"Idempotency-Replayed": "true"}
            if before["answer"] is None:
                return Response(status_code=before["status"], headers=replayed)
            return JSONResponse(before["answer"], before["status"], replayed)
        response = await handle(request)
        answer: Any = json.loads(bytes(response.body)) if response.body else None
        for name in self.hidden:
            answer[name] = None
        await db.call(conn, "end_request", p_key=key, p_status=response.status_code, p_answer=db.Json(answer))
        return response


async def identify(
    request: Request, *, is_service_limited: bool = True, find: FindCredential = shown
) -> Caller:
    """Identify the caller and count the request against the rate limits of the caller and its tenant.

    Anonymous requests and unknown keys count against the client's address. `find` can look for the credential
    in other places.
    """
    callers: Callers = request.app.state.callers
    rate: Rate = request.app.state.rate
    anonymous = f"nobody:{request.client.host if request.client else ''}"
    is_new = False
    try:
        credential = find(request)
        if is_new := callers.is_new(credential):
            # Counts as anonymous until the key is verified, so that guessed keys do not reach the database.
            rate.take(anonymous)
        caller = await callers.of(request, credential)
    except Unauthenticated:
        if not is_new:
            rate.take(anonymous)
        raise
    if is_new:
        rate.give(anonymous)
    request.state.caller = caller
    if caller.role != "service_role" or is_service_limited:
        rate.take(anonymous if caller.role == "anon" else caller.name)
    if caller.tenant is not None:
        rates: Rates = request.app.state.rates
        rates.tenants.take(caller.share)
    return caller


async def admitted(request: Request, find: FindCredential = shown) -> Caller:
    """Identify the caller of an API request. Rejects anonymous callers and worker keys."""
    caller = await identify(request, find=find)
    if caller.role == "anon":
        raise Unauthenticated
    if caller.is_worker:
        raise Forbidden("a worker key can only call worker functions")
    if b"%00" in request.scope["query_string"]:
        for name, value in request.query_params.multi_items():
            if "\0" in value:
                text = f"{name[:100]} contains a NUL character"
                raise Invalid(text, code="unstorable_text", details={"field": name[:100]})
    return caller


class ServiceRoute(Route):
    """A route for service credentials only."""

    is_for_service = True
    scope = "admin"


class AdminRoute(Route):
    """A route that manages members, keys or the installation."""

    scope = "admin"


class ExportRoute(Route):
    """A route that exports many rows."""

    is_export = True


class StartRoute(Route):
    """A route whose SQL function stores the idempotency key, as start_job does per tenant."""

    is_key_passed_on = True


class DirectRoute(Route):
    """A route whose handler makes one statement, or a few that need no common transaction.

    It takes the request, its database and the converted parts of the path, and returns the response itself:
    FastAPI resolves no other parameters for it, which takes as long as such a handler.
    """

    has_one_statement = True

    def handler(self) -> Handler:
        async def handle(request: Request) -> Response:
            return await self.endpoint(request, request.state.conn, **request.path_params)

        return handle


class SecretRoute(AdminRoute):
    """A route whose response contains a secret that is shown once."""

    hidden = ("secret",)


def router(tag: str, route: type[Route] = Route) -> APIRouter:
    """A router under /api with the common responses."""
    return APIRouter(prefix="/api", tags=[tag], route_class=route, responses=PROBLEMS)


# Async, because FastAPI would run a sync dependency in a thread.
async def _conn(request: Request) -> db.Connection:
    return request.state.conn


Conn = Annotated[db.Connection, Depends(_conn)]
"""The request's connection, in a transaction as the caller."""

Calls = Annotated[Any, Depends(_conn)]
"""The request's database, on which each statement is a transaction as the caller."""


def with_body(request: Request, body: bytes) -> Request:
    """A copy of the request with this body."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


def tag_of(content: bytes) -> str:
    """The ETag of this content."""
    return f'"{sha256(content).hexdigest()[:32]}"'


def _tagged(request: Request, response: Response) -> Response:
    """Add an ETag to the response, or replace it with 304 if the caller has this version."""
    if response.status_code != 200:
        return response
    tag = response.headers.get("etag") or tag_of(bytes(response.body))
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, apikey, Cookie"}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response
