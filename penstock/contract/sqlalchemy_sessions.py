"""Start a job in the transaction of a SQLAlchemy session, with any driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from penstock.errors import from_database

_START = """\
select penstock.start_job(p_type => :type, p_params => cast(:params as jsonb),
  p_tasks => cast(:tasks as jsonb), p_options => cast(:options as jsonb))"""


def is_session(using: Any) -> bool:
    """Whether this is a session or connection of SQLAlchemy."""
    return any(base.__module__.startswith("sqlalchemy.") for base in type(using).__mro__)


def start_statement() -> Any:
    """The statement that starts a job."""
    # A caller with a session of SQLAlchemy has imported it; Penstock itself does not depend on it.
    return sys.modules["sqlalchemy"].text(_START)


def start_arguments(
    job_type: str, params: Mapping[str, Any] | None, tasks: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, str]:
    """The arguments of `start_statement`."""
    documents = {"params": dict(params or {}), "tasks": tasks, "options": options}
    return {"type": job_type, **{name: json.dumps(document) for name, document in documents.items()}}


@contextmanager
def translated_errors() -> Generator[None]:
    """Raise errors of SQLAlchemy as Penstock's errors, if psycopg is the driver."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None)
        translated = from_database(cause) if isinstance(cause, psycopg.Error) else None
        if translated is None:
            raise
        raise translated from error
