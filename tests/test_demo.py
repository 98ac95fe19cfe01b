"""`penstock demo`: a worker and a sample job, watched until it has finished."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from decimal import Decimal
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
def test_it_shows_flow_control_and_money_also_the_second_time(
    db: testing.Database, environment: dict[str, str], tmp_path: Path
) -> None:
    """A forecast before, the cost beside it and the budget after; in between the limits are reached."""
    # Where the environment names a proxy, the provider is reached all the same.
    environment |= {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    shown: list[str] = []
    for _ in range(2):
        done = subprocess.run(
            command(db), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=50
        )
        assert done.returncode == 0, done.stdout + done.stderr
        shown.append(done.stdout)
    costs: list[Decimal] = []
    for text in shown:
        low, high = re.findall(r"^forecast: ([\d.]+) to ([\d.]+) USD of a budget of 0.05 USD", text, re.M)[0]
        [cost] = re.findall(r"^cost: ([\d.]+) of 0.05 USD", text, re.M)
        costs.append(Decimal(cost))
        assert 0 < Decimal(low) <= costs[-1] <= Decimal(high) <= Decimal("0.05")
        assert "is waiting: simulator/gpt-demo concurrency, 3 running" in text
        assert "provider: 9 calls, 1 of them refused, 3 at a time at most" in text
        assert "waited for: simulator/gpt-demo" in text
    assert "time not known: no task of this kind has ended yet" in shown[0]
    assert re.search(r"; time about \d+ s$", shown[1], re.M)
    assert db.execute("select 1 from penstock.attempts") == [], "a refusal costs no attempt"
    assert db.execute("select * from penstock.check_accounts()") == []
    [spent] = db.execute("select sum(base_amount) as cost from penstock.cost_entries")
    assert abs(spent["cost"] - sum(costs)) <= Decimal("0.0001")
    assert len(db.execute("select 1 from penstock.prices")) == 2
    [provider] = db.execute("select refusals, pace from penstock.endpoint_states where refusals > 0")
    assert provider["refusals"] == 2 and provider["pace"] > 0.7


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
        assert "is waiting: simulator/gpt-demo" in shown and "cost: " in shown
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.poll() is not None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
