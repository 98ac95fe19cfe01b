"""`penstock usage` and `penstock plans`: usage, quotas and subscription plans of tenants."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.options import Output, TenantArgument, WithDefault, command, current_options, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import amount_of, amount_or_none, day_of, pairs_of
from penstock.contract import tenants, usage
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import Plan, PlanValues, UsageStatus

group = typer.Typer(help="Show usage and manage quotas.\n\nDefault command: show.", cls=WithDefault)
plans_group = typer.Typer(help="Manage subscription plans.\n\nDefault command: ls.", cls=WithDefault)

MeterArgument = Annotated[
    str, typer.Argument(metavar="METER", show_default=False, help="Meter, for example tokens.")
]
AmountArgument = Annotated[str, typer.Argument(metavar="AMOUNT", show_default=False, help="Amount to add.")]
SinceOption = Annotated[str | None, typer.Option(metavar="DAY", help="First day, UTC.")]
UntilOption = Annotated[str | None, typer.Option(metavar="DAY", help="Last day, UTC.")]
ReasonOption = Annotated[str | None, typer.Option(help="Reason, stored in the audit log.")]


class Period(StrEnum):
    """Period after which a meter resets."""

    day = "day"
    month = "month"
    total = "total"


class Mode(StrEnum):
    """What happens when a limit is exceeded."""

    observe = "observe"
    enforce = "enforce"


# usage


@command(group, "show")
async def show(
    pool: db.Pool,
    tenant: Annotated[
        str | None, typer.Argument(metavar="TENANT", help="Tenant name or id (default: the only tenant).")
    ] = None,
) -> None:
    """Show a tenant's plan, and what it has used, reserved and left of each meter."""
    status = await usage.status(pool, tenant_id=await _tenant_id(pool, tenant))
    if current_options().output is Output.csv:
        output.rows(status.usage, [], empty="")
        return
    names = await tenants.names(pool, ids=[status.tenant_id])
    output.document(status, lambda: _show(status, names.get(status.tenant_id, "?")))


async def _tenant_id(pool: db.Pool, text: str | None) -> UUID:
    if text is not None:
        return await tenant_id_of(pool, text)
    found = await tenants.list(pool, limit=2)
    if len(found) != 1:
        raise Invalid("TENANT is required", code="tenant_missing", hint="See `penstock tenants ls`.")
    return found[0].id


def _show(status: UsageStatus, tenant: str) -> None:
    output.fields(
        [
            ("tenant", f"{tenant} ({status.tenant_id})"),
            ("plan", status.plan or "none"),
            ("features", ", ".join(status.features)),
        ]
    )
    if status.usage:
        print()
        output.rows(status.usage, _METER_COLUMNS, empty="")
    else:
        output.note("No limits and no usage.")


_METER_COLUMNS = [
    Column("METER", lambda line: line.meter),
    Column(
        "USED",
        lambda line: f"{line.used:,f}",
        is_right=True,
        share=lambda line: output.share(line.used + line.held, line.limit),
    ),
    Column("RESERVED", lambda line: f"{line.held:,f}", is_right=True),
    Column("LIMIT", lambda line: "∞" if line.limit is None else f"{line.limit:,f}", is_right=True),
    Column("LEFT", lambda line: "∞" if line.left is None else f"{line.left:,f}", is_right=True),
    Column("RESETS", lambda line: output.age(line.resets_at), is_right=True),
    Column("MODE", lambda line: line.mode or "", is_spare=True, style="dim"),
]


@command(group, "days")
async def days(
    pool: db.Pool, tenant: TenantArgument, since: SinceOption = None, until: UntilOption = None
) -> None:
    """List a tenant's usage per day, action and meter."""
    found = await usage.days(
        pool,
        tenant_id=await tenant_id_of(pool, tenant),
        since=day_of(since, "--since"),
        until=day_of(until, "--until"),
    )
    columns = [
        Column("DAY", lambda line: line.day.isoformat()),
        Column("ACTION", lambda line: line.action),
        Column("METER", lambda line: line.meter),
        Column("AMOUNT", lambda line: f"{line.amount:,f}", is_right=True),
    ]
    output.rows(found, columns, empty="No usage.")


@command(group, "limit")
async def limit(
    pool: db.Pool,
    tenant: TenantArgument,
    meter: MeterArgument,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT|none|plan", show_default=False, help="New limit.")],
) -> None:
    """Set a tenant's own limit. AMOUNT none removes the limit, plan restores the plan's limit."""
    tenant_id = await tenant_id_of(pool, tenant)
    if amount == "plan":
        await usage.remove_limit(pool, tenant_id=tenant_id, meter=meter)
    else:
        await usage.set_limit(pool, tenant_id=tenant_id, meter=meter, amount=amount_or_none(amount))
    await _print_limit(pool, tenant_id, meter)


@command(group, "allow")
async def allow(
    pool: db.Pool,
    tenant: TenantArgument,
    meter: MeterArgument,
    amount: AmountArgument,
    until: Annotated[
        str | None, typer.Option(metavar="DAY", help="Last day, UTC. Required without --purchase.")
    ] = None,
    purchase: Annotated[
        bool, typer.Option("--purchase", help="The tenant bought it; it need not expire.")
    ] = False,
    reason: ReasonOption = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key is applied once.")] = None,
) -> None:
    """Raise a tenant's limit until a day, or permanently for a purchase."""
    tenant_id = await tenant_id_of(pool, tenant)
    await usage.add_allowance(
        pool,
        tenant_id=tenant_id,
        meter=meter,
        amount=amount_of(amount),
        source="purchase" if purchase else "override",
        expires_on=day_of(until, "--until"),
        reason=reason,
        key=key,
    )
    await _print_limit(pool, tenant_id, meter)


