"""A server without any `penstock worker` survives the loss of its connections and does upkeep."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import testing
from penstock.upkeep import Upkeep
from tests.api.conftest import World

TERMINATE = """select count(pg_terminate_backend(pid, 5000)) as n from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and application_name like 'penstock api%'"""


@pytest.fixture
def quick_upkeep(server_upkeep: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does upkeep often, so that the tests need not wait."""
    monkeypatch.setattr(Upkeep, "MAX_PAUSE", 0.1)


@pytest.mark.slow
def test_no_request_fails_after_the_server_lost_its_connections(world: World) -> None:
    alice = world.join("alice")

    def ask(_: int) -> int:
        return world.client.get("/api/jobs", headers=alice.headers).status_code

    for _ in range(3):
        with ThreadPoolExecutor(8) as threads:
            assert set(threads.map(ask, range(20))) == {200}
            assert world.db.execute(TERMINATE)[0]["n"] >= 2
            assert set(threads.map(ask, range(20))) == {200}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_upkeep")
def test_a_server_requeues_expired_leases(world: World, eventually: Any) -> None:
    """R1.6/stale-leases: workers in other languages use only the SQL functions, so the server has to run upkeep."""
    world.kind("work")
    claim = {"p_worker_id": "w", "p_task_types": ["work"], "p_lease_seconds": 1}
    [row] = world.db.execute("select penstock.create_tenant('acme') as id")
    world.db.execute(
        "select penstock.start_job('report', '{}', '[{\"kind\": \"work\"}]', jsonb_build_object('tenant_id', %s::text))",
        [str(row["id"])],
    )
    answer = world.client.post("/rest/v1/rpc/claim_tasks", json=claim, headers=world.service)
    assert len(answer.json()) == 1
    eventually(lambda: world.db.execute("select 1 as n from penstock.ready"), "the lease is taken back")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_upkeep")
def test_a_server_queues_retries_that_are_due(world: World, eventually: Any, clock: testing.Clock) -> None:
    world.kind("work")
    [row] = world.db.execute("select penstock.create_tenant('acme') as id")
    world.db.execute(
        "select penstock.start_job('report', '{}', '[{\"kind\": \"work\"}]', jsonb_build_object('tenant_id', %s::text))",
        [str(row["id"])],
    )
    [task] = world.db.execute("select * from penstock.claim_tasks('w')")
    world.db.execute("select penstock.fail_task(%s, 'w', 'boom', %s, 100)", [task["id"], task["lease"]])
    time.sleep(0.3)
    assert not world.db.execute("select 1 as n from penstock.ready")
    clock.advance(seconds=101)
    eventually(lambda: world.db.execute("select 1 as n from penstock.ready"), "the retry is queued")
