"""Costs, prices, budgets and forecasts from Python: thin wrappers, so each call is made and read back."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from penstock import App, testing
from penstock.contract import costs, jobs, kinds, providers, tenants, usage
from penstock.errors import Conflict, Invalid, NotFound
from penstock.postgres import db as database

NAME = "test/model"
MILLION = 1_000_000


async def prepare(pool: database.Pool) -> None:
    """A provider at 0.15 and 0.60 a million tokens."""
    await kinds.define(pool, kinds=[{"name": "call"}])
    await providers.set(pool, name=NAME, requests_per_minute=600)
    for meter, amount in (("input_tokens", "0.15"), ("output_tokens", "0.60")):
        await costs.set_price(pool, provider=NAME, meter=meter, amount=Decimal(amount), per=MILLION)


def calls(count: int, **units: int) -> list[dict[str, Any]]:
    return [{"kind": "call", "provider": NAME, "units": units}] * count


async def run_all(pool: database.Pool) -> None:
    for task in await database.call(pool, "claim_tasks", p_worker_id="w", p_max_tasks=100):
        await database.call(
            pool, "complete_task", p_task_id=task["id"], p_worker_id="w", p_lease=task["lease"]
        )


async def test_prices_are_exact_to_the_last_digit(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    """R0.4/exact, R0.4/rollups: the price of a single token is not rounded away, and sums by day, provider, type, job and tenant agree."""
    clock.freeze(datetime(2030, 3, 5, tzinfo=UTC))
    async with database.pool(db.dsn) as pool:
        await prepare(pool)
        other = await tenants.create(pool, name="other")
        ids: list[UUID] = []
        for whose in (tenant, other):
            for _ in range(2):
                specs = calls(1, input_tokens=1, output_tokens=1)
                ids.append(await jobs.start(pool, type="t", tasks=specs, tenant_id=whose))
                await run_all(pool)
                clock.advance(days=1)
        one = Decimal("0.00000075")
        by_day = await costs.sums(pool, by="day")
        assert [(line.key, line.amount, line.lines) for line in by_day] == [
            (f"2030-03-0{day}", one, 2) for day in (5, 6, 7, 8)
        ]
        assert [(line.key, line.amount) for line in await costs.sums(pool, by="provider")] == [
            (NAME, 4 * one)
        ]
        [kind] = await costs.sums(pool, by="type", tenant_id=tenant)
        assert (kind.key, kind.amount) == ("inference", 2 * one)
        by_tenant = await costs.sums(pool, by="tenant")
        assert {line.key: line.amount for line in by_tenant} == {str(tenant): 2 * one, str(other): 2 * one}
        by_job = await costs.sums(pool, by="job")
        assert {line.key: line.amount for line in by_job} == {str(job_id): one for job_id in ids}
        span: Any = {"since": date(2030, 3, 6), "until": date(2030, 3, 7)}
        assert [line.key for line in await costs.sums(pool, by="day", **span)] == ["2030-03-06", "2030-03-07"]
        assert {line.key for line in await costs.sums(pool, by="job", **span)} == {str(id) for id in ids[1:3]}
        assert len(await costs.sums(pool, by="job", tenant_id=tenant, **span)) == 1
        with pytest.raises(Invalid):
            await costs.sums(pool, by="weather")  # pyright: ignore[reportArgumentType]
        found = await costs.of_job(pool, job_id=ids[0])
        assert (found.cost, found.held, found.budget) == (one, 0, None)
        with pytest.raises(NotFound):
            await costs.of_job(pool, job_id=uuid4())


async def test_a_correction_adds_a_line_to_the_ledger(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await costs.set_exchange_rate(pool, currency="EUR", rate=Decimal("1.10"))
        record: Any = {"tenant_id": tenant, "cost_type": "render", "currency": "EUR", "key": "bill-7"}
        entry = await costs.record(pool, amount=Decimal("2.50"), provider="studio", **record)
        assert await costs.record(pool, amount=Decimal("2.50"), provider="studio", **record) == entry
        with pytest.raises(Conflict):
            await costs.record(pool, amount=3, **record)
        fixed = await costs.correct(pool, entry_id=entry, amount=Decimal("-0.50"), reason="a rebate", key="r")
        assert fixed == await costs.correct(
            pool, entry_id=entry, amount=Decimal("-0.50"), reason="a rebate", key="r"
        )
        correction, line = await costs.entries(pool, tenant_id=tenant)
        assert await costs.entries(pool, before=correction.id) == [line]
        assert await costs.entries(pool, job_id=uuid4()) == []
        [total] = await costs.sums(pool, by="provider")
        with pytest.raises(NotFound) as refused:
            await costs.correct(pool, entry_id=10**9, amount=1, reason="?")
        assert refused.value.code == "unknown_cost"
        with pytest.raises(Invalid) as invalid:
            await costs.record(pool, tenant_id=tenant, cost_type="render", amount=-1)
        assert invalid.value.code == "invalid_cost"
    assert (line.amount, line.currency, line.base_amount) == (Decimal("2.50"), "EUR", Decimal("2.75"))
    assert (correction.corrects, correction.reason, correction.cost_type) == (entry, "a rebate", "render")
    assert (correction.provider, correction.currency) == ("studio", "EUR")
    assert (total.key, total.amount, total.lines) == ("studio", Decimal("2.20"), 2)


async def test_prices_change_at_their_dates(db: testing.Database, tenant: UUID, clock: testing.Clock) -> None:
    """R0.5/dated, R0.5/tenant-wins: a later price replaces an earlier one, and a tenant's own price takes precedence."""
    clock.freeze(datetime(2030, 3, 5, tzinfo=UTC))
    async with database.pool(db.dsn) as pool:
        await prepare(pool)
        later = clock.now() + timedelta(days=10)
        price: Any = {"provider": NAME, "meter": "input_tokens", "per": MILLION}
        await costs.set_price(pool, amount=Decimal("0.20"), valid_from=later, **price)
        await costs.set_price(pool, amount=Decimal("0.01"), tenant_id=tenant, variant="batch", **price)
        with pytest.raises(Conflict) as refused:
            await costs.set_price(pool, amount=1, valid_from=later, **price)
        assert refused.value.code == "price_exists"
        now = await costs.prices(pool, provider=NAME)
        every = await costs.prices(pool, provider=NAME, is_every=True)
        assert await costs.prices(pool, provider="no/such") == []
        clock.advance(days=10)
        [changed] = [p for p in await costs.prices(pool) if p.meter == "input_tokens" and not p.tenant_id]
        await costs.set_price(pool, amount=None, valid_from=clock.now() + timedelta(seconds=1), **price)
        clock.advance(seconds=2)
        ended = [p.amount for p in await costs.prices(pool) if p.meter == "input_tokens" and not p.tenant_id]
    assert [(p.meter, p.variant, p.amount, p.tenant_id) for p in now] == [
        ("input_tokens", "standard", Decimal("0.00000015"), None),
        ("output_tokens", "standard", Decimal("0.0000006"), None),
        ("input_tokens", "batch", Decimal("0.00000001"), tenant),
    ]
    assert len(every) == 4 and now[0].valid_until == later
    assert changed.amount == Decimal("0.0000002")
    assert ended == [None]


