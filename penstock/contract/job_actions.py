"""Apply a verb to many jobs at once: those with these ids, or all that match a filter."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import LiteralString
from uuid import UUID

from penstock.contract import filters, jobs
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import JobVerb, Weight

# The jobs that each verb applies to.
_APPLICABLE: dict[JobVerb, LiteralString] = {
    "pause": "status in ('queued', 'running')",
    "resume": "status = 'paused'",
    "cancel": "status in ('queued', 'running', 'paused')",
    "retry": "status in ('failed', 'running', 'paused')"
    " and exists (select from penstock.dead_letters d where d.job_id = jobs.id)",
}
_FOUND: LiteralString = "with found as materialized (select id from penstock.jobs where "
_WEIGH: LiteralString = """ order by id limit %s)
select (select count(*) from found),
  penstock.weigh_action(%s, array(select id::text from found limit 1001))"""
_ACT: LiteralString = """ order by id limit %s)
select penstock.start_action(%s, array(select id::text from found), %s)"""
_MAX_JOBS_PER_ACTION = 500_000


async def weigh(
    database: db.Database,
    *,
    verb: JobVerb,
    filter: str = "",
    ids: Sequence[UUID] | None = None,
    tenant_ids: Sequence[UUID] | None = None,
) -> Weight:
    """How many jobs and tasks an `act` with the same arguments would affect, and its cost."""
    found, values = await _matching(database, verb, filter, ids, tenant_ids)
    statement = _FOUND + found + _WEIGH
    [(count, weight)] = await db.rows(database, statement, [*values, _MAX_JOBS_PER_ACTION + 1, verb])
    return Weight(count, weight["tasks"], Decimal(weight["cost"]), weight["unpriced"], weight["is_part"])


async def act(
    database: db.Database,
    *,
    verb: JobVerb,
    filter: str = "",
    ids: Sequence[UUID] | None = None,
    tenant_ids: Sequence[UUID] | None = None,
    reason: str | None = None,
) -> UUID:
    """Apply a verb to the jobs with these ids, or to all that match; returns the id of the action.

    Up to a hundred jobs are done at once; workers do the rest, and `actions` shows how many are done. Jobs
    that the verb does not apply to are left out.
    """
    found, values = await _matching(database, verb, filter, ids, tenant_ids)
    statement = _FOUND + found + _ACT
    [[action_id]] = await db.rows(database, statement, [*values, _MAX_JOBS_PER_ACTION, verb, reason])
    return action_id


async def _matching(
    database: db.Database,
    verb: JobVerb,
    filter: str,
    ids: Sequence[UUID] | None,
    tenant_ids: Sequence[UUID] | None,
) -> filters.Condition:
    """The condition for the jobs that an action applies to."""
    if verb not in _APPLICABLE:
        allowed = ", ".join(_APPLICABLE)
        raise Invalid(
            f"verb must be one of {allowed} (got {verb!r})", code="invalid_verb", details={"field": "verb"}
        )
    chosen: list[filters.Condition] = [(_APPLICABLE[verb], [])]
    if ids is None:
        chosen += [*await filters.conditions(database, filter, jobs.FIELDS), *jobs.of_tenants(tenant_ids)]
    else:
        chosen.append(("id = any (%s)", [list(ids)]))
    return filters.every(chosen)
