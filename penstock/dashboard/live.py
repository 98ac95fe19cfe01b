"""Live pages: an event stream tells an open page when to refresh. The refresh fetches the page itself.

All pages open in a process share one query per second. It reads the newest audit line of each job or tenant
on screen, because every change of a job writes one. A page refreshes at once after a new line of its own.
While any task runs, every page also refreshes every few seconds, to show progress within jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, LiteralString, NamedTuple
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.datastructures import State

from penstock.api.callers import Caller, Callers
from penstock.api.events import follow
from penstock.api.jobs import TaskId
from penstock.api.limits import Limits
from penstock.api.problems import answer
from penstock.api.routes import admitted
from penstock.api.streams import FIRST_LINE, STILL_HERE, Streams, Watched, is_news
from penstock.contract import jobs
from penstock.dashboard.pages import credential_of
from penstock.errors import Forbidden, PenstockError
from penstock.postgres import db

router = APIRouter()

REFRESH_SECONDS = 4.0
_SERVICE = Caller("service_role", {})
# The newest line, and whether it is so recent that a page may have been rendered just before it.
_ALL: LiteralString = """\
select l.id, l.at > penstock._now() - interval '1 minute', p.is_running, p.last_lease
from penstock.pulse() as p
left join lateral (select a.id, a.at from penstock.audit_log a order by a.id desc limit 1) as l on true"""
_TENANTS: LiteralString = """\
select w.id, l.id, l.at > penstock._now() - interval '1 minute' from unnest(%s::uuid[]) as w(id)
left join lateral (
  select a.id, a.at from penstock.audit_log a where a.tenant_id = w.id order by a.id desc limit 1
) as l on true"""
_JOBS: LiteralString = """\
select w.id, l.id, l.at > penstock._now() - interval '1 minute' from unnest(%s::uuid[]) as w(id)
left join lateral (
  select a.id, a.at from penstock.audit_log a where a.job_id = w.id order by a.id desc limit 1
) as l on true"""


class Line(NamedTuple):
    """The newest line of the audit log."""

    id: int | None = None
    is_recent: bool | None = None


class Watcher:
    """One open page, about a job, a tenant, or all tenants."""

    def __init__(self, caller: Caller, job_id: UUID | None, tenant_id: UUID | None) -> None:
        self.caller, self.job_id, self.tenant_id = caller, job_id, tenant_id
        self.has_news = asyncio.Event()
        self._seen: int | None = None
        self._is_first = True
        self._refreshed_at = time.monotonic()
        self._is_behind = False
        self.is_refused = False
        """Whether the caller lost its permission: the stream ends."""

    def refuse(self) -> None:
        self.is_refused = True
        self.has_news.set()

    def update(self, line: Line, is_running: bool) -> None:
        """Tell the page to refresh after a new line, and every few seconds while tasks run.

        The first update also refreshes for a change between the rendering of the page and now.
        """
        self._is_behind |= is_running
        is_refresh_due = not is_running or time.monotonic() - self._refreshed_at > REFRESH_SECONDS
        is_new = line.is_recent if self._is_first else line.id != self._seen
        if is_new or (self._is_behind and is_refresh_due):
            self._refreshed_at, self._is_behind = time.monotonic(), is_running
            self.has_news.set()
        self._seen, self._is_first = line.id, False


class Pulse(Streams[Watcher]):
    """Queries the database once per second for all open pages of this process."""

    TICK_SECONDS = 1.0

    def __init__(self, callers: Callers, limits: Limits) -> None:
        super().__init__(callers, limits)
        self._lease = 0

    async def _look(self) -> None:
        tenants = {each.tenant_id for each in self._watchers if each.tenant_id and not each.job_id}
        watched = {watcher.job_id for watcher in self._watchers if watcher.job_id}
        async with self._callers.acting(_SERVICE, read_only=True) as conn:
            await self.check_access(conn)
            [(*last, is_running, lease)] = await db.rows(conn, _ALL, ())
            found = await db.rows(conn, _TENANTS, (list(tenants),)) if tenants else []
            found += await db.rows(conn, _JOBS, (list(watched),)) if watched else []
        lines: dict[UUID | None, Line] = {None: Line(*last), **{about: Line(*line) for about, *line in found}}
        # Tasks that started and ended since the last query count as running.
        is_running, self._lease = is_running or lease != self._lease, lease
        for watcher in self._watchers:
            about = watcher.job_id or watcher.tenant_id
            # A page that was opened during the query is updated by the next one.
            if about in lines:
                watcher.update(lines[about], is_running)


def _pulse(request: Request) -> Pulse:
    """Return the application's pulse, created on first use."""
    state = request.app.state
    if not hasattr(state, "pulse"):
        state.pulse = Pulse(state.callers, state.limits)
    return state.pulse


async def close(state: State) -> None:
    """Stop the pulse when the application stops."""
    if hasattr(state, "pulse"):
        await state.pulse.close()


@router.get("/live")
async def live(
    request: Request,
    job: Annotated[UUID | None, Query()] = None,
    tenant: Annotated[UUID | None, Query()] = None,
) -> Response:
    """Stream `changed` when a page about this job, this tenant or all tenants is outdated."""
    callers: Callers = request.app.state.callers
    try:
        caller = await admitted(request, credential_of)
        watcher = Watcher(caller, job, await _authorize(callers, caller, job, tenant))
        return Watched(_pulse(request), watcher, _lines(watcher))
    except PenstockError as error:
        return answer(error)


@router.get("/jobs/{job_id}/tasks/{task_id}/stream")
async def task_stream(
    request: Request,
    job_id: UUID,
    task_id: TaskId,
    after: Annotated[str | None, Query()] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream what a task's handler streams, from the chunk that the page shows last."""
    try:
        caller = await admitted(request, credential_of)
        return await follow(request, caller, job_id, task_id, last_event_id or after)
    except PenstockError as error:
        return answer(error)


async def _authorize(
    callers: Callers, caller: Caller, job_id: UUID | None, tenant_id: UUID | None
) -> UUID | None:
    """Reject a caller who may not see the job or tenant. Returns the tenant."""
    async with callers.acting(caller, read_only=True) as conn:
        if job_id is not None:
            return (await jobs.get(conn, job_id=job_id)).tenant_id
        if tenant_id is not None:
            await db.call(conn, "get_usage_status", p_tenant_id=tenant_id)
        elif caller.role != "service_role":
            raise Forbidden("tenant is required")
        return tenant_id


async def _lines(watcher: Watcher) -> AsyncGenerator[str]:
    yield FIRST_LINE
    while True:
        if not await is_news(watcher.has_news):
            yield STILL_HERE
        if watcher.is_refused or watcher.caller.is_over:
            return
        if watcher.has_news.is_set():
            watcher.has_news.clear()
            yield "event: changed\ndata: look\n\n"
