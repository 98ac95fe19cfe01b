"""The engine compared with plain PostgreSQL: each function measures one promise and returns figures.

Rates are compared within one run on one server; on other machines only the ratios are meaningful.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench import ours
from bench.measure import Figure, timer
from bench.ours import Connection, ended_tasks, tenant, waiting_tasks
from bench.server import UnavailableError

SYSTEM = "penstock"
BARE_COPY = "bare COPY, same rows and indexes"

_CLAIM = "select id, lease, tenant_id from penstock.claim_tasks('bench', %s, '{noop}')"
_COMPLETE = "select id, code from penstock.complete_tasks('bench', %s::bigint[], %s::bigint[])"


@contextmanager
def database(dsn: str) -> Iterator[Connection]:
    ours.prepare(dsn)
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as connection:
        yield connection


def analyze(connection: Connection) -> None:
    """Vacuum and analyze as autovacuum would after a minute, once a measurement's data is inserted."""
    connection.execute("analyze")


def turn(connection: Connection, batch: int) -> tuple[list[Any], float, float]:
    """One claim and its completion: the rows, and the seconds of each."""
    begun = time.perf_counter()
    rows = connection.execute(_CLAIM, (batch,)).fetchall()
    claimed = time.perf_counter()
    if rows:
        connection.execute(_COMPLETE, ([row[0] for row in rows], [row[1] for row in rows]))
    return rows, claimed - begun, time.perf_counter() - claimed


def claim_ms(connection: Connection, batch: int, times: int) -> float:
    """Median milliseconds of a claim, after a warm-up."""
    for _ in range(8):
        turn(connection, batch)
    return 1000 * statistics.median(turn(connection, batch)[1] for _ in range(times))


def limit(dsn: str, n: int, clients: int) -> list[Figure]:
    """The same two statements run by pgbench: the limit of PostgreSQL without Python."""
    with database(dsn) as connection:
        waiting_tasks(connection, tenant(connection, "limit"), n)
        analyze(connection)
        with draining([(dsn, n, clients)]) as seconds:
            pass
        done = _value(connection, "select count(*) from penstock.results")
    return [Figure(f"limit_{clients}", "pgbench, same statements", done / seconds(), "tasks/s")]


@contextmanager
def draining(parts: list[tuple[str, int, int]]) -> Iterator[Callable[[], float]]:
    """Drain these databases (address, tasks, clients) side by side. Gives the seconds."""
    script = (
        "select array_agg(id) as ids, array_agg(lease) as leases\n"
        "from penstock.claim_tasks('b' || :client_id, 500, '{noop}') \\gset\n"
        "select count(*) from penstock.complete_tasks('b' || :client_id, :ids, :leases);\n"
    )
    path = Path(f"/tmp/penstock-bench-{time.monotonic_ns()}.sql")
    path.write_text(script)
    with timer() as seconds:
        running = [
            subprocess.Popen(
                [pgbench(), "-n", "-c", str(clients), "-j", str(clients), "-M", "extended",
                 "-t", str(n // 500 // clients), "-f", str(path), dsn],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            for dsn, n, clients in parts
        ]  # fmt: skip
        codes = [process.wait() for process in running]
    path.unlink()
    if any(codes):
        raise UnavailableError("pgbench failed")
    yield seconds


def pgbench() -> str:
    """Debian's pgbench of any version: the embedded server's wheel has none."""
    found = shutil.which("pgbench") or next(
        map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))), None
    )
    if found is None:
        raise UnavailableError("pgbench is not installed (Debian: apt install postgresql-15)")
    return found


def bulk(dsn: str, n: int) -> list[Figure]:
    """A job of n tasks compared with a plain COPY of the same rows into the same tables and indexes."""
    ours.prepare(dsn)
    with ours.client(dsn) as client, timer() as seconds:
        client.send_many(n, 0)
    rate = n / seconds()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in ("tasks", "ready"):
            connection.execute(
                f"create table penstock.bare_{table} (like penstock.{table} including all)".encode()
            )
        files = {table: _dump(connection, table) for table in ("tasks", "ready")}
        connection.execute("checkpoint")
        with timer() as seconds, connection.transaction():
            for table, blocks in files.items():
                with connection.cursor().copy(f"copy penstock.bare_{table} from stdin".encode()) as copy:
                    for block in blocks:
                        copy.write(block)
    bare = n / seconds()
    return [
        Figure("bulk", SYSTEM, rate, "tasks/s"),
        Figure("bulk", BARE_COPY, bare, "tasks/s"),
        Figure("bulk_share", SYSTEM, rate / bare, "of bare COPY (≥ 0.5)"),
    ]


