"""The web client of the notes app in Chromium: notes are added with the network cut, and reach another browser."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from penstock import App, server, testing
from penstock.apps.notes.device import Cipher, HttpServer, Store, sync
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

    def __init__(
        self, served: Served, chromium: Any, token: str, *, script: str = "", **options: Any
    ) -> None:
        self._served = served
        self.context = chromium.new_context(viewport=DESK, **options)
        served._contexts.append(self.context)
        self._open(script)
        self.sign_in(token)

    def _open(self, script: str) -> None:
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("pageerror", lambda error: self._served.errors.append(str(error)))
        if script:
            self.page.add_init_script(script)
        self.page.goto(f"{self._served.base}/web/notes/")

    def tab(self, script: str = "") -> Browser:
        """Another tab of the same browser."""
        made = copy(self)
        made._open(script)
        return made

    def sign_in(self, token: str) -> None:
        self.page.fill("#token", token)
        self.page.click("#sign-in button")
        self.page.wait_for_selector("#add:not([hidden])")

    def add(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.click("#add button")
        self.page.wait_for_selector(f"#notes li:has-text('{text}')")

    def edit(self, old: str, new: str) -> None:
        self.page.locator("#notes li", has_text=old).get_by_role("button", name="Edit").click()
        self.page.fill("#notes textarea", new)
        self.page.click("#notes form button.primary")
        self.page.wait_for_selector(f"#notes li:has-text('{new}')")

    def status(self, text: str) -> None:
        """Wait until the page says this."""
        self.page.wait_for_function(
            "text => document.getElementById('status').textContent === text", arg=text
        )

    def texts(self) -> list[str]:
        return self.page.locator("#notes li p").all_text_contents()

    def sync(self) -> None:
        self.page.click("#sync")
        # Not only the one that was running: it ends with the same words.
        self.page.evaluate("() => running")
        self.status("Synced")

    def wait_until_pushed(self) -> None:
        """Wait until the outbox is empty."""
        while self.stored("outbox"):
            self.page.wait_for_timeout(20)

    def stored(self, store: str) -> list[Any]:
        """What IndexedDB has."""
        return self.page.evaluate("name => transaction('readonly', (db) => done(db[name].getAll()))", store)


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


def add_user(db: testing.Database, name: str) -> Any:
    [row] = db.execute("insert into auth.users (email) values (%s) returning id", [f"{name}@example.org"])
    return row["id"]


def test_edits_of_two_browsers_offline_meet(served: Served, chromium: Any, db: testing.Database) -> None:
    """R2.8/last-write: the later edit wins in both browsers, a delete elsewhere wins over an older edit, and a
    sync in the background disturbs no editor."""
    access = token(add_user(db, "ann"))
    one, two = Browser(served, chromium, access), Browser(served, chromium, access)
    for text in ("Otters", "Herons"):
        one.add(text)
        one.status("Synced")
    two.sync()
    for browser in (one, two):
        browser.context.set_offline(True)
        browser.status("Offline")
    one.edit("Otters", "Otters on the phone")
    two.edit("Otters", "Otters on the laptop")
    one.edit("Herons", "Herons stand still")
    two.page.locator("#notes li", has_text="Herons").get_by_role("button", name="Delete").click()
    two.status("Offline: 2 changes waiting")
    for browser in (one, two, one):
        browser.context.set_offline(False)
        browser.sync()
    assert one.texts() == two.texts() == ["Otters on the laptop"]
    assert one.stored("outbox") == two.stored("outbox") == []
    # A note is open in an editor while the other browser's note arrives.
    one.page.locator("#notes li").get_by_role("button", name="Edit").click()
    one.page.fill("#notes textarea", "half a sentence")
    two.add("Seals")
    two.status("Synced")
    one.sync()
    assert one.page.input_value("#notes textarea") == "half a sentence"
    one.page.get_by_role("button", name="Cancel").click()
    one.page.wait_for_selector("#notes li:has-text('Seals')")
    assert one.texts() == two.texts()
    # A note that is deleted elsewhere while it is edited comes back when it is saved.
    one.page.locator("#notes li", has_text="Seals").get_by_role("button", name="Edit").click()
    one.page.fill("#notes textarea", "Seals sing")
    two.page.locator("#notes li", has_text="Seals").get_by_role("button", name="Delete").click()
    two.wait_until_pushed()
    one.sync()
    one.page.click("#notes form button.primary")
    one.wait_until_pushed()
    two.sync()
    assert one.texts() == two.texts() and "Seals sing" in two.texts()


def test_large_notes_travel_in_smaller_parts(
    served: Served, chromium: Any, db: testing.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes requests of 8 MB, and answers with at most 32 MB: here 1 MB."""
    monkeypatch.setattr("penstock.api.rest.MOST_BYTES", 1 << 20)
    access = token(add_user(db, "ann"))
    one, two = Browser(served, chromium, access), Browser(served, chromium, access)
    pushes: list[int] = []
    one.page.on(
        "request",
        lambda sent: pushes.append(len(sent.post_data or "")) if "push_changes" in sent.url else None,
    )
    one.context.set_offline(True)
    one.status("Offline")
    one.page.evaluate(
        "async () => { for (let n = 0; n < 6; n++) await change({ text: n + 'x'.repeat(400000) }) }"
    )
    one.page.set_default_timeout(60_000)
    one.context.set_offline(False)
    one.sync()
    assert max(pushes) < 1_100_000
    two.page.set_default_timeout(60_000)
    assert len(db.execute("select id from notes.notes")) == 6
    two.sync()
    assert two.texts() == one.texts() and len(two.texts()) == 6


