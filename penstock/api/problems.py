"""Errors as problem documents (RFC 9457), mapped by the table in `penstock.errors`."""

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
    """Answer every error of the application with a problem document."""
    app.add_exception_handler(PenstockError, _penstock_error)
    app.add_exception_handler(RequestValidationError, _validation_failed)
    app.add_exception_handler(HTTPException, _http_error)


def answer(error: PenstockError, request_id: str | None = None, *, status: int | None = None) -> JSONResponse:
    """The response for an error, with the error's own HTTP status or another one."""
    status = status or error.status
    problem: dict[str, Any] = jsonable_encoder(to_problem(error)) | {"status": status}
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
    return JSONResponse(problem, status, headers, MEDIA_TYPE)


def unexpected(request_id: str | None) -> JSONResponse:
    """The response for a bug. It reveals no details; the log has them."""
    return answer(PenstockError("internal error; it has been logged"), request_id)


def is_from_postgres(error: PenstockError) -> bool:
    """Whether the message is PostgreSQL's own, which may name tables, logins or addresses."""
    cause: Any = error.__cause__
    sqlstate = getattr(cause, "sqlstate", "")
    if cause is None or sqlstate == "" or (sqlstate or "").startswith("PT"):
        return False
    return error.message in (str(cause), cause.diag.message_primary)


async def _penstock_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    if error.status >= 500:
        logger.error("request failed", code=error.code, exc_info=error)
    _count_storm(request, error)
    return answer(error, getattr(request.state, "request_id", None))


def _count_storm(request: Request, error: PenstockError) -> None:
    """Count failed logins and exceeded quotas, of which many are an alert."""
    storms = getattr(request.app.state, "storms", None)
    if storms is None:
        return
    if isinstance(error, Unauthenticated):
        storms.note(request, "failed_logins", f"address:{request.client.host if request.client else ''}")
    elif error.code == "quota_exceeded":
        tenant = getattr(getattr(request.state, "caller", None), "tenant", None)
        storms.note(request, "quota_refusals", f"tenant:{tenant}" if tenant else "service", tenant)


async def _validation_failed(request: Request, error: Exception) -> Response:
    """Name the field and the error but never repeat the value, which may be a misplaced secret."""
    assert isinstance(error, RequestValidationError)
    found = cast("list[dict[str, Any]]", error.errors())
    errors = [{"field": _path(one["loc"]), "message": one["msg"]} for one in found[:20]]
    first = errors[0]
    problem: dict[str, Any] = {
        "type": "about:blank",
        "title": "The request is invalid.",
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
    """The path of a field, such as `tasks[3].kind`, without the leading `body` or `query`."""
    path = ""
    for part in location[1:] or location:
        path += f"[{part}]" if isinstance(part, int) else f".{str(part)[:100]}"
    return path.lstrip(".")


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer errors of the framework: unknown path, wrong method, body that is not JSON."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        unreadable = Invalid("the body is not valid JSON", details={"field": "body"})
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
    """The methods of all routes at this path. The framework lists only those of the first route."""
    path = getattr(request.scope.get("route"), "path_format", "")
    return sorted(method.upper() for method in request.app.openapi()["paths"].get(path, {}))
