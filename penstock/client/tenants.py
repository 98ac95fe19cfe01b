"""Tenants, members and API keys."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import ApiKey, KeyRole, Member, NewKey, Role, Scope, Tenant

Id = UUID | str


class Tenants(Resource[IO]):
    """The caller's tenants."""

    @listing
    def list(self, *, limit: int | None = None) -> AsyncGenerator[Tenant]:
        """Iterate over the caller's tenants, oldest first."""
        return self._core.pages(partial(read, Tenant), "/api/tenants", {}, limit)


class Members(Resource[IO]):
    """Members of a tenant: users and API keys."""

    @listing
    async def list(self, *, tenant_id: Id | None = None, limit: int | None = None) -> AsyncGenerator[Member]:
        """Iterate over the members of a tenant."""
        url_path = path("/api/tenants/{}/members", await self._core.tenant(tenant_id))
        async with aclosing(self._core.pages(partial(read, Member), url_path, {}, limit)) as lines:
            async for member in lines:
                yield member

    @call
    async def set(self, user_id: Id, role: Role, *, tenant_id: Id | None = None) -> None:
        """Set a user's role in a tenant."""
        tenant = await self._core.tenant(tenant_id)
        url_path = path("/api/tenants/{}/members/{}", tenant, identifier(user_id, "user_id"))
        await self._core.request("PUT", url_path, body={"role": role})

    @call
    async def remove(self, user_id: Id, *, tenant_id: Id | None = None) -> None:
        """Remove a user from a tenant."""
        tenant = await self._core.tenant(tenant_id)
        url_path = path("/api/tenants/{}/members/{}", tenant, identifier(user_id, "user_id"))
        await self._core.request("DELETE", url_path)


class Keys(Resource[IO]):
    """API keys."""

    @call
    async def list(self, *, tenant_id: Id | None = None) -> builtins.list[ApiKey]:
        """A tenant's keys. Without a tenant, a service credential gets the keys of workers and services."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return await self._core.get(builtins.list[ApiKey], "/api/keys", query)

    @call
    async def create(
        self,
        name: str,
        role: KeyRole,
        *,
        expires_at: datetime | None = None,
        scopes: Iterable[Scope] | None = None,
        tenant_id: Id | None = None,
    ) -> NewKey:
        """Create an API key. Its secret is returned once and cannot be recovered.

        `scopes` limit what the key may do within its role: `read`, `start`, `work`, `admin`.

        If the response was lost and the request retried, `secret` is None: revoke that key, create another.
        """
        # Keys of workers and services belong to no tenant.
        is_of_tenant = role not in ("worker", "service") or tenant_id is not None
        body: dict[str, Any] = {
            "name": name,
            "role": role,
            "expires_at": expires_at,
            "tenant_id": self._core.tenant_or_none(tenant_id) if is_of_tenant else None,
        }
        if scopes is not None:
            body["scopes"] = builtins.list(scopes)
        return read(NewKey, (await self._core.request("POST", "/api/keys", body=body)).json())

    @call
    async def revoke(self, key_id: Id) -> None:
        """Revoke a key and all keys that it created, immediately."""
        await self._core.request("DELETE", path("/api/keys/{}", identifier(key_id, "key_id")))
