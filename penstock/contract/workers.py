"""Workers: which are running, and how much work waits for them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, LiteralString

from penstock.postgres import db
from penstock.types import Lane, Run, WantedSlots, Worker

_WORKERS: LiteralString = """\
select id, host, pid, kinds, concurrency, version, state, running, started_at, beat_at
from penstock.worker_list order by started_at, id"""

# In one statement, because every idle worker runs it every few seconds.
_REPORT: LiteralString = """\
select penstock.report_worker(w.id, %s), exists (
  select from penstock.workers x where x.id = w.id and x.drain_asked_at is not null),
  penstock.lead_upkeep(w.id, %s)
from (select %s as id) as w"""
_RUNNING: LiteralString = """\
select l.worker_id, l.job_id, l.task_id, t.kind, t.key, l.started_at, l.fraction, l.message
from (select * from penstock.leases order by started_at limit 1000) as l
join penstock.tasks t on t.job_id = l.job_id and t.id = l.task_id order by l.started_at"""


async def list(database: db.Database) -> builtins.list[Worker]:
    """The workers of the last day, oldest first: running, draining, late, gone or stopped."""
    return [Worker(*row) for row in await db.rows(database, _WORKERS, ())]


async def drain(database: db.Database, *, worker_id: str) -> None:
    """Ask a worker to claim no more tasks and to stop once its tasks have ended, at its next heartbeat."""
    await db.call(database, "drain_worker", p_worker_id=worker_id)


async def running(database: db.Database) -> dict[str, builtins.list[Run]]:
    """The tasks that each worker runs now, at most a thousand in total."""
    found: dict[str, builtins.list[Run]] = {}
    for worker_id, *rest in await db.rows(database, _RUNNING, ()):
        found.setdefault(worker_id, []).append(Run(*rest))
    return found


async def backlog(database: db.Database) -> builtins.list[Lane]:
    """Waiting and running tasks per kind and provider, and the wait of the next one. For autoscalers."""
    rows = await db.call(database, "backlog")
    lanes = [Lane(r["kind"], r["provider"], r["waiting"], r["running"], r["oldest_seconds"]) for r in rows]
    return sorted(lanes, key=lambda lane: (lane.kind, lane.provider or ""))


async def wanted_slots(database: db.Database) -> builtins.list[WantedSlots]:
    """How many tasks could run at once now, per kind and provider. For autoscalers."""
    rows = await db.call(database, "wanted_slots")
    return sorted((WantedSlots(**row) for row in rows), key=lambda slots: (slots.kind, slots.provider or ""))


async def drain_rates(database: db.Database) -> dict[tuple[str, str | None], float]:
    """Tasks per second that ended in the last minute, per kind and provider."""
    rows = await db.call(database, "drain_rates")
    return {(row["kind"], row["provider"]): row["per_second"] for row in rows}


def report_sync(
    conn: db.SyncConnection, *, worker_id: str, info: Mapping[str, Any], can_lead: bool = False
) -> tuple[bool, bool]:
    """Store that a worker is alive, with its host, pid, kinds, concurrency, version, state and running tasks.

    Returns whether an operator asked it to stop, and whether it does the periodic upkeep for all workers.
    """
    [(_, is_drain_asked, is_leader)] = db.rows_sync(conn, _REPORT, (db.Json(dict(info)), can_lead, worker_id))
    return is_drain_asked, is_leader