def test_change_of_a_fast_clock_gets_the_servers_time(
    served: Served, chromium: Any, db: testing.Database
) -> None:
    """The server would refuse it, and the user could do nothing about it."""
    access = token(add_user(db, "ann"))
    fast = Browser(served, chromium, access, script="const now = Date.now; Date.now = () => now() + 86400000")
    fast.add("Tomorrow")
    fast.status("Synced")
    assert fast.stored("shelf") == []
    [row] = db.execute(
        "select text, updated_at < (extract(epoch from now()) + 60) * 1000 as is_now from notes.notes"
    )
    assert row == {"text": "Tomorrow", "is_now": True}


def test_refused_change_can_be_sent_again_or_discarded(
    served: Served, chromium: Any, db: testing.Database
) -> None:
    """It blocks no other change, and the browser ends with what the server has."""
    user = add_user(db, "ann")
    browser = Browser(served, chromium, token(user))
    browser.add("Kept")
    browser.status("Synced")
    db.execute("alter table notes.notes add constraint no_owls check (text !~ 'owl')")
    browser.edit("Kept", "Kept an owl")
    browser.add("Two owls")
    browser.add("A heron")
    browser.page.wait_for_selector("#shelf li:nth-child(2)")
    browser.wait_until_pushed()
    assert [row["text"] for row in db.execute("select text from notes.notes order by text")] == [
        "A heron",
        "Kept",
    ]
    db.execute("alter table notes.notes drop constraint no_owls")
    shelf = browser.page.locator("#shelf li")
    shelf.filter(has_text="Two owls").get_by_role("button", name="Try again").click()
    shelf.filter(has_text="Kept an owl").get_by_role("button", name="Discard").click()
    browser.page.wait_for_selector("#refused", state="hidden")
    browser.sync()
    texts = ["A heron", "Kept", "Two owls"]
    assert sorted(browser.texts()) == texts and browser.stored("outbox") == []
    assert [row["text"] for row in db.execute("select text from notes.notes order by text")] == texts


def test_deleted_note_can_be_restored_with_the_keyboard(
    served: Served, chromium: Any, db: testing.Database, axe: str
) -> None:
    """Also offline, and with the focus on the button for as long as the user needs; other browsers see both changes."""
    access = token(add_user(db, "ann"))
    one, two = Browser(served, chromium, access), Browser(served, chromium, access)
    for text in ("Otters", "Herons"):
        one.add(text)
        one.status("Synced")
    is_focused = "name => document.activeElement.textContent === name"
    one.page.locator("#notes li", has_text="Otters").get_by_role("button", name="Delete").focus()
    # A sync in the background leaves the keyboard where it is.
    one.page.evaluate("sync()")
    assert one.page.evaluate(is_focused, "Delete")
    one.page.keyboard.press("Enter")
    one.page.wait_for_function(is_focused, arg="Restore")
    one.wait_until_pushed()
    two.sync()
    assert two.texts() == one.texts() == ["Herons"]
    one.page.evaluate(axe)
    assert one.page.evaluate(RUN_AXE) == []
    one.page.keyboard.press("Enter")
    one.page.wait_for_selector("#notes li:has-text('Otters')")
    one.page.wait_for_function(is_focused, arg="Edit")
    one.wait_until_pushed()
    two.sync()
    assert two.texts() == one.texts() == ["Herons", "Otters"]
    one.context.set_offline(True)
    one.status("Offline")
    herons = one.page.locator("#notes li", has_text="Herons")
    herons.get_by_role("button", name="Delete").click()
    one.status("Offline: 1 change waiting")
    one.page.click("#restore")
    herons.wait_for()
    one.context.set_offline(False)
    one.sync()
    rows = db.execute("select text, deleted from notes.notes order by text")
    assert rows == [{"text": "Herons", "deleted": False}, {"text": "Otters", "deleted": False}]


