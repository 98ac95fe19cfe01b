"""Results in sheets are links that open: of each kind, for the job's own files only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from penstock import Context, testing
from penstock.errors import Invalid
from penstock.settings import Settings
from penstock.sheets import GoogleSheet
from penstock.storage.objects import Folder
from tests.api.conftest import running, settings_on
from tests.test_sheets import Desk, Idea, desk

PICTURE = b"\x89PNG\r\n\x1a\n" + b"0" * 50
BASE = "https://jobs.example.org"


@pytest.fixture
def server(db: testing.Database, tmp_path: Path) -> Iterator[TestClient]:
    """The API on the test's database, with the folder that workers use."""
    with running(db, settings_on(db, tmp_path)) as world:
        world.app.state.storage = Folder(tmp_path / "files", b"secret")
        yield world.client


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers know the address of the server."""
    monkeypatch.setattr("penstock.sdk.sheet_results.settings", lambda: Settings(public_url=BASE))


def pictures(at: Desk, folder: Path) -> Any:
    """A bulk type whose rows have a file each."""
    at.app.storage = Folder(folder / "files", b"secret")

    @at.app.task
    async def paint(ctx: Context, title: str) -> dict[str, Any]:
        if title.startswith("id:"):
            return {"artifact_id": title[3:]}
        return await ctx.asave(f"{title}.png", PICTURE, "image/png")

    @at.app.bulk(row=Idea, key=["title"], name="pictures")
    def pictures(row: Idea) -> Any:
        return paint.step(row.title)

    return pictures


def cells(at: Desk, sheet: str) -> dict[str, tuple[str, str]]:
    """Status and output of each row by title."""
    names, *rows = at.sim.sheets.values(sheet, "Ideas")
    places = [names.index(name) for name in ("title", "status", "output")]
    return {str(row[places[0]]): (str(row[places[1]]), str(row[places[2]])) for row in rows}


@pytest.mark.slow
@pytest.mark.usefixtures("address")
async def test_written_links_open(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock, server: TestClient, tmp_path: Path
) -> None:
    """R0.12/opens, R0.12/kinds, R0.12/lifetime: each job's links are of its kind; the clock and deletion end them."""
    async with desk(drain, clock) as at:
        kind_of = pictures(at, tmp_path)
        links: dict[str, str] = {}
        jobs: dict[str, Any] = {}
        for kind in ("public", "signed", "login", None):
            name = kind or "default"
            at.sim.sheets.add(name, {"Ideas": [["title"], ["otters"]]})
            jobs[name] = await kind_of.astart(GoogleSheet(name, link=kind))
            assert (await at.finish(jobs[name])).status == "completed"
            status, links[name] = cells(at, name)["otters"]
            assert status == "succeeded" and links[name].startswith(f"{BASE}/links/"), name

        def got(name: str) -> Any:
            return server.get(links[name].removeprefix(BASE))

        assert got("public").content == got("signed").content == PICTURE
        for name in ("login", "default"):
            assert links[name].count("/") == 4, "no token"
            assert got(name).status_code == 401 and PICTURE not in got(name).content
        # The same link, also when the sheet is written again.
        db.execute("update penstock.bulk_rows set written = null")
        before = cells(at, "public")
        at.sim.sheets.spreadsheets["public"].sheets[0].set(2, 3, "lost")
        async with at.app.connections() as pool:
            again = await _links(pool, jobs["public"].id)
        assert [f"{BASE}{path}" for path in again] == [before["otters"][1]]
        clock.advance(days=29)
        assert got("public").content == got("signed").content == PICTURE
        clock.advance(days=2)
        assert got("signed").status_code == 410 and "ended on" in got("signed").text
        assert got("public").content == PICTURE
        # The record goes after retention_days, and the file with it.
        clock.advance(days=400)
        while db.execute("select penstock.prune() as n")[0]["n"]:
            pass
        assert db.execute("select from penstock.jobs") == []
        assert got("public").status_code == 410 and "no longer kept" in got("public").text


async def _links(pool: Any, job_id: Any) -> list[str]:
    from penstock.contract import bulks, links

    due = await bulks.rows_to_write(pool, job_id=job_id, limit=10)
    ids = [row["output"]["artifact_id"] for row in due]
    return [*(await links.of_job(pool, job_id=job_id, artifact_ids=ids)).values()]


@pytest.mark.usefixtures("address")
async def test_output_cannot_open_a_file_of_another_job(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock, tmp_path: Path
) -> None:
    """R0.12/kinds, S94: a row whose output names a file of another job gets no link to it, and that file no kind."""
    async with desk(drain, clock) as at:
        kind_of = pictures(at, tmp_path)
        at.sim.sheets.add("first", {"Ideas": [["title"], ["otters"]]})
        await at.finish(await kind_of.astart(GoogleSheet("first", link="login")))
        theirs = cells(at, "first")["otters"][1].rpartition("/")[2]
        db.execute("update penstock.artifacts set link = null")
        at.sim.sheets.add("second", {"Ideas": [["title"], [f"id:{theirs}"], [f"id:{uuid4()}"], ["id:x"]]})
        await at.finish(await kind_of.astart(GoogleSheet("second", link="public")))
        assert all("/links/" not in output for _, output in cells(at, "second").values())
        assert db.execute("select distinct link from penstock.artifacts") == [{"link": None}]


async def test_without_an_address_the_output_is_written_as_it_is(
    drain: testing.Drain, clock: testing.Clock, tmp_path: Path
) -> None:
    async with desk(drain, clock) as at:
        at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"]]})
        await at.finish(await pictures(at, tmp_path).astart(GoogleSheet("book")))
        assert "artifact_id" in cells(at, "book")["otters"][1]
        with pytest.raises(Invalid) as caught:
            await at.ideas.astart(GoogleSheet("book", link="everybody"))  # type: ignore[arg-type]
        assert caught.value.code == "invalid_link"
