"""`penstock costs` and `penstock prices`: the cost ledger and the price list."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from penstock import sources
from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import Output, TenantOption, WithDefault, command, current_options, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import amount_of, amount_or_none, day_of, moment_of
from penstock.contract import bills, costs, tenants
from penstock.errors import Invalid
from penstock.formatting import counted
from penstock.postgres import db
from penstock.types import BillLine, CostDifference, CostSum, Price

group = typer.Typer(help="Show and correct costs.\n\nDefault command: ls.", cls=WithDefault)
prices_group = typer.Typer(
    help="Manage provider prices and exchange rates.\n\nDefault command: ls.", cls=WithDefault
)

_DAYS = timedelta(days=30)
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Valid from this date or time, UTC (default: now)."),
]


class GroupBy(StrEnum):
    """Field to sum costs by."""

    day = "day"
    provider = "provider"
    type = "type"
    job = "job"
    tenant = "tenant"


# costs


@command(group, "ls")
async def ls(
    pool: db.Pool,
    by: Annotated[GroupBy, typer.Option(help="Sum by this field.")] = GroupBy.day,
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="First day, UTC (default: 30 days ago).")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Last day, UTC.")] = None,
    tenant: TenantOption = None,
) -> None:
    """Show costs in the base currency by day, provider, type, job or tenant."""
    found = await costs.sums(
        pool,
        by=by.value,
        since=day_of(since, "--since") or (datetime.now(UTC) - _DAYS).date(),
        until=day_of(until, "--until"),
        tenant_id=await tenant_id_of(pool, tenant) if tenant else None,
    )
    currency = await costs.base_currency(pool)
    names = await tenants.names(pool, ids=[UUID(line.key) for line in found] if by is GroupBy.tenant else [])
    if found and current_options().output is Output.text:
        found = [*found, _total(found)]
    columns = [
        Column(by.upper(), lambda line: _name(line, by, names)),
        Column("COST", lambda line: output.money(line.amount, currency), is_right=True),
        Column("ENTRIES", lambda line: f"{line.lines:,}", is_right=True),
    ]
    output.rows(found, columns, empty="No costs.")


def _total(found: list[CostSum]) -> CostSum:
    return CostSum(
        "total",
        sum((line.amount for line in found), Decimal(0)),
        sum((line.unit_count for line in found), Decimal(0)),
        sum(line.lines for line in found),
    )


def _name(line: CostSum, by: GroupBy, names: dict[UUID, str]) -> str:
    if by is GroupBy.tenant and line.key != "total":
        return names.get(UUID(line.key), line.key)
    return line.key or "(none)"


@command(group, "lines")
async def lines(
    pool: db.Pool,
    tenant: TenantOption = None,
    job: Annotated[UUID | None, typer.Option(metavar="ID", help="Only entries of this job.")] = None,
    limit: LimitOption = 50,
    before: Annotated[
        int | None, typer.Option(metavar="ID", help="Only entries older than this one.")
    ] = None,
) -> None:
    """List ledger entries, newest first."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await costs.entries(pool, tenant_id=tenant_id, job_id=job, before=before, limit=limit)
    columns = [
        Column("ID", lambda line: str(line.id), is_right=True),
        Column("AGE", lambda line: output.age(line.at), is_right=True),
        Column("TYPE", lambda line: line.cost_type),
        Column("PROVIDER", lambda line: line.provider or ""),
        Column("UNITS", lambda line: _units(line.unit_count, line.meter), is_right=True, is_spare=True),
        Column("COST", lambda line: output.money(line.amount, line.currency), is_right=True),
        Column("JOB", lambda line: str(line.job_id or ""), is_spare=True, style="dim"),
        Column(
            "REASON",
            lambda line: (f"corrects {line.corrects}: " if line.corrects else "") + (line.reason or ""),
            is_wide=True,
            style="dim",
        ),
    ]
    output.rows(found, columns, empty="No ledger entries.")
    if len(found) == limit and current_options().output is Output.text:
        output.note(f"{limit} shown. Older ones: --before {found[-1].id}", "dim")


def _units(count: Decimal | None, meter: str | None) -> str:
    return "" if count is None else f"{count:,f} {meter or ''}".strip()


