"""The library of notes in the database alone: rows, rules, cascades, keys, counts, views."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.apps.notes.app import SYNCED, app
from penstock.apps.notes.canon import CANON
from penstock.postgres import migrate
from penstock.postgres.db import SyncConnection
from tests.sql.conftest import Call, Sessions

pytestmark = pytest.mark.every_postgres
DENIED = "42501"


@dataclass
class Library:
    """A user with a library."""

    db: testing.Database
    user: uuid.UUID
    tenant: uuid.UUID

    def one(self, query: str, *values: Any) -> Any:
        [row] = self.db.execute(query, list(values))
        return next(iter(row.values()))

    @contextmanager
    def acting(self, **claims: Any) -> Iterator[SyncConnection]:
        """A transaction of the user."""
        with psycopg.Connection[dict[str, Any]].connect(self.db.dsn, row_factory=dict_row) as conn:
            every = {"sub": str(self.user), "role": "authenticated", "iat": int(time.time()), **claims}
            conn.execute("select set_config('request.jwt.claims', %s, true)", [json.dumps(every)])
            conn.execute("set local role authenticated")
            yield conn

    def call(self, query: str, *values: Any, **claims: Any) -> list[dict[str, Any]]:
        with self.acting(**claims) as conn:
            made = conn.execute(query, values)  # pyright: ignore[reportArgumentType]
            return list(made.fetchall()) if made.description else []

    def push(self, table: str, **record: Any) -> dict[str, Any]:
        """Push one row, as a device does."""
        record = {"created_at": 1, "updated_at": self.ms(), **record}
        [row] = self.call(
            "select * from penstock.push_changes(%s)", Jsonb([{"table": table, "record": record}])
        )
        return row

    def ms(self) -> int:
        return self.one("select notes._ms()")

    def row(self, table: str, id: str) -> dict[str, Any]:
        [row] = self.db.execute(
            f"select * from notes.{table} where user_id = %s and id = %s", [self.user, id]
        )
        return dict(row)

    def live(self, table: str) -> list[str]:
        rows = self.db.execute(
            f"select id from notes.{table} where user_id = %s and not deleted order by id", [self.user]
        )
        return [row["id"] for row in rows]

    def refused(self, query: str, *values: Any, **claims: Any) -> tuple[str, str | None]:
        """The SQLSTATE, and the code of an error with details."""
        with pytest.raises(psycopg.Error) as caught:
            self.call(query, *values, **claims)
        detail = caught.value.diag.message_detail or ""
        found = json.loads(detail).get("code") if detail.startswith("{") else None
        return caught.value.sqlstate or "", found

    def used(self, meter: str) -> int:
        rows = self.db.execute(
            "select used from penstock.accounts where tenant_id = %s and meter = %s and job_id is null",
            [self.tenant, meter],
        )
        return int(sum(row["used"] for row in rows))


def join(db: testing.Database, name: str = "ada", **columns: Any) -> Library:
    user = uuid.uuid4()
    db.execute("insert into auth.users (id, email) values (%s, %s)", [user, f"{name}-{user}@x.org"])
    [row] = db.execute("select tenant_id from penstock.profiles where user_id = %s", [user])
    return Library(db, user, row["tenant_id"])


@pytest.fixture(scope="module")
def notes_db(penstock_server: testing.Server) -> Iterator[testing.Database]:
    """One database with the app's own SQL for the tests of this file: each has a user of its own."""
    database = testing.Database(penstock_server, penstock_server.create(penstock_server.template()))
    assert app.own is not None
    try:
        migrate.migrate(database.dsn, folder=app.own.folder, schema=app.own.schema)
        yield database
        database.close()
    finally:
        penstock_server.drop(database.name)


@pytest.fixture
def library(notes_db: testing.Database) -> Library:
    return join(notes_db)


@pytest.fixture
def own_library(db: testing.Database) -> Library:
    """A library in a database of its own, for tests that change its clock or gates."""
    assert app.own is not None
    migrate.migrate(db.dsn, folder=app.own.folder, schema=app.own.schema)
    return join(db)


