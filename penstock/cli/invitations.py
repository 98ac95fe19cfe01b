"""`penstock invitations` and `penstock members`: who belongs to a tenant."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.options import TenantOption, command, tenant_id_of
from penstock.cli.output import Column
from penstock.contract import invitations, tenants
from penstock.errors import Invalid
from penstock.postgres import db

group = typer.Typer(help="Manage invitations to tenants.", no_args_is_help=True)
members_group = typer.Typer(help="Manage members of tenants, and erase users.", no_args_is_help=True)


class MemberRole(StrEnum):
    """Role of a member."""

    owner = "owner"
    admin = "admin"
    member = "member"
    viewer = "viewer"


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"invalid id {text!r}", code="usage") from None


async def _tenant(pool: db.Pool, tenant: str | None) -> UUID:
    if not tenant:
        raise Invalid("--tenant is required", code="usage")
    return await tenant_id_of(pool, tenant)


@command(group, "create")
async def create(
    pool: db.Pool,
    role: Annotated[MemberRole, typer.Option(help="Role of the new member.")] = MemberRole.member,
    tenant: TenantOption = None,
    email: Annotated[str | None, typer.Option(help="Only a user with this address may accept.")] = None,
    days: Annotated[int, typer.Option(min=1, max=90, help="Days until it expires.")] = 7,
) -> None:
    """Create an invitation and print the path of its link. The link works once."""
    chosen: Any = role.value
    made = await invitations.create(
        pool, role=chosen, tenant_id=await _tenant(pool, tenant), email=email, days=days
    )
    path = f"/dashboard/invitations/{made.secret}"
    document = {"id": made.id, "tenant_id": made.tenant_id, "path": path, "expires_at": made.expires_at}
    output.document(document, lambda: print(path))


@command(group, "ls")
async def ls(pool: db.Pool, tenant: TenantOption = None) -> None:
    """List a tenant's invitations."""
    found = await invitations.list(pool, tenant_id=await _tenant(pool, tenant))
    columns = [
        Column("ID", lambda each: str(each.id), style="dim"),
        Column("ROLE", lambda each: each.role),
        Column("STATUS", lambda each: each.status),
        Column("FOR", lambda each: each.email or "anybody"),
        Column("CREATED", lambda each: output.age(each.created_at)),
    ]
    output.rows(found, columns, empty="No invitations.")


@command(group, "revoke")
async def revoke(
    pool: db.Pool,
    invitation: Annotated[str, typer.Argument(metavar="ID", show_default=False, help="Invitation id.")],
) -> None:
    """Revoke a pending invitation. Asks for confirmation."""
    invitation_id = _id(invitation)
    output.confirm(f"Revoke invitation {invitation_id}?")
    await invitations.revoke(pool, invitation_id=invitation_id)
    output.document({"id": invitation_id}, lambda: output.note("Revoked."))


_USER = typer.Argument(metavar="USER", show_default=False, help="User id.")


@command(members_group, "ls")
async def list_members(pool: db.Pool, tenant: TenantOption = None) -> None:
    """List the members of a tenant: users and API keys."""
    found = await tenants.members(pool, tenant_id=await _tenant(pool, tenant), limit=200)
    columns = [
        Column("USER", lambda each: str(each.user_id)),
        Column("ROLE", lambda each: each.role),
        Column("ADDED", lambda each: output.age(each.created_at)),
    ]
    output.rows(found, columns, empty="No members.")


@command(members_group, "set")
async def set_member(
    pool: db.Pool,
    user: Annotated[str, _USER],
    role: Annotated[MemberRole, typer.Option(help="New role.")],
    tenant: TenantOption = None,
) -> None:
    """Give a user a role in a tenant, without an invitation."""
    chosen: Any = role.value
    tenant_id, user_id = await _tenant(pool, tenant), _id(user)
    await tenants.set_member(pool, tenant_id=tenant_id, user_id=user_id, role=chosen)
    output.document({"tenant_id": tenant_id, "user_id": user_id, "role": chosen}, lambda: output.note("Set."))


@command(members_group, "remove")
async def remove(pool: db.Pool, user: Annotated[str, _USER], tenant: TenantOption = None) -> None:
    """Remove a user from a tenant and revoke the user's keys there. Asks for confirmation."""
    tenant_id, user_id = await _tenant(pool, tenant), _id(user)
    output.confirm(f"Remove {user_id}?")
    await tenants.set_member(pool, tenant_id=tenant_id, user_id=user_id, role=None)
    output.document({"tenant_id": tenant_id, "user_id": user_id}, lambda: output.note("Removed."))


@command(members_group, "erase")
async def erase(pool: db.Pool, user: Annotated[str, _USER]) -> None:
    """Erase a user everywhere, with the personal tenant's jobs and files. Asks for confirmation."""
    user_id = _id(user)
    output.confirm(f"Erase user {user_id}, the personal tenant, its jobs and its files?")
    erased = await tenants.erase_user(pool, user_id=user_id)
    output.document(erased, lambda: output.note("Erased. Upkeep removes rows and files within minutes."))
