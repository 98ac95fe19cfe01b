"""Watching jobs: through an event stream that is resumed when it breaks, or by polling if none works."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast
from uuid import UUID

from penstock.client.core import Core, path
from penstock.client.responses import Event, read
from penstock.client.transport import IO
from penstock.errors import Limited, TimedOut, Unavailable
from penstock.formatting import seconds
from penstock.types import ENDED, Job, JobChange, StreamChunk

# Maximum random delay before reconnecting, so that clients do not all reconnect at once.
_RECONNECT_SECONDS = 2.0
# Number of silent streams after which the client polls, or gives up if it cannot poll.
_SILENT_STREAMS, _MAX_SILENT_STREAMS = 2, 5
_POLLS = 30
"""Number of polls before a stream is tried again."""
_FIRST_POLL, _SLOWEST_POLL = 0.2, 2.0
_MOST_REMEMBERED = 1000
_PATIENCE_SECONDS = 60.0
# Interval of keep-alives. With less time left, the client polls instead of streaming.
_NEAR_SECONDS = 20.0


def deadline(timeout: float | str | None) -> float | None:
    """The deadline on the monotonic clock."""
    return None if timeout is None else time.monotonic() + seconds(timeout)


async def states(
    core: Core[IO], job_id: UUID, until: float | None, *, at_each_change: bool
) -> AsyncGenerator[Job]:
    """Yield the job now and whenever it may have changed, until it ends. Raises TimedOut.

    Without `at_each_change`, reads the job only when the stream reports its end.
    """
    url_path = path("/api/jobs/{}", job_id)
    answer = await core.request("GET", url_path, until=until)
    job, tag = job_of(answer.json()), answer.headers.get("etag")
    yield job
    if job.is_ended:
        return
    heard_at = time.monotonic()
    async with aclosing(_signals(core, f"{url_path}/events", None, until)) as signals:
        async for event in signals:
            if event is not None:
                heard_at = time.monotonic()
                if not at_each_change and _change(event).status not in ENDED:
                    continue
            try:
                answer = await core.request("GET", url_path, tag=tag, until=until)
            except Unavailable:
                # Wait for a server that is restarting.
                if time.monotonic() - heard_at > _PATIENCE_SECONDS:
                    raise
                continue
            heard_at = time.monotonic()
            if answer.status != 304:
                job, tag = job_of(answer.json()), answer.headers.get("etag")
            yield job
            if job.is_ended:
                return


async def of_tenant(core: Core[IO], tenant_id: UUID) -> AsyncGenerator[JobChange]:
    """Yield changes of a tenant's jobs."""
    last: dict[UUID, JobChange] = {}
    query = {"tenant_id": tenant_id}
    async with aclosing(_signals(core, "/api/events", query, None, may_poll=False)) as signals:
        async for event in signals:
            if event is None:
                continue
            # After a reconnect the server reports all jobs again.
            change = _change(event)
            if last.get(change.id) != change:
                last[change.id] = change
                yield change
            if change.is_ended and len(last) > _MOST_REMEMBERED:
                last = {id: change for id, change in last.items() if not change.is_ended}


async def of_task(core: Core[IO], url_path: str) -> AsyncGenerator[StreamChunk]:
    """Yield the chunks of a task's stream until the task ends. Reopens a broken stream after the last one."""
    last_id: str | None = None
    silent = 0
    while True:
        pause = 0.0
        silent += 1
        try:
            async with aclosing(core.events(url_path, None, last_id)) as events:
                async for event in events:
                    # A keep-alive too shows that the stream arrives.
                    silent = 0
                    if event is not None and event.name == "end":
                        return
                    if event is not None and event.name == "chunk":
                        last_id = event.id
                        yield read(StreamChunk, event.data)
        except (Unavailable, Limited) as error:
            if silent >= _MAX_SILENT_STREAMS:
                raise
            pause = error.retry_after or 0
        await core.io.sleep(pause + random.uniform(0, _RECONNECT_SECONDS))


async def _signals(
    core: Core[IO], url_path: str, query: dict[str, Any] | None, until: float | None, *, may_poll: bool = True
) -> AsyncGenerator[Event | None]:
    """Yield an event for each change; None when the caller should poll, because events may have been missed.

    Runs until the caller stops it. Reopens a broken stream after the last received event. Polls
    where streams stay silent, as behind a proxy that buffers them.
    """
    last_id: str | None = None
    silent = 0
    while True:
        if may_poll and (silent >= _SILENT_STREAMS or _is_deadline_near(until)):
            async with aclosing(_ticks(core, until)) as ticks:
                async for _ in ticks:
                    yield None
            silent = 0
            continue
        is_silent, pause = True, 0.0
        try:
            async with aclosing(core.events(url_path, query, last_id)) as events:
                async for event in events:
                    is_silent = False
                    if event is None or event.name == "progress":
                        last_id = last_id if event is None else event.id
                        yield event
                    if _is_deadline_near(until):
                        break
        except (Unavailable, Limited) as error:
            if is_silent and not may_poll and silent >= _MAX_SILENT_STREAMS:
                raise
            pause = error.retry_after or 0
        silent = silent + 1 if is_silent else 0
        if may_poll and _is_deadline_near(until):
            continue
        await core.io.sleep(pause + random.uniform(0, _RECONNECT_SECONDS))
        yield None


async def _ticks(core: Core[IO], until: float | None) -> AsyncGenerator[None]:
    """Yield at each time to poll. Raises TimedOut at the deadline."""
    pause = _FIRST_POLL
    for _ in range(_POLLS):
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimedOut("the job did not end in time")
        chosen = pause * random.uniform(0.5, 1)
        await core.io.sleep(chosen if left is None else min(chosen, left))
        yield
        pause = min(pause * 1.5, _SLOWEST_POLL)


def _is_deadline_near(until: float | None) -> bool:
    return until is not None and until - time.monotonic() < _NEAR_SECONDS


def job_of(document: Any) -> Job:
    """Convert a job's document to a Job."""
    return read(Job, _with_python_names(document))


def _change(event: Event) -> JobChange:
    match event.data:
        case {"progress": {"message": reason}}:
            told = cast("dict[str, Any]", event.data)
            progress = {**told["progress"], "message": None}
            return read(
                JobChange, _with_python_names({**told, "progress": progress, "status_reason": reason})
            )
        case _:
            return read(JobChange, event.data)


def _with_python_names(document: Any) -> Any:
    """Rename the API's camel-case progress fields to those of Python and SQL."""
    match document:
        case {"progress": {"docsComplete": complete, "docsTotal": total}}:
            told = cast("dict[str, Any]", document)
            return {**told, "progress": {**told["progress"], "docs_complete": complete, "docs_total": total}}
        case _:
            return document
