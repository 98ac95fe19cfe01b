"""Live progress as server-sent events. One query serves all watchers of a process: twice a second while there
are any, it reads all watched jobs, and only changes are sent. Permissions are checked as soon as a membership
or key has changed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, LiteralString
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request

from penstock.api.callers import Caller, Callers
from penstock.api.followers import Follower, lines, look, resumed
from penstock.api.jobs import TaskId
from penstock.api.limits import Limits
from penstock.api.routes import PROBLEMS, admitted
from penstock.api.streams import FIRST_LINE, STILL_HERE, EventStream, Streams, Watched, is_news
from penstock.contract import jobs, streams
from penstock.postgres import db
from penstock.types import ENDED

_EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "Value for `Last-Event-ID`."},
        "event": {"type": "string", "enum": ["progress", "end"]},
        "data": {
            "type": "string",
            "description": "Id, type, status and progress of the job; empty for `end`.",
            "contentMediaType": "application/json",
        },
    },
}
_CHUNKS: dict[str, Any] = {
    "description": "Chunks until the task ends.",
    "content": {
        "text/event-stream": {
            "schema": {
                **_EVENT,
                "properties": {
                    **_EVENT["properties"],
                    "event": {"type": "string", "enum": ["chunk", "end"]},
                    "data": {
                        "type": "string",
                        "description": "`attempt`, `lease`, `number` and `parts` (texts and objects); "
                        "for `end` the `status` of the task.",
                        "contentMediaType": "application/json",
                    },
                },
            }
        }
    },
}
_STREAM: dict[str, Any] = {
    "description": "Events until the job ends.",
    "content": {"text/event-stream": {"schema": _EVENT}},
}

router = APIRouter(prefix="/api", tags=["events"], responses={**PROBLEMS, 200: _STREAM})

MOST_JOBS_OF_A_TENANT = 500
_SERVICE = Caller("service_role", {})
_OF_JOBS: LiteralString = """\
select id, tenant_id, type, status, status_reason, percent, phase, total, succeeded, failed, canceled,
  docs_complete, docs_total, finished_at
from penstock.job_list where id = any(%s)"""
# A limit for each tenant: one limit for all would show only the tenant with the newest jobs.
_OF_TENANTS: LiteralString = """\
select j.* from unnest(%s::uuid[]) as w(tenant_id), lateral (
  select id, tenant_id, type, status, status_reason, percent, phase, total, succeeded, failed, canceled,
    docs_complete, docs_total, finished_at
  from penstock.job_list l
  where l.tenant_id = w.tenant_id and (
    l.status in ('queued', 'running', 'paused') or l.finished_at > penstock._now() - interval '1 minute')
  order by l.id desc limit %s) as j"""


class Watcher:
    """One open stream. Keeps only the latest state of each job, so that slow readers skip states."""

    def __init__(self, caller: Caller, job_id: UUID | None, tenant_id: UUID) -> None:
        self.caller, self.job_id, self.tenant_id = caller, job_id, tenant_id
        self.seen: dict[UUID, str] = {}
        self.news: dict[UUID, dict[str, Any]] = {}
        self.has_news = asyncio.Event()
        self.is_over = False
        """Whether the job has ended, which is reported."""
        self.is_refused = False
        """Whether the caller lost its permission or the job was removed: the stream ends without an event."""

    def refuse(self) -> None:
        self.is_refused = True
        self.has_news.set()

    def tell(self, state: dict[str, Any]) -> None:
        if self.job_id is not None and state["status"] in ENDED:
            # Sent even if the state is known: the connection may have broken before the end event.
            self.is_over = True
            self.has_news.set()
        if self.seen.get(state["id"]) != state["version"]:
            self.seen[state["id"]] = state["version"]
            self.news[state["id"]] = state
            self.has_news.set()


class Hub(Streams[Watcher | Follower]):
    """Queries the database for all watchers of this process."""

    TICK_SECONDS = 0.5

    def __init__(self, callers: Callers, limits: Limits) -> None:
        super().__init__(callers, limits)
        self.queries = 0
        """Number of queries for jobs so far."""

    async def _look(self) -> None:
        by_job: dict[UUID, list[Watcher]] = {}
        by_tenant: dict[UUID, list[Watcher]] = {}
        followers = [watcher for watcher in self._watchers if isinstance(watcher, Follower)]
        for watcher in self._watchers:
            if isinstance(watcher, Follower):
                continue
            if watcher.job_id is not None:
                by_job.setdefault(watcher.job_id, []).append(watcher)
            else:
                by_tenant.setdefault(watcher.tenant_id, []).append(watcher)
        async with self._callers.acting(_SERVICE, read_only=True) as connection:
            await self.check_access(connection)
            found: list[dict[str, Any]] = []
            if by_job:
                self.queries += 1
                found += await _rows(connection, _OF_JOBS, (list(by_job),))
            if by_tenant:
                self.queries += 1
                found += await _rows(connection, _OF_TENANTS, (list(by_tenant), MOST_JOBS_OF_A_TENANT))
            if followers:
                self.queries += 1
                await look(connection, followers)
        for state in found:
            for watcher in (*by_job.pop(state["id"], ()), *by_tenant.get(state["tenant_id"], ())):
                watcher.tell(state)
        for watchers in by_job.values():
            # The job existed when the stream was opened, so it has been removed since.
            for watcher in watchers:
                watcher.refuse()


async def _rows(
    connection: db.Connection, query: LiteralString, params: tuple[Any, ...]
) -> list[dict[str, Any]]:
    cursor = await connection.execute(query, params)
    return [_state(dict(row)) for row in await cursor.fetchall()]


def _state(row: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(row, default=str, sort_keys=True)
    state = {**row, "version": hashlib.sha256(text.encode()).hexdigest()[:16]}
    # Format the event once for all watchers.
    return {**state, "event": _event(state)}


def hub_of(request: Request) -> Hub:
    """The application's hub, created on first use."""
    hub: Hub | None = getattr(request.app.state, "hub", None)
    if hub is None:
        hub = request.app.state.hub = Hub(request.app.state.callers, request.app.state.limits)
    return hub


