"""Writes to the tables of an app, over PostgREST's protocol."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from postgrest.exceptions import APIError

from penstock import testing
from tests.api.conftest import bearer, settings_on, without_upkeep
from tests.api.rest.conftest import Node, Person, Site, refused, served
from tests.bookshelf.app import make_app
from tests.conftest import Eventually

# The client warns of its own way of using a part of itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The '(timeout|verify)' parameter is deprecated:DeprecationWarning"
)

BAD_REQUESTS: list[tuple[str, str, Any, int, str]] = [
    ("PATCH", "notes", {"title": "x"}, 400, "21000"),
    ("DELETE", "notes", None, 400, "21000"),
    ("DELETE", "notes?select=id&order=id", None, 400, "21000"),
    ("DELETE", "notes?title=eq.a&limit=1", None, 400, "PGRST100"),
    ("POST", "notes", {"no_such": 1}, 400, "PGRST204"),
    ("POST", "notes?columns=title,no_such", [{"title": "x"}], 400, "PGRST204"),
    ("POST", "notes?on_conflict=no_such", {"title": "x"}, 400, "PGRST204"),
    ("POST", "notes?on_conflict=title", {"title": "x"}, 400, "42P10"),
    ("PATCH", "notes?no_such=eq.1", {"title": "x"}, 400, "42703"),
    ("POST", "notes?title=eq.x", {"title": "x"}, 400, "PGRST100"),
    ("POST", "notes", [{"title": "x"}, {"score": 1}], 400, "PGRST102"),
    ("POST", "notes", [1], 400, "PGRST102"),
    ("POST", "notes", "text", 400, "PGRST102"),
    ("POST", "notes", b"", 400, "PGRST102"),
    ("POST", "notes", b'{"title": "a", "title": "b"}', 400, "PGRST102"),
    ("PATCH", "notes?title=eq.a", [{"title": "x"}], 400, "PGRST102"),
    ("POST", "notes", {"score": "many"}, 400, "22P02"),
    ("POST", "notes", {"short": "too long"}, 400, "22001"),
    ("POST", "notes", {"title": None}, 400, "23502"),
    ("POST", "notes", {"title": "x" * 201}, 400, "23514"),
    ("PUT", "notes?id=eq.1", {"title": "x"}, 405, "PGRST117"),
    ("POST", "nothing", {"title": "x"}, 404, "PGRST205"),
    ("POST", "visits", {}, 405, "PGRST117"),
    ("POST", "tenants", {"name": "x"}, 405, "PGRST117"),
    ("POST", "loan_list", {"book": "x"}, 405, "PGRST117"),
]  # fmt: skip


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
    """The application, with empty tables."""
    tables = shelf.db.execute("select tablename as name from pg_tables where schemaname = 'bookshelf'")
    shelf.db.execute("truncate " + ", ".join(f"bookshelf.{table['name']}" for table in tables))
    yield shelf
    shelf.close()


def send(site: Site, method: str, path: str, by: str, body: Any = None, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    every = {**bearer(by), "Content-Type": "application/json", **headers}
    return site.http.request(method, f"/rest/v1/{path}", content=content, headers=every)


def notes(site: Site) -> list[dict[str, Any]]:
    return site.db.execute("select * from bookshelf.notes order by user_id, id")


def user(site: Site, person: Person, schema: str = "public") -> Any:
    """An unmodified supabase-py of a signed-in user."""
    client = site.client(site.anon_key, schema=schema)
    client.postgrest.auth(person.token)
    return client


class TestSupabasePython:
    """B8/tables, B5/python: an unmodified supabase-py writes to an app's tables."""

    def test_rows_are_inserted_changed_and_deleted(self, site: Site, ann: Person) -> None:
        table = user(site, ann).table
        [first] = (
            table("notes").insert({"title": "otters", "tags": ["a", "b"], "data": {"n": 1}}).execute().data
        )
        assert (first["title"], first["tags"], first["data"]) == ("otters", ["a", "b"], {"n": 1})
        assert first["user_id"] == str(ann.id)
        many = [{"title": f"n{n}", "score": n} for n in range(3)]
        assert len(table("notes").insert(many).execute().data) == 3
        found = table("notes").update({"score": 7, "data": None}).eq("title", "otters").execute().data
        assert [(row["id"], row["score"], row["data"]) for row in found] == [(first["id"], 7, None)]
        one = table("notes").select("title").eq("id", first["id"]).single().execute().data
        assert one == {"title": "otters"}
        gone = table("notes").delete().gte("score", 1).execute().data
        assert {row["title"] for row in gone} == {"otters", "n1", "n2"}
        assert [row["title"] for row in notes(site)] == ["n0"]

    def test_a_thousand_rows_are_upserted(self, site: Site, ann: Person) -> None:
        ids = [str(uuid.uuid4()) for _ in range(1000)]
        table = user(site, ann).table
        rows = [{"id": id, "title": f"n{n}"} for n, id in enumerate(ids)]
        assert len(table("notes").upsert(rows[:400], on_conflict="user_id,id").execute().data) == 400
        again = [{**row, "title": "again"} for row in rows]
        assert len(table("notes").upsert(again, on_conflict="user_id,id").execute().data) == 1000
        assert {row["title"] for row in notes(site)} == {"again"} and len(notes(site)) == 1000
        table("notes").upsert([{"id": ids[0], "title": "no"}], ignore_duplicates=True).execute()
        assert {row["title"] for row in notes(site)} == {"again"}

    def test_a_stale_row_is_skipped_and_the_others_are_written(self, site: Site, ann: Person) -> None:
        """A trigger that skips a row raises no error: the row is not in the response."""
        ids = [str(uuid.uuid4()) for _ in range(2)]
        table = user(site, ann).table
        old, new = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
        table("notes").upsert([{"id": id, "title": "a", "updated_at": new} for id in ids]).execute()
        late = [
            {"id": ids[0], "title": "stale", "updated_at": old},
            {"id": ids[1], "title": "b", "updated_at": new},
        ]
        assert [row["id"] for row in table("notes").upsert(late).execute().data] == [ids[1]]
        assert sorted(row["title"] for row in notes(site)) == ["a", "b"]

    def test_functions_of_the_app_and_of_the_platform(self, site: Site, ann: Person) -> None:
        """D1: `public` is the app's schema first, then Penstock's."""
        client = user(site, ann)
        client.table("notes").insert({"title": "x"}).execute()
        assert client.rpc("count_notes", {"p_title": "x"}).execute().data == 1
        assert client.rpc("my_tenants", {}).execute().data == [str(ann.tenant)]
        assert user(site, ann, "bookshelf").rpc("count_notes", {}).execute().data == 1
        for schema, name in (("bookshelf", "my_tenants"), ("penstock", "count_notes")):
            with pytest.raises(APIError) as missing:
                user(site, ann, schema).rpc(name, {}).execute()
            assert missing.value.code == "PGRST202"
        service = site.client(site.service_key, schema="public")
        assert service.rpc("pulse", {}).execute().data == "bookshelf"
        assert site.service().rpc("pulse", {}).execute().data != "bookshelf"


