"""Watching jobs: by a stream of events, taken up again where it broke, and by looking where none comes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast
from uuid import UUID

from penstock.client.answers import Event, read
from penstock.client.core import Core, path
from penstock.client.transport import IO
from penstock.errors import Limited, TimedOut, Unavailable
from penstock.formatting import seconds
from penstock.types import ENDED, Job, JobChange

# So long the server asks for, at most: not all come back at once.
_BACK_SECONDS = 2.0
# After so many streams in which nothing was heard it is looked instead, or given up.
_SILENT, _MOST_SILENT = 2, 5
_LOOKS = 30
"""How often it is looked before a stream is tried again."""
_FIRST_LOOK, _SLOWEST_LOOK = 0.2, 2.0
_MOST_REMEMBERED = 1000
_PATIENCE_SECONDS = 60.0
# A stream says something at least so often; who has less time looks instead.
_NEAR_SECONDS = 20.0


def deadline(timeout: float | str | None) -> float | None:
    """When to give up, by the monotonic clock."""
    return None if timeout is None else time.monotonic() + seconds(timeout)


async def looks(
    core: Core[IO], job_id: UUID, until: float | None, *, at_each_change: bool
) -> AsyncGenerator[Job]:
    """The job now, and again when it may have changed, until it has ended. Raises TimedOut.

    Without `at_each_change` the stream is believed that it has not ended, and nothing is asked meanwhile.
    """
    where = path("/api/jobs/{}", job_id)
    answer = await core.ask("GET", where, until=until)
    job, tag = job_of(answer.json()), answer.headers.get("etag")
    yield job
    if job.is_ended:
        return
    heard_at = time.monotonic()
    async with aclosing(_signals(core, f"{where}/events", None, until)) as signals:
        async for event in signals:
            if event is not None:
                heard_at = time.monotonic()
                if not at_each_change and _change(event).status not in ENDED:
                    continue
            try:
                answer = await core.ask("GET", where, tag=tag, until=until)
            except Unavailable:
                # A server that is restarted is waited for.
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
    """Changes of a tenant's jobs."""
    last: dict[UUID, JobChange] = {}
    query = {"tenant_id": tenant_id}
    async with aclosing(_signals(core, "/api/events", query, None, may_look=False)) as signals:
        async for event in signals:
            if event is None:
                continue
            # After a break the server tells all again.
            change = _change(event)
            if last.get(change.id) != change:
                last[change.id] = change
                yield change
            if change.is_ended and len(last) > _MOST_REMEMBERED:
                last = {id: change for id, change in last.items() if not change.is_ended}


async def _signals(
    core: Core[IO], where: str, query: dict[str, Any] | None, until: float | None, *, may_look: bool = True
) -> AsyncGenerator[Event | None]:
    """An event for each change; None where something may have been missed, and it is to be looked.

    Goes on for ever: whoever listens knows when it is over. A stream that breaks is opened again after the
    last event that was heard. Where streams stay silent, as behind a proxy that collects, it is looked.
    """
    last_id: str | None = None
    silent = 0
    while True:
        if may_look and (silent >= _SILENT or _is_near(until)):
            async with aclosing(_ticks(core, until)) as ticks:
                async for _ in ticks:
                    yield None
            silent = 0
            continue
        is_silent, pause = True, 0.0
        try:
            async with aclosing(core.events(where, query, last_id)) as events:
                async for event in events:
                    is_silent = False
                    if event is None or event.name == "progress":
                        last_id = last_id if event is None else event.id
                        yield event
                    if _is_near(until):
                        break
        except (Unavailable, Limited) as error:
            if is_silent and not may_look and silent >= _MOST_SILENT:
                raise
            pause = error.retry_after or 0
        silent = silent + 1 if is_silent else 0
        if may_look and _is_near(until):
            continue
        await core.io.sleep(pause + random.uniform(0, _BACK_SECONDS))
        yield None


async def _ticks(core: Core[IO], until: float | None) -> AsyncGenerator[None]:
    """Moments to look. Raises TimedOut when there is no more time."""
    pause = _FIRST_LOOK
    for _ in range(_LOOKS):
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimedOut("the job has not ended in time")
        chosen = pause * random.uniform(0.5, 1)
        await core.io.sleep(chosen if left is None else min(chosen, left))
        yield
        pause = min(pause * 1.5, _SLOWEST_LOOK)


def _is_near(until: float | None) -> bool:
    return until is not None and until - time.monotonic() < _NEAR_SECONDS


def job_of(document: Any) -> Job:
    """The job that an answer tells of."""
    return read(Job, _with_our_names(document))


def _change(event: Event) -> JobChange:
    match event.data:
        case {"progress": {"message": reason}}:
            told = cast("dict[str, Any]", event.data)
            progress = {**told["progress"], "message": None}
            return read(JobChange, _with_our_names({**told, "progress": progress, "status_reason": reason}))
        case _:
            return read(JobChange, event.data)


def _with_our_names(document: Any) -> Any:
    """A job's document with the names that Python and SQL have for how far it is."""
    match document:
        case {"progress": {"docsComplete": complete, "docsTotal": total}}:
            told = cast("dict[str, Any]", document)
            return {**told, "progress": {**told["progress"], "docs_complete": complete, "docs_total": total}}
        case _:
            return document
