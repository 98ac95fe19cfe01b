"""Every function of the contract, called as the API calls it: on its own login, by every role and by strangers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from tests.api.conftest import World
from tests.api.matrix import CANARY, ROLES, TASKS, Call, Things, filled, ghost, make, state

pytestmark = pytest.mark.every_postgres


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
    "get_job_detail": Call("viewer", "PT404", OF_JOB),
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


def test_every_function_has_a_line(db: testing.Database) -> None:
    """R0.4/service-only, R2.1/service-only, R0.9/no-money-writes, S15: a new function that is granted to users fails here."""

    def granted() -> set[str]:
        return {row["name"] for row in db.execute(GRANTED)}

    assert granted() == set(FUNCTIONS)
    # PostgreSQL lets everybody execute a new function until grants.sql is applied again.
    db.execute("create function penstock.fresh() returns integer language sql as 'select 1'")
    assert granted() - set(FUNCTIONS) == {"fresh"}


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
    """R1.9/users, R0.9/roles, S2: roles below that of the matrix are refused; this role and higher ones are not."""
    ann = world.join("ann")
    things = make(world, ann)
    members = {role: world.member(role, ann.tenant).id for role in ("viewer", "member", "admin", "owner")}
    callers = [("anon", "anon", None), *((role, "authenticated", user) for role, user in members.items())]
    for role, database_role, user in (*callers, ("service", "service_role", None)):
        with acting(world, database_role, user) as connection:
            for name, row in FUNCTIONS.items():
                if name.endswith("_request") and role == "service":
                    # They store responses for a user or a key, and the service is neither.
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
