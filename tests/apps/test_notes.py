"""The library of notes in the database alone: rows, rules, cascades, views, and concurrent or rolled-back changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.apps.notes.app import SYNCED, app
from penstock.postgres import migrate
from penstock.postgres.db import SyncConnection
from tests.apps.notes_library import DENIED, Library, filled, join
from tests.sql.conftest import Call, Sessions

pytestmark = pytest.mark.every_postgres


def test_all_records_are_stored_with_cover_and_isbn(library: Library) -> None:
    """R2.9/records, R2.14/covers: every table takes rows of a device and numbers them; another user sees none."""
    filled(library)
    assert {table: len(library.live(table)) for table in SYNCED} == {
        "books": 1, "notes": 2, "custom_ideas": 1, "note_links": 1, "lenses": 1, "collections": 1,
        "collection_memberships": 2,
    }  # fmt: skip
    book = library.row("books", "b1")
    assert (book["isbn"], book["cover_url"]) == ("978", "https://x.org/1.jpg")
    [link] = library.call("select relation_type from notes.note_links")
    assert link["relation_type"] == "supports"
    other = join(library.db, "eve")
    for table in SYNCED:
        assert other.call(f"select * from notes.{table}") == []
    assert other.push("notes", id="n1", text="mine")["outcome"] == "applied", "a key begins with its owner"
    assert library.row("notes", "n1")["text"] == "ponds"
    sent = {"id": "n9", "user_id": str(library.user), "created_at": 1, "updated_at": 1}
    [row] = other.call("select * from penstock.push_changes(%s)", Jsonb([{"table": "notes", "record": sent}]))
    assert (row["outcome"], row["code"]) == ("refused", "not_allowed")


def test_client_cannot_write_a_change_number(library: Library) -> None:
    library.push("notes", id="n1", text="x")
    statement = "update notes.notes set change_seq = 1 where id = 'n1'"
    assert library.refused(statement) == (DENIED, None)
    assert (
        library.refused("insert into notes.images values (auth.uid(), 'n1', gen_random_uuid(), 'p', 1)")[0]
        == DENIED
    )


def test_ids_follow_from_their_parts_and_canon_is_reserved(library: Library) -> None:
    """R2.9/membership-ids, R2.9/reserved: adding a note to a collection twice gives one row; a wrong id, a colon
    in an id and the prefix canon: are refused with a code."""
    filled(library)
    for _ in range(2):
        library.push("collection_memberships", id="c1:n1", note_id="n1", collection_id="c1")
    assert library.live("collection_memberships") == ["c1:n1", "c1:n2"]
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("collection_memberships", {"id": "x", "note_id": "n1", "collection_id": "c1"}, "membership_id"),
        ("collection_memberships", {"id": "c1:n9", "note_id": "n9", "collection_id": "c1"}, "missing_parent"),
        ("lenses", {"id": "canon:wisdom", "name": "mine"}, "reserved_id"),
        ("lenses", {"id": "a:b", "name": "mine"}, "id_without_colon"),
        ("notes", {"id": "a:b"}, "id_without_colon"),
        ("notes", {"id": "n8", "tags": [1]}, "tags_are_texts"),
        ("notes", {"id": "n8", "tags": "x"}, "tags_are_texts"),
    ]
    for table, record, code in cases:
        row = library.push(table, **record)
        assert (row["outcome"], row["code"]) == ("refused", code), record


def test_lenses_and_collections_are_resolved_when_read(library: Library) -> None:
    """R2.9/read-time: they match notes at the time of the call, and add no link and no pair of ideas."""
    filled(library)
    before = library.call("select * from notes.idea_pairs()"), library.live("note_links")

    def found(query: str) -> list[str]:
        return [row["id"] for row in library.call(f"select id from {query}")]

    assert found("notes.lens_notes('v1')") == ["n1"]
    assert found("notes.lens_notes('canon:Nature')") == ["n1", "n2"]
    assert found("notes.lens_notes('canon:Nature+Solitude')") == ["n1"]
    assert found("notes.collection_notes('c1')") == ["n1", "n2"]
    library.push("notes", id="n2", book_id="b1", text="beans", tags=["Nature", "Solitude"])
    assert found("notes.lens_notes('v1')") == ["n1", "n2"]
    library.push("collection_memberships", id="c1:n1", note_id="n1", collection_id="c1", deleted=True)
    assert found("notes.collection_notes('c1')") == ["n2"]
    library.push("lenses", id="v2", name="Again", leaf_ids=["Nature"])
    library.push("collections", id="c2", name="Other")
    library.push("collection_memberships", id="c2:n1", note_id="n1", collection_id="c2")
    pairs = library.call("select * from notes.idea_pairs()")
    assert [(row["idea"], row["other"], row["count"]) for row in pairs] == [("Nature", "Solitude", 2)]
    assert (before[0][0]["count"], library.live("note_links")) == (1, before[1])
    assert join(library.db, "eve").call("select * from notes.lens_notes('v1')") == []


def test_deletion_of_a_book_reaches_its_notes_and_what_hangs_on_them(library: Library) -> None:
    filled(library)
    at = library.ms()
    library.push("notes", id="n2", book_id="b1", text="later", updated_at=at + 1000)
    library.push("books", id="b1", title="Walden", deleted=True, updated_at=at)
    assert library.live("notes") == ["n2"], "a note that was edited later stays"
    assert library.live("note_links") == [] and library.live("collection_memberships") == ["c1:n2"]
    assert library.row("notes", "n1")["updated_at"] == at
    library.push("collections", id="c1", name="Best", deleted=True, updated_at=at + 2000)
    assert library.live("collection_memberships") == []


def test_several_notes_may_have_one_source_id(library: Library) -> None:
    """R2.14/duplicate-sources"""
    for id in ("a", "b"):
        row = library.push(
            "notes", id=id, text="same", source="readwise", source_id="h-1", source_meta={"n": 1}
        )
        assert row["outcome"] == "applied"
    [row] = library.call("select count(*) from notes.notes where source_id = 'h-1'")
    assert row["count"] == 2


def test_renaming_an_idea_renames_its_tag_everywhere(library: Library) -> None:
    """R2.14/rename: in all notes of the owner, once per note, in its place, and synced; nobody else's notes change."""
    filled(library)
    other = join(library.db, "eve")
    for who in (library, other):
        who.push("notes", id="n3", text="x", tags=["A", "Ponds", "B"])
    library.push("notes", id="n4", text="x", tags=["Ponds", "Lakes"])
    before = library.row("notes", "n3")["change_seq"]
    [row] = library.call("select notes.rename_custom_idea('i1', 'Lakes') as count")
    assert row["count"] == 2
    assert library.row("notes", "n3")["tags"] == ["A", "Lakes", "B"]
    assert library.row("notes", "n4")["tags"] == ["Lakes"]
    assert library.row("notes", "n3")["change_seq"] > before
    assert library.row("custom_ideas", "i1")["name"] == "Lakes"
    assert other.row("notes", "n3")["tags"] == ["A", "Ponds", "B"]
    assert other.refused("select notes.rename_custom_idea('i1', 'x')") == ("PT404", "unknown_idea")
    assert library.refused("select notes.rename_custom_idea('i1', '')") == ("PT422", "invalid_name")


