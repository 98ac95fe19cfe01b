"""PostgREST's protocol for schema penstock and the app's schema, so that Supabase clients can use them.

    POST /rest/v1/rpc/claim_tasks   {"p_worker_id": "w1", "p_max_tasks": 10}
    GET  /rest/v1/job_list?select=id,status&status=eq.running&order=created_at.desc
    PATCH /rest/v1/notes?id=eq.7    {"title": "Otters"}

A request runs as the caller's database role, whose grants decide what it can call, read and write. Tables and
views are read-only, except those that the app lists in `writable_tables`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, LiteralString, cast

import structlog
from fastapi import APIRouter, Request, Response

from penstock.api.callers import ANON, Caller, Callers
from penstock.api.limits import Limits, read_body, read_json, weigh
from penstock.api.rest import catalogue, preferences, queries, writing
from penstock.api.rest.catalogue import Catalogue, Function, Relation
from penstock.api.rest.errors import RestError, error_for, permission_denied, shortened
from penstock.api.rest.preferences import Preferences
from penstock.api.rest.queries import RowSource, Sql
from penstock.api.routes import identify
from penstock.errors import Invalid, TooLarge
from penstock.postgres import db
from penstock.sdk.app import App
from penstock.types import Scope

MOST_URL_BYTES = 16 << 10
MOST_ROWS = 1000
"""Rows in one response from a table or view. Results of functions, such as claims, are never truncated."""
COUNT_COST = 1
"""Requests that a total count (`Prefer: count=exact`) counts as."""
MOST_BYTES = 32 << 20
"""Bytes in one response. Functions called with a service credential have no limit."""

# Functions that a worker key may call. The value is an argument it must pass: with it the function checks the
# lease; without it the function would need a service credential.
WORKER_FUNCTIONS: dict[str, str | None] = {
    "acquire_api_capacity": None,
    "add_tasks": "p_task_id",
    "begin_artifact": None,
    "claim_tasks": None,
    "complete_task": None,
    "complete_tasks": None,
    "describe_artifact": "p_worker_id",
    "drop_artifact": "p_worker_id",
    "fail_task": None,
    "fail_tasks": None,
    "finish_artifact": "p_worker_id",
    "heartbeat_task": None,
    "heartbeat_tasks": None,
    "next_opening": None,
    "reclaim_stale_tasks": None,
    "record_cost": "p_task_id",
    "record_usage": "p_task_id",
    "release_api_capacity": None,
    "report_limited": None,
    "report_progress": None,
    "report_provider": None,
    "report_worker": None,
    "hand_back_tasks": None,
    "reschedule_task": None,
    "reschedule_tasks": None,
    "upkeep": None,
}

# Functions for users that need the scope admin instead of start.
ADMIN_FUNCTIONS = frozenset(
    {"create_api_key", "create_invitation", "create_key", "revoke_invitation", "revoke_key", "set_member"}
)

router = APIRouter(prefix="/rest/v1", include_in_schema=False)
log = structlog.get_logger(__name__)

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_READING = ("GET", "HEAD")


@router.api_route("/rpc/{name}", methods=_METHODS)
async def rpc(request: Request, name: str) -> Response:
    """Call a function."""

    async def answer(caller: Caller) -> Response:
        if request.method not in (*_READING, "POST"):
            raise RestError(405, "PGRST101", f"Cannot use the {request.method} method on RPC")
        return await _call(request, caller, name)

    return await _answered(request, answer)


@router.api_route("/{name}", methods=_METHODS)
async def relation(request: Request, name: str) -> Response:
    """Read a table or a view, or write to a table of the app."""

    async def answer(caller: Caller) -> Response:
        if request.method in _READING:
            return await _read(request, caller, name)
        return await _write(request, caller, name)

    return await _answered(request, answer)


@router.api_route("/{path:path}", methods=_METHODS)
async def unknown_path(request: Request, path: str) -> Response:
    """Reject all other paths."""
    return RestError(404, "PGRST125", "Invalid path specified in request URL").response()


async def _answered(request: Request, answer: Callable[[Caller], Awaitable[Response]]) -> Response:
    """Run the handler and convert its errors to PostgREST's format."""
    is_anon = True
    try:
        if len(request.scope["raw_path"]) + len(request.scope["query_string"]) > MOST_URL_BYTES:
            raise RestError(414, "PGRST100", "The URL is too long", details=f"at most {MOST_URL_BYTES} bytes")
        # Service credentials are not rate limited: workers share one and poll often.
        caller = await identify(request, is_service_limited=False)
        is_anon = caller.role == "anon"
        response = await answer(caller)
        weigh(request, len(response.body))
        return response
    except Exception as error:
        reported = error_for(error, is_anon=is_anon)
        if reported is None:
            reported = RestError(500, "PGRSTX00", "Internal error; it has been logged")
        if reported.status >= 500:
            log.error("request failed", code=reported.body["code"], exc_info=error)
        return reported.response()


