"""`penstock sheets`: the tenants of Google Sheets and accounts."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import TenantOption, command, tenant_id_of
from penstock.cli.output import Column
from penstock.contract import sheets, tenants
from penstock.postgres import db
from penstock.types import BindingKind

group = typer.Typer(help="Show and release the tenants of Google Sheets.", no_args_is_help=True)


@command(group, "ls")
async def ls(pool: db.Pool, tenant: TenantOption = None, limit: LimitOption = 50) -> None:
    """List Google Sheets and accounts with the tenant that each serves."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await sheets.list(pool, tenant_id=tenant_id, limit=limit)
    names = await tenants.names(pool, ids=(binding.tenant_id for binding in found))
    columns = [
        Column("KIND", lambda binding: binding.kind),
        Column("NAME", lambda binding: binding.name),
        Column("TENANT", lambda binding: names.get(binding.tenant_id, str(binding.tenant_id))),
        Column("ACCOUNT", lambda binding: binding.label or "", is_spare=True, style="dim"),
        Column("AGE", lambda binding: output.age(binding.created_at), is_right=True),
    ]
    output.rows(found, columns, empty="No sheet is bound to a tenant.")


@command(group, "release")
async def release(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(show_default=False, help="Spreadsheet id, or id of an account.")],
    account: Annotated[bool, typer.Option("--account", help="NAME is an account.")] = False,
) -> None:
    """Let another tenant use a Google Sheet or an account. Asks for confirmation."""
    kind: BindingKind = "account" if account else "sheet"
    output.confirm(f"Release {kind} {output.clean(name)}? The next tenant that uses it gets it.")
    tenant_id = await sheets.release(pool, kind=kind, name=name)
    output.document({"tenant_id": tenant_id}, lambda: output.note(f"Released from tenant {tenant_id}."))