def test_service_deletes_content_and_keeps_the_tombstone(library: Library) -> None:
    """R2.14/hard-delete: text, tags and source go, the row stays as deleted, and users cannot call it."""
    filled(library)
    library.push(
        "notes", id="n1", book_id="b1", text="secret", tags=["T"], source="s", source_id="i", chapter="c"
    )
    assert library.one("select notes.hard_delete_note(%s, 'n1')", library.user) is True
    row = library.row("notes", "n1")
    assert (row["text"], row["tags"], row["source"], row["source_id"], row["chapter"]) == (
        "",
        [],
        None,
        None,
        None,
    )
    assert row["deleted"] and library.live("collection_memberships") == ["c1:n2"]
    assert library.one("select notes.hard_delete_note(%s, 'nothing')", library.user) is False
    assert library.refused("select notes.hard_delete_note(auth.uid(), 'n2')")[0] == DENIED


SERVICE_WRITES = {
    "apply_ideas": "select notes.apply_ideas(%(tenant)s, 'n2', array['Rivers'])",
    "remove_idea": "select notes.remove_idea(%(tenant)s, 'n3', 'Nature')",
    "add_image": "select notes.add_image(%(user)s, 'n2', %(image)s)",
    "hard_delete_note": "select notes.hard_delete_note(%(user)s, 'n2')",
    "erase_user": "select penstock.erase_user(%(user)s)",
}


