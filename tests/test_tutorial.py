"""The tutorial runs from its first to its last block, as a person types it."""

from __future__ import annotations

import csv
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import testing

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(
    r"(?:^<!-- background: (?P<background>[^\n]+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
# The test has its own environment.
_INSTALL = ("pip ", "python -m venv", ". .venv", "export PENSTOCK_APP")


def blocks(text: str) -> Iterator[re.Match[str]]:
    """The code blocks of a page."""
    return _BLOCK.finditer(text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Terminal:
    """Types the commands of a page."""

    def __init__(self, folder: Path, dsn: str, app: str = "shop:app") -> None:
        self.folder, self.port = folder, free_port()
        self.env = {
            **os.environ, "DATABASE_URL": dsn, "PENSTOCK_ALLOW_UNSAFE": "1", "PENSTOCK_APP": app, "COLUMNS": "120",
        }  # fmt: skip
        # The tutorial's own test run uses the server that everybody gets.
        self.env.pop("PENSTOCK_TEST_PG", None)

    def adapted(self, text: str) -> str:
        return text.replace("8090", str(self.port))

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        words = [sys.executable, "-m", *shlex.split(self.adapted(command))]
        with (self.folder / "background.log").open("ab") as log:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=log
            )
            try:
                yield process
            finally:
                process.terminate()
                process.communicate(timeout=60)

    def type(self, block: str) -> str:
        """What the commands of a block print. A command that fails fails the test."""
        lines = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
        script = "\n".join(line for line in lines if not line.startswith(_INSTALL))
        program = shlex.quote(sys.executable)
        functions = f'penstock() {{ {program} -m penstock "$@"; }}\npytest() {{ {program} -m pytest -p no:cacheprovider "$@"; }}\n'
        wait = '$(penstock waits ls status:open -o json | grep -o \'"id": *"[^"]*"\' | head -1 | cut -d\'"\' -f4)'
        done = subprocess.run(
            ["sh", "-e", "-c", functions + self.adapted(script).replace(" ID ", f" {wait} ")],
            cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=170,
        )  # fmt: skip
        log = self.folder / "background.log"
        assert done.returncode == 0, (
            script + done.stdout + done.stderr + (log.read_text() if log.exists() else "")
        )
        return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tutorial_runs(db: testing.Database, tmp_path: Path) -> None:
    """Every block: the code grows in shop.py, and the commands run beside a worker and the simulator."""
    terminal, shop, printed = Terminal(tmp_path, db.dsn), tmp_path / "shop.py", ""
    with terminal.running(
        "penstock simulate --port 8090 --rpm 120 --concurrency 2 --latency 0.05..0.1"
    ) as simulator:
        assert simulator.stdout
        simulator.stdout.readline()
        for found in blocks((ROOT / "docs/tutorial.md").read_text()):
            text = terminal.adapted(found["text"])
            match found["language"]:
                case "python" if text.startswith("# test_shop.py"):
                    (tmp_path / "test_shop.py").write_text(text)
                case "python":
                    with shop.open("a") as file:
                        file.write(text + "\n\n")
                case "csv":
                    (tmp_path / "products.csv").write_text(text)
                case "console" if not found["background"]:
                    with terminal.running("penstock worker shop:app"):
                        printed += terminal.type(text)
                case "console":
                    assert found["background"].split()[:2] in (
                        ["penstock", "worker"],
                        ["penstock", "simulate"],
                    )
                case language:
                    pytest.fail(f"{language} is not run")
    with (tmp_path / "texts.csv").open(encoding="utf-8-sig", newline="") as file:
        states = [row["state"] for row in csv.DictReader(file)]
    assert sorted(states) == ["refused", "succeeded", "succeeded", "succeeded"]
    assert "oak chair" in printed or "tone" in printed, printed
    assert "2 passed" in printed
    statuses = {row["type"]: row["status"] for row in db.execute("select type, status from penstock.jobs")}
    assert statuses == dict.fromkeys(
        ["greet", "describe", "catalog", "publish_text", "products"], "completed"
    )
    [cost] = db.execute("select sum(amount) as amount from penstock.cost_entries")
    assert cost["amount"] > 0
