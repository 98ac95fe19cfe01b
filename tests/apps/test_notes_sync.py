"""Devices of the notes app and the server: what travels, what does not, and that all converge."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from faults import sync_histories
from faults.sync_histories import SqlServer, new_user
from penstock import App, testing
from penstock.apps.notes.device import (
    Cipher,
    HttpServer,
    Offline,
    Store,
    build_export,
    discovery,
    keys,
    outbox,
    sync,
)
from penstock.apps.notes.device import __main__ as terminal
from penstock.apps.notes.device.crypto import WrongKey
from penstock.apps.notes.device.http import ServerError
from penstock.apps.notes.device.store import Record
from penstock.apps.notes.device.sync import ServerState, pull, retry
from penstock.apps.notes.device.tables import SYNCED
from penstock.postgres import db
from tests.api.conftest import settings_on, without_upkeep
from tests.api.rest.conftest import Person, Site, served
from tests.apps.notes_store import fill
from tests.conftest import Eventually

notes: App = pytest.importorskip("penstock.apps.notes.app").app


@pytest.fixture(scope="module")
def library(server: testing.Server) -> Iterator[testing.Database]:
    """A database with the app."""
    with server.database() as made:
        notes.migrate(made.dsn)
        yield made


@pytest.fixture(scope="module")
def conn(library: testing.Database) -> Iterator[db.SyncConnection]:
    with db.connect(library.dsn, name="test") as made:
        yield made


@pytest.fixture(scope="module")
def site(library: testing.Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The app behind a socket."""
    with ExitStack() as stack:
        settings = settings_on(library, tmp_path_factory.mktemp("home"))
        with without_upkeep():
            yield stack.enter_context(served(library, settings, Eventually(), notes))


@pytest.fixture
def user(conn: db.SyncConnection) -> uuid.UUID:
    return new_user(conn)


@pytest.fixture
def server_of(conn: db.SyncConnection, user: uuid.UUID) -> SqlServer:
    return SqlServer(conn, user)


@pytest.fixture
def stores() -> Iterator[list[Store]]:
    made = [Store(), Store()]
    yield made
    for store in made:
        store.close()


class Recorder(HttpServer):
    """Notes everything that leaves the device."""

    def __init__(self, site: Site, person: Person) -> None:
        super().__init__(site.url, site.anon_key, lambda: person.token)
        self.sent: list[str] = []

    def _send(self, url: str, body: Any, method: str | None) -> Any:
        self.sent.append(f"{method} {url} {json.dumps(body)}")
        return super()._send(url, body, method)


def content(store: Store) -> dict[str, Any]:
    """What is synced of a device."""
    return {
        t: [{k: r[k] for k in spec.synced} for r in store.rows(t, with_deleted=True)]
        for t, spec in SYNCED.items()
    }


def whole_database(conn: db.SyncConnection) -> str:
    """Every row of every table that Penstock and the app have, as text."""
    tables = conn.execute("""
        select c.oid::regclass::text as name from pg_class c where c.relkind in ('r', 'p')
          and c.relnamespace in ('penstock'::regnamespace, 'notes'::regnamespace, 'auth'::regnamespace)""").fetchall()
    found = [
        conn.execute(f"select t::text as line from {row['name']} t".encode()).fetchall() for row in tables
    ]
    assert len(tables) > 80
    return "\n".join(row["line"] for rows in found for row in rows)


