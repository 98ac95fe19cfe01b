"""The HTTP API under load: watchers, clients that start jobs, and requests compared with their minimum cost.

One server process (`penstock serve`), another for the load (`bench.load`), and PostgreSQL on the same
machine.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
from psycopg.types.json import Jsonb

from bench.bare import TABLE
from bench.engine import SYSTEM, Connection, database
from bench.measure import REPOSITORY, Figure, percentile
from bench.server import free_port
from penstock import server

TENANTS = 100
JOB = {"type": "report", "params": {"topic": "rivers"}, "tasks": [{"kind": "noop", "input": {"sent": 0}}]}
PER_SECOND = 100
"""Tasks that end while watchers watch."""
START_UP_SECONDS = 60
SETTLE_SECONDS = 11
"""After this time idle sessions have flushed their statistics."""


@dataclass(frozen=True)
class Tenants:
    """Tenants, each with an API key."""

    ids: list[str]
    keys: list[str]


def make_tenants(connection: Connection) -> Tenants:
    # The free plan ends after a few seconds of starts.
    connection.execute("select penstock.set_setting('tenant_plan', '\"unlimited\"')")
    rows = connection.execute(
        """select t.id::text, k.secret
        from (select penstock.create_tenant('t' || n) as id from generate_series(1, %s) as n) as t,
          lateral penstock.create_key('bench', 'member', t.id) as k""",
        (TENANTS,),
    ).fetchall()
    return Tenants([row[0] for row in rows], [row[1] for row in rows])


@contextmanager
def serving(*command: str, **environment: str) -> Iterator[int]:
    """Start a server in its own process; yields its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in command)],
        env={**os.environ, **environment},
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_UP_SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not answer")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def answers(port: int) -> bool:
    try:
        http.client.HTTPConnection("127.0.0.1", port, timeout=10).request("GET", "/healthz")
    except OSError:
        return False
    return True


def penstock(dsn: str) -> AbstractContextManager[int]:
    login = server.ensure_login(dsn)
    return serving("penstock", "serve", "--port", "PORT", DATABASE_URL=dsn, PENSTOCK_API_URL=login)


@contextmanager
def load(**what: Any) -> Iterator[subprocess.Popen[str]]:
    """A running load generator."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()


def loaded(**what: Any) -> Any:
    """The results of a load generator."""
    with load(**what) as process:
        assert process.stdout
        return json.loads(process.stdout.readline())


# Watchers


def watchers(dsn: str, numbers: list[int], seconds: float) -> list[Figure]:
    """Event streams of 100 running jobs: their load on the database, and their delay."""
    figures: list[Figure] = []
    with database(dsn) as connection, penstock(dsn) as port:
        tenants = make_tenants(connection)
        each = round(len(numbers) * (seconds + 2) * PER_SECOND / TENANTS) + 20
        jobs = start_jobs(connection, tenants, each)
        waiting = claim_all(connection, jobs)
        connection.execute("vacuum analyze")
        for number in numbers:
            figures += _watched(connection, port, tenants, jobs, waiting, each, number, seconds)
    return figures


def start_jobs(connection: Connection, tenants: Tenants, count: int) -> list[str]:
    """Start a job with this many tasks for each tenant."""
    tasks = Jsonb([{"kind": "noop"}] * count)
    jobs: list[str] = []
    for tenant_id in tenants.ids:
        row = connection.execute(
            "select penstock.start_job('report', '{}', %s, %s)::text",
            (tasks, Jsonb({"tenant_id": tenant_id})),
        ).fetchone()
        assert row
        jobs.append(row[0])
    return jobs


def claim_all(connection: Connection, jobs: list[str]) -> list[list[tuple[int, int]]]:
    """The tasks of each job, with their leases."""
    claimed: dict[str, list[tuple[int, int]]] = {job: [] for job in jobs}
    while rows := connection.execute(
        "select job_id::text, id, lease from penstock.claim_tasks('bench', 5000, '{noop}', 3600)"
    ).fetchall():
        for job, task, lease in rows:
            claimed[job].append((task, lease))
    return [claimed[job] for job in jobs]


def _watched(
    connection: Connection,
    port: int,
    tenants: Tenants,
    jobs: list[str],
    waiting: list[list[tuple[int, int]]],
    each: int,
    number: int,
    seconds: float,
) -> list[Figure]:
    ended_at: list[dict[int, float]] = [{} for _ in jobs]
    with load(mode="watch", port=port, jobs=jobs, keys=tenants.keys, connections=number) as process:
        assert process.stdin and process.stdout
        if process.stdout.readline() != "watching\n":
            raise RuntimeError("the server rejected the watchers")
        time.sleep(SETTLE_SECONDS)
        ours, before = 0, _transactions(connection)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            # A few jobs at a time, because workers report in batches too.
            few = [(ours * 5 + place) % len(jobs) for place in range(5)]
            ended = [waiting[job].pop() for job in few]
            now = time.monotonic()
            connection.execute(
                "select from penstock.complete_tasks('bench', %s::bigint[], %s::bigint[])",
                ([task for task, _ in ended], [lease for _, lease in ended]),
            )
            for job in few:
                # Taken before the call, because its duration counts too.
                ended_at[job][each - len(waiting[job])] = now
            ours += 1
            time.sleep(max(0.0, began + ours * 5 / PER_SECOND - time.monotonic()))
        # The reads of the counter are transactions too.
        asked = (_transactions(connection) - before - ours - 2) / passed
        time.sleep(2)
        process.stdin.write("stop\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
    latencies = [
        late
        for place, heard in enumerate(found["heard"])
        for late in _latencies(ended_at[place % len(jobs)], heard)
    ]
    name = f"{number:,} watchers of {len(jobs)} jobs"
    return [
        Figure("watch_asked", name, asked, "transactions/s of the server"),
        Figure("watch_p50", name, 1000 * percentile(latencies, 0.5), "ms from a task's end to its event"),
        Figure("watch_p99", name, 1000 * percentile(latencies, 0.99), "ms (< 1000)"),
        Figure("watch_lost", name, found["lost"], "streams lost (0)"),
    ]


def _latencies(ended_at: dict[int, float], heard: list[list[float]]) -> Iterator[float]:
    """The delay of each task's end: until the first event that counts it."""
    told = iter(heard)
    count, at = 0.0, 0.0
    for number, ended in sorted(ended_at.items()):
        while count < number:
            # The delay of an end that no event reported is infinite.
            count, at = next(told, (float("inf"), float("inf")))
        yield at - ended