def _callers(request: Request) -> Callers:
    return request.app.state.callers


def _app(request: Request) -> App | None:
    return request.app.state.app


def _preferred(request: Request) -> Preferences:
    app = _app(request)
    return preferences.read(request, app.own.schema if app and app.own else None)


async def _catalogues(request: Request, preferred: Preferences) -> list[Catalogue]:
    """The catalogues of the chosen schemas, in the order in which a name is looked up."""
    return [await catalogue_of(request, schema) for schema in preferred.schemas]


async def catalogue_of(request: Request, schema: str) -> Catalogue:
    """The catalogue of a schema, read again every few seconds."""
    known: dict[str, Catalogue] = request.app.state.rest_catalogues
    found = known.get(schema)
    if found is None or not found.is_fresh:
        async with _callers(request).acting(ANON, read_only=True) as conn:
            found = known[schema] = await catalogue.read(conn, schema)
    return found


def _count(request: Request, caller: Caller, cost: float, *, is_counted: bool = False) -> None:
    """Count an expensive query as several requests. Raises Limited."""
    # The total is a second query with the same filters.
    cost = cost * 2 + COUNT_COST if is_counted else cost
    if caller.role != "service_role" and cost >= 1:
        _callers(request).take(caller, cost)


# Tables and views


async def _relation(request: Request, preferred: Preferences, name: str) -> Relation:
    for each in await _catalogues(request, preferred):
        if name in each.relations:
            return each.relations[name]
    text = f"Could not find the table '{preferred.schemas[0]}.{shortened(name)}' in the schema cache"
    raise RestError(404, "PGRST205", text)


async def _read(request: Request, caller: Caller, name: str) -> Response:
    preferred = _preferred(request)
    found = await _relation(request, preferred, name)
    if caller.role not in found.roles or not caller.may("read"):
        raise permission_denied(f"table {found.name}", is_anon=caller.role == "anon")
    source = RowSource(found.sql, found.columns, found.name)
    parameters = request.query_params.multi_items()
    query = queries.read(source, parameters, request.headers.get("range"), MOST_ROWS)
    text, values = queries.statement(
        source,
        query,
        is_single=preferred.is_single,
        is_stripped=preferred.is_stripped,
        is_counted=preferred.is_counted,
        most_bytes=MOST_BYTES,
    )
    _count(request, caller, query.cost, is_counted=preferred.is_counted)
    async with _callers(request).acting(caller, read_only=True) as conn:
        body, count, total = await _run(conn, ("with " + text, values))
        _check_page(preferred, count, total, query.offset)
    return _response(request, preferred, found.schema, body, count, total, query.offset)


async def _write(request: Request, caller: Caller, name: str) -> Response:
    preferred = _preferred(request)
    found = await _relation(request, preferred, name)
    if request.method == "PUT" or not _is_writable(request, found):
        raise RestError(
            405,
            "PGRST117",
            f"Unsupported HTTP method: {request.method}",
            hint="This table is read-only. Use a function to change data: /rest/v1/rpc/…",
        )
    # Policies of apps know members, not the scopes of their keys.
    is_out_of_scope = caller.scopes is not None and "start" not in caller.scopes
    if caller.role == "anon" or is_out_of_scope:
        raise permission_denied(f"table {found.name}", is_anon=caller.role == "anon")
    sent = ("", None) if request.method == "DELETE" else await _document(request)
    parameters = request.query_params.multi_items()
    change, cost = writing.statement(request.method, found, parameters, sent, preferred, MOST_BYTES)
    _count(request, caller, cost)
    async with _callers(request).acting(caller) as conn:
        body, count, _ = await _run(conn, change)
        # Within the transaction, so that an error rolls back the write.
        if preferred.is_single:
            _check_page(preferred, count, None, 0)
    return _written(request, preferred, found.schema, body, count)


def _is_writable(request: Request, found: Relation) -> bool:
    app = _app(request)
    return (
        app is not None
        and app.own is not None
        and found.schema == app.own.schema
        and found.name in app.writable_tables
    )


