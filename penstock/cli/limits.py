"""`penstock limits`: providers, their limits, current usage and events."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import Output, TenantOption, WithDefault, command, current_options, tenant_id_of
from penstock.cli.output import Column
from penstock.cli.parsing import pairs_of
from penstock.contract import providers, tenants
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import Provider

group = typer.Typer(
    help="Manage providers, their rate limits and their state.\n\nDefault command: ls.", cls=WithDefault
)

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", show_default=False, help="Provider name, for example openai/gpt-4o-mini."),
]


@command(group, "ls")
async def ls(pool: db.Pool) -> None:
    """List providers with usage of each limit in the current minute and hour, and waiting tasks."""
    found = await providers.list(pool)
    names = await tenants.names(pool, ids=(p.tenant_id for p in found if p.tenant_id is not None))
    columns = [
        Column("NAME", lambda provider: provider.name),
        Column("TENANT", lambda provider: _tenant(provider, names), is_spare=True, style="dim"),
        Column("STATE", lambda provider: provider.state, is_status=True),
        _window("REQUESTS/MIN", "requests_minute", "requests_per_minute"),
        _window("TOKENS/MIN", "tokens_minute", "tokens_per_minute", is_spare=True),
        _window("RUNNING", "running", "concurrency"),
        Column("WAITING", lambda provider: f"{provider.waiting:,}", is_right=True),
        _window("REQUESTS/HOUR", "requests_hour", "requests_per_hour", is_spare=True),
        _window("TOKENS/HOUR", "tokens_hour", "tokens_per_hour", is_spare=True),
        Column("REASON", _reason, is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No providers. Add one: penstock limits set openai/gpt-4o-mini")


def _tenant(provider: Provider, names: dict[UUID, str]) -> str:
    return "" if provider.tenant_id is None else names.get(provider.tenant_id, str(provider.tenant_id))


def _window(title: str, used: str, limit: str, *, is_spare: bool = False) -> Column:
    def text(provider: Provider) -> str:
        most: int | None = getattr(provider, limit)
        return f"{getattr(provider, used):,}/{'∞' if most is None else f'{most:,}'}"

    def share(provider: Provider) -> float | None:
        return output.share(getattr(provider, used), getattr(provider, limit))

    return Column(title, text, is_right=True, is_spare=is_spare, share=share)


def _reason(provider: Provider) -> str:
    parts = [provider.reason or ""]
    if provider.opens_at is not None:
        parts.append(f"opens {output.age(provider.opens_at)}")
    if provider.pace < 1:
        parts.append(f"slowed to {provider.pace:.0%}")
    return ", ".join(part for part in parts if part)


@command(group, "set")
async def set(
    pool: db.Pool,
    name: NameArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings, for example requests_per_minute=500; none removes a limit."
        ),
    ] = None,
    tenant: TenantOption = None,
) -> None:
    """Add or change a provider, for all tenants or for one. Takes effect immediately."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    chosen: Any = {key: _value(key, text) for key, text in pairs_of(values or []).items()}
    await providers.set(pool, name=name, tenant_id=tenant_id, **chosen)
    [found] = [p for p in await providers.list(pool, name=name) if p.tenant_id == tenant_id]
    output.document(found, lambda: output.note(f"{found.name}: {found.state}"))


def _value(key: str, text: str) -> Any:
    """Parse a value. The database validates it."""
    if text == "none":
        return None
    if key in ("features", "hosts"):
        return [word for word in text.split(",") if word]
    try:
        return json.loads(text)
    except ValueError:
        return text


@command(group, "open")
async def open(pool: db.Pool, name: NameArgument, tenant: TenantOption = None) -> None:
    """Reopen a provider that its errors closed, for example after topping up its account."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    await providers.open(pool, name=name, tenant_id=tenant_id)
    output.document({"name": name}, lambda: output.note(f"Opened {name}."))


@command(group, "events")
async def events(
    pool: db.Pool,
    name: NameArgument,
    tenant: TenantOption = None,
    limit: LimitOption = 50,
    before: Annotated[int | None, typer.Option(metavar="ID", help="Only events older than this one.")] = None,
) -> None:
    """List a provider's errors and changes, newest first."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await providers.events(pool, name=name, tenant_id=tenant_id, before=before, limit=limit)
    if not found and tenant_id not in [p.tenant_id for p in await providers.list(pool, name=name)]:
        raise NotFound(f"provider {name!r} not found", code="unknown_provider")
    columns = [
        Column("ID", lambda event: str(event.id), is_right=True),
        Column("AGE", lambda event: output.age(event.at), is_right=True),
        Column("EVENT", lambda event: event.event),
        Column("DETAILS", lambda event: json.dumps(event.details, ensure_ascii=False), is_wide=True),
    ]
    output.rows(found, columns, empty="No events.")
    if len(found) == limit and current_options().output is Output.text:
        output.note(f"{limit} shown. Older ones: --before {found[-1].id}", "dim")
