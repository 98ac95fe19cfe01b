"""Providers and workers over HTTP, for the service."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel, Field, StrictFloat

from penstock import providers, workers
from penstock.api.fields import NUMERIC, Asked
from penstock.api.pages import LimitQuery, NumberCursor, Page, page
from penstock.api.routes import Held, ServiceRoute, router
from penstock.types import Lane, Provider, ProviderEvent, Worker

routes = router("operations", ServiceRoute)

# Not a part of the path: a name has a slash in it.
Name = Annotated[str, Query(min_length=1, max_length=200, examples=["openai/gpt-5"])]
OfTenant = Annotated[UUID | None, Query(description="A tenant's own endpoint; left out: the one for all.")]
Amount = Annotated[int, Field(ge=0, le=2_000_000_000), NUMERIC]


class ProviderRequest(Asked):
    """What to change of a provider. What is left out stays; a limit that is null is none."""

    status: Literal["active", "disabled", "maintenance"] = "active"
    requests_per_minute: Amount | None = None
    requests_per_hour: Amount | None = None
    tokens_per_minute: Amount | None = None
    tokens_per_hour: Amount | None = None
    concurrency: Amount | None = None
    default_tokens: Amount = 0
    backpressure_threshold: StrictFloat | None = None
    backpressure_delay_seconds: StrictFloat | None = None
    depth_limit: Amount | None = None
    features: list[str] = Field(default_factory=list[str])


class ProviderMade(BaseModel):
    """The endpoint."""

    id: int


@routes.get("/providers")
async def list_providers(held: Held) -> list[Provider]:
    """Provider endpoints, their limits, and what of them is in use."""
    return await providers.list(held)


@routes.get("/providers/events")
async def list_provider_events(
    held: Held, name: Name, tenant_id: OfTenant = None, cursor: NumberCursor = None, limit: LimitQuery = 50
) -> Page[ProviderEvent]:
    """What a provider refused and who changed it, newest first."""
    found = await providers.events(held, name=name, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda event: event.id)


@routes.post("/providers/open", status_code=204)
async def open_provider(held: Held, name: Name, tenant_id: OfTenant = None) -> Response:
    """Open what a provider's answer closed."""
    await providers.open(held, name=name, tenant_id=tenant_id)
    return Response(status_code=204)


@routes.put("/providers")
async def set_provider(
    held: Held, name: Name, values: ProviderRequest, tenant_id: OfTenant = None
) -> ProviderMade:
    """Make or change a provider's endpoint. Takes effect at once."""
    chosen: Any = values.model_dump(exclude_unset=True)
    return ProviderMade(id=await providers.set(held, name=name, tenant_id=tenant_id, **chosen))


@routes.get("/workers")
async def list_workers(held: Held) -> list[Worker]:
    """The workers of the last day."""
    return await workers.list(held)


@routes.get("/backlog")
async def list_backlog(held: Held) -> list[Lane]:
    """Per lane: what waits, what runs, and how long its next task has waited."""
    return await workers.backlog(held)
