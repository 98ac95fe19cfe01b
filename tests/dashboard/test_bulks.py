"""Bulk jobs from a form: check, forecast, preview, confirmation, export and undo."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from fastapi.testclient import TestClient

from penstock import server, sources


@pytest.fixture
def films(db: Any, dashboard_settings: Any, drain: Any, site: Any) -> Iterator[Any]:
    """A site whose server was started with an app that defines a bulk type."""
    tenant = site.tenant("Acme")
    module = site.load("films")
    app = drain.use(module.make(db.dsn, tenant))
    made = server.application(dashboard_settings, app)
    with TestClient(made) as client:
        site.app, site.client = made, client
        site.films, site.acme, site.rows = app, tenant, module.ROWS
        yield site


def test_table_can_be_checked_previewed_confirmed_exported_and_undone(
    films: Any, drain: Any, file_reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.1/bad-rows, R2.7/preview, R2.7/undo: users see invalid rows and the cost first, then a preview, then the remaining results."""
    member = films.browser(films.key("member", films.acme))
    drain(films.films)
    given = {"type": "films", "rows": films.rows, "name": "ideas.csv", "preview": "1", "budget": "5"}
    page = " ".join(member.post("/bulks/new", {**given, "verb": "check"}).text.split())
    assert "7 valid rows" in page and "1 invalid" in page and "mayflies" in page and "seconds" in page
    assert "Preview the first 5 of 7 rows" in page
    answer = member.post("/bulks/new", {**given, "verb": "start"})
    path = answer.headers["location"].removeprefix("/dashboard")
    assert len(file_reads) > 16 and not any(file_reads)  # in threads, so that the event loop stays free
    assert re.fullmatch(r"/bulks/[0-9a-f-]{36}", path)
    drain(films.films)
    page = member.get(path).text
    assert "after you confirm" in page and "/OTTERS.mp4" in page and "/SWANS.mp4" not in page
    [remaining] = re.findall(r"Run the remaining (\d+ rows)…", page)
    assert f"Run the remaining {remaining}?" in member.get(f"{path}/confirm?verb=confirm").text
    assert member.post(path, {"verb": "confirm"}).headers["location"] == f"/dashboard{path}"
    drain(films.films)
    page = " ".join(member.get(path).text.split())
    assert "ValueError" in page or "handler_error" in page
    assert "Retry 1…" in page and "ideas.csv" in page
    # About rows: the tasks that load them are more.
    assert "6 of 8 rows succeeded, 1 failed, 1 refused." in page
    rows = member.get(f"{path}?state=refused").text
    assert "mayflies" in rows and "otters" not in rows
    files: list[Any] = []

    class Noted(SpooledTemporaryFile[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            files.append(self)

    monkeypatch.setattr("penstock.api.bulks.SpooledTemporaryFile", Noted)
    failures = member.get(f"{path}/rows.csv", params={"state": ["failed", "refused"]})
    assert "attachment" in failures.headers["content-disposition"]
    assert "bad one" in failures.text and "mayflies" in failures.text and "herons" not in failures.text
    assert len(files) == 1 and files[0].closed  # large exports are written to disk
    every = member.get(f"{path}/rows.csv").text
    assert "'=1+1" in every
    # Another job undoes the changes of one row or of all rows; an invalid row number never undoes all.
    for wrong in ("-1", "12x", "1.5", "9" * 16, "9" * 5000):
        answer = member.post(path, {"verb": "undo", "row": wrong})
        assert answer.status_code == 422 and "Invalid row number" in answer.text, wrong[:20]
    undoing = member.post(path, {"verb": "undo", "row": "2"}).headers["location"].removeprefix("/dashboard")
    drain(films.films)
    assert "completed" in member.get(undoing).text and "1 undone" in member.get(path).text
    assert "Undo 5 changes?" in member.get(f"{path}/confirm?verb=undo").text
    undoing = member.post(path, {"verb": "undo"}).headers["location"].removeprefix("/dashboard")
    drain(films.films)
    assert "completed" in member.get(undoing).text and "6 undone" in member.get(path).text
    assert "films" in member.get("/bulks").text and member.get("/bulks?filter=status:x").status_code == 200


def test_other_tenants_and_viewers_cannot_start_or_change_bulk_jobs(films: Any, drain: Any) -> None:
    """S99"""
    drain(films.films)
    member, viewer = (
        films.browser(films.key("member", films.acme)),
        films.browser(films.key("viewer", films.acme)),
    )
    given = {"type": "films", "rows": films.rows, "verb": "start"}
    path = member.post("/bulks/new", given).headers["location"].removeprefix("/dashboard")
    stranger = films.browser(films.key("owner", films.tenant("Other")))
    for each in (path, f"{path}/rows.csv", f"{path}/confirm?verb=undo"):
        assert stranger.get(each).status_code == 404, each
    assert "films" not in stranger.get("/bulks").text
    assert stranger.post(path, {"verb": "confirm"}).status_code == 404
    assert viewer.get(path).status_code == 200 and viewer.get("/bulks/new").status_code == 403
    for each, data in ((path, {"verb": "undo"}), (path, {"verb": "confirm"}), ("/bulks/new", given)):
        assert viewer.post(each, data).status_code == 403, (each, data)


def test_xlsx_file_can_be_checked_and_started(films: Any, drain: Any) -> None:
    """R0.1/files: the browser sends a file that is not text in base64."""
    member = films.browser(films.key("member", films.acme))
    drain(films.films)
    file = io.BytesIO()
    sources.write(
        [{"title": "otters", "seconds": 5}, {"title": "swans", "seconds": 2}],
        ["title", "seconds"],
        "xlsx",
        file,
    )
    content = base64.b64encode(file.getvalue()).decode()
    given = {"type": "films", "rows": "", "name": "ideas.xlsx", "content": content}
    page = member.post("/bulks/new", {**given, "verb": "check"})
    assert page.status_code == 200, page.text
    assert "2 valid rows" in page.text and f'name="content" value="{content}"' in page.text
    path = member.post("/bulks/new", {**given, "verb": "start"}).headers["location"]
    drain(films.films)
    page = member.get(path.removeprefix("/dashboard")).text
    assert "ideas.xlsx" in page and "/OTTERS.mp4" in page
    for wrong in ("no base64", base64.b64encode(b"PK no zip").decode()):
        answer = member.post("/bulks/new", {**given, "content": wrong, "verb": "check"})
        assert answer.status_code == 422 and 'role="alert"' in answer.text


def test_google_sheet_is_checked_and_started(films: Any) -> None:
    """R0.1/sheet: the form takes the URL that the browser shows; a worker reads the rows."""
    member = films.browser(films.key("member", films.acme))
    url = "https://docs.google.com/spreadsheets/d/1aBcD-ef_gh/edit#gid=7"
    given = {
        "type": "films",
        "rows": "",
        "sheet": f" {url} ",
        "range": "Ideas!A1:F",
        "link": "signed",
        "budget": "5",
    }
    page = member.post("/bulks/new", {**given, "verb": "check"})
    assert page.status_code == 200 and "A worker will read the sheet" in page.text
    assert 'name="range" value="Ideas!A1:F"' in page.text and '<option value="signed" selected>' in page.text
    path = (
        member.post("/bulks/new", {**given, "verb": "start"}).headers["location"].removeprefix("/dashboard")
    )
    [row] = films.db.execute(
        "select b.source, j.budget from penstock.bulks b join penstock.jobs j on j.id = b.job_id"
    )
    source = row["source"]
    assert (source["type"], source["id"], source["gid"]) == ("google-sheets", "1aBcD-ef_gh", 7)
    assert (source["range"], source["link"], source["write"]["output"]) == ("Ideas!A1:F", "signed", "output")
    assert row["budget"] == 5
    assert films.db.execute("select kind from penstock.tasks") == [{"kind": "films.read"}]
    assert "1aBcD-ef_gh" in member.get(path).text
    for wrong in (
        {"sheet": "https://example.org/x"}, {"range": "Ideas!"}, {"rows": "title\nx"}, {"content": "eA=="},
        {"link": "everyone", "verb": "start"},
    ):  # fmt: skip
        answer = member.post("/bulks/new", {**given, "verb": "check", **wrong})
        assert answer.status_code == 422 and 'role="alert"' in answer.text, wrong


def test_invalid_table_or_options_show_an_error(films: Any) -> None:
    member = films.browser(films.key("member", films.acme))
    for data in (
        {"rows": ""}, {"rows": "a,b\n1", "format": "xlsx"}, {"rows": films.rows, "budget": "much"},
        {"rows": films.rows, "type": "nothing", "verb": "start"}, {"rows": films.rows, "tenant": "nobody"},
    ):  # fmt: skip
        answer = member.post("/bulks/new", {"type": "films", "verb": "check", **data})
        assert answer.status_code == 422 and 'role="alert"' in answer.text, data


def test_columns_with_other_names_are_matched_by_the_user(films: Any) -> None:
    member = films.browser(films.key("member", films.acme))
    table = "Film Title,Length (seconds),Note\notters,5,x\nherons,3,y\n"
    given = {"type": "films", "rows": table, "name": "ideas.csv", "verb": "check"}
    page = member.post("/bulks/new", given).text
    assert "0 valid rows" in page and "Found columns" in page and "<code>Length (seconds)</code>" in page
    # The missing column is named once, and its errors are folded away, one for each row.
    assert "The table has no column <code>title</code>" in page and page.count("Field required") == 2
    assert "<details><summary>Invalid rows" in page and "no_key" not in page
    # Names that look alike are suggested; nothing is used before the user agrees.
    assert (
        "<option selected>Film Title</option>" in page
        and "<option selected>Length (seconds)</option>" in page
    )
    assert "Start" not in page.partition("</form>")[0].partition("<main")[2]
    mapped = {**given, "map.title": "Film Title", "map.seconds": "Length (seconds)"}
    page = member.post("/bulks/new", mapped).text
    assert "2 valid rows" in page and 'name="map.title" value="Film Title"' in page
    answer = member.post("/bulks/new", {**mapped, "verb": "start"})
    job = answer.headers["location"].rsplit("/", 1)[-1]
    rows = films.db.execute("select data from penstock.bulk_rows where job_id = %s order by number", [job])
    assert rows[0]["data"] == {"title": "otters", "seconds": "5", "Note": "x"}
    for wrong, problem in (
        ({"map.title": "Note", "map.seconds": "Note"}, "is chosen for both"),
        ({"map.title": "<b>"}, "Unknown column"),
    ):
        answer = member.post("/bulks/new", {**given, **wrong})
        assert answer.status_code == 422 and problem in answer.text and "<b>" not in answer.text


def test_matching_columns_need_no_mapping(films: Any) -> None:
    member = films.browser(films.key("member", films.acme))
    page = member.post("/bulks/new", {"type": "films", "rows": films.rows, "verb": "check"}).text
    assert "Found columns" in page and 'class="map"' not in page
