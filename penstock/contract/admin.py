"""Administration: what admins of the installation see and change. An admin is a person, not a key."""

from __future__ import annotations

import builtins
from datetime import date, datetime
from typing import Any
from uuid import UUID

from penstock.postgres import db
from penstock.types import Amount, Person, PersonDetails, ProfileRole, exact


async def is_admin(database: db.Database) -> bool:
    """Whether the caller is an admin of the installation."""
    return await db.value(database, "is_admin")


async def set_role(database: db.Database, *, user_id: UUID, role: ProfileRole) -> None:
    """Make a person an admin, or a user again. For the service."""
    await db.call(database, "set_profile_role", p_user_id=user_id, p_role=role)


async def list(
    database: db.Database, *, filter: str = "", after: UUID | None = None, limit: int = 50
) -> builtins.list[Person]:
    """People with their plans, by id. `filter`: an id, the start of an address, or a part of a name."""
    rows = await db.call(
        database, "admin_list_profiles", p_filter=filter or None, p_after=after, p_limit=limit
    )
    return [Person(**row) for row in rows]


async def get(database: db.Database, *, user_id: UUID) -> PersonDetails:
    """A person with usage, limits and overrides."""
    found: dict[str, Any] = await db.document(database, "admin_get_profile", p_user_id=user_id)
    usage, overrides = found.pop("usage"), found.pop("overrides")
    for name in ("user_id", "tenant_id"):
        found[name] = UUID(found[name])
    for name in ("created_at", "plan_until"):
        found[name] = datetime.fromisoformat(found[name]) if found[name] else None
    return PersonDetails(Person(**found), usage, overrides)


async def set_override(
    database: db.Database, *, user_id: UUID, meter: str, amount: Amount, expires_on: date, reason: str
) -> UUID:
    """Let a person use more of a meter until a day (included)."""
    return await db.value(
        database,
        "admin_set_override",
        p_user_id=user_id,
        p_meter=meter,
        p_amount=exact(amount),
        p_expires_on=expires_on,
        p_reason=reason,
    )


async def set_plan(database: db.Database, *, user_id: UUID, plan: str, reason: str) -> None:
    """Put a person's own tenant on a plan."""
    await db.call(database, "admin_set_plan", p_user_id=user_id, p_plan=plan, p_reason=reason)
