"""Pages that an app declares: what a viewer sees, filters, exports and may do."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg.types.json import Jsonb

from penstock import App, Invalid, PageAction, api, dashboard
from tests.bookshelf.app import make_app

pytestmark = pytest.mark.own_sql(make_app())


@pytest.fixture
def shelf(db: Any, dashboard_settings: Any, beside: Any) -> Iterator[Any]:
    """The dashboard of an app with pages, two tenants and a loan of each."""
    app = make_app()
    made = api.create(dashboard_settings, app)
    dashboard.mount(made)
    with TestClient(made) as client:
        import tests.dashboard.conftest as own

        site: Any = own.Site(db, made, client)
        site.acme, site.other = site.tenant("Acme"), site.tenant("Other")
        lend(db, site.acme, "Otters")
        lend(db, site.other, "Herons")
        yield site


def lend(db: Any, tenant: Any, book: str, status: str = "out") -> int:
    statement = (
        "insert into bookshelf.loans (tenant_id, book, status, secret) values (%s, %s, %s, 'x') returning id"
    )
    return db.execute(statement, [tenant, book, status])[0]["id"]


def pages_of(browser: Any, path: str) -> Iterator[str]:
    """The text of every page of a list."""
    more = f"/dashboard{path}"
    while more:
        answer = browser.client.get(more)
        assert answer.status_code == 200, answer.text
        yield answer.text
        found = re.findall(r'href="([^"]*)" rel="next"', answer.text)
        more = found[0].replace("&amp;", "&") if found else ""


def test_viewer_sees_the_rows_of_their_tenants(shelf: Any) -> None:
    """B8/pages, S99: an app declares a page, and the dashboard shows it under the viewer's role."""
    owner, operator = shelf.browser(shelf.key("owner", shelf.acme)), shelf.browser(shelf.key("service"))
    page = owner.get("/app/loans")
    assert "Otters" in page.text and "Herons" not in page.text
    assert '<ul aria-label="Bookshelf">' in page.text and 'aria-current="page">Loans' in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    everything = operator.get("/app/loans").text
    assert "Otters" in everything and "Herons" in everything
    assert f'href="/dashboard/tenants/{shelf.other}"' in everything
    # The row of another tenant is not found; an operator's page is not there for members.
    [herons] = shelf.db.execute("select id from bookshelf.loans where book = 'Herons'")
    assert owner.get(f"/app/loans/row?key={herons['id']}").status_code == 404
    assert owner.get("/app/secrets").status_code == 404 and "Secrets" not in page.text
    assert "•••••" in operator.get("/app/secrets").text
    for path in (
        "/app/nothing",
        "/app/loans/row?key=x",
        "/app/loans/row?key=999999",
        "/app/loans/actions/x?key=1",
    ):
        assert owner.get(path).status_code == 404, path
    assert shelf.browser(None).get("/app/loans").status_code == 303


def test_dashboard_without_an_app_has_no_app_pages(site: Any) -> None:
    assert site.browser(site.key("service")).get("/app/loans").status_code == 404


def test_row_page_shows_the_columns_that_the_viewer_may_read(shelf: Any) -> None:
    [loan] = shelf.db.execute("select id from bookshelf.loans where book = 'Otters'")
    shown = shelf.browser(shelf.key("viewer", shelf.acme)).get(f"/app/shelf/row?key={loan['id']}").text
    assert "Otters" in shown and "secret" not in shown
    shown = shelf.browser(shelf.key("service")).get(f"/app/shelf/row?key={loan['id']}").text
    assert "secret" in shown and "•••••" in shown


