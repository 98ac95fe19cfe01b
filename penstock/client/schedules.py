"""Schedules: recurring jobs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import Missed, Schedule


class Schedules(Resource[IO]):
    """Recurring jobs."""

    @listing
    def list(
        self, *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[Schedule]:
        """Iterate over schedules, oldest first, fetching pages as needed."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(partial(read, Schedule), "/api/schedules", query, limit)

    @call
    async def set(
        self,
        name: str,
        cron: str,
        job_type: str,
        *,
        timezone: str = "UTC",
        params: Mapping[str, Any] | None = None,
        tasks: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        missed: Missed = "once",
        is_enabled: bool = True,
        tenant_id: UUID | str | None = None,
    ) -> UUID:
        """Create or change the tenant's schedule with this name. Returns its id."""
        body = {
            "cron": cron,
            "timezone": timezone,
            "job_type": job_type,
            "params": dict(params or {}),
            "tasks": tasks,
            "options": dict(options or {}),
            "missed": missed,
            "is_enabled": is_enabled,
            "tenant_id": self._core.tenant_or_none(tenant_id),
        }
        answer = await self._core.request("PUT", "/api/schedules", query={"name": name}, body=body)
        return answer.field(UUID, "id")

    @call
    async def remove(self, schedule_id: UUID | str) -> None:
        """Remove a schedule. Keeps the jobs it started."""
        url_path = path("/api/schedules/{}", identifier(schedule_id, "schedule_id"))
        await self._core.request("DELETE", url_path)
