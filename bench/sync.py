"""What sync costs: `python -m bench.sync`.

Rows written as synced ones, beside an upsert of the same rows into a table without triggers, interleaved; and
1,000 devices that ask every 10 seconds whether anything changed: how long a pull takes, and the CPU time of
the database.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from bench import measure, server
from bench.measure import Figure, percentile
from penstock.postgres import migrate

Connection = psycopg.Connection[dict[str, Any]]
SYSTEM = "penstock"
COLUMNS = "id, text, tags, updated_at, deleted"
_TABLE = """
create table app.{name} (user_id uuid not null default auth.uid(), id text not null, text text,
  tags jsonb not null default '[]', updated_at bigint not null, deleted boolean not null default false,
  change_seq bigint not null default 0, primary key (user_id, id));
alter table app.{name} enable row level security;
create policy own on app.{name} for all to authenticated using (user_id = (select auth.uid()))
  with check (user_id = (select auth.uid()));
grant select, insert (user_id, id, text, tags, updated_at, deleted), update (text, tags, updated_at, deleted)
  on app.{name} to authenticated;
"""
_UPSERT = """
insert into app.{name} (id, text, tags, updated_at, deleted)
select id, text, tags, updated_at, deleted from json_to_recordset(%s::json)
  as given(id text, text text, tags jsonb, updated_at bigint, deleted boolean)
on conflict (user_id, id) do update set text = excluded.text, tags = excluded.tags,
  updated_at = excluded.updated_at, deleted = excluded.deleted
