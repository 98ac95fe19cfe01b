"""API keys: credentials for programs."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from penstock.postgres import db
from penstock.types import ApiKey, KeyRole, NewKey, Scope


async def create(
    database: db.Database,
    *,
    name: str,
    role: KeyRole,
    tenant_id: UUID | None = None,
    expires_at: datetime | None = None,
    scopes: Iterable[Scope] | None = None,
) -> NewKey:
    """Create a key. Only this call returns its secret. Default of `scopes`: all that the role allows."""
    options = {
        "tenant_id": tenant_id and str(tenant_id),
        "expires_at": expires_at and expires_at.isoformat(),
        "scopes": None if scopes is None else builtins.list(scopes),
    }
    given = {option: value for option, value in options.items() if value is not None}
    [row] = await db.call(database, "create_api_key", p_name=name, p_role=role, p_options=db.Json(given))
    return NewKey(**row)


async def list(database: db.Database, *, tenant_id: UUID | None = None) -> builtins.list[ApiKey]:
    """A tenant's keys, oldest first; the service, without a tenant, gets those of workers and services."""
    return [ApiKey(**row) for row in await db.call(database, "list_api_keys", p_tenant_id=tenant_id)]


async def revoke(database: db.Database, *, key_id: UUID) -> None:
    """Revoke a key and the keys that it created, at once."""
    await db.call(database, "revoke_key", p_key_id=key_id)
