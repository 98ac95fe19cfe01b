"""Live progress over a real connection: each change is sent once, to callers who may see it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from penstock import api, testing
from penstock.api import events, streams
from penstock.settings import Settings

from .conftest import Person, Served, World, bearer, serving, token


@pytest.fixture
def served(api_settings: Settings) -> Iterator[Served]:
    """The application on a socket: a test client would wait for the end of a stream."""
    with serving(api.create(api_settings)) as served:
        yield served


class Stream:
    """The events as a browser's EventSource reads them."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, Any]:
        """The next event, with its id and data."""
        event: dict[str, Any] = {}
        async with asyncio.timeout(60):
            async for line in self._lines:
                if not line and "data" in event:
                    return event
                name, _, value = line.partition(": ")
                if name == "data":
                    event["data"] = json.loads(value)
                elif name in ("id", "event"):
                    event[name] = value
        raise EOFError


@asynccontextmanager
async def watching(served: Served, path: str, person: Person, **headers: str) -> AsyncGenerator[Stream]:
    async with (
        httpx.AsyncClient(base_url=served.url, timeout=10) as client,
        client.stream("GET", path, headers={**person.headers, **headers}) as response,
    ):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Stream(response)


def start(world: World, person: Person, count: int) -> str:
    world.kind("work")
    tasks = json.dumps([{"kind": "work"}] * count)
    options = json.dumps({"tenant_id": str(person.tenant)})
    [row] = world.db.execute("select penstock.start_job('report', '{}', %s, %s) as id", [tasks, options])
    return str(row["id"])


def do_one(db: testing.Database) -> None:
    [task] = db.execute("select id, lease from penstock.claim_tasks('w', 1)")
    db.execute("select penstock.complete_task(%s, 'w', null, %s)", [task["id"], task["lease"]])


async def test_tells_each_change_until_the_end(world: World, served: Served) -> None:
    """R1.1/stream: a stream sends the same state live."""
    ann = world.join("ann")
    job = start(world, ann, 2)
    async with watching(served, f"/api/jobs/{job}/events", ann) as stream:
        first = await stream.next()
        assert first["event"] == "progress" and first["data"]["status"] == "queued"
        assert first["data"]["progress"]["docsTotal"] == 2
        do_one(world.db)
        second = await stream.next()
        assert (second["data"]["status"], second["data"]["progress"]["docsComplete"]) == ("running", 1)
        do_one(world.db)
        last = await stream.next()
        assert (last["data"]["status"], last["data"]["progress"]["percent"]) == ("completed", 100)
        assert (await stream.next())["event"] == "end"
        with pytest.raises(EOFError):
            await stream.next()


async def test_key_streams_do_not_expire(world: World, served: Served) -> None:
    """A key has no expiry claim, which must not end the stream."""
    ann = world.join("ann")
    job = start(world, ann, 1)
    async with watching(served, f"/api/jobs/{job}/events", world.member("viewer", ann.tenant)) as stream:
        assert (await stream.next())["data"]["status"] == "queued"
        do_one(world.db)
        assert (await stream.next())["data"]["status"] == "completed"


@pytest.mark.slow
async def test_stream_resumes_after_last_event_id(world: World, served: Served) -> None:
    ann = world.join("ann")
    job = start(world, ann, 2)
    async with watching(served, f"/api/jobs/{job}/events", ann) as stream:
        first = await stream.next()
    do_one(world.db)
    async with watching(served, f"/api/jobs/{job}/events", ann, **{"Last-Event-ID": first["id"]}) as stream:
        second = await stream.next()
        assert second["data"]["progress"]["docsComplete"] == 1
    async with watching(served, f"/api/jobs/{job}/events", ann, **{"Last-Event-ID": second["id"]}) as stream:
        do_one(world.db)
        third = await stream.next()
        assert third["data"]["status"] == "completed", "what it had is not told again"
    async with watching(served, f"/api/jobs/{job}/events", ann, **{"Last-Event-ID": third["id"]}) as stream:
        assert (await stream.next())["event"] == "end", "it had heard of the end, not that it was the end"


async def test_tenant_stream_reports_all_jobs(world: World, served: Served) -> None:
    ann, bob = world.join("ann"), world.join("bob")
    mine, others = start(world, ann, 1), start(world, bob, 1)
    async with watching(served, f"/api/events?tenant_id={ann.tenant}", ann) as stream:
        assert (await stream.next())["data"]["id"] == mine
        new = start(world, ann, 1)
        assert (await stream.next())["data"]["id"] == new != others


