"""A device of the notes app without a server: rows, outbox, encryption, export and search."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.apps.notes.device import (
    Cipher,
    HttpServer,
    ServerError,
    Store,
    crypto,
    discovery,
    outbox,
    tag_steps,
)
from penstock.apps.notes.device.export import InvalidExport, build_export, import_merge, import_replace
from penstock.apps.notes.device.outbox import Entry, collapse
from penstock.apps.notes.device.sync import retry
from penstock.apps.notes.device.tables import CLEARED_BY_REPLACE, LOCAL_ONLY, SCHEMA_VERSION, SYNCED
from tests.apps.notes_store import Ticking, fill

DEVICE = Path(__file__).parents[2] / "penstock/apps/notes/device"


def queued(store: Store) -> list[tuple[str, str, Any]]:
    changes = collapse(outbox.pending(store.conn))
    return [(c.table, c.record["id"], c.record["deleted"]) for c in changes]


class TestOutbox:
    """R2.8/collapse: one change per record, in order, and a delete sticks."""

    def test_later_fields_replace_earlier_ones(self) -> None:
        entries = [
            Entry(1, "notes", "n", {"id": "n", "text": "a", "page": "1", "updated_at": 1}),
            Entry(3, "books", "b", {"id": "b", "title": "B", "updated_at": 3}),
            Entry(2, "notes", "n", {"id": "n", "text": "b", "updated_at": 2}),
        ]
        book, note = collapse(entries)
        assert (book.table, note.table) == ("books", "notes")
        assert note.record == {"id": "n", "text": "b", "page": "1", "updated_at": 2, "deleted": False}
        assert note.last_seq == 2

    def test_a_delete_sticks_until_an_undelete(self) -> None:
        entries = [
            Entry(1, "notes", "n", {"id": "n", "text": "a", "updated_at": 1}),
            Entry(2, "notes", "n", {"id": "n", "deleted": True, "updated_at": 2}),
            Entry(3, "notes", "n", {"id": "n", "text": "b", "updated_at": 3}),
        ]
        [change] = collapse(entries)
        assert change.record == {"id": "n", "text": "b", "deleted": True, "updated_at": 3}
        [change] = collapse(
            [*entries, Entry(4, "notes", "n", {"id": "n", "deleted": False, "updated_at": 4})]
        )
        assert change.record["deleted"] is False

    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(st.tuples(st.sampled_from(list(SYNCED)), st.sampled_from("abc"), st.booleans() | st.none()))
    )
    def test_collapse_is_one_change_per_record_with_parents_first(self, given: list[Any]) -> None:
        entries = [
            Entry(
                n, table, id, {"id": id, "updated_at": n, **({} if deleted is None else {"deleted": deleted})}
            )
            for n, (table, id, deleted) in enumerate(given)
        ]
        changes = collapse(entries)
        keys = [(c.table, c.record["id"]) for c in changes]
        assert sorted(keys) == sorted({(table, id) for table, id, _ in given})
        order = [list(SYNCED).index(c.table) for c in changes]
        assert order == sorted(order)
        for change in changes:
            said = [
                d
                for table, id, d in given
                if (table, id) == (change.table, change.record["id"]) and d is not None
            ]
            assert change.record["deleted"] is (said[-1] if said else False)

    def test_a_write_and_its_change_are_one_transaction(self, store: Store) -> None:
        with pytest.raises(RuntimeError), store.transaction():
            store.save("books", id="b", title="Walden")
            raise RuntimeError
        assert store.get("books", "b") is None and outbox.pending(store.conn) == []

    def test_a_refused_change_waits_on_the_shelf_and_can_be_sent_again(self, store: Store) -> None:
        store.save("books", id="b", title="Walden")
        [change] = collapse(outbox.pending(store.conn))
        outbox.shelve(store.conn, change, "not_allowed", "no")
        assert outbox.pending(store.conn) == []
        [refused] = outbox.shelf(store.conn)
        assert (refused.table, refused.record["id"], refused.code) == ("books", "b", "not_allowed")
        assert retry(store, refused.number) and not retry(store, refused.number)
        assert queued(store) == [("books", "b", False)] and outbox.shelf(store.conn) == []


class TestRows:
    """Edits, deletes and cascades on the device."""

    def test_an_edit_is_newer_than_what_was_edited(self, store: Store) -> None:
        """A device with a slow clock must not lose its own edit of a row that it has seen."""
        store.put("books", {"id": "b", "title": "old", "updated_at": 9_000_000_000_000, "deleted": False})
        assert store.save("books", id="b", title="new")["updated_at"] == 9_000_000_000_001

    def test_a_delete_deletes_children_that_are_not_newer(self, store: Store) -> None:
        book = store.save("books", title="Walden")
        old, new = (store.save("notes", id=id, book_id=book["id"], text=id) for id in ("old", "new"))
        store.put("notes", {**new, "updated_at": 9_000_000_000_000})
        shelf = store.save("collections", name="c")
        member = store.save("collection_memberships", collection_id=shelf["id"], note_id="old")
        link = store.save("note_links", from_note_id="new", to_note_id="old", relation_type="supports")
        store.delete("books", book["id"])
        gone = [store.get(t, i) for t, i in (("books", book["id"]), ("notes", "old"), ("note_links", link["id"]),
                                             ("collection_memberships", member["id"]))]  # fmt: skip
        assert all(row and row["deleted"] for row in gone)
        assert len({row["updated_at"] for row in gone if row}) == 1
        assert [row["id"] for row in store.rows("notes")] == ["new"]
        assert ("notes", old["id"], True) in queued(store) and ("notes", "new", False) in queued(store)
        store.undelete("books", book["id"])
        assert [row["id"] for row in store.rows("books")] == [book["id"]]

    def test_an_edit_of_a_deleted_row_leaves_it_deleted(self, store: Store) -> None:
        store.save("notes", id="n", text="a")
        store.delete("notes", "n")
        store.save("notes", id="n", text="b")
        assert store.rows("notes") == [] and queued(store) == [("notes", "n", True)]

    def test_memberships_have_the_same_id_everywhere_and_canon_is_reserved(self, store: Store) -> None:
        for _ in range(2):
            made = store.save("collection_memberships", collection_id="c", note_id="n")
        assert made["id"] == "c:n" and len(store.rows("collection_memberships")) == 1
        with pytest.raises(ValueError, match="reserved"):
            store.save("lenses", id="canon:power", name="x")
        for table, values in (("books", {"color": "red"}), ("nothing", {})):
            with pytest.raises(ValueError, match="unknown"):
                store.save(table, **values)

    def test_several_notes_may_have_the_same_source(self, store: Store) -> None:
        """R2.14/duplicate-sources: on the device; the server's index is not unique either."""
        for id in ("a", "b"):
            store.save("notes", id=id, source="readwise", source_id="7")
        assert len(store.rows("notes")) == 2

    def test_search_finds_beginnings_of_words_in_live_notes(self, store: Store) -> None:
        store.save("notes", id="a", text="Die Bäume im Wald")
        store.save("notes", id="b", text='Trees "quoted" OR not')
        store.save("notes", id="c", text="Wald ohne Wiederkehr")
        store.delete("notes", "c")
        assert [note["id"] for note in store.search("baum")] == ["a"]
        assert [note["id"] for note in store.search('"quo OR')] == ["b"]
        assert [note["id"] for note in store.search("wal")] == ["a"]
        assert store.search("  ") == [] == store.search("no-such*(")
        store.save("notes", id="a", text="changed")
        assert store.search("baum") == []

    def test_renaming_an_idea_renames_the_tag_in_all_notes(self, store: Store) -> None:
        store.save("custom_ideas", id="i", name="Slowness")
        store.save("notes", id="a", tags=["Slowness", "Time"])
        store.save("notes", id="b", tags=["Patience", "Slowness"])
        assert store.rename_idea("i", "Patience") == 2
        assert [note["tags"] for note in store.rows("notes")] == [["Patience", "Time"], ["Patience"]]

    def test_a_file_of_another_version_is_handled(self, tmp_path: Path) -> None:
        """R2.14/tag-migrations: each step runs once on files of older versions; newer files are refused."""
        store = Store(tmp_path / "a.db", now_ms=Ticking())
        store.save("notes", id="n", tags=["Angel", "Spirit", "Signs and Symbols", "own"])
        store.conn.execute("pragma user_version = 12")
        store.close()
        again = Store(tmp_path / "a.db", now_ms=Ticking())
        [note] = again.rows("notes")
        # Version 12 has step 11 behind it.
        assert note["tags"] == ["Spirit", "Signs and Symbols", "own"]
        assert len(outbox.pending(again.conn)) == 2
        again.close()
        third = Store(tmp_path / "a.db")
        assert len(outbox.pending(third.conn)) == 2
        third.conn.execute(f"pragma user_version = {SCHEMA_VERSION + 1}")
        third.close()
        with pytest.raises(ValueError, match="reads up to 17"):
            Store(tmp_path / "a.db")
        assert max(tag_steps.STEPS) <= SCHEMA_VERSION


