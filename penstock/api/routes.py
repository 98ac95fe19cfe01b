"""What every route under /api does before and after its own part.

In this order: who is asking, may they ask this much, read all they send, and only then take a connection; one
transaction as that caller for everything; the same answer to the same POST with the same key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from penstock import db
from penstock.api.callers import Caller, Callers, shown
from penstock.api.limits import Limits, Rate, read_body, read_json
from penstock.errors import Conflict, Forbidden, Invalid, Unauthenticated

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Finding = Callable[[Request], str | None]
"""Finds the credential that a request shows."""

_REFUSALS: dict[int, str] = {
    401: "Nobody is logged in, or the credential is not good.",
    403: "The caller's role does not allow it.",
    404: "It is not there, or not the caller's.",
    408: "The request came too slowly.",
    409: "It does not fit the present state, or the idempotency key was used for another request.",
    413: "The request is too large.",
    422: "The request is not valid.",
    429: "Too much at once, or a quota is used up: wait as `Retry-After` says.",
    503: "The database cannot answer now. Try again with the same idempotency key.",
}
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "Why a request was refused (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "What exactly was wrong; stable."},
        "hint": {"type": "string", "description": "What to do about it."},
        "field": {"type": "string", "description": "Which part of the request it is about."},
        "errors": {
            "type": "array",
            "description": "All parts that are not well formed, the first of them above.",
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
    for status, text in _REFUSALS.items()
}


# What every route takes beside its own, and gives: for the description.
_CONDITIONAL: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "The `ETag` of an earlier answer: what has not changed is not sent again.",
            "schema": {"type": "string"},
        }
    ],
    "responses": {"304": {"description": "It is what the caller has."}},
}
_IDEMPOTENT: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "The same request again with the same key gets the same answer, for a day.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        }
    ]
}


class Route(APIRoute):
    """A route of the API."""

    is_for_service = False
    """Whether users are refused before anything is looked at."""
    is_key_passed_on = False
    """Whether the route hands the idempotency key to a function that keeps it itself."""
    hidden: tuple[str, ...] = ()
    """Fields of the answer that are not kept for a second time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.methods == {"GET"}:
            self.openapi_extra = _CONDITIONAL
        elif not self.is_key_passed_on:
            self.openapi_extra = _IDEMPOTENT

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            callers: Callers = request.app.state.callers
            limits: Limits = request.app.state.limits
            caller = await self._caller(request)
            body = await read_body(request, limits)
            again = _with_body(request, body)
            if self.body_field is not None and body:
                # The framework takes what has been read already.
                again._json = read_json(body, limits)  # pyright: ignore[reportPrivateUsage]
            is_read = request.method == "GET"
            async with callers.acting(caller, read_only=is_read) as held:
                request.state.held = held
                if is_read:
                    return _tagged(request, await handle(again))
                key = request.headers.get("idempotency-key")
                if key is None or self.is_key_passed_on:
                    return await handle(again)
                return await self._once(held, key, again, body, handle)

        return answer

    async def _caller(self, request: Request) -> Caller:
        caller = await admitted(request)
        if self.is_for_service and caller.role != "service_role":
            raise Forbidden("this is for the service")
        return caller

    async def _once(
        self, held: db.Connection, key: str, request: Request, body: bytes, handle: Handler
    ) -> Response:
        """The answer to a request with a key: what was answered before, if it was asked before."""
        asked = b"\n".join(
            (request.method.encode(), f"{request.url.path}?{request.url.query}".encode(), body)
        )
        before = await db.value(held, "begin_request", p_key=key, p_digest=sha256(asked).digest())
        if before is not None:
            if before["status"] is None:
                raise Conflict("the request with this key has not been answered", code="conflict")
            replayed = {"Idempotency-Replayed": "true"}
            if before["answer"] is None:
                return Response(status_code=before["status"], headers=replayed)
            return JSONResponse(before["answer"], before["status"], replayed)
        response = await handle(request)
        content: Any = json.loads(bytes(response.body)) if response.body else None
        for name in self.hidden:
            content[name] = None
        await db.call(
            held, "end_request", p_key=key, p_status=response.status_code, p_answer=db.Json(content)
        )
        return response


async def asking(request: Request, *, is_service_limited: bool = True, find: Finding = shown) -> Caller:
    """Who is asking, if they have not asked too much. What nobody asks counts for their address.

    `find` knows of other places for a credential.
    """
    callers: Callers = request.app.state.callers
    rate: Rate = request.app.state.rate
    nobody = f"nobody:{request.client.host if request.client else ''}"
    is_new = False
    try:
        credential = find(request)
        if is_new := callers.is_new(credential):
            # It counts as nobody's until it is known whose it is: guesses cost no query each.
            rate.take(nobody)
        caller = await callers.of(request, credential)
    except Unauthenticated:
        if not is_new:
            rate.take(nobody)
        raise
    if is_new:
        rate.give(nobody)
    if caller.role != "service_role" or is_service_limited:
        rate.take(nobody if caller.role == "anon" else caller.name)
    request.state.caller = caller
    return caller


async def admitted(request: Request, find: Finding = shown) -> Caller:
    """Who is asking, if they may ask anything here, and now."""
    caller = await asking(request, find=find)
    if caller.role == "anon":
        raise Unauthenticated
    if caller.is_worker:
        raise Forbidden("a worker's key is for the worker's verbs only")
    if b"%00" in request.scope["query_string"]:
        for name, value in request.query_params.multi_items():
            if "\0" in value:
                text = f"{name[:100]} holds a NUL character"
                raise Invalid(text, code="unstorable_text", details={"field": name[:100]})
    return caller


class ServiceRoute(Route):
    """A route that only the service may use."""

    is_for_service = True


class StartRoute(Route):
    """A route whose function keeps the idempotency key, as start_job does for each tenant."""

    is_key_passed_on = True


class SecretRoute(Route):
    """A route whose answer holds a secret that is shown once."""

    hidden = ("secret",)


def router(tag: str, route: type[Route] = Route) -> APIRouter:
    """A router for one noun."""
    return APIRouter(prefix="/api", tags=[tag], route_class=route, responses=PROBLEMS)


# Async, though it awaits nothing: FastAPI would call it in a thread.
async def _held(request: Request) -> db.Connection:
    return request.state.held


Held = Annotated[db.Connection, Depends(_held)]
"""The connection, in a transaction as the caller."""


def _with_body(request: Request, body: bytes) -> Request:
    """The request again, whose body is at hand."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


def tag_of(content: bytes) -> str:
    """The ETag of this content."""
    return f'"{sha256(content).hexdigest()[:32]}"'


def _tagged(request: Request, response: Response) -> Response:
    """The response with a tag of what is in it, or only the word that this is what the caller has."""
    if response.status_code != 200:
        return response
    tag = response.headers.get("etag") or tag_of(bytes(response.body))
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, apikey, Cookie"}
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return response
