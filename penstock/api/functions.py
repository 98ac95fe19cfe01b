"""HTTP functions of the app at `/functions/v1/{name}`, as Supabase clients call Edge Functions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter, FastAPI, Request, Response

from penstock.api.artifacts import storage_of
from penstock.api.callers import ANON, Caller, Callers
from penstock.api.limits import Limits, read_body
from penstock.api.routes import PROBLEMS, identify
from penstock.errors import Forbidden, NotFound, PenstockError, Unauthenticated, Unavailable
from penstock.sdk.app import App
from penstock.sdk.functions import METHODS, Function, FunctionRequest, FunctionResponse

router = APIRouter(prefix="/functions/v1", include_in_schema=False)

_SERVICE = Caller("service_role", {"role": "service_role"})
# A function's response must not run scripts on this origin, where the dashboard is.
_GUARDS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}


@router.api_route("/{name}", methods=[*METHODS])
async def invoke(request: Request, name: str) -> Response:
    """Call a function of the app."""
    app: App | None = request.app.state.app
    function = app.functions.get(name) if app else None
    caller = await _caller(request, function)
    if function is None:
        raise NotFound(f"there is no function named {name[:100]!r}", code="unknown_function")
    if request.method not in function.methods:
        text = f"{name} accepts {', '.join(function.methods)} (got {request.method})"
        return _problem(request, PenstockError(text, code="method_not_allowed"), 405, function)
    limits: Limits = request.app.state.limits
    body = await read_body(request, replace(limits, body_bytes=function.max_bytes))
    try:
        async with asyncio.timeout(function.timeout):
            given = await function.handler(_request(request, function, caller, body))
    except TimeoutError as error:
        text = f"the function {name} did not finish within {function.timeout:g} seconds"
        raise Unavailable(text, code="function_timeout") from error
    return _response(given)


async def _caller(request: Request, function: Function | None) -> Caller:
    """The caller, counted against its rate limit. An open function takes anyone."""
    if function is not None and function.is_open:
        try:
            return await identify(request)
        except Unauthenticated:
            # The sender may use this header for its own credential. The request counted as anonymous.
            return ANON
    caller = await identify(request)
    if caller.role == "anon":
        raise Unauthenticated
    # A function may do anything, so the scope of a key is checked by the method.
    scope = "read" if request.method == "GET" else "start"
    if caller.scopes is not None and scope not in caller.scopes:
        raise Forbidden(
            f"the API key does not have the scope {scope}", code="missing_scope", details={"scope": scope}
        )
    return caller


def _request(request: Request, function: Function, caller: Caller, body: bytes) -> FunctionRequest:
    callers: Callers = request.app.state.callers
    sub = caller.claims.get("sub")
    return FunctionRequest(
        name=function.name,
        method=request.method,
        headers=dict(request.headers),
        query=dict(request.query_params),
        body=body,
        role=caller.role,
        user_id=UUID(sub) if sub and caller.role == "authenticated" else None,
        request_id=request.state.request_id,
        base_url=str(request.base_url),
        acting=partial(callers.acting, caller),
        service=partial(callers.acting, _SERVICE),
        storage=partial(storage_of, request),
        pool=request.app.state.service_pool,
        settings=request.app.state.settings,
        address=request.client.host if request.client else None,
    )


def _response(given: FunctionResponse) -> Response:
    headers = {**_GUARDS, **given.headers}
    if given.body is not None:
        headers.setdefault("Content-Type", "application/octet-stream")
        return Response(given.body, given.status, headers)
    if given.json is None and given.status in (204, 304):
        return Response(status_code=given.status, headers=headers)
    content = json.dumps(given.json, default=str).encode()
    return Response(content, given.status, headers, "application/json; charset=utf-8")


def _problem(request: Request, error: PenstockError, status: int, function: Function) -> Response:
    body = {
        "type": "about:blank",
        "title": "Method Not Allowed",
        "status": status,
        "detail": error.message,
        "code": error.code,
        "request_id": request.state.request_id,
    }
    headers = {"Allow": ", ".join(function.methods), "Cache-Control": "no-store"}
    return Response(json.dumps(body), status, headers, "application/problem+json")


def describe(made: FastAPI, document: dict[str, Any]) -> None:
    """Add the app's functions to the OpenAPI document."""
    app: App | None = made.state.app
    for function in app.functions.values() if app else ():
        operations: dict[str, Any] = {}
        for method in function.methods:
            operation: dict[str, Any] = {
                "tags": ["functions"],
                "summary": (function.handler.__doc__ or function.name).strip().split("\n")[0],
                "operationId": f"{function.name}_{method.lower()}",
                "responses": {"200": {"description": "The function's response."}}
                | {str(status): PROBLEMS[status] for status in (401, 403, 413, 429, 503)},
            }
            if method != "GET":
                operation["requestBody"] = {"content": {"application/json": {"schema": {}}}}
            if function.is_open:
                operation["security"] = []
            operations[method.lower()] = operation
        document["paths"][f"/functions/v1/{function.name}"] = operations