def _transactions(connection: Connection) -> int:
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row
    return row[0]


# Clients that start jobs


def clients(dsn: str, number: int, seconds: float) -> list[Figure]:
    """Many clients on persistent connections, each starting one job after the other."""
    with database(dsn) as connection, penstock(dsn) as port:
        tenants = make_tenants(connection)
        connection.execute("vacuum analyze")
        for key in tenants.keys:
            # The server limits how many keys that it does not know yet one address may send at once.
            httpx.get(
                f"http://127.0.0.1:{port}/api/jobs", headers={"Authorization": f"Bearer {key}"}
            ).raise_for_status()
        found = loaded(
            mode="requests", port=port, method="POST", paths=["/api/jobs/start"] * TENANTS,
            keys=tenants.keys, job=JOB, connections=number, seconds=seconds, expected=201,
        )  # fmt: skip
        row = connection.execute("select count(*) from penstock.jobs").fetchone()
        assert row
    lost = abs(found["answered"] - row[0])
    name = f"{number:,} clients of {TENANTS} tenants"
    if found["errors"]:
        print(f"  rejected, by status: {found['errors']}", flush=True)
    return [
        Figure("clients_errors", name, sum(found["errors"].values()) + lost, "errors (0)"),
        Figure("clients_rate", name, found["per_second"], "jobs/s"),
        Figure("clients_p50", name, found["p50"], "ms"),
        Figure("clients_p99", name, found["p99"], "ms"),
    ]


# Compared with the minimum


def beside(new: Callable[[], str], connections: int, seconds: float, rounds: int) -> list[Figure]:
    """Requests per second of one process, compared with a bare FastAPI app with one statement."""
    rates: dict[str, list[float]] = {}
    bare_dsn, dsn = new(), new()
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        connection.execute(TABLE.encode())
        rows = connection.execute(
            "insert into bare_jobs (type, params, tasks) select 'report', %s, %s from generate_series(1, %s) "
            "returning id::text",
            (Jsonb(JOB["params"]), Jsonb(JOB["tasks"]), TENANTS),
        ).fetchall()
    with database(dsn) as connection:
        tenants = make_tenants(connection)
        jobs = start_jobs(connection, tenants, 1)

    def measure(name: str, port: int, path: str | list[str], expected: int, **what: Any) -> None:
        paths = path if isinstance(path, list) else [path] * TENANTS
        found = loaded(
            mode="requests", port=port, paths=paths, keys=tenants.keys, connections=connections,
            seconds=seconds, expected=expected, method="POST" if "job" in what else "GET", **what,
        )  # fmt: skip
        if found["errors"]:
            raise RuntimeError(f"{name}: {found['errors']}")
        rates.setdefault(name, []).append(found["per_second"])

    with serving("bench.bare", "PORT", BENCH_DSN=bare_dsn) as bare, penstock(dsn) as ours:
        for _ in range(rounds):
            measure("bare start", bare, "/jobs", 201, job=JOB)
            measure("start", ours, "/api/jobs/start", 201, job=JOB)
            measure("bare get", bare, [f"/jobs/{row[0]}" for row in rows], 200)
            measure("get", ours, [f"/api/jobs/{job}" for job in jobs], 200)
    rate = {name: statistics.median(found) for name, found in rates.items()}
    return [
        Figure("request_start", "bare FastAPI, one insert", rate["bare start"], "requests/s"),
        Figure("request_start", "POST /api/jobs/start", rate["start"], "requests/s"),
        Figure("request_start_share", SYSTEM, rate["start"] / rate["bare start"], "of bare FastAPI"),
        Figure("request_get", "bare FastAPI, one select", rate["bare get"], "requests/s"),
        Figure("request_get", "GET /api/jobs/{id}", rate["get"], "requests/s"),
        Figure("request_get_share", SYSTEM, rate["get"] / rate["bare get"], "of bare FastAPI"),
    ]
