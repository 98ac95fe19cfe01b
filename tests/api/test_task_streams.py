"""Following the streams of tasks over a real connection: in order, resumed, shared, and only for members."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from psycopg.types.json import Jsonb

from penstock.api import events
from penstock.client import AsyncClient, Client
from penstock.contract import streams

from .conftest import Person, Served, World, bearer
from .test_events import served as served
from .test_events import start, watching


class Handler:
    """A task that streams, as a worker would store it."""

    def __init__(self, world: World, person: Person) -> None:
        self.db = world.db
        self.job = start(world, person, 1)
        self.claim()

    def claim(self) -> None:
        [task] = self.db.execute("select id, lease from penstock.claim_tasks('w', 1)")
        self.id, self.lease, self.number = task["id"], task["lease"], 0
        self.path = f"/api/jobs/{self.job}/tasks/{self.id}/stream"

    def stream(self, *parts: Any) -> None:
        self.number += 1
        chunk = {"job_id": self.job, "task_id": self.id, "lease": self.lease, "number": self.number,
                 "parts": list(parts)}  # fmt: skip
        [row] = self.db.execute("select penstock.store_task_chunks('w', %s) as n", [Jsonb([chunk])])
        assert row["n"] == 1

    def retry(self) -> None:
        self.db.execute("select penstock.fail_task(%s, 'w', 'odd', %s)", [self.id, self.lease])
        self.db.execute("update penstock.parked set until = penstock._now()")
        self.db.execute("select penstock.upkeep()")
        self.claim()

    def complete(self) -> None:
        self.db.execute("select penstock.complete_task(%s, 'w', null, %s)", [self.id, self.lease])


async def test_follower_gets_each_chunk_once_until_the_end(world: World, served: Served) -> None:
    ann = world.join("ann")
    task = Handler(world, ann)
    task.stream("Hel", {"tool": "search"})
    async with watching(served, task.path, world.member("viewer", ann.tenant)) as stream:
        first = await stream.next()
        assert (first["event"], first["id"]) == ("chunk", f"{task.lease}-1")
        assert first["data"] == {
            "attempt": 1, "lease": task.lease, "number": 1, "parts": ["Hel", {"tool": "search"}]}  # fmt: skip
        task.stream("lo")
        assert (await stream.next())["data"]["parts"] == ["lo"]
        task.stream("!")
        task.complete()
        assert (await stream.next())["data"]["parts"] == ["!"]
        assert (await stream.next()) == {"event": "end", "data": {"status": "succeeded"}}
        with pytest.raises(EOFError):
            await stream.next()


async def test_stream_resumes_after_last_event_id(world: World, served: Served) -> None:
    ann = world.join("ann")
    task = Handler(world, ann)
    for part in ("a", "b", "c"):
        task.stream(part)
    async with watching(served, task.path, ann, **{"Last-Event-ID": f"{task.lease}-2"}) as stream:
        assert (await stream.next())["data"]["parts"] == ["c"]
    for odd in ("", "x", "1-2-3", "-1", "9" * 40 + "-1", "2 or 1=1"):
        async with watching(served, task.path, ann, **{"Last-Event-ID": odd}) as stream:
            assert (await stream.next())["data"]["parts"] == ["a"]


async def test_a_retry_begins_a_new_stream(world: World, served: Served) -> None:
    """Who joins later gets only the newest stream, whatever the last event was."""
    ann = world.join("ann")
    task = Handler(world, ann)
    task.stream("old")
    last = f"{task.lease}-1"
    async with watching(served, task.path, ann) as stream:
        assert (await stream.next())["data"]["attempt"] == 1
        task.retry()
        task.stream("new")
        second = (await stream.next())["data"]
        assert (second["attempt"], second["number"], second["parts"]) == (2, 1, ["new"])
    task.stream("more")
    for headers in ({}, {"Last-Event-ID": last}):
        async with watching(served, task.path, ann, **headers) as stream:
            assert (await stream.next())["data"]["parts"] == ["new"]


@pytest.mark.parametrize("what", ["foreign", "anonymous", "unknown", "of another job", "worker"])
async def test_is_refused_to_others(world: World, served: Served, what: str) -> None:
    """S91: not a byte of another tenant's stream."""
    ann, bob = world.join("ann"), world.join("bob")
    task = Handler(world, ann)
    task.stream("secret")
    headers = {"anonymous": {}, "worker": bearer(world.key("worker"))}.get(what, bob.headers)
    path = {
        "unknown": f"/api/jobs/{task.job}/tasks/{task.id + 1000}/stream",
        "of another job": f"/api/jobs/{start(world, bob, 1)}/tasks/{task.id}/stream",
    }.get(what, task.path)
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.get(path, headers=headers)
    assert answer.status_code in (401, 403, 404)
    assert "secret" not in answer.text and str(ann.tenant) not in answer.text


