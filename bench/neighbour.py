"""A noisy neighbour: one tenant uses what tenants share at full speed while another tenant works.

Shows the victim's p95 alone and beside each attack, and the ratio, which should stay below 3; and how many
requests of the attacker were answered with which status, because an attack that is refused at once proves
little. An attack runs in a process of its own: `python -m bench.neighbour ATTACK PORT KEY TENANT`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from pydantic import BaseModel

from bench.api import serving
from bench.engine import database
from bench.measure import REPOSITORY, Figure, percentile
from penstock import App, server

GOAL = 3.0
PROVIDER = "neighbour/api"
DEPTH = 20_000
app = App()


@app.task
def noop(n: int) -> int:
    return n


@app.job
def many(count: int) -> None:
    for n in range(count):
        noop.step(n)


@app.task
def call(n: int) -> int:
    return n


@app.job
def calls(count: int) -> None:
    for n in range(count):
        call.options(provider=PROVIDER).step(n)


class Line(BaseModel):
    title: str
    number: int


@app.bulk(row=Line, key=["title"])
def lines(row: Line) -> None:
    noop.step(row.number)


# The attacks: each function is called in a loop by every thread.

PATTERNS = "&".join(f"type=ilike.*{n}%25{n}*" for n in range(99))
TABLE = "title,number\n" + "".join(f"row {n},{n}\n" for n in range(50_000))
INVENTED = [str(uuid.UUID(int=n)) for n in range(1, 20_000)]


BLANK = b" " * 999_999 + b"\n"


def _stream(client: httpx.Client, tenant: str) -> httpx.Response:
    with client.stream("GET", f"/api/events?tenant_id={tenant}") as response:
        for _ in response.iter_lines():
            pass
    return response


def _upload(client: httpx.Client, tenant: str) -> httpx.Response:
    """20 MB in four seconds: the server holds what has arrived."""

    def slowly() -> Iterator[bytes]:
        yield b"title,number\n"
        for _ in range(20):
            yield BLANK
            time.sleep(0.2)

    return client.post("/api/bulks/upload?type=lines&format=csv", content=slowly())


ATTACKS: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "filters": lambda client, tenant: client.get(f"/rest/v1/job_list?{PATTERNS}"),
    "exports": lambda client, tenant: client.get("/dashboard/jobs.csv"),
    "requests": lambda client, tenant: client.get("/api/jobs?limit=200"),
    "bodies": lambda client, tenant: client.post(
        "/api/jobs/start", json={"type": "many", "params": {"count": 400_000}}
    ),
    "actions": lambda client, tenant: client.post(
        "/rest/v1/rpc/start_action", json={"p_verb": "cancel", "p_subjects": INVENTED}
    ),
    "streams": _stream,
    "table checks": lambda client, tenant: client.post("/api/bulks/check?type=lines", content=TABLE),
    "uploads": _upload,
    "depth": lambda client, tenant: client.post(
        "/api/jobs/start", json={"type": "calls", "params": {"count": 100}}
    ),
}
SHARED_JOBS = {"depth": "calls"}
"""The type of the victim's jobs, where the attack targets a resource that only this type uses."""
THREADS = 20


def attack(name: str, port: int, key: str, tenant: str) -> None:
    """Repeat an attack at full speed until standard input ends; then print the statuses as JSON."""
    statuses: Counter[str] = Counter()

    def run() -> None:
        with httpx.Client(**_connection(port, key)) as client:
            while True:
                try:
                    statuses[str(ATTACKS[name](client, tenant).status_code)] += 1
                except httpx.HTTPError:
                    # Refused connections are part of the attack.
                    statuses["no response"] += 1
                    time.sleep(0.01)

    for _ in range(THREADS):
        threading.Thread(target=run, daemon=True).start()
    print("started", flush=True)
    sys.stdin.read()
    print(json.dumps(dict(statuses)), flush=True)
    # The threads wait for responses.
    os._exit(0)


def _connection(port: int, key: str) -> dict[str, Any]:
    return {
        "base_url": f"http://127.0.0.1:{port}",
        "headers": {"Authorization": f"Bearer {key}"},
        "timeout": 120,
    }


@contextmanager
def attacking(name: str, port: int, key: str, tenant: str) -> Iterator[dict[str, int]]:
    """Run an attack. The dict has the statuses of its requests afterwards."""
    command = [sys.executable, "-m", "bench.neighbour", name, str(port), key, tenant]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=REPOSITORY, **pipes)
    statuses: dict[str, int] = {}
    try:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        # The first requests pass before limits take effect.
        time.sleep(2)
        yield statuses
        statuses.update(json.loads(process.communicate(timeout=60)[0]))
    finally:
        process.kill()
        process.wait()


def _victim(port: int, key: str, seconds: float, type: str = "many") -> list[float]:
    """Milliseconds of reads and of starts of small jobs, with short pauses."""
    found: list[float] = []
    pauses = random.Random(1)
    end = time.monotonic() + seconds
    with httpx.Client(**_connection(port, key)) as client:
        while time.monotonic() < end:
            begin = time.monotonic()
            if len(found) % 5:
                response = client.get("/api/jobs?limit=20")
            else:
                response = client.post("/api/jobs/start", json={"type": type, "params": {"count": 1}})
            found.append((time.monotonic() - begin) * 1000)
            response.raise_for_status()
            time.sleep(pauses.uniform(0.005, 0.02))
    return found


def measure(dsn: str, jobs: int, seconds: float) -> list[Figure]:
    """The victim's p95 alone and beside each attack."""
    figures: list[Figure] = []
    with (
        database(dsn) as connection,
        serving(
            "penstock",
            "serve",
            "bench.neighbour:app",
            "--port",
            "PORT",
            DATABASE_URL=dsn,
            PENSTOCK_API_URL=server.ensure_login(dsn),
        ) as port,
    ):
        rows = connection.execute(
            """select t.id::text, k.secret
            from (select penstock.create_tenant('t' || n) as id from generate_series(1, 2) as n) as t,
              lateral penstock.create_key('bench', 'member', t.id) as k"""
        ).fetchall()
        (attacker, attacker_key), (_, victim_key) = rows
        connection.execute(
            "select count(penstock.start_job('report', '{}', %s::jsonb, %s::jsonb)) "
            "from generate_series(1, %s)",
            ('[{"kind": "noop"}]', f'{{"tenant_id": "{attacker}", "paused": true}}', jobs),
        )
        connection.execute(
            "select penstock.set_provider(%s, %s::jsonb)", (PROVIDER, f'{{"depth_limit": {DEPTH}}}')
        )
        connection.execute("vacuum analyze")
        # The first body starts a process.
        _victim(port, victim_key, 2)
        for name in ATTACKS:
            type = SHARED_JOBS.get(name, "many")
            alone = percentile(_victim(port, victim_key, seconds, type), 0.95)
            with attacking(name, port, attacker_key, attacker) as statuses:
                beside = percentile(_victim(port, victim_key, seconds, type), 0.95)
            # What the attack left behind is not the next one's.
            time.sleep(4)
            figures += [
                Figure("p95_alone", name, alone, "ms"),
                Figure("p95_beside", name, beside, "ms"),
                Figure("neighbour_ratio", name, beside / alone, f"× (goal {GOAL:g})"),
                *(
                    Figure("attacker_requests", f"{name}: {status}", count, "requests")
                    for status, count in sorted(statuses.items())
                ),
            ]
    return figures


if __name__ == "__main__":
    attack(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
