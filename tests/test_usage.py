"""Plans, limits, usage and holds from Python: thin wrappers, so each call is made and read back."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from penstock import testing
from penstock.contract import entitlements, jobs, kinds, providers, tenants, usage
from penstock.errors import Conflict, Invalid, Limited, NotFound, PenstockError, Unavailable
from penstock.postgres import db as database
from penstock.types import Meter, MeterUsage


async def line(pool: database.Pool, tenant: UUID, meter: str) -> MeterUsage:
    status = await usage.status(pool, tenant_id=tenant)
    return next(found for found in status.usage if found.meter == meter)


async def test_a_tenant_has_the_limits_of_its_plan(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    clock.freeze(datetime(2030, 3, 5, tzinfo=UTC))
    async with database.pool(db.dsn) as pool:
        assert (await usage.status(pool, tenant_id=tenant)).plan == "unlimited"
        await usage.set_plan(
            pool,
            name="pro",
            title="Pro",
            price=Decimal("29.90"),
            limits={"tokens": 1000, "minutes": Decimal("0.1000000000000000001"), "pages": None},
            features=["hd"],
            weight=3,
        )
        await usage.set_tenant_plan(pool, tenant_id=tenant, plan="pro")
        [plan] = [found for found in await usage.plans(pool) if found.name == "pro"]
        status = await usage.status(pool, tenant_id=tenant)
        limits = await usage.limits(pool, tenant_id=tenant)
        assert (await tenants.find(pool, name=str(tenant)))[0].weight == 3
    assert (plan.price, plan.features, plan.is_active) == (Decimal("29.90"), ["hd"], True)
    assert plan.limits == {"tokens": 1000, "minutes": Decimal("0.1000000000000000001"), "pages": None}
    assert (status.plan, status.features, status.over_limit) == ("pro", ["hd"], False)
    resets_at = datetime(2030, 4, 1, tzinfo=UTC)
    assert MeterUsage(
        "tokens", Decimal(0), Decimal(0), Decimal(1000), Decimal(1000), "enforce", "month", resets_at
    ) in (status.usage)
    assert [(limit.meter, limit.amount) for limit in limits] == [
        ("minutes", Decimal("0.1000000000000000001")),
        ("tokens", Decimal(1000)),
    ]


async def test_the_default_plans_exist(db: testing.Database) -> None:
    """R3.7/plans: the four default plans, and one without limits that is not for sale."""
    async with database.pool(db.dsn) as pool:
        plans = await usage.plans(pool)
    assert [plan.name for plan in plans if not plan.is_active] == ["unlimited"]
    assert [plan.name for plan in plans if plan.is_active] == ["free", "basic", "premium", "enterprise"]
    assert plans[1].price == Decimal("9.99")
    assert plans[3].limits == {}


async def test_a_hold_is_reserved_committed_and_released(db: testing.Database, tenant: UUID) -> None:
    """R2.3/reserve, R4.1/double-release: reserve, commit what was used, release once."""
    async with database.pool(db.dsn) as pool:
        await usage.set_limit(pool, tenant_id=tenant, meter="pages", amount=10)
        reserve: Any = {"tenant_id": tenant, "action": "ocr"}
        first = await usage.reserve(pool, amounts={"pages": Decimal("2.5")}, key="k", **reserve)
        assert await usage.reserve(pool, amounts={"pages": Decimal("2.50")}, key="k", **reserve) == first
        with pytest.raises(Conflict):
            await usage.reserve(pool, amounts={"pages": 3}, key="k", **reserve)
        second = await usage.reserve(pool, amounts={"pages": 7}, **reserve)
        with pytest.raises(Limited) as refused:
            await usage.reserve(pool, amounts={"pages": 1}, **reserve)
        assert refused.value.code == "quota_exceeded"
        assert refused.value.details["meter"] == "pages"
        assert refused.value.retry_after is not None and refused.value.retry_after > 0
        assert (await line(pool, tenant, "pages")).held == Decimal("9.5")
        await usage.commit(pool, hold_id=first, actual={"pages": 2})
        await usage.commit(pool, hold_id=first, actual={"pages": 2})
        with pytest.raises(Conflict) as conflict:
            await usage.release(pool, hold_id=first)
        assert conflict.value.code == "hold_settled"
        assert [await usage.release(pool, hold_id=second) for _ in range(2)] == [True, False]
        found = await line(pool, tenant, "pages")
        assert (found.used, found.held, found.left) == (2, 0, 8)
        third = await usage.reserve(pool, amounts={"pages": 8}, **reserve)
        await usage.commit(pool, hold_id=third)
        assert (await usage.status(pool, tenant_id=tenant)).over_limit
        [day] = await usage.days(pool, tenant_id=tenant)
        assert (day.action, day.meter, day.amount) == ("ocr", "pages", Decimal(10))
        with pytest.raises(NotFound):
            await usage.release(pool, hold_id=uuid4())


async def test_usage_is_recorded_per_day(db: testing.Database, tenant: UUID, clock: testing.Clock) -> None:
    """R2.1/daily: per tenant, action and UTC day."""
    clock.freeze(datetime(2030, 3, 5, 23, 59, tzinfo=UTC))
    async with database.pool(db.dsn) as pool:
        for units in ({"input_tokens": 100, "output_tokens": 20}, {"input_tokens": Decimal("0.5")}):
            await usage.record(pool, tenant_id=tenant, units=units, action="chat", details={"model": "m"})
        clock.advance(minutes=2)
        await usage.record(pool, tenant_id=tenant, units={"pages": 1}, action="ocr")
        found = await usage.days(pool, tenant_id=tenant)
        first = date(2030, 3, 5)
        assert await usage.days(pool, tenant_id=tenant, until=first) == found[:-1]
        assert await usage.days(pool, tenant_id=tenant, since=first + timedelta(days=1)) == found[-1:]
        assert await usage.days(pool, tenant_id=uuid4()) == []
    assert [(day.day.day, day.action, day.meter, day.amount) for day in found] == [
        (5, "chat", "input_tokens", Decimal("100.5")),
        (5, "chat", "output_tokens", Decimal(20)),
        (5, "chat", "tokens", Decimal("120.5")),
        (6, "ocr", "pages", Decimal(1)),
    ]


async def test_a_tenant_can_have_its_own_limits(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    """R2.2/override: the plan's limit, a tenant's own limit in its place, and an extra allowance until a day."""
    clock.freeze(datetime(2030, 3, 5, tzinfo=UTC))

    async def amount() -> Decimal | None:
        found = await usage.limits(pool, tenant_id=tenant)
        return next((limit.amount for limit in found if limit.meter == "files"), None)

    async with database.pool(db.dsn) as pool:
        chosen: Any = {"tenant_id": tenant, "meter": "files"}
        await usage.set_tenant_plan(pool, tenant_id=tenant, plan="free")
        assert await amount() == 10
        await usage.set_limit(pool, amount=3, **chosen)
        assert await amount() == 3
        added = await usage.add_allowance(
            pool, amount=5, expires_on=date(2030, 3, 6), reason="sorry", key="a", **chosen
        )
        assert added == await usage.add_allowance(
            pool, amount=5, expires_on=date(2030, 3, 6), reason="sorry", key="a", **chosen
        )
        await usage.add_allowance(pool, amount=100, source="purchase", **chosen)
        assert await amount() == 108
        clock.advance(days=2)
        assert await amount() == 103
        await usage.set_limit(pool, amount=None, **chosen)
        assert await amount() is None
        await usage.remove_limit(pool, **chosen)
        assert await amount() == 110
        await usage.record(pool, tenant_id=tenant, units={"files": 7}, action="upload")
        assert await usage.reset(pool, reason="a gift", **chosen) == 7
        assert (await line(pool, tenant, "files")).used == 0
        await usage.set_tenant_plan(pool, tenant_id=tenant, plan=None)
        assert await amount() is None


async def test_meters_are_created_and_changed(db: testing.Database, tenant: UUID) -> None:
    """R2.4/observe: exceeding a limit in mode `observe` is not rejected."""
    async with database.pool(db.dsn) as pool:
        await usage.set_meter(pool, name="stamps", period="day", mode="observe", comment="on letters")
        await usage.set_meter(pool, name="stamps", comment="for letters")
        assert Meter("stamps", "day", "observe", "for letters") in await usage.meters(pool)
        await usage.set_limit(pool, tenant_id=tenant, meter="stamps", amount=1)
        await usage.reserve(pool, tenant_id=tenant, amounts={"stamps": 2})
        with pytest.raises(Invalid) as refused:
            await usage.set_meter(pool, name="stamps", period="year")
        assert refused.value.code == "invalid_meter"
    events = db.execute("select details from penstock.usage_events where tenant_id = %s", [tenant])
    assert events == [{"details": {"would_have_blocked": "stamps"}}]


async def test_a_used_up_quota_holds_tasks_back_or_fails_them(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "call"}])
        await providers.set(pool, name="test/model")
        await usage.set_limit(pool, tenant_id=tenant, meter="pages", amount=1)
        specs = [{"kind": "call", "provider": "test/model", "units": {"pages": 1}}] * 2
        held = await jobs.start(pool, type="t", tasks=specs, tenant_id=tenant, on_limit="hold")
        claimed = await database.call(pool, "claim_tasks", p_worker_id="w", p_max_tasks=10)
        assert len(claimed) == 1
        waiting = [task for task in await jobs.tasks(pool, job_id=held) if task.status == "queued"]
        why = await jobs.explain(pool, job_id=held, task_id=waiting[0].id)
        assert (why.waits_for, why.reason) == ("pages", "quota: pages, 0 left of 1")
        refused = await jobs.start(pool, type="t", tasks=specs[:1], tenant_id=tenant, on_limit="refuse")
        await database.call(pool, "claim_tasks", p_worker_id="w", p_max_tasks=10)
        await database.call(pool, "upkeep")
        job = await jobs.get(pool, job_id=refused)
        [task] = await jobs.tasks(pool, job_id=refused)
    assert (job.status, task.error_code) == ("failed", "quota_exceeded")


@pytest.mark.parametrize("amount", [0.1, True, "many", Decimal("NaN"), Decimal("Infinity")])
async def test_an_amount_must_be_a_decimal(db: testing.Database, tenant: UUID, amount: Any) -> None:
    """A float may differ from the number that was written."""
    async with database.pool(db.dsn) as pool:
        with pytest.raises(Invalid, match="must be a decimal number"):
            await usage.set_limit(pool, tenant_id=tenant, meter="cost", amount=amount)
        with pytest.raises(Invalid, match="must be a decimal number"):
            await usage.reserve(pool, tenant_id=tenant, amounts={"pages": amount})


async def test_invalid_usage_settings_are_rejected(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        unknown: Any = {"tenant_id": uuid4()}
        known: Any = {"tenant_id": tenant}
        for code, call in [
            ("unknown_tenant", usage.set_limit(pool, meter="pages", amount=1, **unknown)),
            ("unknown_tenant", usage.limits(pool, **unknown)),
            ("unknown_tenant", usage.reserve(pool, amounts={"pages": 1}, **unknown)),
            ("unknown_plan", usage.set_tenant_plan(pool, plan="gold", **known)),
            ("unknown_meter", usage.reset(pool, meter="smell", **known)),
            ("unknown_meter", usage.reserve(pool, amounts={"smell": 1}, **known)),
            ("invalid_ttl", usage.reserve(pool, amounts={"pages": 1}, ttl_seconds=0, **known)),
            ("invalid_units", usage.reserve(pool, amounts={"pages": -1}, **known)),
            ("invalid_limit", usage.set_limit(pool, meter="pages", amount=-1, **known)),
            ("invalid_allowance", usage.add_allowance(pool, meter="pages", amount=1, **known)),
            ("invalid_action", usage.record(pool, units={"pages": 1}, action="", **known)),
            ("unknown_field", usage.set_plan(pool, name="p", **{"colour": "red"})),  # pyright: ignore[reportArgumentType]
            ("invalid_plan", usage.set_plan(pool, name="A B")),
        ]:
            with pytest.raises((Invalid, NotFound)) as refused:
                await call
            assert refused.value.code == code


@pytest.mark.parametrize("table", ["plans", "accounts", "allowances", "tenant_limits", "meters"])
async def test_a_database_error_refuses(db: testing.Database, tenant: UUID, table: str) -> None:
    """R2.2/database-error: without an answer nothing is reserved and no gate opens."""
    async with database.pool(db.dsn) as pool:
        await usage.set_limit(pool, tenant_id=tenant, meter="pages", amount=10)
        await entitlements.set_gate(pool, name="pages", meter="pages", mode="enforce")
        db.execute(f"alter table penstock.{table} rename to hidden")
        with pytest.raises((PenstockError, psycopg.Error)):
            await usage.reserve(pool, tenant_id=tenant, amounts={"pages": 1})
        with pytest.raises((PenstockError, psycopg.Error)):
            await entitlements.require(pool, gate="pages", tenant_id=tenant)
        with pytest.raises((PenstockError, psycopg.Error)):
            await usage.status(pool, tenant_id=tenant)
        db.execute(f"alter table penstock.hidden rename to {table}")
        assert db.execute("select count(*) as n from penstock.holds")[0]["n"] == 0
        assert (await entitlements.require(pool, gate="pages", tenant_id=tenant)).hold_id is not None


async def test_a_database_that_is_away_refuses(db: testing.Database, tenant: UUID) -> None:
    """R2.2/database-error: a lost connection is an error, never an answer."""
    async with database.pool(db.dsn, max_size=1) as pool:
        await usage.limits(pool, tenant_id=tenant)
        terminate = (
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )

        async def cut() -> None:
            await asyncio.sleep(0.2)
            db.execute(terminate)

        lock = db.connect()
        lock.execute("begin")
        lock.execute("lock table penstock.tenants in access exclusive mode")
        cutting = asyncio.create_task(cut())
        with pytest.raises(Unavailable):
            await usage.reserve(pool, tenant_id=tenant, amounts={"pages": 1})
        await cutting
        lock.close()