def test_restore_ends_after_a_moment_or_a_sign_out(
    served: Served, chromium: Any, db: testing.Database
) -> None:
    browser = Browser(served, chromium, token(add_user(db, "ann")))
    for text in ("Otters", "Herons"):
        browser.add(text)
        browser.status("Synced")
    browser.page.clock.install()

    def delete(text: str) -> None:
        browser.page.locator("#notes li", has_text=text).get_by_role("button", name="Delete").click()
        browser.page.wait_for_selector("#undo", state="visible")

    delete("Otters")
    browser.page.clock.fast_forward(11_000)
    assert browser.page.is_visible("#undo"), "the button has the focus"
    browser.page.focus("#text")
    browser.page.clock.fast_forward(11_000)
    assert not browser.page.is_visible("#undo")
    delete("Herons")
    browser.page.click("#sign-out")
    browser.status("Signed out")
    assert not browser.page.is_visible("#undo")


def test_sync_of_one_user_does_not_end_as_another(
    served: Served, chromium: Any, db: testing.Database
) -> None:
    """Rows that were on their way when the users changed are not stored."""
    ann, bob = add_user(db, "ann"), add_user(db, "bob")
    held: list[Any] = []
    browser = Browser(served, chromium, token(ann), service_workers="block")
    browser.status("Synced")
    db.execute(
        "insert into notes.notes (user_id, id, text, created_at, updated_at) values (%s, 'n', 'of ann', 1, 1)",
        [ann],
    )
    browser.page.route("**/rest/v1/notes?*", lambda route: route.continue_() if held else held.append(route))
    with browser.page.expect_request("**/rest/v1/notes?*") as request:
        browser.page.click("#sync")
    while not (request.value and held):
        browser.page.wait_for_timeout(20)
    browser.page.click("#sign-out")
    browser.status("Signed out")
    browser.sign_in(token(bob))
    held[0].continue_()
    browser.add("of bob")
    browser.sync()
    assert browser.texts() == ["of bob"]
    assert [note["text"] for note in browser.stored("notes")] == ["of bob"]
    assert db.execute("select user_id from notes.notes where text = 'of bob'") == [{"user_id": bob}]


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
    assert not browser.page.is_visible("#sync") and not browser.page.is_visible("#sign-out")
    browser.context.set_offline(False)
    browser.sign_in(bob)
    browser.sync()
    assert browser.texts() == [] and db.execute("select id from notes.notes") == []


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told"])
def test_change_of_user_in_another_tab_saves_nothing_for_the_second_user(
    served: Served, chromium: Any, db: testing.Database, is_told: bool
) -> None:
    """An editor, a half-written note and a restore of the first user: in no library of the second one."""
    ann, bob = add_user(db, "ann"), add_user(db, "bob")
    one = Browser(served, chromium, token(ann))
    for text in ("Otters", "Herons"):
        one.add(text)
    one.page.locator("#notes li", has_text="Herons").get_by_role("button", name="Delete").click()
    one.wait_until_pushed()
    one.page.locator("#notes li", has_text="Otters").get_by_role("button", name="Edit").click()
    one.page.fill("#notes textarea", "private to ann")
    one.page.fill("#text", "half a sentence of ann")
    # A tab in the background may hear late of the change.
    two = one.tab("" if is_told else "BroadcastChannel.prototype.postMessage = () => {}")
    two.page.click("#sign-out")
    two.status("Signed out")
    two.sign_in(token(bob))
    two.status("Synced")
    two.add("of bob")
    if is_told:
        one.page.wait_for_selector("#notes li:has-text('of bob')")
        assert not one.page.is_visible("#undo") and not one.page.is_visible("#notes textarea")
    else:
        one.page.click("#notes form button.primary")
        one.page.wait_for_selector("#problem:has-text('another user')")
        one.page.wait_for_selector("#notes li:has-text('of bob')")
        one.page.evaluate("() => { removed = 'x'; return restore() }")
    assert one.page.input_value("#text") == ""
    one.page.evaluate("change({ text: 'typed after the change' })")
    for browser in (one, two):
        browser.sync()
        assert "of bob" in browser.texts() and "ann" not in str(browser.stored("notes"))
    rows = db.execute("select text, user_id from notes.notes where not deleted order by text")
    written = [(row["text"], row["user_id"]) for row in rows]
    assert written == [("Otters", ann), ("of bob", bob), ("typed after the change", bob)]


