"""Tenants, members and API keys."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from functools import partial
from uuid import UUID

from penstock.client.answers import read
from penstock.client.core import identifier, path
from penstock.client.transport import IO, Noun, call, listing
from penstock.types import ApiKey, KeyRole, Member, NewKey, Role, Tenant

Id = UUID | str


class Tenants(Noun[IO]):
    """The caller's tenants."""

    @listing
    def list(self, *, limit: int | None = None) -> AsyncGenerator[Tenant]:
        """The caller's tenants, oldest first."""
        return self._core.pages(partial(read, Tenant), "/api/tenants", {}, limit)


class Members(Noun[IO]):
    """Who is in a tenant. A key is a member, too."""

    @listing
    async def list(self, *, tenant_id: Id | None = None, limit: int | None = None) -> AsyncGenerator[Member]:
        """Who is in a tenant."""
        where = path("/api/tenants/{}/members", await self._core.tenant(tenant_id))
        async with aclosing(self._core.pages(partial(read, Member), where, {}, limit)) as lines:
            async for member in lines:
                yield member

    @call
    async def set(self, user_id: Id, role: Role, *, tenant_id: Id | None = None) -> None:
        """Give a user a role in a tenant."""
        tenant = await self._core.tenant(tenant_id)
        where = path("/api/tenants/{}/members/{}", tenant, identifier(user_id, "user_id"))
        await self._core.ask("PUT", where, body={"role": role})

    @call
    async def remove(self, user_id: Id, *, tenant_id: Id | None = None) -> None:
        """Remove a user from a tenant."""
        tenant = await self._core.tenant(tenant_id)
        where = path("/api/tenants/{}/members/{}", tenant, identifier(user_id, "user_id"))
        await self._core.ask("DELETE", where)


class Keys(Noun[IO]):
    """API keys."""

    @call
    async def list(self, *, tenant_id: Id | None = None) -> builtins.list[ApiKey]:
        """A tenant's keys; for the service without a tenant those of workers and services."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return await self._core.get(builtins.list[ApiKey], "/api/keys", query)

    @call
    async def create(
        self, name: str, role: KeyRole, *, expires_at: datetime | None = None, tenant_id: Id | None = None
    ) -> NewKey:
        """Make an API key. Its secret is in this answer and nowhere else.

        If the answer is lost on the way, the key is there and its secret is not: `secret` is None then.
        Revoke that key, and make another.
        """
        # Those of workers and services are in no tenant.
        is_of_tenant = role not in ("worker", "service") or tenant_id is not None
        body = {
            "name": name,
            "role": role,
            "expires_at": expires_at,
            "tenant_id": self._core.tenant_or_none(tenant_id) if is_of_tenant else None,
        }
        return read(NewKey, (await self._core.ask("POST", "/api/keys", body=body)).json())

    @call
    async def revoke(self, key_id: Id) -> None:
        """End a key at once."""
        await self._core.ask("DELETE", path("/api/keys/{}", identifier(key_id, "key_id")))