@pytest.mark.parametrize("what", ["foreign", "anonymous", "unknown", "foreign tenant", "worker"])
async def test_is_refused_to_others(world: World, served: Served, what: str) -> None:
    """R0.9/no-existence: not a byte of another tenant's job."""
    ann, bob = world.join("ann"), world.join("bob")
    job = start(world, ann, 1)
    headers = {"anonymous": {}, "worker": bearer(world.key("worker"))}.get(what, bob.headers)
    path = {
        "unknown": "/api/jobs/00000000-0000-0000-0000-000000000000/events",
        "foreign tenant": f"/api/events?tenant_id={ann.tenant}",
    }.get(what, f"/api/jobs/{job}/events")
    async with httpx.AsyncClient(base_url=served.url) as client:
        answer = await client.get(path, headers=headers)
    assert answer.status_code in (401, 403, 404)
    assert str(ann.tenant) not in answer.text


@pytest.mark.slow
async def test_stream_ends_when_the_token_expires(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller whose token has expired gets no more events."""
    monkeypatch.setattr(streams, "KEEP_ALIVE_SECONDS", 0.2)
    ann = world.join("ann")
    job = start(world, ann, 2)
    ann.headers.update(bearer(token(ann.id, exp=int(time.time()) + 2)))
    async with watching(served, f"/api/jobs/{job}/events", ann) as stream:
        assert (await stream.next())["event"] == "progress"
        with pytest.raises(EOFError):
            await stream.next()


@pytest.mark.parametrize("what", ["member", "key", "service key", "job"])
async def test_stream_ends_when_permission_is_lost(world: World, served: Served, what: str) -> None:
    """S24: at once, although permissions are normally checked once a minute."""
    assert streams.CHECK_SECONDS >= 60
    ann, bob = world.join("ann"), world.join("bob")
    job = start(world, ann, 1)
    world.db.execute("select penstock.set_member(%s, %s, 'viewer')", [ann.tenant, bob.id])
    [key] = world.db.execute("select * from penstock.create_key('k', 'viewer', %s)", [ann.tenant])
    [service] = world.db.execute("select * from penstock.create_key('s', 'service')")
    person, statement = {
        "member": (bob, f"select penstock.set_member('{ann.tenant}', '{bob.id}', null)"),
        "key": (
            Person(key["id"], ann.tenant, "", bearer(key["secret"])),
            f"select penstock.revoke_key('{key['id']}')",
        ),
        "service key": (
            Person(service["id"], ann.tenant, "", bearer(service["secret"])),
            f"select penstock.revoke_key('{service['id']}')",
        ),
        "job": (
            ann,
            f"delete from penstock.ready; delete from penstock.tasks; delete from penstock.phases; delete from penstock.jobs where id = '{job}'",
        ),
    }[what]
    async with watching(served, f"/api/jobs/{job}/events", person) as stream:
        assert (await stream.next())["event"] == "progress"
        for part in statement.split(";"):
            world.db.execute(part)
        with pytest.raises(EOFError):
            await stream.next()
    if what != "job":
        async with watching(served, f"/api/jobs/{job}/events", ann) as stream:
            assert (await stream.next())["event"] == "progress", "others are not bothered"


async def test_many_watchers_are_one_question(world: World, served: Served) -> None:
    """R1.1/watchers: thousands of watchers cost the database almost nothing: one query per tick serves all of them."""
    ann = world.join("ann")
    jobs = [start(world, ann, 1) for _ in range(3)]
    began = time.monotonic()
    async with httpx.AsyncClient(
        base_url=served.url, timeout=60, limits=httpx.Limits(max_connections=100)
    ) as client:

        async def watch(job: str, is_watching: asyncio.Event) -> None:
            async with client.stream("GET", f"/api/jobs/{job}/events", headers=ann.headers) as response:
                stream = Stream(response)
                while (await stream.next())["event"] != "end":
                    is_watching.set()

        here = [asyncio.Event() for _ in range(60)]
        watchers = [asyncio.create_task(watch(jobs[n % 3], event)) for n, event in enumerate(here)]
        await asyncio.gather(*(event.wait() for event in here))
        for _ in jobs:
            do_one(world.db)
        await asyncio.gather(*watchers)
    hub = served.app.state.hub
    assert 2 <= hub.queries <= 2 + (time.monotonic() - began) / hub.TICK_SECONDS


async def test_a_tenant_with_many_jobs_does_not_silence_another(
    world: World, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S66, B9/shared: the limit on jobs counts for each tenant."""
    monkeypatch.setattr(events, "MOST_JOBS_OF_A_TENANT", 2)
    ann, bob = world.join("ann"), world.join("bob")
    job = start(world, bob, 1)
    for _ in range(5):
        start(world, ann, 1)
    async with (
        watching(served, f"/api/events?tenant_id={ann.tenant}", ann) as loud,
        watching(served, f"/api/events?tenant_id={bob.tenant}", bob) as quiet,
    ):
        await loud.next()
        assert (await quiet.next())["data"]["id"] == job