def filled(library: Library) -> None:
    """A book with two notes, a link, an idea, a lens and a collection with both notes."""
    library.push("books", id="b1", title="Walden", isbn="978", cover_url="https://x.org/1.jpg")
    library.push("notes", id="n1", book_id="b1", text="ponds", tags=["Nature", "Solitude"])
    library.push("notes", id="n2", book_id="b1", text="beans", tags=["Nature"])
    library.push("custom_ideas", id="i1", name="Ponds", description="water")
    library.push("note_links", id="l1", from_note_id="n1", to_note_id="n2", relation_type="supports")
    library.push("lenses", id="v1", name="Alone outside", leaf_ids=["Nature", "Solitude"])
    library.push("collections", id="c1", name="Best")
    for note in ("n1", "n2"):
        library.push("collection_memberships", id=f"c1:{note}", note_id=note, collection_id="c1")


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


KEY = "insert into notes.wrapped_key_blobs (type, blob, device_label) values (%s, 'AAAA', %s)"


def test_key_blob_is_stored_only_after_a_fresh_sign_in(library: Library) -> None:
    """R2.9/key-blobs, S69: the time of the sign-in comes from the verified token; without one, or an old one, nothing
    is stored. A transfer is redeemed by its owner while it is fresh by the server's clock."""
    now = int(time.time())
    old = now - 4000
    for claims in (
        {"iat": old},
        {"iat": None},
        {"iat": now, "amr": [{"method": "password", "timestamp": old}]},
        {"iat": now, "auth_time": old},
        {"iat": "soon"},
    ):
        assert library.refused(KEY, "pin-v1", "x", **claims) == ("PT403", "sign_in_required"), claims
    for claims in ({}, {"iat": old, "amr": [{"method": "otp", "timestamp": now - 10}]}, {"amr": ["pwd"]}):
        library.call(KEY, "transfer-v1", "Linux · Firefox", **claims)
    redeem = "select * from notes.select_fresh_transfer_blob(%s, %s)"
    assert len(library.call(redeem, library.user, 60_000)) == 1
    other = join(library.db, "eve")
    assert other.refused(redeem, library.user, 60_000) == ("PT403", "forbidden")
    assert library.call(redeem, library.user, 0) == []
    library.db.execute("update notes.wrapped_key_blobs set is_active = false")
    assert library.call(redeem, library.user, 60_000) == []


def test_transfer_expires_by_the_server_whatever_age_the_client_asks_for(
    own_library: Library, clock: testing.Clock
) -> None:
    library = own_library
    library.call(KEY, "transfer-v1", "x")
    clock.advance(minutes=11)
    assert library.call("select * from notes.select_fresh_transfer_blob(auth.uid(), 99999999)") == []


def test_key_blobs_have_three_types_a_fixed_label_and_an_active_flag(library: Library) -> None:
    """R2.13/device-keys: one row per device; type, label and time cannot be changed; the active prf-v1 blobs are
    the devices that count."""
    for type in ("prf-v1", "transfer-v1", "pin-v1"):
        library.call(KEY, type, "Mac · Safari")
    assert library.refused(KEY, "other", "x")[0] == "23514"
    assert library.used("devices") == 1
    for column, value in (("device_label", "'y'"), ("created_at", "1"), ("type", "'pin-v1'")):
        assert library.refused(f"update notes.wrapped_key_blobs set {column} = {value}")[0] == DENIED
    with pytest.raises(psycopg.Error):
        library.db.execute("update notes.wrapped_key_blobs set device_label = 'y'")
    insert = (
        "insert into notes.wrapped_key_blobs (type, blob, created_at) values ('pin-v1', 'A', 9999999999999)"
    )
    assert library.refused(insert)[0] == DENIED
    library.call("update notes.wrapped_key_blobs set is_active = false where type = 'prf-v1'")
    assert library.used("devices") == 0
    library.call("update notes.wrapped_key_blobs set is_active = true where type = 'prf-v1'")
    library.call("delete from notes.wrapped_key_blobs")
    assert library.used("devices") == 0


