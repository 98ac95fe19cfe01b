"""The SQL contract: external callers depend on these names, parameters, columns and rights."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Contract


@dataclass(frozen=True)
class Function:
    """Parameters in the order of the contract, and whether signed-in users may call the function too."""

    parameters: str
    is_for_users: bool = False


CONTRACT = {
    "start_job": Function("p_type p_params p_tasks p_options", is_for_users=True),
    "claim_tasks": Function("p_worker_id p_max_tasks p_task_types p_lease_seconds"),
    "heartbeat_task": Function("p_task_id p_worker_id p_lease"),
    "heartbeat_tasks": Function("p_worker_id p_leases"),
    "complete_task": Function("p_task_id p_worker_id p_output p_lease"),
    "complete_tasks": Function("p_worker_id p_task_ids p_leases p_outputs"),
    "fail_task": Function("p_task_id p_worker_id p_error p_lease p_retry_after_seconds p_permanent"),
    "fail_tasks": Function("p_worker_id p_task_ids p_leases p_errors"),
    "reschedule_task": Function("p_task_id p_delay_seconds p_reason p_lease"),
    "reclaim_stale_tasks": Function(""),
    "acquire_api_capacity": Function("p_provider_name p_api_endpoint p_estimated_tokens"),
    "release_api_capacity": Function("p_provider_name p_api_endpoint p_estimated_tokens p_actual_tokens"),
    "pause_job": Function("p_job_id p_reason", is_for_users=True),
    "resume_job": Function("p_job_id", is_for_users=True),
    "cancel_job": Function("p_job_id p_reason", is_for_users=True),
    "retry_job": Function("p_job_id", is_for_users=True),
    "replay_dead_letters": Function("p_filter", is_for_users=True),
    "reserve_quota": Function("p_tenant_id p_amounts p_action p_key p_ttl_seconds"),
    "commit_hold": Function("p_hold_id p_actual"),
    "release_hold": Function("p_hold_id"),
    "record_cost": Function(
        "p_cost_type p_amount p_currency p_task_id p_worker_id p_lease p_tenant_id p_options"
    ),
    "record_usage": Function("p_units p_task_id p_worker_id p_lease p_tenant_id p_action p_options"),
    "get_usage_status": Function("p_tenant_id", is_for_users=True),
}
CLAIMED_COLUMNS = {"id", "lease", "job_id", "tenant_id", "kind", "input", "attempt", "lease_expires_at"}
TASK = {
    "kind": "work",
    "key": "b",
    "input": {"n": 1},
    "after": ["a"],
    "phase": "work",
    "provider": "test/model",
    "units": {"requests": 1, "tokens": 1000},
    "priority": 3,
    "run_at": "2020-01-01T00:00:00Z",
    "max_attempts": 2,
    "timeout_seconds": 60,
    "idempotency_key": "row:2",
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACT)
def test_parameters_keep_their_names_and_order(sql: Contract, name: str) -> None:
    """R1.2/functions: later parameters are last and have defaults."""
    rows = sql.execute(
        "select proargnames[1:pronargs] as names, pronargs - pronargdefaults as required from pg_proc "
        "where pronamespace = 'penstock'::regnamespace and proname = %s", name,
    )  # fmt: skip
    assert len(rows) == 1, "one signature, so that a call by name is never ambiguous"
    names, expected = rows[0]["names"] or [], CONTRACT[name].parameters.split()
    assert names[: len(expected)] == expected
    assert rows[0]["required"] <= len(expected)


@pytest.mark.parametrize("name", CONTRACT)
def test_the_service_may_call_every_function_and_users_their_own(sql: Contract, name: str) -> None:
    (rights,) = sql.execute(
        "select has_function_privilege('service_role', oid, 'execute') as service, "
        "has_function_privilege('authenticated', oid, 'execute') as users, "
        "has_function_privilege('anon', oid, 'execute') as anonymous "
        "from pg_proc where pronamespace = 'penstock'::regnamespace and proname = %s", name,
    )  # fmt: skip
    assert rights == {"service": True, "users": CONTRACT[name].is_for_users, "anonymous": False}


class Caller:
    """Calls a contract function with all its parameters by name, as the service, and notes that it was called."""

    def __init__(self, sql: Contract) -> None:
        self.sql = sql
        self.called: set[str] = set()

    def __call__(self, name: str, *values: Any) -> list[dict[str, Any]]:
        names = CONTRACT[name].parameters.split()
        assert len(values) == len(names), name
        self.called.add(name)
        given = ", ".join(f"{parameter} => %s" for parameter in names)
        self.sql.execute("set local role service_role")
        rows = self.sql.execute(f"select * from penstock.{name}({given})", *values)
        self.sql.execute("reset role")
        return rows

    def value(self, name: str, *values: Any) -> Any:
        [row] = self(name, *values)
        return next(iter(row.values()))

    def start(self, *tasks: dict[str, Any], **options: Any) -> uuid.UUID:
        chosen = Jsonb({"tenant_id": str(self.sql.tenant), **options})
        return self.value("start_job", "report", Jsonb({}), Jsonb(list(tasks)), chosen)

    def claim(self) -> dict[str, Any]:
        [task] = self("claim_tasks", "w1", 1, ["work"], 60)
        return task


@pytest.fixture
def call(sql: Contract) -> Caller:
    sql.provider("test/model", requests_per_minute=100)
    return Caller(sql)


def run_tasks(call: Caller, clock: Clock) -> None:
    options = {"idempotency_key": "k", "priority": 4, "budget": None, "run_at": "2020-01-01T00:00:00Z"}
    job = call.start({"kind": "work", "key": "a"}, TASK, **options)
    first = call.claim()
    assert first.keys() >= CLAIMED_COLUMNS and first["job_id"] == job
    assert call.value("heartbeat_task", first["id"], "w1", first["lease"]) is True
    assert call("heartbeat_tasks", "w1", Jsonb([{"id": first["id"], "lease": first["lease"]}])) == []
    assert call.value("complete_task", first["id"], "w1", Jsonb({"pages": 2}), first["lease"]) is True
    second = call.claim()
    assert second["input"] == {"n": 1, "after": {"a": {"pages": 2}}}
    assert call.value("reschedule_task", second["id"], 0, "later", second["lease"]) is True
    second = call.claim()
    assert call.value("fail_task", second["id"], "w1", "boom", second["lease"], 0, False) is True
    second = call.claim()
    assert second["attempt"] == 2
    assert call("fail_tasks", "w1", [second["id"]], [second["lease"]], [Jsonb({"message": "no"})]) == []
    assert call.value("replay_dead_letters", Jsonb({"job_id": str(job)})) == 1
    second = call.claim()
    assert call("complete_tasks", "w1", [second["id"]], [second["lease"]], [Jsonb(1)]) == []
    assert call.sql.status(job) == "completed"

    call.start({"kind": "work"})
    call.claim()
    clock.advance(seconds=61)
    assert call.value("reclaim_stale_tasks") == 1


def run_verbs(call: Caller) -> None:
    job = call.start({"kind": "other"})
    assert call.value("pause_job", job, "lunch") == "paused"
    assert call.value("resume_job", job) == "queued"
    assert call.value("cancel_job", job, None) == "canceled"
    with call.sql.refused(409, "not_failed") as refusal:
        call.value("retry_job", job)
    assert refusal.details["status"] == "canceled"


def run_money(call: Caller) -> None:
    tenant = call.sql.tenant
    assert call.value("acquire_api_capacity", "test", "model", 10) is True
    call("release_api_capacity", "test", "model", 10, 7)
    first, second = (
        call.value("reserve_quota", tenant, Jsonb({"pages": 2}), "ocr", key, 60) for key in ("a", "b")
    )
    call("commit_hold", first, Jsonb({"pages": 1}))
    assert call.value("release_hold", second) is True
    call("record_usage", Jsonb({"pages": 3}), None, None, None, tenant, "ocr", Jsonb({}))
    assert call.value("record_cost", "storage", 5, None, None, None, None, tenant, Jsonb({})) > 0
    assert call.value("get_usage_status", tenant)["usage"]["pages"]["used"] == 4


def test_every_function_can_be_called_by_these_names(call: Caller, clock: Clock) -> None:
    """R1.2/functions: as the service, with every parameter of the contract by name."""
    run_tasks(call, clock)
    run_verbs(call)
    run_money(call)
    assert call.called == CONTRACT.keys()
