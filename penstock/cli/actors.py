"""Names of those who did something, for people. JSON output keeps what is stored, such as `user:ID`."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.contract import actors, keys
from penstock.postgres import db


async def names(pool: db.Pool, stored: Iterable[str | None]) -> dict[str, str]:
    """The name of each actor: of a user, a key or a database login. Others are unchanged."""
    every = [actor for actor in stored if actor]
    ids = actors.ids_of(every)
    wanted = {id for id in ids.values() if id}
    known = await actors.profile_names(pool, ids=wanted)
    if any(id in wanted - known.keys() for actor, id in ids.items() if actor.startswith("service:")):
        known |= {key.id: key.name for key in await keys.list(pool)}
    return {actor: actor for actor in every} | {
        actor: actors.label(actor, id, known) for actor, id in ids.items()
    }