async def _asking(request: Request) -> Caller:
    caller = await admitted(request)
    caller.require("read")
    return caller


# Checks the caller before the parameters.
Admitted = Annotated[Caller, Depends(_asking)]


@router.get("/jobs/{job_id:uuid}/events", summary="Stream Job Events", response_class=EventStream)
async def job_events(
    request: Request, caller: Admitted, job_id: UUID, last_event_id: Annotated[str | None, Header()] = None
) -> EventStream:
    """Stream a job's progress until it ends. Resume with `Last-Event-ID`."""
    callers: Callers = request.app.state.callers
    async with callers.acting(caller, read_only=True) as conn:
        job = await jobs.get(conn, job_id=job_id)
    return _stream(request, Watcher(caller, job_id, job.tenant_id), last_event_id)


@router.get(
    "/jobs/{job_id:uuid}/tasks/{task_id}/stream", summary="Stream Task Output", response_class=EventStream,
    responses={200: _CHUNKS},
)  # fmt: skip
async def task_stream(
    request: Request,
    caller: Admitted,
    job_id: UUID,
    task_id: TaskId,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """Stream what a task's handler streams, from the beginning of its latest attempt, until the task ends.
    Resume with `Last-Event-ID`."""
    return await follow(request, caller, job_id, task_id, last_event_id)


async def follow(
    request: Request, caller: Caller, job_id: UUID, task_id: int, last_event_id: str | None
) -> EventStream:
    """The stream of a task. Rejects a caller who may not read the task."""
    callers: Callers = request.app.state.callers
    async with callers.acting(caller, read_only=True) as conn:
        tenant_id, start = await streams.begin(conn, job_id=job_id, task_id=task_id)
    follower = Follower(caller, tenant_id, resumed(start, last_event_id))
    return Watched(hub_of(request), follower, lines(follower))


@router.get("/events", summary="Stream Tenant Events", response_class=EventStream)
async def tenant_events(
    request: Request,
    caller: Admitted,
    tenant_id: Annotated[UUID, Query()],
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """Stream changes of a tenant's jobs that have not ended or ended recently."""
    callers: Callers = request.app.state.callers
    async with callers.acting(caller, read_only=True) as conn:
        # Raises an error if the caller is not a member.
        await db.call(conn, "get_usage_status", p_tenant_id=tenant_id)
    return _stream(request, Watcher(caller, None, tenant_id), last_event_id)


def _stream(request: Request, watcher: Watcher, last_event_id: str | None) -> EventStream:
    if watcher.job_id is not None and last_event_id:
        # Skip the state that the client already has.
        watcher.seen[watcher.job_id] = last_event_id[:64]
    return Watched(hub_of(request), watcher, _lines(watcher))


async def _lines(watcher: Watcher) -> AsyncGenerator[str]:
    yield FIRST_LINE
    while True:
        if not await is_news(watcher.has_news):
            yield STILL_HERE
        if watcher.is_refused or watcher.caller.claims.get("exp", math.inf) < time.time():
            return
        watcher.has_news.clear()
        news, watcher.news = watcher.news, {}
        for state in news.values():
            yield state["event"]
        if watcher.is_over:
            yield "event: end\ndata: {}\n\n"
            return


def _event(state: dict[str, Any]) -> str:
    done = state["succeeded"] + state["failed"] + state["canceled"]
    body = {
        "id": str(state["id"]),
        "type": state["type"],
        "status": state["status"],
        "progress": {
            "percent": state["percent"],
            "phase": state["phase"],
            "docsComplete": state["docs_complete"],
            "docsTotal": state["docs_total"],
            "done": done,
            "total": state["total"],
            "succeeded": state["succeeded"],
            "failed": state["failed"],
            "canceled": state["canceled"],
            "message": state["status_reason"],
        },
    }
    return f"id: {state['version']}\nevent: progress\ndata: {json.dumps(body)}\n\n"
