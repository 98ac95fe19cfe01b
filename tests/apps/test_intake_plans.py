"""The queries that old clients make on the intake's views find an index on every table that grows."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.api.conftest import api_settings
from tests.api.rest.conftest import Site
from tests.apps.test_intake import site

__all__ = ["api_settings", "site"]

pytestmark = pytest.mark.slow

GROWING = {"shell_files", "shell_file_results", "usage_events", "audit_log", "tasks", "results", "attempts",
           "dead_letters", "accounts", "usage_warnings", "upload_addresses"}  # fmt: skip
QUERIES = {
    "files by idempotency key": "select * from intake.shell_files where tenant_id = %(id)s and idempotency_key = 'k'",
    "files of a patient": "select * from intake.shell_files where tenant_id = %(id)s and patient_id = %(id)s",
    "usage by profile and cycle": "select * from intake.user_usage_tracking where profile_id = %(id)s"
    " and billing_cycle_start = '2026-01-01Z'",
    "events by profile and time": "select * from intake.usage_events where profile_id = %(id)s"
    " and created_at > '2026-01-01Z'",
    "trail of a patient": "select * from intake.patient_trail where tenant_id = %(id)s order by id desc limit 50",
}


def _scanned(plan: Any) -> set[str]:
    """The tables that a plan reads whole."""
    found = {plan["Relation Name"]} if plan["Node Type"] == "Seq Scan" else set[str]()
    return found.union(*(_scanned(part) for part in plan.get("Plans", ())))


def test_queries_of_old_clients_use_indexes(site: Site) -> None:
    """Without sequential scans where there is another way: a table without an index would still show one."""
    scanned: dict[str, set[str]] = {}
    site.db.execute("set enable_seqscan = off")
    for name, query in QUERIES.items():
        [row] = site.db.execute(f"explain (format json) {query}", {"id": uuid.uuid4()})
        plan = row["QUERY PLAN"]
        scanned[name] = _scanned((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]) & GROWING
    assert scanned == {name: set() for name in QUERIES}
