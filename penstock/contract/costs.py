"""Costs: prices, the ledger of what was spent, and budgets. Amounts of money are Decimals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.errors import Invalid, NotFound
from penstock.postgres import db
from penstock.types import (
    Amount,
    By,
    ComparedPrice,
    CostDay,
    CostEntry,
    CostSum,
    ExchangeRate,
    ExpensiveJob,
    JobCost,
    Price,
    exact,
)

# These are read from tables of sums, which are small. Only sums by job have to be computed from the ledger.
_KEYS: dict[str, LiteralString] = {
    "day": "day::text",
    "provider": "coalesce(provider, '')",
    "type": "cost_type",
    "tenant": "tenant_id::text",
}
_RANGE: LiteralString = "day >= coalesce(%s, '-infinity'::date) and day <= coalesce(%s, 'infinity'::date)"
_OF_ALL: LiteralString = " from penstock.cost_totals where " + _RANGE
_OF_EACH: LiteralString = (
    " from penstock.cost_sums where " + _RANGE + " and tenant_id = coalesce(%s, tenant_id)"
)
_BY_JOB: LiteralString = """\
select job_id::text, sum(base_amount), coalesce(sum(unit_count), 0), count(*) from penstock.cost_entries
where job_id is not null and at >= coalesce(%s::date::timestamp at time zone 'utc', '-infinity')
  and at < coalesce((%s::date + 1)::timestamp at time zone 'utc', 'infinity')
  and tenant_id = coalesce(%s, tenant_id)
group by job_id order by 2 desc, 1 limit 1000"""
_ENTRIES: LiteralString = """\
select id, at, tenant_id, job_id, task_id, provider, cost_type, meter, unit_count, amount, currency,
  base_amount, corrects, reason, is_estimate
from penstock.cost_entries where """
_JOB: LiteralString = """\
select j.id, coalesce(c.cost, 0), coalesce(c.held, 0), j.budget
from penstock.jobs j left join penstock.job_costs c on c.job_id = j.id where j.id = %s"""
_DAYS_OF_ALL: LiteralString = """\
select day, coalesce(provider, ''), sum(amount) from penstock.cost_totals where day >= %s
group by 1, 2 order by 1, 2"""
_DAYS_OF_TENANT: LiteralString = """\
select day, coalesce(provider, ''), sum(amount) from penstock.cost_days where tenant_id = %s and day >= %s
group by 1, 2 order by 1, 2"""
_LATEST: LiteralString = """\
select j.id, j.tenant_id, j.type, j.title, j.status, a.used, j.budget
from (select * from penstock.jobs where """
_MOST_EXPENSIVE: LiteralString = """ order by id desc limit 1000) as j
join penstock.accounts a on a.job_id = j.id and a.meter = 'cost' where a.used > 0
order by a.used desc, j.id limit %s"""
_OF_JOBS: LiteralString = """\
select job_id, sum(used) from penstock.accounts where job_id = any (%s) and meter = 'cost' group by job_id"""
_OF_TASKS: LiteralString = """\
select task_id, sum(base_amount) from penstock.cost_entries where job_id = any (%s) and task_id = any (%s)
group by task_id"""
_PRICES: LiteralString = """\
select id, provider, tenant_id, meter, variant, cost_type, amount, currency, valid_from, valid_until,
  is_current
