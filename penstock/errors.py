"""Exceptions: one class for each way a caller can react.

    PenstockError            any other failure: read the message
     ├── Invalid             the request is invalid: correct it
     │    └── TooLarge       the request is too large: shrink it, or put the data in object storage
     ├── Unauthenticated     missing or invalid credentials: log in
     ├── Forbidden           no permission: ask someone who has it
     ├── UpgradeRequired     the tenant's plan does not include it: upgrade the plan
     ├── NotFound            it does not exist, or belongs to another tenant
     │    └── Gone           it existed and was deleted
     ├── Conflict            the current state or a used idempotency key does not allow it: check the state
     │    └── LeaseLost      another worker has the task: stop, and write nothing
     ├── Limited             rate limit reached: wait `retry_after` seconds
     ├── Unavailable         the database is unavailable: retry with the same idempotency key
     ├── NotMigrated         the schema does not match this version: run `penstock migrate`
     ├── JobFailed           the awaited job did not complete
     └── TimedOut            the wait timed out

A class's docstring is its default message. `TABLE` is the only mapping between SQLSTATE, exception, HTTP
status and exit code of the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import psycopg


class PenstockError(Exception):
    """The operation failed."""

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip()
        self.code = code or row_of(type(self)).code
        self.hint = hint
        self.details = dict(details or {})
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    @property
    def status(self) -> int:
        """The HTTP status of this error."""
        return row_of(type(self)).status

    @property
    def exit_code(self) -> int:
        """The exit code of the command line for this error."""
        return row_of(type(self)).exit_code

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next try, if known."""
        value = self.details.get("retry_after_seconds", self.details.get("retry_after"))
        return float(value) if isinstance(value, int | float) else None


class Invalid(PenstockError):
    """The request is invalid."""


class TooLarge(Invalid):
    """The request is too large."""


class Unauthenticated(PenstockError):
    """Missing or invalid credentials."""


class Forbidden(PenstockError):
    """You do not have permission to do this."""


class UpgradeRequired(PenstockError):
    """The plan of the tenant does not include this."""


class NotFound(PenstockError):
    """Not found."""


class Gone(NotFound):
    """It was deleted."""


class Conflict(PenstockError):
    """The current state does not allow this."""


class LeaseLost(Conflict):
    """The lease on this task has been lost."""


class Limited(PenstockError):
    """A rate limit has been reached. Try again later."""


class Unavailable(PenstockError):
    """The database is unavailable. Try again."""


class NotMigrated(PenstockError):
    """The database schema does not match this version of Penstock. Run `penstock migrate`."""


class JobFailed(PenstockError):
    """The job did not complete."""


class TimedOut(PenstockError):
    """The wait timed out."""


# Exit codes without an exception.
EXIT_OK = 0
EXIT_PARTLY_DONE = 8
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row of `TABLE`. `code` is used where the database gives none."""

    error: type[PenstockError]
    code: str
    status: int
    exit_code: int
    sqlstates: tuple[str, ...] = ()


# The first SQLSTATE of a row is raised by Penstock's functions: PT and the HTTP status, as PostgREST expects.
# The others are PostgreSQL's own; two characters stand for a whole class.
# fmt: off
TABLE: tuple[ErrorRow, ...] = (
    #        exception        code               HTTP exit  SQLSTATE
    ErrorRow(Invalid,         "invalid",          422,   2, ("PT422", "22001", "22003", "22007", "22008",
                                                             "22021", "22023", "22P02", "22P05", "23502",
                                                             "23514")),
    ErrorRow(TooLarge,        "too_large",        413,   2, ("PT413", "54000")),
    ErrorRow(Unauthenticated, "unauthenticated",  401,   4, ("PT401", "28")),
    ErrorRow(Forbidden,       "forbidden",        403,   4, ("PT403", "42501")),
    ErrorRow(UpgradeRequired, "upgrade_required", 402,   4, ("PT402",)),
    ErrorRow(NotFound,        "not_found",        404,   5, ("PT404",)),
    ErrorRow(Gone,            "gone",             410,   5),
    ErrorRow(Conflict,        "conflict",         409,   6, ("PT409", "23503", "23505", "23P01")),
    ErrorRow(LeaseLost,       "lease_lost",       410,   6, ("PT410",)),
    ErrorRow(Limited,         "limited",          429,   7, ("PT429",)),
    ErrorRow(Unavailable,     "unavailable",      503,   1, ("PT503", "08", "25006", "25P03", "40", "53",
                                                             "55P03", "57", "58")),
    ErrorRow(NotMigrated,     "not_migrated",     500,   1, ("3F000", "42703", "42883", "42P01")),
    ErrorRow(JobFailed,       "job_failed",       500,   3),
    ErrorRow(TimedOut,        "timed_out",        408, 124),
    ErrorRow(PenstockError,   "error",            500,   1),
)
# fmt: on

_BY_SQLSTATE = {sqlstate: row for row in TABLE for sqlstate in row.sqlstates}
_BY_CODE = {row.code: row for row in TABLE}
# Of rows that share a status, the last one wins: it is the most general.
_BY_STATUS = {row.status: row for row in TABLE}

# Standard members of a problem document. Error details of the same name are prefixed with `current_`.
_STANDARD = ("type", "title", "status", "detail", "code", "hint")
_DETAIL = {f"current_{name}": name for name in _STANDARD}


def row_of(error: type[PenstockError]) -> ErrorRow:
    """The row of a class, or of its nearest parent in the table."""
    rows = {row.error: row for row in TABLE}
    return next(rows[parent] for parent in error.__mro__ if parent in rows)


def from_database(error: psycopg.Error) -> PenstockError | None:
    """Translate a database error. None if it can only be a bug."""
    sqlstate = error.sqlstate or ""
    row = _BY_SQLSTATE.get(sqlstate) or _BY_SQLSTATE.get(sqlstate[:2])
    if row is None:
        return None
    details = _json_object(error.diag.message_detail) if sqlstate.startswith("PT") else {}
    code = details.pop("code", None)
    return row.error(
        error.diag.message_primary,
        code=code if isinstance(code, str) else None,
        hint=error.diag.message_hint or None,
        details=details,
    )


def to_problem(error: PenstockError) -> dict[str, Any]:
    """Convert an error to a problem document (RFC 9457)."""
    title = (row_of(type(error)).error.__doc__ or "").strip()
    problem: dict[str, Any] = {
        f"current_{name}" if name in _STANDARD else name: value for name, value in error.details.items()
    }
    problem |= {
        "type": "about:blank",
        "title": title,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
    }
    return problem | ({"hint": error.hint} if error.hint else {})


def from_problem(status: int, problem: Mapping[str, Any]) -> PenstockError:
    """Convert a problem document, or any response with this HTTP status, back to an error."""
    code, message, hint = (
        value if isinstance(value := problem.get(name), str) else None for name in ("code", "detail", "hint")
    )
    row = _BY_CODE.get(code or "")
    if row is None or row.status != status:
        other = Invalid if 400 <= status < 500 else Unavailable if status in (502, 504) else PenstockError
        row = _BY_STATUS.get(status) or row_of(other)
    details = {_DETAIL.get(name, name): value for name, value in problem.items() if name not in _STANDARD}
    return row.error(
        message or f"the server responded with status {status}", code=code, hint=hint, details=details
    )


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value: object = json.loads(text or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
