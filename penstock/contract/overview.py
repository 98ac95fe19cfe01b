"""Overview of a tenant or of all tenants. These queries take the same time for any amount of data."""

from __future__ import annotations

import builtins
from typing import LiteralString
from uuid import UUID

from penstock.postgres import db
from penstock.types import LaneState, Overview, TaskRate

_LANES: LiteralString = """\
select lane_id, kind, provider, tenant_id, waiting, running, oldest_seconds, workers, state, reason, opens_at
from penstock.lane_states(%s) order by kind, provider nulls first, tenant_id nulls first"""
_RATES: LiteralString = """\
select minute, succeeded, failed, wait_p50, wait_p95, run_p50, run_p95 from penstock.task_rates(%s, %s)"""


async def get(database: db.Database, *, tenant_id: UUID | None = None) -> Overview:
    """The numbers of waiting, running and failed tasks, the costs, and current problems."""
    return Overview.read(await db.document(database, "overview", p_tenant_id=tenant_id))


async def lanes(database: db.Database, *, tenant_id: UUID | None = None) -> list[LaneState]:
    """Lanes with their tasks, their workers, and whether their providers admit tasks."""
    return [LaneState(*row) for row in await db.rows(database, _LANES, (tenant_id,))]


async def rates(database: db.Database, *, tenant_id: UUID | None = None, minutes: int = 60) -> list[TaskRate]:
    """Per minute: how many tasks succeeded and failed, and how long they waited and ran."""
    return [TaskRate(*row) for row in await db.rows(database, _RATES, (tenant_id, minutes))]


async def metric_figures(database: db.Database) -> builtins.list[tuple[str, str, float]]:
    """Figures of the whole installation for Prometheus: name, label and value."""
    rows = await db.call(database, "metric_figures")
    return [(row["name"], row["label"] or "", row["value"] or 0.0) for row in rows]