def test_sync_of_a_device_is_recorded_once_a_minute(own_library: Library, clock: testing.Clock) -> None:
    """A device that polls writes its row at most once a minute; another user's device is never touched."""
    library = own_library
    clock.freeze()
    other = join(library.db, "eve")
    for each in (library, other):
        each.call(KEY, "prf-v1", "Mac · Safari")
    library.push("books", id="b1", title="Walden")
    device = library.one("select id from notes.wrapped_key_blobs where user_id = %s", library.user)

    def start(who: Library, id: uuid.UUID | None) -> Any:
        [row] = who.call("select notes.start_sync(%s) as state, penstock.sync_state('notes') as expected", id)
        assert row["state"] == row["expected"]
        return library.one(
            "select (xmin::text, synced_at)::text from notes.wrapped_key_blobs where id = %s", device
        )

    never = start(other, device)
    assert never == start(library, uuid.uuid4()) == start(library, None) and never.endswith(",)")
    first = start(library, device)
    assert first.endswith(f",{library.ms()})")
    clock.advance(seconds=59)
    assert start(library, device) == first
    clock.advance(seconds=1)
    assert start(library, device).endswith(f",{library.ms()})") and start(library, device) != first
    [shown] = library.call("select * from notes.device_list")
    assert shown["last_sync_at"] is not None and shown["owner"].startswith("ada")
    assert [row["last_sync_at"] for row in other.call("select * from notes.device_list")] == [None]
    library.call("update notes.wrapped_key_blobs set is_active = false")
    clock.advance(minutes=5)
    assert start(library, device).endswith(f",{library.ms()})"), "an inactive key still shows its syncs"
    for column in ("synced_at = 1", "user_id = auth.uid()"):
        assert library.refused(f"update notes.wrapped_key_blobs set {column}")[0] == DENIED


def test_custom_ideas_and_devices_count_and_their_gates_observe_then_enforce(own_library: Library) -> None:
    """A gate in observe mode lets the eleventh idea pass and records it; in enforce mode it is refused with 402."""
    library = own_library
    for n in range(11):
        assert library.push("custom_ideas", id=f"i{n}", name=f"idea {n}")["outcome"] == "applied"
    assert library.used("custom_ideas") == 11
    blocked = (
        "select count(*) from penstock.usage_events where details ? 'would_have_blocked' and tenant_id = %s"
    )
    assert library.one(blocked, library.tenant) >= 1
    library.push("custom_ideas", id="i0", name="idea 0", deleted=True)
    library.push("custom_ideas", id="i1", name="idea 1", deleted=True)
    assert library.used("custom_ideas") == 9
    library.db.execute("select penstock.set_gate('custom_ideas_limit', '{\"mode\": \"enforce\"}')")
    assert library.push("custom_ideas", id="i0", name="back", deleted=False)["outcome"] == "applied"
    row = library.push("custom_ideas", id="i20", name="too many")
    assert (row["outcome"], row["code"]) == ("refused", "upgrade_required")
    assert library.used("custom_ideas") == 10
    library.db.execute("select penstock.set_gate('max_devices', '{\"mode\": \"enforce\"}')")
    for _ in range(2):
        library.call(KEY, "prf-v1", "x")
    assert library.refused(KEY, "prf-v1", "x") == ("PT402", "upgrade_required")


def test_profile_shows_intent_and_effective_tier_apart(own_library: Library, clock: testing.Clock) -> None:
    """R2.14/billing-intent: after a subscription has ended user_tier stays pro and effective_tier is free; users
    change only display_name and profile_bio of their own row."""
    library = own_library
    [row] = library.call("select * from notes.user_profiles")
    assert (row["user_tier"], row["effective_tier"], row["month_limit"], row["month_usage"]) == (
        "free",
        "free",
        50,
        0,
    )
    assert row["percent_use"] == 0 and row["stripe_customer_id"] is None
    library.call("update notes.user_profiles set display_name = 'Ada', profile_bio = 'reads'")
    [row] = library.call("select display_name, name, profile_bio from notes.user_profiles")
    assert dict(row) == {"display_name": "Ada", "name": "Ada", "profile_bio": "reads"}
    for column, value in (("month_limit", "9999"), ("user_tier", "'pro'"), ("effective_tier", "'pro'")):
        assert library.refused(f"update notes.user_profiles set {column} = {value}")[0] == DENIED
    other = join(library.db, "eve")
    assert len(other.call("select * from notes.user_profiles")) == 1
    assert other.call("update notes.user_profiles set display_name = 'x' returning id") != []
    assert library.call("select display_name from notes.user_profiles")[0]["display_name"] == "Ada"

    library.db.execute("update notes.user_profiles set month_limit = 60 where user_id = %s", [library.user])
    library.db.execute(
        "update notes.user_profiles set allocation_override = 5, allocation_override_expires_at = current_date + 1"
        " where user_id = %s", [library.user],
    )  # fmt: skip
    [row] = library.call("select * from notes.user_profiles")
    assert (row["month_limit"], row["allocation_override"]) == (60, 5)
    library.db.execute("update notes.user_profiles set user_tier = 'pro' where user_id = %s", [library.user])
    library.db.execute(
        "update penstock.tenants set plan_until = penstock.clock() + interval '1 day', plan_after = 'free' where id = %s",
        [library.tenant],
    )
    [row] = library.call("select user_tier, effective_tier from notes.user_profiles")
    assert dict(row) == {"user_tier": "pro", "effective_tier": "pro"}
    clock.advance(days=2)
    [row] = library.call("select user_tier, effective_tier from notes.user_profiles")
    assert dict(row) == {"user_tier": "pro", "effective_tier": "free"}


