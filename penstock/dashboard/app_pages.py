"""Pages that the app declares: a list of one of its views, a page per row, and actions with a confirmation.

All statements run under the viewer's role. Names in them come from the database's catalogue, quoted by the
database; values are parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, LiteralString, cast
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from penstock.api.rest import catalogue_of
from penstock.api.rest.catalogue import Column, Function, Relation
from penstock.contract import artifacts, filters
from penstock.dashboard import actors, exports, formatting, forms, packs
from penstock.dashboard.file_origins import allow_file_origin
from penstock.dashboard.pages import (
    PER_PAGE,
    READ_ONLY_MESSAGE,
    CatchInvalidFilter,
    Conn,
    CurrentViewer,
    FilterQuery,
    Viewer,
    redirect,
    render,
    url,
)
from penstock.errors import Forbidden, Invalid, NotFound
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.sdk.pages import AppPage, PageAction
from penstock.types import Artifact

router = APIRouter(route_class=packs.ShopPage)

Row = Mapping[str, Any]
Cursor = Annotated[str, Query(max_length=2000)]
Key = Annotated[str, Query(max_length=1000)]
Last = tuple[str | None, str]
"""Where a page of the list ends: the value of the order column, if there is one, and the key."""
_READABLE: LiteralString = """
select a.attname::text from pg_attribute a
where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped
  and has_column_privilege(a.attrelid, a.attnum, 'select')"""
_INTEGERS = ("smallint", "integer", "bigint")


@dataclass(frozen=True, slots=True)
class Declared:
    """A page of the app, with the relation it lists."""

    page: AppPage
    relation: Relation

    def column(self, name: str) -> Column:
        """A column of the relation."""
        if name not in self.relation.columns:
            text = f"{self.relation.schema}.{self.relation.name} has no column {name}"
            raise NotFound(text)
        return self.relation.columns[name]

    @property
    def order(self) -> Column | None:
        """The column that the list is sorted by before the key, if there is one."""
        name = self.page.order
        return None if name is None or name == self.page.key else self.column(name)

    def fields(self) -> dict[str, filters.Field]:
        """The fields of the page's filter."""
        return {name: _field(self.column(name)) for name in self.page.filters}


@router.get("/app/{name}.csv")
async def export_rows(
    request: Request, conn: Conn, viewer: CurrentViewer, name: str, filter: FilterQuery = ""
) -> Response:
    """Export the rows that match the filter."""
    declared = await _declared(request, viewer, name)
    rows: list[Row] = []
    while len(rows) < exports.MAX_ROWS:
        last = _last(declared, rows[-1]) if rows else None
        found = await _rows(conn, declared, filter, last, exports.PER_PAGE)
        rows += found
        if len(found) < exports.PER_PAGE:
            break
    head = list(declared.page.columns)
    shown = [formatting.redacted(row) for row in rows]
    return await exports.as_csv(name, head, [[row[column] for column in head] for row in shown])


@router.get("/app/{name}")
async def list_rows(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    name: str,
    filter: FilterQuery = "",
    before: Cursor = "",
    bought: bool = False,
) -> Response:
    """List the rows of the page's view, newest first, and the packs that the page sells."""
    declared = await _declared(request, viewer, name)
    page, found = declared.page, list[Row]()
    with CatchInvalidFilter() as caught:
        found = await _rows(conn, declared, filter, _parsed(before), PER_PAGE + 1)
    shown = found[:PER_PAGE]
    files = await _files(request, conn, page, shown)
    people = await _people(conn, viewer, shown)
    last = json.dumps(_last(declared, shown[-1])) if len(found) > PER_PAGE else None
    path = f"/app/{name}"
    return render(
        request,
        "app_list.html",
        page=page,
        rows=[_drawn(request, page, row, files, people) for row in shown],
        next=url(request, path, filter=filter, before=last) if last else None,
        first=url(request, path, filter=filter) if before else None,
        filter=filter,
        fields=list(page.filters),
        filter_error=caught.error,
        may_act=_may_act(request, viewer),
        live=None if before else {"tenant": viewer.choose_tenant(None)},
        shop=request.state.shop,
        buyers=packs.buyers(request, viewer),
        is_bought=bought and request.state.shop is not None,
    )


@router.get("/app/{name}/row")
async def show_row(request: Request, conn: Conn, viewer: CurrentViewer, name: str, key: Key) -> Response:
    """Show all columns of a row."""
    declared = await _declared(request, viewer, name)
    readable = await db.rows(conn, _READABLE, (declared.relation.sql.replace("%%", "%"),))
    row = await _row(conn, declared, key, [column for (column,) in readable])
    page = declared.page
    files, people = await _files(request, conn, page, [row]), await _people(conn, viewer, [row])
    drawn = _drawn(request, page, row, files, people)
    titles = dict(page.columns) | {name: name.replace("_", " ") for name in row if name not in page.columns}
    may_act = _may_act(request, viewer)
    return render(
        request, "app_row.html", page=page, row=drawn, columns=titles, may_act=may_act,
        live={"tenant": viewer.choose_tenant(None)},
    )  # fmt: skip