async def test_prices_are_compared_in_the_base_currency(db: testing.Database) -> None:
    """R0.4/rate-matrix: a rate-comparison matrix over currencies."""
    async with database.pool(db.dsn) as pool:
        await costs.set_exchange_rate(pool, currency="EUR", rate=Decimal("1.25"))
        for name, amount, currency in (("a/x", 2, "USD"), ("b/x", 1, "EUR"), ("c/x", 3, None)):
            await providers.set(pool, name=name)
            await costs.set_price(pool, provider=name, meter="images", amount=amount, currency=currency)
        found = await costs.compare(pool, meter="images")
        assert found == await costs.compare(pool)
        [rate] = await costs.exchange_rates(pool)
        assert await costs.base_currency(pool) == "USD"
    assert [(r.place, r.provider, r.base_amount) for r in found] == [
        (1, "b/x", Decimal("1.25")),
        (2, "a/x", 2),
        (3, "c/x", 3),
    ]
    assert (rate.currency, rate.rate) == ("EUR", Decimal("1.25"))


async def test_a_job_pauses_before_it_exceeds_its_budget(db: testing.Database, tenant: UUID) -> None:
    """R0.6/budget: a budget per job."""
    async with database.pool(db.dsn) as pool:
        await prepare(pool)
        specs = calls(3, output_tokens=MILLION)
        job_id = await jobs.start(pool, type="t", tasks=specs, tenant_id=tenant, budget=Decimal("1.50"))
        await run_all(pool)
        await run_all(pool)
        await database.call(pool, "upkeep")
        paused = await jobs.get(pool, job_id=job_id)
        spent = await costs.of_job(pool, job_id=job_id)
        await costs.set_budget(pool, job_id=job_id, amount=Decimal("1.80"))
        await run_all(pool)
        ended = await jobs.get(pool, job_id=job_id)
        with pytest.raises(Conflict) as refused:
            await costs.set_budget(pool, job_id=job_id, amount=None)
    assert paused.status == "paused" and (paused.status_reason or "").startswith("budget: 1.2 of 1.5 USD")
    assert (spent.cost, spent.held, spent.budget) == (Decimal("1.2"), 0, Decimal("1.50"))
    assert ended.status == "completed"
    assert refused.value.code == "job_ended"