def test_managed_calls_are_counted_once_with_tokens_prompt_and_cost(library: Library) -> None:
    """R2.1/events: a call leaves a line with tokens and one with its prompt; a call that is given up counts nothing."""
    begun = library.one("select notes.begin_call(%s, 'discover', 'k1')", library.user)
    assert begun["tenant_id"] == str(library.tenant)
    end = "select notes.end_call(%s, %s, 'discover', 'anthropic/claude-haiku-4-5', %s, %s)"
    details = Jsonb({"prompt_name": "discover_canon", "prompt_version": 0, "fail_open": False})
    tokens = Jsonb({"input_tokens": 1000, "output_tokens": 100})
    for _ in range(2):
        library.one(end, library.tenant, begun["hold_id"], tokens, details)
    assert library.used("managed_ai") == 1
    [day] = library.call("select * from notes.ai_usage_daily")
    assert (day["action_type"], day["request_count"], day["input_tokens"], day["output_tokens"]) == (
        "discover",
        1,
        1000,
        100,
    )
    cost = library.one(
        "select sum(base_amount) from penstock.cost_entries where tenant_id = %s", library.tenant
    )
    assert cost == pytest.approx(Decimal("0.0015"))
    events = library.db.execute(
        "select prompt_name from notes.ai_usage_events where user_id = %s", [library.user]
    )
    assert {row["prompt_name"] for row in events} == {"discover_canon"}
    assert library.refused("select * from notes.ai_usage_events")[0] == DENIED
    assert library.refused("select notes.begin_call(auth.uid(), 'discover', 'k')")[0] == DENIED
    begun = library.one("select notes.begin_call(%s, 'transcribe', 'k2')", library.user)
    library.one("select penstock.release_hold(%s)", begun["hold_id"])
    assert library.used("managed_ai") == 1
    library.one(
        "select notes.upsert_ai_usage(%s, 'discover_batch', (penstock.clock() at time zone 'utc')::date, 5, 5)",
        library.user,
    )
    assert library.used("managed_ai") == 2
    with pytest.raises(psycopg.Error) as caught:
        library.one("select notes.begin_call(%s, 'discover', 'k3')", uuid.uuid4())
    assert "profile_missing" in str(caught.value.diag.message_detail)


def test_image_bytes_never_go_below_zero(library: Library) -> None:
    assert library.one("select notes.adjust_image_storage_bytes(%s, 100)", library.user) == 100
    assert library.one("select notes.adjust_image_storage_bytes(%s, -150)", library.user) == 0


def test_waitlist_is_kept_behind_the_open_sign_up(library: Library) -> None:
    """R2.14/sign-up: a new user has a profile and a library without any request; the list is for the service."""
    assert library.push("notes", id="n1", text="first")["outcome"] == "applied"
    assert library.refused("select * from notes.waitlist_requests")[0] == DENIED
    email = library.one("select email from penstock.profiles where user_id = %s", library.user)
    library.db.execute(
        "insert into notes.waitlist_requests (email, name) values (%s, 'Ada L.')", [email.upper()]
    )
    for _ in range(2):
        found = library.one("select notes.approve_waitlist(%s)", email)
        assert found["status"] == "approved"
    assert library.call("select display_name from notes.user_profiles")[0]["display_name"] == "Ada L."
    with pytest.raises(psycopg.Error):
        library.one("select notes.approve_waitlist('nobody@x.org')")


