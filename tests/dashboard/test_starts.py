"""Jobs that are started, and run again, from a form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient

from penstock import App, server
from penstock.dashboard.param_fields import fields_of, values_of


def make(dsn: str, tenant: Any) -> App:
    app = App(database_url=dsn, tenant=tenant)

    @app.task
    async def write(topic: str, api_key: str = "") -> str:
        return topic

    @app.job
    def book(
        title: str,
        chapters: list[str],
        size: Literal["a4", "a5"] = "a5",
        copies: int = 1,
        is_draft: bool = False,
        margins: dict[str, float] | None = None,
        api_key: str = "",
    ) -> None:
        """Write a book."""
        for chapter in chapters:
            write.step(f"{title}: {chapter}", api_key)

    return app


@pytest.fixture
def press(db: Any, dashboard_settings: Any, drain: Any, site: Any) -> Iterator[Any]:
    """A site whose server was started with an app that writes books."""
    site.acme, site.other = site.tenant("Acme"), site.tenant("Other")
    app = drain.use(make(db.dsn, site.acme))
    made = server.application(dashboard_settings, app)
    with TestClient(made) as client:
        drain(app)  # declares the kinds
        site.app, site.client = made, client
        yield site


BOOK = {"type": "book", "param.title": "Otters", "param.chapters": "River\nSea", "param.copies": "2"}


def started(site: Any, answer: Any) -> dict[str, Any]:
    assert answer.status_code == 303, answer.text
    job_id = answer.headers["location"].rsplit("/", 1)[-1]
    [job] = site.db.execute("select * from penstock.jobs where id = %s", [job_id])
    return job


def count(site: Any) -> int:
    return site.db.execute("select count(*) as n from penstock.jobs")[0]["n"]


def test_job_is_started_from_the_form_of_its_signature(press: Any) -> None:
    member = press.browser(press.key("member", press.acme))
    assert "/dashboard/jobs/new" in member.get("/jobs").text
    page = member.get("/jobs/new").text
    assert "Write a book." in page and 'href="/dashboard/jobs/new?type=book"' in page
    page = member.get("/jobs/new?type=book").text
    assert "<option>a4</option>" in page and 'placeholder="1"' in page and "One per line." in page
    job = started(
        press, member.post("/jobs/new", {**BOOK, "param.is_draft": "true", "budget": "2.50", "key": "k"})
    )
    assert job["params"] == {"title": "Otters", "chapters": ["River", "Sea"], "copies": 2, "is_draft": True}
    assert job["tenant_id"] == press.acme and str(job["budget"]) == "2.50" and job["priority"] == 5
    assert press.db.execute("select count(*) as n from penstock.tasks")[0]["n"] == 2
    assert '<span class="faint">Otters, River, Sea</span>' in member.get("/jobs").text
    # The same form again starts no second job; another content under its key is refused.
    assert (
        started(
            press, member.post("/jobs/new", {**BOOK, "param.is_draft": "true", "budget": "2.50", "key": "k"})
        )["id"]
        == job["id"]
    )
    answer = member.post("/jobs/new", {**BOOK, "key": "k"})
    assert answer.status_code == 422 and "has started a job already" in answer.text and count(press) == 1


def test_each_field_of_a_form_shows_its_own_error(press: Any) -> None:
    member = press.browser(press.key("member", press.acme))
    answer = member.post("/jobs/new", {"type": "book", "param.copies": "two", "param.margins": "{"})
    assert answer.status_code == 422
    assert "Write a number such as 12 or 2.5." in answer.text and "Write JSON" in answer.text
    answer = member.post(
        "/jobs/new", {**BOOK, "param.title": "", "param.size": "a9", "param.margins": '{"top": "x"}'}
    )
    page = answer.text
    for field in ("Field required.", "Input should be 'a4' or 'a5'", "Top: Input should be a valid number"):
        assert field.replace("'", "&#39;") in page, field
    assert page.count('aria-invalid="true"') == 3 and count(press) == 0
    for wrong in ("NaN", "[" * 100_000, "true", '"2"', "9" * 5000):
        answer = member.post("/jobs/new", {**BOOK, "param.copies": wrong})
        assert answer.status_code == 422 and 'aria-invalid="true"' in answer.text, wrong[:20]
    assert "Budget must be" in member.post("/jobs/new", {**BOOK, "budget": "much"}).text


def test_job_runs_again_with_edited_params_and_its_hidden_ones(press: Any, drain: Any) -> None:
    member = press.browser(press.key("member", press.acme))
    first = started(press, member.post("/jobs/new", {**BOOK, "param.api_key": "psk_very_secret"}))
    page = member.get(f"/jobs/{first['id']}").text
    assert f"/dashboard/jobs/new?again={first['id']}" in page
    page = member.get(f"/jobs/new?again={first['id']}").text
    assert "psk_very_secret" not in page and "River\nSea" in page and 'value="Otters"' in page
    values = {
        "again": str(first["id"]),
        "param.title": "Swans",
        "param.chapters": "Lake",
        "param.api_key": "•••••",
    }
    job = started(press, member.post("/jobs/new", values))
    assert job["params"] == {"title": "Swans", "chapters": ["Lake"], "api_key": "psk_very_secret"}
    # A task that was started alone has its arguments in its input.
    [kind] = press.db.execute(
        "select penstock.start_job('write', '{}', %s, %s) as id",
        [
            json.dumps([{"kind": "write", "input": {"topic": "Newts", "api_key": "psk_other"}}]),
            json.dumps({"tenant_id": str(press.acme)}),
        ],
    )
    page = member.get(f"/jobs/new?again={kind['id']}").text
    assert 'value="Newts"' in page and "psk_other" not in page


def test_others_start_and_rerun_nothing(press: Any) -> None:
    """S99"""
    member, viewer = (
        press.browser(press.key("member", press.acme)),
        press.browser(press.key("viewer", press.acme)),
    )
    stranger = press.browser(press.key("member", press.other))
    job = started(press, member.post("/jobs/new", BOOK))
    assert "jobs/new" not in viewer.get("/jobs").text
    for path in ("/jobs/new", "/jobs/new?type=book", f"/jobs/new?again={job['id']}"):
        assert viewer.get(path).status_code == 403, path
    assert viewer.post("/jobs/new", BOOK).status_code == 403
    assert stranger.get(f"/jobs/new?again={job['id']}").status_code == 404
    assert stranger.post("/jobs/new", {**BOOK, "again": str(job["id"])}).status_code == 404
    assert stranger.post("/jobs/new", {**BOOK, "tenant": str(press.acme)}).status_code in (403, 404, 422)
    operator = press.browser(press.key("service"))
    # The tenant of a job that runs again is its own, whatever the form says.
    values = {**BOOK, "again": str(job["id"]), "tenant": "Other"}
    assert started(press, operator.post("/jobs/new", values))["tenant_id"] == press.acme
    assert started(press, operator.post("/jobs/new", {**BOOK, "tenant": "Other"}))["tenant_id"] == press.other
    assert member.post("/jobs/new", {**BOOK, "type": "nothing"}).status_code == 422
    assert count(press) == 3


def test_server_without_an_app_offers_no_form(site: Any, sample: Any) -> None:
    operator = site.browser(site.key("service"))
    assert "jobs/new" not in operator.get("/jobs").text
    assert "penstock serve module:app" in operator.get("/jobs/new").text
    assert "Run again" not in operator.get(f"/jobs/{sample.jobs['completed']}").text
    answer = operator.get(f"/jobs/new?again={sample.jobs['completed']}")
    assert answer.status_code == 422 and "without an app" in answer.text


def test_type_without_a_schema_takes_its_params_as_json() -> None:
    [field] = fields_of(None, {"a": 1, "token": "x"})
    assert json.loads(field.text) == {"a": 1, "token": "•••••"}
    assert values_of([field], {"a": 1, "token": "x"}) == ({"a": 1, "token": "x"}, {})
    from dataclasses import replace

    assert values_of([replace(field, text="[1]")], None)[1] == {"": "write a JSON object such as {}"}
