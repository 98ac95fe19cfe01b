"""Every route, as every role and as a stranger from another tenant. A new route without a line here fails."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import APIRouter, FastAPI
from psycopg.types.json import Jsonb

from penstock import api, testing
from penstock.api import events
from penstock.settings import Settings
from tests.api.conftest import Person, World, bearer

pytestmark = pytest.mark.every_postgres

CANARY = "canary of ann"
ROLES = ("anon", "worker", "viewer", "member", "admin", "owner", "service")


@dataclass(frozen=True)
class Things:
    """The objects of a tenant, by their names in routes."""

    tenant_id: uuid.UUID
    job_id: uuid.UUID
    failed_job: uuid.UUID
    paused_job: uuid.UUID
    task_id: int
    letter_id: int
    schedule_id: uuid.UUID
    target_id: uuid.UUID
    user_id: uuid.UUID
    key_id: uuid.UUID
    invitation_id: uuid.UUID
    provider: str
    artifact_id: uuid.UUID
    upload_id: uuid.UUID
    path: str
    bulk_id: uuid.UUID
    gated_job: uuid.UUID
    bulk_row: str
    wait_id: uuid.UUID
    operation_id: uuid.UUID
    token: str


@dataclass(frozen=True)
class Row:
    """A line of the matrix: the least role, the response to strangers, and the request."""

    least: str
    """One of ROLES; or `anybody`; or `nobody`: it takes a signature, which is no matter of roles."""
    stranger: int
    query: str = ""
    body: Any = None
    about: dict[str, str] = field(default_factory=dict[str, str])
    """Of which of several things it is about."""
    good: tuple[int, ...] = (200, 201, 204)
    is_stream: bool = False
    key: int | None = None
    """What a key of another tenant hears, if not what its users hear."""
    content: bytes | None = None
    """What is sent if it is no JSON."""


OF_TENANT = "?tenant_id={tenant_id}"
TASKS = [{"kind": "work", "input": {"note": CANARY}}]
START = {"type": "report", "tasks": TASKS, "tenant_id": "{tenant_id}"}
SCHEDULE = {"cron": "0 3 * * *", "job_type": "report", "tasks": TASKS, "tenant_id": "{tenant_id}"}
TARGET = {"channel": "webhook", "address": "https://example.com/new", "tenant_id": "{tenant_id}"}
UPLOAD = {"name": "a.pdf", "content_type": "application/pdf", "bytes": 10, "tenant_id": "{tenant_id}"}
BULK = {"type": "sheet", "rows": [{"note": CANARY}], "tenant_id": "{tenant_id}"}
OF_BULK = {"job_id": "bulk_id"}
SHEET = f"note\n{CANARY}\n".encode()
CHECKOUT = {
    "price": "none",
    "success_url": "http://test/",
    "cancel_url": "http://test/",
    "tenant_id": "{tenant_id}",
}
PORTAL = {"return_url": "http://test/", "tenant_id": "{tenant_id}"}
HOLDER = {"worker_id": "w", "lease": 1}
TASK_FILE = {**HOLDER, "name": "a.pdf", "content_type": "application/pdf", "bytes": 10}
LETTERS = {"ids": ["{letter_id}"]}

# fmt: off
ROWS: dict[str, Row] = {
    "POST /api/jobs/start": Row("member", 403, body=START),
    "POST /api/jobs/forecast": Row("member", 403, body=START),
    "GET /api/jobs": Row("viewer", 200, OF_TENANT),
    "GET /api/jobs/{job_id}": Row("viewer", 404),
    "POST /api/jobs/{job_id}/pause": Row("member", 404, body={"reason": CANARY}),
    "POST /api/jobs/{job_id}/resume": Row("member", 404, about={"job_id": "paused_job"}),
    "POST /api/jobs/{job_id}/cancel": Row("member", 404),
    "POST /api/jobs/{job_id}/confirm": Row("member", 404, about={"job_id": "gated_job"}),
    "POST /api/jobs/{job_id}/retry": Row("member", 404, about={"job_id": "failed_job"}),
    "GET /api/jobs/{job_id}/forecast": Row("viewer", 404),
    "GET /api/jobs/{job_id}/costs": Row("viewer", 404),
    "GET /api/jobs/{job_id}/result": Row("viewer", 404),
    "PUT /api/jobs/{job_id}/budget": Row("member", 404, body={"amount": "5"}),
    "GET /api/jobs/{job_id}/tasks": Row("viewer", 404),
    "POST /api/jobs/{job_id}/tasks": Row("member", 404, body={"tasks": TASKS}),
    "GET /api/jobs/{job_id}/tasks/{task_id}": Row("viewer", 404),
    "GET /api/jobs/{job_id}/tasks/{task_id}/why": Row("viewer", 404),
    "GET /api/jobs/{job_id}/attempts": Row("viewer", 404, about={"job_id": "failed_job"}),
    "GET /api/jobs/{job_id}/logs": Row("viewer", 404, about={"job_id": "failed_job"}),
    "GET /api/jobs/{job_id}/artifacts": Row("viewer", 404),
    "POST /api/bulks/start": Row("member", 403, body=BULK),
    "POST /api/bulks/upload": Row("member", 403, "?type=sheet&tenant_id={tenant_id}&format=csv", content=SHEET),
    # Without an app there is no such type for anybody: tests/api/test_bulks.py has one.
    "POST /api/bulks/check": Row("member", 404, "?type=sheet&format=csv", content=SHEET, good=(404,)),
    "POST /api/bulks/forecast": Row("member", 404, "?type=sheet&format=csv", content=SHEET, good=(404,)),
    "GET /api/bulks": Row("viewer", 200, OF_TENANT),
    "GET /api/bulks/{job_id}": Row("viewer", 404, about=OF_BULK),
    "GET /api/bulks/{job_id}/rows": Row("viewer", 404, about=OF_BULK),
    "POST /api/bulks/{job_id}/rows": Row("member", 404, about=OF_BULK, body={"rows": [{"number": 9, "data": {}}]}),
    "POST /api/bulks/{job_id}/upload": Row("member", 404, "?format=csv", about=OF_BULK, content=SHEET),
    "POST /api/bulks/{job_id}/read": Row("member", 404, about=OF_BULK, good=(409,)),
    "POST /api/bulks/{job_id}/undo": Row("member", 404, about=OF_BULK, body={}),
    "GET /api/bulks/{job_id}/export": Row("viewer", 404, about=OF_BULK),
    "POST /api/uploads": Row("member", 403, body=UPLOAD),
    "GET /api/dead-letters": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/dead-letters/{letter_id}": Row("viewer", 404),
    "POST /api/dead-letters/replay": Row("viewer", 200, body=LETTERS),
    "POST /api/dead-letters/discard": Row("viewer", 200, body=LETTERS),
    "GET /api/waits": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/waits/{wait_id}": Row("viewer", 404),
    # The first answer counts: later callers hear 409.
    "POST /api/waits/{wait_id}/answer": Row("member", 404, body={"option": CANARY}, good=(200, 204, 409)),
    "GET /api/operations": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/operations/{operation_id}": Row("viewer", 404),
    "POST /api/operations/{operation_id}/reconcile": Row("member", 404),
    "POST /api/operations/{operation_id}/cancel": Row("member", 404),
    "GET /api/schedules": Row("viewer", 200, OF_TENANT),
    "PUT /api/schedules": Row("member", 403, "?name=nightly", body=SCHEDULE),
    "DELETE /api/schedules/{schedule_id}": Row("member", 404),
    "GET /api/notifications": Row("viewer", 200, OF_TENANT),
    "GET /api/notification-targets": Row("viewer", 200, OF_TENANT),
    "PUT /api/notification-targets": Row("admin", 403, body=TARGET),
    "DELETE /api/notification-targets/{target_id}": Row("admin", 404),
    "POST /api/notification-targets/{target_id}/test": Row("admin", 404),
    "POST /api/notification-targets/{target_id}/rotate": Row("admin", 404),
    "GET /api/usage": Row("viewer", 403, OF_TENANT),
    "GET /api/usage/days": Row("viewer", 200, OF_TENANT),
    "GET /api/usage/limits": Row("viewer", 403, OF_TENANT),
    "GET /api/plans": Row("viewer", 200),
    "GET /api/billing": Row("viewer", 403, OF_TENANT),
    # Without a Stripe account there is no billing: tests/test_billing.py has the simulator's.
    "POST /api/billing/checkout": Row("admin", 403, body=CHECKOUT, good=(422,)),
    "POST /api/billing/portal": Row("admin", 403, body=PORTAL, good=(409,)),
    "GET /api/entitlements": Row("viewer", 403, OF_TENANT),
    "GET /api/entitlements/gates/{gate}": Row("viewer", 403, OF_TENANT, good=(404,)),
    "GET /api/costs": Row("viewer", 200, OF_TENANT + "&by=job"),
    "GET /api/costs/entries": Row("viewer", 200, OF_TENANT),
    "GET /api/prices": Row("viewer", 200, "?provider={provider}"),
    "GET /api/providers": Row("service", 403),
    "GET /api/providers/events": Row("service", 403, "?name={name}"),
    "POST /api/providers/open": Row("service", 403, "?name={name}"),
    "PUT /api/providers": Row("service", 403, "?name={name}", body={"concurrency": 3}),
    "GET /api/workers": Row("service", 403),
    "GET /api/backlog": Row("service", 403),
    "GET /api/wanted-slots": Row("service", 403),
    "GET /api/me": Row("viewer", 200),
    "GET /api/tenants": Row("viewer", 200),
    "GET /api/tenants/{tenant_id}/members": Row("viewer", 200),
    "PUT /api/tenants/{tenant_id}/members/{user_id}": Row("admin", 403, body={"role": "viewer"}),
    "DELETE /api/tenants/{tenant_id}/members/{user_id}": Row("admin", 403),
    "POST /api/tenants/{tenant_id}/invitations": Row("admin", 403, body={"role": "viewer"}),
    "GET /api/tenants/{tenant_id}/invitations": Row("admin", 403),
    "DELETE /api/invitations/{invitation_id}": Row("admin", 404),
    "POST /api/invitations/look-up": Row("viewer", 404, body={"secret": "psi_none"}, good=(404,)),
    # Keys and the service cannot answer an invitation: tests/sql/test_invitations.py has users who do.
    "POST /api/invitations/accept": Row("viewer", 404, body={"secret": "psi_none"}, good=(403,), key=403),
    "POST /api/invitations/decline": Row("viewer", 404, body={"secret": "psi_none"}, good=(403,), key=403),
    "POST /api/tenants/{tenant_id}/leave": Row("viewer", 403, body={}, good=(403,)),
    "POST /api/keys": Row("admin", 403, body={"name": CANARY, "role": "viewer", "tenant_id": "{tenant_id}"}),
    "GET /api/keys": Row("admin", 403, OF_TENANT),
    "DELETE /api/keys/{key_id}": Row("admin", 404),
    "GET /api/artifacts/{artifact_id}": Row("viewer", 404, good=(307,)),
    "DELETE /api/artifacts/{artifact_id}": Row("member", 404),
    "PUT /api/artifacts/{artifact_id}/link": Row("member", 404, body={"link": "login"}),
    # Without the lease: tests/api/test_task_uploads.py has workers that hold it.
    "POST /api/tasks/{task_id}/artifacts": Row("worker", 403, body=TASK_FILE, good=(410,)),
    "POST /api/tasks/{task_id}/artifacts/{artifact_id}/finish": Row("worker", 403, body=HOLDER, good=(410,)),
    "POST /api/uploads/{artifact_id}/finish": Row("member", 404, about={"artifact_id": "upload_id"}),
    "GET /api/job-types": Row("viewer", 200),
    "GET /api/jobs/{job_id}/events": Row("viewer", 404, is_stream=True),
    "GET /api/jobs/{job_id}/tasks/{task_id}/stream": Row("viewer", 404, is_stream=True),
    "GET /api/events": Row("viewer", 403, OF_TENANT, is_stream=True),
    "GET /metrics": Row("worker", 403),
    "GET /healthz": Row("anybody", 200),
    "GET /readyz": Row("anybody", 200),
    "PUT /storage/{path}": Row("nobody", 403),
    "GET /storage/{path}": Row("nobody", 403),
    "HEAD /storage/{path}": Row("nobody", 403),
}
# fmt: on

# Not in the description. What is behind the first three is in FUNCTIONS below and, of tables, in tests/sql/test_access.py;
# tests/api/rest/test_access.py goes through all of them over HTTP. A link is no matter of roles: tests/api/test_waits.py.
HIDDEN = {
    "/answers/{token}",
    # tests/api/test_links.py
    "/links/{artifact_id}",
    "/links/{artifact_id}/{token}",
    # Who may call a function of an app is the app's matter; tests/api/test_functions.py tries them.
    "/functions/v1/{name}",
    # Static files of the app; tests/api/test_web.py.
    "/web/{name}",
    "/web/{name}/{file}",
    "/webhooks/{source}",
    "/rest/v1/rpc/{name}",
    "/rest/v1/{name}",
    "/rest/v1/{path}",
    "/api/openapi.json",
    "/docs",
    "/redoc",
    "/openapi.json",
}


@dataclass(frozen=True)
class Call:
    """A line of the matrix for a function: the least role, the error for strangers (or None), and the arguments."""

    least: str
    stranger: str | None
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    about: dict[str, str] = field(default_factory=dict[str, str])
    good: str | None = None
    """What those who may hear instead of an answer."""


def of_tenant(**others: Any) -> dict[str, Any]:
    return {"tenant_id": "{tenant_id}", **others}


OF_JOB = {"p_job_id": "{job_id}"}
OF_TASK = {**OF_JOB, "p_task_id": "{task_id}"}
CHOSEN = {"p_options": of_tenant()}
FILTER = {"p_filter": {"ids": ["{letter_id}"]}}
BULK_ROWS = [{"number": 3, "data": {"title": CANARY}}]

# fmt: off
FUNCTIONS: dict[str, Call] = {
    "_artifact_type": Call("viewer", None, {"p_content_type": "audio/mpeg"}),
    "_base_rate": Call("viewer", None, {"p_currency": "EUR", "p_at": "2026-01-01"}),
    "_bulk_row_state": Call("viewer", None, {"p_row": "{bulk_row}"}),
    "_is_running": Call("viewer", None, {**OF_JOB, "p_first_id": 1, "p_last_id": 10**6}),
    "_now": Call("viewer", None),
    "_row_cost": Call("viewer", None, {"p_row": "{bulk_row}"}),
    "_task_state": Call("viewer", None, OF_TASK),
    "add_bulk_rows": Call("member", "PT404", {**OF_JOB, "p_rows": BULK_ROWS}, about={"job_id": "bulk_id"}),
    "add_tasks": Call("member", "PT404", {**OF_JOB, "p_tasks": TASKS}),
    "answer_wait": Call("member", "PT404", {"p_wait_id": "{wait_id}", "p_option": CANARY}),
    "cancel_operation": Call("member", "PT404", {"p_operation_id": "{operation_id}"}),
    "reconcile_operations": Call("member", "PT404", {"p_operation_id": "{operation_id}"}),
    "begin_request": Call("viewer", None, {"p_key": "{name}", "p_digest": b"0" * 32}),
    "begin_upload": Call("member", "PT403", {"p_name": "a", "p_content_type": "text/plain", "p_bytes": 1, **CHOSEN}),
    "cancel_job": Call("member", "PT404", OF_JOB),
    "check_gate": Call("viewer", "PT403", {"p_gate": "none", "p_tenant_id": "{tenant_id}"}, good="PT404"),
    "begin_checkout": Call("admin", "PT403", {"p_tenant_id": "{tenant_id}", "p_price": "none"}, good="PT422"),
    "begin_portal": Call("admin", "PT403", {"p_tenant_id": "{tenant_id}"}, good="PT409"),
    "billing_status": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "is_admin": Call("viewer", None),
    # No role in a tenant makes an admin of the installation.
    "admin_list_profiles": Call("service", "PT403"),
    "admin_get_profile": Call("service", "PT403", {"p_user_id": "{tenant_id}"}, good="PT404"),
    "admin_set_override": Call("service", "PT403", {
        "p_user_id": "{tenant_id}", "p_meter": "tokens", "p_amount": 1, "p_expires_on": "2090-01-01",
        "p_reason": CANARY}, good="PT404"),
    "admin_set_plan": Call("service", "PT403", {
        "p_user_id": "{tenant_id}", "p_plan": "free", "p_reason": CANARY}, good="PT404"),
    "admin_spend": Call("service", "PT403"),
    "tenant_margins": Call("service", "PT403"),
    "check_key": Call("viewer", "PT401"),
    "resolve_entitlements": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "clock": Call("viewer", None),
    "_synced_tables": Call("viewer", None, {"p_schema": "none"}),
    "_push_change": Call("viewer", None, {"p_table": "penstock.sync_horizons", "p_record": {"updated_at": 1}}),
    "_push_changes": Call("viewer", None, {"p_table": "penstock.sync_horizons", "p_records": []}),
    "_refusal_code": Call("viewer", None, {"p_sqlstate": "42501", "p_detail": "", "p_constraint": ""}),
    "push_changes": Call("viewer", None, {"p_changes": [{"table": "none", "record": {"id": "a"}}]}),
    "sync_state": Call("viewer", None),
    "set_own_price": Call("owner", "PT403", {"p_provider": "none", "p_meter": "images", "p_amount": 1, "p_tenant_id": "{tenant_id}"}, good="PT422"),
    "is_member": Call("viewer", None, {"p_tenant_id": "{tenant_id}"}),
    "is_service": Call("viewer", None),
    "my_tenant": Call("viewer", None),
    "refuse": Call("viewer", "PT409", {"p_status": 409, "p_code": "busy", "p_message": "busy"}, good="PT409"),
    "require_member": Call("member", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "accept_invitation": Call("viewer", "PT404", {"p_secret": "psi_none"}, good="PT403"),
    "create_invitation": Call("admin", "PT403", {"p_role": "viewer", "p_tenant_id": "{tenant_id}"}),
    "decline_invitation": Call("viewer", "PT404", {"p_secret": "psi_none"}, good="PT403"),
    "get_invitation": Call("viewer", None, {"p_secret": "psi_none"}),
    "leave_tenant": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}, good="PT403"),
    "list_invitations": Call("admin", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "revoke_invitation": Call("admin", "PT404", {"p_invitation_id": "{invitation_id}"}),
    "check_session": Call("viewer", "PT401", good="PT401"),
    "end_other_sessions": Call("viewer", None),
    "end_session": Call("viewer", "PT404", {"p_session_id": "{tenant_id}"}, good="PT404"),
    "list_sessions": Call("viewer", None, {"p_subject": "{user_id}"}),
    "confirm_job": Call("member", "PT404", OF_JOB, about={"job_id": "gated_job"}),
    "create_api_key": Call("admin", "PT403", {"p_name": "k", "p_role": "viewer", **CHOSEN}),
    "create_key": Call("admin", "PT403", {"p_name": "k", "p_role": "viewer", "p_tenant_id": "{tenant_id}"}),
    "delete_artifact": Call("member", "PT404", {"p_artifact_id": "{artifact_id}"}),
    "discard_dead_letters": Call("viewer", None, FILTER),
    "end_request": Call("viewer", None, {"p_key": "{name}", "p_status": 200, "p_answer": {}}),
    "explain_job": Call("viewer", "PT404", OF_JOB),
    "explain_task": Call("viewer", "PT404", OF_TASK),
    "forecast": Call("viewer", "PT404", OF_JOB),
    "forecast_job": Call("member", "PT403", {"p_type": "t", "p_tasks": TASKS, **CHOSEN}),
    "get_bulk": Call("viewer", "PT404", OF_JOB, about={"job_id": "bulk_id"}),
    "get_job": Call("viewer", "PT404", OF_JOB),
    "job_result": Call("viewer", "PT404", OF_JOB),
    "get_usage_status": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "job_graph": Call("viewer", "PT404", OF_JOB),
    "lane_states": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "list_api_keys": Call("admin", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "list_keys": Call("admin", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "my_tenants": Call("viewer", None),
    "my_admin_tenants": Call("viewer", None),
    "open_bulk": Call("member", "PT403", {"p_type": "sheet", **CHOSEN}),
    "open_job": Call("member", "PT403", {"p_type": "t", **CHOSEN}),
    "overview": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "pause_job": Call("member", "PT404", OF_JOB),
    "remove_notification_target": Call("admin", "PT404", {"p_target_id": "{target_id}"}),
    "rotate_notification_secret": Call("admin", "PT404", {"p_target_id": "{target_id}"}),
    "send_test_notification": Call("admin", "PT404", {"p_target_id": "{target_id}"}),
    "set_notification_target": Call("admin", "PT403", {"p_channel": "email", "p_address": "a@b.example", **CHOSEN}),
    "remove_schedule": Call("member", "PT404", {"p_schedule_id": "{schedule_id}"}),
    "replay_dead_letters": Call("viewer", None, FILTER),
    "resolve_limits": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "require_tenant": Call("member", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "resume_job": Call("member", "PT404", OF_JOB, about={"job_id": "paused_job"}),
    "retry_job": Call("member", "PT404", OF_JOB, about={"job_id": "failed_job"}),
    "revoke_key": Call("admin", "PT404", {"p_key_id": "{key_id}"}),
    "set_budget": Call("member", "PT404", {**OF_JOB, "p_amount": 5}),
    "set_member": Call("admin", "PT403", {"p_tenant_id": "{tenant_id}", "p_user_id": "{user_id}", "p_role": "viewer"}),
    "set_schedule": Call("member", "PT403", {
        "p_name": "n", "p_cron": "0 3 * * *", "p_job_type": "t", "p_next_run_at": "2100-01-01", **CHOSEN}),
    "start_action": Call("viewer", None, {"p_verb": "resume", "p_subjects": "{{{job_id},{bulk_id}}}"}),
    "find_jobs": Call("viewer", None, {"p_field": "text", "p_values": "{{canary}}"}),
    "cell_of": Call("viewer", None, {"p_id": "{job_id}"}),
    "set_artifact_link": Call("member", "PT404", {"p_artifact_id": "{artifact_id}", "p_link": "login"}),
    "start_job": Call("member", "PT403", {"p_type": "t", "p_params": {}, "p_tasks": TASKS, **CHOSEN}),
    "take_upload": Call("member", "PT404", {"p_artifact_id": "{upload_id}"}),
    "task_rates": Call("viewer", "PT403", {"p_tenant_id": "{tenant_id}"}),
    "read_bulk_again": Call("member", "PT404", OF_JOB, about={"job_id": "bulk_id"}, good="PT409"),
    "undo_bulk": Call("member", "PT404", OF_JOB, about={"job_id": "bulk_id"}),
    "weigh_action": Call("viewer", None, {"p_verb": "cancel", "p_subjects": "{{{job_id}}}"}),
}
# fmt: on

GRANTED = """
select p.proname as name from pg_proc p where p.pronamespace = 'penstock'::regnamespace
  and (has_function_privilege('anon', p.oid, 'execute') or has_function_privilege('authenticated', p.oid, 'execute'))
