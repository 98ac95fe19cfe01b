"""People, as admins of the installation see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

ProfileRole = Literal["user", "admin"]


@dataclass(frozen=True, slots=True)
class Person:
    """A person with the plan of their own tenant."""

    user_id: UUID
    email: str | None
    display_name: str | None
    role: ProfileRole
    tenant_id: UUID
    plan: str | None
    tier: str | None
    """The plan that applies now."""
    plan_until: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PersonDetails:
    """A person with usage, limits and overrides."""

    person: Person
    usage: dict[str, dict[str, Any]]
    overrides: list[dict[str, Any]]
