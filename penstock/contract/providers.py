"""Providers: external APIs with limits, and their responses."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, LiteralString, Unpack
from uuid import UUID

from penstock.contract import filters
from penstock.postgres import db
from penstock.types import Provider, ProviderEvent, ProviderValues

_PROVIDERS: LiteralString = """\
select id, name, tenant_id, state, reason, case when state in ('full', 'closed') then opens_at end,
  requests_minute, requests_per_minute, tokens_minute, tokens_per_minute,
  requests_hour, requests_per_hour, tokens_hour, tokens_per_hour, running, concurrency, waiting,
  pace::float8, refusals, refused_at, default_tokens, backpressure_threshold, backpressure_delay_seconds,
  depth_limit, features, changed_at, in_flight
from penstock.provider_list where %s::text is null or name = %s order by name, tenant_id nulls first"""
_EVENTS: LiteralString = """\
select e.id, e.at, p.name, e.tenant_id, e.event, e.details
from penstock.provider_events e join penstock.endpoints p on p.id = e.endpoint_id
where p.name = %s and p.tenant_id is not distinct from %s and (%s::bigint is null or e.id < %s)
order by e.id desc limit %s"""

_WAITING: LiteralString = """\
select r.tenant_id, count(*) from penstock.lanes l
cross join lateral (
  select x.tenant_id from penstock.ready x where x.lane_id = l.id order by x.vtime limit 10000) as r
where l.provider = %s group by r.tenant_id order by 2 desc, 1 limit 10"""


async def list(database: db.Database, *, name: str | None = None) -> builtins.list[Provider]:
    """Provider endpoints by name, tenants' own after the general one; all, or those with this name."""
    return [Provider(*row) for row in await db.rows(database, _PROVIDERS, (name, name))]


async def waiting(database: db.Database, *, name: str) -> builtins.list[tuple[UUID, int]]:
    """How many of the next ten thousand tasks that wait for a provider belong to which tenant."""
    return [(row[0], row[1]) for row in await db.rows(database, _WAITING, (name,))]


async def set(
    database: db.Database,
    *,
    name: str,
    tenant_id: UUID | None = None,
    **values: Unpack[ProviderValues],
) -> int:
    """Create or change the endpoint `provider/endpoint`, for all or for one tenant. Takes effect at once."""
    return await db.value(database, "set_provider", p_name=name, p_values=dict(values), p_tenant_id=tenant_id)


async def open(database: db.Database, *, name: str, tenant_id: UUID | None = None) -> None:
    """Reopen an endpoint that a response closed, for example after its account was topped up."""
    await db.call(database, "open_provider", p_name=name, p_tenant_id=tenant_id)


async def acquire(database: db.Database, *, provider: str, endpoint: str) -> bool:
    """Reserve capacity for one call outside of a claim; returns False if none is free now."""
    return await db.value(
        database,
        "acquire_api_capacity",
        p_provider_name=provider,
        p_api_endpoint=endpoint,
        p_estimated_tokens=0,
    )


async def report(database: db.Database, *, name: str, signal: Mapping[str, Any]) -> None:
    """Report what a response says about an endpoint's limits (see `signals`), for all workers at once."""
    await db.call(database, "report_provider", p_name=name, p_signal=db.Json(dict(signal)))


async def ensure_sheets_account(database: db.Database, *, account: str) -> None:
    """Create the limits of a Google Sheets account if they are missing."""
    await db.call(database, "ensure_sheets_account", p_account=account)


async def events(
    database: db.Database,
    *,
    name: str,
    tenant_id: UUID | None = None,
    before: int | None = None,
    limit: int = 50,
) -> builtins.list[ProviderEvent]:
    """A provider's rejections and changes, newest first. The next page is `before` the last id."""
    rows = await db.rows(database, _EVENTS, (name, tenant_id, before, before, filters.page(limit)))
    return [ProviderEvent(*row) for row in rows]