"""
_PULL = "select * from app.notes where change_seq > %s order by change_seq limit 1000"


def prepare(dsn: str) -> Connection:
    """A synced table, and one of the same form without triggers."""
    migrate.migrate(dsn)
    conn = connect(dsn)
    conn.execute("create schema app; grant usage on schema app to authenticated")
    for name in ("notes", "bare"):
        conn.execute(_TABLE.format(name=name).encode())
    conn.execute("create unique index on app.bare (user_id, id, updated_at)")
    conn.execute("select penstock.make_synced('app.notes', 1)")
    return conn


def connect(dsn: str) -> Connection:
    return Connection.connect(dsn, autocommit=True, row_factory=dict_row)


def acting(conn: Connection, user: uuid.UUID, query: str, *values: Any) -> list[dict[str, Any]]:
    """One request: a transaction as a user."""
    with conn.transaction():
        conn.execute(
            "select set_config('request.jwt.claims', %s, true), set_config('role', 'authenticated', true)",
            [json.dumps({"sub": str(user)})],
        )
        cursor = conn.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []


def cost(conn: Connection, rounds: int, size: int) -> list[Figure]:
    """Microseconds per row of a push of `size` rows: new rows, then edits of the same rows."""
    spent: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        user, now = uuid.uuid4(), int(time.time() * 1000)
        for step, kind in enumerate(("insert", "edit", "replay")):
            stamp = now + min(step, 1)
            rows = [
                {"id": str(n), "text": f"{'edited' if step else 'a note'} {n} " + "word " * 30,
                 "tags": ["Time"], "updated_at": stamp, "deleted": False}
                for n in range(size)
            ]  # fmt: skip
            changes = [{"table": "notes", "record": {**row, "id": f"p{row['id']}"}} for row in rows]
            ways: list[tuple[str, str, Any]] = [
                ("bare upsert", _UPSERT.format(name="bare"), json.dumps(rows)),
                ("upsert of a synced table", _UPSERT.format(name="notes"), json.dumps(rows)),
                ("push_changes", "select * from penstock.push_changes(%s, 'app')", Jsonb(changes)),
            ]
            random.shuffle(ways)
            for name, query, value in ways:
                begin = time.perf_counter()
                acting(conn, user, query, value)
                if number:
                    took = (time.perf_counter() - begin) * 1e6 / size
                    spent.setdefault(f"{kind} {name}", []).append(took)
    medians = {name: statistics.median(times) for name, times in spent.items()}
    figures = [Figure("sync_write", name, value, "µs/row") for name, value in medians.items()]
    for kind in ("insert", "edit", "replay"):
        bare = medians[f"{kind} bare upsert"]
        for way in ("upsert of a synced table", "push_changes"):
            figures.append(
                Figure("sync_ratio", f"{kind} {way} : bare upsert", medians[f"{kind} {way}"] / bare, "×")
            )
    return figures


def devices(
    dsn: str, conn: Connection, count: int, seconds: int, every: float, connections: int
) -> list[Figure]:
    """Devices that pull every few seconds, a twentieth of them after another device has written a note."""
    users = [uuid.uuid4() for _ in range(count)]
    now = int(time.time() * 1000)
    conn.execute(
        "insert into app.notes (user_id, id, text, updated_at) select u, n::text, repeat('word ', 30), %s"
        " from unnest(%s::uuid[]) u, generate_series(1, 100) n", [now, users],
    )  # fmt: skip
    conn.execute("vacuum analyze app.notes")
    cursors = {
        user: acting(conn, user, "select max(change_seq) as seq from app.notes")[0]["seq"] for user in users
    }
    took: list[float] = []
    pulled = 0
    free: SimpleQueue[Connection] = SimpleQueue()
    for _ in range(connections):
        free.put(connect(dsn))
    lock = threading.Lock()

    def sync(user: uuid.UUID, due: float, is_changed: bool) -> None:
        nonlocal pulled
        session = free.get()
        if is_changed:
            note = {"id": uuid.uuid4().hex, "text": "new", "updated_at": int(time.time() * 1000)}
            change = [{"table": "notes", "record": note}]
            acting(session, user, "select * from penstock.push_changes(%s, 'app')", Jsonb(change))
            due = time.perf_counter()
        state = acting(session, user, "select penstock.sync_state('app') as state")[0]["state"]
        rows: list[dict[str, Any]] = []
        if state["tables"]["notes"]["seq"] > cursors[user]:
            rows = acting(session, user, _PULL, cursors[user])
            cursors[user] = rows[-1]["change_seq"]
        free.put(session)
        with lock:
            took.append(time.perf_counter() - due)
            pulled += len(rows)

    before, begin = measure.spent(dsn), time.perf_counter()
    expected = 0
    with ThreadPoolExecutor(connections) as pool:
        for number in range(int(count * seconds / every)):
            due = begin + number * every / count
            time.sleep(max(0, due - time.perf_counter()))
            is_changed = number % 20 == 0
            expected += is_changed
            pool.submit(sync, users[number % count], due, is_changed)
    lasted = time.perf_counter() - begin
    after = measure.spent(dsn)
    while not free.empty():
        free.get().close()
    if pulled != expected or len(took) != int(count * seconds / every):
        raise RuntimeError(f"{pulled} of {expected} notes pulled in {len(took)} syncs")
    name = f"{count:,} devices every {every:g} s"
    return [
        Figure("sync_pull_p50", name, percentile(took, 0.5) * 1000, "ms"),
        Figure("sync_pull_p95", name, percentile(took, 0.95) * 1000, "ms"),
        Figure("sync_pulls", name, len(took) / lasted, "pulls/s"),
        Figure("sync_cpu", name, 100 * (after.cpu - before.cpu) / lasted, "% of a core"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sync", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=200, help="rows of a push")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args()
    with server.postgres() as postgres:
        dsn = postgres.create_database("sync")
        with prepare(dsn) as conn:
            figures = cost(conn, given.rounds, given.rows)
            figures += devices(dsn, conn, given.devices, given.seconds, 10, 8)
    for figure in figures:
        print(f"{figure.name:<14} {figure.system:<48} {figure.value:>10,.2f} {figure.unit}")


if __name__ == "__main__":
    main()
