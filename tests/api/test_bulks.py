"""Bulk jobs over HTTP: a file or rows in, states and results out."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import openpyxl
import pydantic
import pytest
from fastapi.testclient import TestClient

from penstock import App, BulkRow, Change, Context, api, sources, testing
from penstock.api.limits import Limits
from penstock.contract import bulks
from penstock.settings import Settings
from tests.api.conftest import World

SHEET = "title,seconds\notters,7\nbad,3\nherons,long\n=1+1,2\n"


class Idea(pydantic.BaseModel):
    title: str
    seconds: int = 5


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    app = App(database_url=db.dsn)
    db.execute("select penstock.set_provider('sim/video', '{}')")
    db.execute("select penstock.set_price('sim/video', 'requests', 0.25)")

    @app.task(max_attempts=1)
    async def render(title: str, seconds: int, style: str) -> dict[str, Any]:
        if title == "bad":
            raise ValueError("no picture")
        return {"url": f"/{style}/{title}.mp4", "seconds": seconds}

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea, style: str = "plain") -> Any:
        options: dict[str, Any] = {"provider": "sim/video", "units": {"requests": 1}}
        return render.options(**options).step(row.title, row.seconds, style)

    @ideas.apply
    async def apply(ctx: Context, connection: Any, row: BulkRow[Idea], result: Any) -> list[Change]:
        return [Change(name="url", after=result["url"])]

    @ideas.undo
    async def undo(ctx: Context, connection: Any, row: BulkRow[Idea], change: Change) -> None: ...

    return drain.use(app)


@pytest.fixture
def world(db: testing.Database, api_settings: Settings, app: App) -> Iterator[World]:
    made = api.create(api_settings, app, limits=Limits(file_bytes=10_000))
    with TestClient(made) as client:
        yield World(db, made, client)


def test_a_file_from_end_to_end(world: World, app: App, drain: testing.Drain) -> None:
    """R0.1/files, R0.1/idempotent, R0.1/bad-rows, R2.7/confirm, R2.7/undo: check, forecast, upload, confirm, look, retry, undo, export; with one key one job."""
    ann = world.join("ann")
    headers = {**ann.headers, "Idempotency-Key": "k", "Content-Type": "text/csv"}
    asked = "?type=ideas&name=ideas.csv"

    def post(path: str, content: str | bytes = SHEET, **how: Any) -> Any:
        return world.client.post(path, content=content, headers=headers, **how)

    def get(path: str) -> Any:
        answer = world.client.get(path, headers=ann.headers)
        assert answer.status_code == 200, answer.text
        return answer

    checked = post(f"/api/bulks/check{asked}").json()
    assert (checked["rows"], checked["good"]) == (4, 3)
    assert [(each["line"], each["column"]) for each in checked["problems"]] == [(4, "seconds")]
    forecast = post(f"/api/bulks/forecast{asked}&budget=0.5").json()
    assert (forecast["cost"]["high"], forecast["budget"]["fits"]) == ("0.750000", False)

    upload = f'/api/bulks/upload{asked}&preview=true&stop_after=50%25&params={{"style": "noir"}}'
    started = post(upload)
    assert started.status_code == 201, started.text
    job = started.json()["id"]
    assert post(upload).json()["id"] == job
    assert post(f"{upload}&budget=3").json()["code"] == "idempotency_key_reused"
    assert post(f"/api/bulks/{job}/upload?format=csv", SHEET + "owls,1\n").json() == {
        "added": 1, "refused": 0, "known": 4, "moved": 0,
    }  # fmt: skip
    drain(app)
    bulk = get(f"/api/bulks/{job}").json()
    assert (bulk["rows"]["loaded"], bulk["to_confirm"], bulk["job"]["status"]) == (4, 3, "running")
    assert (bulk["source"]["name"], bulk["problems"][0]["count"], bulk["cost"]) == ("ideas.csv", 1, "0.75")
    assert world.client.post(f"/api/jobs/{job}/confirm", headers=ann.headers).json() == {"count": 3}
    drain(app)

    rows = get(f"/api/bulks/{job}/rows?state=succeeded&state=failed&limit=2").json()
    assert [(row["number"], row["state"]) for row in rows["items"]] == [(2, "succeeded"), (3, "failed")]
    assert rows["items"][0]["output"] == {"url": "/noir/otters.mp4", "seconds": 7}
    rest = get(f"/api/bulks/{job}/rows?state=succeeded&cursor={rows['next']}").json()
    assert [row["number"] for row in rest["items"]] == [5, 6]
    exported = get(f"/api/bulks/{job}/export?format=csv")
    assert exported.headers["content-disposition"] == f'attachment; filename="{job}.csv"'
    lines = exported.content.decode("utf-8-sig").splitlines()
    assert lines[1].startswith('"otters","7","2","succeeded","/noir/otters.mp4"')
    assert lines[4].startswith('"\'=1+1","2","5","succeeded"')
    book = openpyxl.load_workbook(
        io.BytesIO(get(f"/api/bulks/{job}/export?format=xlsx&state=refused").content)
    )
    assert [row[0].value for row in book.worksheets[0].iter_rows()] == ["title", "herons"]
    undone = world.client.post(f"/api/bulks/{job}/undo", headers=ann.headers, json={"rows": [2]})
    assert UUID(undone.json()["id"])
    drain(app)
    assert get(f"/api/bulks/{job}").json()["undone"] == 1
    [listed] = get("/api/bulks?filter=type:ideas").json()["items"]
    assert (listed["id"], listed["total"], listed["refused"]) == (job, 5, 1)


def test_files_are_parsed_outside_of_the_event_loop(
    world: World, app: App, file_reads: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S68: the app's model runs in a thread if the app is embedded; other files are read in a child process."""
    ann = world.join("ann")
    held: list[int] = []
    opened = sources.open

    def open_noted(*arguments: Any, **options: Any) -> Any:
        held.append(world.app.state.isolated.files.held(f"tenant:{ann.tenant}"))
        return opened(*arguments, **options)

    monkeypatch.setattr(sources, "open", open_noted)

    def post(path: str) -> Any:
        answer = world.client.post(f"/api/bulks/{path}", content=SHEET, headers=ann.headers)
        assert answer.is_success, answer.text
        return answer.json()

    for path in ("check", "forecast"):
        before = len(file_reads)
        post(f"{path}?type=ideas&format=csv")
        assert len(file_reads) > before + 4 and not any(file_reads), path
    before = len(file_reads)
    job = post("upload?type=ideas&format=csv")["id"]
    post(f"{job}/upload?format=csv")
    assert len(file_reads) == before, "this process reads no file that starts or extends a job"
    assert held == [1] * 2 and world.app.state.isolated.files.held(f"tenant:{ann.tenant}") == 0


