"""Errors as problem documents (RFC 9457), from the one table in `penstock.errors`."""

from __future__ import annotations

import math
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from penstock.errors import Invalid, PenstockError, Unauthenticated, to_problem

MEDIA_TYPE = "application/problem+json"

logger = structlog.get_logger(__name__)


def add_to(app: FastAPI) -> None:
    """Let the application answer every error so."""
    app.add_exception_handler(PenstockError, _refused)
    app.add_exception_handler(RequestValidationError, _misunderstood)
    app.add_exception_handler(HTTPException, _plain)


def answer(error: PenstockError, request_id: str | None = None) -> JSONResponse:
    """The response that says this."""
    problem: dict[str, Any] = jsonable_encoder(to_problem(error))
    if is_from_postgres(error):
        problem["detail"] = problem["title"]
        problem.pop("hint", None)
    if request_id:
        problem["request_id"] = request_id
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None and math.isfinite(error.retry_after):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return JSONResponse(problem, error.status, headers, MEDIA_TYPE)


def unexpected(request_id: str | None) -> JSONResponse:
    """The response to a bug: it says nothing of what happened, the log does."""
    return answer(PenstockError("This is a mistake of ours, and it has been logged."), request_id)


def is_from_postgres(error: PenstockError) -> bool:
    """Whether the words are PostgreSQL's own: those name tables, logins, addresses. Our functions' do not."""
    cause: Any = error.__cause__
    sqlstate = getattr(cause, "sqlstate", "")
    if cause is None or sqlstate == "" or (sqlstate or "").startswith("PT"):
        return False
    return error.message in (str(cause), cause.diag.message_primary)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    if error.status >= 500:
        logger.error("request failed", code=error.code, exc_info=error)
    return answer(error, getattr(request.state, "request_id", None))


async def _misunderstood(request: Request, error: Exception) -> Response:
    """Says where and what, never what was sent: it may be a secret in the wrong place."""
    assert isinstance(error, RequestValidationError)
    found = cast("list[dict[str, Any]]", error.errors())
    errors = [{"field": _path(one["loc"]), "message": one["msg"]} for one in found[:20]]
    first = errors[0]
    problem: dict[str, Any] = {
        "type": "about:blank",
        "title": "The request is not valid.",
        "status": 422,
        "detail": f"{first['field']}: {first['message']}",
        "code": "invalid",
        "field": first["field"],
        "errors": errors,
    }
    if request_id := getattr(request.state, "request_id", None):
        problem["request_id"] = request_id
    return JSONResponse(problem, 422, {"Cache-Control": "no-store"}, MEDIA_TYPE)


def _path(location: tuple[Any, ...]) -> str:
    """`tasks[3].kind`, without the `body` or `query` it was found in."""
    path = ""
    for part in location[1:] or location:
        path += f"[{part}]" if isinstance(part, int) else f".{str(part)[:100]}"
    return path.lstrip(".")


async def _plain(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: an unknown path, a wrong method, a body that is not JSON."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        unreadable = Invalid("the body is not JSON", details={"field": "body"})
        return answer(unreadable, getattr(request.state, "request_id", None))
    problem: dict[str, Any] = {
        "type": "about:blank",
        "title": error.detail,
        "status": error.status_code,
        "detail": error.detail,
        "code": {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid"),
    }
    if request_id := getattr(request.state, "request_id", None):
        problem["request_id"] = request_id
    headers = dict(error.headers or {})
    if error.status_code == 405 and (methods := _methods(request)):
        headers["Allow"] = ", ".join(methods)
    return JSONResponse(problem, error.status_code, headers, MEDIA_TYPE)


def _methods(request: Request) -> list[str]:
    """The methods of all routes at this address; the framework names those of the first only."""
    path = getattr(request.scope.get("route"), "path_format", "")
    return sorted(method.upper() for method in request.app.openapi()["paths"].get(path, {}))
