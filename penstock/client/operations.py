"""Providers and workers, for service credentials."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Unpack
from uuid import UUID

from penstock.client.core import identifier
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import Lane, Provider, ProviderEvent, ProviderValues, WantedSlots, Worker

Id = UUID | str


class Providers(Resource[IO]):
    """Providers. `tenant_id` selects a tenant's own provider. Default: the provider for all tenants."""

    @call
    async def list(self) -> builtins.list[Provider]:
        """All providers with their limits and current usage."""
        return await self._core.get(builtins.list[Provider], "/api/providers")

    @call
    async def set(self, name: str, *, tenant_id: Id | None = None, **values: Unpack[ProviderValues]) -> int:
        """Add or change a provider. Omitted values stay unchanged. Returns its id."""
        answer = await self._core.request(
            "PUT", "/api/providers", query=_of(name, tenant_id), body=dict(values)
        )
        return answer.field(int, "id")

    @call
    async def open(self, name: str, *, tenant_id: Id | None = None) -> None:
        """Reopen a provider that its errors closed."""
        await self._core.request("POST", "/api/providers/open", query=_of(name, tenant_id))

    @listing
    def events(
        self, name: str, *, tenant_id: Id | None = None, limit: int | None = None
    ) -> AsyncGenerator[ProviderEvent]:
        """Iterate over a provider's errors and changes, newest first."""
        query = _of(name, tenant_id)
        return self._core.pages(partial(read, ProviderEvent), "/api/providers/events", query, limit)


class Workers(Resource[IO]):
    """Workers and the backlog."""

    @call
    async def list(self) -> builtins.list[Worker]:
        """The workers of the last day."""
        return await self._core.get(builtins.list[Worker], "/api/workers")

    @call
    async def backlog(self) -> builtins.list[Lane]:
        """Waiting and running tasks and the longest wait, per kind and provider."""
        return await self._core.get(builtins.list[Lane], "/api/backlog")

    @call
    async def wanted_slots(self) -> builtins.list[WantedSlots]:
        """How many tasks could run at once now, per kind and provider."""
        found = await self._core.get(dict[str, Any], "/api/wanted-slots")
        return [WantedSlots(**each) for each in found["lanes"]]


def _of(name: str, tenant_id: Id | None) -> dict[str, Any]:
    return {"name": name, "tenant_id": None if tenant_id is None else identifier(tenant_id, "tenant_id")}
