"""Small runs of `python -m bench.uploads`: real processes, many users, kills; and whether its check can fail."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from bench import uploads

pytestmark = pytest.mark.slow


def figures(load: uploads.Load) -> dict[str, float]:
    return {figure.name: figure.value for figure in uploads.run(load)}


def test_many_users_upload_and_nothing_is_lost() -> None:
    """R3.8/limits, R3.8/latency: quotas, the provider's limits, one record and one job for each file."""
    found = figures(uploads.Load(users=100, ramp=1, seconds=40, end_seconds=60))
    assert found["upload_acknowledged"] > 150, found
    assert {name: found[f"upload_{name}"] for name in
            ("lost", "differing", "doubled", "over_quota", "violations", "wrong_accounts", "failed", "open")} == {
        "lost": 0, "differing": 0, "doubled": 0, "over_quota": 0, "violations": 0, "wrong_accounts": 0, "failed": 0,
        "open": 0,
    }, found  # fmt: skip
    assert found["upload_over_quota_refused"] == 100 and found["upload_completed"] > 5
    for step in ("begin", "put", "finish"):
        assert 0 < found[f"upload_{step}_p50"] <= found[f"upload_{step}_p95"] <= found[f"upload_{step}_p99"]


def test_acknowledged_uploads_survive_kills() -> None:
    """R3.6/guarantee: SIGKILL of the server, the workers and PostgreSQL; every file ends with the same bytes."""
    found = figures(uploads.Load(users=40, files=4, ramp=1, kill_every=2, seconds=25, end_seconds=90))
    assert found["upload_acknowledged"] > 60 and found["upload_kills"] >= 4, found
    assert found["uploads_wrong_faults"] == 0 and found["upload_wrong_accounts"] == 0, found
    assert found["upload_open"] == 0 and found["upload_failed"] == 0, found


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


def test_check_finds_planted_violations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the runs above fails for a file without a job, with other bytes, with two jobs, over quota."""
    found: dict[str, dict[str, float]] = {}
    check = uploads._check

    def plant(connection: psycopg.Connection, seen: uploads.Seen, home: Any) -> dict[str, float]:
        before = check(connection, seen, home)
        for name, statement in PLANTED.items():
            with connection.transaction(force_rollback=True):
                connection.execute("set local session_replication_role = replica")
                connection.execute(statement.encode(), [next(iter(seen.acknowledged))])
                found[name] = check(connection, seen, home)
        return before

    monkeypatch.setattr(uploads, "_check", plant)
    clean = figures(uploads.Load(users=3, files=1, ramp=0, seconds=20, end_seconds=30))
    assert clean["uploads_wrong"] == 0, clean
    assert {name: values[name] > 0 for name, values in found.items()} == dict.fromkeys(PLANTED, True), found
