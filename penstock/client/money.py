"""Usage, limits, costs and prices."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator
from datetime import date
from functools import partial
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import (
    Amount,
    By,
    CostEntry,
    CostSum,
    Entitlements,
    GateVerdict,
    JobCost,
    Limit,
    Plan,
    Price,
    UsageDay,
    UsageStatus,
    exact,
)

Id = UUID | str


class Usage(Resource[IO]):
    """Usage and limits of a tenant."""

    @call
    async def status(self, *, tenant_id: Id | None = None) -> UsageStatus:
        """A tenant's plan, and what it has used, reserved and left of each meter."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return await self._core.get(UsageStatus, "/api/usage", query)

    @call
    async def days(
        self, *, since: date | None = None, until: date | None = None, tenant_id: Id | None = None
    ) -> builtins.list[UsageDay]:
        """A tenant's usage per day (UTC), action and meter, from `since` to `until` inclusive."""
        query = {"tenant_id": await self._core.tenant(tenant_id), "since": since, "until": until}
        return await self._core.get(builtins.list[UsageDay], "/api/usage/days", query)

    @call
    async def limits(self, *, tenant_id: Id | None = None) -> builtins.list[Limit]:
        """A tenant's limits in the current periods."""
        query = {"tenant_id": await self._core.tenant(tenant_id)}
        return await self._core.get(builtins.list[Limit], "/api/usage/limits", query)

    @call
    async def entitlements(self, *, tenant_id: Id | None = None) -> Entitlements:
        """A tenant's plan, limits and capabilities. `tier` is the plan that applies now."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return await self._core.get(Entitlements, "/api/entitlements", query)

    @call
    async def check_gate(self, gate: str, *, amount: Amount = 1, tenant_id: Id | None = None) -> GateVerdict:
        """Whether a tenant passes a gate. Reserves and records nothing."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id), "amount": exact(amount, "amount")}
        return await self._core.get(GateVerdict, path("/api/entitlements/gates/{}", gate), query)

    @call
    async def plans(self) -> builtins.list[Plan]:
        """All subscription plans."""
        return await self._core.get(builtins.list[Plan], "/api/plans")


class Costs(Resource[IO]):
    """Prices, costs and budgets."""

    @call
    async def sums(
        self,
        by: By = "day",
        *,
        since: date | None = None,
        until: date | None = None,
        tenant_id: Id | None = None,
    ) -> builtins.list[CostSum]:
        """A tenant's costs in the base currency by day, provider, type or job; `until` is inclusive."""
        query = {"by": by, "tenant_id": await self._core.tenant(tenant_id), "since": since, "until": until}
        return await self._core.get(builtins.list[CostSum], "/api/costs", query)

    @listing
    def entries(
        self, *, job_id: Id | None = None, tenant_id: Id | None = None, limit: int | None = None
    ) -> AsyncGenerator[CostEntry]:
        """Iterate over ledger entries, newest first."""
        job = None if job_id is None else identifier(job_id, "job_id")
        query = {"job_id": job, "tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(partial(read, CostEntry), "/api/costs/entries", query, limit)

    @call
    async def prices(self, *, provider: str | None = None) -> builtins.list[Price]:
        """Current prices: those for all tenants, and those of the caller's tenants."""
        return await self._core.get(builtins.list[Price], "/api/prices", {"provider": provider})

    @call
    async def of_job(self, job_id: Id) -> JobCost:
        """A job's cost so far and its budget."""
        return await self._core.get(JobCost, path("/api/jobs/{}/costs", identifier(job_id, "job_id")))

    @call
    async def set_budget(self, job_id: Id, amount: Amount | None) -> None:
        """Set or remove (None) a job's budget. Resumes a job that paused for its budget."""
        chosen = None if amount is None else format(exact(amount, "amount"), "f")
        url_path = path("/api/jobs/{}/budget", identifier(job_id, "job_id"))
        await self._core.request("PUT", url_path, body={"amount": chosen})