class TestSupabaseJavaScript:
    """B8/tables, B5/javascript"""

    @pytest.mark.slow
    def test_what_a_browser_writes(self, site: Site, ann: Person, bob: Person, node: Node) -> None:
        answers = json.loads(node("writes.mjs", site.url, site.anon_key, ann.token, str(bob.id)))
        errors = {name: answer["error"]["code"] for name, answer in answers.items() if answer["error"]}
        assert errors == {"unfiltered": "21000", "foreign": "42501", "penstock": "PGRST117"}
        assert {name: answer["status"] for name, answer in answers.items()} == {
            "inserted": 201, "minimal": 201, "many": 201, "upserted": 201, "ignored": 201, "updated": 200,
            "quiet": 204, "single": 200, "deleted": 200, "called": 200, "unfiltered": 400, "foreign": 403,
            "penstock": 405,
        }  # fmt: skip
        data = {name: answer["data"] for name, answer in answers.items()}
        assert (data["inserted"][0]["title"], data["minimal"], len(data["many"])) == ("otters", None, 2)
        assert (len(data["upserted"]), data["ignored"]) == (1000, [])
        assert data["updated"] == [{"title": "seals"}] and data["single"] == {"title": "whales"}
        assert (len(data["deleted"]), data["called"]) == (1000, 4)
        assert len(notes(site)) == 4


