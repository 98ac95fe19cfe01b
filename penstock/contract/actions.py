"""Actions: one verb applied to many jobs or dead letters, and their progress.

`job_actions.act` and `dead_letters.act` start them.
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


async def get(database: db.Database, *, action_id: UUID) -> Action:
    """An action and its progress."""
    rows = await db.rows(database, _ACTIONS + "id = %s", (action_id,))
    if not rows:
        raise NotFound("there is no such action", code="unknown_action")
    return Action(*rows[0])


async def list(database: db.Database, *, limit: int = 20) -> builtins.list[Action]:
    """The latest actions of the caller; for the service, of everyone."""
    rows = await db.rows(database, _ACTIONS + "true order by id desc limit %s", (filters.page(limit),))
    return [Action(*row) for row in rows]
