"""Followers of the streams of tasks. All followers at the same position of a stream share one look-up."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncGenerator, Iterable
from math import inf
from uuid import UUID

from penstock.api.callers import Caller
from penstock.api.streams import FIRST_LINE, STILL_HERE, is_news
from penstock.contract import streams
from penstock.contract.streams import Position
from penstock.postgres import db
from penstock.types import StreamChunk

_EVENT_ID = re.compile(r"(\d{1,18})-(\d{1,5})")


class Follower:
    """One open stream of a task."""

    def __init__(self, caller: Caller, tenant_id: UUID, position: Position) -> None:
        self.caller, self.tenant_id, self.position = caller, tenant_id, position
        self.events: list[str] = []
        """Events that the client has not taken yet. While there are any, nothing more is read for it."""
        self.has_news = asyncio.Event()
        self.is_refused = False
        """Whether the caller lost its permission or the job was removed: the stream ends without an event."""
        self.is_over = False

    def refuse(self) -> None:
        self.is_refused = True
        self.has_news.set()

    def tell(self, position: Position, events: list[str], *, is_over: bool) -> None:
        self.position, self.events, self.is_over = position, events, is_over
        self.has_news.set()


def resumed(start: Position, last_event_id: str | None) -> Position:
    """The position after the last event that the client got, unless a newer stream has begun since."""
    found = _EVENT_ID.fullmatch(last_event_id or "")
    if found is None:
        return start
    return max(start, start._replace(lease=int(found[1]), number=int(found[2])))


async def look(conn: db.Connection, followers: Iterable[Follower]) -> None:
    """Read the news of all followers that have taken their events, in one query."""
    at: dict[Position, list[Follower]] = {}
    for follower in followers:
        if not (follower.events or follower.is_over or follower.is_refused):
            at.setdefault(follower.position, []).append(follower)
    # An answer holds a limited number of chunks: each position has its turn.
    positions = random.sample(list(at), len(at))
    for position, news in (await streams.after(conn, positions)).items():
        events = [event_of(chunk) for chunk in news.chunks]
        reached = position
        if news.chunks:
            reached = position._replace(lease=news.chunks[-1].lease, number=news.chunks[-1].number)
        is_over = news.outcome is not None
        if is_over and news.outcome != "removed":
            events.append(f"event: end\ndata: {json.dumps({'status': news.outcome})}\n\n")
        for follower in at[position]:
            follower.tell(reached, events, is_over=is_over)


async def lines(follower: Follower) -> AsyncGenerator[str]:
    """The follower's events."""
    yield FIRST_LINE
    while True:
        if not await is_news(follower.has_news):
            yield STILL_HERE
        if follower.is_refused or follower.caller.claims.get("exp", inf) < time.time():
            return
        follower.has_news.clear()
        events, is_over = follower.events, follower.is_over
        for event in events:
            yield event
        if is_over:
            return
        follower.events = []


def event_of(chunk: StreamChunk) -> str:
    """A chunk as a server-sent event."""
    body = {"attempt": chunk.attempt, "lease": chunk.lease, "number": chunk.number, "parts": chunk.parts}
    return f"id: {event_id(chunk)}\nevent: chunk\ndata: {json.dumps(body)}\n\n"


def event_id(chunk: StreamChunk) -> str:
    """The id of a chunk's event."""
    return f"{chunk.lease}-{chunk.number}"
