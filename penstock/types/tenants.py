"""Types of tenants, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias
from uuid import UUID

Role: TypeAlias = Literal["owner", "admin", "member", "viewer"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant: the unit of isolation, plans and billing."""

    id: UUID
    name: str
    weight: float
    is_personal: bool
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TenantShare:
    """A tenant's running tasks, its plan, and its costs in the current month."""

    tenant_id: UUID
    plan: str | None
    running: int
    spent: Decimal


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a tenant: a user or an API key."""

    tenant_id: UUID
    user_id: UUID
    role: Role
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Me:
    """The caller: a user or key with its id, or the service. For the service no tenants are listed."""

    role: str
    id: UUID | None
    tenants: list[Tenant]
