"""Log lines of tasks: best effort, kept for one to two weeks."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.postgres import db
from penstock.types import LogLine

# Read from the end or from a line on, in the order in which lines were stored.
_AFTER: LiteralString = """\
select id, task_id, attempt, at, level, message, fields from penstock.task_logs
where job_id = %s and id > %s and (%s::bigint is null or task_id = %s) order by id limit %s"""
_LAST: LiteralString = """\
select * from (
  select id, task_id, attempt, at, level, message, fields from penstock.task_logs
  where job_id = %s and (%s::bigint is null or task_id = %s) order by id desc limit %s) as x order by id"""


async def list(
    database: db.Database, *, job_id: UUID, task_id: int | None = None, after: int = 0, limit: int = 50
) -> builtins.list[LogLine]:
    """The lines of a job's tasks, or of one, oldest first. The next page is `after` the last line's id."""
    rows = await db.rows(database, _AFTER, (job_id, after, task_id, task_id, filters.page(limit)))
    return [LogLine(*row) for row in rows]


async def last(
    database: db.Database, *, job_id: UUID, task_id: int | None = None, limit: int = 50
) -> builtins.list[LogLine]:
    """The newest lines, oldest first."""
    rows = await db.rows(database, _LAST, (job_id, task_id, task_id, filters.page(limit)))
    return [LogLine(*row) for row in rows]


async def store(pool: db.Pool, worker_id: str, lines: Sequence[Mapping[str, Any]]) -> int:
    """Store lines of the worker's attempts; returns how many were stored."""
    return await db.value(
        pool, "store_task_logs", p_worker_id=worker_id, p_lines=db.Json([dict(line) for line in lines])
    )
