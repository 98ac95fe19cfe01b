"""`penstock keys`: API keys."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import actors, output
from penstock.cli.options import TenantOption, command, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import moment_of
from penstock.contract import keys
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import ApiKey

group = typer.Typer(help="Manage API keys.", no_args_is_help=True)


class KeyRole(StrEnum):
    """Role of a key: a member's role in a tenant, or worker or service for all tenants."""

    owner = "owner"
    admin = "admin"
    member = "member"
    viewer = "viewer"
    worker = "worker"
    service = "service"


class KeyScope(StrEnum):
    """What a key may do, within its role."""

    read = "read"
    start = "start"
    work = "work"
    admin = "admin"


@command(group, "ls")
async def ls(pool: db.Pool, tenant: TenantOption = None) -> None:
    """List a tenant's keys; without --tenant, the keys of workers and services."""
    found = await keys.list(pool, tenant_id=await tenant_id_of(pool, tenant) if tenant else None)
    people = await actors.names(pool, [key.created_by for key in found])
    columns = [
        Column("ID", lambda key: str(key.id), is_wide=True, style="dim"),
        Column("NAME", lambda key: key.name),
        Column("KEY", lambda key: f"{key.prefix}…"),
        Column("ROLE", lambda key: key.role or "none"),
        Column("SCOPES", lambda key: ",".join(key.scopes), is_spare=True),
        Column("STATE", _state),
        Column("LAST USED", lambda key: output.age(key.last_used_at) if key.last_used_at else "never"),
        Column("CREATED BY", lambda key: people[key.created_by], is_spare=True, style="dim"),
    ]
    output.rows(found, columns, empty="No keys.")


def _state(key: ApiKey) -> str:
    if key.revoked_at:
        return "revoked"
    return f"expires {key.expires_at:%Y-%m-%d}" if key.expires_at else "active"


@command(group, "create")
async def create(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(show_default=False, help="What the key is for.")],
    role: Annotated[KeyRole, typer.Option(help="A member's role, with --tenant; or worker or service.")],
    tenant: TenantOption = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Expiry date or time, such as 2027-01-31 (default: never)."),
    ] = None,
    scopes: Annotated[
        list[KeyScope] | None,
        typer.Option("--scope", help="What the key may do; repeatable (default: all that its role allows)."),
    ] = None,
) -> None:
    """Create a key and print it. The key is shown once and cannot be recovered."""
    chosen: list[Any] | None = [scope.value for scope in scopes] if scopes else None
    made = await keys.create(
        pool,
        name=name,
        role=role.value,
        tenant_id=await tenant_id_of(pool, tenant) if tenant else None,
        expires_at=moment_of(expires, "--expires"),
        scopes=chosen,
    )
    document = {
        "id": made.id,
        "tenant_id": made.tenant_id,
        "prefix": made.prefix,
        "secret": made.secret,
        "scopes": made.scopes,
        "expires_at": made.expires_at,
    }
    output.document(document, lambda: print(made.secret))


@command(group, "revoke")
async def revoke(
    pool: db.Pool,
    key: Annotated[str, typer.Argument(metavar="ID", show_default=False, help="Key id.")],
) -> None:
    """Revoke a key and all keys that it created, immediately. Asks for confirmation."""
    try:
        key_id = UUID(key)
    except ValueError:
        raise Invalid(f"invalid key id {key!r}", code="usage", hint="See `penstock keys ls`.") from None
    output.confirm(f"Revoke key {key_id}?")
    await keys.revoke(pool, key_id=key_id)
    output.document({"id": key_id}, lambda: output.note("Revoked."))
