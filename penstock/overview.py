"""Overview: how it goes, for a tenant or for all. Everything here costs the same however much there is."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

from penstock import db
from penstock.types import LaneState, Overview, TaskRate

_LANES: LiteralString = """\
select lane_id, kind, provider, tenant_id, waiting, running, oldest_seconds, workers, state, reason, opens_at
from penstock.lane_states(%s) order by kind, provider nulls first, tenant_id nulls first"""
_RATES: LiteralString = """\
select minute, succeeded, failed, wait_p50, wait_p95, run_p50, run_p95 from penstock.task_rates(%s, %s)"""


async def get(database: db.Database, *, tenant_id: UUID | None = None) -> Overview:
    """What waits, runs and failed, what it costs, and what stands in the way."""
    return Overview.read(await db.document(database, "overview", p_tenant_id=tenant_id))


async def lanes(database: db.Database, *, tenant_id: UUID | None = None) -> list[LaneState]:
    """Lanes with their work, their workers, and whether their providers take work."""
    return [LaneState(*row) for row in await db.rows(database, _LANES, (tenant_id,))]


async def rates(database: db.Database, *, tenant_id: UUID | None = None, minutes: int = 60) -> list[TaskRate]:
    """Per minute: what succeeded and failed, and how long it waited and ran."""
    return [TaskRate(*row) for row in await db.rows(database, _RATES, (tenant_id, minutes))]
