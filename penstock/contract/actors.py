"""Actors, stored as `user:ID`, `key:ID`, `service:ID` or `service:LOGIN`, and their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import LiteralString
from uuid import UUID

from penstock.postgres import db

_KINDS = ("user", "key", "service")
_PROFILES: LiteralString = """\
select user_id, coalesce(nullif(display_name, ''), email) from penstock.profiles where user_id = any (%s)"""


def ids_of(actors: Iterable[str | None]) -> dict[str, UUID | None]:
    """The id in each actor; None for a database login."""
    return {actor: _id_in(actor) for actor in actors if actor and actor.partition(":")[0] in _KINDS}


def _id_in(actor: str) -> UUID | None:
    try:
        return UUID(actor.partition(":")[2])
    except ValueError:
        return None


async def profile_names(database: db.Database, *, ids: Collection[UUID]) -> dict[UUID, str | None]:
    """The names of users and of keys that are not revoked, as far as the caller may see them."""
    if not ids:
        return {}
    return dict(await db.rows(database, _PROFILES, ([*ids],)))  # pyright: ignore[reportArgumentType]


def label(actor: str, id: UUID | None, known: Mapping[UUID, str | None]) -> str:
    """The name of an actor; a short id if it is not known."""
    kind, _, login = actor.partition(":")
    if id is None:
        # Programs that connect to the database directly are known by their login.
        return f"{login} (database login)" if kind == "service" else actor
    return known.get(id) or f"{'operator' if kind == 'service' else kind} …{str(id)[-8:]}"
