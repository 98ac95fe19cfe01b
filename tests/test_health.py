"""Probes of workers: liveness, readiness and drain over HTTP, in a file, and to systemd."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import testing
from penstock.errors import Conflict, Invalid
from penstock.worker.health import Health, Pulse


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def probe(port: int, path: str) -> tuple[int, dict[str, Any]] | None:
    """The status and document of an answer, or None if nothing listens."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5)
    except httpx.TransportError:
        return None
    return answer.status_code, answer.json()


def is_ready(port: int) -> bool:
    found = probe(port, "/readyz")
    return found is not None and found[0] == 200


def test_a_worker_that_starts_is_live_and_not_ready() -> None:
    pulse = Pulse()
    assert pulse.problem_of_liveness() is None
    assert pulse.problem_of_readiness() == "starting"
    pulse.tick("running", time.monotonic(), 10)
    assert pulse.problem_of_readiness() is None
    pulse.tick("draining", time.monotonic(), 10)
    assert pulse.problem_of_readiness() == "draining"


def test_a_database_that_does_not_answer_costs_readiness_and_not_liveness() -> None:
    """A restart would not bring the database back, and would stop handlers that can finish."""
    pulse = Pulse()
    pulse.tick("running", time.monotonic() - 11, 10)
    assert pulse.problem_of_readiness() == "the database has not answered for 11 s"
    assert pulse.problem_of_liveness() is None


def test_an_event_loop_that_stands_still_costs_liveness(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = Pulse()
    pulse.tick("running", time.monotonic(), 1000)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 59)
    assert pulse.problem_of_liveness() is None
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert pulse.problem_of_liveness() == "the event loop has not run for 61 s"
    assert pulse.problem_of_readiness() == pulse.problem_of_liveness()


def test_one_process_that_is_not_ready_makes_the_worker_not_ready() -> None:
    pulses = [Pulse(), Pulse()]
    health = Health(None, pulses, on_drain=lambda: None)
    pulses[0].tick("running", time.monotonic(), 10)
    assert (health.answer()["live"], health.answer()["ready"]) == (True, False)
    pulses[1].tick("running", time.monotonic(), 10)
    assert health.answer() == {"live": True, "ready": True, "state": "running", "problem": None}


@pytest.mark.parametrize("address", ["http", "80800", "host:", ""])
def test_a_bad_address_is_rejected(address: str) -> None:
    if not address:
        assert Health(address, [Pulse()], on_drain=lambda: None).port is None
        return
    with pytest.raises(Invalid) as refusal:
        Health(address, [Pulse()], on_drain=lambda: None)
    assert refusal.value.code == "invalid_health"


def test_a_port_in_use_is_rejected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Conflict) as refusal:
        Health(f"127.0.0.1:{taken.getsockname()[1]}", [Pulse()], on_drain=lambda: None)
    assert refusal.value.code == "address_in_use"


def test_answers_over_http() -> None:
    drained: list[int] = []
    pulse = Pulse()
    health = Health("127.0.0.1:0", [pulse], on_drain=lambda: drained.append(1))
    health.start()
    try:
        assert health.port is not None
        assert probe(health.port, "/healthz") == (
            200, {"live": True, "ready": False, "state": "starting", "problem": "starting"},
        )  # fmt: skip
        found = probe(health.port, "/readyz")
        assert found is not None and found[0] == 503
        assert (probe(health.port, "/else") or (0,))[0] == 404
        assert httpx.post(f"http://127.0.0.1:{health.port}/healthz").status_code == 404
        assert not drained
        assert httpx.post(f"http://127.0.0.1:{health.port}/drain").status_code == 202
        assert drained == [1]
    finally:
        health.stop()
    assert probe(health.port, "/healthz") is None


def test_only_the_machine_itself_may_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probes' port is open to the cluster, and nobody there may stop a worker."""
    drained: list[int] = []
    health = Health("127.0.0.1:0", [Pulse()], on_drain=lambda: drained.append(1))
    monkeypatch.setattr("penstock.worker.health.ipaddress.ip_address", lambda text: _Other())
    health.start()
    try:
        assert httpx.post(f"http://127.0.0.1:{health.port}/drain").status_code == 403
    finally:
        health.stop()
    assert not drained


class _Other:
    is_loopback = False


def test_writes_a_file_and_tells_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("penstock.worker.health._WRITE_SECONDS", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        pulse, path = Pulse(), tmp_path / "health"
        health = Health(str(path), [pulse], on_drain=lambda: None)
        health.start()
        assert json.loads(path.read_text())["ready"] is False
        assert systemd.recv(1000).decode() == "STATUS=starting\nWATCHDOG=1"
        pulse.tick("running", time.monotonic(), 10)
        eventually(lambda: json.loads(path.read_text())["ready"])
        while "READY=1" not in systemd.recv(1000).decode():
            pass
        pulse.tick("draining", time.monotonic(), 10)
        while "STOPPING=1" not in systemd.recv(1000).decode():
            pass
        # A stuck worker neither updates the file nor notifies systemd.
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 100)
        eventually(lambda: "WATCHDOG" not in systemd.recv(1000).decode())
        health.stop()
        assert not path.exists()


@pytest.mark.slow
def test_probes_of_a_worker_follow_its_life(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any, port: int
) -> None:
    """Ready once it claims, not ready while it drains; a drain finishes the running task."""
    worker: subprocess.Popen[str] = start_worker(health=str(port), kinds=["hold"], grace_seconds=30)
    eventually(lambda: is_ready(port), "it is ready")
    job = workload.hold.start("opened")
    eventually(lambda: db.execute("select word from effects where word = 'begun'"))
    assert httpx.post(f"http://127.0.0.1:{port}/drain").status_code == 202
    found = eventually(lambda: (f := probe(port, "/readyz")) and f[0] == 503 and f, "not ready")
    assert found[1]["problem"] == "draining"
    assert (probe(port, "/healthz") or (0,))[0] == 200, "it is live until it ends"
    db.execute("insert into gates values ('opened')")
    assert worker.wait(20) == 0
    assert job.get().status == "completed"


@pytest.mark.slow
def test_probes_cover_all_processes_of_a_worker(
    workload: Any, start_worker: Any, db: testing.Database, eventually: Any, port: int
) -> None:
    worker: subprocess.Popen[str] = start_worker(health=f"127.0.0.1:{port}", processes=2, grace_seconds=5)
    eventually(lambda: is_ready(port), "both are ready")
    rows = db.execute("select pid from penstock.worker_list where state = 'running'")
    assert len(rows) == 2
    os.kill(rows[0]["pid"], signal.SIGSTOP)
    eventually(lambda: not is_ready(port), "one of them is silent")
    os.kill(rows[0]["pid"], signal.SIGCONT)
    eventually(lambda: is_ready(port), "both are ready again")
    worker.terminate()
    assert worker.wait(20) == 0


@pytest.mark.slow
def test_a_worker_without_a_database_is_live_and_not_ready(
    workload: Any, start_worker: Any, port: int, eventually: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()[1]
    start_worker(dsn=f"postgresql://nobody@127.0.0.1:{dead}/none", health=str(port))
    found = eventually(lambda: probe(port, "/healthz"), "it answers")
    assert found[0] == 200 and not is_ready(port)
