"""Packs that a page of the app sells: what each costs, and the checkout at Stripe that its button opens.

Stripe is called before the page uses a database connection. Roles are checked by `begin_checkout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from penstock.api.callers import Caller, Callers
from penstock.billing import CHECKOUT_ORIGIN, Gateway, check_checkout_url
from penstock.contract import billing
from penstock.dashboard import forms
from penstock.dashboard.pages import AdminPage, Page, Viewer, url
from penstock.errors import Invalid, NotFound
from penstock.sdk.app import App
from penstock.sdk.pages import AppPage
from penstock.types import PlanPrice, Tenant


@dataclass(frozen=True, slots=True)
class Pack:
    """An amount of a meter that is bought once."""

    price_id: str
    amount: Decimal
    name: str | None
    price: str | None
    """Such as 10.00 USD. None if Stripe does not say: its checkout page does."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The packs of a page's meter."""

    meter: str
    is_configured: bool = False
    """Whether the server has a key of Stripe."""
    packs: list[Pack] = field(default_factory=list[Pack])


class ShopPage(Page):
    """A page of the app. For one that sells packs, it asks Stripe for their prices first."""

    @asynccontextmanager
    async def preparing(self, request: Request, caller: Caller) -> AsyncGenerator[None]:
        if self.path_format == "/app/{name}":
            request.state.shop = await _shop(request)
        yield


class CheckoutPage(AdminPage):
    """A form that opens a checkout."""

    @asynccontextmanager
    async def preparing(self, request: Request, caller: Caller) -> AsyncGenerator[None]:
        request.state.checkout_url = await _open_checkout(request, caller)
        yield


router = APIRouter(route_class=CheckoutPage)


@router.post("/app/{name}/checkout")
async def buy_pack(request: Request, name: str) -> Response:
    """Lead the browser to the checkout of a pack."""
    return RedirectResponse(request.state.checkout_url, 303)


def buyers(request: Request, viewer: Viewer) -> list[Tenant]:
    """The tenants that the viewer may buy packs for. The page may then lead to Stripe's checkout."""
    shop: Shop | None = request.state.shop
    if shop is None or not shop.packs or request.app.state.settings.read_only:
        return []
    found = [tenant for tenant in viewer.tenants if viewer.may_manage(tenant.id)]
    if found:
        request.state.form_origins = (CHECKOUT_ORIGIN,)
    return found


def _page(request: Request) -> AppPage | None:
    app: App | None = getattr(request.app.state, "app", None)
    return app.pages.get(request.path_params["name"]) if app else None


async def _on_sale(request: Request, meter: str) -> list[PlanPrice]:
    """The packs of a meter, the smallest first."""
    found = [each for each in await billing.prices(request.app.state.service_pool) if each.meter == meter]
    return sorted(found, key=lambda each: (each.amount, each.price_id))


async def _shop(request: Request) -> Shop | None:
    page, gateway = _page(request), _gateway(request)
    if page is None or page.packs is None:
        return None
    if gateway is None:
        return Shop(page.packs)
    on_sale = await _on_sale(request, page.packs)
    prices = await asyncio.gather(*(gateway.price(each.price_id) for each in on_sale))
    packs = [
        Pack(
            each.price_id,
            each.amount or Decimal(0),
            price.name if price else None,
            f"{price.amount:,f} {price.currency}" if price and price.amount is not None else None,
        )
        for each, price in zip(on_sale, prices, strict=True)
    ]
    return Shop(page.packs, True, packs)


async def _open_checkout(request: Request, caller: Caller) -> str:
    form: forms.Form = request.state.form
    callers: Callers = request.app.state.callers
    page, gateway = _page(request), _gateway(request)
    tenant_id, price = form.id("tenant"), form.get("price")
    if page is None or page.packs is None or tenant_id is None:
        raise NotFound("page not found")
    async with callers.acting(caller) as conn:
        begun = await billing.begin_checkout(conn, tenant_id=tenant_id, price=price)
    if begun["price_id"] not in [each.price_id for each in await _on_sale(request, page.packs)]:
        raise Invalid(f"this page sells packs of {page.packs} only", code="unknown_price")
    if gateway is None:
        raise Invalid("billing is not configured", code="no_billing", hint="Set PENSTOCK_STRIPE_KEY.")
    back = forms.base_url(request) + url(request, f"/app/{page.name}")
    found = await gateway.checkout(
        request.app.state.service_pool,
        tenant_id=tenant_id,
        begun=begun,
        success_url=f"{back}?bought=1",
        cancel_url=back,
    )
    return check_checkout_url(found)


def _gateway(request: Request) -> Gateway | None:
    return request.app.state.gateway
