"""Invitations: how users become members of a tenant."""

from __future__ import annotations

import builtins
from uuid import UUID

from penstock.postgres import db
from penstock.types import Invitation, Invited, NewInvitation, Role


async def create(
    database: db.Database,
    *,
    role: Role,
    tenant_id: UUID | None = None,
    email: str | None = None,
    days: int | None = None,
) -> NewInvitation:
    """Create an invitation. Only this call returns its secret."""
    options = {name: value for name, value in {"email": email, "days": days}.items() if value is not None}
    [row] = await db.call(
        database, "create_invitation", p_role=role, p_tenant_id=tenant_id, p_options=db.Json(options)
    )
    return NewInvitation(**row)


async def list(database: db.Database, *, tenant_id: UUID | None = None) -> builtins.list[Invitation]:
    """A tenant's invitations, newest first."""
    return [Invitation(**row) for row in await db.call(database, "list_invitations", p_tenant_id=tenant_id)]


async def revoke(database: db.Database, *, invitation_id: UUID) -> None:
    """Revoke a pending invitation."""
    await db.call(database, "revoke_invitation", p_invitation_id=invitation_id)


async def get(database: db.Database, *, secret: str) -> Invited | None:
    """The tenant and role of a pending invitation; None if it does not exist, has expired or was used."""
    rows = await db.call(database, "get_invitation", p_secret=secret)
    return Invited(**rows[0]) if rows else None


async def accept(database: db.Database, *, secret: str) -> UUID:
    """Become a member. Returns the tenant."""
    return await db.value(database, "accept_invitation", p_secret=secret)


async def decline(database: db.Database, *, secret: str) -> None:
    """Decline an invitation, which ends it."""
    await db.call(database, "decline_invitation", p_secret=secret)


async def leave(database: db.Database, *, tenant_id: UUID, block: bool = False) -> None:
    """Leave a tenant. With `block` it cannot make the caller a member again without an invitation."""
    await db.call(database, "leave_tenant", p_tenant_id=tenant_id, p_block=block)