class TestForms:
    """PostgREST's statuses, headers and errors."""

    def test_an_insert_answers_as_postgrest_does(self, site: Site, ann: Person) -> None:
        made = send(site, "POST", "notes", ann.token, {"title": "a"})
        assert (made.status_code, made.content, made.headers["content-range"]) == (201, b"", "*/*")
        assert made.headers["content-profile"] == "bookshelf"
        whole = send(
            site, "POST", "notes?select=title,score", ann.token, [{"title": "b", "score": 1.5}],
            Prefer="return=representation,count=exact",
        )  # fmt: skip
        assert (whole.status_code, whole.json()) == (201, [{"title": "b", "score": 1.5}])
        assert whole.headers["content-range"] == "*/1"
        assert whole.headers["preference-applied"] == "return=representation, count=exact"
        merged = send(
            site, "POST", "notes", ann.token, {"title": "c"},
            Prefer="resolution=merge-duplicates,return=minimal",
        )  # fmt: skip
        assert merged.headers["preference-applied"] == "resolution=merge-duplicates, return=minimal"

    def test_a_number_is_not_rounded(self, site: Site, ann: Person) -> None:
        body = b'{"score": 9007199254740993.000000000000000001, "data": {"n": 9007199254740993}}'
        assert send(site, "POST", "notes", ann.token, body).status_code == 201
        [row] = site.db.execute("select score::text, data::text from bookshelf.notes")
        assert row == {"score": "9007199254740993.000000000000000001", "data": '{"n": 9007199254740993}'}

    def test_odd_names_and_values_stay_values(self, site: Site, ann: Person) -> None:
        """Names come from the catalogue; a value is never SQL."""
        odd = 'odd "name%'
        evil = "'); drop table bookshelf.notes; -- %s \\ \" {}"
        made = send(
            site, "POST", "notes?columns=%22odd%20%5C%22name%25%22,title", ann.token,
            [{odd: evil, "title": evil, "change_seq": 9}], Prefer="return=representation",
        )  # fmt: skip
        assert (made.json()[0][odd], made.json()[0]["title"]) == (evil, evil)
        changed = send(
            site, "PATCH", f"notes?title=eq.{evil}", ann.token, {odd: "x"}, Prefer="return=representation"
        )
        assert [row[odd] for row in changed.json()] == ["x"]

    def test_defaults_and_empty_bodies(self, site: Site, ann: Person) -> None:
        assert send(site, "POST", "notes", ann.token, {}).status_code == 201
        assert send(site, "POST", "notes", ann.token, [{}]).status_code == 201
        nothing = send(site, "POST", "notes", ann.token, [], Prefer="return=representation")
        assert (nothing.status_code, nothing.json()) == (201, [])
        assert [row["title"] for row in notes(site)] == ["untitled"] * 2
        still = send(site, "PATCH", "notes?title=eq.untitled", ann.token, {}, Prefer="return=representation")
        assert (still.status_code, still.json()) == (200, [])

    def test_one_object_is_one_row(self, site: Site, ann: Person) -> None:
        """A write that would return another number of rows is rolled back."""
        single = {"Accept": "application/vnd.pgrst.object+json", "Prefer": "return=representation"}
        send(site, "POST", "notes", ann.token, [{"title": "a"}, {"title": "b"}])
        refused(
            send(site, "PATCH", "notes?title=in.(a,b)", ann.token, {"score": 1}, **single), 406, "PGRST116"
        )
        refused(send(site, "DELETE", "notes?title=in.(a,b)", ann.token, **single), 406, "PGRST116")
        assert [(row["title"], row["score"]) for row in notes(site)] != [] and len(notes(site)) == 2
        assert {row["score"] for row in notes(site)} == {None}
        done = send(site, "PATCH", "notes?title=eq.a", ann.token, {"score": 1}, **single)
        assert done.json()["score"] == 1

    def test_bad_requests_are_refused_and_change_nothing(self, site: Site, ann: Person) -> None:
        send(site, "POST", "notes", ann.token, {"title": "a"})
        for method, path, body, status, code in BAD_REQUESTS:
            prefer = {"Prefer": "resolution=merge-duplicates"} if "on_conflict" in path else {}
            refused(send(site, method, path, ann.token, body, **prefer), status, code)
        assert [row["title"] for row in notes(site)] == ["a"]
        assert site.db.execute("select from bookshelf.visits") == []