def _written(request: Request, preferred: Preferences, schema: str, body: str, count: int) -> Response:
    is_insert = request.method == "POST"
    total = count if preferred.is_counted else "*"
    headers = {**_headers(preferred, schema), "Content-Range": f"*/{total}"}
    applied = [
        *([f"resolution={preferred.resolution}"] if is_insert and preferred.resolution else []),
        *(["return=representation"] if preferred.is_represented else []),
        *([preferred.headers["Preference-Applied"]] if preferred.headers else []),
    ]
    if applied:
        headers["Preference-Applied"] = ", ".join(applied)
    if preferred.is_represented:
        return Response(body.encode(), 201 if is_insert else 200, headers, preferred.content_type)
    return Response(status_code=201 if is_insert else 204, headers=headers)


# Functions


async def _call(request: Request, caller: Caller, name: str) -> Response:
    preferred = _preferred(request)
    function = await _function(request, preferred, name)
    allowed = _worker_functions(request, function)
    is_work = name in allowed and caller.may("work")
    may_call = caller.may(_scope(function, allowed))
    if caller.role not in function.roles or not (is_work or may_call):
        raise permission_denied(f"function {function.name}", is_anon=caller.role == "anon")
    if request.method in _READING and not function.is_read_only:
        raise RestError(
            405,
            "25006",
            f"cannot execute {function.name} in a read-only transaction",
            hint="Use POST.",
        )
    call, names, parameters = await _invocation(request, function)
    if not may_call and (needed := allowed[name]) and needed not in names:
        raise permission_denied(f"function {function.name} without {needed}", is_anon=False)
    source = RowSource("called", function.columns, function.name, is_scalar=not function.is_composite)
    query = queries.read(source, parameters, request.headers.get("range"), None)
    text, values = queries.statement(
        source,
        query,
        is_single=preferred.is_single or not function.is_set,
        is_stripped=preferred.is_stripped,
        is_counted=preferred.is_counted,
        most_bytes=None if caller.role == "service_role" else MOST_BYTES,
    )
    statement = f"with called as ({call[0]}), {text}", [*call[1], *values]
    _count(request, caller, query.cost, is_counted=preferred.is_counted)
    async with _callers(request).acting(caller, read_only=function.is_read_only) as conn:
        body, count, total = await _run(conn, statement)
        if function.is_set:
            # Within the transaction, so that an error rolls back the call.
            _check_page(preferred, count, total, query.offset)
    if function.is_void:
        return Response(status_code=204, headers=_headers(preferred, function.schema))
    return _response(request, preferred, function.schema, body, count, total, query.offset)


async def _function(request: Request, preferred: Preferences, name: str) -> Function:
    for each in await _catalogues(request, preferred):
        if name in each.functions:
            return each.functions[name]
    raise _unknown(preferred.schemas[0], name, None, ())


def _worker_functions(request: Request, function: Function) -> Mapping[str, str | None]:
    """The functions of the same schema that a worker key may call."""
    app = _app(request)
    if function.schema == preferences.PLATFORM or app is None:
        return WORKER_FUNCTIONS
    return app.worker_functions


def _scope(function: Function, allowed: Mapping[str, str | None]) -> Scope:
    """The scope that a service key needs to call a function."""
    if function.is_read_only:
        return "read"
    if allowed.get(function.name, "") is None:
        return "work"
    is_admin = function.schema == preferences.PLATFORM and function.name in ADMIN_FUNCTIONS
    return "start" if "authenticated" in function.roles and not is_admin else "admin"


async def _invocation(
    request: Request, function: Function
) -> tuple[Sql, frozenset[str], list[tuple[str, str]]]:
    """The call, the names of arguments that are not null, and the remaining query parameters."""
    parameters = request.query_params.multi_items()
    if request.method == "POST":
        text, given = await _body(request)
        source, values = _with_document(function, text, _checked(function, given))
    else:
        given = {name: value for name, value in parameters if _is_argument(function, name)}
        parameters = [pair for pair in parameters if pair[0] not in given]
        columns = [function.inputs[name] for name in _checked(function, given)]
        arguments = ", ".join(f"{column.sql} => %s::{column.type}" for column in columns)
        source, values = f"{function.sql}({arguments})", list(given.values())
    present = frozenset(name for name, value in given.items() if value is not None)
    if function.is_composite:
        return (f"select result.* from {source} as result", values), present, parameters  # noqa: S608 names from the catalogue
    # A void function has no value to select.
    value = "1 as value" if function.is_void else "result.value"
    return (f"select {value} from {source} as result(value)", values), present, parameters  # noqa: S608 the same