from penstock.price_list where (%s::text is null or provider = %s) and (is_current or %s)
order by provider, tenant_id nulls first, meter, variant, valid_from"""
_RATES: LiteralString = """\
select meter, variant, provider, tenant_id, amount, currency, base_amount, place from penstock.rate_comparison
where %s::text is null or meter = %s order by meter, variant, tenant_id nulls first, place, provider"""
_BASE: LiteralString = "select value #>> '{}' from penstock.settings where name = 'base_currency'"
_EXCHANGE: LiteralString = """\
select currency, rate, valid_from from penstock.exchange_rates order by currency, valid_from"""


# The ledger


async def sums(
    database: db.Database,
    *,
    by: By,
    since: date | None = None,
    until: date | None = None,
    tenant_id: UUID | None = None,
) -> list[CostSum]:
    """Costs in the base currency, of a tenant or of all, summed by day, provider, type, tenant or job.

    `since` and `until` are days in UTC, both included. Sums by day are in order of time, all others are in
    order of cost, the highest first. By job only the first thousand are returned.
    """
    if by == "job":
        return _sums(await db.rows(database, _BY_JOB, (since, until, tenant_id)))
    key = _KEYS.get(by)
    if key is None:
        allowed = ", ".join([*_KEYS, "job"])
        raise Invalid(f"by must be one of {allowed} (got {by!r})", details={"field": "by"})
    # Grouping by the id is faster than by its text.
    group: LiteralString = " group by tenant_id" if by == "tenant" else " group by 1"
    order: LiteralString = group + (" order by 1" if by == "day" else " order by 2 desc, 1")
    head: LiteralString = "select " + key + ", sum(amount), sum(unit_count), sum(lines)::bigint"
    if by == "tenant" or tenant_id is not None:
        return _sums(await db.rows(database, head + _OF_EACH + order, (since, until, tenant_id)))
    return _sums(await db.rows(database, head + _OF_ALL + order, (since, until)))


def _sums(rows: list[tuple[Any, ...]]) -> list[CostSum]:
    return [CostSum(*row) for row in rows]


async def days(database: db.Database, *, since: date, tenant_id: UUID | None = None) -> list[CostDay]:
    """Costs per day and provider since a day, of a tenant or of all."""
    if tenant_id is None:
        return [CostDay(*row) for row in await db.rows(database, _DAYS_OF_ALL, (since,))]
    return [CostDay(*row) for row in await db.rows(database, _DAYS_OF_TENANT, (tenant_id, since))]


async def most_expensive(
    database: db.Database, *, tenant_ids: Sequence[UUID] | None = None, limit: int = 10
) -> list[ExpensiveJob]:
    """The most expensive of the latest thousand jobs."""
    wanted = "true" if tenant_ids is None else "tenant_id = any (%s)"
    statement = _LATEST + wanted + _MOST_EXPENSIVE
    values = [] if tenant_ids is None else [list(tenant_ids)]
    return [ExpensiveJob(*row) for row in await db.rows(database, statement, [*values, filters.page(limit)])]


async def entries(
    database: db.Database,
    *,
    tenant_id: UUID | None = None,
    job_id: UUID | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[CostEntry]:
    """Lines of the ledger, newest first. The next page is `before` the id of the last line of this page."""
    wanted: list[filters.Condition] = []
    if tenant_id is not None:
        wanted.append(("tenant_id = %s", [tenant_id]))
    if job_id is not None:
        wanted.append(("job_id = %s", [job_id]))
    if before is not None:
        wanted.append(("id < %s", [before]))
    condition, values = filters.every(wanted)
    statement = _ENTRIES + condition + " order by id desc limit %s"
    return [CostEntry(*row) for row in await db.rows(database, statement, [*values, filters.page(limit)])]


async def of_job(database: db.Database, *, job_id: UUID) -> JobCost:
    """The cost of a job so far, in the base currency."""
    rows = await db.rows(database, _JOB, (job_id,))
    if not rows:
        raise NotFound(f"no job with id {job_id}", code="unknown_job")
    return JobCost(*rows[0])


async def of_jobs(database: db.Database, *, job_ids: Iterable[UUID]) -> dict[UUID, Decimal]:
    """The costs of these jobs so far; jobs without costs are left out."""
    return dict(await db.rows(database, _OF_JOBS, (list(job_ids),)))  # pyright: ignore[reportArgumentType]


async def of_tasks(
    database: db.Database, *, job_ids: Iterable[UUID], task_ids: Iterable[int]
) -> dict[int, Decimal]:
    """The costs of these tasks so far; tasks without costs are left out."""
    return dict(await db.rows(database, _OF_TASKS, (list(job_ids), list(task_ids))))  # pyright: ignore[reportArgumentType]


async def record(
    database: db.Database,
    *,
    tenant_id: UUID,
    cost_type: str,
    amount: Amount,
    currency: str | None = None,
    job_id: UUID | None = None,
    provider: str | None = None,
    reason: str | None = None,
    key: str | None = None,
) -> int:
    """Add a cost that no task reported to the ledger; returns the line's id. A key is recorded only once."""
    options = {"job_id": job_id and str(job_id), "provider": provider, "reason": reason, "key": key}
    return await db.value(
        database,
        "record_cost",
        p_cost_type=cost_type,
        p_amount=exact(amount),
        p_currency=currency,
        p_tenant_id=tenant_id,
        p_options={name: value for name, value in options.items() if value is not None},
    )


