"""Dead letters: tasks that failed permanently; replay or discard them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import Cause, DeadLetter, LetterVerb, Weight

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.numbers("id"),
    "job": filters.ids("job_id"),
    "task": filters.numbers("task_id"),
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

_LATEST: LiteralString = """\
select error_code, (array_agg(error_message order by id desc))[1], count(*), kind, max(died_at)
from (select * from penstock.dead_letters where """
_CAUSES: LiteralString = """ order by id desc limit 10000) as latest
group by kind, error_code order by 3 desc, 4, 1 limit %s"""
_FOUND: LiteralString = "with found as materialized (select id from penstock.dead_letters where "
_WEIGH: LiteralString = """ order by id limit %s)
select (select count(*) from found),
  penstock.weigh_action(%s, array(select id::text from found limit 1001))"""
_ACT: LiteralString = """ order by id limit %s)
select penstock.start_action(%s, array(select id::text from found))"""
_MAX_LETTERS_PER_ACTION = 500_000


async def list(
    database: db.Database,
    *,
    filter: str = "",
    tenant_ids: Sequence[UUID] | None = None,
    before: int | None = None,
    limit: int = 50,
) -> builtins.list[DeadLetter]:
    """Dead letters, newest first. The next page is `before` the id of the last letter of this page."""
    chosen = [*await filters.conditions(database, filter, FIELDS), *_of_tenants(tenant_ids)]
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _LETTERS + condition + " order by id desc limit %s"
    rows = await db.rows(database, statement, [*values, filters.page(limit)])
    return [DeadLetter(*row) for row in rows]


async def causes(
    database: db.Database,
    *,
    filter: str = "",
    tenant_ids: Sequence[UUID] | None = None,
    limit: int = 20,
) -> builtins.list[Cause]:
    """The causes of the latest ten thousand matching letters, the most frequent first."""
    condition, values = filters.every(
        [*await filters.conditions(database, filter, FIELDS), *_of_tenants(tenant_ids)]
    )
    statement = _LATEST + condition + _CAUSES
    return [Cause(*row) for row in await db.rows(database, statement, [*values, filters.page(limit)])]


async def get(database: db.Database, *, letter_id: int) -> DeadLetter:
    """One dead letter."""
    rows = await db.rows(database, _LETTERS + "id = %s", (letter_id,))
    if not rows:
        raise NotFound(f"no dead letter with id {letter_id}", code="unknown_dead_letter")
    return DeadLetter(*rows[0])


async def replay(database: db.Database, *, filter: Mapping[str, Any]) -> int:
    """Run dead-lettered tasks again with new attempts; their jobs continue. Returns the number of tasks.

    `filter` selects them: `ids`, `job_id`, `kind`, `error_code`, `reason`, `tenant_id`, or `all` = true.
    """
    return await db.value(database, "replay_dead_letters", p_filter=_document(filter))


async def discard(database: db.Database, *, filter: Mapping[str, Any]) -> int:
    """Delete dead letters; their tasks stay failed. Returns their number. `filter` is as in `replay`."""
    return await db.value(database, "discard_dead_letters", p_filter=_document(filter))


async def weigh(
    database: db.Database,
    *,
    verb: LetterVerb,
    filter: str = "",
    ids: Sequence[int] | None = None,
    tenant_ids: Sequence[UUID] | None = None,
) -> Weight:
    """How many letters and tasks an `act` with the same arguments would affect, and its cost."""
    found, values = await _matching(database, filter, ids, tenant_ids)
    statement = _FOUND + found + _WEIGH
    [(count, weight)] = await db.rows(database, statement, [*values, _MAX_LETTERS_PER_ACTION + 1, verb])
    return Weight(count, weight["tasks"], Decimal(weight["cost"]), weight["unpriced"], weight["is_part"])


async def act(
    database: db.Database,
    *,
    verb: LetterVerb,
    filter: str = "",
    ids: Sequence[int] | None = None,
    tenant_ids: Sequence[UUID] | None = None,
) -> UUID:
    """Replay or discard the letters with these ids, or all that match the filter of `list`.

    Returns the id of the action. Up to a hundred letters are done at once; workers do the rest, and `actions`
    shows how many are done.
    """
    found, values = await _matching(database, filter, ids, tenant_ids)
    rows = await db.rows(database, _FOUND + found + _ACT, [*values, _MAX_LETTERS_PER_ACTION, verb])
    return rows[0][0]


async def _matching(
    database: db.Database,
    filter: str,
    ids: Sequence[int] | None,
    tenant_ids: Sequence[UUID] | None,
) -> filters.Condition:
    if ids is not None:
        return filters.every([("id = any (%s)", [builtins.list(ids)])])
    return filters.every([*await filters.conditions(database, filter, FIELDS), *_of_tenants(tenant_ids)])


def _of_tenants(tenant_ids: Sequence[UUID] | None) -> builtins.list[filters.Condition]:
    """Restricts to tenants. Row security does that anyway, but this condition makes an index usable."""
    return [] if tenant_ids is None else [("tenant_id = any (%s)", [builtins.list(tenant_ids)])]


def _document(filter: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, UUID) else value for name, value in filter.items()}
