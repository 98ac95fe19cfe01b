"""Shows who did something by name: the audit log stores `user:ID` and `service:ID` or `service:LOGIN`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import LiteralString
from uuid import UUID

from penstock.contract import keys
from penstock.dashboard.pages import Viewer
from penstock.postgres import db

_PROFILES: LiteralString = """\
select user_id, coalesce(nullif(display_name, ''), email) from penstock.profiles where user_id = any (%s)"""
_KINDS = ("user", "key", "service")
_MAX_TENANTS = 10
"""Each tenant is one more query."""


async def names(
    conn: db.Connection, viewer: Viewer, actors: Iterable[str | None], tenant_ids: Collection[UUID]
) -> Mapping[str, str]:
    """Return the name of each actor, as far as the viewer may know it; otherwise a short id.

    `tenant_ids` are the tenants whose revoked keys may be among the actors.
    """
    ids = {actor: _parse_id(actor) for actor in actors if actor and actor.partition(":")[0] in _KINDS}
    if not ids:
        return {}
    known: dict[UUID, str | None] = dict(
        await db.rows(conn, _PROFILES, ([each for each in ids.values() if each],))
    )  # pyright: ignore[reportArgumentType]
    if missing := {each for each in ids.values() if each} - known.keys():
        known |= await _key_names(conn, viewer, missing, tenant_ids)
    return {actor: _name(actor, id, known) for actor, id in ids.items()}


async def _key_names(
    conn: db.Connection, viewer: Viewer, missing: Collection[UUID], tenant_ids: Collection[UUID]
) -> dict[UUID, str | None]:
    """Return the names of service keys and revoked keys, which have no profile."""
    managed = [each for each in tenant_ids if viewer.may_manage(each)][:_MAX_TENANTS]
    owners = [*managed, *([None] if viewer.is_operator else [])]
    found = [key for owner in owners for key in await keys.list(conn, tenant_id=owner)]
    return {key.id: key.name for key in found if key.id in missing}


def _parse_id(actor: str) -> UUID | None:
    try:
        return UUID(actor.partition(":")[2])
    except ValueError:
        return None


def _name(actor: str, id: UUID | None, known: Mapping[UUID, str | None]) -> str:
    kind, _, login = actor.partition(":")
    if id is None:
        # Programs that connect to the database directly are known by their login.
        return f"{login} (database login)" if kind == "service" else actor
    return known.get(id) or f"{'operator' if kind == 'service' else kind} …{str(id)[-8:]}"