order by 1"""


def operations(document: dict[str, Any]) -> set[str]:
    return {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}


def without_line(app: FastAPI) -> set[str]:
    """The routes without a line in the matrix, also those outside of the OpenAPI schema."""

    def paths(routes: Any) -> Iterator[tuple[str, Any]]:
        for route in routes:
            if (included := getattr(route, "original_router", None)) is not None:
                yield from paths(included.routes)
            else:
                yield getattr(route, "path_format", route.path), route.methods

    found = {
        f"{method} {path}" for path, methods in paths(app.routes) if path not in HIDDEN for method in methods
    }
    return (found | operations(app.openapi())) ^ set(ROWS)


def test_every_route_is_in_the_matrix() -> None:
    """S1, S54: a new route fails here, also outside of the OpenAPI schema."""
    app = api.create(Settings())
    assert without_line(app) == set()
    router = APIRouter(prefix="/api")
    router.add_api_route("/fresh", lambda: 1, include_in_schema=False)
    router.add_api_route("/fresher/{job_id:uuid}", lambda: 1, methods=["POST"])
    app.include_router(router)
    app.openapi_schema = None
    assert without_line(app) == {"GET /api/fresh", "POST /api/fresher/{job_id}"}


def test_every_function_has_a_line(db: testing.Database) -> None:
    """R0.4/service-only, R2.1/service-only, R0.9/no-money-writes, S15: a new function that is granted to users fails here."""

    def granted() -> set[str]:
        return {row["name"] for row in db.execute(GRANTED)}

    assert granted() == set(FUNCTIONS)
    # As long as grants.sql is not applied again, what is new is everybody's.
    db.execute("create function penstock.fresh() returns integer language sql as 'select 1'")
    assert granted() - set(FUNCTIONS) == {"fresh"}


def make(world: World, ann: Person) -> Things:
    """One object of each sort, all ann's and with her canary text."""
    connection = world.db.connect()

    def one(query: str, *values: Any) -> Any:
        row = connection.execute(query.encode(), values).fetchone()
        return next(iter(row.values())) if row else None

    def start(kind: str, confirm: bool = False, **options: Any) -> uuid.UUID:
        tasks = [{"kind": kind, "input": {"note": CANARY}, "confirm": confirm}]
        chosen = {"tenant_id": str(ann.tenant), **options}
        return one(
            "select penstock.start_job('report', %s, %s, %s)",
            Jsonb({"note": CANARY}),
            Jsonb(tasks),
            Jsonb(chosen),
        )

    for kind in ("work", "doomed", "draw", "sheet.load", "sheet.apply", "sheet.undo", "asking"):
        one("select penstock.define_kind(%s, '{\"raw_tasks\": true}')", kind)
    one("select penstock.define_job_type('sheet')")
    one("select penstock.define_job_type('report')")
    one("select penstock.define_job_type('t')")
    one("select penstock.define_bulk_type('sheet')")
    job = start("work")
    failed = start("doomed")
    # What an earlier retry left is claimed as well.
    for claimed in connection.execute(
        "select * from penstock.claim_tasks('w', 10, array['doomed'], 30)"
    ).fetchall():
        one(
            "select penstock.fail_task(p_task_id => %s, p_worker_id => 'w', p_error => %s, p_lease => %s, p_permanent => true)",
            claimed["id"],
            CANARY,
            claimed["lease"],
        )
    start("draw")
    for drawn in connection.execute(
        "select * from penstock.claim_tasks('w', 1, array['draw'], 30)"
    ).fetchall():
        begin = "select id, path from penstock.begin_artifact(%s, 'w', %s, %s, 'text/plain')"
        artifact: Any = connection.execute(begin, [drawn["id"], drawn["lease"], CANARY]).fetchone()
        finish = "select penstock.finish_artifact(%s, 'w', %s, 1, %s)"
        one(finish, artifact["id"], drawn["lease"], "0" * 64)
        one("select penstock.complete_task(%s, 'w', null, %s)", drawn["id"], drawn["lease"])
    start("asking")
    for asking in connection.execute(
        "select * from penstock.claim_tasks('w', 1, array['asking'], 30)"
    ).fetchall():
        options = Jsonb({"options": [CANARY], "message": CANARY, "link": True})
        wait = one(
            "select penstock.open_wait(%s, 'w', %s, %s, %s)", asking["id"], asking["lease"], CANARY, options
        )
        one("select penstock.park_task(%s, 'w', %s, %s)", asking["id"], asking["lease"], wait["id"])
    start("asking")
    for asking in connection.execute(
        "select * from penstock.claim_tasks('w', 1, array['asking'], 30)"
    ).fetchall():
        operation = one(
            "select penstock.begin_operation(%s, 'w', %s, %s, 300)",
            asking["id"],
            asking["lease"],
            f"{CANARY} {uuid.uuid4()}",
        )
        one("select penstock.park_operation(%s, 'w', %s, 30)", operation["id"], asking["lease"])
    begin = "select id, incoming from penstock.begin_upload(%s, 'text/plain', 1, %s)"
    upload: Any = connection.execute(begin, [CANARY, Jsonb({"tenant_id": str(ann.tenant)})]).fetchone()
    sent = world.app.state.settings.home / "artifacts" / upload["incoming"]
    sent.parent.mkdir(parents=True, exist_ok=True)
    sent.write_text("x")
    bulk = one(
        "select job_id from penstock.open_bulk('sheet', '{}', %s)", Jsonb({"tenant_id": str(ann.tenant)})
    )
    one("select penstock.add_bulk_rows(%s, %s)", bulk, Jsonb([{"number": 2, "data": {"title": CANARY}}]))
    connection.execute(
        "insert into penstock.bulk_changes (tenant_id, job_id, row_number, name, after, applied_at)"
        " values (%s, %s, 2, 'note', %s, penstock._now())",
        [ann.tenant, bulk, Jsonb(CANARY)],
    )
    name = f"ann/{uuid.uuid4().hex[:8]}"
    one("select penstock.set_provider(%s, '{}', %s)", name, ann.tenant)
    one("select penstock.set_provider(%s, '{}')", name)
    one("select penstock.set_price(%s, 'requests', 1, %s)", name, Jsonb({"tenant_id": str(ann.tenant)}))
    one("select penstock.set_limit(%s, 'requests', 1000000)", ann.tenant)
    one(
        "select penstock.record_usage('{\"requests\": 1}', p_tenant_id => %s, p_action => %s)",
        ann.tenant,
        CANARY,
    )
    one(
        "select penstock.record_cost('render', 1, p_tenant_id => %s, p_options => %s)",
        ann.tenant,
        Jsonb({"job_id": str(job), "reason": CANARY}),
    )
    # A tenant has a limited number of these.
    for table in ("notification_targets", "invitations"):
        connection.execute(f"delete from penstock.{table} where tenant_id = %s", [ann.tenant])
    things = Things(
        tenant_id=ann.tenant,
        job_id=job,
        failed_job=failed,
        paused_job=start("work", paused=True),
        task_id=one("select id from penstock.tasks where job_id = %s", job),
        letter_id=one("select id from penstock.dead_letters where job_id = %s", failed),
        schedule_id=one(
            "select penstock.set_schedule(%s, '0 3 * * *', 'report', penstock._now(), %s)",
            f"{CANARY} {uuid.uuid4()}",
            Jsonb({"tenant_id": str(ann.tenant)}),
        ),
        target_id=one(
            "select id from penstock.set_notification_target('webhook', %s, array['alert', 'job.failed'], %s)",
            f"https://example.com/{uuid.uuid4()}",
            Jsonb({"tenant_id": str(ann.tenant)}),
        ),
        user_id=one("select id from penstock.create_key(%s, 'member', %s)", CANARY, ann.tenant),
        key_id=one("select id from penstock.create_key(%s, 'member', %s)", CANARY, ann.tenant),
        invitation_id=one("select id from penstock.create_invitation('viewer', %s)", ann.tenant),
        provider=name,
        artifact_id=artifact["id"],
        upload_id=upload["id"],
        path=artifact["path"],
        bulk_id=bulk,
        gated_job=start("work", confirm=True),
        bulk_row=one("select r::text from penstock.bulk_rows r where job_id = %s", bulk),
        wait_id=uuid.UUID(wait["id"]),
        operation_id=uuid.UUID(operation["id"]),
        token=wait["token"],
    )
    connection.close()
    return things