class TestRights:
    """B8/tables, S6, S15: a write runs as the caller; grants and policies decide."""

    def test_another_users_rows_are_not_touched(self, site: Site, ann: Person, bob: Person) -> None:
        """R0.9/no-existence: nothing tells ann that bob has a row of this id."""
        id = str(uuid.uuid4())
        send(site, "POST", "notes", bob.token, {"id": id, "title": "bob's"})
        whole = {"Prefer": "return=representation"}
        refused(send(site, "POST", "notes", ann.token, {"user_id": str(bob.id), "title": "x"}), 403, "42501")
        assert send(site, "PATCH", f"notes?id=eq.{id}", ann.token, {"title": "x"}, **whole).json() == []
        assert send(site, "DELETE", f"notes?id=eq.{id}", ann.token, **whole).json() == []
        assert send(site, "DELETE", "notes?title=not.is.null", ann.token, **whole).json() == []
        merge = {"Prefer": "resolution=merge-duplicates,return=representation"}
        mine = send(site, "POST", "notes", ann.token, {"id": id, "title": "ann's"}, **merge)
        assert [row["user_id"] for row in mine.json()] == [str(ann.id)]
        assert {row["title"]: row["user_id"] for row in notes(site)} == {"bob's": bob.id, "ann's": ann.id}
        # Giving a row away is refused too; the column is not even granted for updates.
        refused(send(site, "PATCH", f"notes?id=eq.{id}", ann.token, {"user_id": str(bob.id)}), 403, "42501")

    def test_a_column_that_is_not_granted_cannot_be_written(self, site: Site, ann: Person) -> None:
        refused(send(site, "POST", "notes", ann.token, {"title": "x", "change_seq": 9}), 403, "42501")
        send(site, "POST", "notes", ann.token, {"title": "x"})
        refused(send(site, "PATCH", "notes?title=eq.x", ann.token, {"change_seq": 9}), 403, "42501")
        assert [row["change_seq"] for row in notes(site)] == [0]

    def test_a_column_that_is_not_readable_is_not_returned(self, site: Site, ann: Person) -> None:
        """With return=minimal no column is read, so a write-only column can be written."""
        assert send(site, "POST", "loans", ann.token, {"book": "a", "secret": "s"}).status_code == 201
        whole = {"Prefer": "return=representation"}
        refused(send(site, "POST", "loans", ann.token, {"book": "b"}, **whole), 403, "42501")
        some = send(site, "POST", "loans?select=id,book", ann.token, {"book": "b"}, **whole)
        assert [row["book"] for row in some.json()] == ["b"]
        refused(send(site, "PATCH", "loans?secret=eq.s", ann.token, {"status": "x"}), 403, "42501")
        assert send(site, "PATCH", "loans?book=eq.a", ann.token, {"status": "back"}).status_code == 204
        refused(site.get("loans?select=secret", ann.token), 403, "42501")
        assert len(site.get("loans?select=book", ann.token).json()) == 2

    def test_an_error_shows_no_row(self, site: Site, ann: Person) -> None:
        """PostgreSQL's detail has the values of the row."""
        send(site, "POST", "loans", ann.token, {"book": "canary"})
        body = refused(send(site, "POST", "loans", ann.token, {"book": "canary"}), 409, "23505")
        assert (body["details"], body["hint"]) == (None, None) and "canary" not in body["message"]

    def test_who_may_not_write(self, site: Site, ann: Person) -> None:
        refused(send(site, "POST", "notes", site.anon_key, {"title": "x"}), 401, "42501")
        refused(send(site, "POST", "notes", site.key("worker"), {"title": "x"}), 403, "42501")
        # The app granted the service nothing but reading.
        refused(send(site, "POST", "notes", site.service_key, {"title": "x"}), 403, "42501")
        [reader] = site.db.execute(
            "select secret from penstock.create_api_key('reader', 'member', %s)",
            [json.dumps({"tenant_id": str(ann.tenant), "scopes": ["read"]})],
        )
        refused(send(site, "POST", "loans", reader["secret"], {"book": "x"}), 403, "42501")
        viewer = site.key("viewer", ann.tenant)
        assert (
            send(site, "POST", "loans", viewer, {"book": "x", "tenant_id": str(ann.tenant)}).status_code
            == 201
        )
        assert notes(site) == []

    def test_worker_keys_call_the_functions_that_the_app_lists(self, site: Site) -> None:
        key = site.key("worker")
        assert site.post("next_page", key, {"p_worker_id": "w1"}).json() == "page for w1"
        refused(site.post("finish_page", key), 403, "42501")
        assert site.post("finish_page", key, {"p_lease": 7}).json() == 7
        # The name is in Penstock's list, but this is the app's function.
        refused(site.post("pulse", key), 403, "42501")
        refused(site.post("count_notes", key), 403, "42501")
        assert site.post("claim_tasks", key, {"p_worker_id": "w1"}).json() == []

    def test_the_profile_chooses_the_schema(self, site: Site, ann: Person) -> None:
        site.db.execute("insert into bookshelf.jobs values (%s, 'mine')", [ann.tenant])
        assert site.get("jobs", ann.token).json()[0]["name"] == "mine"
        assert site.get("jobs", ann.token, **{"Accept-Profile": "penstock"}).json() == []
        assert site.get("jobs", ann.token).headers["content-profile"] == "bookshelf"
        assert site.get("job_list", ann.token).headers["content-profile"] == "penstock"
        refused(site.get("job_list", ann.token, **{"Accept-Profile": "bookshelf"}), 404, "PGRST205")
        other = {"Content-Profile": "penstock"}
        refused(send(site, "POST", "notes", ann.token, {"title": "x"}, **other), 404, "PGRST205")
        body = refused(site.get("jobs", ann.token, **{"Accept-Profile": "auth"}), 406, "PGRST106")
        assert body["hint"].endswith("penstock, public, bookshelf")

    def test_a_body_that_is_too_large_is_refused(self, site: Site, ann: Person) -> None:
        body = b'[{"title": "' + b"x" * (9 << 20) + b'"}]'
        assert send(site, "POST", "notes", ann.token, body).status_code == 413
        assert notes(site) == []