class TestEncryption:
    """The master key, sealed texts, and vectors."""

    def test_a_text_opens_with_its_key_and_record_only(self) -> None:
        cipher = Cipher.generate()
        sealed = cipher.seal("canary", "note:1")
        assert sealed.startswith("enc:v1:") and "canary" not in sealed
        assert cipher.seal("canary", "note:1") != sealed, "a nonce is used once"
        assert cipher.seal(sealed, "note:1") == sealed
        assert cipher.open(sealed, "note:1") == "canary"
        for other, bound_to in ((Cipher.generate(), "note:1"), (cipher, "note:2")):
            with pytest.raises(crypto.WrongKey):
                other.open(sealed, bound_to)
        with pytest.raises(crypto.WrongKey):
            cipher.open(sealed[:-4] + "AAA=", "note:1")
        assert str(cipher.key) not in repr(cipher)

    def test_a_wrapped_key_opens_with_its_passphrase_and_kind_only(self) -> None:
        cipher = Cipher.generate()
        blob = crypto.wrap(cipher, "correct horse")
        assert crypto.unwrap(blob, "correct horse") == cipher
        for wrong, kind in (("battery", "pin-v1"), ("correct horse", "transfer-v1")):
            with pytest.raises(crypto.WrongKey):
                crypto.unwrap(blob, wrong, kind)
        for hostile in ("", "AAAA", crypto._encode(b'{"n": 1073741824, "salt": "", "nonce": "", "key": ""}')):
            with pytest.raises(crypto.WrongKey):
                crypto.unwrap(hostile, "x")
        assert re.fullmatch(r"([A-Z2-9]{5}-){3}[A-Z2-9]{5}", crypto.transfer_code())

    def test_the_outbox_holds_ciphertext_only(self) -> None:
        store = Store(now_ms=Ticking(), cipher=Cipher.generate())
        store.save("notes", id="n", text="a canary in the coal mine", tags=["Time"])
        assert [note["id"] for note in store.search("canary")] == ["n"]
        [(payload,)] = store.conn.execute("select payload from outbox").fetchall()
        assert "canary" not in payload and json.loads(payload)["text"].startswith("enc:v1:")
        store.close()

    def test_a_locked_device_keeps_ciphertext_and_opens_it_later(self) -> None:
        cipher = Cipher.generate()
        store = Store(now_ms=Ticking())
        sealed = cipher.seal("canary", "note:n")
        store.put("notes", {"id": "n", "text": sealed, "tags": [], "updated_at": 1, "deleted": False})
        assert store.search("canary") == []
        # Editing tags of a sealed note sends its text as it is.
        store.save("notes", id="n", tags=["Time"])
        assert collapse(outbox.pending(store.conn))[0].record["text"] == sealed
        store.unlock(Cipher.generate())
        assert store.rows("notes")[0]["text"] == sealed
        store.unlock(cipher)
        assert store.rows("notes")[0]["text"] == "canary" and len(store.search("canary")) == 1
        store.close()

    def test_locked_device_writes_no_plain_text_into_an_encrypted_library(self) -> None:
        """R2.13/encryption: the server could read it. Unlocked, the device seals it."""
        cipher = Cipher.generate()
        store = Store(now_ms=Ticking())
        store.save("notes", id="first", text="nothing is encrypted yet")
        sealed = cipher.seal("canary", "note:n")
        store.put("notes", {"id": "n", "text": sealed, "tags": [], "updated_at": 1, "deleted": False})
        for id in ("n", "new"):
            with pytest.raises(ValueError, match="unlock this device"):
                store.save("notes", id=id, text="plain")
        assert store.get("notes", "new") is None and len(outbox.pending(store.conn)) == 1
        store.save("notes", id="new", tags=["Time"])
        store.unlock(cipher)
        store.save("notes", id="new", text="plain")
        assert outbox.pending(store.conn)[-1].payload["text"].startswith("enc:v1:")
        store.close()

    def test_import_on_a_locked_device_keeps_plain_text_out(self, store: Store) -> None:
        """R2.13/encryption: an export is readable; what it would replace stays, and an unlocked device seals it."""
        cipher = Cipher.generate()
        fill(store)
        document = build_export(store)
        locked = Store(now_ms=Ticking())
        sealed = cipher.seal("canary", "note:own")
        locked.put("notes", {"id": "own", "text": sealed, "tags": [], "updated_at": 1, "deleted": False})
        for bring in (import_merge, import_replace):
            with pytest.raises(ValueError, match="unlock this device"):
                bring(locked, document)
        assert [note["id"] for note in locked.rows("notes")] == ["own"] and queued(locked) == []
        # What a locked device exports is sealed, and can be imported anywhere.
        assert import_merge(locked, build_export(locked)) == 0
        assert import_replace(locked, build_export(locked)) == 1
        store.unlock(cipher)
        assert import_merge(store, build_export(locked)) == 1 and len(store.search("canary")) == 1
        locked.unlock(cipher)
        assert import_merge(locked, document) == 9
        notes = [entry for entry in outbox.pending(locked.conn) if entry.table == "notes"]
        assert len(notes) == 3 and all(entry.payload["text"].startswith("enc:v1:") for entry in notes)
        locked.close()

    def test_key_seals_what_was_queued_without_it(self, store: Store) -> None:
        """R2.13/encryption: a device that gets the key before its first sync sends nothing readable."""
        store.save("notes", id="n", text="plain canary", tags=["Time"])
        store.save("books", id="b", title="Walden")
        store.save("notes", id="n", page="7")
        cipher = Cipher.generate()
        store.unlock(cipher)
        assert "canary" not in str(store.conn.execute("select payload from outbox").fetchall())
        [book, note] = collapse(outbox.pending(store.conn))
        assert book.record["title"] == "Walden" and note.record["page"] == "7"
        assert cipher.open(note.record["text"], "note:n") == "plain canary" == store.rows("notes")[0]["text"]

    def test_embeddings_are_sealed_and_stay_on_the_device(self, store: Store) -> None:
        """R2.14/embeddings: stored sealed with the key, never queued and never exported."""
        with pytest.raises(ValueError, match="unlock"):
            store.add_embedding("n", b"\x01" * 384, model="m", source_hash="h")
        store.unlock(Cipher.generate())
        store.add_embedding("n", b"vector canary", model="m", source_hash="h")
        assert store.embedding("n") == b"vector canary" and store.embedding("other") is None
        [(raw,)] = store.conn.execute("select vector from embeddings").fetchall()
        assert b"canary" not in raw
        assert outbox.pending(store.conn) == [] and "embeddings" not in build_export(store)


