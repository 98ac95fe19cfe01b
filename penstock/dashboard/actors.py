"""Shows who did something by name: the audit log stores `user:ID` and `service:ID` or `service:LOGIN`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from penstock.contract import actors as stored_actors
from penstock.contract import keys
from penstock.dashboard.pages import Viewer
from penstock.postgres import db

_MAX_TENANTS = 10
"""Each tenant is one more query."""


async def names(
    conn: db.Connection, viewer: Viewer, actors: Iterable[str | None], tenant_ids: Collection[UUID]
) -> Mapping[str, str]:
    """Return the name of each actor, as far as the viewer may know it; otherwise a short id.

    `tenant_ids` are the tenants whose revoked keys may be among the actors.
    """
    ids = stored_actors.ids_of(actors)
    wanted = {each for each in ids.values() if each}
    known = await stored_actors.profile_names(conn, ids=wanted)
    if missing := wanted - known.keys():
        known |= await _key_names(conn, viewer, missing, tenant_ids)
    return {actor: stored_actors.label(actor, id, known) for actor, id in ids.items()}


async def _key_names(
    conn: db.Connection, viewer: Viewer, missing: Collection[UUID], tenant_ids: Collection[UUID]
) -> dict[UUID, str | None]:
    """Return the names of service keys and revoked keys, which have no profile."""
    managed = [each for each in tenant_ids if viewer.may_manage(each)][:_MAX_TENANTS]
    owners = [*managed, *([None] if viewer.is_operator else [])]
    found = [key for owner in owners for key in await keys.list(conn, tenant_id=owner)]
    return {key.id: key.name for key in found if key.id in missing}