@pytest.mark.parametrize("function", SERVICE_WRITES)
def test_service_write_and_push_do_not_deadlock(library: Library, function: str) -> None:
    """The owner's lock comes before the locks of rows and of the profile."""
    for note, tags in (("n1", []), ("n2", []), ("n3", ["Nature"])):
        library.push("notes", id=note, text="old", tags=tags)
    image = library.one(
        "insert into penstock.artifacts (tenant_id, name, path, content_type, bytes, status, created_by, created_at,"
        " begun_at, stored_at, sha256) values (%s, 'n2.png', %s, 'image/png', 5, 'stored', 'test', now(), now(),"
        " now(), repeat('0', 64)) returning id", library.tenant, f"{library.tenant}/n2.png",
    )  # fmt: skip
    values = {"tenant": library.tenant, "user": library.user, "image": image}
    sessions = Sessions(testing.Database(library.db.server, library.db.name), library.tenant)
    service = sessions.open()

    def push(conn: SyncConnection, table: str, **record: Any) -> str:
        record = {"created_at": 1, "updated_at": library.ms(), **record}
        change = Jsonb([{"table": table, "record": record}])
        [row] = conn.execute("select outcome from penstock.push_changes(%s)", [change]).fetchall()
        return row["outcome"]

    try:
        with library.acting() as conn:
            assert push(conn, "notes", id="n1", text="new") == "applied"
            call = Call(
                lambda: service.connection.execute(SERVICE_WRITES[function].encode(), values).fetchall()
            )
            sessions.wait_until_blocked(service, call)
            for note in ("n2", "n3", "n4"):
                assert push(conn, "notes", id=note, text="new") == "applied"
            assert push(conn, "custom_ideas", id="i1", name="Rivers") == "applied"
        [written] = call.result()
        assert written[function]
    finally:
        sessions.database.disconnect()


def depending(database: testing.Database) -> dict[str, list[Any]]:
    """What tables of the app have from Penstock: triggers and defaults."""
    queries = {
        "triggers": "select pg_get_triggerdef(t.oid) as line from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'notes'::regnamespace and not t.tgisinternal",
        "defaults": "select format('%s %s %s', adrelid::regclass, adnum, pg_get_expr(adbin, adrelid)) as line"
        " from pg_attrdef join pg_class c on c.oid = adrelid where c.relnamespace = 'notes'::regnamespace",
    }
    return {name: sorted(row["line"] for row in database.execute(q)) for name, q in queries.items()}


@pytest.fixture
def bare_library(server: testing.Server) -> Iterator[testing.Database]:
    """A database with the app, whose clock is real: rollbacks put the functions back."""
    with server.database() as made:
        app.migrate(made.dsn)
        yield made


def test_rollback_of_the_platform_keeps_the_library_synced(bare_library: testing.Database) -> None:
    """R2.8/watermark: triggers and defaults of the app stay; writes before the older version's migrate fail."""
    before = depending(bare_library)
    assert len(before["triggers"]) > 35 and len(before["defaults"]) > 10
    insert = "insert into notes.notes (user_id, id, created_at, updated_at) values (%s, %s, 1, 1) returning change_seq"
    [user] = bare_library.execute("insert into auth.users (email) values ('ann@example.org') returning id")
    [first] = bare_library.execute(insert, [user["id"], "n1"])
    newest = migrate.read().migrations
    migrate.rollback(bare_library.dsn, newest[-2].number)
    assert depending(bare_library) == before
    with pytest.raises(psycopg.errors.UndefinedFunction):
        bare_library.execute(insert, [user["id"], "n2"])
    migrate.migrate(bare_library.dsn)
    [second] = bare_library.execute(insert, [user["id"], "n2"])
    assert second["change_seq"] > first["change_seq"] and depending(bare_library) == before


