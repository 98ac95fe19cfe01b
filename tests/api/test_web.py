"""The web client of an app: static files, and nothing outside of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from penstock import App, api
from penstock.errors import Invalid
from penstock.settings import Settings
from tests.bookshelf.app import make_app

CLIENT = Path(__file__).parents[2] / "penstock/apps/notes/web"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "web"
    made.mkdir()
    (made / "index.html").write_text("<title>Shelf</title>")
    (made / "client.js").write_text("'use strict'")
    (made / "secret.py").write_text("SECRET = 1")
    (tmp_path / "outside.html").write_text("outside")
    (made / "deep").mkdir()
    (made / "deep/page.html").write_text("deep")
    return made


def test_only_files_of_the_folder_are_served(api_settings: Settings, folder: Path) -> None:
    """B8/tables, S54, S93: types that a client needs, with a policy that allows the folder's own scripts only."""
    app = make_app()
    app.web = folder
    with TestClient(api.create(api_settings, app)) as http:
        page = http.get("/web/bookshelf/")
        assert page.text == "<title>Shelf</title>" and page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "script-src 'self';" in policy and "unsafe" not in policy and "default-src 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert http.get("/web/bookshelf", follow_redirects=False).headers["location"] == "/web/bookshelf/"
        assert http.get("/web/bookshelf/client.js").headers["content-type"].startswith("text/javascript")
        for path in ("secret.py", "none.html", "deep/page.html", "deep", "../outside.html", "..%2foutside.html",
                     "%2e%2e/outside.html", "%2fetc/passwd", "deep%2fpage.html", "..", "a%00.html"):  # fmt: skip
            answer = http.get(f"/web/bookshelf/{path}")
            assert answer.status_code in (400, 404), path
            assert "outside" not in answer.text and answer.text != "deep"
        assert http.get("/web/other/").json()["code"] == "unknown_client"
        assert http.post("/web/bookshelf/", json={}).status_code == 405
    app.close()


def test_an_app_without_a_client_has_none(api_settings: Settings, tmp_path: Path) -> None:
    with TestClient(api.create(api_settings)) as http:
        assert http.get("/web/notes/").status_code == 404
    with pytest.raises(Invalid, match="need a schema"):
        App(web=tmp_path)


def test_the_client_of_notes_has_no_inline_code_and_no_other_host() -> None:
    """S32: text of notes is never read as HTML, and its policy would block inline scripts."""
    page = (CLIENT / "index.html").read_text()
    assert "onclick" not in page and "<script>" not in page and "style=" not in page
    for file in CLIENT.iterdir():
        text = file.read_text()
        assert "http://" not in text and "https://" not in text, file.name
        assert not any(
            word in text for word in ("innerHTML", "insertAdjacentHTML", "eval(", "document.write")
        )
