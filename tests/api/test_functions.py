"""HTTP functions of an app, called as Supabase clients call Edge Functions; uploads that they finish."""

from __future__ import annotations

import hmac
import json
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import structlog
from supabase_functions.errors import FunctionsHttpError

from penstock import App, Invalid, testing
from penstock.contract import artifacts
from penstock.errors import Unavailable
from penstock.postgres import db as database
from penstock.settings import Settings
from penstock.storage import objects as storages
from penstock.types import Artifact
from penstock.upkeep import Tidy
from tests.api.conftest import Person, World, bearer
from tests.api.rest.conftest import Node, Site, node, served
from tests.api.rest.test_writing import shelf
from tests.bookshelf.app import SECRET, lend_file, make_app
from tests.conftest import Eventually

__all__ = ["node", "shelf"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:The '(timeout|verify)' parameter is deprecated:DeprecationWarning"
)


@pytest.fixture
def app(db: testing.Database) -> Iterator[App]:
    with make_app() as app:
        app.migrate(db.dsn)
        yield app


@pytest.fixture
def site(db: testing.Database, app: App, api_settings: Settings, eventually: Eventually) -> Iterator[Site]:
    with served(db, api_settings, eventually, app) as made:
        yield made


def invoke(site: Site, name: str, by: str | None, body: bytes = b"", **headers: str) -> httpx.Response:
    every = {**(bearer(by) if by else {}), **headers}
    return site.http.post(f"/functions/v1/{name}", content=body, headers=every)


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"].startswith("application/problem+json")
    return response.json()


class TestInvoke:
    """B8/functions: `functions.invoke` calls a function of the app as the caller."""

    @pytest.fixture
    def site(self, shelf: Site) -> Site:
        return shelf

    def test_supabase_python(self, site: Site) -> None:
        """An unmodified supabase-py."""
        ann = site.join("ann")
        client = site.client(site.anon_key, schema="public")
        with pytest.raises(FunctionsHttpError) as nobody:
            client.functions.invoke("my-notes", {"body": {}})
        assert nobody.value.status == 401
        client.functions.set_auth(ann.token)
        given = client.functions.invoke("my-notes", {"body": {"a": [1]}, "responseType": "json"})
        assert given == {
            "count": 0, "tenant": str(ann.tenant), "user": str(ann.id), "sent": {"a": [1]}, "query": {},
        }  # fmt: skip
        read = client.functions.invoke("my-notes?page=2", {"method": "GET", "responseType": "json"})
        assert (read["sent"], read["query"]) == (None, {"page": "2"})
        client.functions._client.close()

    @pytest.mark.slow
    def test_supabase_javascript(self, site: Site, node: Node) -> None:
        """An unmodified supabase-js."""
        ann = site.join("ann")
        answers = json.loads(node("functions.mjs", site.url, site.anon_key, ann.token))
        assert answers["notes"]["data"]["sent"] == {"a": 1} and answers["notes"]["error"] is None
        assert (answers["missing"]["status"], answers["nobody"]["status"]) == (404, 401)

    def test_an_open_function_verifies_raw_bytes(self, site: Site) -> None:
        """S54, S93: no credential is needed, and a sender's own Authorization header does no harm."""
        body = b'{"b": 1,  "a": 2}'
        good = hmac.new(SECRET, body, "sha256").hexdigest()
        done = invoke(site, "hook", None, body, **{"X-Signature": good})
        assert (done.status_code, done.content, done.headers["content-type"]) == (202, body, "text/plain")
        assert "sandbox" in done.headers["content-security-policy"]
        own = invoke(site, "hook", "the provider's own", body, **{"X-Signature": good})
        assert own.status_code == 202
        problem(invoke(site, "hook", None, body + b" ", **{"X-Signature": good}), 403, "invalid_signature")
        problem(invoke(site, "hook", None, b"x" * 1001), 413, "too_large")

    def test_refusals_are_problem_documents(self, site: Site) -> None:
        """S93"""
        ann = site.join("ann")
        problem(invoke(site, "nothing", ann.token), 404, "unknown_function")
        problem(invoke(site, "nothing", None), 401, "unauthenticated")
        problem(invoke(site, "my-notes", "not a token"), 401, "unauthenticated")
        problem(invoke(site, "my-notes", site.key("worker")), 403, "missing_scope")
        problem(invoke(site, "my-notes", ann.token, b"{"), 422, "invalid_json")
        problem(invoke(site, "forbidden-write", ann.token), 403, "forbidden")
        problem(invoke(site, "slow", ann.token), 503, "function_timeout")
        wrong = site.http.get("/functions/v1/hook")
        assert problem(wrong, 405, "method_not_allowed") and wrong.headers["allow"] == "POST"
        [row] = site.db.execute("select value from penstock.settings where name = 'maintenance'")
        assert row["value"] is False

    def test_a_bug_shows_a_request_id_and_nothing_else(self, site: Site) -> None:
        """S93"""
        ann = site.join("ann")
        # Printing the traceback would take seconds.
        with structlog.testing.capture_logs() as logs:
            body = problem(invoke(site, "broken", ann.token), 500, "error")
        assert [log for log in logs if log["event"] == "request failed"]
        assert "secret" not in json.dumps(body) and body["request_id"]

    def test_functions_are_described(self, site: Site) -> None:
        paths = site.http.get("/api/openapi.json").json()["paths"]
        assert set(paths["/functions/v1/my-notes"]) == {"get", "post"}
        assert paths["/functions/v1/hook"]["post"]["security"] == []


def test_bad_declarations_are_refused() -> None:
    app = make_app()
    for name, methods in (("hook", ["POST"]), ("No", ["POST"]), ("../x", ["POST"]), ("ok", ["TRACE"])):
        with pytest.raises(Invalid):
            app.function(name, methods=methods)


