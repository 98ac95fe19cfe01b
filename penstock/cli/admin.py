"""`penstock admin` and `penstock spend`: people, admins of the installation, costs and margin."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.options import WithDefault, command
from penstock.cli.output import Column
from penstock.cli.parsing import amount_of, day_of
from penstock.contract import admin, spend
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import PersonDetails, Spend

group = typer.Typer(
    help="Manage people and admins of the installation.\n\nDefault command: ls.", cls=WithDefault
)
spend_group = typer.Typer(
    help="Show costs, revenue and margin of a month, and manage fixed costs.\n\nDefault command: show.",
    cls=WithDefault,
)

UserArgument = Annotated[UUID, typer.Argument(metavar="USER", show_default=False, help="Id of the person.")]
ReasonOption = Annotated[
    str, typer.Option(show_default=False, help="Why; the customer sees it in the audit log.")
]
MonthOption = Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Month (default: the current one).")]
CostArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Name of the cost.")]


class Role(StrEnum):
    """Role of a person in the installation."""

    user = "user"
    admin = "admin"


class Period(StrEnum):
    """How often a fixed cost is paid."""

    month = "month"
    year = "year"
    once = "once"


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Id, start of the e-mail address, or part of the name.")
    ] = "",
    limit: Annotated[int, typer.Option(help="Maximum number.")] = 50,
    after: Annotated[UUID | None, typer.Option(metavar="USER", help="Only those after this id.")] = None,
) -> None:
    """List people with their plans."""
    columns = [
        Column("USER", lambda each: str(each.user_id)),
        Column("EMAIL", lambda each: each.email or ""),
        Column("NAME", lambda each: each.display_name or "", is_wide=True),
        Column("ROLE", lambda each: each.role),
        Column("TIER", lambda each: each.tier or "none"),
    ]
    output.rows(
        await admin.list(pool, filter=filter, after=after, limit=limit), columns, empty="No such people."
    )


@command(group, "show")
async def show(pool: db.Pool, user: UserArgument) -> None:
    """Show a person with usage, limits and overrides."""
    found = await admin.get(pool, user_id=user)
    output.document(found, lambda: _show(found))


def _show(found: PersonDetails) -> None:
    person = found.person
    usage = (f"{name} {each['used']} of {each['limit'] or 'unlimited'}" for name, each in found.usage.items())
    overrides = (f"{each['amount']} {each['meter']} until {each['expires_on']}" for each in found.overrides)
    output.fields(
        [
            ("user", str(person.user_id)),
            ("email", person.email or ""),
            ("role", person.role),
            ("tier", person.tier or "none"),
            ("plan", person.plan or "none"),
            ("usage", ", ".join(usage)),
            ("overrides", ", ".join(overrides)),
        ]
    )


@command(group, "set-role")
async def set_role(
    pool: db.Pool,
    user: UserArgument,
    role: Annotated[Role, typer.Argument(metavar="ROLE", show_default=False, help="user or admin.")],
) -> None:
    """Make a person an admin of the installation, or a user again."""
    await admin.set_role(pool, user_id=user, role=role.value)
    output.document(
        {"user_id": user, "role": role.value}, lambda: output.note(f"{user} is {role.value} now.")
    )


@command(group, "set-plan")
async def set_plan(
    pool: db.Pool,
    user: UserArgument,
    plan: Annotated[str, typer.Argument(metavar="PLAN", show_default=False, help="Name of the plan.")],
    reason: ReasonOption,
) -> None:
    """Put a person's own tenant on a plan."""
    await admin.set_plan(pool, user_id=user, plan=plan, reason=reason)
    output.document({"user_id": user, "plan": plan}, lambda: output.note(f"{user} is on plan {plan}."))


