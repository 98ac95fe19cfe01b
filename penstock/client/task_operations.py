"""Operations: work of tasks at outside systems."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import OperationStatus, TaskOperation


class Operations(Resource[IO]):
    """Work of tasks at outside systems."""

    @listing
    def list(
        self, filter: str = "", *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[TaskOperation]:
        """Iterate over operations, newest first. `filter`: such as `status:processing age:>5m`."""
        tenant = self._core.tenant_or_none(tenant_id)
        chosen = f"tenant:{tenant} {filter}".strip() if tenant else filter
        return self._core.pages(partial(read, TaskOperation), "/api/operations", {"filter": chosen}, limit)

    @call
    async def get(self, operation_id: UUID | str) -> TaskOperation:
        """One operation."""
        url_path = path("/api/operations/{}", identifier(operation_id, "operation_id"))
        return await self._core.get(TaskOperation, url_path)

    @call
    async def cancel(self, operation_id: UUID | str) -> OperationStatus:
        """Cancel a live operation, here at once and at the provider soon. Returns its status."""
        url_path = path("/api/operations/{}/cancel", identifier(operation_id, "operation_id"))
        return (await self._core.request("POST", url_path)).json()["status"]

    @call
    async def reconcile(self, operation_id: UUID | str) -> int:
        """Let a worker ask the provider soon. Returns 0 if the operation has ended with its word."""
        url_path = path("/api/operations/{}/reconcile", identifier(operation_id, "operation_id"))
        return (await self._core.request("POST", url_path)).json()["count"]
