"""The web client of the notes app in Chromium: notes are added with the network cut, and reach another browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import App, server, testing
from penstock.apps.notes.device import HttpServer, Store, sync
from tests.api.conftest import settings_on, token
from tests.dashboard.test_browser import DESK, RUN_AXE, Served, axe, chromium, serving

pytestmark = pytest.mark.slow
__all__ = ["axe", "chromium"]

notes: App = pytest.importorskip("penstock.apps.notes.app").app
CLIENT = Path(__file__).parents[2] / "penstock/apps/notes/web"


@pytest.fixture
def served(
    db: testing.Database, tmp_path: Path, chromium: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    notes.migrate(db.dsn)
    monkeypatch.setattr(notes, "web", CLIENT)
    with serving(server.application(settings_on(db, tmp_path), notes), chromium) as made:
        yield made


class Browser:
    """A browser with the client open, signed in."""

    def __init__(self, served: Served, chromium: Any, token: str) -> None:
        self.context = chromium.new_context(viewport=DESK)
        served._contexts.append(self.context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: served.errors.append(str(error)))
        self.page.goto(f"{served.base}/web/notes/")
        self.sign_in(token)

    def sign_in(self, token: str) -> None:
        self.page.fill("#token", token)
        self.page.click("#sign-in button")
        self.page.wait_for_selector("#add:not([hidden])")

    def add(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#add button")
        self.page.wait_for_selector(f"#notes li:has-text('{text}')")

    def status(self, text: str) -> None:
        """Wait until the page says this."""
        self.page.wait_for_function(
            "text => document.getElementById('status').textContent === text", arg=text
        )

    def texts(self) -> list[str]:
        return self.page.locator("#notes li p").all_text_contents()

    def sync(self) -> None:
        self.page.click("#sync")
        self.status("Synced")


def test_notes_added_offline_reach_another_browser(
    served: Served, chromium: Any, db: testing.Database, axe: str
) -> None:
    """R2.8/replays: the network is cut, the page is even loaded again, and nothing is lost or doubled."""
    [user] = db.execute("insert into auth.users (email) values ('ann@example.org') returning id")
    access = token(user["id"])
    one, two = Browser(served, chromium, access), Browser(served, chromium, access)
    one.add("Written online")
    one.status("Synced")
    one.page.wait_for_function("navigator.serviceWorker.controller !== null")
    one.context.set_offline(True)
    one.add("Otters hold hands")
    one.add("<img src=x onerror=alert(1)>")
    one.status("Offline: 2 changes waiting")
    one.page.locator("#notes li", has_text="Written online").get_by_role("button", name="Delete").click()
    one.status("Offline: 3 changes waiting")
    # The page opens without a network, with everything that was written.
    one.page.reload()
    one.page.wait_for_selector("#notes li:has-text('Otters')")
    assert one.texts() == ["<img src=x onerror=alert(1)>", "Otters hold hands"]
    two.sync()
    assert two.texts() == ["Written online"]
    one.context.set_offline(False)
    one.status("Synced")
    two.sync()
    assert two.texts() == one.texts() == ["<img src=x onerror=alert(1)>", "Otters hold hands"]
    # A device in Python sees the same, and its edits arrive here.
    store = Store()
    wire = HttpServer(served.base, "", lambda: access)
    sync(store, wire)
    assert {note["text"] for note in store.rows("notes")} == set(two.texts())
    [otters] = store.search("otters")
    store.save("notes", id=otters["id"], text="Otters hold hands when they sleep")
    sync(store, wire)
    store.close()
    two.sync()
    assert "Otters hold hands when they sleep" in two.texts()
    assert len(db.execute("select id from notes.notes")) == 3
    two.page.evaluate(axe)
    assert two.page.evaluate(RUN_AXE) == []


def test_another_user_sees_nothing_of_the_first(served: Served, chromium: Any, db: testing.Database) -> None:
    """Changes of a user who signed out are neither shown nor pushed as another user's."""
    rows = db.execute(
        "insert into auth.users (email) values ('ann@example.org'), ('bob@example.org') returning id"
    )
    ann, bob = (token(row["id"]) for row in rows)
    browser = Browser(served, chromium, ann)
    browser.context.set_offline(True)
    browser.add("private to ann")
    browser.page.click("#sign-out")
    browser.status("Signed out")
    assert browser.texts() == []
    browser.context.set_offline(False)
    browser.sign_in(bob)
    browser.sync()
    assert browser.texts() == [] and db.execute("select id from notes.notes") == []
