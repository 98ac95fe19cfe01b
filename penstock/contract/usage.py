"""Usage: meters, and how much of each a tenant may use, has used and has reserved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, LiteralString, Unpack
from uuid import UUID

from penstock.postgres import db
from penstock.types import Amount, Limit, Meter, Plan, PlanValues, UsageDay, UsageStatus, exact

_DAYS: LiteralString = """\
select tenant_id, day, action, meter, amount from penstock.usage_days
where tenant_id = %s and day >= coalesce(%s, '-infinity'::date) and day <= coalesce(%s, 'infinity'::date)
order by day, action, meter"""
_LIMITS: LiteralString = """\
select meter, amount, mode, nullif(resets_at, 'infinity') from penstock.resolve_limits(%s, %s)
order by meter"""
_METERS: LiteralString = "select name, period, mode, comment from penstock.meters order by name"
# Limits are read as text, because a float would lose digits.
_PLANS: LiteralString = """\
select name, title, comment, features, price, currency, weight, is_active, limits::text from penstock.plans
order by position, name"""


# Usage of a tenant


async def status(database: db.Database, *, tenant_id: UUID | None = None) -> UsageStatus:
    """A tenant's plan, and how much of each meter it has used, has reserved and has left."""
    return UsageStatus.read(await db.document(database, "get_usage_status", p_tenant_id=tenant_id))


async def days(
    database: db.Database, *, tenant_id: UUID, since: date | None = None, until: date | None = None
) -> list[UsageDay]:
    """A tenant's usage per day (UTC), action and meter; both days are included."""
    return [UsageDay(*row) for row in await db.rows(database, _DAYS, (tenant_id, since, until))]


async def record(
    database: db.Database,
    *,
    tenant_id: UUID,
    units: Mapping[str, Amount],
    action: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Record what a tenant used outside a task. For limited meters, `reserve` before the work."""
    await db.call(
        database,
        "record_usage",
        p_units=_amounts(units),
        p_tenant_id=tenant_id,
        p_action=action,
        p_options={"details": dict(details or {})},
    )


# Holds


async def reserve(
    database: db.Database,
    *,
    tenant_id: UUID,
    amounts: Mapping[str, Amount],
    action: str = "reserve",
    key: str | None = None,
    ttl_seconds: float = 300,
) -> UUID:
    """Reserve amounts, all or none; returns the id of the hold, the same one for the same key.

    Raises Limited (`quota_exceeded`) with the current usage and the end of the period. A hold that is neither
    committed nor released expires.
    """
    return await db.value(
        database,
        "reserve_quota",
        p_tenant_id=tenant_id,
        p_amounts=_amounts(amounts),
        p_action=action,
        p_key=key,
        p_ttl_seconds=float(ttl_seconds),
    )


async def commit(database: db.Database, *, hold_id: UUID, actual: Mapping[str, Amount] | None = None) -> None:
    """Record the actual usage (by default the reserved amounts) and end the hold. Counts only once."""
    amounts = None if actual is None else _amounts(actual)
    await db.call(database, "commit_hold", p_hold_id=hold_id, p_actual=amounts)


async def release(database: db.Database, *, hold_id: UUID) -> bool:
    """Release what a hold has reserved; False if the hold had already ended."""
    return await db.value(database, "release_hold", p_hold_id=hold_id)


# Limits of a tenant


async def limits(database: db.Database, *, tenant_id: UUID, at: datetime | None = None) -> list[Limit]:
    """A tenant's limits, now or at another time. A meter that is not listed is not limited."""
    return [Limit(*row) for row in await db.rows(database, _LIMITS, (tenant_id, at))]


async def set_limit(database: db.Database, *, tenant_id: UUID, meter: str, amount: Amount | None) -> None:
    """Give a tenant its own limit in place of its plan's; None means unlimited."""
    value = None if amount is None else exact(amount)
    await db.call(database, "set_limit", p_tenant_id=tenant_id, p_meter=meter, p_amount=value)


async def remove_limit(database: db.Database, *, tenant_id: UUID, meter: str) -> None:
    """Remove a tenant's own limit, so that its plan's limit applies again."""
    await db.call(database, "set_limit", p_tenant_id=tenant_id, p_meter=meter, p_amount=None, p_is_own=False)


async def add_allowance(
    database: db.Database,
    *,
    tenant_id: UUID,
    meter: str,
    amount: Amount,
    source: str = "override",
    expires_on: date | None = None,
    reason: str | None = None,
    key: str | None = None,
) -> UUID:
    """Let a tenant use more: an `override` until a day (included), or a `purchase`. A key counts once."""
    return await db.value(
        database,
        "add_allowance",
        p_tenant_id=tenant_id,
        p_meter=meter,
        p_amount=exact(amount),
        p_source=source,
        p_expires_on=expires_on,
        p_reason=reason,
        p_key=key,
    )


async def reset(database: db.Database, *, tenant_id: UUID, meter: str, reason: str | None = None) -> Decimal:
    """Set a tenant's usage of a meter to zero; returns the usage before. Reserved amounts stay reserved."""
    return await db.value(database, "reset_quota", p_tenant_id=tenant_id, p_meter=meter, p_reason=reason)


# Plans and meters


async def plans(database: db.Database) -> list[Plan]:
    """The plans, in their order."""
    rows = await db.rows(database, _PLANS, ())
    return [Plan(*row[:-1], limits=_limits(row[-1])) for row in rows]


async def set_plan(database: db.Database, *, name: str, **values: Unpack[PlanValues]) -> None:
    """Create or change a plan. The new limits apply to its tenants at once."""
    document: dict[str, Any] = dict(values)
    if "limits" in document:
        amounts: Mapping[str, Amount | None] = document["limits"]
        document["limits"] = {m: None if a is None else exact(a, m) for m, a in amounts.items()}
    if "price" in document:
        document["price"] = exact(document["price"], "price")
    await db.call(database, "set_plan", p_name=name, p_values=db.exact_json(document))


async def set_tenant_plan(database: db.Database, *, tenant_id: UUID, plan: str | None) -> None:
    """Put a tenant on a plan (None or `unlimited`: no limits). Its usage in the period still counts."""
    await db.call(database, "set_tenant_plan", p_tenant_id=tenant_id, p_plan=plan or "unlimited")


async def meters(database: db.Database) -> list[Meter]:
    """All meters."""
    return [Meter(*row) for row in await db.rows(database, _METERS, ())]


async def set_meter(
    database: db.Database,
    *,
    name: str,
    period: str | None = None,
    mode: str | None = None,
    comment: str | None = None,
) -> None:
    """Create or change a meter, which counts per day, per month or in total.

    In mode `observe` its limits are not enforced; exceeding them is only recorded.
    """
    chosen = {"period": period, "mode": mode, "comment": comment}
    values = {name: value for name, value in chosen.items() if value is not None}
    await db.call(database, "set_meter", p_name=name, p_values=values)


def _amounts(amounts: Mapping[str, Amount]) -> db.Json:
    return db.exact_json({meter: exact(amount, meter) for meter, amount in amounts.items()})


def _limits(text: str) -> dict[str, Decimal | None]:
    document: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return {meter: None if amount is None else Decimal(amount) for meter, amount in document.items()}
