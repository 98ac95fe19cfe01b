"""Refusals in PostgREST's words: a status, and a body with exactly code, details, hint and message."""

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

# As PostgREST has it: a whole SQLSTATE wins over its class, and what is not here is the request's fault.
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


class Refused(Exception):
    """What PostgREST would refuse by itself, or passes on from the database."""

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
        """The answer that says this."""
        return JSONResponse(self.body, self.status, self.headers)


def missing_right(what: str, *, is_anon: bool) -> Refused:
    """A right that was not granted: who is nobody may log in, who is somebody may not."""
    return Refused(401 if is_anon else 403, "42501", f"permission denied for {what}")


def misread(message: str, details: str | None = None) -> Refused:
    """A part of the URL that cannot be understood."""
    return Refused(400, "PGRST100", message, details=details)


def shortened(name: str) -> str:
    """A name as it was sent, for a message: at most so long."""
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "…"


def refusal_of(error: Exception, *, is_anon: bool) -> Refused | None:
    """What an exception means to the caller; None when it is a mistake of ours."""
    if isinstance(error, Refused):
        return error
    cause: Any = error.__cause__ if isinstance(error, PenstockError) else error
    if sqlstate := getattr(cause, "sqlstate", None):
        return _of_database(sqlstate, cause.diag, is_anon=is_anon)
    match error:
        case ClientDisconnect():
            return Refused(400, "PGRST102", "The request ended early")
        case Unauthenticated():
            return Refused(401, "PGRST301", error.message, hint=error.hint)
        case Unavailable():
            # Where and how the database could not be reached is not the caller's business.
            return Refused(503, "PGRST001", "The database cannot answer now. Try again.")
        case PenstockError():
            details = json.dumps({"code": error.code, **error.details}, default=str)
            return _ours(error.status, error.message, details, error.hint)
        case _:
            return None


def _of_database(sqlstate: str, diag: Any, *, is_anon: bool) -> Refused:
    message: str = diag.message_primary or ""
    if found := _OURS.fullmatch(sqlstate):
        # Our functions chose these words for the caller.
        return _ours(int(found[1]), message, diag.message_detail, diag.message_hint)
    if sqlstate == "42501":
        return Refused(401 if is_anon else 403, sqlstate, message)
    status = _STATUS_OF_SQLSTATE.get(sqlstate) or _STATUS_OF_CLASS.get(sqlstate[:2]) or 400
    if status >= 500 and sqlstate != "57014":
        # PostgreSQL's own words about itself may name files, addresses and logins.
        message = "The database cannot answer this now. Try again."
    # PostgreSQL's detail may hold values of rows that the caller may not see.
    return Refused(status, sqlstate, message)


def _ours(status: int, message: str, details: str | None, hint: str | None) -> Refused:
    refused = Refused(status, f"PT{status}", message, details=details, hint=hint)
    if (seconds := _retry_after(details)) is not None:
        refused.headers["Retry-After"] = str(seconds)
    return refused


def _retry_after(detail: str | None) -> int | None:
    try:
        found: Any = json.loads(detail or "{}")
        seconds = float(
            found["retry_after_seconds"] if "retry_after_seconds" in found else found["retry_after"]
        )
    except (ValueError, TypeError, KeyError):
        return None
    return max(1, math.ceil(seconds)) if math.isfinite(seconds) else None
