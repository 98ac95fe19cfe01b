"""Small runs of `make faults`, and whether the checker finds violations that are planted in a good history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults import check, plan, report, run, schedule
from penstock import testing
from penstock.errors import PenstockError
from penstock.postgres import db

pytestmark = pytest.mark.slow

PLAN = plan.Plan(
    tasks=1500, seed=5, seconds=8, every=0.7, workers=3, producers=1, lease_seconds=3, poison=1, is_disk_wanted=False,
    drain_seconds=120,
)  # fmt: skip

# A few faults, each of them again and again: restarts with an idle worker, HTTP-only workers, migrates, short stops.
SCENES = replace(
    PLAN, seconds=15, every=1.5, tasks=800, workers=2, migrate_every=2,
    faults=("postgres.killed", "rpc.killed", "worker.stalled", "backend.ended"),
)  # fmt: skip

# The statement that plants a violation, and the group of checks that must find it.
PLANTED = {
    "delete from penstock.tasks where id in (select task_id from penstock.results limit 1)": "lost",
    "delete from penstock.jobs where id in (select job_id from faults.acknowledged limit 1)": "lost",
    "update penstock.results set output = '0' where task_id in (select task_id from penstock.results where outcome = 'succeeded' limit 1)": "lost",
    "update penstock.results set outcome = 'failed' where task_id in (select id from penstock.tasks where kind = 'plain' limit 1)": "lost",
    "delete from faults.attempted where key in (select idempotency_key from penstock.jobs limit 1)": "unexpected",
    "insert into penstock.parked (task_id, job_id, tenant_id, lane_id, priority, phase, until, reason) select id, job_id, tenant_id, lane_id, 5, phase, now(), 'x' from penstock.tasks limit 1": "unexpected",
    "insert into faults.acknowledged select key, gen_random_uuid() from faults.acknowledged limit 1": "duplicated",
    "insert into faults.began select * from faults.began limit 1": "duplicated",
    "insert into faults.effects select * from faults.effects limit 1": "effects",
    "delete from faults.effects where task_id in (select task_id from faults.effects limit 1)": "effects",
    "insert into faults.effects select id, 1, 1 from penstock.tasks where kind = 'plain' limit 1": "effects",
    "insert into faults.moves (what, task_id, lease) select 'granted', -1, n from generate_series(1, 2) as n": "leases",
    "update penstock.results set lease = lease - 1 where task_id in (select task_id from faults.effects limit 1)": "stale",
    "delete from faults.moves where (task_id, what) in (select task_id, 'released' from penstock.results where outcome = 'succeeded' limit 1)": "stale",
    "insert into faults.refused select 'complete', task_id, lease, 'lease_lost', 1 from penstock.results where outcome = 'succeeded' limit 1": "stale",
    "insert into faults.job_moves (job_id, was, became) select job_id, 'completed', 'running' from faults.job_moves limit 1": "transitions",
    "insert into faults.moves (what, task_id, lease) select 'granted', task_id, lease + 1 from faults.moves where what = 'ended' limit 1": "transitions",
    "update penstock.phases set succeeded = succeeded - 1 where job_id in (select job_id from penstock.phases where succeeded > 0 limit 1) and succeeded > 0": "counters",
    "update penstock.usage_sums set amount = amount + 1 where ctid in (select ctid from penstock.usage_sums limit 1)": "counters",
    "update penstock.cost_sums set amount = amount * 2 where ctid in (select ctid from penstock.cost_sums where tenant_id is not null limit 1)": "counters",
    "update penstock.accounts set used = used + 0.0000001 where ctid in (select ctid from penstock.accounts where meter = 'cost' limit 1)": "ledger",
    "update penstock.accounts set held = 1 where ctid in (select ctid from penstock.accounts limit 1)": "ledger",
    "update penstock.holds set status = 'held' where id in (select id from penstock.holds limit 1)": "ledger",
    "update penstock.usage_events u set at = u.at + interval '1 hour' where u.id = (select x.id from penstock.usage_events x where x.task_id is not null and not x.is_estimate limit 1)": "stale",
    "delete from penstock.usage_events where id in (select u.id from penstock.usage_events u join penstock.results r on r.task_id = u.task_id and r.lease = u.lease where u.provider is not null and r.outcome = 'succeeded' limit 1)": "ledger",
    "insert into penstock.usage_events (at, tenant_id, action, job_id, task_id, lease, provider, units) select at, tenant_id, action, job_id, task_id, lease, provider, units from penstock.usage_events where task_id is not null limit 1": "ledger",
    "insert into faults.used select id, 1 from penstock.tasks where kind = 'call' limit 1": "ledger",
    "update penstock.jobs set budget = 0 where id in (select job_id from penstock.accounts where job_id is not null limit 1); update penstock.accounts set used = used where job_id is not null": "limits",
    "insert into faults.moves (what, task_id, lease, lane_id) select 'granted', -n, n, (select id from penstock.lanes where provider = 'sim/limited') from generate_series(1, 9) as n": "limits",
    "insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome, error_code) select job_id, task_id, 1, tenant_id, 1, 'vm-1-x', now(), now(), 'lost', 'x' from penstock.results limit 1; insert into faults.drained values (1, 0, 1)": "drains",
    "insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome, error_code) select job_id, task_id, 1, tenant_id, 1, 'vm-1-x', now(), now(), 'failed', 'unavailable' from penstock.results limit 1": "trouble",
    "insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome, error_code) select job_id, id, 1, tenant_id, 1, 'vm-1-x', now(), now(), 'lost', 'x' from penstock.tasks where kind = 'warm_post' limit 1": "warm",
    "insert into penstock.cost_entries overriding system value select (json_populate_record(c, json_build_object('id', c.id + 1000000000, 'key', 'planted'))).* from penstock.cost_entries c where c.cost_type = 'fixture' limit 1": "ledger",
    "set local session_replication_role = replica; update penstock.operations set status = 'processing', completed_at = null where id in (select id from penstock.operations limit 1)": "operations",
    "insert into faults.converted values ('x', 'y', 'finished')": "operations",
    "delete from faults.converted where tag in (select id::text from penstock.operations where status = 'completed' limit 1)": "operations",
    "insert into penstock.usage_events (at, tenant_id, action, job_id, task_id, lease, units) select at, tenant_id, action, job_id, task_id, lease, '{\"conversions\": 100}' from penstock.usage_events where units ? 'conversions' limit 1": "operations",
    "update penstock.webhooks set outcome = 'failed' where key in (select key from penstock.webhooks limit 1)": "operations",
    "insert into faults.stepped select task_id, lease + 1 from penstock.steps limit 1": "waits",
    "update faults.answered set option = 'maybe' where task_id in (select task_id from faults.answered limit 1)": "waits",
    "set local session_replication_role = replica; delete from penstock.failures where id in (select id from penstock.failures limit 1)": "mails",
    "insert into faults.outcomes (task_id, scope, is_success, is_alert) select -1, scope, false, true from faults.outcomes where is_alert limit 1": "mails",
    "delete from faults.mailed": "mails",
    "insert into faults.mailed values ('x')": "mails",
    "insert into faults.unknown select key, 'deadlock detected' from faults.attempted limit 1": "migrates",
    "insert into faults.migrations values (1, 1, 'Unavailable: canceling statement due to lock timeout')": "migrates",
}


def is_here(major: int) -> bool:
    try:
        return testing.binaries(major).exists()
    except PenstockError:
        return False


def finds(connection: db.SyncConnection, planted: str, group: str) -> bool:
    """Whether that group of checks finds it; then it was never there."""
    with connection.transaction(force_rollback=True):
        connection.execute(planted.encode())
        return check.check(connection, [group]).count(group) > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("major", [15, 18])
def test_a_small_run_finds_no_violation_and_its_checker_finds_planted_ones(major: int) -> None:
    """B7/faults, B7/checker, B3/limits, B3/quotas, B3/budgets, B6/crashes, R1.2/fence, R1.6/dead-worker: kill -9 of everything, zombies, cut connections and lost answers: no violation."""
    if not is_here(major):
        pytest.skip(f"PostgreSQL {major} is not installed")
    missed: list[str] = []

    def plant(connection: db.SyncConnection) -> None:
        if major == 18:
            missed.extend(text for text, group in PLANTED.items() if not finds(connection, text, group))

    result = run.run(replace(PLAN, server=major), look=plant)
    assert result.is_good, report.table(result)
    assert missed == []
    figures = result.found.figures
    assert figures["attempted"] - PLAN.tasks >= figures["tasks of the idle worker"] > 0
    # On a busy machine some faults find no victim.
    assert sum(result.faults.values()) >= 3


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_restarts_cost_an_idle_worker_nothing_and_http_only_workers_get_their_tasks_back() -> None:
    """R1.2, R1.6: after restarts, kills of HTTP-only workers, short stops and migrates, no violation."""
    result = run.run(SCENES)
    assert result.is_good, report.table(result)
    figures = result.found.figures
    assert result.faults["postgres.killed"] and result.faults["rpc.killed"]
    assert figures["migrates with nothing to do"] and figures["HTTP-only workers: attempts failed"]


def test_the_same_seed_gives_the_same_schedule() -> None:
    made = schedule.schedule(7, 900, 2.5, set())
    assert made == schedule.schedule(7, 900, 2.5, set()) != schedule.schedule(8, 900, 2.5, set())
    assert {fault.name for fault in made} == set(schedule.FAULTS)
