"""Tenants and their members."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.postgres import db
from penstock.types import Member, Role, Tenant, TenantShare

_TENANTS: LiteralString = "select id, name, weight, is_personal, created_at from penstock.tenants where "
_OF_USER: LiteralString = """\
select t.id, t.name, t.weight, t.is_personal, t.created_at
from penstock.members m join penstock.tenants t on t.id = m.tenant_id
left join penstock.profiles p on p.user_id = m.user_id and p.tenant_id = t.id
where m.user_id = %s order by p.user_id is null, t.id limit %s"""
_MEMBERS: LiteralString = """\
select tenant_id, user_id, role, created_at from penstock.members
where tenant_id = %s and (%s::uuid is null or user_id > %s) order by user_id limit %s"""

_SHARES: LiteralString = """\
select t.id, t.plan, coalesce(l.running, 0), coalesce(c.amount, 0) from penstock.tenants t
left join (
  select tenant_id, count(*) as running from penstock.leases group by tenant_id) as l on l.tenant_id = t.id
left join lateral (
  select sum(s.amount) as amount from penstock.cost_sums s
  where s.tenant_id = t.id
    and s.day >= date_trunc('month', penstock._now() at time zone 'utc')::date) as c on true
where t.id = any (%s)"""
_ROLES: LiteralString = "select tenant_id, role from penstock.members where user_id = %s"


async def create(database: db.Database, *, name: str, weight: float = 1, plan: str | None = None) -> UUID:
    """Create a tenant. `weight` is its share of every lane, relative to other tenants.

    Without a `plan` it gets the one in the setting `tenant_plan`; `unlimited` has no limits.
    """
    async with db.transaction(database) as conn:
        tenant_id = await db.value(conn, "create_tenant", p_name=name, p_weight=float(weight))
        if plan is not None:
            await db.call(conn, "set_tenant_plan", p_tenant_id=tenant_id, p_plan=plan)
            # The plan brought its own weight.
            if weight != 1:
                await set_weight(conn, tenant_id=tenant_id, weight=weight)
    return tenant_id


async def ensure(database: db.Database, *, name: str) -> UUID:
    """The tenant with this name, the oldest if there are several; created without limits if missing."""
    return await db.value(database, "ensure_tenant", p_name=name)


async def find(database: db.Database, *, name: str) -> builtins.list[Tenant]:
    """The tenants with this name, oldest first; or the tenant with this id."""
    statement = _TENANTS + "name = %s or id = any (%s::uuid[]) order by id"
    return [Tenant(*row) for row in await db.rows(database, statement, (name, filters.uuids([name])))]


async def list(database: db.Database, *, after: UUID | None = None, limit: int = 50) -> builtins.list[Tenant]:
    """Tenants, oldest first. The next page is `after` the id of the last tenant of this page."""
    statement = _TENANTS + "(%s::uuid is null or id > %s) order by id limit %s"
    rows = await db.rows(database, statement, (after, after, filters.page(limit)))
    return [Tenant(*row) for row in rows]


async def of_user(database: db.Database, *, user_id: UUID, limit: int = 200) -> builtins.list[Tenant]:
    """The visible tenants that a user is a member of: first the user's own, then the oldest.

    The oldest need not be the user's own, because any tenant's admin can add any user as a member.
    """
    rows = await db.rows(database, _OF_USER, (user_id, filters.page(limit)))
    return [Tenant(*row) for row in rows]


async def shares(database: db.Database, *, ids: Iterable[UUID]) -> builtins.list[TenantShare]:
    """The running tasks, the plan, and the costs of the current month of these tenants."""
    return [TenantShare(*row) for row in await db.rows(database, _SHARES, (builtins.list(set(ids)),))]


async def names(database: db.Database, *, ids: Iterable[UUID]) -> dict[UUID, str]:
    """The names of these tenants."""
    rows = await db.rows(database, _TENANTS + "id = any (%s)", (builtins.list(set(ids)),))
    return {row[0]: row[1] for row in rows}


async def roles(database: db.Database, *, user_id: UUID) -> dict[UUID, Role]:
    """A user's role in each of their tenants."""
    return dict(await db.rows(database, _ROLES, (user_id,)))  # pyright: ignore[reportArgumentType]


async def set_weight(database: db.Database, *, tenant_id: UUID, weight: float) -> None:
    """Change a tenant's share of every lane, for tasks queued from now on."""
    await db.call(database, "set_tenant_weight", p_tenant_id=tenant_id, p_weight=float(weight))


async def set_member(database: db.Database, *, tenant_id: UUID, user_id: UUID, role: Role | None) -> None:
    """Give a user a role in a tenant; None removes the user."""
    await db.call(database, "set_member", p_tenant_id=tenant_id, p_user_id=user_id, p_role=role)


async def erase_user(database: db.Database, *, user_id: UUID) -> dict[str, Any]:
    """Erase a user with the personal tenant. Returns the teams that the user left."""
    return await db.value(database, "erase_user", p_user_id=user_id)


async def members(
    database: db.Database, *, tenant_id: UUID, after: UUID | None = None, limit: int = 50
) -> builtins.list[Member]:
    """The members of a tenant, by id. The next page is `after` the id of the last member of this page."""
    rows = await db.rows(database, _MEMBERS, (tenant_id, after, after, filters.page(limit)))
    return [Member(*row) for row in rows]
