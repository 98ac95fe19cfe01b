"""`penstock bulk` on a real database, from an input file to exported results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from penstock import App, cli, testing
from penstock.errors import EXIT_PARTLY_DONE
from penstock.sdk.load import load

CODE = """
from pydantic import BaseModel
from penstock import App, BulkRow, Change, Context

app = App(tenant="studio")

class Idea(BaseModel):
    title: str
    seconds: int = 5

@app.task(max_attempts=1)
async def render(title: str, seconds: int, style: str) -> dict[str, object]:
    if title == "bad":
        raise ValueError("no picture")
    return {"url": f"/{style}/{title}.mp4", "seconds": seconds}

@app.bulk(row=Idea, key=["title"])
def ideas(row: Idea, style: str = "plain"):
    return render.options(provider="sim/video", units={"requests": 1}).step(row.title, row.seconds, style)

@ideas.apply
async def apply(ctx: Context, connection, row: BulkRow[Idea], result) -> list[Change]:
    return [Change(name="url", after=result["url"])]

@ideas.undo
async def undo(ctx: Context, connection, row: BulkRow[Idea], change: Change) -> None:
    pass
"""
SHEET = "title,seconds\notters,7\nbad,3\nherons,long\n=1+1,2\n"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def app(
    db: testing.Database, drain: testing.Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> App:
    """An app in its own module, a provider with a price, and a CSV file."""
    name = f"ideas_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    (tmp_path / "ideas.csv").write_text(SHEET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PENSTOCK_APP", f"{name}:app")
    db.execute("select penstock.set_provider('sim/video', '{}')")
    db.execute("select penstock.set_price('sim/video', 'requests', 0.25)")
    return drain.use(load(f"{name}:app"))


@pytest.fixture
def penstock(app: App, db: testing.Database, capsys: pytest.CaptureFixture[str]) -> Run:
    app.block(_declare(app))

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        code = cli.execute(["--database", db.dsn, *map(str, arguments)])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run


async def _declare(app: App) -> None:
    async with app.connections() as pool:
        await app.declare(pool)


def test_check_and_forecast(penstock: Run, tmp_path: Path) -> None:
    """R0.1/bad-rows: every bad row with line, column and reason; the price before it starts."""
    checked = penstock("bulk", "check", "ideas", "ideas.csv", "-o", "json")
    assert checked.code == 1
    [problem] = checked.json
    assert (problem["line"], problem["column"], problem["code"]) == (4, "seconds", "bad_value")
    assert "4 rows: 3 valid, 1 invalid" in checked.err
    forecast = penstock("bulk", "forecast", "ideas", "ideas.csv", "--budget", "0.5", "-o", "json").json
    assert (forecast["cost"]["high"], forecast["budget"]["fits"]) == ("0.75", False)
    (tmp_path / "other.csv").write_text("Titel,Video seconds\nOtters,5\n")
    other = penstock("bulk", "check", "ideas", "other.csv")
    assert other.code == 1
    assert "The file has: Titel, Video seconds." in other.err
    assert "--rename 'Titel=title'" in other.err and "--rename 'Video seconds=seconds'" in other.err
    assert penstock("bulk", "check", "unknown", "ideas.csv").code == 5
    assert penstock("bulk", "check", "ideas", "missing.csv").code == 5


def test_from_a_file_to_a_file(penstock: Run, app: App, drain: testing.Drain, tmp_path: Path) -> None:
    """R0.1/files, R2.7/undo: run, confirm, watch, export, retry one cause, undo."""
    started = penstock(
        "bulk", "run", "ideas", "ideas.csv", "--preview", "--param", "style=noir", "--no-watch", "-o", "json"
    )
    job = started.json["id"]
    drain(app)
    watched = penstock("bulk", "watch", job)
    assert (watched.code, f"penstock bulk confirm {job}" in watched.err) == (0, True)
    assert penstock("bulk", "confirm", job).err == "Released 2 tasks.\n"
    drain(app)
    ended = penstock("bulk", "watch", job)
    assert ended.code == 3
    assert "2 succeeded, 1 failed, 1 refused" in ended.err
    assert "failed  1 task: render: handler_error: no picture" in ended.err

    rows = penstock("bulk", "rows", job, "--state", "failed,refused", "-o", "json").json
    assert [(row["number"], row["state"]) for row in rows] == [(3, "failed"), (4, "refused")]
    assert penstock("bulk", "rows", job, "--state", "eaten").code == 2
    assert penstock("bulk", "export", job, "out.csv").code == 0
    lines = (tmp_path / "out.csv").read_text("utf-8-sig").splitlines()
    cells = [line.strip('"').split('","') for line in lines]
    names = (
        "title",
        "seconds",
        "row",
        "state",
        "result.url",
        "result.seconds",
        "error_code",
        "error",
        "cost",
    )
    assert cells[0] == [*names]
    assert cells[1] == ["otters", "7", "2", "succeeded", "/noir/otters.mp4", "7", "", "", "0.25"]
    assert cells[4][:4] == ["'=1+1", "2", "5", "succeeded"]
    assert penstock("bulk", "export", job, "failures.xlsx", "--state", "failed,refused").code == 0
    sheet = openpyxl.load_workbook(tmp_path / "failures.xlsx").active
    assert sheet is not None
    assert [row[0].value for row in sheet.iter_rows()] == ["title", "bad", "herons"]
    assert (
        json.loads(penstock("bulk", "export", job, "--format", "jsonl").out.splitlines()[0])["title"]
        == "otters"
    )

    assert penstock("bulk", "retry", job, "--code", "other", "-o", "json").json["tasks"] == 0
    assert penstock("bulk", "retry", job, "--code", "handler_error", "-o", "json").json["tasks"] == 1
    drain(app)
    shown = penstock("bulk", "show", job, "-o", "json").json
    assert shown["states"] == {"succeeded": 2, "failed": 1, "refused": 1}
    assert (shown["applied"], shown["job"]["status"]) == (2, "failed")
    assert penstock("bulk", "undo", job).code == 2  # no terminal to confirm on
    assert penstock("bulk", "undo", job, "--row", 2).code == 0
    drain(app)
    assert penstock("bulk", "show", job, "-o", "json").json["undone"] == 1
    assert penstock("bulk", "ls", "tenant:studio", "-o", "json").json[0]["id"] == job


def test_a_budget_and_more_rows(penstock: Run, app: App, drain: testing.Drain, tmp_path: Path) -> None:
    """R0.6/budget: it pauses before it is overspent, says why, and goes on with more; the file is read again."""
    job = penstock("bulk", "run", "ideas", "ideas.csv", "--budget", "0.5", "--no-watch", "-o", "json").json[
        "id"
    ]
    (tmp_path / "ideas.csv").write_text(SHEET.replace("long", "3") + "owls,1\n")
    added = penstock("bulk", "add", job, "ideas.csv", "-o", "json").json
    assert (added["added"], added["known"]) == (1, 4)
    drain(app)
    drain(app)
    shown = penstock("bulk", "show", job)
    assert "0.50 of 0.50" in shown.out
    assert "paused" in shown.out
    penstock("jobs", "budget", job, "none")
    drain(app)
    ended = penstock("bulk", "watch", job)
    assert (ended.code, "3 succeeded, 1 failed, 1 refused" in ended.err) == (3, True)


def test_exit_code_depends_on_refused_rows(
    penstock: Run, app: App, drain: testing.Drain, tmp_path: Path
) -> None:
    (tmp_path / "ideas.csv").write_text("title\na\n")
    job = penstock("bulk", "run", "ideas", "ideas.csv", "--no-watch").out.strip()
    drain(app)
    assert penstock("bulk", "watch", job).code == 0
    (tmp_path / "ideas.csv").write_text("title\na\nb\na\n")
    job = penstock("bulk", "run", "ideas", "ideas.csv", "--skip-done", "--no-watch").out.strip()
    drain(app)
    ended = penstock("bulk", "watch", job)
    assert (ended.code, ended.err) == (EXIT_PARTLY_DONE, "1 refused, 1 skipped, 1 succeeded\n")


def test_refused_rows_are_named_in_the_status_reason(
    penstock: Run, app: App, drain: testing.Drain, db: testing.Database, tmp_path: Path
) -> None:
    """R0.1/bad-rows: a job whose tasks all succeeded is completed, and says in every list what it left out."""
    (tmp_path / "ideas.csv").write_text("title\na\nb\na\n")
    job = penstock("bulk", "run", "ideas", "ideas.csv", "--no-watch").out.strip()
    drain(app)
    told = "1 of 3 rows refused"
    for shown in (
        penstock("jobs", "show", job, "-o", "json").json,
        penstock("jobs", "ls", "-o", "json").json[0],
        penstock("bulk", "ls", "-o", "json").json[0],
        penstock("bulk", "show", job, "-o", "json").json["job"],
        db.execute("select status, status_reason from penstock.job_list")[0],
    ):
        assert (shown["status"], shown["status_reason"]) == ("completed", told)
    assert told in penstock("jobs", "ls").out
    assert penstock("bulk", "show", job, "-o", "json").json["rows"]["refused"] == 1
    db.execute("select penstock.cancel_job(id) from penstock.jobs where finished_at is null")
    # With a failure both are named.
    (tmp_path / "ideas.csv").write_text("title\nbad\nb\nb\n")
    job = penstock("bulk", "run", "ideas", "ideas.csv", "--no-watch").out.strip()
    drain(app)
    reason = penstock("jobs", "show", job, "-o", "json").json["status_reason"]
    assert reason.endswith("; 1 of 3 rows refused") and "tasks failed" in reason


def test_link_of_results_is_chosen_per_job(penstock: Run, db: testing.Database) -> None:
    """R0.12/kinds: on the command line too; an unknown kind and a file without write-back are refused."""
    sheet = "https://docs.google.com/spreadsheets/d/book/edit"
    assert penstock("bulk", "run", "ideas", sheet, "--link", "public", "--no-watch").code == 0
    assert db.execute("select source ->> 'link' as link from penstock.bulks") == [{"link": "public"}]
    wrong = penstock("bulk", "run", "ideas", sheet, "--link", "everybody", "--no-watch")
    assert wrong.code == 2 and "link must be public, signed or login" in wrong.err
    assert penstock("bulk", "run", "ideas", "ideas.csv", "--link", "public", "--no-watch").code == 2