class TestHttp:
    """The wire, with the library's own client."""

    def test_two_devices_exchange_every_table(self, site: Site, stores: list[Store]) -> None:
        """R2.8/pages, R2.8/tombstones, R2.14/covers: rows and tombstones of all seven tables reach another device."""
        ann = site.join("ann")
        one, two = stores
        fill(one)
        report = sync(one, Recorder(site, ann))
        assert (report.applied, report.refused, report.stale) == (9, 0, 0), outbox.shelf(one.conn)
        assert sync(two, Recorder(site, ann)).pulled == 9
        assert content(one) == content(two)
        assert two.rows("books")[0]["cover_url"] == "https://x/c.jpg"
        two.delete("books", "b")
        sync(two, Recorder(site, ann))
        sync(one, Recorder(site, ann))
        assert content(one) == content(two) and [note["id"] for note in one.rows("notes")] == ["m"]
        # The image itself stays on the device that has it.
        assert one.rows("notes", with_deleted=True)[1]["image_data_url"] == "data:canary"
        assert two.rows("notes", with_deleted=True)[1]["image_data_url"] is None
        # Nothing new: one request.
        quiet = Recorder(site, ann)
        assert sync(one, quiet).pulled == 0 and len(quiet.sent) == 1

    def test_nothing_local_leaves_the_device(
        self, site: Site, stores: list[Store], conn: db.SyncConnection, caplog: pytest.LogCaptureFixture
    ) -> None:
        """R2.8/local-only: canaries in everything that is local are in no request, no export, no log and no table."""
        caplog.set_level(logging.DEBUG)
        ann = site.join("ann")
        store, wire = stores[0], Recorder(site, ann)
        fill(store)
        store.unlock(Cipher.generate())
        store.save("notes", id="n", image_data_url="data:canary-image", text="public text")
        store.set_meta("apiKey", "canary-key")
        store.add_embedding("n", b"canary-vector", model="canary-model", source_hash="canary-hash")
        job = discovery.start(store, origin="canary-origin")
        sync(store, wire)
        discovery.run(
            store,
            job,
            lambda found: {n["id"]: {"core": ["Time"], "supporting": []} for n in found},
            frozenset(),
        )
        discovery.confirm_preview(store, job, frozenset())
        store.delete("notes", "m")
        sync(store, wire)
        everything = "\n".join(
            [*wire.sent, json.dumps(build_export(store)), caplog.text, whole_database(conn)]
        )
        assert "Walden" in everything and "canary" not in everything

    def test_encrypted_text_is_nowhere_on_the_server(self, site: Site, conn: db.SyncConnection) -> None:
        """R2.13/encryption: the server and its whole database have ciphertext; a second device reads the text."""
        ann, cipher = site.join("ann"), Cipher.generate()
        one, two, wire = Store(cipher=cipher), Store(), Recorder(site, ann)
        one.save("notes", id="n", text="the secret of kestrels", tags=["Time"])
        assert sync(one, wire).applied == 1
        assert "kestrels" not in whole_database(conn) + "".join(wire.sent)
        sync(two, wire)
        assert two.search("kestrels") == [] and two.rows("notes")[0]["text"].startswith("enc:v1:")
        two.unlock(cipher)
        assert [note["text"] for note in two.search("kestrels")] == ["the secret of kestrels"]
        # Replays send the same ciphertext: no device is woken.
        before = wire.state()
        [entry] = [{**two.rows("notes")[0], "text": wire.pull("notes", 0, 10)[0]["text"]}]  # type: ignore[index]
        del entry["image_data_url"]
        wire.push([{"table": "notes", "record": entry}])
        assert wire.state().tables == before.tables
        one.close()
        two.close()

    def test_new_device_sends_no_plain_text_into_an_encrypted_library(
        self, site: Site, stores: list[Store], conn: db.SyncConnection
    ) -> None:
        """R2.13/encryption: what it wrote before its first sync is refused, and goes sealed once it has the key."""
        ann, cipher = site.join("ann"), Cipher.generate()
        wire = Recorder(site, ann)
        stores[0].unlock(cipher)
        stores[0].save("notes", id="sealed", text="a secret")
        sync(stores[0], wire)
        new = stores[1]
        new.save("books", id="b", title="Walden")
        new.save("notes", id="n", book_id="b", text="the nest of the kestrel")
        report = sync(new, wire)
        assert (report.applied, report.refused) == (1, 1)
        assert "kestrel" not in whole_database(conn) + "".join(wire.sent)
        [refused] = outbox.shelf(new.conn)
        assert refused.code == "locked" and new.search("kestrel")
        with pytest.raises(ValueError, match="unlock this device"):
            retry(new, refused.number)
        assert sync(new, wire).refused == 0 and outbox.shelf(new.conn) == [refused]
        new.unlock(cipher)
        assert retry(new, refused.number) and sync(new, wire).applied == 1
        assert "kestrel" not in whole_database(conn) + "".join(wire.sent)
        sync(stores[0], wire)
        assert content(stores[0]) == content(new) and stores[0].search("kestrel")

    def test_a_device_that_is_offline_loses_nothing(self, stores: list[Store]) -> None:
        store = stores[0]
        store.save("notes", id="n", text="offline")
        with pytest.raises(Offline):
            sync(store, HttpServer("http://127.0.0.1:9", "key", lambda: "token", timeout=1))
        assert len(outbox.pending(store.conn)) == 1
        with pytest.raises(ValueError, match="http"):
            HttpServer("file:///etc/passwd", "key", lambda: "token")

    def test_a_bad_token_is_an_error_with_a_code(self, site: Site, stores: list[Store]) -> None:
        with pytest.raises(ServerError) as seen:
            sync(stores[0], HttpServer(site.url, site.anon_key, lambda: "no token"))
        assert seen.value.status == 401

    def test_large_notes_travel_in_smaller_parts(
        self, site: Site, stores: list[Store], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server takes requests of 8 MB, and answers with at most 32 MB."""
        monkeypatch.setattr("penstock.api.rest.MOST_BYTES", 2 << 20)
        ann = site.join("ann")
        one, two = stores
        for n in range(24):
            one.save("notes", id=f"n{n:02}", text=f"{n} " + "x" * 450_000)
        wire = Recorder(site, ann)
        assert sync(one, wire).applied == 24
        pushes = [sent for sent in wire.sent if "push_changes" in sent]
        assert len(pushes) == 3 and max(map(len, pushes)) < 5 << 20
        assert sync(two, Recorder(site, ann)).pulled == 24 and content(one) == content(two)

    def test_a_table_that_the_server_lacks_is_skipped(self, site: Site, stores: list[Store]) -> None:
        """R2.14/missing-table: its cursor stays, the other tables sync, and its rows come once it exists."""
        ann = site.join("ann")
        wire = Recorder(site, ann)
        assert wire.pull("no_such_table", 0, 10) is None
        one, two = stores
        fill(one)
        sync(one, wire)
        state = wire.state()

        class Older(Recorder):
            """A server before the migration that adds lenses."""

            def state(self) -> ServerState:
                tables = {name: t for name, t in state.tables.items() if name != "lenses"}
                return ServerState(tables, state.server_ms)

        sync(two, Older(site, ann))
        assert two.rows("lenses") == [] and two.get_meta("lastSeq:lenses") is None and two.rows("books")
        sync(two, wire)
        assert content(two) == content(one)


class TestKeys:
    """The master key on several devices."""

    def test_a_key_is_enrolled_unlocked_transferred_and_revoked(self, site: Site) -> None:
        """The server stores blobs that it cannot open."""
        ann, bob = site.join("ann"), site.join("bob")
        wire, cipher = Recorder(site, ann), Cipher.generate()
        blob = keys.enrol(wire, cipher, "correct horse", "Linux · Firefox")
        assert keys.unlock(wire, "correct horse") == cipher
        with pytest.raises(WrongKey):
            keys.unlock(wire, "wrong")
        code = keys.offer(wire, cipher)
        assert keys.accept(wire, str(ann.id), code.lower()) == cipher
        with pytest.raises(WrongKey):
            keys.accept(wire, str(ann.id), "AAAAA-AAAAA-AAAAA-AAAAA")
        with pytest.raises(ServerError):
            keys.accept(Recorder(site, bob), str(ann.id), code)
        with pytest.raises(WrongKey):
            keys.accept(Recorder(site, bob), str(bob.id), code)
        keys.revoke(wire, blob)
        with pytest.raises(WrongKey):
            keys.unlock(wire, "correct horse")

    def test_an_enrolled_device_reports_its_syncs(self, site: Site, stores: list[Store]) -> None:
        """With the first request of a sync, and no other; an older server without the function still syncs."""
        ann = site.join("ann")
        wire = Recorder(site, ann)
        fill(stores[0])
        sync(stores[0], wire)
        wire.device_id = keys.enrol(wire, Cipher.generate(), "correct horse", "Linux · Firefox")

        def last_sync() -> Any:
            [row] = wire.call("device_list?select=last_sync_at,owner", None)
            assert row["owner"] == "ann"
            return row["last_sync_at"]

        class Older(Recorder):
            def call(self, path: str, body: Any, *, method: str | None = None) -> Any:
                return super().call(path.replace("start_sync", "start_sync_later"), body, method=method)

        older = Older(site, ann)
        older.device_id = wire.device_id
        assert sync(stores[1], older).pulled == 9 and last_sync() is None
        wire.sent.clear()
        assert sync(stores[1], wire).pulled == 0 and last_sync() is not None
        assert [line.rpartition("/")[2].partition(" ")[0] for line in wire.sent[:-1]] == ["start_sync"]


class TestSync:
    """Cursors, times and interruptions, with the server's functions called in SQL."""

    def test_a_missing_cursor_starts_one_full_pull(self, server_of: SqlServer, stores: list[Store]) -> None:
        """R2.14/cold-start"""
        one, two = stores
        fill(one)
        sync(one, server_of)
        assert sync(two, server_of).pulled == 9
        two.conn.execute("delete from meta where key = 'lastSeq:books'")
        two.conn.execute("delete from books")
        assert sync(two, server_of).pulled == 2 and sync(two, server_of).pulled == 0
        assert content(two) == content(one) and two.get_meta("lastSyncAt")

    def test_rows_deleted_for_good_disappear(
        self, conn: db.SyncConnection, user: uuid.UUID, server_of: SqlServer, stores: list[Store]
    ) -> None:
        one, two = stores
        for store in stores:
            store.save("notes", id="both", text="x")
        one.save("notes", id="n", text="x")
        for store in (one, two, one):
            sync(store, server_of)
        two.save("notes", id="unsent", text="y")
        conn.execute("delete from notes.notes where user_id = %s and id <> 'unsent'", [user])
        sync(two, server_of)
        assert [note["id"] for note in two.rows("notes")] == ["unsent"]
        sync(one, server_of)
        assert content(one) == content(two)

    def test_a_clock_that_is_ahead_is_corrected_by_the_server(
        self, server_of: SqlServer, stores: list[Store]
    ) -> None:
        fast = Store(now_ms=lambda: 4_000_000_000_000)
        fast.save("books", id="b", title="from 2096")
        report = sync(fast, server_of)
        assert (report.applied, report.refused) == (1, 0)
        assert abs(fast.rows("books")[0]["updated_at"] - server_of.state().server_ms) < 60_000
        sync(stores[0], server_of)
        stores[0].save("books", id="b", title="corrected")
        sync(stores[0], server_of)
        sync(fast, server_of)
        assert fast.rows("books")[0]["title"] == "corrected"
        fast.close()

    def test_edits_in_the_same_millisecond_converge(self, server_of: SqlServer) -> None:
        now = server_of.state().server_ms
        one, two = Store(now_ms=lambda: now), Store(now_ms=lambda: now)
        one.save("books", id="b", title="one")
        two.save("books", id="b", title="two")
        for store in (one, two, one, two):
            sync(store, server_of)
        assert content(one) == content(two) and one.rows("books")[0]["title"] == "two"
        one.close()
        two.close()

    def test_a_newer_row_of_the_server_ends_a_queued_delete(
        self, server_of: SqlServer, stores: list[Store]
    ) -> None:
        """Else the delete, older than the row, would stick to the next edit of the row."""
        one, two = stores
        one.save("books", id="b", title="first")
        sync(one, server_of)
        sync(two, server_of)
        one.delete("books", "b")
        now = server_of.state().server_ms
        record = {**one.opened("books", two.rows("books")[0]), "title": "newer", "updated_at": now + 200_000}
        server_of.push([{"table": "books", "record": record}])
        pull(one, server_of, "books", server_of.state())
        assert one.rows("books")[0]["title"] == "newer"
        one.save("books", id="b", title="edited")
        sync(one, server_of)
        assert [book["title"] for book in one.rows("books")] == ["edited"]

    def test_edit_of_a_deleted_row_leaves_it_deleted(self, server_of: SqlServer, stores: list[Store]) -> None:
        """On the server, too: a device pushes the row that it has, also after the delete has left its outbox."""
        one, two = stores
        one.save("books", id="b", title="first")
        one.delete("books", "b")
        sync(one, server_of)
        one.save("books", id="b", title="second")
        for store in (one, two, one):
            sync(store, server_of)
        assert content(one) == content(two)
        assert [(row["title"], row["deleted"]) for row in two.rows("books", with_deleted=True)] == [
            ("second", True)
        ]

    def test_a_refused_row_blocks_nothing(self, server_of: SqlServer, stores: list[Store]) -> None:
        store = stores[0]
        store.save("collection_memberships", collection_id="none", note_id="none")
        store.save("books", id="b", title="fine")
        report = sync(store, server_of)
        assert (report.applied, report.refused) == (1, 1)
        [refused] = outbox.shelf(store.conn)
        assert (refused.code, refused.record["id"]) == ("missing_parent", "none:none")
        assert sync(store, server_of).refused == 0

    def test_large_libraries_come_in_pages(self, server_of: SqlServer, stores: list[Store]) -> None:
        one, two = stores
        with one.transaction():
            for n in range(1100):
                one.save("notes", id=f"n{n:04}", text=f"note {n}")
        assert sync(one, server_of).applied == 1100
        assert sync(two, server_of).pulled == 1100 and content(one) == content(two)

    @pytest.mark.parametrize("is_answered", [False, True])
    def test_a_device_may_die_at_every_request(
        self, conn: db.SyncConnection, stores: list[Store], is_answered: bool
    ) -> None:
        """R2.8/replays: it dies before a request, or after the server handled it, and syncs again."""

        class Dying:
            """Dies at one request."""

            def __init__(self, server: SqlServer, at: int) -> None:
                self.server, self.left = server, at

            def _do(self, work: Any) -> Any:
                self.left -= 1
                if self.left == 0 and not is_answered:
                    raise KeyboardInterrupt
                answer = work()
                if self.left == 0:
                    raise KeyboardInterrupt
                return answer

            def state(self) -> ServerState:
                return self._do(self.server.state)

            def push(self, changes: list[dict[str, Any]]) -> Any:
                return self._do(lambda: self.server.push(changes))

            def pull(self, table: str, after: int, limit: int) -> list[Record] | None:
                return self._do(lambda: self.server.pull(table, after, 3))

        died = 0
        for at in range(1, 16):
            server = SqlServer(conn, new_user(conn))
            one, two = Store(), Store()
            fill(one)
            sync(one, server)
            fill(two)
            try:
                sync(two, Dying(server, at))
            except KeyboardInterrupt:
                died += 1
            for store in (two, one, two):
                sync(store, server)
            assert content(one) == content(two) and outbox.pending(two.conn) == []
            rows = {
                t: [{k: r[k] for k in s.synced} for r in server.pull(t, 0, 100) or []]
                for t, s in SYNCED.items()
            }
            assert {t: sorted(each, key=lambda r: r["id"]) for t, each in rows.items()} == content(two)
            one.close()
            two.close()
        assert died > 8


def test_device_in_the_terminal(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R2.8/export: two libraries with one key add, sync, search, export and import; errors are one line."""
    ann = site.join("ann")

    def run(library: str, *words: str) -> tuple[int, str]:
        code = terminal.main(
            ["--library", str(tmp_path / library), "--key-file", str(tmp_path / "key"), *words]
        )
        written = capsys.readouterr()
        # The server of the test logs to the same stream.
        lines = (written.out + written.err).splitlines(keepends=True)
        return code, "".join(line for line in lines if "[info" not in line)

    assert run("a", "sync") == (1, "error: set NOTES_URL and NOTES_TOKEN to sync\n")
    monkeypatch.setenv("NOTES_TOKEN", ann.token)
    monkeypatch.setenv("NOTES_KEY", site.anon_key)
    monkeypatch.setenv("NOTES_URL", "http://127.0.0.1:9")
    assert run("a", "add", "otters hold hands", "--tag", "Love")[0] == 0
    code, said = run("a", "sync")
    assert code == 1 and said.startswith("error: the server cannot be reached") and said.count("\n") == 1
    monkeypatch.setenv("NOTES_URL", site.url)
    assert run("a", "sync") == (0, "Pushed 1, pulled 1, refused 0.\n")
    assert run("b", "sync") == (0, "Pushed 0, pulled 1, refused 0.\n")
    assert "otters hold hands #Love" in run("b", "search", "ott")[1]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    export = str(tmp_path / "export.json")
    assert (
        run("b", "export", export)[0] == 0
        and run("b", "import", export, "--merge")[1] == "Imported 0 rows.\n"
    )
    assert (
        run("b", "add", "gone")[0] == 0 and run("b", "import", export, "--replace")[1] == "Imported 1 rows.\n"
    )
    assert "otters" in run("b", "ls")[1] and "gone" not in run("b", "ls")[1]
    (tmp_path / "export.json").write_text("{}")
    assert run("b", "import", export, "--replace") == (1, "error: this is not an export of a library\n")
    (tmp_path / "key").write_text("AAAA")
    assert "must contain 32 bytes" in run("b", "ls")[1]


def test_terminal_edits_notes_and_answers_refused_changes(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R2.8/export: a discarded change makes room for the server's row; one that is sent again arrives."""
    ann = site.join("ann")
    monkeypatch.setenv("NOTES_URL", site.url)
    monkeypatch.setenv("NOTES_TOKEN", ann.token)

    def run(library: str, *words: str) -> str:
        terminal.main(["--library", str(tmp_path / library), *words])
        written = capsys.readouterr()
        return "".join(
            line for line in (written.out + written.err).splitlines(keepends=True) if "[info" not in line
        )

    note_id = run("a", "add", "otters hold hands").split()[1].rstrip(".")
    other = run("a", "add", "herons").split()[1].rstrip(".")
    assert run("a", "edit", "none", "x") == "error: there is no note none\n"
    assert run("a", "restore", note_id) == f"error: there is no deleted note {note_id}\n"
    assert run("a", "rm", other) == "" and run("a", "ls", "--deleted") == f"{other}  herons\n"
    assert other not in run("a", "ls") and run("a", "restore", other) == "" and run("a", "sync")
    site.db.execute("alter table notes.notes add constraint no_owls check (text !~ 'owl')")
    try:
        run("a", "edit", note_id, "owls hold hands")
        run("a", "edit", other, "owls")
        said = run("a", "sync")
        assert "refused 2." in said and f"refused 1: notes {note_id}: " in said and "(no_owls)" in said
    finally:
        site.db.execute("alter table notes.notes drop constraint no_owls")
    with ExitStack() as stack:
        store = Store(tmp_path / "a")
        stack.callback(store.close)
        store.put("notes", {**(store.get("notes", note_id) or {}), "image_data_url": "data:kept"})
    assert run("a", "refused", "--discard", "7") == "error: there is no refused change 7\n"
    assert run("a", "refused", "--discard", "1") == run("a", "refused", "--retry", "2") == ""
    assert run("a", "refused") == ""
    assert run("a", "sync").startswith("Pushed 1, pulled 2")
    assert sorted(run("a", "ls").splitlines()) == sorted([f"{note_id}  otters hold hands", f"{other}  owls"])
    with ExitStack() as stack:
        store = Store(tmp_path / "a")
        stack.callback(store.close)
        assert (store.get("notes", note_id) or {})["image_data_url"] == "data:kept"


def test_no_client_writes_change_numbers(conn: db.SyncConnection) -> None:
    """S69: nobody but the trigger decides what devices have read."""
    query = """
        select count(*) as tables, bool_or(has_column_privilege('authenticated', relation, 'change_seq', 'insert')
          or has_column_privilege('authenticated', relation, 'change_seq', 'update')) as is_granted
        from penstock._synced_tables('notes')"""
    assert conn.execute(query).fetchall() == [{"tables": 7, "is_granted": False}]


def test_a_device_may_die_between_two_rows(server_of: SqlServer, stores: list[Store]) -> None:
    """R2.8/pages: a cursor moves with its rows, or not at all."""
    one, two = stores
    fill(one)
    sync(one, server_of)
    put, left = two.put, 0

    def dying(table: str, record: Record) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        put(table, record)

    two.put = dying  # type: ignore[method-assign]
    for at in range(1, 10):
        left = at
        with pytest.raises(KeyboardInterrupt):
            sync(two, server_of)
        two.conn.executescript(";".join(f"delete from {t}" for t in (*SYNCED, "meta")))
    left = 4
    with pytest.raises(KeyboardInterrupt):
        sync(two, server_of)
    sync(two, server_of)
    assert content(two) == content(one)


def test_random_histories_of_three_devices_converge(conn: db.SyncConnection) -> None:
    """R2.8/replays: `python -m faults.sync_histories` runs 10,000 of them."""
    problems = {seed: found for seed in range(12) if (found := sync_histories.check(conn, seed))}
    assert problems == {}
