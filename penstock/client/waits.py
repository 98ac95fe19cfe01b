"""Waits: what tasks ask people and other systems."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import TaskWait


class Waits(Resource[IO]):
    """What tasks ask people and other systems."""

    @listing
    def list(
        self, filter: str = "", *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[TaskWait]:
        """Iterate over waits, newest first. `filter`: such as `status:open name:approval`."""
        tenant = self._core.tenant_or_none(tenant_id)
        chosen = f"tenant:{tenant} {filter}".strip() if tenant else filter
        return self._core.pages(partial(read, TaskWait), "/api/waits", {"filter": chosen}, limit)

    @call
    async def get(self, wait_id: UUID | str) -> TaskWait:
        """What a task asks, and the answer."""
        return await self._core.get(TaskWait, path("/api/waits/{}", identifier(wait_id, "wait_id")))

    @call
    async def answer(
        self, wait_id: UUID | str, option: str | None = None, payload: Mapping[str, Any] | None = None
    ) -> bool:
        """Answer: the task runs on. Returns False if the caller has given the same answer before."""
        url_path = path("/api/waits/{}/answer", identifier(wait_id, "wait_id"))
        body = {"option": option, "payload": dict(payload or {})}
        return (await self._core.request("POST", url_path, body=body)).json()["is_new"]
