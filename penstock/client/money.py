"""Usage and costs: what was used, what it cost, what it may."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator
from datetime import date
from functools import partial
from uuid import UUID

from penstock.client.answers import read
from penstock.client.core import identifier, path
from penstock.client.transport import IO, Noun, call, listing
from penstock.types import (
    Amount,
    By,
    CostEntry,
    CostSum,
    JobCost,
    Limit,
    Plan,
    Price,
    UsageDay,
    UsageStatus,
    exact,
)

Id = UUID | str


class Usage(Noun[IO]):
    """What a tenant uses, and may use."""

    @call
    async def status(self, *, tenant_id: Id | None = None) -> UsageStatus:
        """A tenant's plan, and what of each meter it has used, holds and has left."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return await self._core.get(UsageStatus, "/api/usage", query)

    @call
    async def days(
        self, *, since: date | None = None, until: date | None = None, tenant_id: Id | None = None
    ) -> builtins.list[UsageDay]:
        """What a tenant used per day (UTC), action and meter. Both days are included."""
        query = {"tenant_id": await self._core.tenant(tenant_id), "since": since, "until": until}
        return await self._core.get(builtins.list[UsageDay], "/api/usage/days", query)

    @call
    async def limits(self, *, tenant_id: Id | None = None) -> builtins.list[Limit]:
        """What a tenant may use in the present periods."""
        query = {"tenant_id": await self._core.tenant(tenant_id)}
        return await self._core.get(builtins.list[Limit], "/api/usage/limits", query)

    @call
    async def plans(self) -> builtins.list[Plan]:
        """The plans there are."""
        return await self._core.get(builtins.list[Plan], "/api/plans")


class Costs(Noun[IO]):
    """What things cost, what was spent, and what a job may spend."""

    @call
    async def sums(
        self,
        by: By = "day",
        *,
        since: date | None = None,
        until: date | None = None,
        tenant_id: Id | None = None,
    ) -> builtins.list[CostSum]:
        """A tenant's costs in the base currency: by day, provider, type or job. Both days are included."""
        query = {"by": by, "tenant_id": await self._core.tenant(tenant_id), "since": since, "until": until}
        return await self._core.get(builtins.list[CostSum], "/api/costs", query)

    @listing
    def entries(
        self, *, job_id: Id | None = None, tenant_id: Id | None = None, limit: int | None = None
    ) -> AsyncGenerator[CostEntry]:
        """Lines of the ledger, newest first."""
        job = None if job_id is None else identifier(job_id, "job_id")
        query = {"job_id": job, "tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(partial(read, CostEntry), "/api/costs/entries", query, limit)

    @call
    async def prices(self, *, provider: str | None = None) -> builtins.list[Price]:
        """The prices that hold now: those for all, and the caller's tenants' own."""
        return await self._core.get(builtins.list[Price], "/api/prices", {"provider": provider})

    @call
    async def of_job(self, job_id: Id) -> JobCost:
        """What a job has cost so far, and its budget."""
        return await self._core.get(JobCost, path("/api/jobs/{}/costs", identifier(job_id, "job_id")))

    @call
    async def set_budget(self, job_id: Id, amount: Amount | None) -> None:
        """Change what a job may cost; None: anything. One that paused for it goes on."""
        chosen = None if amount is None else format(exact(amount, "amount"), "f")
        where = path("/api/jobs/{}/budget", identifier(job_id, "job_id"))
        await self._core.ask("PUT", where, body={"amount": chosen})
