"""Errors in PostgREST's format: a status, and a body with exactly code, details, hint and message."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from penstock.errors import PenstockError, Unauthenticated, Unavailable

_OURS = re.compile(r"PT([1-5]\d\d)")
_LONGEST_NAME = 100

# PostgREST's mapping: a full SQLSTATE takes precedence over its class; all others are 400.
_STATUS_OF_SQLSTATE = {
    "23503": 409,
    "23505": 409,
    "25006": 405,
    "42883": 404,
    "42P01": 404,
    "42P17": 500,
    "53400": 500,
    "57P01": 503,
    "P0001": 400,
}
_STATUS_OF_CLASS = {
    "08": 503,
    "09": 500,
    "0L": 403,
    "0P": 403,
    "25": 500,
    "28": 403,
    "2D": 500,
    "38": 500,
    "39": 500,
    "3B": 500,
    "40": 500,
    "53": 503,
    "54": 500,
    "55": 500,
    "57": 500,
    "58": 500,
    "F0": 500,
    "HV": 500,
    "P0": 500,
    "XX": 500,
}


class RestError(Exception):
    """An error of PostgREST itself, or one it passes on from the database."""

    def __init__(
        self, status: int, code: str, message: str, *, details: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"code": code, "details": details, "hint": hint, "message": message}
        self.headers: dict[str, str] = {
            "Cache-Control": "no-store",
            "Proxy-Status": f"PostgREST; error={code}",
        }
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"

    def response(self) -> JSONResponse:
        """The HTTP response for this error."""
        return JSONResponse(self.body, self.status, self.headers)


def permission_denied(what: str, *, is_anon: bool) -> RestError:
    """A missing permission: 401 for anonymous callers, who can log in, and 403 for others."""
    return RestError(401 if is_anon else 403, "42501", f"permission denied for {what}")


def parse_error(message: str, details: str | None = None) -> RestError:
    """A part of the URL that cannot be parsed."""
    return RestError(400, "PGRST100", message, details=details)


def shortened(name: str) -> str:
    """Shorten a name for an error message."""
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"


def error_for(error: Exception, *, is_anon: bool) -> RestError | None:
    """The error to report for an exception; None if it is a bug."""
    if isinstance(error, RestError):
        return error
    cause: Any = error.__cause__ if isinstance(error, PenstockError) else error
    if sqlstate := getattr(cause, "sqlstate", None):
        return _of_database(sqlstate, cause.diag, is_anon=is_anon)
    match error:
        case ClientDisconnect():
            return RestError(400, "PGRST102", "The client disconnected before the request was complete")
        case Unauthenticated():
            return RestError(401, "PGRST301", error.message, hint=error.hint)
        case Unavailable():
            # Do not reveal the address of the database.
            return RestError(503, "PGRST001", "The database is unavailable. Try again.")
        case PenstockError():
            details = json.dumps({"code": error.code, **error.details}, default=str)
            return _ours(error.status, error.message, details, error.hint)
        case _:
            return None


def _of_database(sqlstate: str, diag: Any, *, is_anon: bool) -> RestError:
    message: str = diag.message_primary or ""
    if found := _OURS.fullmatch(sqlstate):
        # Penstock's functions word these messages for callers.
        return _ours(int(found[1]), message, diag.message_detail, diag.message_hint)
    if sqlstate == "42501":
        return RestError(401 if is_anon else 403, sqlstate, message)
    status = _STATUS_OF_SQLSTATE.get(sqlstate) or _STATUS_OF_CLASS.get(sqlstate[:2]) or 400
    if status >= 500 and sqlstate != "57014":
        # PostgreSQL's own messages may name files, addresses and logins.
        message = "The database is unavailable. Try again."
    # PostgreSQL's detail may contain values of rows that the caller may not see.
    return RestError(status, sqlstate, message)


def _ours(status: int, message: str, details: str | None, hint: str | None) -> RestError:
    error = RestError(status, f"PT{status}", message, details=details, hint=hint)
    if (seconds := _retry_after(details)) is not None:
        error.headers["Retry-After"] = str(seconds)
    return error


def _retry_after(detail: str | None) -> int | None:
    try:
        found: Any = json.loads(detail or "{}")
        seconds = float(
            found["retry_after_seconds"] if "retry_after_seconds" in found else found["retry_after"]
        )
    except (ValueError, TypeError, KeyError):
        return None
    return max(1, math.ceil(seconds)) if math.isfinite(seconds) else None