_NOTHING: dict[str, Any] = {
    field.name: uuid.uuid4() if "UUID" in str(field.type) else 10**12 if field.type == "int" else "no/body"
    for field in fields(Things)
}
GHOST = Things(**_NOTHING)


def ghost(things: Things) -> Things:
    """The same with ids that do not exist."""
    row = things.bulk_row.replace(str(things.bulk_id), str(GHOST.bulk_id))
    return replace(GHOST, bulk_row=row.replace(str(things.tenant_id), str(GHOST.tenant_id)))


def filled(value: Any, things: Things, row: Row | Call) -> Any:
    """A template with the ids filled in; a template that is only an id becomes that value."""
    names = {field.name: getattr(things, field.name) for field in fields(Things)}
    names |= {name: names[other] for name, other in row.about.items()}
    names |= {"name": things.provider if row.least == "service" else "nightly", "gate": "none"}
    if isinstance(value, str):
        text = value.format(**names)
        return int(text) if value == "{letter_id}" else text
    if isinstance(value, dict):
        return {key: filled(item, things, row) for key, item in value.items()}
    return [filled(item, things, row) for item in value] if isinstance(value, list) else value


def ask(world: World, name: str, headers: dict[str, str], things: Things) -> httpx.Response:
    row = ROWS[name]
    method, path = name.split(" ")
    target = filled(path + row.query, things, row).replace(" ", "%20")
    if row.is_stream:
        return begun(world, target, headers)
    body = filled(row.body, things, row)
    return world.client.request(
        method, target, headers=headers, json=body, content=row.content, follow_redirects=False
    )  # pyright: ignore[reportReturnType]