def _dump(connection: Connection, table: str) -> list[bytes]:
    with connection.cursor().copy(f"copy penstock.{table} to stdout".encode()) as copy:
        return [bytes(block) for block in copy]


def depth(dsn: str, small: int, large: int, ended: int) -> list[Figure]:
    """The duration of a claim with few and with many ready tasks, and with many ended tasks kept."""
    with database(dsn) as connection:
        owner = tenant(connection, "depth")
        waiting_tasks(connection, owner, small)
        analyze(connection)
        shallow = claim_ms(connection, 50, 100)
        ended_tasks(connection, owner, ended)
        waiting_tasks(connection, owner, small)
        analyze(connection)
        kept = claim_ms(connection, 50, 100)
        waiting_tasks(connection, owner, large)
        analyze(connection)
        deep = claim_ms(connection, 50, 100)
    return [
        Figure("claim_shallow", f"{small:,} ready", shallow, "ms for 50"),
        Figure("claim_kept", f"{ended:,} ended kept", kept, "ms for 50"),
        Figure("claim_deep", f"{large:,} ready", deep, "ms for 50"),
        Figure("depth_ratio", SYSTEM, deep / shallow, "× (≤ 1.5)"),
        Figure("history_ratio", SYSTEM, kept / shallow, "× (≤ 1.2)"),
    ]


def fairness(dsn: str, alone_dsn: str, big: int, tenants: int) -> list[Figure]:
    """How long small tenants wait, with and without a tenant that queued a million tasks before."""
    waits: dict[str, float] = {}
    for label, where, size in (("alone", alone_dsn, 0), ("beside", dsn, big)):
        with database(where) as connection:
            if size:
                waiting_tasks(connection, tenant(connection, "big"), size)
                analyze(connection)
                for _ in range(20):
                    turn(connection, 100)
            small = {tenant(connection, f"small {n}") for n in range(tenants)}
            specs = json.dumps([{"kind": "noop", "input": {"sent": 0}}] * 10)
            for owner in small:
                connection.execute("select penstock.start_job('small', '{}', %s::jsonb, %s::jsonb)",
                                   (specs, json.dumps({"tenant_id": owner})))  # fmt: skip
            waits[label] = statistics.median(_waits(connection, small, tenants * 10))
    return [
        Figure("small_wait", "small tenants alone", waits["alone"], "s, median"),
        Figure("small_wait", f"beside one with {big:,} tasks", waits["beside"], "s, median"),
        Figure("fairness_ratio", SYSTEM, waits["beside"] / waits["alone"], "× (≤ 2)"),
    ]


def _waits(connection: Connection, small: set[str], tasks: int) -> list[float]:
    begun, waits = time.perf_counter(), []
    while len(waits) < tasks:
        rows, _, _ = turn(connection, 100)
        now = time.perf_counter() - begun
        waits += [now for row in rows if str(row[2]) in small]
    return waits


# What a claim in order of arrival changes in the stages of the fair claim.
_IN_ORDER = {
    "claim_tasks": {"_pick_round(": "_pick_round_in_order(", "_lease_tasks(": "_lease_tasks_in_order("},
    "_pick_round": {"_pick_open(": "_pick_open_in_order("},
    "_pick_open": {
        "and ready.vtime >= l.read_from": "",
        "and ready.vtime <= coalesce(bound.vtime, 9223372036854775807)": "",
        "order by ready.vtime limit": "order by ready.task_id limit",
        "and exists (select from mixed)": "and false",
    },
    "_lease_tasks": {"clock = greatest(l.clock, p.top), read_from = l.clock": "clock = l.clock"},
}


def add_claim_in_order(connection: Connection) -> None:
    """Add claim_tasks_in_order: the same claim, with each stage copied, but in order of arrival."""
    for function, changes in _IN_ORDER.items():
        source: str = _value(connection, f"select pg_get_functiondef('penstock.{function}'::regproc)")
        for old, new in {f"penstock.{function}(": f"penstock.{function}_in_order(", **changes}.items():
            if source.count(old) != 1:
                raise ValueError(f"{function} has {source.count(old)} times {old!r}: update _IN_ORDER")
            source = source.replace(old, new)
        connection.execute(source.encode())
    connection.execute("create index ready_in_order on penstock.ready (lane_id, task_id)")


