"""Tenants, members and API keys over HTTP."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Path, Request, Response
from pydantic import Field

from penstock.api.callers import Caller
from penstock.api.fields import Instant, RequestModel
from penstock.api.pages import LimitQuery, Page, TenantQuery, UuidCursor, page
from penstock.api.routes import AdminRoute, Conn, SecretRoute, router
from penstock.contract import keys, tenants
from penstock.types import ApiKey, KeyRole, Me, Member, NewKey, Role, Scope, Tenant

routes = router("tenants", AdminRoute)
secret_routes = router("tenants", SecretRoute)

TenantId = Annotated[UUID, Path()]


class MemberRequest(RequestModel):
    """Role of a member."""

    role: Role


class KeyRequest(RequestModel):
    """An API key to create."""

    name: str = Field(min_length=1, max_length=200, examples=["nightly import"])
    role: KeyRole
    tenant_id: UUID | None = None
    expires_at: Instant | None = None
    scopes: list[Scope] | None = Field(None, min_length=1, max_length=4, examples=[["read", "start"]])


@routes.get("/me", summary="Get Caller")
async def get_me(request: Request, conn: Conn) -> Me:
    """Get the caller and its tenants. For a service credential, lists no tenants."""
    caller: Caller = request.state.caller
    own = [] if caller.role == "service_role" else await tenants.list(conn, limit=1000)
    sub: str | None = caller.claims.get("sub")
    return Me(caller.role, UUID(sub) if sub else None, own)


@routes.get("/tenants")
async def list_tenants(conn: Conn, cursor: UuidCursor = None, limit: LimitQuery = 50) -> Page[Tenant]:
    """List the caller's tenants, oldest first."""
    found = await tenants.list(conn, after=cursor, limit=limit + 1)
    return page(found, limit, lambda tenant: tenant.id)


@routes.get("/tenants/{tenant_id}/members")
async def list_members(
    conn: Conn, tenant_id: TenantId, cursor: UuidCursor = None, limit: LimitQuery = 50
) -> Page[Member]:
    """List the members of a tenant: users and API keys."""
    found = await tenants.members(conn, tenant_id=tenant_id, after=cursor, limit=limit + 1)
    return page(found, limit, lambda member: member.user_id)


@routes.put("/tenants/{tenant_id}/members/{user_id}", status_code=204)
async def set_member(conn: Conn, tenant_id: TenantId, user_id: UUID, member: MemberRequest) -> Response:
    """Set a user's role in a tenant."""
    await tenants.set_member(conn, tenant_id=tenant_id, user_id=user_id, role=member.role)
    return Response(status_code=204)


@routes.delete("/tenants/{tenant_id}/members/{user_id}", status_code=204)
async def remove_member(conn: Conn, tenant_id: TenantId, user_id: UUID) -> Response:
    """Remove a user from a tenant."""
    await tenants.set_member(conn, tenant_id=tenant_id, user_id=user_id, role=None)
    return Response(status_code=204)


@secret_routes.post("/keys", status_code=201)
async def create_key(conn: Conn, key: KeyRequest) -> NewKey:
    """Create an API key. The response shows its secret once; a replayed response does not."""
    return await keys.create(conn, **key.model_dump())


@routes.get("/keys")
async def list_keys(conn: Conn, tenant_id: TenantQuery = None) -> list[ApiKey]:
    """List a tenant's keys. Without `tenant_id`, a service credential lists keys of workers and services."""
    return await keys.list(conn, tenant_id=tenant_id)


@routes.delete("/keys/{key_id}", status_code=204)
async def revoke_key(conn: Conn, key_id: UUID) -> Response:
    """Revoke an API key and all keys that it created, immediately."""
    await keys.revoke(conn, key_id=key_id)
    return Response(status_code=204)