def test_migrate_makes_lost_sync_triggers_again(bare_library: testing.Database) -> None:
    """As after a rollback by an older version: numbers continue above those that devices have read."""
    before = depending(bare_library)
    [user] = bare_library.execute("insert into auth.users (email) values ('ann@example.org') returning id")
    insert = "insert into notes.notes (user_id, id, created_at, updated_at) values (%s, %s, 1, 1) returning change_seq"
    bare_library.execute("select setval('penstock.change_seqs', 5000)")
    [read] = bare_library.execute(insert, [user["id"], "n1"])
    bare_library.execute("""
        drop function penstock._lock_caller, penstock._skip_stale_change, penstock._number_change,
          penstock._cascade_delete, penstock._follow_parent, penstock._raise_horizon cascade""")
    bare_library.execute("select setval('penstock.change_seqs', 1)")
    assert len(depending(bare_library)["triggers"]) < 10
    app.migrate(bare_library.dsn)
    assert depending(bare_library) == before
    rows = bare_library.execute("select change_seq from notes.notes")
    [new] = bare_library.execute(insert, [user["id"], "n2"])
    assert read["change_seq"] < rows[0]["change_seq"] < new["change_seq"]


def test_orphans_are_live_notes_without_ideas(library: Library) -> None:
    filled(library)
    library.push("notes", id="n5", text="x", source="readwise")
    library.push("notes", id="n6", text="x", deleted=True)
    assert [(row["note_id"], row["source"]) for row in library.call("select * from notes.orphans")] == [
        ("n5", "readwise")
    ]


def test_pages_read_what_their_views_have(library: Library) -> None:
    """The columns, keys and filters of every dashboard page exist for its reader, and none is a text of a note."""
    filled(library)
    for page in app.pages.values():
        columns = ", ".join([*page.read_columns, *page.filters])
        rows = library.call(f"select {columns} from notes.{page.source.removeprefix('notes.')}")
        assert "ponds" not in str(rows), page.name
    assert len(library.call("select * from notes.note_list")) == 2


def test_ideas_are_counted_over_live_notes_and_books(library: Library) -> None:
    """Each note and book once per idea; the kind is custom or tag; ideas without notes are custom ones."""
    filled(library)
    library.push("books", id="b2", title="Cape Cod")
    library.push("notes", id="n3", book_id="b2", text="sand", tags=["Nature", "Nature", "Ponds"])
    library.push("notes", id="n4", text="no book", tags=["Nature", "Old name"])
    library.push("notes", id="n5", book_id="b2", text="gone", tags=["Nature"], deleted=True)
    library.push("custom_ideas", id="i2", name="Ponds")
    library.push("custom_ideas", id="i3", name="Unused")
    library.push("custom_ideas", id="i4", name="Dropped", deleted=True)
    other = join(library.db, "eve")
    other.push("notes", id="n1", text="x", tags=["Nature"])

    def ideas(who: Library) -> dict[str, tuple[str, int, int]]:
        rows = who.call("select * from notes.idea_list")
        assert len({row["id"] for row in rows}) == len(rows)
        assert all(row["user_id"] == who.user for row in rows)
        return {row["name"]: (row["kind"], row["notes"], row["books"]) for row in rows}

    assert ideas(library) == {
        "Nature": ("tag", 4, 2), "Solitude": ("tag", 1, 1), "Ponds": ("custom", 1, 1),
        "Old name": ("tag", 1, 0), "Unused": ("custom", 0, 0),
    }  # fmt: skip
    assert ideas(other) == {"Nature": ("tag", 1, 0)} and ideas(join(library.db, "new")) == {}


def test_idea_list_reads_only_the_notes_of_its_reader(library: Library) -> None:
    """By an index of the owner, also under row-level security: no plan reads all libraries."""
    library.db.execute(
        """insert into notes.notes (user_id, id, text, tags, created_at, updated_at, change_seq)
        select %s, 'p' || n, '', '["Nature"]', 1, 1, 0 from generate_series(1, 5000) n""",
        [join(library.db, "eve").user],
    )
    filled(library)
    library.db.execute("analyze notes.notes")
    [plan] = library.call(
        "explain (analyze, format json) select * from notes.idea_list order by notes desc limit 51"
    )
    nodes, waiting = list[dict[str, Any]](), [plan["QUERY PLAN"][0]["Plan"]]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.get("Plans", [])
    notes = [node for node in nodes if node.get("Relation Name") == "notes"]
    assert notes and all("Seq Scan" not in node["Node Type"] and node["Actual Rows"] == 2 for node in notes)