def content(store: Store) -> dict[str, Any]:
    return {t: [{k: r[k] for k in spec.synced} for r in store.rows(t)] for t, spec in SYNCED.items()}


class TestExport:
    """R2.8/export: every synced table makes the round trip, with a version; nothing local does."""

    def test_every_table_makes_the_round_trip(self, store: Store) -> None:
        fill(store)
        document = json.loads(json.dumps(build_export(store)))
        assert (document["_syntopicon"], document["schemaVersion"]) == (True, SCHEMA_VERSION)
        assert set(document) == {"_syntopicon", "schemaVersion", "exportedAt", "books", "notes", "customIdeas",
                                 "note_links", "lenses", "collections", "collection_memberships"}  # fmt: skip
        assert document["notes"][1]["bookId"] == "b" and "canary" not in json.dumps(document)
        for bring in (import_merge, import_replace):
            other = Store(now_ms=Ticking())
            bring(other, document)
            assert content(other) == content(store)
            assert {(t, i) for t, i, _ in queued(other)} == {(t, i) for t, i, _ in queued(store)}
            other.close()

    def test_a_merge_adds_new_ids_only(self, store: Store) -> None:
        fill(store)
        document = build_export(store)
        store.save("books", id="b", title="Walden, revised")
        document["books"].append({"id": "new", "title": "New", "createdAt": 1, "updatedAt": 1, "deleted": 0})
        assert import_merge(store, document) == 1
        assert {row["id"]: row["title"] for row in store.rows("books")} == {
            "b": "Walden, revised",
            "new": "New",
        }

    def test_a_replace_clears_every_table(self, store: Store) -> None:
        """R2.14/replace-import: rows of the old library become tombstones, and local-only rows are gone."""
        fill(store)
        store.unlock(Cipher.generate())
        store.add_embedding("n", b"1", model="m", source_hash="h")
        discovery.start(store)
        store.set_meta("apiKey", "sk-canary")
        document = {"_syntopicon": True, "schemaVersion": 17, "books": [], "notes": [
            {"id": "n", "text": "other", "updatedAt": 5, "createdAt": 5, "tags": []}]}  # fmt: skip
        assert import_replace(store, document) == 1
        assert [row["text"] for row in store.rows("notes")] == ["other"]
        assert all(store.rows(table) == [] for table in SYNCED if table != "notes")
        for table in ("embeddings", "discovery_jobs", "shelf"):
            assert store.conn.execute(f"select count(*) from {table}").fetchone() == (0,)
        assert store.search("simplify") == [] and len(store.search("other")) == 1
        # Other devices lose the old rows, and take the note though theirs has a later time.
        assert ("books", "b", True) in queued(store) and ("notes", "n", False) in queued(store)
        assert store.rows("notes")[0]["updated_at"] > 1_790_000_000_000
        assert store.get_meta("apiKey") == "sk-canary"

    def test_old_exports_are_read_and_newer_ones_refused(self, store: Store) -> None:
        """R2.14/old-exports: tables that a version did not have are empty, and its tags get the new names."""
        old = {"_syntopicon": True, "schemaVersion": 10, "books": [], "notes": [
            {"id": "n", "text": "x", "tags": ["Memory and Imagination", "Mechanics"], "updatedAt": 1, "createdAt": 1}]}  # fmt: skip
        assert import_merge(store, old) == 1
        assert store.rows("notes")[0]["tags"] == ["Memory", "Technology"]
        wrong: list[tuple[Any, str]] = [
            ({**old, "schemaVersion": 18}, "version 18"), ({**old, "schemaVersion": "17"}, "schemaVersion"),
            ({}, "not an export"), ([], "not an export"), ({**old, "notes": {}}, "must be a list"),
            ({k: v for k, v in old.items() if k != "books"}, "no books"), ({**old, "notes": [{}]}, "no id"),
            ({**old, "notes": [1]}, "an object"), ({**old, "notes": [{"id": "x", "updatedAt": "y"}]}, "updatedAt"),
        ]  # fmt: skip
        before = content(store)
        for document, message in wrong:
            for bring in (import_merge, import_replace):
                with pytest.raises(InvalidExport, match=message):
                    bring(store, document)
        assert content(store) == before

    def test_every_table_of_a_store_is_synced_or_local(self, store: Store) -> None:
        """A new table must be put into one of the lists, or exports and replaces would forget it."""
        names = store.conn.execute("select name from sqlite_master where type = 'table'").fetchall()
        ours = {name for (name,) in names if not name.startswith(("sqlite_", "note_index_"))}
        assert ours == {*SYNCED, *LOCAL_ONLY} and set(CLEARED_BY_REPLACE) == set(LOCAL_ONLY) - {"meta"}


