"""Types of keys, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

KeyRole: TypeAlias = Literal["owner", "admin", "member", "viewer", "worker", "service"]
Scope: TypeAlias = Literal["read", "start", "work", "admin"]
"""What a key may do, within its role: read; start and change jobs; work as a worker; manage members, keys and
the installation."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key for programs, without its secret. A tenant's key without a role was removed from the tenant."""

    id: UUID
    tenant_id: UUID | None
    name: str
    prefix: str
    role: KeyRole | None
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    scopes: list[Scope] = field(default_factory=list[Scope])
    parent_id: UUID | None = None
    """The key that created this key."""
    owner_id: UUID | None = None
    """The user who created this key, or the key that it descends from."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key. The secret is shown once; it cannot be recovered."""

    id: UUID
    tenant_id: UUID | None
    prefix: str
    secret: str | None = field(repr=False)
    scopes: list[Scope] = field(default_factory=list[Scope])
    expires_at: datetime | None = None
