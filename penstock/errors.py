"""What can go wrong, one class for each different reaction.

    PenstockError            something failed: read the message
     ├── Invalid             the request is wrong: correct it
     │    └── TooLarge       it is too large: make it smaller, or keep the bytes in object storage
     ├── Unauthenticated     nobody is logged in: log in
     ├── Forbidden           you may not: ask someone who may
     ├── NotFound            it is not there, or not yours
     ├── Conflict            it is in another state, or the key was used for something else: look again
     │    └── LeaseLost      the task is another worker's by now: stop, and write nothing
     ├── Limited             too much at once: wait `retry_after` seconds
     ├── OverBudget          the money or quota is used up: buy more, or wait for the next period
     ├── Unavailable         the database cannot answer now: try again with the same key
     ├── NotMigrated         the schema is not the one this version needs: run `penstock migrate`
     ├── JobFailed           the job that was awaited did not complete
     └── TimedOut            what was awaited did not come in time

A class's docstring is its default message. `TABLE` at the end maps SQLSTATE, exception, HTTP status and exit
code of the command line onto each other; there is no second such list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import psycopg


class PenstockError(Exception):
    """Something went wrong."""

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
        """The HTTP status that says this."""
        return row_of(type(self)).status

    @property
    def exit_code(self) -> int:
        """The command line's exit code that says this."""
        return row_of(type(self)).exit_code

    @property
    def retry_after(self) -> float | None:
        """Seconds to wait before the next try, where the database knows."""
        value = self.details.get("retry_after_seconds", self.details.get("retry_after"))
        return float(value) if isinstance(value, int | float) else None


class Invalid(PenstockError):
    """The request is not valid."""


class TooLarge(Invalid):
    """The request is too large."""


class Unauthenticated(PenstockError):
    """You are not logged in."""


class Forbidden(PenstockError):
    """You may not do this."""


class NotFound(PenstockError):
    """There is no such thing."""


class Conflict(PenstockError):
    """This does not fit the present state."""


class LeaseLost(Conflict):
    """The lease on this task is no longer yours."""


class Limited(PenstockError):
    """A limit has been reached. Try again later."""


class OverBudget(PenstockError):
    """The budget or quota is used up."""


class Unavailable(PenstockError):
    """The database cannot answer now. Try again."""


class NotMigrated(PenstockError):
    """The database schema is not the one this version of penstock needs. Run `penstock migrate`."""


class JobFailed(PenstockError):
    """The job did not complete."""


class TimedOut(PenstockError):
    """It did not happen in time."""


# Exit codes that belong to no exception.
EXIT_OK = 0
EXIT_PARTLY_DONE = 8
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `code` is the stable name used when the database gave none."""

    error: type[PenstockError]
    code: str
    status: int
    exit_code: int
    sqlstates: tuple[str, ...] = ()


# The first SQLSTATE of a row is what our own functions raise: PT and the HTTP status, which is what PostgREST
# answers with. The others are PostgreSQL's own; two characters stand for a whole class.
# fmt: off
TABLE: tuple[Row, ...] = (
    #   exception        code               HTTP exit  SQLSTATE
    Row(Invalid,         "invalid",          422,   2, ("PT422", "22001", "22003", "22007", "22008", "22021",
                                                        "22023", "22P02", "22P05", "23502", "23514")),
    Row(TooLarge,        "too_large",        413,   2, ("PT413", "54000")),
    Row(Unauthenticated, "unauthenticated",  401,   4, ("PT401", "28")),
    Row(Forbidden,       "forbidden",        403,   4, ("PT403", "42501")),
    Row(NotFound,        "not_found",        404,   5, ("PT404",)),
    Row(Conflict,        "conflict",         409,   6, ("PT409", "23503", "23505", "23P01")),
    Row(LeaseLost,       "lease_lost",       410,   6, ("PT410",)),
    Row(Limited,         "limited",          429,   7, ("PT429",)),
    Row(OverBudget,      "over_budget",      402,   7, ("PT402",)),
    Row(Unavailable,     "unavailable",      503,   1, ("PT503", "08", "25006", "25P03", "40", "53", "55P03",
                                                        "57", "58")),
    Row(NotMigrated,     "not_migrated",     500,   1, ("3F000", "42703", "42883", "42P01")),
    Row(JobFailed,       "job_failed",       500,   3),
    Row(TimedOut,        "timed_out",        408, 124),
    Row(PenstockError,   "error",            500,   1),
)
# fmt: on

_BY_SQLSTATE = {sqlstate: row for row in TABLE for sqlstate in row.sqlstates}
_BY_CODE = {row.code: row for row in TABLE}
# Of those that share a status the last: it says the least.
_BY_STATUS = {row.status: row for row in TABLE}

# What a problem document says in any case; a detail of the same name is `current_…` there.
_SAID = ("type", "title", "status", "detail", "code", "hint")
_DETAIL = {f"current_{name}": name for name in _SAID}


def row_of(error: type[PenstockError]) -> Row:
    """The table's line for a class, or for the nearest of its parents."""
    rows = {row.error: row for row in TABLE}
    return next(rows[parent] for parent in error.__mro__ if parent in rows)


def from_database(error: psycopg.Error) -> PenstockError | None:
    """What a database error means here; None when it means nothing but a bug."""
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
    """An error as a problem document (RFC 9457)."""
    title = (row_of(type(error)).error.__doc__ or "").strip()
    problem: dict[str, Any] = {
        f"current_{name}" if name in _SAID else name: value for name, value in error.details.items()
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
    """What a problem document, or another answer with this HTTP status, says: the error it was made of."""
    code, message, hint = (
        value if isinstance(value := problem.get(name), str) else None for name in ("code", "detail", "hint")
    )
    row = _BY_CODE.get(code or "")
    if row is None or row.status != status:
        other = Invalid if 400 <= status < 500 else Unavailable if status in (502, 504) else PenstockError
        row = _BY_STATUS.get(status) or row_of(other)
    details = {_DETAIL.get(name, name): value for name, value in problem.items() if name not in _SAID}
    return row.error(message or f"the server answered {status}", code=code, hint=hint, details=details)


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        value: object = json.loads(text or "{}")
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
