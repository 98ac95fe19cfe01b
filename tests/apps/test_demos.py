"""`make apps` runs the demo of each app and fails if one of them fails."""

from __future__ import annotations

import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from penstock import testing
from scripts import apps

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^(\w+) +([\d.]+) +(\d+) +(\d+) +([\d.]+)  (.+)$", re.M)


def test_every_app_has_a_demo() -> None:
    assert set(apps.DEMOS) == {path.parent.name for path in (ROOT / "penstock/apps").glob("*/__init__.py")}


@pytest.mark.slow
def test_demos_of_all_apps_pass_and_show_their_figures() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/apps.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {name: rest for name, *rest in LINE.findall(done.stdout)}
    assert set(lines) == set(apps.DEMOS)
    assert {result for *_, result in lines.values()} == {"passed"}
    stored = {name: int(files) for name, (_, _, files, _, _) in lines.items()}
    assert stored["reading"] == 50 and stored["video_ideas"] == 3
    # Devices of notes call the server without tasks, and keep their files.
    assert {name for name, (_, tasks, _, _, _) in lines.items() if int(tasks) == 0} == {"notes"}
    assert all(Decimal(cost) > 0 for *_, cost, _ in lines.values()), "each demo pays its simulated provider"


@pytest.mark.slow
async def test_demo_that_breaks_or_hangs_counts_as_failed(
    db: testing.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hang = ["timeit", "-n", "1", "-r", "1", "import signal; signal.pause()"]
    monkeypatch.setattr(apps, "DEMOS", {"broken": ["no_such_module"], "hanging": hang, "good": ["this"]})
    monkeypatch.setattr(apps, "LIMIT_SECONDS", 3)
    assert await apps.run_all(["broken", "hanging", "good"], db.dsn, tmp_path) == ["broken", "hanging"]
    shown = capsys.readouterr()
    results = {name: result for name, *_, result in LINE.findall(shown.out)}
    assert results == {"broken": "exit code 1", "hanging": "took more than 3 s", "good": "passed"}
    assert "No module named no_such_module" in shown.err


def test_failed_task_counts_as_failure() -> None:
    ended = apps.Ended(0, "", 1.0)
    assert apps.problem(ended, apps.Figures(4, 1, 0, Decimal(0))) == "1 tasks did not succeed"
    assert apps.problem(ended, apps.Figures(4, 0, 0, Decimal(0))) is None
