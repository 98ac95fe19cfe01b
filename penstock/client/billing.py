"""Plans that tenants pay for."""

from __future__ import annotations

from uuid import UUID

from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call
from penstock.types import BillingLink, BillingStatus


class Billing(Resource[IO]):
    """The plan and the subscription of a tenant."""

    @call
    async def status(self, *, tenant_id: UUID | str | None = None) -> BillingStatus:
        """The plan and the subscription of a tenant."""
        query = {"tenant_id": self._core.tenant_or_none(tenant_id)}
        return await self._core.get(BillingStatus, "/api/billing", query)

    @call
    async def checkout(
        self, price: str, *, success_url: str, cancel_url: str, tenant_id: UUID | str | None = None
    ) -> BillingLink:
        """Open a checkout page for a price, or for a plan that has one price."""
        body = {
            "tenant_id": str(await self._core.tenant(tenant_id)),
            "price": price,
            "success_url": success_url,
            "cancel_url": cancel_url,
        }
        answer = await self._core.request("POST", "/api/billing/checkout", body=body)
        return read(BillingLink, answer.json())

    @call
    async def portal(self, *, return_url: str, tenant_id: UUID | str | None = None) -> BillingLink:
        """Open the portal, where a tenant changes or cancels its subscription."""
        body = {"tenant_id": str(await self._core.tenant(tenant_id)), "return_url": return_url}
        answer = await self._core.request("POST", "/api/billing/portal", body=body)
        return read(BillingLink, answer.json())
