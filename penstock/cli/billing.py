"""`penstock billing`: subscriptions of tenants at Stripe, and what its prices stand for."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.billing import Gateway, reconcile, sync_tenant
from penstock.cli import output
from penstock.cli.options import TenantArgument, command, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import amount_of
from penstock.contract import billing
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.settings import settings
from penstock.types import BillingStatus, Subscription

group = typer.Typer(
    help="Show and compare subscriptions at Stripe, and map its prices.", no_args_is_help=True
)

PriceArgument = Annotated[str, typer.Argument(metavar="PRICE", show_default=False, help="Id of the price.")]


@command(group, "show")
async def show(pool: db.Pool, tenant: TenantArgument) -> None:
    """Show a tenant's plan and its subscriptions."""
    tenant_id = await tenant_id_of(pool, tenant)
    status = await billing.status(pool, tenant_id=tenant_id)
    found = await billing.subscriptions(pool, tenant_id=tenant_id)
    output.document({"status": status, "subscriptions": found}, lambda: _show(status, found))


def _show(status: BillingStatus, found: list[Subscription]) -> None:
    until = f"until {status.until:%Y-%m-%d %H:%M:%S %Z}" if status.until else ""
    output.fields(
        [
            ("tier", status.tier or "none"),
            ("plan", f"{status.plan or 'none'} {until}".strip()),
            ("status", (status.status or "no subscription") + (", in grace" if status.is_in_grace else "")),
        ]
    )
    if found:
        print()
        columns = [
            Column("SUBSCRIPTION", lambda each: each.id),
            Column("STATUS", lambda each: each.status),
            Column("PLAN", lambda each: each.plan or ""),
            Column("PERIOD END", lambda each: f"{each.period_end:%Y-%m-%d}" if each.period_end else "none"),
            Column("AS OF", lambda each: output.age(each.as_of), is_right=True),
            Column("IN DOUBT", lambda each: "yes" if each.is_suspect else ""),
        ]
        output.rows(found, columns, empty="")


@command(group, "prices")
async def prices(pool: db.Pool) -> None:
    """List what the prices of Stripe stand for."""
    columns = [
        Column("PRICE", lambda each: each.price_id),
        Column("PLAN", lambda each: each.plan or ""),
        Column("PACK", lambda each: f"{each.amount:,f} {each.meter}" if each.meter else ""),
    ]
    output.rows(await billing.prices(pool), columns, empty="No prices.")


@command(group, "price")
async def price(
    pool: db.Pool,
    price_id: PriceArgument,
    plan: Annotated[str | None, typer.Option(help="Plan that it subscribes to.")] = None,
    pack: Annotated[
        str | None, typer.Option(metavar="METER=AMOUNT", help="Amount of a meter that it buys once.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the price.")] = False,
) -> None:
    """Say what a price of Stripe stands for: a plan, or a pack."""
    if remove:
        await billing.remove_price(pool, price_id=price_id)
    elif pack is not None:
        meter, equals, amount = pack.partition("=")
        if not equals:
            raise Invalid(f"--pack must be METER=AMOUNT (got {pack!r})")
        await billing.set_price(
            pool, price_id=price_id, plan=plan, meter=meter, amount=amount_of(amount, "--pack")
        )
    else:
        await billing.set_price(pool, price_id=price_id, plan=plan)
    output.document({"price_id": price_id}, lambda: output.note(f"{price_id} saved."))


@command(group, "sync")
async def sync(
    pool: db.Pool,
    tenant: Annotated[
        str | None, typer.Argument(metavar="TENANT", help="Tenant name or id (default: all that changed).")
    ] = None,
) -> None:
    """Compare with Stripe: the subscriptions of a tenant, or all that changed in the last days."""
    async with Gateway.open(settings()) as gateway:
        if tenant is None:
            corrected = await reconcile(pool, gateway)
            output.document(
                {"corrected": corrected}, lambda: output.note(f"{output.counted(corrected, 'correction')}.")
            )
            return
        tenant_id = await tenant_id_of(pool, tenant)
        count = await sync_tenant(pool, gateway, tenant_id=tenant_id)
    status = await billing.status(pool, tenant_id=tenant_id)
    output.document(
        {"subscriptions": count, "status": status},
        lambda: output.note(f"{output.counted(count, 'subscription')}. Plan: {status.tier or 'none'}."),
    )