def _with_document(function: Function, text: str, names: list[str]) -> Sql:
    """Pass the JSON to PostgreSQL as text, so that no number is rounded and arrays become arrays."""
    columns = [function.inputs[name] for name in names]
    if not columns:
        return f"{function.sql}()", []
    record = ", ".join(f"{column.sql} {column.type}" for column in columns)
    arguments = ", ".join(f"{column.sql} => given.{column.sql}" for column in columns)
    return f"json_to_record(%s::json) as given({record}), {function.sql}({arguments})", [text]


def _is_argument(function: Function, name: str) -> bool:
    """Whether a query parameter is an argument. Unknown names count as (wrong) arguments, not as filters."""
    is_filter = name in queries.WORDS or name.partition("->")[0].strip('"') in function.columns
    return name in function.inputs or not is_filter


def _checked(function: Function, given: dict[str, Any]) -> list[str]:
    """The argument names. Raises RestError if the function cannot be called with them."""
    if not function.required <= given.keys() <= function.inputs.keys():
        raise _unknown(function.schema, function.name, function, list(given))
    return list(given)


def _unknown(schema: str, name: str, function: Function | None, given: list[str] | tuple[()]) -> RestError:
    name = f"{schema}.{shortened(name)}"
    words = shortened(", ".join(given))
    call = f"{name}({words})" if words else f"{name} without parameters"
    hint = None
    if function is not None:
        hint = f"Perhaps you meant to call the function {name}({', '.join(function.inputs)})"
    return RestError(
        404,
        "PGRST202",
        f"Could not find the function {call} in the schema cache",
        details=f"Searched for the function {call}, but no matches were found in the schema cache.",
        hint=hint,
    )


async def _body(request: Request) -> tuple[str, dict[str, Any]]:
    """The JSON object in the body, as text for the database and parsed; empty if there is no body."""
    text, found = await _document(request, default="{}")
    if not isinstance(found, dict):
        raise RestError(400, "PGRST102", "Empty or invalid json", details="the body must be a JSON object")
    return text, cast("dict[str, Any]", found)


async def _document(request: Request, default: str = "") -> tuple[str, Any]:
    """The JSON document in the body, as text for the database and parsed."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RestError(400, "PGRST102", f"Content-Type not acceptable: {shortened(kind)}")
    limits: Limits = request.app.state.limits
    sent = await read_body(request, limits)
    if not sent.strip():
        sent = default.encode()
    try:
        found = read_json(sent, limits)
        return sent.decode(), found
    except Invalid as error:
        if error.code != "invalid_json":
            raise
        raise RestError(400, "PGRST102", "Empty or invalid json", details=error.message) from error


# Responses


async def _run(conn: db.Connection, statement: Sql) -> tuple[str, int, int | None]:
    """Run the statement. Returns the body, the number of rows in it, and the total number of rows."""
    text, values = statement
    # The statement consists of fixed text and names quoted by the database; every value is a parameter.
    [(body, count, total)] = await db.rows(conn, cast("LiteralString", text), values)
    if body is None:
        raise TooLarge(
            f"the response is larger than {MOST_BYTES} bytes",
            code="answer_too_large",
            hint="Request fewer rows or columns.",
            details={"limit": MOST_BYTES},
        )
    return body, count, total


def _check_page(preferred: Preferences, count: int, total: int | None, offset: int) -> None:
    if total is not None and offset > total:
        raise queries.out_of_range(f"An offset of {offset} was requested, but there are only {total} rows.")
    if preferred.is_single and count != 1:
        raise RestError(
            406,
            "PGRST116",
            "Cannot coerce the result to a single JSON object",
            details=f"The result contains {count} rows",
        )


def _response(
    request: Request,
    preferred: Preferences,
    schema: str,
    body: str,
    count: int,
    total: int | None,
    offset: int,
) -> Response:
    pages = f"{offset}-{offset + count - 1}" if count else "*"
    headers = {**_headers(preferred, schema), "Content-Range": f"{pages}/{'*' if total is None else total}"}
    if preferred.is_minimal and request.method == "POST":
        return Response(status_code=204, headers=headers)
    status = 206 if total is not None and count < total else 200
    content = b"" if request.method == "HEAD" else body.encode()
    return Response(content, status, headers, preferred.content_type)


def _headers(preferred: Preferences, schema: str) -> dict[str, str]:
    return {"Cache-Control": "no-store", "Content-Profile": schema, **preferred.headers}
