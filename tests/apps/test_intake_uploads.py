"""Small runs of `python -m bench.uploads`: real processes, many users, kills; and whether its check can fail."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from bench import uploads

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

# The statement that plants a violation about a file, and the figure that must show it.
PLANTED = {
    "lost": "update intake.shell_files set job_id = null where id = %s",
    "differing": "update penstock.artifacts a set sha256 = repeat('0', 64)"
    " from intake.shell_files f where f.artifact_id = a.id and f.id = %s",
    "doubled": "insert into penstock.jobs select (jsonb_populate_record(null::penstock.jobs, to_jsonb(j)"
    " || jsonb_build_object('id', gen_random_uuid(), 'idempotency_key', null))).* from penstock.jobs j"
    " join intake.shell_files f on f.job_id = j.id where f.id = %s",
    "over_quota": "update penstock.tenant_limits l set amount = 0 from intake.shell_files f"
    " where l.tenant_id = f.tenant_id and l.meter = 'files' and f.id = %s",
}


def figures(load: uploads.Load) -> dict[str, float]:
    return {figure.name: figure.value for figure in uploads.run(load)}


def test_1000_users_upload_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """R3.8/nothing-lost, R3.8/limits, R3.8/latency: at once, within quotas and the provider's limits.

    The check fails for a file without a job, with other bytes, with two jobs, or over the quota.
    """
    planted: dict[str, float] = {}
    check = uploads._check

    def plant(connection: psycopg.Connection, seen: uploads.Seen, home: Any) -> dict[str, float]:
        found = check(connection, seen, home)
        for name, statement in PLANTED.items():
            with connection.transaction(force_rollback=True):
                connection.execute("set local session_replication_role = replica")
                connection.execute(statement.encode(), [next(iter(seen.acknowledged))])
                planted[name] = check(connection, seen, home)[name]
        return found

    monkeypatch.setattr(uploads, "_check", plant)
    found = figures(
        uploads.Load(
            users=1000, files=1, ramp=1, seconds=200, end_seconds=60, real_share=100, largest=150_000
        )
    )
    assert found["upload_acknowledged"] == 1000, found
    none = ("lost", "differing", "doubled", "over_quota", "violations", "wrong_accounts", "failed", "open")
    assert {name: found[f"upload_{name}"] for name in none} == dict.fromkeys(none, 0), found
    assert (found["upload_over_quota_refused"], found["upload_completed"]) == (1000, 10)
    assert found["upload_provider_requests"] == 30
    for step in ("begin", "put", "finish"):
        assert 0 < found[f"upload_{step}_p50"] <= found[f"upload_{step}_p95"] <= found[f"upload_{step}_p99"]
    assert planted == dict.fromkeys(PLANTED, 1), planted


def test_acknowledged_uploads_survive_kills() -> None:
    """R3.6/guarantee: SIGKILL of the server, the workers and PostgreSQL; every file ends with the same bytes."""
    # The first three kills hit the server, a worker and PostgreSQL; users continue until the time is over.
    found = figures(uploads.Load(users=30, files=20, ramp=1, kill_every=2, seconds=30, end_seconds=90))
    assert found["upload_acknowledged"] >= 30 and found["upload_kills"] >= 3, found
    assert found["uploads_wrong_faults"] == 0 and found["upload_wrong_accounts"] == 0, found
    assert found["upload_open"] == 0 and found["upload_failed"] == 0, found