def test_exports_are_formatted_outside_of_the_event_loop(
    world: World, app: App, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S64: in a thread, while the loop answers other requests."""
    ann = world.join("ann")
    on_loop: list[bool] = []
    add = bulks._add_to  # pyright: ignore[reportPrivateUsage]

    def noted(*arguments: Any) -> None:
        on_loop.append(asyncio._get_running_loop() is not None)
        add(*arguments)

    monkeypatch.setattr(bulks, "_add_to", noted)
    body = {"type": "ideas", "rows": [{"title": "a"}, {"title": "b"}]}
    job = world.client.post("/api/bulks/start", headers=ann.headers, json=body).json()["id"]
    for format in ("csv", "xlsx", "jsonl"):
        answer = world.client.get(f"/api/bulks/{job}/export?format={format}", headers=ann.headers)
        assert answer.status_code == 200 and b"a" in answer.content
    assert on_loop == [False] * 3


def test_rows_as_json(world: World, app: App, drain: testing.Drain) -> None:
    """R0.1/api: an API call; and JSONL as a body."""
    ann = world.join("ann")
    body = {
        "type": "ideas",
        "rows": [{"title": "a"}, {"title": "b", "seconds": 3}],
        "source": {"name": "May"},
    }
    job = world.client.post("/api/bulks/start", headers=ann.headers, json=body).json()["id"]
    more = {"rows": [{"number": 3, "data": {"title": "c"}}]}
    assert world.client.post(f"/api/bulks/{job}/rows", headers=ann.headers, json=more).json()["added"] == 1
    content = "\n".join(json.dumps({"title": each}) for each in "xy")
    other = world.client.post(
        "/api/bulks/upload?type=ideas&format=jsonl", headers=ann.headers, content=content
    )
    drain(app)
    for id in (job, other.json()["id"]):
        assert world.client.get(f"/api/jobs/{id}", headers=ann.headers).json()["status"] == "completed"


def test_it_pauses_and_goes_on(world: World, app: App, drain: testing.Drain) -> None:
    """R0.6/budget, R2.7/skip-done: paused by a person, then before its budget is overspent; each time it goes on when told."""
    ann = world.join("ann")

    def ask(method: str, path: str, body: Any = None) -> Any:
        answer = world.client.request(method, f"/api/{path}", headers=ann.headers, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def states(job: str) -> list[str]:
        return [row["state"] for row in ask("GET", f"bulks/{job}/rows")["items"]]

    rows = [{"title": each} for each in "abc"]
    body = {"type": "ideas", "rows": rows, "budget": "0.5", "paused": True}
    job = ask("POST", "bulks/start", body)["id"]
    drain(app)
    assert states(job) == ["waiting"] * 3
    ask("POST", f"jobs/{job}/resume")
    drain(app)
    bulk = ask("GET", f"bulks/{job}")
    assert (bulk["job"]["status"], float(bulk["cost"]), sorted(states(job))) == (
        "paused", 0.5, ["queued", "succeeded", "succeeded"],
    )  # fmt: skip
    assert "budget" in bulk["job"]["status_reason"]
    ask("PUT", f"jobs/{job}/budget", {"amount": "0.75"})
    drain(app)
    bulk = ask("GET", f"bulks/{job}")
    assert (bulk["job"]["status"], float(bulk["cost"])) == ("completed", 0.75)
    # The same rows again are not done again.
    again = ask("POST", "bulks/start", {"type": "ideas", "rows": rows, "skip_done": True})["id"]
    drain(app)
    assert states(again) == ["skipped"] * 3


def test_invalid_bulk_requests_are_rejected(world: World) -> None:
    ann = world.join("ann")

    def refusal(path: str, status: int, code: str, **how: Any) -> None:
        answer = world.client.post(f"/api/bulks/{path}", headers=ann.headers, **how)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text

    refusal("upload?type=ideas", 413, "too_large", content=b"x" * 20_000)
    refusal("upload?type=unknown", 422, "unknown_bulk_type", content=SHEET)
    refusal("upload?type=ideas&stop_after=often", 422, "invalid", content=SHEET)
    refusal("upload?type=ideas&colour=red", 422, "invalid", content=SHEET)
    refusal("upload?type=ideas&format=xlsx", 422, "wrong_type", content=SHEET)
    refusal("upload?type=ideas&params=[]", 422, "invalid_params", content=SHEET)
    refusal("check?type=unknown", 404, "unknown_bulk_type", content=SHEET)
    refusal("forecast?type=ideas", 422, "no_rows", content="title,seconds\n,1\n")
    refusal("start", 422, "invalid", json={"type": "ideas", "rows": [1]})
    refusal("start", 422, "invalid", json={"type": "ideas"})
    refusal(f"{UUID(int=0)}/undo", 404, "unknown_job", json={})
