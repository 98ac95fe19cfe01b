"""The guides run from their first to their last block, as a person types them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock import testing
from tests.test_tutorial import ROOT, Terminal, blocks

SIMULATOR = "penstock simulate --port 8090 --rpm 120 --concurrency 2 --latency 0.05..0.1"


@contextmanager
def typed(guide: str, db: testing.Database, folder: Path) -> Iterator[str]:
    """What the commands of a guide print. A `background` comment stands for a program that goes on running."""
    text = (ROOT / "docs/guides" / guide).read_text()
    [module] = re.findall(r"^`((?!test_)\w+)\.py`:$", text, re.M)
    terminal, printed = Terminal(folder, db.dsn, f"{module}:app"), ""
    with ExitStack() as background:
        for found in blocks(text):
            block = terminal.adapted(found["text"])
            match found["language"]:
                case "python":
                    is_test = block.startswith(f"# test_{module}.py")
                    (folder / f"{'test_' if is_test else ''}{module}.py").write_text(block)
                case "console" if found["background"]:
                    process = background.enter_context(terminal.running(found["background"]))
                    if "simulate" in found["background"]:
                        assert process.stdout
                        process.stdout.readline()
                case "console":
                    printed += terminal.type(block)
                case language:
                    pytest.fail(f"{language} is not run")
        yield printed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_to_models_runs(db: testing.Database, tmp_path: Path) -> None:
    with typed("model.md", db, tmp_path) as printed:
        assert "openai/gpt-5-mini" in printed
        assert db.execute("select type, status from penstock.jobs") == [
            {"type": "summaries", "status": "completed"}
        ]
        [cost] = db.execute("select sum(amount) as amount from penstock.cost_entries")
        assert cost["amount"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_to_charging_runs(db: testing.Database, tmp_path: Path) -> None:
    with typed("charge.md", db, tmp_path) as printed:
        assert re.search(r"tokens +18,?000", printed), printed
        assert re.search(r"quota", printed), printed
        assert db.execute("select distinct status from penstock.jobs") == [{"status": "completed"}]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_to_tests_runs(db: testing.Database, tmp_path: Path) -> None:
    with typed("test.md", db, tmp_path) as printed:
        assert "4 passed" in printed


def test_the_guide_to_upgrades_names_a_migration_that_exists() -> None:
    text = (ROOT / "docs/guides/upgrade.md").read_text()
    [number] = re.findall(r"--rollback-to (\d+)", text)
    assert list((ROOT / "penstock/sql/migrations").glob(f"{int(number):04}_*.down.sql"))
