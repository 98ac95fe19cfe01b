"""Schemathesis tests every route against the OpenAPI schema, as several callers, with all its checks.

This run is short and deterministic; `make fuzz` runs longer with a random seed that it prints.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import traceback
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
import structlog
from fastapi.testclient import TestClient
from schemathesis.engine import events, from_schema
from schemathesis.engine.run import PhaseName
from schemathesis.python import asgi

from penstock import api, testing
from penstock.api import events as live
from penstock.api.limits import Limits
from penstock.settings import Settings
from tests.api.conftest import World, bearer
from tests.api.matrix import Things, make, operations

pytestmark = pytest.mark.slow

FUZZ = int(os.environ.get("PENSTOCK_FUZZ") or 0)
"""How many examples of each route `make fuzz` asks for; 0 is the brief run."""
SEED = int(os.environ.get("PENSTOCK_FUZZ_SEED") or (random.getrandbits(32) if FUZZ else 1))

# What each caller does. The cases at the edges of the description are many: the owner tries them, and the service
# where nobody else gets in.
PHASES = {
    "owner": ("examples", "coverage", "fuzzing", "stateful"),
    "service": ("examples", "coverage", "fuzzing", "stateful"),
    "viewer": ("examples", "fuzzing"),
    "nobody": ("examples", "fuzzing"),
}
FOR_SERVICE = "operations"

# Ids that exist, so that what is tried gets further than to "there is no such thing".
IDS = {
    "job_id": ("job_id", "failed_job", "paused_job", "gated_job", "bulk_id"),
    "tenant_id": ("tenant_id",),
    "task_id": ("task_id",),
    "letter_id": ("letter_id",),
    "schedule_id": ("schedule_id",),
    "user_id": ("user_id",),
    "key_id": ("key_id",),
    "artifact_id": ("artifact_id", "upload_id"),
    "name": ("provider",),
}

# Sooner or later a caller removes itself, and is nobody from then on.
KEEP = """
create function public.keep_{name}() returns trigger language plpgsql as 'begin return null; end';
create trigger keep_{name} before update or delete on penstock.members
  for each row when (old.user_id = '{id}') execute function public.keep_{name}();
create trigger keep_{name} before update on penstock.api_keys
  for each row when (old.id = '{id}') execute function public.keep_{name}();
"""


@schemathesis.check
def refused_for_what_it_means(ctx: Any, response: Any, case: Any) -> None:
    """A request that is valid by the schema is never rejected as malformed.

    It may be rejected for its meaning, with a code such as that of an unknown kind or a past day.
    """
    is_positive = case.meta is not None and case.meta.generation.mode.is_positive
    # A step of several takes values from the answer before, where some are null.
    is_drawn = ctx.phase is not PhaseName.STATEFUL_TESTING
    if is_positive and is_drawn and response.status_code == 422:
        assert "errors" not in response.json(), response.text


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Most idempotency keys are used once: a second request with a key would be rejected before it is checked."""
    key = case.headers.get("Idempotency-Key") if case.headers else None
    if isinstance(key, str) and 1 <= len(key) <= 200 and next(_requests) % 5:
        case.headers["Idempotency-Key"] = f"{key}-{uuid.uuid4()}"


_requests = itertools.count()