# The parser would read a negative amount as an option.
@command(group, "correct", context_settings={"ignore_unknown_options": True})
async def correct(
    pool: db.Pool,
    line_id: Annotated[
        int, typer.Argument(metavar="ID", show_default=False, help="Ledger entry to correct.")
    ],
    amount: Annotated[
        str,
        typer.Argument(
            metavar="AMOUNT",
            show_default=False,
            help="Amount to add in the entry's currency; negative to subtract.",
        ),
    ],
    reason: Annotated[str, typer.Option(help="Reason, stored with the correction.")],
    key: Annotated[str | None, typer.Option(help="Idempotency key: the same key is applied once.")] = None,
) -> None:
    """Correct a ledger entry by adding another one. Prints the new entry's id."""
    entry_id = await costs.correct(pool, entry_id=line_id, amount=amount_of(amount), reason=reason, key=key)
    output.document({"id": entry_id}, lambda: print(entry_id))


# Bills of providers


@command(group, "import")
async def import_bill(
    pool: db.Pool,
    provider: Annotated[str, typer.Argument(show_default=False, help="Provider, for example openai.")],
    file: Annotated[Path, typer.Argument(show_default=False, help="Its export: CSV, TSV, XLSX, JSONL.")],
    day: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the day, UTC.")] = "day",
    amount: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the amount.")] = "amount",
    item: Annotated[str, typer.Option(metavar="COLUMN", help="Column with the item, if any.")] = "item",
    currency: Annotated[
        str | None, typer.Option(help="Currency (default: column `currency`, or the base currency).")
    ] = None,
) -> None:
    """Import what a provider billed. Replaces earlier imports of the same days."""
    other = currency or await costs.base_currency(pool)
    with sources.open(file) as source:
        missing = {day, amount} - set(source.columns)
        if missing:
            names = ", ".join(source.columns)
            raise Invalid(f"{file.name} has no column {min(missing)} (columns: {names})", code="usage")
        rows = list(source)
    found = [
        BillLine(
            _day(row.data.get(day), f"row {row.number}"),
            str(row.data.get(item) or ""),
            amount_of(str(row.data.get(amount)), f"{amount} in row {row.number}"),
            currency or str(row.data.get("currency") or other).upper(),
        )
        for row in rows
    ]
    count = await bills.import_lines(pool, provider=provider, lines=found)
    output.document({"lines": count}, lambda: print(f"Imported {counted(count, 'line')}."))


def _day(cell: object, where: str) -> date:
    try:
        return date.fromisoformat(str(cell)[:10])
    except ValueError:
        raise Invalid(f"{where}: the day must be like 2026-03-31 (got {str(cell)!r})", code="usage") from None


MonthArgument = Annotated[
    str, typer.Argument(metavar="MONTH", show_default=False, help="Month, UTC, for example 2026-03.")
]


@command(group, "differences")
async def differences(pool: db.Pool, month: MonthArgument) -> None:
    """Compare the costs of a month with the providers' bills."""
    _show(await bills.differences(pool, month=_month(month)), await costs.base_currency(pool))


@command(group, "reconcile")
async def reconcile(
    pool: db.Pool,
    provider: Annotated[str, typer.Argument(show_default=False, help="Provider, for example openai.")],
    month: MonthArgument,
) -> None:
    """Reduce the estimated costs of a month to what the provider billed."""
    found, count = await bills.reconcile(pool, provider=provider, month=_month(month))
    _show([found], await costs.base_currency(pool))
    output.note(f"Corrected {counted(count, 'estimate')}.", "dim")


def _month(text: str) -> date:
    try:
        return date.fromisoformat(f"{text}-01")
    except ValueError:
        raise Invalid(f"MONTH must be like 2026-03 (got {text!r})", code="usage") from None


def _show(found: list[CostDifference], currency: str) -> None:
    def money(value: Decimal | None) -> str:
        return "" if value is None else output.money(value, currency)

    columns = [
        Column("PROVIDER", lambda line: line.provider),
        Column("LEDGER", lambda line: money(line.booked), is_right=True),
        Column("ESTIMATED", lambda line: money(line.estimated), is_right=True),
        Column("BILLED", lambda line: money(line.billed), is_right=True),
        Column("DIFFERENCE", lambda line: money(line.difference), is_right=True),
    ]
    output.rows(found, columns, empty="No costs and no bills in this month.")


# prices


@command(prices_group, "ls")
async def prices_ls(
    pool: db.Pool,
    provider: Annotated[str | None, typer.Option(help="Only prices of this provider.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Include past and future prices.")] = False,
) -> None:
    """List current prices."""
    found = await costs.prices(pool, provider=provider, is_every=every)
    names = await tenants.names(pool, ids=(p.tenant_id for p in found if p.tenant_id is not None))
    columns = [
        Column("PROVIDER", lambda price: price.provider),
        Column("METER", lambda price: price.meter),
        Column("VARIANT", lambda price: price.variant, is_spare=True, style="dim"),
        Column("PRICE", _price, is_right=True),
        Column("TYPE", lambda price: price.cost_type, is_spare=True, style="dim"),
        Column("VALID FROM", lambda price: f"{price.valid_from.astimezone(UTC):%Y-%m-%d %H:%M}"),
        Column(
            "TENANT",
            lambda price: "" if price.tenant_id is None else names.get(price.tenant_id, str(price.tenant_id)),
            is_spare=True,
            style="dim",
        ),
    ]
    output.rows(found, columns, empty="No prices.")