async def _print_limit(pool: db.Pool, tenant_id: UUID, meter: str) -> None:
    """Print the limit in effect."""
    found = [line for line in await usage.limits(pool, tenant_id=tenant_id) if line.meter == meter]
    amount = found[0].amount if found else None
    text = f"{meter}: " + ("no limit" if amount is None else f"{amount:,f}")
    output.document({"meter": meter, "limit": amount}, lambda: output.note(text))


@command(group, "reset")
async def reset(
    pool: db.Pool, tenant: TenantArgument, meter: MeterArgument, reason: ReasonOption = None
) -> None:
    """Reset a tenant's usage of a meter to zero. Asks for confirmation."""
    tenant_id = await tenant_id_of(pool, tenant)
    output.confirm(f"Reset usage of {output.clean(meter)} by {output.clean(tenant)} to zero?")
    used = await usage.reset(pool, tenant_id=tenant_id, meter=meter, reason=reason)
    output.document(
        {"meter": meter, "used": used}, lambda: output.note(f"Reset from {used:,f} {meter} to 0.")
    )


@command(group, "meters")
async def meters(pool: db.Pool) -> None:
    """List meters."""
    columns = [
        Column("NAME", lambda meter: meter.name),
        Column("PERIOD", lambda meter: meter.period),
        Column("MODE", lambda meter: meter.mode),
        Column("COMMENT", lambda meter: meter.comment, is_wide=True, style="dim"),
    ]
    output.rows(await usage.meters(pool), columns, empty="No meters.")


@command(group, "meter")
async def meter(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(show_default=False, help="Meter name.")],
    period: Annotated[
        Period | None, typer.Option(help="Reset period (default for a new meter: month).")
    ] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="Over a limit: observe only records it, enforce holds tasks back.")
    ] = None,
    comment: Annotated[str | None, typer.Option(help="Description.")] = None,
) -> None:
    """Create or change a meter."""
    await usage.set_meter(pool, name=name, period=period, mode=mode, comment=comment)
    [found] = [m for m in await usage.meters(pool) if m.name == name]
    output.document(found, lambda: output.note(f"{found.name}: per {found.period}, {found.mode}"))


# plans


@command(plans_group, "ls")
async def plans_ls(pool: db.Pool) -> None:
    """List plans."""
    columns = [
        Column("NAME", lambda plan: plan.name),
        Column("TITLE", lambda plan: plan.title),
        Column("PRICE", lambda plan: output.money(plan.price, plan.currency), is_right=True),
        Column("WEIGHT", lambda plan: f"{plan.weight:g}", is_right=True),
        Column("ACTIVE", lambda plan: "yes" if plan.is_active else "no", is_spare=True, style="dim"),
        Column("LIMITS", _limits, is_wide=True, style="dim"),
    ]
    output.rows(await usage.plans(pool), columns, empty="No plans.")


def _limits(plan: Plan) -> str:
    known = {meter: amount for meter, amount in plan.limits.items() if amount is not None}
    return ", ".join(f"{amount:,f} {meter}" for meter, amount in known.items()) or "none"


@command(plans_group, "set")
async def plans_set(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(show_default=False, help="Plan name.")],
    limits: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METER=AMOUNT", help="Limits, for example tokens=500000; none removes a limit."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Display name.")] = None,
    price: Annotated[str | None, typer.Option(metavar="AMOUNT", help="Price per month.")] = None,
    currency: Annotated[
        str | None, typer.Option(help="Currency of the price (default for a new plan: USD).")
    ] = None,
    weight: Annotated[
        float | None, typer.Option(help="Share of capacity that its tenants get, relative to others.")
    ] = None,
    features: Annotated[str | None, typer.Option(metavar="A,B", help="Included features.")] = None,
    active: Annotated[
        bool | None, typer.Option("--active/--inactive", help="Whether tenants can be assigned to it.")
    ] = None,
) -> None:
    """Create or change a plan. Keeps limits that are not given. Applies to its tenants immediately."""
    named = {key: amount_or_none(text) for key, text in pairs_of(limits or []).items()}
    given: dict[str, Any] = {
        "title": title,
        "price": None if price is None else amount_of(price, "--price"),
        "currency": currency,
        "weight": weight,
        "features": None if features is None else [word for word in features.split(",") if word],
        "is_active": active,
    }
    if named:
        given["limits"] = await _merged(pool, name, named)
    values: PlanValues = {name: value for name, value in given.items() if value is not None}  # pyright: ignore[reportAssignmentType]
    await usage.set_plan(pool, name=name, **values)
    [found] = [plan for plan in await usage.plans(pool) if plan.name == name]
    output.document(found, lambda: output.note(f"{found.name}: {_limits(found)}"))


async def _merged(pool: db.Pool, name: str, named: dict[str, Decimal | None]) -> dict[str, Decimal | None]:
    """The plan's limits updated with the given ones, because the database replaces them as a whole."""
    old = [plan.limits for plan in await usage.plans(pool) if plan.name == name]
    return {**(old[0] if old else {}), **named}


@command(plans_group, "assign")
async def plans_assign(
    pool: db.Pool,
    tenant: TenantArgument,
    plan: Annotated[str, typer.Argument(metavar="PLAN|unlimited", show_default=False, help="Plan name.")],
) -> None:
    """Assign a tenant to a plan; unlimited has no limits. Usage in the current period is kept."""
    tenant_id = await tenant_id_of(pool, tenant)
    # `none` is the former name.
    chosen_plan = "unlimited" if plan == "none" else plan
    await usage.set_tenant_plan(pool, tenant_id=tenant_id, plan=chosen_plan)
    output.document(
        {"tenant_id": tenant_id, "plan": chosen_plan},
        lambda: output.note(f"Assigned to plan {chosen_plan}."),
    )