@pytest.fixture
def world(db: testing.Database, api_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The application without limits on callers, because only the routes are tested."""
    monkeypatch.setattr(live.Hub, "TICK_SECONDS", 0.01)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    unlimited = Limits(per_second=1e9, burst=1e9, tenant_per_second=1e9, tenant_burst=1e9)
    app = api.create(api_settings, limits=unlimited)
    # Schemathesis starts the application itself, in an event loop of its own.
    yield World(db, app, TestClient(app))
    asgi.shutdown_lifespans()


def config(caller: str, headers: dict[str, str], things: Things) -> dict[str, Any]:
    """Schemathesis's settings for one caller."""
    known = {name: [_plain(getattr(things, field)) for field in fields] for name, fields in IDS.items()}
    known["kind"] = ["work", "doomed"]
    bound = {name: {"dictionary": name, "probability": 0.7} for name in known}
    elsewhere = "exclude-tag" if caller == "service" else "include-tag"
    return {
        "seed": SEED,
        # What an earlier run learned would make this one another.
        "cache": {"enabled": False},
        "headers": headers,
        "continue-on-failure": True,
        "dictionaries": {name: {"values": entries} for name, entries in known.items()},
        "parameters": {
            **{f"path.{name}": binding for name, binding in bound.items() if name != "kind"},
            **{f"query.{name}": bound[name] for name in ("tenant_id", "job_id", "task_id", "name")},
            **{f"body.{name}": bound[name] for name in ("tenant_id", "job_id")},
            "body.tasks[*].kind": bound["kind"],
        },
        "generation": {"max-examples": FUZZ or 2, "database": "none", "no-shrink": not FUZZ},
        "phases": {
            **{name: {"enabled": name in PHASES[caller]} for name in PHASES["owner"]},
            "coverage": {
                "enabled": "coverage" in PHASES[caller],
                **({} if FUZZ else {"unexpected-methods": ["patch", "trace"]}),
            },
        },
        "checks": {
            # A schema does not say which kinds, filters or sizes there are: see refused_for_what_it_means.
            "positive_data_acceptance": {
                "expected-statuses": ["2xx", "3xx", "401", "403", "404", "409", "413", "422", "429"]
            },
        },
        "operations": [
            # The lease is looked for first: no worker holds the task.
            {
                "include-path-regex": "^/api/tasks/",
                "checks": {
                    "positive_data_acceptance": {"expected-statuses": ["2xx", "4xx"]},
                    "negative_data_rejection": {"expected-statuses": ["4xx"]},
                },
            },
            # A stream does not end: its beginning is enough.
            {"include-path-regex": "(events|stream)$", "request-timeout": 60, "max-stream-events": 1},
            {elsewhere: FOR_SERVICE, "phases": {"coverage": {"enabled": False}}},
            # It takes what start takes.
            *(
                []
                if FUZZ
                else [{"include-path": "/api/jobs/forecast", "phases": {"coverage": {"enabled": False}}}]
            ),
        ],
    }


def _plain(value: Any) -> str | int:
    return value if isinstance(value, int) else str(value)


@pytest.mark.parametrize("caller", PHASES)
@pytest.mark.timeout(0 if FUZZ else 180)
def test_api_conforms_to_its_openapi_schema(world: World, caller: str) -> None:
    """S53: no route gives an undocumented response or accepts an invalid request."""
    ann = world.join("ann")
    things = make(world, ann)
    # Those of the examples.
    world.kind("text", "pdf")
    headers = {"service": bearer(world.key("service")), "nobody": {}}
    for role in ("owner", "viewer"):
        member = world.member(role, ann.tenant)
        headers[role] = member.headers
        world.db.execute(KEEP.format(name=role, id=member.id))
    schema = schemathesis.openapi.from_dict(
        world.app.openapi(), config=schemathesis.Config.from_dict(config(caller, headers[caller], things))
    )
    schema.app = world.app
    statuses: defaultdict[str, Counter[int]] = defaultdict(Counter)
    failures: dict[tuple[str, str], str] = {}
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            failures[event.label, str(event.phase)] = "".join(traceback.format_exception(event.value))
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.ScenarioFinished):
            for case, interaction in event.recorder.interactions.items():
                label = event.recorder.cases[case].value.operation.label
                statuses[label][interaction.response.status_code if interaction.response else 0] += 1
            for case, checks in event.recorder.checks.items():
                for check in checks:
                    if (found := check.failure_info) is not None:
                        label = event.recorder.cases[case].value.operation.label
                        failures[label, check.name] = f"{found.failure}\n{found.code_sample}"
    for label, counts in sorted(statuses.items()):
        print(label, dict(counts))
    print(f"{sum(map(Counter.total, statuses.values()))} requests as {caller}, seed {SEED}")
    for (label, check), text in failures.items():
        print(f"--- {label}: {check}", text, sep="\n")
    assert list(failures) == []
    assert set(statuses) == operations(world.app.openapi())
    if caller == "nobody":
        closed = {label for label in statuses if label.partition(" ")[2].startswith("/api/")}
        # 404 is for an address that is none.
        assert all(set(statuses[label]) <= {401, 404, 405} for label in closed)