def _price(price: Price) -> str:
    return "none" if price.amount is None else _per(price.amount, price.currency)


def _per(amount: Decimal, currency: str) -> str:
    """A readable price: per 1, 1,000 or 1,000,000 units, so that it is at least a cent."""
    for per in (1, 1000, 1_000_000):
        if not amount or amount * per >= Decimal("0.01"):
            break
    units = "unit" if per == 1 else f"{per:,}"
    return f"{output.decimal(amount * per)} {currency} per {units}"


@command(prices_group, "set")
async def prices_set(
    pool: db.Pool,
    provider: Annotated[str, typer.Argument(show_default=False, help="Provider name.")],
    meter: Annotated[str, typer.Argument(show_default=False, help="Meter, for example input_tokens.")],
    amount: Annotated[str, typer.Argument(metavar="AMOUNT|none", show_default=False, help="Price.")],
    per: Annotated[int, typer.Option(help="Number of units the amount is for: 1, 1000 or 1000000.")] = 1,
    currency: Annotated[str | None, typer.Option(help="Currency (default: the base currency).")] = None,
    valid_from: FromOption = None,
    variant: Annotated[
        str | None, typer.Option(help="Price variant, such as batch (default: standard).")
    ] = None,
    type: Annotated[str | None, typer.Option(help="Cost type (default: inference).")] = None,
    tenant: TenantOption = None,
) -> None:
    """Set the price of a meter at a provider. AMOUNT none ends the price."""
    price_id = await costs.set_price(
        pool,
        provider=provider,
        meter=meter,
        amount=amount_or_none(amount),
        per=per,
        currency=currency,
        valid_from=moment_of(valid_from, "--from"),
        variant=variant,
        cost_type=type,
        tenant_id=await tenant_id_of(pool, tenant) if tenant else None,
    )
    price = "no price" if amount == "none" else f"{amount}{f' {currency}' if currency else ''} per {per:,}"
    output.document({"id": price_id}, lambda: print(f"{provider} {meter}: {price} (price {price_id})"))


@command(prices_group, "compare")
async def prices_compare(
    pool: db.Pool, meter: Annotated[str | None, typer.Argument(help="Only this meter.")] = None
) -> None:
    """Compare current prices per meter across providers, cheapest first."""
    currency = await costs.base_currency(pool)
    columns = [
        Column("METER", lambda rate: rate.meter),
        Column("VARIANT", lambda rate: rate.variant, is_spare=True, style="dim"),
        Column("RANK", lambda rate: str(rate.place), is_right=True),
        Column("PROVIDER", lambda rate: rate.provider),
        Column("PRICE", lambda rate: _per(rate.base_amount, currency), is_right=True),
    ]
    output.rows(await costs.compare(pool, meter=meter), columns, empty="No prices.")


@command(prices_group, "rates")
async def prices_rates(pool: db.Pool) -> None:
    """List exchange rates to the base currency."""
    columns = [
        Column("CURRENCY", lambda rate: rate.currency),
        Column("RATE", lambda rate: output.decimal(rate.rate), is_right=True),
        Column("VALID FROM", lambda rate: f"{rate.valid_from.astimezone(UTC):%Y-%m-%d %H:%M}"),
    ]
    output.rows(await costs.exchange_rates(pool), columns, empty="No exchange rates.")


@command(prices_group, "rate")
async def prices_rate(
    pool: db.Pool,
    currency: Annotated[str, typer.Argument(show_default=False, help="Currency, for example EUR.")],
    rate: Annotated[str, typer.Argument(show_default=False, help="Value in the base currency.")],
    valid_from: FromOption = None,
) -> None:
    """Set an exchange rate: the value of one unit of the currency in the base currency."""
    value = amount_of(rate, "RATE")
    await costs.set_exchange_rate(
        pool, currency=currency, rate=value, valid_from=moment_of(valid_from, "--from")
    )
    output.document(
        {"currency": currency, "rate": value}, lambda: output.note(f"1 {currency} = {output.decimal(value)}")
    )
