"""Synced tables over HTTP, with the unmodified supabase clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from postgrest.exceptions import APIError

from penstock import testing
from tests.api.conftest import settings_on, without_upkeep
from tests.api.rest.conftest import Node, Person, Site, served
from tests.bookshelf.app import make_app
from tests.conftest import Eventually

pytestmark = pytest.mark.filterwarnings(
    "ignore:The '(timeout|verify)' parameter is deprecated:DeprecationWarning"
)


@pytest.fixture(scope="module")
def shelf(server: testing.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The application with the app of the tests."""
    with server.database() as db, make_app() as app, ExitStack() as stack:
        app.migrate(db.dsn)
        settings = settings_on(db, tmp_path_factory.mktemp("home"))
        with without_upkeep():
            made = stack.enter_context(served(db, settings, Eventually(), app))
        yield made


@pytest.fixture
def site(shelf: Site) -> Iterator[Site]:
    """The application, with users of the test's own."""
    yield shelf
    shelf.close()


def device(site: Site, person: Person) -> Any:
    """An unmodified supabase-py of a signed-in user."""
    client = site.client(site.anon_key, schema="public")
    client.postgrest.auth(person.token)
    return client


def milliseconds(site: Site) -> int:
    [row] = site.db.execute("select floor(extract(epoch from penstock._now()) * 1000)::bigint as now")
    return row["now"]


def fetch_since(client: Any, table: str, cursor: int, limit: int = 1000) -> list[dict[str, Any]]:
    """Pages after the cursor until a short one, as a client pulls."""
    found: list[dict[str, Any]] = []
    while True:
        query = client.table(table).select("*").gt("change_seq", cursor).order("change_seq").limit(limit)
        page = query.execute().data
        found += page
        if len(page) < limit:
            return found
        cursor = page[-1]["change_seq"]


def test_two_devices_exchange_rows_by_cursor(site: Site, ann: Person, bob: Person) -> None:
    """R2.8/pages, R2.8/tombstones: upserts, keyset pages with a cursor per table, and tombstones of cascades."""
    now = milliseconds(site)
    one, two, stranger = device(site, ann), device(site, ann), device(site, bob)
    one.table("topics").upsert({"id": "t", "name": "otters", "updated_at": now}).execute()
    cards = [
        {"id": f"c{n}", "topic_id": "t", "body": f"card {n}", "tags": ["x"], "updated_at": now}
        for n in range(250)
    ]
    one.table("cards").upsert(cards).execute()
    cursors = {"topics": 0, "cards": 0}
    assert [row["name"] for row in fetch_since(two, "topics", 0)] == ["otters"]
    rows = fetch_since(two, "cards", 0, 100)
    assert [row["id"] for row in rows] == [row["id"] for row in cards]
    cursors["cards"] = rows[-1]["change_seq"]
    assert fetch_since(two, "cards", cursors["cards"]) == []
    # A stale row is not in the answer, the rest of the batch is written.
    again = [{**cards[0], "body": "stale", "updated_at": now - 1}, {**cards[1], "body": "new"}]
    assert [row["id"] for row in two.table("cards").upsert(again).execute().data] == ["c1"]
    [changed] = fetch_since(one, "cards", cursors["cards"])
    assert (changed["id"], changed["body"]) == ("c1", "new")
    two.table("topics").update({"deleted": True, "updated_at": now + 1}).eq("id", "t").execute()
    gone = fetch_since(one, "cards", changed["change_seq"])
    assert len(gone) == 250 and all(row["deleted"] for row in gone)
    assert fetch_since(stranger, "cards", 0) == []


def test_two_devices_with_supabase_js(site: Site, ann: Person, bob: Person, node: Node) -> None:
    """R2.8/pages, R2.8/tombstones, R2.14/missing-table: pages of 1,000, stale rows, outcomes and cascades in a browser's client."""
    now = str(milliseconds(site))
    found = json.loads(node("sync.mjs", site.url, site.anon_key, ann.token, bob.token, now))
    assert found["pulled"] == [f"c{n}" for n in range(1500)]
    assert found["written"] == [{"id": "c1"}] and found["changed"] == [["c1", "newer"]]
    assert found["outcomes"] == {
        "t": ["applied", None],
        "c1": ["stale", None],
        "lost": ["refused", "missing_parent"],
    }
    assert found["gone"] == 1500 and found["isUpToDate"]
    assert found["stranger"] == [] and found["number"] == "42501" and found["missing"] == "PGRST205"


def test_push_reports_each_row(site: Site, ann: Person) -> None:
    """R2.8/replays: over HTTP, with the state that a device asks for first."""
    now = milliseconds(site)
    client = device(site, ann)
    changes = [
        {"table": "cards", "record": {"id": "1", "topic_id": "t", "body": "x", "updated_at": now}},
        {"table": "topics", "record": {"id": "t", "updated_at": now}},
        {"table": "topics", "record": {"id": "ahead", "updated_at": now + 3_600_000}},
    ]
    for _ in range(3):
        rows = client.rpc("push_changes", {"p_changes": changes}).execute().data
        assert [(row["id"], row["outcome"], row["code"]) for row in rows] == [
            ("t", "applied", None), ("ahead", "refused", "clock_ahead"), ("1", "applied", None),
        ]  # fmt: skip
        state = client.rpc("sync_state", {}).execute().data
        assert state["tables"]["topics"] == {"seq": rows[0]["change_seq"], "horizon": 0}
        assert abs(state["server_ms"] - now) < 60_000


def test_a_client_cannot_write_the_number_or_anothers_row(site: Site, ann: Person, bob: Person) -> None:
    now = milliseconds(site)
    table = device(site, ann).table("topics")
    for wrong in ({"change_seq": 1}, {"user_id": str(bob.id)}):
        with pytest.raises(APIError) as seen:
            table.upsert({"id": "x", "updated_at": now, **wrong}).execute()
        assert seen.value.code == "42501"
    with pytest.raises(APIError) as seen:
        table.upsert({"id": "x", "updated_at": now + 3_600_000}).execute()
    assert "5 minutes" in str(seen.value.message)


def test_an_old_client_reads_by_updated_at(site: Site, ann: Person) -> None:
    """R2.14/old-clients: upserts as always, and pulls by updated_at."""
    now = milliseconds(site)
    table = device(site, ann).table
    table("topics").upsert([{"id": "a", "updated_at": now - 5}, {"id": "b", "updated_at": now}]).execute()
    rows = table("topics").select("id,updated_at").gte("updated_at", now).execute().data
    assert rows == [{"id": "b", "updated_at": now}]


def test_a_table_that_is_missing_has_a_code_of_its_own(site: Site, ann: Person) -> None:
    with pytest.raises(APIError) as seen:
        fetch_since(device(site, ann), "lenses", 0)
    assert seen.value.code == "PGRST205"