def test_erasing_a_user_removes_the_library(library: Library) -> None:
    filled(library)
    library.call(KEY, "prf-v1", "x")
    library.db.execute("select penstock.erase_user(%s)", [library.user])
    for table in (*SYNCED, "wrapped_key_blobs", "profile_bios", "images"):
        assert library.one(f"select count(*) from notes.{table} where user_id = %s", library.user) == 0, table


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


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"full_name": "Ada Lovelace"}, "Ada Lovelace"),
        ({"full_name": "  "}, "ada"),
        ({}, "ada"),
        (None, "ada"),
        ({"full_name": "a\u202eb"}, None),
    ],
)
def test_profile_name_comes_from_the_sign_up(conn: Any, metadata: Any, expected: str | None) -> None:
    """R2.14/profile-name: from full_name of the metadata, otherwise from the address."""
    user = uuid.uuid4()
    conn.execute(
        "insert into auth.users (id, email, raw_user_meta_data) values (%s, 'ada@x.org', %s)",
        [user, Jsonb(metadata)],
    )
    [row] = conn.execute("select display_name from penstock.profiles where user_id = %s", [user]).fetchall()
    assert row["display_name"] == expected


def test_pages_read_what_their_views_have(library: Library) -> None:
    """The columns, keys and filters of every dashboard page exist for its reader, and none is a text of a note."""
    filled(library)
    for page in app.pages.values():
        columns = ", ".join([*page.read_columns, *page.filters])
        rows = library.call(f"select {columns} from notes.{page.source.removeprefix('notes.')}")
        assert "ponds" not in str(rows), page.name
    assert len(library.call("select * from notes.note_list")) == 2


def test_ideas_are_counted_over_live_notes_and_books(library: Library) -> None:
    """Each note and book once per idea; the kind is canon, custom or other; ideas without notes are custom ones."""
    filled(library)
    library.push("books", id="b2", title="Cape Cod")
    library.push("notes", id="n3", book_id="b2", text="sand", tags=["Nature", "Nature", "Ponds"])
    library.push("notes", id="n4", text="no book", tags=["Nature", "Old name"])
    library.push("notes", id="n5", book_id="b2", text="gone", tags=["Nature"], deleted=True)
    library.push("custom_ideas", id="i2", name="Ponds")
    library.push("custom_ideas", id="i3", name="Unused")
    library.push("custom_ideas", id="i4", name="Dropped", deleted=True)
    other = join(library.db, "eve")
    other.push("notes", id="n1", text="x", tags=list(CANON))

    def ideas(who: Library) -> dict[str, tuple[str, int, int]]:
        rows = who.call("select * from notes.idea_list")
        assert len({row["id"] for row in rows}) == len(rows)
        assert all(row["user_id"] == who.user for row in rows)
        return {row["name"]: (row["kind"], row["notes"], row["books"]) for row in rows}

    assert ideas(library) == {
        "Nature": ("canon", 4, 2), "Solitude": ("canon", 1, 1), "Ponds": ("custom", 1, 1),
        "Old name": ("other", 1, 0), "Unused": ("custom", 0, 0),
    }  # fmt: skip
    assert ideas(other) == dict.fromkeys(CANON, ("canon", 1, 0)), (
        "the canon of the view is that of the devices"
    )
    assert ideas(join(library.db, "new")) == {}


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


def test_usage_events_are_append_only(library: Library) -> None:
    """R2.1/events: neither users nor the service can change or delete a line."""
    for role in ("authenticated", "service_role"):
        for statement in (
            "delete from penstock.usage_events",
            "update penstock.usage_events set units = '{}'",
        ):
            with library.db.connect() as conn:
                conn.execute(f"set role {role}")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    conn.execute(statement)


def test_audit_lines_are_added_by_the_service_and_never_changed(library: Library) -> None:
    """admin_audit_log: insert and select for the service, nothing else for anybody."""

    def service(statement: str, *values: Any) -> list[dict[str, Any]]:
        with psycopg.Connection[dict[str, Any]].connect(library.db.dsn, row_factory=dict_row) as conn:
            conn.execute("set role service_role")
            made = conn.execute(statement, values)  # pyright: ignore[reportArgumentType]
            return list(made.fetchall()) if made.description else []

    add = "insert into notes.admin_audit_log (action, subject, details, tenant_id) values ('override', 'user:1', '{\"n\": 1}', %s)"
    service(add, library.tenant)
    [row] = service("select action, subject from notes.admin_audit_log where tenant_id = %s", library.tenant)
    assert dict(row) == {"action": "admin.override", "subject": "user:1"}
    for statement in ("delete from notes.admin_audit_log", "update notes.admin_audit_log set subject = 'x'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            service(statement)
    assert library.refused("select * from notes.admin_audit_log")[0] == DENIED
    for view in ("fixed_costs", "cost_snapshot", "prompts", "stripe_webhook_events"):
        service(f"select * from notes.{view}")
        assert library.refused(f"select * from notes.{view}")[0] == DENIED
