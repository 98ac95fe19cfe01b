"""Bulk files: the role comes before the file, and a tenant gets a part of the uploads and of the slots."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack

import httpx
import pytest

from penstock import App, api, testing
from penstock.api.limits import Limits
from penstock.api.shares import ByteShare, Share, Shares
from penstock.sdk.load import load
from penstock.settings import Settings
from tests.api.conftest import Person, World, serving
from tests.api.test_limits import asking, sent, status
from tests.conftest import Eventually

MORE = "Content-Length: 1000000\r\n"
PATHS = ("upload?type=a", "check?type=a", "forecast?type=a")


def test_the_role_is_checked_before_the_file_is_read(db: testing.Database, api_settings: Settings) -> None:
    """S68, B9/shared: the refusal comes although not a byte of the file was sent."""
    app = api.create(api_settings, App(), limits=Limits(body_seconds=300))
    with serving(app) as served:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann = world.join("ann")
        viewer = world.member("viewer", ann.tenant)
        for path in (*PATHS, "00000000-0000-7000-8000-000000000000/upload"):
            with sent(served, asking(f"/api/bulks/{path}", viewer, method="POST", more=MORE)) as connection:
                expected = b"404 Not Found" if path.startswith("0") else b"403 Forbidden"
                assert status(connection) == expected, path


def test_uploads_are_limited_per_caller_and_tenant(
    db: testing.Database, api_settings: Settings, eventually: Eventually
) -> None:
    """S68, B9/shared: files that arrive slowly leave room for others."""
    share = Share(slots=10, per_tenant=3, per_caller=2, waiting=0, seconds=0)
    app = api.create(api_settings, App(), limits=Limits(uploads=share, body_seconds=300))
    with serving(app) as served, ExitStack() as open:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann, bob = world.join("ann"), world.join("bob")
        other = world.member("member", ann.tenant)

        def code(person: Person) -> str:
            url = f"{served.url}/api/bulks/check?type=a"
            return httpx.post(url, content=b"a\n1\n", headers=person.headers, timeout=60).json()["code"]

        uploads = app.state.isolated.uploads
        for number, person in enumerate((ann, ann, other), 1):
            slow = asking("/api/bulks/check?type=a", person, method="POST", more=MORE)
            open.enter_context(sent(served, slow + b"a,b\n"))
            eventually(lambda n=number: uploads.held(f"tenant:{ann.tenant}") == n, "an open upload")
        assert code(ann) == "share_used_up" and code(other) == "share_used_up"
        # The file was read: the app has no such type.
        assert code(bob) == "unknown_bulk_type"


def test_bytes_in_flight_are_limited_per_caller_and_tenant(
    db: testing.Database, api_settings: Settings, eventually: Eventually
) -> None:
    """S68, B9/shared: files and JSON bodies that are being received have a limited size in total."""
    share = ByteShare(total=10_000, per_tenant=3000, per_caller=2000)
    limits = Limits(body_flights=share, file_flights=share, body_seconds=300)
    app = api.create(api_settings, App(), limits=limits)
    with serving(app) as served, ExitStack() as open:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann, bob = world.join("ann"), world.join("bob")
        other, third = (world.member("member", ann.tenant) for _ in range(2))

        for path, flights, kind in (
            ("/api/bulks/check?type=a", app.state.isolated.flights, ""),
            ("/api/jobs/start", app.state.body_flights, "Content-Type: application/json\r\n"),
        ):

            def code(person: Person, path: str = path) -> str:
                content = b'{"type": "a", "params": {"x": "' + b"x" * 1600 + b'"}}'
                url = f"{served.url}{path}"
                return httpx.post(url, content=content, headers=person.headers, timeout=60).json()["code"]

            for person, held in ((ann, 1500), (other, 2500)):
                slow = asking(path, person, method="POST", more=kind + MORE)
                open.enter_context(sent(served, slow + b"x" * (1500 if person is ann else 1000)))
                eventually(
                    lambda n=held, flights=flights: flights.held(f"tenant:{ann.tenant}") == n, "a held body"
                )
            assert code(ann) == "share_used_up" and code(other) == "share_used_up"
            assert code(third) == "share_used_up", "its own share is free, that of its tenant is not"
            assert code(bob) in ("unknown_bulk_type", "invalid")
            eventually(lambda flights=flights: not flights.held(f"tenant:{bob.tenant}"), "an ended request")


def test_signed_uploads_have_a_share_of_the_tenant(
    db: testing.Database, api_settings: Settings, eventually: Eventually
) -> None:
    """S68, B9/shared: a signed URL is one tenant's, and its files arrive one beside few others."""
    share = Share(slots=10, per_tenant=1, per_caller=1, waiting=0, seconds=0)
    app = api.create(api_settings, limits=Limits(puts=share, body_seconds=300))
    with serving(app) as served, ExitStack() as open:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann, bob = world.join("ann"), world.join("bob")

        def begun(person: Person) -> str:
            body = {"name": "a.txt", "content_type": "text/plain", "bytes": 4}
            answer = httpx.post(f"{served.url}/api/uploads", json=body, headers=person.headers, timeout=60)
            return answer.json()["url"]

        target = begun(ann).removeprefix(served.url)
        slow = f"PUT {target} HTTP/1.1\r\nHost: {served.url.removeprefix('http://')}\r\nContent-Length: 4\r\n\r\n"
        open.enter_context(sent(served, slow.encode() + b"ab"))
        puts = app.state.isolated.puts
        eventually(lambda: puts.held(f"tenant:{ann.tenant}") == 1, "an open upload")
        refused = httpx.put(begun(ann), content=b"abcd", timeout=60)
        assert (refused.status_code, refused.json()["code"]) == (429, "share_used_up")
        assert httpx.put(begun(bob), content=b"abcd", timeout=60).status_code == 204


