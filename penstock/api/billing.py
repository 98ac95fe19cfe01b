"""Billing over HTTP. Checkout and portal call Stripe, so they hold no transaction meanwhile."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from penstock.api.callers import Callers
from penstock.api.limits import Limits, read_body, read_json
from penstock.api.pages import TenantQuery
from penstock.api.routes import Conn, Handler, Route, router, with_body
from penstock.billing import Gateway, check_return_url
from penstock.contract import billing
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.settings import Settings
from penstock.types import BillingLink, BillingStatus


class StripeRoute(Route):
    """A route that calls Stripe. No transaction is open meanwhile."""

    scope = "admin"
    is_key_passed_on = True

    def get_route_handler(self) -> Handler:
        """Identify the caller and read the body, within the limits of all routes."""
        handle = APIRoute.get_route_handler(self)

        async def answer(request: Request) -> Response:
            limits: Limits = request.app.state.limits
            request.state.caller = await self._caller(request)
            body = await read_body(request, limits)
            again = with_body(request, body)
            if body:
                again._json = read_json(body, limits)  # pyright: ignore[reportPrivateUsage]
            return await handle(again)

        return answer


routes = router("billing")
stripe_routes = router("billing", StripeRoute)

_Url = Annotated[str, Field(min_length=1, max_length=2000)]


class Checkout(BaseModel):
    """What to buy, and where to come back to."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: UUID
    price: Annotated[str, Field(min_length=1, max_length=255, description="A price's id, or a plan.")]
    success_url: _Url
    cancel_url: _Url


class Portal(BaseModel):
    """Whose portal, and where to come back to."""

    model_config = ConfigDict(extra="forbid")

    tenant_id: UUID
    return_url: _Url


@routes.get("/billing")
async def get_billing(conn: Conn, tenant_id: TenantQuery = None) -> BillingStatus:
    """Get the plan and the subscription of a tenant."""
    return await billing.status(conn, tenant_id=tenant_id)


@stripe_routes.post("/billing/checkout")
async def open_checkout(request: Request, wanted: Checkout) -> BillingLink:
    """Open a checkout page of Stripe for a plan or a pack. For owners and admins."""
    callers: Callers = request.app.state.callers
    async with callers.acting(request.state.caller) as conn:
        begun = await billing.begin_checkout(conn, tenant_id=wanted.tenant_id, price=wanted.price)
    origins = _origins(request)
    success = check_return_url(wanted.success_url, "success_url", origins)
    cancel = check_return_url(wanted.cancel_url, "cancel_url", origins)
    gateway, pool = _gateway(request)
    url = await gateway.checkout(
        pool, tenant_id=wanted.tenant_id, begun=begun, success_url=success, cancel_url=cancel
    )
    return BillingLink(url)


@stripe_routes.post("/billing/portal")
async def open_portal(request: Request, wanted: Portal) -> BillingLink:
    """Open Stripe's portal, where a tenant changes or cancels its subscription. For owners and admins."""
    callers: Callers = request.app.state.callers
    async with callers.acting(request.state.caller) as conn:
        customer_id = await billing.begin_portal(conn, tenant_id=wanted.tenant_id)
    url = check_return_url(wanted.return_url, "return_url", _origins(request))
    gateway, _ = _gateway(request)
    return BillingLink(await gateway.portal(customer_id=customer_id, return_url=url))


def _origins(request: Request) -> list[str]:
    """The origins of this server and of the pages that may use it."""
    settings: Settings = request.app.state.settings
    return [settings.public_url or str(request.base_url), *settings.allowed_origins]


def _gateway(request: Request) -> tuple[Gateway, db.Pool]:
    gateway: Gateway | None = request.app.state.gateway
    if gateway is None:
        raise Invalid("billing is not configured", code="no_billing", hint="Set PENSTOCK_STRIPE_KEY.")
    return gateway, request.app.state.service_pool