def begun(world: World, target: str, headers: dict[str, str]) -> httpx.Response:
    """The first line of a stream. (The test client would wait for its end.)"""
    path, _, query = target.partition("?")
    said: list[bytes] = []
    status = 0

    async def run() -> None:
        nonlocal status
        first = asyncio.Event()

        async def receive() -> Any:
            if not requests:
                await first.wait()
                return {"type": "http.disconnect"}
            return requests.pop()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            said.append(message.get("body", b""))
            # A line that says how to come back is nothing yet; a task that streams nothing sends no more than that.
            if (
                b"data:" in said[-1]
                or (path.endswith("/stream") and said[-1])
                or not message.get("more_body", True)
            ):
                first.set()

        requests = [{"type": "http.request", "body": b"", "more_body": False}]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("testserver", 80), "state": {},
        }  # fmt: skip
        await world.app(scope, receive, send)

    assert world.client.portal is not None
    world.client.portal.call(run)
    return httpx.Response(status, content=b"".join(said))


def plain(answer: httpx.Response) -> tuple[int, Any]:
    """A response without the parts that differ each time."""
    try:
        body = answer.json()
    except ValueError:
        return answer.status_code, answer.text
    if isinstance(body, dict) and "detail" in body:
        body.pop("request_id", None)
        # Some name the number that was asked for.
        body["detail"] = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+", "…", body["detail"])
    return answer.status_code, body


