"""One table maps SQLSTATE, exception, HTTP status and exit code; database errors are translated by it."""

from __future__ import annotations

import psycopg
import pytest

from penstock import errors
from penstock.postgres import db


def test_every_exception_is_documented_and_in_the_table() -> None:
    found = {errors.PenstockError}
    for error in list(found):
        found |= set(error.__subclasses__())
    found |= {child for error in found for child in error.__subclasses__()}
    # A module may have a narrower error of its own, which is reported as its parent.
    found = {error for error in found if error.__module__ == errors.__name__}
    assert {row.error for row in errors.TABLE} == found
    for error in found:
        assert f"{error.__name__} " in (errors.__doc__ or ""), "list it in the module's docstring"
        assert error.__doc__ and error().message == error.__doc__


def test_codes_and_sqlstates_are_unique() -> None:
    codes = [row.code for row in errors.TABLE]
    sqlstates = [state for row in errors.TABLE for state in row.sqlstates]
    assert len(set(codes)) == len(codes)
    assert len(set(sqlstates)) == len(sqlstates)


OURS = [row for row in errors.TABLE if f"PT{row.status}" in row.sqlstates]


@pytest.mark.parametrize("row", OURS, ids=lambda row: row.code)
def test_database_error_keeps_message_code_hint_and_details(
    conn: db.SyncConnection, row: errors.ErrorRow
) -> None:
    raised = (
        f"raise exception using errcode = 'PT{row.status}', message = 'no', hint = 'wait',"
        """ detail = '{"code": "too_soon", "retry_after": 2.5, "limit": 7}'"""
    )
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(f"do $$ begin {raised}; end $$".encode())
    error = errors.from_database(caught.value)
    assert error is not None and type(error) is row.error
    assert (error.message, error.code, error.hint) == ("no", "too_soon", "wait")
    assert error.details == {"retry_after": 2.5, "limit": 7}
    assert (error.status, error.exit_code, error.retry_after) == (row.status, row.exit_code, 2.5)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select 'x'::uuid", errors.Invalid),
        ("select penstock.no_such_function()", errors.NotMigrated),
        ("set role anon; select * from penstock.jobs", errors.Forbidden),
        ("set local statement_timeout = 1; select pg_sleep(1)", errors.Unavailable),
        ("selec", None),
    ],
)
def test_postgresql_errors_are_translated(
    conn: db.SyncConnection, statement: str, expected: type[errors.PenstockError] | None
) -> None:
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute(statement.encode())
    error = errors.from_database(caught.value)
    assert (type(error) if error else None) is expected
    if error:
        assert error.details == {}


def test_detail_that_is_not_json_is_ignored(conn: db.SyncConnection) -> None:
    with pytest.raises(psycopg.Error) as caught, conn.transaction():
        conn.execute("do $$ begin raise exception 'no' using errcode = 'PT409', detail = 'because'; end $$")
    error = errors.from_database(caught.value)
    assert isinstance(error, errors.Conflict) and error.code == "conflict" and error.details == {}