def fifo(dsn: str, n: int, tenants: int) -> list[Figure]:
    """The fair claim compared with a claim in order of arrival, in turns on the same rows."""
    with database(dsn) as connection:
        for number in range(tenants):
            waiting_tasks(connection, tenant(connection, f"t{number}"), n // tenants)
        analyze(connection)
        add_claim_in_order(connection)
        seconds: dict[str, list[float]] = {"claim_tasks": [], "claim_tasks_in_order": []}
        for _ in range(n // 1000 // 2):
            for function, times in seconds.items():
                with timer() as spent:
                    rows = connection.execute(
                        f"select id, lease from penstock.{function}('bench', 500, '{{noop}}')".encode()
                    ).fetchall()
                times.append(spent())
                connection.execute(_COMPLETE, ([row[0] for row in rows], [row[1] for row in rows]))
    fair, plainly = (statistics.median(times[4:]) for times in seconds.values())
    return [
        Figure("claim_fair", f"{tenants} tenants", 1000 * fair, "ms for 500"),
        Figure("claim_fifo", "plain order of arrival", 1000 * plainly, "ms for 500"),
        Figure("fifo_share", SYSTEM, plainly / fair, "of FIFO's rate (≥ 0.8)"),
    ]


def pause(dsn: str, n: int) -> list[Figure]:
    """Pause and cancel of a large job: the duration of the call, and its effect on other claims."""
    figures: list[Figure] = []
    with database(dsn) as connection:
        other = tenant(connection, "other")
        for verb in ("pause_job", "cancel_job"):
            large = waiting_tasks(connection, tenant(connection, "large"), n)
            waiting_tasks(connection, other, 200_000)
            analyze(connection)
            before = claim_ms(connection, 50, 100)
            stop = threading.Event()
            sweeper = threading.Thread(target=_keep_up, args=(dsn, stop))
            with timer() as seconds:
                connection.execute(f"select penstock.{verb}(%s)".encode(), (large,))
            sweeper.start()
            during: list[float] = []
            while _value(connection, "select count(*) from penstock.chores") and len(during) < 3000:
                during.append(1000 * turn(connection, 50)[1])
            stop.set()
            sweeper.join()
            left = connection.execute(
                "select count(*) from penstock.ready where job_id = %s", (large,)
            ).fetchone()
            assert left and left[0] == 0, "the job's tasks have not left the ready set"
            figures += [
                Figure(verb, f"job of {n:,}", seconds(), "s (< 1)"),
                Figure(f"{verb}_others", SYSTEM, statistics.median(during) / before, "× others' claim (< 2)"),
            ]
            connection.execute("truncate penstock.ready, penstock.parked")
    return figures


def _keep_up(dsn: str, stop: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.is_set():
            connection.execute("select * from penstock.upkeep()")


def held_snapshot(dsn: str, seconds: float, rate: int) -> list[Figure]:
    """An open snapshot under steady load: the duration of a claim at the end, and whether a backlog grew."""
    with database(dsn) as connection, psycopg.connect(dsn) as holder:
        owners = [tenant(connection, f"t{n}") for n in range(10)]
        stop = threading.Event()
        producer = threading.Thread(target=_produce, args=(dsn, owners, rate, stop))
        producer.start()
        spent: list[tuple[float, float]] = []
        warm = min(20.0, seconds / 3)
        begun = time.perf_counter()
        held = False
        while (now := time.perf_counter() - begun) < seconds + warm:
            if not held and now > warm:
                holder.execute("set transaction isolation level repeatable read")
                holder.execute("select count(*) from penstock.jobs")
                held = True
            rows, claimed, _ = turn(connection, 500)
            if len(rows) >= 10:
                spent.append((now, 1000 * claimed / len(rows) * 100))
            if len(rows) < 100:
                time.sleep(0.02)
        stop.set()
        producer.join()
        backlog = _value(connection, "select count(*) from penstock.ready")
        holder.rollback()
    before = statistics.median(cost for at, cost in spent if warm / 2 < at < warm)
    after = statistics.median(cost for at, cost in spent if at > warm + 0.9 * seconds)
    return [
        Figure("held_before", f"{rate}/s", before, "ms per 100 claimed"),
        Figure("held_after", f"snapshot held {seconds:.0f} s", after, "ms per 100 claimed"),
        Figure("held_ratio", SYSTEM, after / before, "× (≤ 1.5)"),
        Figure("held_backlog", SYSTEM, backlog, "tasks left"),
    ]


def _produce(dsn: str, owners: list[str], rate: int, stop: threading.Event) -> None:
    chunk = 100
    specs = json.dumps([{"kind": "noop", "input": {"sent": 0}}] * chunk)
    with psycopg.connect(dsn, autocommit=True) as connection:
        due = time.perf_counter()
        while not stop.is_set():
            options = json.dumps({"tenant_id": random.choice(owners)})
            connection.execute(
                "select penstock.start_job('steady', '{}', %s::jsonb, %s::jsonb)", (specs, options)
            )
            due += chunk / rate
            time.sleep(max(0.0, due - time.perf_counter()))


def _value(connection: Connection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


__all__ = ["add_claim_in_order", "bulk", "depth", "fairness", "fifo", "held_snapshot", "limit", "pause"]