def test_sync_does_not_name_what_is_local() -> None:
    """R2.8/local-only: the code that talks to the server knows none of it; the wire is recorded in another test."""
    for file in ("sync.py", "http.py", "outbox.py"):
        text = (DEVICE / file).read_text()
        for word in ("apiKey", "api_key", "embeddings", "discovery_jobs", "image_data_url", "imageDataUrl"):
            assert word not in text, (file, word)


class Answering(BaseHTTPRequestHandler):
    """Redirects to the address in `location`, or answers with a file. Notes what was asked."""

    location = ""
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        is_file = self.path == "/file"
        self.send_response(200 if is_file else 307)
        if not is_file:
            self.send_header("Location", self.location)
        self.end_headers()
        self.wfile.write(b"a file" if is_file else b"")

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def test_redirect_does_not_get_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read where the server says, without credentials; any other redirect is an error."""
    monkeypatch.setattr(Answering, "asked", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        wire = HttpServer(base, "key", lambda: "token", timeout=5)
        Answering.location = f"{base}/file"
        for request in (wire.state, lambda: wire.pull("notes", 0, 10)):
            with pytest.raises(ServerError) as seen:
                request()
            assert seen.value.status == 307
        assert wire.download("note-image?note_id=n") == b"a file"
        assert Answering.asked[-1] == ("/file", None) and len(Answering.asked) == 4
        Answering.location = "file:///etc/passwd"
        with pytest.raises(ServerError):
            wire.download("note-image?note_id=n")
        server.shutdown()


def test_a_file_survives_being_closed(tmp_path: Path) -> None:
    store = Store(tmp_path / "library.db")
    store.save("books", id="b", title="Walden")
    store.close()
    with pytest.raises(sqlite3.ProgrammingError):
        store.rows("books")
    again = Store(tmp_path / "library.db")
    assert again.rows("books")[0]["title"] == "Walden" and len(outbox.pending(again.conn)) == 1
    again.close()
