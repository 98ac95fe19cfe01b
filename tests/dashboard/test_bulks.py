"""From a table in a form to a forecast, a preview, a confirmation, and what failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any

import pytest
from fastapi.testclient import TestClient

from penstock import server


@pytest.fixture
def films(db: Any, dashboard_settings: Any, drain: Any, site: Any) -> Iterator[Any]:
    """A site whose server was started with an app that has a bulk type."""
    tenant = site.tenant("Acme")
    module = site.load("films")
    app = drain.use(module.make(db.dsn, tenant))
    made = server.application(dashboard_settings, app)
    with TestClient(made) as client:
        site.app, site.client = made, client
        site.films, site.acme, site.rows = app, tenant, module.ROWS
        yield site


def test_a_table_is_checked_forecast_previewed_confirmed_and_exported(
    films: Any, drain: Any, file_reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.1/bad-rows, R2.7/preview, R2.7/undo: a person sees every bad row and the price before, and the first results before the rest."""
    member = films.browser(films.key("member", films.acme))
    drain(films.films)
    given = {"type": "films", "rows": films.rows, "name": "ideas.csv", "preview": "1", "budget": "5"}
    page = " ".join(member.post("/bulks/new", {**given, "verb": "check"}).text.split())
    assert "7 good rows" in page and "1 bad" in page and "mayflies" in page and "seconds" in page
    answer = member.post("/bulks/new", {**given, "verb": "start"})
    path = answer.headers["location"].removeprefix("/dashboard")
    assert len(file_reads) > 16 and not any(file_reads)  # in threads, and not where others wait
    assert re.fullmatch(r"/bulks/[0-9a-f-]{36}", path)
    drain(films.films)
    page = member.get(path).text
    assert "until it is confirmed" in page and "/OTTERS.mp4" in page and "/SWANS.mp4" not in page
    assert "Let films go on?" in member.get(f"{path}/confirm?verb=confirm").text
    assert member.post(path, {"verb": "confirm"}).headers["location"] == f"/dashboard{path}"
    drain(films.films)
    page = " ".join(member.get(path).text.split())
    assert "ValueError" in page or "handler_error" in page
    assert "Retry 1…" in page and "ideas.csv" in page
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
    assert len(files) == 1 and files[0].closed  # a large one is not kept in memory
    every = member.get(f"{path}/rows.csv").text
    assert "'=1+1" in every
    # What was applied is taken back, by a job of its own: of one row, or of all, and never of all by mistake.
    for wrong in ("-1", "12x", "1.5", "9" * 16, "9" * 5000):
        answer = member.post(path, {"verb": "undo", "row": wrong})
        assert answer.status_code == 422 and "not the number of a row" in answer.text, wrong[:20]
    undoing = member.post(path, {"verb": "undo", "row": "2"}).headers["location"].removeprefix("/dashboard")
    drain(films.films)
    assert "completed" in member.get(undoing).text and "1 undone" in member.get(path).text
    assert "Undo 5 values?" in member.get(f"{path}/confirm?verb=undo").text
    undoing = member.post(path, {"verb": "undo"}).headers["location"].removeprefix("/dashboard")
    drain(films.films)
    assert "completed" in member.get(undoing).text and "6 undone" in member.get(path).text
    assert "films" in member.get("/bulks").text and member.get("/bulks?filter=status:x").status_code == 200


def test_others_neither_see_nor_start_it(films: Any, drain: Any) -> None:
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


def test_what_is_no_table_is_said(films: Any) -> None:
    member = films.browser(films.key("member", films.acme))
    for data in (
        {"rows": ""}, {"rows": "a,b\n1", "format": "xlsx"}, {"rows": films.rows, "budget": "much"},
        {"rows": films.rows, "type": "nothing", "verb": "start"}, {"rows": films.rows, "tenant": "nobody"},
    ):  # fmt: skip
        answer = member.post("/bulks/new", {"type": "films", "verb": "check", **data})
        assert answer.status_code == 422 and 'role="alert"' in answer.text, data