async def correct(
    database: db.Database,
    *,
    entry_id: int,
    amount: Amount,
    reason: str,
    key: str | None = None,
) -> int:
    """Correct a line of the ledger by an amount in its currency; a negative amount reduces the cost.

    The line itself does not change; returns the id of a new line. A key is recorded only once.
    """
    found = await db.rows(database, _ENTRIES + "id = %s", (entry_id,))
    if not found:
        raise NotFound(f"no ledger line with id {entry_id}", code="unknown_cost")
    entry = CostEntry(*found[0])
    options = {"corrects": entry_id, "reason": reason, "meter": entry.meter, "key": key}
    return await db.value(
        database,
        "record_cost",
        p_cost_type=entry.cost_type,
        p_amount=exact(amount),
        p_currency=entry.currency,
        p_options={name: value for name, value in options.items() if value is not None},
    )


async def set_budget(database: db.Database, *, job_id: UUID, amount: Amount | None) -> None:
    """Change the budget of a job, in the base currency (None: no budget).

    A job that is paused because of its budget continues.
    """
    value = None if amount is None else exact(amount)
    await db.call(database, "set_budget", p_job_id=job_id, p_amount=value)


# Prices and currencies


async def prices(
    database: db.Database, *, provider: str | None = None, is_every: bool = False
) -> list[Price]:
    """The prices of all providers or of one: the current ones; with `is_every`, past and future ones too."""
    return [Price(*row) for row in await db.rows(database, _PRICES, (provider, provider, is_every))]


async def set_price(
    database: db.Database,
    *,
    provider: str,
    meter: str,
    amount: Amount | None,
    per: int = 1,
    currency: str | None = None,
    variant: str | None = None,
    cost_type: str | None = None,
    valid_from: datetime | None = None,
    tenant_id: UUID | None = None,
) -> int:
    """Set the price of `per` units of a meter at a provider, from now or from a date; None ends the price.

    Earlier work keeps its price. A tenant's own price takes precedence over the general one.
    """
    if valid_from is not None and valid_from.tzinfo is None:
        raise Invalid(
            f"valid_from must have a time zone (got {valid_from.isoformat()})",
            code="invalid_price",
            details={"field": "valid_from"},
        )
    options = {
        "per": per,
        "currency": currency,
        "variant": variant,
        "cost_type": cost_type,
        "valid_from": valid_from and valid_from.isoformat(),
        "tenant_id": tenant_id and str(tenant_id),
    }
    return await db.value(
        database,
        "set_price",
        p_provider=provider,
        p_meter=meter,
        p_amount=None if amount is None else exact(amount),
        p_options={name: value for name, value in options.items() if value is not None},
    )


async def compare(database: db.Database, *, meter: str | None = None) -> list[ComparedPrice]:
    """The current price of a unit of each meter at each provider, the cheapest first."""
    return [ComparedPrice(*row) for row in await db.rows(database, _RATES, (meter, meter))]


async def base_currency(database: db.Database) -> str:
    """The currency of sums and budgets."""
    [[currency]] = await db.rows(database, _BASE, ())
    return currency


async def exchange_rates(database: db.Database) -> list[ExchangeRate]:
    """The exchange rates of currencies to the base currency, with their history."""
    return [ExchangeRate(*row) for row in await db.rows(database, _EXCHANGE, ())]


async def set_exchange_rate(
    database: db.Database, *, currency: str, rate: Decimal | int, valid_from: datetime | None = None
) -> None:
    """Set the value of one unit of a currency in the base currency, from now or from a date."""
    await db.call(
        database,
        "set_exchange_rate",
        p_currency=currency,
        p_rate=exact(rate, "rate"),
        p_valid_from=valid_from,
    )
