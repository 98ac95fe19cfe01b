"""Providers, workers and the backlog over HTTP, for service credentials."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel, Field, StrictFloat

from penstock.api.fields import NUMERIC, RequestModel
from penstock.api.pages import LimitQuery, NumberCursor, Page, page
from penstock.api.routes import Conn, ServiceRoute, router
from penstock.contract import providers, workers
from penstock.types import Lane, Provider, ProviderEvent, WantedSlots, Worker

routes = router("operations", ServiceRoute)

# A query parameter, because names contain a slash.
Name = Annotated[str, Query(min_length=1, max_length=200, examples=["openai/gpt-5"])]
OfTenant = Annotated[
    UUID | None,
    Query(description="Tenant of a tenant's own provider. Default: the provider for all tenants."),
]
KindsQuery = Annotated[
    str | None,
    Query(max_length=2000, description="Only these kinds, separated by commas.", examples=["write,typeset"]),
]
Amount = Annotated[int, Field(ge=0, le=2_000_000_000), NUMERIC]


class ProviderRequest(RequestModel):
    """Changes to a provider. Omitted fields stay unchanged; null removes a limit."""

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
    hosts: list[str] | None = Field(
        None,
        description="Only answers of these hosts close or slow it. Null: the hosts known for its name.",
        examples=[["api.openai.com"]],
    )


class WantedTotal(BaseModel):
    """The slots wanted by all chosen kinds, and those of each kind and provider."""

    wanted: int
    lanes: list[WantedSlots]


class ProviderMade(BaseModel):
    """Id of the provider."""

    id: int


@routes.get("/providers")
async def list_providers(conn: Conn) -> list[Provider]:
    """List providers with their limits and current usage."""
    return await providers.list(conn)


@routes.get("/providers/events")
async def list_provider_events(
    conn: Conn, name: Name, tenant_id: OfTenant = None, cursor: NumberCursor = None, limit: LimitQuery = 50
) -> Page[ProviderEvent]:
    """List a provider's errors and changes, newest first."""
    found = await providers.events(conn, name=name, tenant_id=tenant_id, before=cursor, limit=limit + 1)
    return page(found, limit, lambda event: event.id)


@routes.post("/providers/open", status_code=204)
async def open_provider(conn: Conn, name: Name, tenant_id: OfTenant = None) -> Response:
    """Reopen a provider that its errors closed."""
    await providers.open(conn, name=name, tenant_id=tenant_id)
    return Response(status_code=204)


@routes.put("/providers")
async def set_provider(
    conn: Conn, name: Name, values: ProviderRequest, tenant_id: OfTenant = None
) -> ProviderMade:
    """Add or change a provider. Takes effect immediately."""
    chosen: Any = values.model_dump(exclude_unset=True)
    return ProviderMade(id=await providers.set(conn, name=name, tenant_id=tenant_id, **chosen))


@routes.get("/workers")
async def list_workers(conn: Conn) -> list[Worker]:
    """List the workers of the last day."""
    return await workers.list(conn)


@routes.get("/backlog", summary="Get Backlog")
async def list_backlog(conn: Conn) -> list[Lane]:
    """List waiting and running tasks and the longest wait per kind and provider."""
    return await workers.backlog(conn)


@routes.get("/wanted-slots")
async def list_wanted_slots(conn: Conn, kinds: KindsQuery = None) -> WantedTotal:
    """Get how many tasks could run at once now, under limits, quotas and budgets. For autoscalers."""
    chosen = None if kinds is None else {kind.strip() for kind in kinds.split(",")}
    found = [each for each in await workers.wanted_slots(conn) if chosen is None or each.kind in chosen]
    return WantedTotal(wanted=sum(each.wanted for each in found), lanes=found)
