"""Actions: one thing done to many jobs or dead letters, and how far it is.

They are started where the things are: `jobs.act`, `dead_letters.act`.
"""

from __future__ import annotations

import builtins
from typing import LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import Action

_ACTIONS: LiteralString = """\
select id, actor, verb, reason, total, done, refused, refusal, created_at, finished_at
from penstock.actions where """


async def get(where: db.Pool | db.Connection, *, action_id: UUID) -> Action:
    """An action, as far as it is."""
    rows = await db.rows(where, _ACTIONS + "id = %s", (action_id,))
    if not rows:
        raise NotFound("there is no such action", code="unknown_action")
    return Action(*rows[0])


async def list(where: db.Pool | db.Connection, *, limit: int = 20) -> builtins.list[Action]:
    """The latest actions: one's own, or for the service all."""
    rows = await db.rows(where, _ACTIONS + "true order by id desc limit %s", (filters.page(limit),))
    return [Action(*row) for row in rows]
