"""Streams of tasks: what handlers stream while they run. Best effort, kept for one to two weeks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import StreamChunk

MAX_CHUNKS = 500
"""Chunks of one stream in one answer."""
MAX_ALL = 10_000
"""Chunks in one answer."""

_BEGIN: LiteralString = """\
select t.tenant_id, (select c.lease from penstock.task_chunks c
  where c.job_id = t.job_id and c.task_id = t.id order by c.lease desc limit 1)
from penstock.tasks t where t.job_id = %s and t.id = %s"""
_STREAM: LiteralString = """\
select attempt, lease, number, parts from penstock.task_chunks
where job_id = %s and task_id = %s and lease = %s order by number"""
# A task without a result whose job was canceled may get its result later, or never.
_AFTER: LiteralString = """\
select w.n::integer, c.attempt, c.lease, c.number, c.parts, case
  when j.id is null then 'removed' when r.outcome is not null then r.outcome
  when j.status = 'canceled' then 'canceled' end as outcome
from unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::integer[])
  with ordinality as w(job_id, task_id, lease, number, n)
left join lateral (
  select x.attempt, x.lease, x.number, x.parts from penstock.task_chunks x
  where x.job_id = w.job_id and x.task_id = w.task_id and (x.lease, x.number) > (w.lease, w.number)
  order by x.lease, x.number limit %s) as c on true
left join lateral (select y.id, y.status from penstock.jobs y where y.id = w.job_id offset 0) as j on true
left join lateral (
  select z.outcome from penstock.results z where z.job_id = w.job_id and z.task_id = w.task_id offset 0
) as r on true
where c.lease is not null or r.outcome is not null or j.id is null or j.status = 'canceled'
order by w.n, c.lease, c.number limit %s"""


class Position(NamedTuple):
    """How far a follower has read the stream of a task."""

    job_id: UUID
    task_id: int
    lease: int
    number: int


class News(NamedTuple):
    """What follows a position."""

    chunks: list[StreamChunk]
    outcome: str | None
    """How the task ended, if no more chunks follow: succeeded, failed, canceled, or removed with its job."""


async def begin(database: db.Database, *, job_id: UUID, task_id: int) -> tuple[UUID, Position]:
    """The task's tenant, and the position before the task's latest stream."""
    rows = await db.rows(database, _BEGIN, (job_id, task_id))
    if not rows:
        raise NotFound(f"task {task_id} not found", code="unknown_task")
    [(tenant_id, lease)] = rows
    return tenant_id, Position(job_id, task_id, lease or 0, 0)


async def latest(database: db.Database, *, job_id: UUID, task_id: int) -> list[StreamChunk]:
    """The chunks of the task's latest stream."""
    _, start = await begin(database, job_id=job_id, task_id=task_id)
    rows = await db.rows(database, _STREAM, (job_id, task_id, start.lease))
    return [StreamChunk(*row) for row in rows]


async def after(database: db.Database, positions: Sequence[Position]) -> dict[Position, News]:
    """What follows each position, in one query; positions without news are left out."""
    if not positions:
        return {}
    columns = (
        [each.job_id for each in positions],
        [each.task_id for each in positions],
        [each.lease for each in positions],
        [each.number for each in positions],
    )
    found: dict[Position, News] = {}
    rows = await db.rows(database, _AFTER, (*columns, MAX_CHUNKS, MAX_ALL))
    for place, *chunk, outcome in rows:
        news = found.setdefault(positions[int(place) - 1], News([], outcome))
        if chunk[0] is not None:
            news.chunks.append(StreamChunk(*chunk))
    cut = positions[int(rows[-1][0]) - 1] if len(rows) == MAX_ALL else None
    return {
        position: news._replace(outcome=None) if position == cut or len(news.chunks) == MAX_CHUNKS else news
        for position, news in found.items()
    }


async def store(pool: db.Pool, worker_id: str, chunks: Sequence[Mapping[str, Any]]) -> int:
    """Store chunks of attempts that the worker runs; returns how many were stored."""
    return await db.value(
        pool, "store_task_chunks", p_worker_id=worker_id, p_chunks=db.Json([dict(each) for each in chunks])
    )
