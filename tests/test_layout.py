"""One noun, one file name: what penstock/sql/functions/NOUN.sql does is found under that name in every layer."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FUNCTIONS = "penstock/sql/functions"
# Where a noun is looked for; one match is enough.
LAYERS = {
    "python": ["penstock/contract/{}.py"],
    "api": ["penstock/api/{}.py"],
    "cli": ["penstock/cli/{}.py"],
    "dashboard": ["penstock/dashboard/{}.py"],
    "tests": ["tests/test_{}.py", "tests/*/test_{}.py"],
    "docs": ["docs/{}.md"],
}

# Files that hold no noun of their own, but parts of the engine that several nouns use.
PARTS = {
    "cells": "several databases, beside the nouns: penstock/cells and penstock/cli/cells.py",
    "moves": "how a tenant moves to another database: penstock/cells/moving.py",
    "clock": "the one clock, which tests replace",
    "errors": "how a function raises an error",
    "apps": "public functions for the SQL of apps, about several nouns",
    "claim": "the claim and its stages: the worker's side of tasks",
    "admission": "which work of limited lanes may run now",
    "routing": "which provider a task uses",
    "rerouting": "how waiting and failed tasks change their provider",
    "reservations": "quota and budget of claimed tasks",
    "queue": "ready and parked tasks, reclaim: the worker's side of tasks",
    "leases": "heartbeats, and what all reports of a worker share: the worker's side of tasks",
    "complete": "the report that a task succeeded: a verb of tasks",
    "fail": "the report that an attempt failed: a verb of tasks",
    "reschedule": "the report that a task runs later: a verb of tasks",
    "start": "how a job begins: a verb of jobs",
    "search": "titles of jobs, and how jobs are found: a verb of jobs",
    "chores": "how a pause or cancel of a job reaches its tasks",
    "prune": "how old jobs are deleted: a verb of jobs",
    "new_tasks": "how tasks are added to a job: a verb of tasks",
    "task_checks": "what a new task may look like",
    "parked": "tasks that wait for a quota, budget, price or limit",
    "capacity": "what is left of a provider's limits",
    "signals": "what providers answer; penstock/sdk/signals.py reads it",
    "accounts": "what is used and held of quotas and budgets",
    "upkeep": "what any process does for all: a loop of workers and servers",
    "holds": "reservations of quotas and budgets",
    "forecasts": "what a job will cost and when it will end: verbs of jobs",
    "simulation": "when a job will end, for forecasts",
    "explanations": "why a task waits: verbs of jobs",
    "results": "what a job returned: a verb of jobs",
    "reconciliation": "how operations that timed out or were canceled end: a verb of operations",
    "metrics": "figures for Prometheus: penstock/api/observe.py names them",
    "wanted": "how many slots autoscalers should provide: the worker's side of lanes",
    "bulk_rows": "the rows of bulk jobs: the worker's side of bulks",
    "prompt_uses": "what versions of prompts cost, and trials: verbs of prompts",
}

# Where a layer has another file for a noun: the file, or None where the layer needs none. Explained line by line.
ELSEWHERE: dict[str, dict[str, str | None]] = {
    # The page of a task shows its stream; programs follow it over HTTP.
    "streams": {"cli": None, "dashboard": "penstock/dashboard/live.py"},
    # The page of a task shows its log.
    "logs": {"dashboard": "penstock/dashboard/jobs.py", "docs": "docs/worker.md"},
    # Verbs on many jobs at once exist for the dashboard only.
    "actions": {"api": None, "cli": None, "docs": "docs/dashboard.md"},
    # Operators see them in `penstock doctor` and on the overview.
    "alerts": {
        "cli": "penstock/doctor.py",
        "dashboard": "penstock/dashboard/overview.py",
        "docs": "docs/operate.md",
    },
    # Operators see the log on its page, and its seals in `penstock doctor`.
    "audit": {
        "api": None,
        "cli": "penstock/doctor.py",
        "tests": "tests/sql/test_audit_seals.py",
        "docs": "docs/security.md",
    },
    # Operators import and compare bills on the command line.
    "bills": {"api": None, "cli": "penstock/cli/costs.py", "dashboard": None, "docs": "docs/money.md"},
    # Links are written into sheets; a link for members leads to the dashboard's page of the file.
    "links": {"cli": None, "dashboard": "penstock/dashboard/jobs.py", "docs": "docs/artifacts.md"},
    # Only workers in other languages upload files of tasks over HTTP.
    "task_uploads": {"cli": None, "dashboard": None, "docs": "docs/artifacts.md"},
    # A job's page shows its files.
    "artifacts": {"dashboard": "penstock/dashboard/jobs.py"},
    # The command is `penstock bulk`.
    "bulks": {"cli": "penstock/cli/bulk.py", "docs": "docs/bulk.md"},
    # Costs, usage, quotas and providers share the pages on money.
    "costs": {"api": "penstock/api/money.py", "dashboard": "penstock/dashboard/usage.py", "docs": "docs/money.md"},
    "quotas": {
        "python": "penstock/contract/usage.py",
        "api": "penstock/api/money.py",
        "cli": "penstock/cli/usage.py",
        "dashboard": "penstock/dashboard/usage.py",
        "docs": "docs/money.md",
    },
    "usage": {"api": "penstock/api/money.py", "docs": "docs/money.md"},
    # Entitlements are shown with usage; their command is `penstock gates`.
    "entitlements": {
        "api": "penstock/api/money.py",
        "cli": "penstock/cli/gates.py",
        "dashboard": "penstock/dashboard/tenants.py",
    },
    # Keys of providers are for operators, on the command line.
    "provider_keys": {
        "api": None,
        "cli": "penstock/cli/providers.py",
        "dashboard": None,
        "tests": "tests/providers/test_keys.py",
        "docs": "docs/providers.md",
    },
    # Documented where people use them: as operators, as readers of the concepts, as writers of code.
    "dead_letters": {"docs": "docs/operate.md"},
    "jobs": {"docs": "docs/concepts.md"},
    "schedules": {"docs": "docs/sdk.md"},
    # Tasks are shown and changed with their job.
    "tasks": {
        "api": "penstock/api/jobs.py",
        "cli": "penstock/cli/jobs.py",
        "dashboard": "penstock/dashboard/jobs.py",
        "docs": "docs/concepts.md",
    },
    # API keys are made on the command line only.
    "keys": {
        "api": "penstock/api/callers.py",
        "dashboard": None,
        "docs": "docs/api.md",
    },
    # Kinds and job types are declared in code.
    "kinds": {
        "api": None,
        "cli": None,
        "dashboard": None,
        "tests": "tests/sql/test_jobs.py",
        "docs": "docs/sdk.md",
    },
    # The dashboard's first page, and figures for it.
    "overview": {"api": None, "cli": None, "tests": "tests/dashboard/test_pages.py", "docs": "docs/dashboard.md"},
    # penstock/settings.py reads the environment; settings in the database are set in SQL and in the dashboard.
    "settings": {
        "python": "penstock/contract/database_settings.py",
        "api": None,
        "cli": None,
        "tests": "tests/sql/test_jobs.py", "docs": "docs/operate.md"},
    # Identities exist to sign in to the dashboard.
    "identities": {
        "python": "penstock/api/callers.py",
        "api": "penstock/api/oidc.py",
        "cli": None,
        "dashboard": "penstock/dashboard/sign_in.py",
        "tests": "tests/dashboard/test_oidc.py",
        "docs": "docs/access.md",
    },
    # So are invitations.
    "invitations": {"docs": "docs/access.md"},
    # Prompts are the operator's: the service reads them with SQL.
    "prompts": {"api": None},
    # Admins call functions over /rest/v1, and use two pages. Costs of the installation are part of that.
    "admin": {"api": None},
    "spend": {
        "api": None,
        "cli": "penstock/cli/admin.py",
        "dashboard": "penstock/dashboard/admin.py",
        "tests": "tests/sql/test_admin.py",
        "docs": "docs/admin.md",
    },
    # Sessions are part of who may do what.
    "sessions": {"docs": "docs/access.md"},
    # A Google account's quota; sheets are sources of bulk jobs.
    "sheets": {
        "api": None,
        "dashboard": None,
        "docs": "docs/bulk.md",
    },
    # Apps' migrations call it, and devices over /rest/v1.
    "sync": {"python": None, "api": "penstock/api/rest/__init__.py", "cli": None, "dashboard": None},
    # Small command groups share a file.
    "tenants": {"cli": "penstock/cli/operate.py", "tests": "tests/sql/test_access.py", "docs": "docs/access.md"},
    "workers": {
        "api": "penstock/api/observe.py",
        "cli": "penstock/cli/operate.py",
        "docs": "docs/worker.md",
    },
}  # fmt: skip


def nouns() -> list[str]:
    return sorted(path.stem for path in (ROOT / FUNCTIONS).glob("*.sql") if path.stem not in PARTS)


def has_file(noun: str, layer: str) -> bool:
    return any(list(ROOT.glob(pattern.format(noun))) for pattern in LAYERS[layer])


@pytest.mark.parametrize("noun", nouns())
def test_a_noun_has_one_name_in_every_layer(noun: str) -> None:
    elsewhere = ELSEWHERE.get(noun, {})
    missing = [layer for layer in LAYERS if not has_file(noun, layer) and layer not in elsewhere]
    assert missing == [], f"{noun}: rename the file of this layer, or explain the exception in ELSEWHERE"


def test_exceptions_are_needed_and_true() -> None:
    for noun, elsewhere in ELSEWHERE.items():
        assert noun in nouns(), f"{noun} is no file in {FUNCTIONS} any more"
        for layer, file in elsewhere.items():
            assert not has_file(noun, layer), f"{noun} has a file in {layer}: remove the exception"
            assert file is None or (ROOT / file).exists(), f"{noun}: {file} is missing"
    for part in PARTS:
        assert (ROOT / FUNCTIONS / f"{part}.sql").exists(), f"{part}.sql is missing"
