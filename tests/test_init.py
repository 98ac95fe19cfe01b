"""`penstock init`: an application as a starting point."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

from penstock import apps, cli, simulator, testing
from penstock.storage.objects import Folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_copied_app_runs_under_its_new_name(
    folder: Path,
    db: testing.Database,
    drain: testing.Drain,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.execute(["init", "--app", "reading", "my_book"]) == 0
    told = capsys.readouterr().err
    assert "penstock dev my_book.app:app" in told and "python -m my_book" in told
    source = Path(apps.__path__[0]) / "reading"
    kept = {path.name for path in source.iterdir() if path.name != "__pycache__"}
    assert {path.name for path in (folder / "my_book").iterdir()} == kept
    assert not any("penstock.apps.reading" in path.read_text() for path in (folder / "my_book").rglob("*.*"))
    assert os.listdir(folder) == ["my_book"], "no temporary files are left"

    monkeypatch.syspath_prepend(folder)
    copy: Any = importlib.import_module("my_book.app")
    drain.use(copy.app)
    copy.app.storage = Folder(folder / "files", b"s" * 32)
    async with copy.app, simulator.serve() as provider:
        monkeypatch.setenv("READING_URL", provider.openai_url)
        await copy.declare()
        started = await copy.reading.astart("Mine", ["Mine"], words=20, audio=[])
        await drain.arun(copy.app)
        book = await started.aresult(timeout="5s")
    assert (folder / "files" / book["pdf"]["path"]).read_bytes().startswith(b"%PDF-")


def test_copied_app_includes_its_sql(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["init", "--app", "video_ideas", "my_videos"]) == 0
    monkeypatch.syspath_prepend(folder)
    copy: Any = importlib.import_module("my_videos.app")
    assert copy.app.own.folder == folder / "my_videos/sql" and (copy.app.own.folder / "views.sql").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--app", "none"], 2, "Available apps: "),
        (["--app", "../reading"], 2, "Available apps: "),
        (["--app", "reading", "there"], 6, "already exists"),
        (["--app", "reading", "empty"], 6, "already exists"),
        (["--app", "reading", "my-book"], 2, "invalid package name"),
        (["--app", "reading", "class"], 2, "invalid package name"),
        (["--app", "reading", "."], 2, "invalid package name"),
        (["--app", "reading", "json"], 6, "would shadow yours"),
        (["--app", "reading", "penstock"], 6, "would shadow yours"),
        (["--app", "reading", "no/such/book"], 2, "does not exist"),
    ],
)
def test_init_rejects_bad_targets_and_overwrites_nothing(
    folder: Path, arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "there").write_text("mine")
    (folder / "empty").mkdir()
    assert cli.execute(["init", *arguments]) == code
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in folder.rglob("*")) == ["empty", "there"]
    assert (folder / "there").read_text() == "mine"