@router.get("/app/{name}/actions/{action}")
async def confirm_action(
    request: Request,
    conn: Conn,
    viewer: CurrentViewer,
    name: str,
    action: str,
    key: Key,
    next: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """Ask for confirmation."""
    declared = await _declared(request, viewer, name)
    chosen = _action(request, viewer, declared, action)
    row = await _row(conn, declared, key, declared.page.read_columns)
    return render(
        request,
        "app_confirm.html",
        page=declared.page,
        action=chosen,
        question=chosen.question(formatting.redacted(row)),
        key=key,
        next=forms.local(next or f"/app/{name}"),
    )


@router.post("/app/{name}/actions/{action}")
async def run_action(request: Request, conn: Conn, viewer: CurrentViewer, name: str, action: str) -> Response:
    """Call the action's function with the key of the row, as the viewer."""
    form: forms.Form = request.state.form
    declared = await _declared(request, viewer, name)
    chosen = _action(request, viewer, declared, action)
    row = await _row(conn, declared, form.get("key"), [declared.page.key])
    function = await _function(request, declared, chosen)
    result = await _call(conn, function, {chosen.argument: row[declared.page.key], **chosen.values})
    flash = f"{chosen.title}: {result[:150] if isinstance(result, str) and result else 'done'}."
    return redirect(request, forms.local(form.get("next") or f"/app/{name}"), flash=flash)


# Declarations


async def _declared(request: Request, viewer: Viewer, name: str) -> Declared:
    app: App | None = getattr(request.app.state, "app", None)
    page = app.pages.get(name) if app else None
    if app is None or app.own is None or page is None or (page.is_for_operators and not viewer.is_operator):
        raise NotFound("page not found")
    relation = (await catalogue_of(request, app.own.schema)).relations.get(page.source)
    if relation is None:
        text = f"the view {app.own.schema}.{page.source} does not exist"
        raise NotFound(text, hint="Run penstock migrate with the app.")
    if viewer.caller.role not in relation.roles:
        raise Forbidden(f"you cannot read {app.own.schema}.{page.source}")
    return Declared(page, relation)


def _may_act(request: Request, viewer: Viewer) -> bool:
    return viewer.may_act() and not request.app.state.settings.read_only


def _action(request: Request, viewer: Viewer, declared: Declared, name: str) -> PageAction:
    if request.app.state.settings.read_only:
        raise Forbidden(READ_ONLY_MESSAGE, code="read_only")
    if not viewer.may_act():
        raise Forbidden("viewers cannot change anything")
    if name not in declared.page.actions:
        raise NotFound("page not found")
    return declared.page.actions[name]


async def _function(request: Request, declared: Declared, action: PageAction) -> Function:
    found = (await catalogue_of(request, declared.relation.schema)).functions.get(action.function)
    if found is None:
        text = f"the function {declared.relation.schema}.{action.function} does not exist"
        raise NotFound(text, code="unknown_function", hint="Run penstock migrate with the app.")
    return found


def _field(column: Column) -> filters.Field:
    """The filter of a column, by its type."""
    name = cast("LiteralString", column.sql)
    if column.name == "tenant_id":
        return filters.tenant(name)
    if column.type == "uuid":
        return filters.ids(name)
    if column.type in _INTEGERS:
        return filters.numbers(name)
    if column.type.startswith("timestamp"):
        return filters.age(name)
    return filters.words(name if column.type == "text" else name + "::text")


# Rows


async def _rows(
    conn: db.Connection, declared: Declared, filter: str, last: Last | None, limit: int
) -> list[Row]:
    """A page of rows: by the order column and the key, largest first."""
    page = declared.page
    where, values = filters.every(await filters.conditions(conn, filter, declared.fields()))
    key, order = declared.column(page.key), declared.order
    if last is not None:
        condition, more = _behind(key, order, last)
        where, values = f"{where} and ({condition})", values + more
    sorting = f"{key.sql} desc" if order is None else f"{order.sql} desc, {key.sql} desc"
    names = page.read_columns
    columns = ", ".join(declared.column(name).sql for name in names)
    statement = (
        f"select {columns} from {declared.relation.sql} "  # noqa: S608 names from the catalogue
        f"where {where} order by {sorting} limit %s"
    )
    found = await db.rows(conn, cast("LiteralString", statement), (*values, limit))
    return [dict(zip(names, row, strict=True)) for row in found]


def _behind(key: Column, order: Column | None, last: Last) -> tuple[str, list[Any]]:
    """The condition for rows behind the last one. Rows without a value of the order column come first."""
    value, own = last
    if order is None:
        return f"{key.sql} < %s::{key.type}", [own]
    if value is None:
        return f"{order.sql} is not null or {key.sql} < %s::{key.type}", [own]
    return f"({order.sql}, {key.sql}) < (%s::{order.type}, %s::{key.type})", [value, own]


def _last(declared: Declared, row: Row) -> Last:
    value = None if declared.order is None else row[declared.order.name]
    return None if value is None else _text(value), _text(row[declared.page.key])


def _parsed(text: str) -> Last | None:
    if not text:
        return None
    try:
        value, key = json.loads(text)
    except (ValueError, TypeError):
        value, key = None, None
    if not isinstance(key, str) or not (value is None or isinstance(value, str)):
        raise Invalid("the address contains an invalid value", code="invalid")
    return value, key


async def _row(conn: db.Connection, declared: Declared, key: str, names: list[str]) -> Row:
    own = declared.column(declared.page.key)
    columns = ", ".join(declared.column(name).sql for name in names)
    # A row on the page's own index, whatever the type of the key.
    statement = f"select {columns} from {declared.relation.sql} where {own.sql} = %s::{own.type} limit 1"  # noqa: S608 names from the catalogue
    try:
        found = await db.rows(conn, cast("LiteralString", statement), (key,))
    except Invalid:
        # The text is no value of the key's type, such as no id.
        raise NotFound("page not found") from None
    if not found:
        raise NotFound("page not found")
    return dict(zip(names, found[0], strict=True))


async def _call(conn: db.Connection, function: Function, arguments: Mapping[str, Any]) -> Any:
    """Call a function with named arguments. Returns its value, if it is a single one."""
    if unknown := set(arguments) - set(function.inputs):
        raise NotFound(
            f"{function.name} has no argument {', '.join(sorted(unknown))}", code="unknown_function"
        )
    inputs = [function.inputs[name] for name in arguments]
    given = ", ".join(f"{each.sql} => %s::{each.type}" for each in inputs)
    values = [db.Json(value) if isinstance(value, (dict, list)) else value for value in arguments.values()]
    statement = f"select * from {function.sql}({given})"  # noqa: S608 names from the catalogue
    found = await db.rows(conn, cast("LiteralString", statement), values)
    return found[0][0] if len(found) == 1 and len(found[0]) == 1 else None


# Drawing


async def _files(
    request: Request, conn: db.Connection, page: AppPage, rows: list[Row]
) -> dict[UUID, Artifact]:
    """The artifacts that the rows name and the viewer may see."""
    wanted = {row[column] for row in rows for column in page.files if isinstance(row.get(column), UUID)}
    found = (
        {each.id: each for each in await artifacts.some(conn, artifact_ids=list(wanted))} if wanted else {}
    )
    await allow_file_origin(request, list(found.values()))
    return found


async def _people(conn: db.Connection, viewer: Viewer, rows: list[Row]) -> Mapping[str, str]:
    """The names of those in the column `actor`, which the audit log stores as `user:ID` and the like."""
    stored = [row["actor"] for row in rows if isinstance(row.get("actor"), str)]
    return await actors.names(conn, viewer, stored, viewer.tenant_ids or []) if stored else {}


def _drawn(
    request: Request, page: AppPage, row: Row, files: Mapping[UUID, Artifact], people: Mapping[str, str]
) -> dict[str, Any]:
    """What the templates need of a row: its cells, its address and its actions."""
    visible = formatting.redacted(dict(row))
    if (name := people.get(str(row.get("actor")))) is not None:
        visible["actor"] = name
    key = _text(row[page.key])
    return {
        "key": key,
        "url": url(request, f"/app/{page.name}/row", key=key),
        "cells": {name: _cell(request, page, name, value, files) for name, value in visible.items()},
        "actions": [
            {"title": action.title, "url": url(request, f"/app/{page.name}/actions/{action.name}", key=key)}
            for action in page.actions.values()
            if action.is_shown(row)
        ],
    }


def _cell(
    request: Request, page: AppPage, name: str, value: Any, files: Mapping[UUID, Artifact]
) -> dict[str, Any]:
    """A value with the way to draw it."""
    if value is None or value == "":
        return {"kind": "empty", "value": value}
    if name in page.files and value in files:
        return {"kind": "file", "value": files[value]}
    if name in page.links:
        target = page.links[name].replace("{}", quote(_text(value), safe=""))
        return {"kind": "link", "value": _text(value), "url": url(request, target)}
    match value:
        case bool():
            kind, value = "text", "yes" if value else "no"
        case datetime():
            kind = "moment"
        case dict() | list():
            kind = "document"
        case int() | float():
            kind = "number"
        case str() if name in ("status", "state") or name.endswith(("_status", "_state")):
            kind = "chip"
        case _:
            kind, value = "text", _text(value)
    return {"kind": kind, "value": value}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
