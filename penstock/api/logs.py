"""Log lines of a job's tasks over HTTP."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query

from penstock.api.pages import LARGEST, LimitQuery, NumberCursor, Page, page
from penstock.api.routes import Conn, router
from penstock.contract import jobs, logs
from penstock.types import LogLine

routes = router("jobs")


@routes.get("/jobs/{job_id:uuid}/logs")
async def list_logs(
    conn: Conn,
    job_id: UUID,
    task_id: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[LogLine]:
    """List what the handlers of a job's tasks logged, or of one task, oldest first."""
    await jobs.get(conn, job_id=job_id)
    found = await logs.list(conn, job_id=job_id, task_id=task_id, after=cursor or 0, limit=limit + 1)
    return page(found, limit, lambda line: line.id)
