"""Names have no control characters, in any call: a line break in one forges a line of a log."""

from __future__ import annotations

import uuid
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Contract

FORGED = "name\nforged"
MARKS = ("a\nb", "a\x1bb", "a\x7fb", "a\x9bb", "a\u2028b", "a\u202eb")
"""A line break, escape, delete, a C1 control character, a line separator, right to left."""

# Functions that store a name, with arguments that are valid otherwise. NAME is the parameter under test, TASK
# and WORKER a leased task. A parameter that is not here is compared with stored names only.
NAME, TENANT, TASK, LEASE = object(), object(), object(), object()
LEASED: dict[str, Any] = {"task_id": TASK, "worker_id": "w1", "lease": LEASE}
STORING: list[tuple[str, str, dict[str, Any]]] = [
    ("start_job", "type", {"tasks": Jsonb([]), "options": {"tenant_id": TENANT}}),
    ("open_job", "type", {"options": {"tenant_id": TENANT}}),
    ("start_drawn_job", "type", {"params": Jsonb({}), "tasks": Jsonb([]), "options": {"tenant_id": TENANT}}),
    ("create_tenant", "name", {}),
    ("ensure_tenant", "name", {}),
    ("create_key", "name", {"role": "member", "tenant_id": TENANT}),
    ("create_api_key", "name", {"role": "member", "options": {"tenant_id": TENANT}}),
    ("claim_tasks", "worker_id", {}),
    ("report_worker", "worker_id", {"info": Jsonb({})}),
    ("lead_upkeep", "worker_id", {}),
    ("begin_upload", "name", {"content_type": "image/png", "bytes": 1, "options": {"tenant_id": TENANT}}),
    ("begin_artifact", "name", {**LEASED, "content_type": "image/png", "bytes": 1}),
    ("open_wait", "name", LEASED),
    ("store_step", "name", {**LEASED, "output": Jsonb(1)}),
    ("begin_operation", "object", {**LEASED, "timeout_seconds": 60.0}),
    ("define_kind", "name", {}),
    ("define_job_type", "name", {}),
    ("define_setting", "name", {"value": Jsonb(1), "comment": "x"}),
    ("set_provider", "name", {}),
    ("set_meter", "name", {}),
    ("set_plan", "name", {}),
    ("set_price", "provider", {"meter": "requests", "amount": 1}),
    ("record_cost", "cost_type", {"amount": 1, "tenant_id": TENANT}),
    ("record_usage", "action", {"units": Jsonb({"pages": 1}), "tenant_id": TENANT}),
    ("reserve_quota", "action", {"tenant_id": TENANT, "amounts": Jsonb({"pages": 1})}),
    ("reserve_quota", "key", {"tenant_id": TENANT, "amounts": Jsonb({"pages": 1})}),
    ("add_allowance", "key", {"tenant_id": TENANT, "meter": "pages", "amount": 1, "source": "purchase"}),
    ("record_outcome", "scope", {"tenant_id": TENANT, "is_success": True}),
    ("notify", "subject", {"tenant_id": TENANT, "body": "x"}),
    ("record_audit", "subject", {"action": "app.done"}),
    ("raise_alert", "subject", {"kind": "failed_logins", "count": 1}),
    ("begin_request", "key", {"digest": b"x"}),
    ("take_webhook", "key", {"source": "stripe", "type": "x", "payload": Jsonb({})}),
    ("take_webhook", "type", {"source": "stripe", "key": "x", "payload": Jsonb({})}),
    ("sign_in_identity", "subject", {"issuer": "https://example.org"}),
    ("bind_sheet", "account", {"tenant_id": TENANT}),
    (
        "set_provider_key",
        "provider",
        {"host": "h", "sealed": bytes(29), "wrapped_key": bytes(29), "master_id": "0" * 16},
    ),
]

_PARAMETERS = """
select p.proname as function, substr(a.name, 3) as parameter
from pg_proc p cross join lateral unnest(p.proargnames, p.proargtypes::oid[]) as a (name, type)
where p.pronamespace = 'penstock'::regnamespace and p.proname !~ '^_' and a.type = 'text'::regtype
  and a.name in ('p_name', 'p_type', 'p_job_type', 'p_kind', 'p_worker_id', 'p_key', 'p_provider', 'p_object',
    'p_provider_name', 'p_api_endpoint', 'p_external_id', 'p_scope', 'p_action', 'p_cost_type', 'p_account',
    'p_source', 'p_subject', 'p_issuer', 'p_channel', 'p_meter', 'p_plan')
order by 1, 2"""
_TYPES = """
select substr(a.name, 3) as name, format_type(a.type, null) as type
from pg_proc p cross join lateral unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) as a (name, type)
where p.oid = (select oid from pg_proc where proname = %s and pronamespace = 'penstock'::regnamespace)"""
_PLACES = """
select c.oid::regclass::text as name from pg_class c
where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r'"""


@pytest.mark.parametrize(
    ("function", "parameter", "others"), STORING, ids=[f"{name}-{which}" for name, which, _ in STORING]
)
def test_name_with_a_control_character_is_refused(
    sql: Contract, function: str, parameter: str, others: dict[str, Any]
) -> None:
    """S73, B9/shared"""
    sql.start(1)
    task = sql.claim_one() if TASK in others.values() else {"id": None, "lease": None}
    known = {TENANT: sql.tenant, TASK: task["id"], LEASE: task["lease"]}

    def value(given: Any) -> Any:
        if isinstance(given, dict):
            return Jsonb({name: str(value(each)) for name, each in given.items()})
        return known[given] if given.__hash__ and given in known else given

    arguments = {name: value(given) for name, given in others.items()}
    for mark in MARKS:
        with sql.refused(422):
            sql.value(function, **{**arguments, parameter: mark})


def test_no_function_stores_a_name_with_a_line_break(sql: Contract) -> None:
    """S73: every parameter of the catalogue that takes a name is called with a forged one."""
    found = {(row["function"], row["parameter"]) for row in sql.execute(_PARAMETERS)}
    tested = {(function, parameter) for function, parameter, _ in STORING}
    assert tested <= found, "a function or parameter was renamed"
    for function, parameter in sorted(found - tested):
        arguments = {
            row["name"]: FORGED if row["name"] == parameter else _any(sql, row["name"], row["type"])
            for row in sql.execute(_TYPES, function)
        }
        try:
            with sql.connection.transaction():
                sql.value(function, **arguments)
        except psycopg.Error:
            continue
        places = [row["name"] for row in sql.execute(_PLACES)]
        trace = "select count(*) from {} as t where position('name\\nforged' in to_jsonb(t)::text) > 0"
        stored = [place for place in places if sql.one(trace.format(place))]
        assert not stored, f"{function}({parameter}) stores a line break in {stored}"


def _any(sql: Contract, name: str, type: str) -> Any:
    """A value of this type."""
    if name == "tenant_id":
        return sql.tenant
    match type:
        case "text":
            return "x"
        case "uuid":
            return uuid.uuid4()
        case "jsonb":
            return Jsonb({})
        case "boolean":
            return True
        case "bytea":
            return b"x"
        case "text[]" | "bigint[]" | "jsonb[]" | "uuid[]":
            return []
        case "date" | "timestamp with time zone":
            return "2030-01-01"
        case _:
            return 1
