"""Bulk files: the role comes before the file, and a tenant gets a part of the uploads and of the slots."""

from __future__ import annotations

from contextlib import ExitStack

import httpx

from penstock import App, api, testing
from penstock.api.limits import Limits
from penstock.api.shares import Share
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
