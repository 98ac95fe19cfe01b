"""`penstock demo`: a worker and a sample job, watched until it has finished."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import testing


def command(db: testing.Database) -> list[str]:
    return [sys.executable, "-m", "penstock", "demo", "--database", db.dsn]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_ALLOW_UNSAFE": "1", "PENSTOCK_HOME": str(tmp_path), "COLUMNS": "120"}


@pytest.mark.slow
def test_without_a_terminal_it_ends_when_the_job_is_complete(
    db: testing.Database, environment: dict[str, str], tmp_path: Path
) -> None:
    """Issue item 13: without a terminal it ends with status 0 once the job is done."""
    done = subprocess.run(
        command(db), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"completed: \{.*'documents': 8", done.stdout)
    percents = [int(found) for found in re.findall(r"^ *(\d+) %", done.stdout, re.MULTILINE)]
    assert percents == sorted(percents) and percents[-1] == 100 and len(percents) > 3
    [job] = db.execute("select * from penstock.job_list")
    assert (job["status"], job["percent"], job["succeeded"], job["total"]) == ("completed", 100, 17, 17)
    assert str(job["id"]) in done.stdout
    assert [row["state"] for row in db.execute("select state from penstock.worker_list")] == ["stopped"]


@pytest.mark.slow
def test_on_a_terminal_it_stays_until_interrupted(
    db: testing.Database, environment: dict[str, str], tmp_path: Path, eventually: Any
) -> None:
    """Issue item 13: on a terminal it shows a bar for each phase and stays up until Ctrl-C."""
    ours, theirs = pty.openpty()
    environment["TERM"] = "xterm"
    process = subprocess.Popen(
        command(db), env=environment, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = ""
    try:
        while "until Ctrl-C" not in shown:
            shown += os.read(ours, 65536).decode(errors="replace")
        assert "█" in shown and "typeset" in shown and "100 %" in shown
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.poll() is not None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