def test_typed_text_survives_the_end_of_the_token(
    served: Served, chromium: Any, db: testing.Database
) -> None:
    """The user signs in again and goes on: in the editor and in the form, and nothing was removed from the browser."""
    ann = add_user(db, "ann")
    browser = Browser(served, chromium, token(ann))
    for text in ("Otters", "Herons"):
        browser.add(text)
    browser.wait_until_pushed()
    browser.page.locator("#notes li", has_text="Otters").get_by_role("button", name="Edit").click()
    browser.page.fill("#notes textarea", "Otters hold hands")
    browser.page.fill("#text", "half a sentence")
    browser.page.route(
        "**/rest/v1/rpc/sync_state", lambda route: route.fulfill(status=401, json={"code": "x"})
    )
    browser.page.click("#sync")
    browser.status("Signed out")
    assert not browser.page.is_visible("#notes") and len(browser.stored("notes")) == 2
    browser.page.unroute("**/rest/v1/rpc/sync_state")
    browser.sign_in(token(ann))
    browser.page.click("#notes form button.primary")
    browser.page.click("#add button")
    browser.page.wait_for_selector("#notes li:has-text('half a sentence')")
    browser.wait_until_pushed()
    assert sorted(browser.texts()) == ["Herons", "Otters hold hands", "half a sentence"]
    rows = db.execute("select text from notes.notes order by text")
    assert [row["text"] for row in rows] == ["Herons", "Otters hold hands", "half a sentence"]


def test_encrypted_library_gets_no_readable_text(
    served: Served, chromium: Any, db: testing.Database, axe: str
) -> None:
    """Also not one that was written before the first sync; such a change is shown as refused. Deleting works."""
    ann = add_user(db, "ann")
    wire = HttpServer(served.base, "", lambda: token(ann))
    cipher = Cipher.generate()
    device = Store(cipher=cipher)
    device.save("notes", text="the secret of otters", tags=["Love"])
    device.save("notes", text="the secret of herons")
    sync(device, wire)
    browser = Browser(served, chromium, "none")
    browser.status("Signed out")
    browser.page.route("**/rest/v1/rpc/*", lambda route: route.abort())
    browser.sign_in(token(ann))
    browser.add("readable")
    browser.page.unroute("**/rest/v1/rpc/*")
    browser.sync()
    browser.page.wait_for_selector("#shelf li:has-text('locked')")
    assert browser.page.is_visible("#locked") and not browser.page.is_visible("#add")
    assert browser.page.get_by_role("button", name="Edit").count() == 0
    browser.page.get_by_role("button", name="Try again").click()
    browser.page.wait_for_selector("#problem:has-text('encrypted')")
    browser.page.evaluate("change({ text: 'also readable' })")
    browser.page.locator("#notes li", has_text="Encrypted").first.get_by_role("button", name="Delete").click()
    browser.wait_until_pushed()
    browser.page.get_by_role("button", name="Discard").click()
    browser.page.wait_for_selector("#refused", state="hidden")
    browser.page.evaluate(axe)
    assert browser.page.evaluate(RUN_AXE) == []
    rows = db.execute("select text, deleted from notes.notes order by deleted")
    assert [row["deleted"] for row in rows] == [False, True]
    assert all(row["text"].startswith("enc:v1:") for row in rows)
    sync(device, wire)
    assert len(device.rows("notes")) == 1 and "the secret of" in device.rows("notes")[0]["text"]
    device.close()


def test_two_tabs_shelve_a_refused_change_once(served: Served, chromium: Any, db: testing.Database) -> None:
    """Both tabs push the same outbox at the same time."""
    one = Browser(served, chromium, token(add_user(db, "ann")))
    one.status("Synced")
    db.execute("alter table notes.notes add constraint no_owls check (text !~ 'owl')")
    two = one.tab()
    held: list[Any] = []
    for tab in (one, two):
        tab.page.route("**/rest/v1/rpc/push_changes", lambda route: held.append(route))
    one.page.evaluate("change({ text: 'owls' })")
    for tab in (one, two):
        tab.page.evaluate("void sync()")
    while len(held) < 2:
        two.page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    one.page.evaluate("running")
    two.page.evaluate("running")
    assert len(one.stored("shelf")) == 1 and one.stored("outbox") == []