async def test_stream_ends_when_permission_is_lost(world: World, served: Served) -> None:
    """S91, S24: within a tick of the revocation."""
    ann = world.join("ann")
    [key] = world.db.execute("select * from penstock.create_key('k', 'viewer', %s)", [ann.tenant])
    viewer = Person(key["id"], ann.tenant, "", bearer(key["secret"]))
    task = Handler(world, ann)
    task.stream("before")
    async with watching(served, task.path, viewer) as stream:
        assert (await stream.next())["data"]["parts"] == ["before"]
        world.db.execute("select penstock.revoke_key(%s)", [key["id"]])
        with pytest.raises(EOFError):
            await stream.next()


async def test_followers_of_a_stream_share_one_query(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of followers costs the database one look-up per stream and tick."""
    ann = world.join("ann")
    task = Handler(world, ann)
    asked: list[int] = []
    after = streams.after

    async def counted(database: Any, positions: Any) -> Any:
        asked.append(len(positions))
        return await after(database, positions)

    monkeypatch.setattr("penstock.api.followers.streams.after", counted)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(watching(served, task.path, ann)) for _ in range(20)]
        task.stream("for all")
        for stream in opened:
            assert (await stream.next())["data"]["parts"] == ["for all"]
        asked.clear()
        task.stream("again")
        for stream in opened:
            assert (await stream.next())["data"]["parts"] == ["again"]
    assert set(asked) == {1}, "all followers are at the same position"


async def test_a_long_stream_arrives_whole_in_parts(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_CHUNKS", 3)
    monkeypatch.setattr(streams, "MAX_ALL", 4)
    monkeypatch.setattr(events.Hub, "TICK_SECONDS", 0.01)
    ann = world.join("ann")
    tasks = [Handler(world, ann), Handler(world, ann)]
    for task in tasks:
        for n in range(10):
            task.stream(str(n))
        task.complete()

    key = world.key("viewer", ann.tenant)

    async def read(task: Handler) -> list[str]:
        async with AsyncClient(served.url, key) as client:
            return [chunk.text async for chunk in client.jobs.stream(task.job, task.id)]

    assert await asyncio.gather(*map(read, tasks)) == [[str(n) for n in range(10)]] * 2


def test_python_client_follows_and_resumes(world: World, served: Served) -> None:
    ann = world.join("ann")
    task = Handler(world, ann)
    task.stream("Hel", {"n": 1}, "lo")
    with Client(served.url, world.key("viewer", ann.tenant)) as client:
        chunks = client.jobs.stream(task.job, task.id)
        first = next(chunks)
        assert (first.text, first.parts[1], first.attempt) == ("Hello", {"n": 1}, 1)
        # The server ends streams whose token expires, or restarts: the client goes on after the last chunk.
        for watcher in [*served.app.state.hub._watchers]:
            watcher.refuse()
        task.stream(" again")
        task.complete()
        assert [chunk.text for chunk in chunks] == [" again"]
