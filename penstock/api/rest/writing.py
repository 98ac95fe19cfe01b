"""Statements that insert, update and delete rows, in PostgREST's protocol.

Names come from the catalogue, and all values travel as one JSON parameter, which PostgreSQL reads: no number
is rounded. A write reads no column that the caller did not ask for, so that column grants work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from penstock.api.rest import queries
from penstock.api.rest.catalogue import Relation
from penstock.api.rest.errors import RestError, parse_error
from penstock.api.rest.preferences import Preferences
from penstock.api.rest.queries import Query, RowSource, Sql

WORDS = ("columns", "on_conflict")
"""Parameters of writes that are not column names."""
_PAGES = ("limit", "offset")
_VERBS = {"POST": "INSERT", "PATCH": "UPDATE", "DELETE": "DELETE"}


def statement(
    method: str,
    table: Relation,
    parameters: Sequence[tuple[str, str]],
    body: tuple[str, Any],
    preferred: Preferences,
    most_bytes: int,
) -> tuple[Sql, float]:
    """Build a statement that writes and returns one row: the body, the number of written rows, and null.

    `body` is the JSON text, and the same text parsed. Also returns how many more requests it counts as.
    """
    source = RowSource(table.sql, table.columns, table.name)
    single = dict(parameters)
    if any(name in single for name in _PAGES):
        raise parse_error("limit and offset are not supported for writes", "Filter by the primary key.")
    budget = queries.Budget()
    filters = queries.filters(source, [pair for pair in parameters if pair[0] not in WORDS], budget)
    is_represented = preferred.is_represented
    chosen = [pair for pair in parameters if pair[0] in ("select", "order")]
    written = RowSource("written", table.columns, table.name)
    query = queries.read(written, chosen, None, None)
    returning = ", ".join(query.columns) if is_represented else "1 as one"
    if "*" in query.columns and is_represented:
        returning = "*"
    match method:
        case "POST":
            if filters is not None:
                raise parse_error("an insert takes no filters")
            change = _insert(table, source, single, body, preferred)
        case "PATCH":
            change = _update(table, source, single, body, _required(method, filters))
        case _:
            condition, values = _required(method, filters)
            change = f"delete from {table.sql} where {condition}", values  # noqa: S608 names from the catalogue
    text, values = f"{change[0]} returning {returning}", change[1]
    if change[0] == "":
        text, values = f"select {returning} from {table.sql} where false", []  # noqa: S608 the same
    return _whole((text, values), written, query, preferred, most_bytes), budget.cost


def _whole(change: Sql, source: RowSource, query: Query, preferred: Preferences, most_bytes: int) -> Sql:
    if not preferred.is_represented:
        return f"with written as ({change[0]}) select '', count(*), null::bigint from written", change[1]  # noqa: S608 the same
    text, values = queries.statement(
        source,
        query,
        is_single=preferred.is_single,
        is_stripped=preferred.is_stripped,
        is_counted=False,
        most_bytes=most_bytes,
    )
    return f"with written as ({change[0]}), {text}", [*change[1], *values]


def _required(method: str, filters: Sql | None) -> Sql:
    """The condition of an update or a delete, which must not change every row by accident."""
    if filters is None:
        raise RestError(400, "21000", f"{_VERBS[method]} requires a WHERE clause")
    return filters


def _insert(
    table: Relation, source: RowSource, single: dict[str, str], body: tuple[str, Any], preferred: Preferences
) -> Sql:
    text, given = body
    objects = _objects(given)
    if not objects:
        return "", []
    names = _names(source, single, objects, is_defaulted=preferred.is_defaulted)
    if not isinstance(given, list):
        text = f"[{text}]"
    columns = [table.columns[name] for name in names]
    listed = ", ".join(column.sql for column in columns)
    if columns:
        record = ", ".join(f"{column.sql} {column.type}" for column in columns)
        rows = f"select {listed} from json_to_recordset(%s::json) as given({record})"  # noqa: S608 the same
        change = f"insert into {table.sql} ({listed}) {rows}", [text]
    elif len(objects) == 1:
        change = f"insert into {table.sql} default values", list[Any]()
    else:
        raise RestError(400, "PGRST102", "Empty or invalid json", details="the objects have no fields")
    if preferred.resolution is None:
        return change
    return change[0] + _resolved(table, source, single, names, preferred.resolution), change[1]


def _resolved(
    table: Relation, source: RowSource, single: dict[str, str], names: list[str], resolution: str
) -> str:
    keys = list(table.primary_key)
    if single.get("on_conflict", "").strip():
        keys = queries.column_names(source, single["on_conflict"])
    if not keys:
        # PostgREST inserts as usual into a table or view without a primary key.
        return ""
    target = ", ".join(table.columns[name].sql for name in keys)
    if resolution == "ignore-duplicates":
        return f" on conflict ({target}) do nothing"
    # The key stays, so that no right to update it is needed. A row of keys alone is still returned.
    changed = [name for name in names if name not in keys] or keys
    columns = [table.columns[name].sql for name in changed]
    return f" on conflict ({target}) do update set " + ", ".join(f"{sql} = excluded.{sql}" for sql in columns)


def _update(
    table: Relation, source: RowSource, single: dict[str, str], body: tuple[str, Any], filters: Sql
) -> Sql:
    text, given = body
    if isinstance(given, list):
        raise RestError(400, "PGRST102", "Empty or invalid json", details="an update takes one JSON object")
    names = _names(source, single, _objects(given), is_defaulted=False)
    if not names:
        return "", []
    columns = [table.columns[name] for name in names]
    # Subselects, because the filters name columns without their table.
    record = ", ".join(f"{column.sql} {column.type}" for column in columns)
    given_row = f"json_to_record(%s::json) as given({record})"
    listed = ", ".join(column.sql for column in columns)
    change = f"update {table.sql} set ({listed}) = (select {listed} from {given_row}) where {filters[0]}"  # noqa: S608 the same
    return change, [text, *filters[1]]


def _objects(given: Any) -> list[dict[str, Any]]:
    found = cast("list[Any]", given if isinstance(given, list) else [given])
    if not all(isinstance(one, dict) for one in found):
        details = "the body must be a JSON object or an array of objects"
        raise RestError(400, "PGRST102", "Empty or invalid json", details=details)
    return cast("list[dict[str, Any]]", found)


def _names(
    source: RowSource, single: dict[str, str], objects: list[dict[str, Any]], *, is_defaulted: bool
) -> list[str]:
    """The columns to write: those that `columns` lists, else the fields of the objects."""
    if single.get("columns", "").strip():
        names = queries.column_names(source, single["columns"])
        if is_defaulted and not all(set(names) <= one.keys() for one in objects):
            raise _missing_default()
        return names
    names = list(objects[0])
    if any(one.keys() != objects[0].keys() for one in objects):
        if is_defaulted:
            raise _missing_default()
        raise RestError(400, "PGRST102", "All object keys must match")
    for name in names:
        if name not in source.columns:
            raise queries.unknown_column(source, name)
    return names


def _missing_default() -> RestError:
    return RestError(
        400,
        "PGRST102",
        "All object keys must match",
        details="missing=default is supported for objects with the same fields only",
        hint="Send rows with different fields in separate requests.",
    )
