"""The queries that old clients make on the intake's views find an index on every table that grows."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from penstock.apps.intake.app import app
from tests.api.conftest import api_settings
from tests.api.rest.conftest import Site
from tests.apps.test_intake import site

__all__ = ["api_settings", "site"]

pytestmark = [pytest.mark.slow, pytest.mark.own_sql(app)]

GROWING = {"shell_files", "shell_file_results", "usage_events", "audit_log", "tasks", "results", "attempts",
           "dead_letters", "accounts", "usage_warnings", "upload_addresses"}  # fmt: skip
QUERIES = {
    "files by idempotency key": "select * from intake.shell_files where tenant_id = %(id)s and idempotency_key = 'k'",
    "files of a patient": "select * from intake.shell_files where tenant_id = %(id)s and patient_id = %(id)s",
    "usage by profile and cycle": "select * from intake.user_usage_tracking where profile_id = %(id)s"
    " and billing_cycle_start = '2026-01-01Z'",
    "events by profile and time": "select * from intake.usage_events where profile_id = %(id)s"
    " and created_at > '2026-01-01Z'",
    "events by profile, type and time": "select * from intake.usage_events where profile_id = %(id)s"
    " and event_type = 'limit_hit' and created_at > '2026-01-01Z' order by created_at desc limit 50",
    "profile over its limit": "select * from intake.user_usage_tracking where profile_id = %(id)s and is_over_limit",
    "jobs by heartbeat": "select * from intake.job_queue where heartbeat_at < now()",
    "dead letters by time": "select * from intake.job_queue where dead_letter_at > '2026-01-01Z'"
    " order by dead_letter_at desc limit 50",
    "trail of a patient": "select * from intake.patient_trail where tenant_id = %(id)s order by id desc limit 50",
}


def _scanned(plan: Any) -> set[str]:
    """The tables that a plan reads whole."""
    found = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set[str]()
    return found.union(*(_scanned(part) for part in plan.get("Plans", ())))


def test_queries_of_old_clients_use_indexes(site: Site) -> None:
    """Without sequential scans where there is another way: a table without an index would still show one."""
    scanned: dict[str, set[str]] = {}
    ann = site.join("ann")
    payload = {"tenant_id": str(ann.tenant)}
    # With jobs: PostgreSQL plans without statistics as if the table of tasks were small.
    site.db.execute(
        "select intake.enqueue_job_v3('fast_queue_ocr', 'x', %s) from generate_series(1, 300)",
        [json.dumps(payload)],
    )
    site.db.execute("analyze penstock.tasks, penstock.jobs, penstock.leases, penstock.dead_letters")
    site.db.execute("set enable_seqscan = off")
    for name, query in QUERIES.items():
        [row] = site.db.execute(f"explain (format json) {query}", {"id": uuid.uuid4()})
        plan = row["QUERY PLAN"]
        scanned[name] = _scanned((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]) & GROWING
    # Dead letters are few beside the tasks.
    few = {"dead letters by time": {"dead_letters"}, "jobs by heartbeat": {"dead_letters"}}
    assert {name: found - few.get(name, set()) for name, found in scanned.items()} == {
        name: set() for name in QUERIES
    }