async def test_a_budget_must_be_an_exact_amount(db: testing.Database, tenant: UUID) -> None:
    async with database.pool(db.dsn) as pool:
        await prepare(pool)
        start: Any = {"type": "t", "tasks": calls(1, tokens=1), "tenant_id": tenant}
        amount = Decimal("0.1234567890123456789")
        key: Any = {"idempotency_key": "k", **start}
        job_id = await jobs.start(pool, budget=amount, **key)
        assert await jobs.start(pool, budget=amount, **key) == job_id
        assert (await costs.of_job(pool, job_id=job_id)).budget == amount
        wrong: list[Any] = [-1, 0.5, "much"]
        for budget in wrong:
            with pytest.raises(Invalid) as refused:
                await jobs.start(pool, budget=budget, **start)
            assert refused.value.details["field"] == "options.budget"
        await providers.set(pool, name="free/lunch")
        with pytest.raises(Invalid) as refused:
            unpriced = [{"kind": "call", "provider": "free/lunch"}]
            await jobs.start(pool, type="t", tasks=unpriced, tenant_id=tenant, budget=1)
        assert refused.value.code == "no_price"


async def test_a_forecast_before_and_during_a_job(db: testing.Database, tenant: UUID) -> None:
    """A forecast before the start takes the arguments of the start."""
    async with database.pool(db.dsn) as pool:
        await prepare(pool)
        await usage.set_limit(pool, tenant_id=tenant, meter="tokens", amount=5 * MILLION)
        what: Any = {
            "type": "t",
            "params": {"topic": "otters"},
            "tasks": calls(10, input_tokens=MILLION),
            "tenant_id": tenant,
            "budget": Decimal("1.49"),
        }
        before = await jobs.forecast(pool, **what)
        assert await jobs.list(pool) == []
        job_id = await jobs.start(pool, **what)
        rest = await jobs.forecast_rest(pool, job_id=job_id)
        await jobs.cancel(pool, job_id=job_id)
        with pytest.raises(Conflict):
            await jobs.forecast_rest(pool, job_id=job_id)
        with pytest.raises(NotFound):
            await jobs.explain(pool, job_id=job_id, task_id=10**9)
    assert before.tasks == rest.tasks == 10
    assert before.cost.expected == rest.cost.expected == before.cost.high == Decimal("1.5")
    assert before.cost.low < before.cost.expected and before.cost.currency == "USD"
    assert before.units["input_tokens"] == 10 * MILLION
    assert before.budget is not None and not before.budget.fits and before.budget.amount == Decimal("1.49")
    [quota] = before.quota
    assert (quota.meter, quota.needs, quota.left, quota.fits) == ("tokens", 10 * MILLION, 5 * MILLION, False)
    assert not before.fits
    assert (before.finish.seconds, before.finish.reason) == (None, "no task of this kind has ended yet")


def test_an_app_forecasts_with_the_arguments_of_start(db: testing.Database) -> None:
    app = App(database_url=db.dsn)

    @app.task
    def draw(topic: str) -> str:
        return topic

    @app.job
    def album(topics: list[str]) -> None:
        for topic in topics:
            draw.options(route={"features": ["pictures"]}, units={"images": 1}).step(topic)

    db.execute("select penstock.set_provider('test/pictures', '{\"features\": [\"pictures\"]}')")
    db.execute("select penstock.set_price('test/pictures', 'images', 0.04)")
    with app:
        one = draw.options(provider="test/pictures", units={"images": 2}, budget=1).forecast("otters")
        many = album.options(budget=Decimal("0.10")).forecast(["otters", "herons", "coots"])
        assert db.execute("select id from penstock.jobs") == []
        job = album.options(budget=Decimal("0.20"), on_limit="refuse").start(["otters", "herons"])
        rest = job.forecast()
        with pytest.raises(Invalid, match="budget is an option of a job"):
            wrong = app.job(name="wrong")(lambda: draw.options(budget=1).step("x"))
            wrong.start()
    assert one.cost.high == Decimal("0.08") and one.fits
    assert (many.tasks, many.cost.high, many.fits) == (3, Decimal("0.12"), False)
    assert rest.cost.high == Decimal("0.08")
    [stored] = db.execute("select budget, on_limit from penstock.jobs")
    assert stored == {"budget": Decimal("0.20"), "on_limit": "refuse"}
    [chosen] = db.execute("select distinct route #>> '{chosen,provider}' as provider from penstock.tasks")
    assert chosen["provider"] == "test/pictures"
