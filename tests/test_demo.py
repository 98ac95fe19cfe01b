"""`penstock demo` makes a book, shows its progress, and stores PDFs and MP3s."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import server, testing


def command(db: testing.Database) -> list[str]:
    return [sys.executable, "-m", "penstock", "demo", "--database", db.dsn]


@pytest.fixture
def environment(db: testing.Database, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PENSTOCK_ALLOW_UNSAFE": "1",
        "PENSTOCK_API_URL": server.ensure_login(db.dsn),
        "PENSTOCK_HOME": str(tmp_path),
        "COLUMNS": "120",
        # The demo uses the simulator even if the environment names a proxy or a real provider.
        "http_proxy": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "READING_MODEL": "openai/gpt-5",
        "READING_VOICE_MODEL": "openai/tts-1",
    }


@pytest.mark.slow
def test_it_makes_the_book_without_a_terminal_and_then_on_one(
    db: testing.Database, environment: dict[str, str], tmp_path: Path, eventually: Any
) -> None:
    """R1.10/documents: 16 PDFs, 16 MP3s and the whole book. Forecast, cost and budget are shown, and why it waits.

    Without a terminal it ends with status 0. On one it stays up until Ctrl-C, for a person who opens the links.
    """
    without_a_terminal(db, environment, tmp_path)
    shown, code = on_a_terminal(db, environment, tmp_path, eventually)
    assert code == 0
    assert "█" in shown and "typesetting" in shown and "100%" in shown and "of 0.25 USD" in shown
    assert "is waiting: simulator/gpt-demo" in shown and "cost: " in shown
    assert re.search(r", duration about \d+ s", shown), "the first run gives an estimate of the duration"
    assert len(db.execute("select 1 from penstock.prices")) == 2


def without_a_terminal(db: testing.Database, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        command(db), env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    shown = done.stdout
    assert done.returncode == 0, shown + done.stderr
    assert "files: 16 PDFs, 16 MP3s, the complete book and its metadata" in shown
    for name, head in (("book", b"%PDF-"), ("audio", b"\xff")):
        [place] = re.findall(rf"^  {name} +(.+)$", shown, re.M)
        assert Path(place).read_bytes().startswith(head)
    [folder] = re.findall(r"^  folder +(.+)$", shown, re.M)
    ends = Counter(path.suffix for path in Path(folder).rglob("*.*"))
    assert ends == {".pdf": 17, ".mp3": 16, ".json": 17}
    assert re.search(r"^since start: first PDF after [\d.]+ s, everything after [\d.]+ s$", shown, re.M)

    percents = [int(found) for found in re.findall(r"^ *(\d+)%", shown, re.M)]
    assert percents == sorted(percents) and percents[-1] == 100 and len(percents) > 3
    [job] = db.execute("select * from penstock.job_list")
    assert (job["status"], job["percent"], job["succeeded"], job["total"]) == ("completed", 100, 50, 50)
    assert str(job["id"]) in shown
    assert [row["state"] for row in db.execute("select state from penstock.worker_list")] == ["stopped"]

    [(low, high)] = re.findall(r"^forecast: ([\d.]+) to ([\d.]+) USD \(budget 0.25 USD\)", shown, re.M)
    [cost] = re.findall(r"^cost: ([\d.]+) of 0.25 USD", shown, re.M)
    assert 0 < Decimal(low) <= Decimal(cost) <= Decimal(high) <= Decimal("0.25")
    assert "duration unknown: no task of this kind has ended yet" in shown
    assert "is waiting: simulator/gpt-demo concurrency, 3 running" in shown
    assert "provider: 17 calls, 1 rejected with 429, at most 3 concurrent" in shown
    assert "tasks waited for: simulator/gpt-demo" in shown
    assert db.execute("select 1 from penstock.attempts") == [], "a 429 uses no attempt"
    assert db.execute("select * from penstock.check_accounts()") == []
    [spent] = db.execute("select sum(base_amount) as cost from penstock.cost_entries")
    assert abs(spent["cost"] - Decimal(cost)) <= Decimal("0.0001")
    [provider] = db.execute("select refusals, pace from penstock.endpoint_states where refusals > 0")
    assert provider["refusals"] == 1 and provider["pace"] > 0.7
    assert [key["revoked_at"] is None for key in db.execute("select * from penstock.api_keys")] == [False]


def on_a_terminal(
    db: testing.Database, environment: dict[str, str], folder: Path, eventually: Any
) -> tuple[str, int | None]:
    """Output on a terminal until the job is done, after opening the links; and the exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(db),
        env={**environment, "TERM": "xterm"},
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = ""
    try:
        while "until Ctrl-C" not in shown:
            shown += os.read(ours, 65536).decode(errors="replace")
        with httpx.Client(trust_env=False, follow_redirects=True) as client:
            for name, kind in (("book", "application/pdf"), ("audio", "audio/mpeg")):
                [url] = re.findall(rf"  {name} +(http\S+)", shown)
                answer = client.get(url)
                assert (answer.status_code, answer.headers["content-type"]) == (200, kind)
            [login] = re.findall(r"^dashboard: (http\S+)", shown, re.M)
            answer = client.get(login)
            assert answer.status_code == 200 and "Overview" in answer.text
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.poll() is not None)
        return shown, process.returncode
    finally:
        process.kill()
        process.wait()
        os.close(ours)
