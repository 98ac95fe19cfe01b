"""Types of invitations, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from penstock.types.tenants import Role


@dataclass(frozen=True, slots=True)
class Invitation:
    """An invitation to a tenant. Status: pending, accepted, declined, revoked or expired."""

    id: UUID
    tenant_id: UUID
    role: Role
    email: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime
    status: str
    answered_by: UUID | None
    answered_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """A new invitation. The secret for its link is shown once; it cannot be recovered."""

    id: UUID
    tenant_id: UUID
    secret: str | None = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Invited:
    """The tenant and role of a pending invitation, for the user who was invited."""

    tenant_id: UUID
    tenant: str
    role: Role
    expires_at: datetime
