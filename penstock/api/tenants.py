"""Tenants, members and API keys over HTTP."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Path, Request, Response
from pydantic import Field

from penstock import keys, tenants
from penstock.api.callers import Caller
from penstock.api.fields import Asked, Instant
from penstock.api.pages import LimitQuery, Page, TenantQuery, UuidCursor, page
from penstock.api.routes import Held, SecretRoute, router
from penstock.types import ApiKey, KeyRole, Me, Member, NewKey, Role, Tenant

routes = router("tenants")
secret_routes = router("tenants", SecretRoute)

TenantId = Annotated[UUID, Path()]


class MemberRequest(Asked):
    """What a user is in a tenant."""

    role: Role


class KeyRequest(Asked):
    """A key to make."""

    name: str = Field(min_length=1, max_length=200, examples=["nightly import"])
    role: KeyRole
    tenant_id: UUID | None = None
    expires_at: Instant | None = None


@routes.get("/me")
async def get_me(request: Request, held: Held) -> Me:
    """Who is asking, and in which tenants they are; of the service no tenants are listed."""
    caller: Caller = request.state.caller
    own = [] if caller.role == "service_role" else await tenants.list(held, limit=1000)
    sub: str | None = caller.claims.get("sub")
    return Me(caller.role, UUID(sub) if sub else None, own)


@routes.get("/tenants")
async def list_tenants(held: Held, cursor: UuidCursor = None, limit: LimitQuery = 50) -> Page[Tenant]:
    """The caller's tenants, oldest first."""
    found = await tenants.list(held, after=cursor, limit=limit + 1)
    return page(found, limit, lambda tenant: tenant.id)


@routes.get("/tenants/{tenant_id}/members")
async def list_members(
    held: Held, tenant_id: TenantId, cursor: UuidCursor = None, limit: LimitQuery = 50
) -> Page[Member]:
    """Who is in a tenant. A key is a member, too."""
    found = await tenants.members(held, tenant_id=tenant_id, after=cursor, limit=limit + 1)
    return page(found, limit, lambda member: member.user_id)


@routes.put("/tenants/{tenant_id}/members/{user_id}", status_code=204)
async def set_member(held: Held, tenant_id: TenantId, user_id: UUID, member: MemberRequest) -> Response:
    """Give a user a role in a tenant."""
    await tenants.set_member(held, tenant_id=tenant_id, user_id=user_id, role=member.role)
    return Response(status_code=204)


@routes.delete("/tenants/{tenant_id}/members/{user_id}", status_code=204)
async def remove_member(held: Held, tenant_id: TenantId, user_id: UUID) -> Response:
    """Remove a user from a tenant."""
    await tenants.set_member(held, tenant_id=tenant_id, user_id=user_id, role=None)
    return Response(status_code=204)


@secret_routes.post("/keys", status_code=201)
async def create_key(held: Held, key: KeyRequest) -> NewKey:
    """Make an API key. Its secret is in this answer and nowhere else, also not in a repeated one."""
    return await keys.create(held, **key.model_dump())


@routes.get("/keys")
async def list_keys(held: Held, tenant_id: TenantQuery = None) -> list[ApiKey]:
    """A tenant's keys; for the service without a tenant those of workers and services."""
    return await keys.list(held, tenant_id=tenant_id)


@routes.delete("/keys/{key_id}", status_code=204)
async def revoke_key(held: Held, key_id: UUID) -> Response:
    """End a key at once."""
    await keys.revoke(held, key_id=key_id)
    return Response(status_code=204)