def test_list_is_filtered_paged_and_exported(shelf: Any) -> None:
    for n in range(120):
        lend(shelf.db, shelf.acme, f"book {n}", "returned" if n % 2 else "out")
    owner = shelf.browser(shelf.key("owner", shelf.acme))
    books = [
        book for page in pages_of(owner, "/app/loans") for book in re.findall(r">(book \d+|Otters)</a>", page)
    ]
    assert books == [f"book {n}" for n in reversed(range(120))] + ["Otters"]
    assert "Otters" not in owner.get("/app/loans?filter=status:returned").text
    assert "Otters" in owner.get("/app/loans?filter=tenant_id:Acme book:Otters").text
    assert "unknown filter field" in owner.get("/app/loans?filter=secret:x").text.lower()
    for before in ("x", "[1, 2]", '["a"]', '[null, "x"]', "{}"):
        assert owner.get("/app/loans", params={"before": before}).status_code == 422, before
    lend(shelf.db, shelf.acme, "=cmd|' /C calc'!A0")
    rows = list(csv.reader(io.StringIO(owner.get("/app/loans.csv").text)))
    assert rows[0] == ["book", "status", "tenant_id"] and len(rows) == 123
    assert rows[1][0].startswith("'=cmd")


def test_rows_without_a_value_of_the_order_column_come_first_and_none_is_lost(shelf: Any) -> None:
    values = [None] * 60 + [n // 2 for n in range(60)]
    for n, score in enumerate(values):
        insert = "insert into bookshelf.notes (user_id, title, score, data) values (gen_random_uuid(), %s, %s, '{}')"
        shelf.db.execute(insert, [f"note {n:03}", score])
    operator = shelf.browser(shelf.key("service"))
    found = [
        title for page in pages_of(operator, "/app/notes") for title in re.findall(r">(note \d+)</a>", page)
    ]
    assert sorted(found) == [f"note {n:03}" for n in range(120)]
    assert set(found[:60]) == {f"note {n:03}" for n in range(60)}
    scores = [values[int(title[-3:])] or 0 for title in found[60:]]
    assert scores == sorted(scores, reverse=True)


def test_action_asks_and_then_calls_the_function_as_the_viewer(shelf: Any) -> None:
    """S99"""
    [loan] = shelf.db.execute("select id from bookshelf.loans where book = 'Otters'")
    key = {"key": str(loan["id"])}
    owner, viewer = (shelf.browser(shelf.key(role, shelf.acme)) for role in ("owner", "viewer"))
    stranger = shelf.browser(shelf.key("owner", shelf.other))
    assert "Return…" in owner.get("/app/loans").text and "Return…" not in viewer.get("/app/loans").text
    asked = owner.get("/app/loans/actions/return", params=key).text
    assert "Return Otters, which is out?" in asked
    assert viewer.get("/app/loans/actions/return", params=key).status_code == 403
    assert viewer.post("/app/loans/actions/return", key).status_code == 403
    assert stranger.post("/app/loans/actions/return", key).status_code == 404
    assert owner.post("/app/loans/actions/return", {**key, "token": "wrong"}).status_code == 403
    assert (
        owner.post("/app/loans/actions/return", key, headers={"Sec-Fetch-Site": "cross-site"}).status_code
        == 403
    )
    assert shelf.db.execute("select status from bookshelf.loans where book = 'Otters'") == [{"status": "out"}]
    done = owner.post("/app/loans/actions/return", {**key, "next": "https://elsewhere.example/"})
    assert (done.status_code, done.headers["location"]) == (303, "/dashboard/")
    [line] = shelf.db.execute(
        "select actor, subject from penstock.audit_log where action = 'bookshelf.returned'"
    )
    assert line["subject"] == f"loan:{loan['id']}" and line["actor"].startswith("user:")
    page = owner.get("/app/loans").text
    assert "returned" in page and "Return…" not in page


def test_files_of_a_row_are_shown_as_images(shelf: Any) -> None:
    insert = """insert into penstock.artifacts (tenant_id, name, path, content_type, bytes, sha256, status, created_by,
        created_at, begun_at, stored_at) values (%s, %s, %s, %s, 5, repeat('0', 64), 'stored', 'x', now(), now(), now())
        returning id"""
    made = {
        name: shelf.db.execute(insert, [tenant, name, f"{tenant}/{name}", kind])[0]["id"]
        for tenant, name, kind in (
            (shelf.acme, "otter.png", "image/png"),
            (shelf.acme, "otter.svg", "image/svg+xml"),
            (shelf.acme, "otter.tiff", "image/tiff"),
            (shelf.other, "heron.png", "image/png"),
        )
    }
    page = shelf.browser(shelf.key("owner", shelf.acme)).get("/app/files").text
    assert f'<img class="thumbnail" src="/dashboard/artifacts/{made["otter.png"]}"' in page
    for name in ("otter.svg", "otter.tiff"):
        assert f'href="/dashboard/artifacts/{made[name]}"' in page
        assert f'src="/dashboard/artifacts/{made[name]}"' not in page
    assert "heron.png" not in page


def test_no_payload_in_an_app_page_becomes_markup(shelf: Any) -> None:
    """R3.9, S32"""
    payloads = [text.replace("\0", "") for text in shelf.load("payloads").PAYLOADS]
    for n, text in enumerate(payloads):
        lend(shelf.db, shelf.acme, f"{text} {n}", text)
        note = (
            "insert into bookshelf.notes (user_id, title, data, short) values (gen_random_uuid(), %s, %s, %s)"
        )
        shelf.db.execute(note, [text, Jsonb({text: [text]}), text[:5]])
    reader = shelf.load("test_xss").Reader
    operator = shelf.browser(shelf.key("service"))
    for path in ("/app/loans", "/app/notes"):
        for page in pages_of(operator, path):
            assert not (found := reader(page).found), (path, found)
    loans = shelf.db.execute("select id from bookshelf.loans order by id")
    for loan in loans[::9]:
        for path in ("/app/loans/row", "/app/loans/actions/return"):
            page = operator.get(path, params={"key": loan["id"]}).text
            assert not (found := reader(page).found), (path, found)
    for text in payloads[::5]:
        for path in ("/app/loans", "/app/loans/row", "/app/loans/actions/return"):
            page = operator.get(path, params={"filter": text, "key": text, "next": text, "before": text}).text
            assert not (found := reader(page).found), (path, text, found)


RETURN = PageAction("return", "Return", "return_book", "p_loan_id")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Loans"}, "lower-case letters"),
        ({"name": "../x"}, "lower-case letters"),
        ({"columns": []}, "needs a title and columns"),
        ({"title": " "}, "needs a title and columns"),
        ({"source": "penstock.leases"}, "a view of the schema bookshelf"),
        ({"source": "a; drop"}, "letters, digits and _"),
        ({"columns": ['a"b']}, "letters, digits and _"),
        ({"filters": ["A-B"]}, "lower-case letters and _"),
        ({"actions": [RETURN, RETURN]}, "same name"),
        ({"links": {"id": "/jobs/{}"}}, "must be columns of the page"),
        ({"columns": ["picture", "book"], "files": ["picture"]}, "cannot be a file"),
        ({"links": {"book": "javascript:{}"}}, "a path within the dashboard"),
        ({"links": {"book": "//elsewhere.example/{}"}}, "a path within the dashboard"),
        ({"links": {"book": "/jobs"}}, "a path within the dashboard"),
    ],
)
def test_invalid_declarations_are_rejected(options: dict[str, Any], message: str) -> None:
    app = make_app()
    given: dict[str, Any] = {
        "name": "other", "title": "Other", "source": "loan_list", "columns": ["book"], "key": "id", **options,
    }  # fmt: skip
    with pytest.raises(Invalid, match=message):
        app.page(given.pop("name"), given.pop("title"), **given)


def test_page_of_an_app_without_a_schema_or_with_a_taken_name_is_rejected() -> None:
    with pytest.raises(Invalid, match="need an app with a schema"):
        App().page("loans", "Loans", source="loans", columns=["book"], key="id")
    with pytest.raises(Invalid, match="already exists"):
        make_app().page("loans", "Loans", source="loans", columns=["book"], key="id")
    with pytest.raises(Invalid, match="needs a title"):
        PageAction("x", " ", "f", "p_id")


def test_missing_view_is_named(shelf: Any) -> None:
    shelf.db.execute("drop view bookshelf.loan_list")
    shelf.app.state.rest_catalogues.clear()
    answer = shelf.browser(shelf.key("service")).get("/app/loans")
    assert answer.status_code == 404 and "bookshelf.loan_list does not exist" in answer.text
