"""Providers and workers, for the service."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, Unpack
from uuid import UUID

from penstock.client.answers import read
from penstock.client.core import identifier
from penstock.client.transport import IO, Noun, call, listing
from penstock.types import Lane, Provider, ProviderEvent, ProviderValues, Worker

Id = UUID | str


class Providers(Noun[IO]):
    """Provider endpoints. `tenant_id` names a tenant's own endpoint; left out, it is the one for all."""

    @call
    async def list(self) -> builtins.list[Provider]:
        """Provider endpoints, their limits, and what of them is in use."""
        return await self._core.get(builtins.list[Provider], "/api/providers")

    @call
    async def set(self, name: str, *, tenant_id: Id | None = None, **values: Unpack[ProviderValues]) -> int:
        """Make or change a provider's endpoint; what is left out stays. Returns its id."""
        answer = await self._core.ask("PUT", "/api/providers", query=_of(name, tenant_id), body=dict(values))
        return answer.field(int, "id")

    @call
    async def open(self, name: str, *, tenant_id: Id | None = None) -> None:
        """Open what a provider's answer closed."""
        await self._core.ask("POST", "/api/providers/open", query=_of(name, tenant_id))

    @listing
    def events(
        self, name: str, *, tenant_id: Id | None = None, limit: int | None = None
    ) -> AsyncGenerator[ProviderEvent]:
        """What a provider refused and who changed it, newest first."""
        query = _of(name, tenant_id)
        return self._core.pages(partial(read, ProviderEvent), "/api/providers/events", query, limit)


class Workers(Noun[IO]):
    """Processes that run tasks, and what waits for them."""

    @call
    async def list(self) -> builtins.list[Worker]:
        """The workers of the last day."""
        return await self._core.get(builtins.list[Worker], "/api/workers")

    @call
    async def backlog(self) -> builtins.list[Lane]:
        """Per lane: what waits, what runs, and how long its next task has waited."""
        return await self._core.get(builtins.list[Lane], "/api/backlog")


def _of(name: str, tenant_id: Id | None) -> dict[str, Any]:
    return {"name": name, "tenant_id": None if tenant_id is None else identifier(tenant_id, "tenant_id")}