@command(group, "override")
async def override(
    pool: db.Pool,
    user: UserArgument,
    meter: Annotated[str, typer.Argument(metavar="METER", show_default=False, help="Name of the meter.")],
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", show_default=False, help="How much more.")],
    until: Annotated[str, typer.Option(metavar="DAY", show_default=False, help="Last day, UTC.")],
    reason: ReasonOption,
) -> None:
    """Let a person use more of a meter until a day."""
    day = day_of(until, "--until")
    assert day is not None
    await admin.set_override(
        pool, user_id=user, meter=meter, amount=amount_of(amount), expires_on=day, reason=reason
    )
    output.document(
        {"user_id": user, "meter": meter, "amount": amount, "expires_on": day},
        lambda: output.note(f"{user} can use {amount} {meter} more until {day}."),
    )


# spend


@command(spend_group, "show")
async def show_spend(
    pool: db.Pool,
    month: MonthOption = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Take a new snapshot of the costs first.")
    ] = False,
) -> None:
    """Show fixed and variable costs, revenue by plan, and the margin of a month."""
    day = _month(month)
    if refresh:
        await spend.take_snapshot(pool, month=day)
    found = await spend.get(pool, month=day)
    output.document(found, lambda: _show_spend(found))


def _show_spend(found: Spend) -> None:
    def money(amount: Any) -> str:
        return output.money(amount, found.currency)

    taken = f" (as of {output.age(found.taken_at)} ago)" if found.taken_at else " (no snapshot yet)"
    output.fields(
        [
            ("month", f"{found.month:%Y-%m}"),
            *((each.name, f"{money(each.share)} fixed, per {each.period}") for each in found.fixed),
            ("fixed", money(found.fixed_total)),
            *((name or "other", money(amount)) for name, amount in found.by_provider.items()),
            ("variable", money(found.variable_total) + taken),
            *(
                (each.plan, f"{money(each.revenue)} from {output.counted(each.tenants, 'tenant')}")
                for each in found.by_plan
            ),
            ("revenue", money(found.revenue)),
            ("margin", money(found.margin)),
        ]
    )


@command(spend_group, "tenants")
async def tenants(
    pool: db.Pool,
    month: MonthOption = None,
    limit: Annotated[int, typer.Option(help="Maximum number.")] = 50,
) -> None:
    """List tenants by margin, the lowest first."""
    columns = [
        Column("TENANT", lambda each: each.name or str(each.tenant_id)),
        Column("PLAN", lambda each: each.plan or "none"),
        Column("REVENUE", lambda each: output.decimal(each.revenue), is_right=True),
        Column("COST", lambda each: output.decimal(each.cost), is_right=True),
        Column("MARGIN", lambda each: output.decimal(each.margin), is_right=True),
    ]
    output.rows(
        await spend.margins(pool, month=_month(month), limit=limit), columns, empty="No costs or revenue."
    )


@command(spend_group, "set")
async def set_cost(
    pool: db.Pool,
    name: CostArgument,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", show_default=False, help="Per period.")],
    currency: Annotated[str | None, typer.Option(help="Default: the base currency.")] = None,
    period: Annotated[Period, typer.Option(help="How often it is paid.")] = Period.month,
    since: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="First day (default: today).")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Last day.")] = None,
    comment: Annotated[str | None, typer.Option(help="What it is for.")] = None,
) -> None:
    """Add a fixed cost, or change it from a day on."""
    given: Any = {
        "amount": amount_of(amount),
        "currency": currency,
        "period": period.value,
        "from_day": day_of(since, "--from"),
        "until_day": day_of(until, "--until"),
        "comment": comment,
    }
    await spend.set_fixed_cost(
        pool, name=name, **{key: value for key, value in given.items() if value is not None}
    )
    output.document({"name": name}, lambda: output.note(f"{name} saved."))


@command(spend_group, "end")
async def end_cost(
    pool: db.Pool,
    name: CostArgument,
    day: Annotated[str | None, typer.Option("--on", metavar="DAY", help="Last day (default: today).")] = None,
) -> None:
    """End a fixed cost."""
    await spend.end_fixed_cost(pool, name=name, day=day_of(day, "--on"))
    output.document({"name": name}, lambda: output.note(f"{name} ended."))


def _month(text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(f"{text}-01")
    except ValueError:
        raise Invalid(f"--month must be a month such as 2026-03 (got {text!r})", code="usage") from None
