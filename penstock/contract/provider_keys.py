"""Keys of providers, encrypted. `penstock.providers.keys` encrypts and opens them."""

from __future__ import annotations

import builtins
from uuid import UUID

from penstock.postgres import db
from penstock.types import ProviderKey, SealedKey


async def set(database: db.Database, key: SealedKey) -> None:
    """Store a key, for all tenants or for one; replaces the one before."""
    await db.call(
        database,
        "set_provider_key",
        p_provider=key.provider,
        p_host=key.host,
        p_sealed=key.sealed,
        p_wrapped_key=key.wrapped_key,
        p_master_id=key.master_id,
        p_tenant_id=key.tenant_id,
    )


async def get(database: db.Database, *, provider: str, tenant_id: UUID | None = None) -> SealedKey | None:
    """The encrypted key of a provider: the tenant's own, or the one for all tenants."""
    rows = await db.call(database, "get_provider_key", p_provider=provider, p_tenant_id=tenant_id)
    return SealedKey(**rows[0]) if rows else None


async def list(database: db.Database) -> builtins.list[ProviderKey]:
    """All stored keys, without their secrets."""
    return [ProviderKey(**row) for row in await db.call(database, "list_provider_keys")]


async def remove(database: db.Database, *, provider: str, tenant_id: UUID | None = None) -> None:
    """Remove the key for all tenants, or that of one."""
    await db.call(database, "remove_provider_key", p_provider=provider, p_tenant_id=tenant_id)
