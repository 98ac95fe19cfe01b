"""Checkout, portal and webhook of Stripe, as functions with the names that clients know."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from penstock import App, FunctionRequest, FunctionResponse, Invalid, signing
from penstock.billing import SOURCE, Gateway, add_to, check_return_url
from penstock.contract import billing, webhooks
from penstock.sdk.webhooks import Webhooks, process
from penstock.settings import Settings

Form = TypeVar("Form", bound=BaseModel)


class Checkout(BaseModel):
    """The body of `create-checkout-session`."""

    model_config = ConfigDict(extra="forbid")

    success_url: str
    cancel_url: str
    price: str = "pro"


class Portal(BaseModel):
    """The body of `create-billing-portal-session`."""

    model_config = ConfigDict(extra="forbid")

    return_url: str


def add(app: App) -> None:
    """Declare the functions."""

    @app.function("create-checkout-session")
    async def create_checkout_session(request: FunctionRequest) -> FunctionResponse:
        """Open a checkout page of Stripe for the caller. The customer is created at the first checkout."""
        wanted = _read(Checkout, request)
        tenant_id = await _tenant(request)
        async with request.acting() as conn:
            begun = await billing.begin_checkout(conn, tenant_id=tenant_id, price=wanted.price)
        chosen, origins = _configured(request)
        success = check_return_url(wanted.success_url, "success_url", origins)
        cancel = check_return_url(wanted.cancel_url, "cancel_url", origins)
        async with Gateway.open(chosen) as gateway:
            url = await gateway.checkout(
                request.pool, tenant_id=tenant_id, begun=begun, success_url=success, cancel_url=cancel
            )
        return FunctionResponse(json={"url": url})

    @app.function("create-billing-portal-session")
    async def create_billing_portal_session(request: FunctionRequest) -> FunctionResponse:
        """Open Stripe's portal, where the caller changes or cancels the subscription."""
        wanted = _read(Portal, request)
        async with request.acting() as conn:
            customer_id = await billing.begin_portal(conn, tenant_id=await _tenant(request))
        chosen, origins = _configured(request)
        url = check_return_url(wanted.return_url, "return_url", origins)
        async with Gateway.open(chosen) as gateway:
            return FunctionResponse(
                json={"url": await gateway.portal(customer_id=customer_id, return_url=url)}
            )

    @app.function("stripe-webhook", is_open=True, max_bytes=1 << 20)
    async def stripe_webhook(request: FunctionRequest) -> FunctionResponse:
        """Take an event of Stripe: verified over its bytes, applied once, 500 if it has to come again."""
        chosen, _ = _configured(request)
        known = Webhooks()
        add_to(known, chosen)
        source = known[SOURCE]
        headers = {name: [value] for name, value in request.headers.items()}
        try:
            signing.verify(source.scheme, headers, request.body, source.secrets())
            payload = request.json()
            delivery = webhooks.Delivery(source.name, *source.identify(payload, headers), payload)
        except Invalid as error:
            return FunctionResponse(400, json={"error": error.code})
        async with request.service() as conn:
            if await webhooks.take(conn, delivery):
                return FunctionResponse(json={"duplicate": True})
            is_good = await process(conn, source, delivery)
        return FunctionResponse(200 if is_good else 500, json={"received": is_good})


def _read(form: type[Form], request: FunctionRequest) -> Form:
    try:
        return form.model_validate(request.json())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Invalid(f"{field}: {first['msg']}", details={"field": field}) from None


async def _tenant(request: FunctionRequest) -> UUID:
    tenant_id = await request.tenant_id()
    if tenant_id is None:
        raise Invalid("only a signed-in user has a subscription", code="profile_missing")
    return tenant_id


def _configured(request: FunctionRequest) -> tuple[Settings, list[str]]:
    """The settings, and the origins that users may come back to."""
    chosen = request.settings
    if chosen.stripe_key is None:
        raise Invalid("billing is not configured", code="no_billing", hint="Set PENSTOCK_STRIPE_KEY.")
    return chosen, [chosen.public_url or request.base_url, *chosen.allowed_origins]
