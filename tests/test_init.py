"""`penstock init`: an application as a starting point."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from penstock import apps, cli, simulator, testing
from penstock.storage.objects import Folder

# Of no package that may be installed here: the guides call theirs mysite, and somebody may have followed them.
SITE = "site_of_a_test"


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


def steps_of_ci(project: Path) -> list[str]:
    [job] = yaml.safe_load((project / ".github/workflows/ci.yml").read_text())["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def in_shell(command: str, project: Path) -> subprocess.CompletedProcess[str]:
    """Run a step of CI. The packages of this environment stand for those that CI installs."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PENSTOCK_TEST_PG"},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(project),
    }
    return subprocess.run(
        ["bash", "-c", command], cwd=project, env=environment, capture_output=True, text=True, timeout=150
    )


@pytest.mark.slow
def test_ci_of_a_new_project_passes_as_it_is_and_can_fail(folder: Path) -> None:
    assert cli.execute(["init", SITE]) == 0
    project = folder / SITE
    install, *checks, build = steps_of_ci(project)
    assert (install, build) == ("pip install --editable '.[dev]'", f"docker build --tag {SITE} .")
    assert checks == ["ruff format --check", "ruff check", "pytest"]
    for check in checks:
        done = in_shell(check, project)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    jobs = project / SITE / "jobs.py"
    jobs.write_text(jobs.read_text().replace("All about {topic}.", "{topic}"))
    broken = in_shell("pytest", project)
    assert broken.returncode == 1 and "1 failed, 2 passed" in broken.stdout, broken.stdout


def test_project_has_a_valid_image_and_installable_requirements(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["init", SITE]) == 0
    assert f"penstock dev {SITE}.jobs:app" in capsys.readouterr().err
    project = folder / SITE
    assert os.listdir(folder) == [SITE], "no temporary files are left"
    left = [path for path in project.rglob("*") if path.is_file() and "project_name" in path.read_text()]
    assert left == []
    lint = in_shell("hadolint Dockerfile", project)
    assert lint.returncode == 0, lint.stdout
    document = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    wanted = [*document["dependencies"], *document["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(importlib.metadata.version(requirement.name)), requirement
        known = importlib.metadata.metadata(requirement.name).get_all("Provides-Extra") or []
        assert requirement.extras <= set(known), requirement


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "FOLDER is required"),
        (["there"], 6, "already exists"),
        (["my-site"], 2, "invalid package name"),
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