def test_a_file_has_a_deadline(db: testing.Database, api_settings: Settings) -> None:
    """S68: a file that arrives slowly, but without a pause, ends at the deadline."""
    app = api.create(api_settings, App(), limits=Limits(file_seconds=0.5, body_seconds=300))
    with serving(app) as served:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann = world.join("ann")
        slow = asking("/api/bulks/check?type=a", ann, method="POST", more=MORE)
        with sent(served, slow + b"a,b\n") as connection:
            assert status(connection) == b"408 Request Timeout"
        assert not app.state.isolated.flights.held(f"tenant:{ann.tenant}")


async def test_a_tenant_gets_two_of_the_four_slots_to_read_files() -> None:
    """S68: with the limits of production, another tenant's file is read while one tenant sends many."""
    files = Shares("files", Limits().files)
    async with AsyncExitStack() as stack:
        for caller in ("a", "b"):
            await stack.enter_async_context(files.take("tenant:1", caller))
        waiting = asyncio.create_task(stack.enter_async_context(files.take("tenant:1", "c")))
        await asyncio.sleep(0)
        assert (files.held("tenant:1"), files.waiting("tenant:1")) == (2, 1)
        for tenant in ("tenant:2", "tenant:3"):
            async with asyncio.timeout(60):
                await stack.enter_async_context(files.take(tenant, tenant))
            assert files.held(tenant) == 1
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.slow
def test_reading_a_table_ends_at_its_limit_of_cpu_time(db: testing.Database, api_settings: Settings) -> None:
    """S68: checks, forecasts and uploads of a file run in a process that is killed."""
    app = api.create(api_settings, load("tests.api.bodies_app:app"), limits=Limits(check_seconds=1))
    with serving(app) as served:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann = world.join("ann")
        for path, content in (
            ("check?type=slow_rows", b"n\n1\n"),
            # About ten seconds of work for the reader of CSV files.
            ("upload?type=slow_rows&format=csv", b"n\n" + b"1\n" * 3_000_000),
        ):
            answer = httpx.post(
                f"{served.url}/api/bulks/{path}", content=content, headers=ann.headers, timeout=120
            )
            assert (answer.status_code, answer.json()["code"]) == (422, "check_too_slow"), path
        assert httpx.get(f"{served.url}/healthz", timeout=60).status_code == 200
