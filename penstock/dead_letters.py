"""Dead letters: tasks that failed for good, and the way back."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, LiteralString
from uuid import UUID

from penstock import db, filters
from penstock.errors import NotFound
from penstock.types import DeadLetter

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.numbers("id"),
    "job": filters.ids("job_id"),
    "kind": filters.words("kind"),
    "code": filters.words("error_code"),
    "reason": filters.words("reason", ("attempts", "time", "permanent", "worker_deaths")),
    "error": filters.part("concat_ws(' ', error_code, error_message)"),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("died_at"),
}

_LETTERS: LiteralString = """\
select id, tenant_id, job_id, task_id, kind, reason, error_code, error_message, attempts, died_at
from penstock.dead_letter_list where """


async def list(
    where: db.Pool | db.Connection, *, filter: str = "", before: int | None = None, limit: int = 50
) -> builtins.list[DeadLetter]:
    """Dead letters, newest first. The next page comes `before` the id of the last one of this page."""
    chosen = filters.conditions(filter, FIELDS)
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _LETTERS + condition + " order by id desc limit %s"
    rows = await db.rows(where, statement, [*values, filters.page(limit)])
    return [DeadLetter(*row) for row in rows]


async def get(where: db.Pool | db.Connection, *, letter_id: int) -> DeadLetter:
    """One dead letter."""
    rows = await db.rows(where, _LETTERS + "id = %s", (letter_id,))
    if not rows:
        raise NotFound(f"there is no dead letter {letter_id}", code="unknown_dead_letter")
    return DeadLetter(*rows[0])


async def replay(where: db.Pool | db.Connection, *, filter: Mapping[str, Any]) -> int:
    """Run dead-lettered tasks again, with fresh attempts; their jobs go on. Returns how many.

    `filter` says which: `ids`, `job_id`, `kind`, `error_code`, `reason`, `tenant_id`, or `all` = true.
    """
    return await db.value(where, "replay_dead_letters", p_filter=_document(filter))


async def discard(where: db.Pool | db.Connection, *, filter: Mapping[str, Any]) -> int:
    """Forget dead letters; their tasks stay failed. Returns how many. `filter` is as in `replay`."""
    return await db.value(where, "discard_dead_letters", p_filter=_document(filter))


def _document(filter: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, UUID) else value for name, value in filter.items()}
