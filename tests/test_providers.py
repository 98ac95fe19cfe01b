"""Providers from Python: thin wrappers, so each call is made and read back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from penstock import testing
from penstock.contract import jobs, kinds, providers
from penstock.errors import Invalid, Limited
from penstock.postgres import db as database

NAME = "test/model"


async def test_a_provider_is_declared_changed_and_listed(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        made = await providers.set(pool, name=NAME, requests_per_minute=500, features=["chat"])
        again = await providers.set(pool, name=NAME, concurrency=3, requests_per_hour=None)
        own = await providers.set(pool, name=NAME, tenant_id=tenant, requests_per_minute=5)
        everyones, tenants_own = await providers.list(pool, name=NAME)
        assert len(await providers.list(pool)) == 6, "including the four default ones"
    assert made == again == everyones.id
    assert (everyones.requests_per_minute, everyones.concurrency, everyones.features) == (500, 3, ["chat"])
    assert (everyones.state, everyones.requests_minute, everyones.pace, everyones.opens_at) == (
        "active",
        0,
        1.0,
        None,
    )
    assert (tenants_own.id, tenants_own.tenant_id, tenants_own.requests_per_minute) == (own, tenant, 5)


async def test_a_provider_shows_its_use_and_why_tasks_wait(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    clock.freeze()
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "call"}])
        await providers.set(pool, name=NAME, requests_per_minute=2, tokens_per_minute=10_000)
        specs = [{"kind": "call", "provider": NAME, "units": {"tokens": 100}}] * 5
        job_id = await jobs.start(pool, type="t", tasks=specs, tenant_id=tenant)
        await database.call(pool, "claim_tasks", p_worker_id="w", p_max_tasks=10)
        [found] = await providers.list(pool, name=NAME)
        last = (await jobs.tasks(pool, job_id=job_id))[-1]
        why = await jobs.explain(pool, job_id=job_id, task_id=last.id)
    assert (found.state, found.reason, found.requests_minute, found.tokens_minute) == (
        "full",
        "requests",
        2,
        200,
    )
    assert (found.running, found.waiting) == (2, 3)
    assert found.opens_at is not None and found.opens_at > clock.now()
    assert (why.status, why.waits_for, why.place) == ("queued", "requests", 3)
    assert why.text.startswith("waiting: test/model requests, about ")


async def test_events_are_paged_and_include_reopening(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await providers.set(pool, name=NAME, tenant_id=tenant)
        signal: Any = {"status": 429, "exhausted": True, "message": "no money"}
        await database.call(pool, "report_provider", p_name=NAME, p_signal=signal, p_tenant_id=tenant)
        [closed] = await providers.list(pool, name=NAME)
        await providers.open(pool, name=NAME, tenant_id=tenant)
        [opened] = await providers.list(pool, name=NAME)
        first = await providers.events(pool, name=NAME, tenant_id=tenant, limit=2)
        rest = await providers.events(pool, name=NAME, tenant_id=tenant, before=first[-1].id)
        assert await providers.events(pool, name=NAME) == []
    assert (closed.state, closed.reason) == ("exhausted", "quota exhausted")
    assert opened.state == "active"
    assert [event.event for event in first + rest] == ["opened", "exhausted", "changed"]
    assert first[1].details["message"] == "no money"


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("openai", {}, "invalid_provider"),
        (NAME, {"requests_per_minute": -1}, "invalid_provider"),
        (NAME, {"speed": 3}, "unknown_field"),
    ],
)
async def test_invalid_provider_settings_are_rejected(
    db: testing.Database, name: str, values: Any, code: str
) -> None:
    async with database.pool(db.dsn) as pool:
        with pytest.raises(Invalid) as refused:
            await providers.set(pool, name=name, **values)
        assert refused.value.code == code
        with pytest.raises(Invalid) as refused:
            await providers.open(pool, name="no/such")
        assert refused.value.code == "unknown_provider"


async def test_a_full_queue_rejects_new_tasks(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "call"}])
        await providers.set(pool, name=NAME, depth_limit=1)
        with pytest.raises(Limited) as refused:
            specs = [{"kind": "call", "provider": NAME}] * 2
            await jobs.start(pool, type="t", tasks=specs, tenant_id=tenant)
    assert (refused.value.code, refused.value.details["waiting"]) == ("queue_full", 0)