class TestUploads:
    """B8/kept-files, R3.6: the file and the app's row are one commit; a client that dies loses no file."""

    def begin(self, site: Site, person: Any, name: str = "a.txt", key: str = "bookshelf:1") -> str:
        """An upload whose bytes were sent. Returns its id."""
        begun = site.http.post(
            "/api/uploads",
            json={"name": name, "content_type": "text/plain", "bytes": 5},
            headers={**bearer(person.token), "Idempotency-Key": key},
        ).json()
        assert site.http.put(begun["url"], content=b"hello").status_code == 204
        return begun["id"]

    def rows(self, site: Site) -> tuple[list[str], list[tuple[str, str | None]]]:
        loans = site.db.execute("select book from bookshelf.loans order by id")
        files = site.db.execute("select status, subject from penstock.artifacts order by id")
        return [row["book"] for row in loans], [(row["status"], row["subject"]) for row in files]

    def test_a_function_finishes_an_upload_with_its_own_row(self, site: Site) -> None:
        ann, bob = site.join("ann"), site.join("bob")
        upload = self.begin(site, ann)
        body = json.dumps({"id": upload}).encode()
        problem(invoke(site, "add-file", bob.token, body), 404, "unknown_artifact")
        assert invoke(site, "add-file", ann.token, body).status_code == 201
        again = invoke(site, "add-file", ann.token, body)
        assert (again.status_code, again.json()) == (200, {"is_new": False})
        loans, [(status, subject)] = self.rows(site)
        assert (loans, status) == (["a.txt"], "stored") and (subject or "").startswith("bookshelf.loan:")
        # The app refuses a second book of this name: the file is not stored either.
        second = self.begin(site, ann, key="bookshelf:2")
        refused = invoke(site, "add-file", ann.token, json.dumps({"id": second}).encode())
        assert refused.status_code == 409
        assert self.rows(site)[0] == ["a.txt"] and self.rows(site)[1][1][0] == "deleted"

    def test_the_finish_route_stores_the_file_with_the_row_of_the_app(self, site: Site) -> None:
        """R3.6: the general route and the app's own function make the same commit."""
        ann = site.join("ann")
        finish = lambda upload: site.http.post(f"/api/uploads/{upload}/finish", headers=bearer(ann.token))  # noqa: E731
        first = self.begin(site, ann)
        assert [finish(first).status_code for _ in range(2)] == [200, 200]
        loans, [(status, subject)] = self.rows(site)
        assert (loans, status) == (["a.txt"], "stored") and (subject or "").startswith("bookshelf.loan:")
        # The app refuses a second book of this name: the file is not stored either.
        assert finish(self.begin(site, ann, key="bookshelf:2")).status_code == 409
        assert self.rows(site)[0] == ["a.txt"] and self.rows(site)[1][1][0] == "deleted"
        # An upload that is not the app's has no row.
        assert finish(self.begin(site, ann, "b.txt", "another:1")).status_code == 200
        assert self.rows(site)[0] == ["a.txt"] and self.rows(site)[1][2] == ("stored", None)

    async def test_upkeep_adopts_uploads_of_dead_clients(
        self, site: Site, api_settings: Settings, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ann = site.join("ann")
        self.begin(site, ann, "mine.txt", "bookshelf:1")
        self.begin(site, ann, "other.txt", "another:1")
        async with database.pool(site.db.dsn, max_size=2) as pool:
            tidy = Tidy(pool, lambda: storages.of(api_settings), app.uploads)
            await tidy.once()
            assert self.rows(site)[0] == [], "the client may still finish it"
            monkeypatch.setattr(Tidy, "ADOPT_SECONDS", 0.0)
            await tidy.once()
            await tidy.once()
        loans, files = self.rows(site)
        assert loans == ["mine.txt"] and [status for status, _ in files] == ["stored", "pending"]

    def test_overlapping_prefixes_are_refused(self, app: App) -> None:
        for prefix in ("bookshelf:", "bookshelf:x:", "book", "", "x" * 101):
            with pytest.raises(Invalid):
                app.upload(prefix)

    async def test_uploads_of_dead_clients_are_adopted(
        self, site: Site, api_settings: Settings, app: App
    ) -> None:
        ann = site.join("ann")
        self.begin(site, ann, "mine.txt", "bookshelf:1")
        self.begin(site, ann, "other.txt", "another:1")
        site.http.post(
            "/api/uploads",
            json={"name": "never.txt", "content_type": "text/plain", "bytes": 5},
            headers={**bearer(ann.token), "Idempotency-Key": "bookshelf:2"},
        )
        storage = storages.of(api_settings)
        async with database.pool(site.db.dsn, max_size=2) as pool:
            adopt = partial(artifacts.adopt_uploads, pool, storage, key_prefix="bookshelf:")
            assert await adopt(lend_file) == 0, "the client may still finish it"

            async def away(conn: database.Connection, file: Artifact) -> None:
                await lend_file(conn, file)
                raise Unavailable("the database is away")

            with pytest.raises(Unavailable):
                await adopt(away, older_than=0)
            assert self.rows(site)[0] == []
            assert await adopt(lend_file, older_than=0) == 1
            assert await adopt(lend_file, older_than=0) == 0
        assert self.rows(site)[0] == ["mine.txt"]
        stored = site.db.execute("select name from penstock.artifacts where status = 'stored'")
        assert [row["name"] for row in stored] == ["mine.txt"]


def test_without_an_app_there_are_no_functions(world: World) -> None:
    ann: Person = world.join("ann")
    assert world.client.post("/functions/v1/x", headers=ann.headers).status_code == 404
    assert world.client.post(f"/functions/v1/{uuid.uuid4()}").status_code == 401
