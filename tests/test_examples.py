"""The examples run, and so does every piece of Python in the guides."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Worker, cli, testing
from penstock.sdk.job_types import Started
from penstock.settings import settings

ROOT = Path(__file__).parents[1]

EXAMPLES = {
    "publish": ["'pages': 4", "'otters'", "'herons'"],
    "orders": ["order 1", "order 2", "no order, no job", "invoices (2,)"],
    "thumbnails": ["failed 5 of 6 1 of 6 tasks failed"],
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, db: testing.Database) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env={**os.environ, "DATABASE_URL": db.dsn, "PENSTOCK_ALLOW_UNSAFE": "1"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in EXAMPLES[name]:
        assert line in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_readmes_program_prints_its_job_and_nothing_else(db: testing.Database, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "animals.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "animals.py"],
        cwd=tmp_path,
        env={**os.environ, "DATABASE_URL": db.dsn},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [job] = db.execute("select id from penstock.jobs where type = 'publish'")
    assert done.stdout == f"{job['id']}\n"


@pytest.mark.parametrize("name", ["sdk", "worker"])
def test_a_guides_python_runs(
    name: str,
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each guide is one program; whoever waits for a result here lets a worker run first."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    parts = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / f"guide_{name}.py").write_text("\n\n".join(parts))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DATABASE_URL", db.dsn)
    settings.cache_clear()
    original = Started.aresult

    async def work_first(self: Started[Any], timeout: Any = None) -> Any:  # noqa: ASYNC109 as aresult has it
        if name != "worker":
            await Worker(self.app, drain=True).run()
        return await original(self, timeout)

    monkeypatch.setattr(Started, "aresult", work_first)
    try:
        guide = importlib.import_module(f"guide_{name}")
        app: App = drain.use(guide.app)
        for function in [value for key, value in vars(guide).items() if key.startswith("test_")]:
            function(drain, clock)
        drain(app)
        assert len(parts) == {"sdk": 11, "worker": 1}[name]
        assert db.execute("select distinct error_code from penstock.attempts") in (
            [],
            [{"error_code": "provider_busy"}],
        )
    finally:
        settings.cache_clear()


@pytest.mark.slow
def test_the_guide_to_bulk_jobs_runs(db: testing.Database, tmp_path: Path) -> None:
    """R0.1/files: from an empty folder to a sheet with results and real files, as a person types it."""
    text = (ROOT / "docs/bulk.md").read_text()
    parts: dict[str, list[str]] = {}
    for language, part in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        parts.setdefault(language, []).append(part)
    (tmp_path / "ideas.csv").write_text(parts["csv"][0])
    (tmp_path / "posters.py").write_text("\n\n".join(parts["python"]))
    typed = [line[2:] for line in parts["console"][0].splitlines() if line.startswith("$ ")]
    script = "\n".join(line for line in typed if not line.startswith("pip "))
    program = f'penstock() {{ {shlex.quote(sys.executable)} -m penstock "$@"; }}\n'
    environment = {**os.environ, "DATABASE_URL": db.dsn, "PENSTOCK_ALLOW_UNSAFE": "1"}
    done = subprocess.run(
        ["sh", "-e", "-c", program + script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bad_value" in done.stdout
    lines = (tmp_path / "results.csv").read_text("utf-8-sig").splitlines()
    assert [line.split(",")[0].strip('"') for line in lines[1:]] == [
        line.split(",")[0] for line in parts["csv"][0].splitlines()[1:]
    ]
    posters = list((tmp_path / ".penstock/artifacts").rglob("*.svg"))
    assert len(posters) == 3
    assert all(poster.read_text().startswith("<svg") for poster in posters)
    for part in parts["sql"]:
        db.execute(re.sub(r"^.*(\\gset|:').*$", "", part, flags=re.MULTILINE))


def test_the_guide_to_money_runs(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From top to bottom: its SQL, its Python and its commands on one database, with a worker for results."""
    text = (ROOT / "docs/money.md").read_text()
    parts = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", db.dsn)
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    settings.cache_clear()
    original = Started.aresult

    async def work_first(self: Started[Any], timeout: Any = None) -> Any:  # noqa: ASYNC109 as aresult has it
        await Worker(self.app, drain=True).run()
        return await original(self, timeout)

    monkeypatch.setattr(Started, "aresult", work_first)
    guide: dict[str, Any] = {"__name__": "guide_money"}
    (tmp_path / "usage-2026-03.csv").write_text("date,line_item,cost\n2026-03-02,gpt-4o,0.25\n")
    try:
        for language, part in parts:
            match language:
                case "sql":
                    db.execute(part)
                case "python":
                    exec(compile(part, "money.md", "exec"), guide)  # noqa: S102 our own page
                case "json":
                    Path("job.json").write_text(part)
                case "console":
                    for line in part.splitlines():
                        assert line.startswith("$ penstock ")
                        assert cli.execute(shlex.split(line)[2:]) == 0, (line, capsys.readouterr().err)
                case _:
                    pytest.fail(f"{language} is not run")
    finally:
        guide["app"].close()
        settings.cache_clear()
    assert [language for language, _ in parts].count("python") == 5
    assert db.execute("select * from penstock.check_accounts()") == []
    assert db.execute("select distinct error_code from penstock.attempts") == []