def expected(row: Row, role: str) -> tuple[int, ...]:
    """The expected response for this role."""
    if row.least == "anybody":
        return (200,)
    if row.least == "nobody":
        return (403,)
    if role == "anon":
        return (401,)
    if role == "worker":
        return row.good if row.least == "worker" else (403,)
    if row.least == "worker":
        return row.good if role == "service" else (403,)
    return row.good if ROLES.index(role) >= ROLES.index(row.least) else (403,)


@pytest.mark.slow
def test_roles(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1.9/users, R0.9/roles, S2: roles below that of the matrix are refused; this role and higher ones are not."""
    monkeypatch.setattr(events.Hub, "TICK_SECONDS", 0.01)
    ann = world.join("ann")
    callers = {
        role: world.member(role, ann.tenant).headers for role in ("viewer", "member", "admin", "owner")
    }
    callers |= {"anon": {}, "worker": bearer(world.key("worker")), "service": bearer(world.key("service"))}
    assert set(callers) == set(ROLES)
    things = make(world, ann)
    wrong: list[Any] = []
    for name, row in ROWS.items():
        for role in ROLES:
            answer = ask(world, name, callers[role], things)
            if answer.status_code not in expected(row, role):
                wrong.append((name, role, answer.status_code, answer.text))
            if answer.status_code in row.good and not name.startswith(("GET", "HEAD")):
                # There is room for so many keys.
                for key in (things.key_id, things.user_id):
                    world.db.execute("select penstock.revoke_key(%s)", [key])
                things = make(world, ann)
    assert wrong == []


@pytest.mark.slow
def test_revoked_key_is_rejected_on_every_route(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S24: at once, also while the server remembers the key; with signed URLs of files and streams among them."""
    monkeypatch.setattr(events.Hub, "TICK_SECONDS", 0.01)
    ann = world.join("ann")
    things = make(world, ann)
    owner, service = world.member("owner", ann.tenant), world.key("service")
    keys = {"owner": owner.headers, "service": bearer(service)}
    for headers in keys.values():
        assert world.client.get("/api/me", headers=headers).status_code == 200
    for row in world.db.execute("select id from penstock.api_keys where revoked_at is null"):
        world.db.execute("select penstock.revoke_key(%s)", [row["id"]])
    before = state(world, ann)
    wrong: list[Any] = []
    for name, row in ROWS.items():
        if row.least in ("anybody", "nobody"):
            continue
        for role, headers in keys.items():
            answer = ask(world, name, headers, things)
            # The server refuses a tenant's key there without asking the database.
            is_foreign = role == "owner" and row.least in ("service", "worker")
            if answer.status_code not in ((401, 403) if is_foreign else (401,)):
                wrong.append((name, role, answer.status_code, answer.text[:200]))
    assert wrong == []
    assert state(world, ann) == before


@pytest.mark.slow
def test_strangers(world: World) -> None:
    """R0.9/no-existence, S1, S5, S7: a stranger from another tenant learns nothing, not even existence, and changes nothing."""
    ann, bob = world.join("ann"), world.join("bob")
    strangers = (bob.headers, world.member("owner", bob.tenant).headers)
    things = make(world, ann)
    secret = (CANARY, str(things.job_id), str(ann.tenant), str(things.key_id), str(things.artifact_id))
    before = state(world, ann)
    wrong: list[Any] = []
    for name, row in ROWS.items():
        for headers in strangers:
            answer = ask(world, name, headers, things)
            # An error may repeat the id that was asked for.
            told = re.sub(r"with id [0-9a-f-]{36}", "", answer.text)
            is_key = headers is not strangers[0]
            expected = row.key if is_key and row.key is not None else row.stranger
            if answer.status_code != expected or any(word in told for word in secret):
                wrong.append((name, answer.status_code, answer.text))
            if row.least != "service" and plain(answer) != plain(ask(world, name, headers, GHOST)):
                wrong.append((name, "is told apart from what does not exist", answer.text))
        if state(world, ann) != before:
            wrong.append((name, "changed something"))
            before = state(world, ann)
    assert wrong == []


# Functions, called as the API calls them: on its own login, as the caller


@contextmanager
def acting(world: World, role: str, user: uuid.UUID | None) -> Iterator[psycopg.Connection[Any]]:
    """A transaction of this caller."""
    settings = world.app.state.settings
    address = settings.database_url if role == "service_role" else settings.api_url
    with psycopg.connect(address, application_name="test") as connection:
        claims = json.dumps({"role": role, **({"sub": str(user)} if user else {})})
        connection.execute(
            "select set_config('role', %s, true), set_config('request.jwt.claims', %s, true)", [role, claims]
        )
        yield connection


def call(
    connection: psycopg.Connection[Any], name: str, things: Things, *, is_kept: bool
) -> tuple[str | None, str]:
    """The SQLSTATE of the error, if any, and the full response."""
    row = FUNCTIONS[name]
    arguments = filled(row.arguments, things, row)
    listed = ", ".join(f"{key} => %({key})s" for key in arguments)
    values = {
        key: Jsonb(value) if isinstance(value, dict | list) else value for key, value in arguments.items()
    }
    try:
        with connection.transaction(force_rollback=not is_kept):
            found = connection.execute(f"select * from penstock.{name}({listed})".encode(), values).fetchall()
    except psycopg.Error as error:
        diag = error.diag
        return error.sqlstate, f"{diag.message_primary} {diag.message_detail} {diag.message_hint}"
    return None, str(found)


def test_functions_by_role(world: World) -> None:
    """R1.9/users, R0.9/roles, S2: the same for every function that users may call."""
    ann = world.join("ann")
    things = make(world, ann)
    members = {role: world.member(role, ann.tenant).id for role in ("viewer", "member", "admin", "owner")}
    callers = [("anon", "anon", None), *((role, "authenticated", user) for role, user in members.items())]
    for role, database_role, user in (*callers, ("service", "service_role", None)):
        with acting(world, database_role, user) as connection:
            for name, row in FUNCTIONS.items():
                if name.endswith("_request") and role == "service":
                    # They keep answers for a user or a key, which this is not.
                    continue
                refusal, text = call(connection, name, things, is_kept=False)
                if role == "anon":
                    assert refusal == "42501", (name, text)
                elif role == "service" or ROLES.index(role) >= ROLES.index(row.least):
                    assert refusal == row.good, (name, role, text)
                else:
                    assert refusal == "PT403", (name, role, text)


@pytest.mark.slow
def test_functions_by_strangers(world: World) -> None:
    """R0.9/no-existence, S1, S5: bob gets the same errors for ann's ids as for missing ones, and changes nothing."""
    ann, bob = world.join("ann"), world.join("bob")
    things = make(world, ann)
    before = state(world, ann)
    for name, row in FUNCTIONS.items():
        with acting(world, "authenticated", bob.id) as connection:
            answers = [call(connection, name, each, is_kept=True) for each in (things, ghost(things))]
        assert answers[0][0] == row.stranger, (name, answers)
        for word in (
            CANARY,
            str(things.job_id),
            str(ann.tenant),
            str(things.key_id),
            str(things.artifact_id),
        ):
            assert word not in answers[0][1], name
        # cell_of reads the id only.
        if name not in (
            "_now",
            "cell_of",
            "clock",
            "sync_state",
            "begin_request",
            "end_request",
            "start_action",
        ):
            assert answers[0] == answers[1], name
        assert state(world, ann) == before, name


def state(world: World, ann: Person) -> list[Any]:
    """All rows of ann."""
    tables = """select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r' and a.attname = 'tenant_id'
        order by 1"""
    with world.db.connect() as connection:
        names = [row["name"] for row in connection.execute(tables).fetchall()]
        lines = "select t::text as line from penstock.{} t where tenant_id = %s order by 1"
        return [
            (name, connection.execute(lines.format(name).encode(), [ann.tenant]).fetchall()) for name in names
        ]


def test_owner_sees_own_rows_in_lists(world: World) -> None:
    """The counterpart: the owner sees her rows where the stranger does not."""
    ann = world.join("ann")
    things = make(world, ann)
    for name in ("GET /api/bulks/{job_id}/rows", "GET /api/bulks/{job_id}/export"):
        assert CANARY in ask(world, name, ann.headers, things).text, name
    for name in ("GET /api/jobs", "GET /api/dead-letters", "GET /api/schedules", "GET /api/costs/entries",
                 "GET /api/usage/days", "GET /api/keys"):  # fmt: skip
        assert CANARY in ask(world, name, ann.headers, things).text, name
    for name in ("GET /api/jobs/{job_id}", "GET /api/jobs/{job_id}/tasks", "GET /api/jobs/{job_id}/attempts",
                 "GET /api/dead-letters/{letter_id}"):  # fmt: skip
        assert CANARY in ask(world, name, ann.headers, things).text, name
    assert str(things.job_id) in ask(world, "GET /api/costs", ann.headers, things).text
    assert things.provider in ask(world, "GET /api/prices", ann.headers, things).text
