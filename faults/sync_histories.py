"""`python -m faults.sync_histories --histories 10000`: random histories of three devices, which must converge.

Devices edit, delete and undelete rows offline, with clocks that differ by up to four minutes and many edits in the same
millisecond. Requests get lost before or after the server handled them, are sent twice, and arrive again much later;
tombstones are purged. After a last sync of each device all must have what the server has, and no change left.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from psycopg.types.json import Jsonb

from penstock import testing
from penstock.apps.notes.device import outbox
from penstock.apps.notes.device.http import Offline
from penstock.apps.notes.device.store import Record, Store
from penstock.apps.notes.device.sync import Outcome, Server, ServerState, TableState, sync
from penstock.apps.notes.device.tables import SYNCED
from penstock.postgres import db

T = TypeVar("T")
DEVICES = 3
SKEW_MS = 240_000
DAY_MS = 86_400_000


class SqlServer:
    """The server as one user, called in SQL: the functions and triggers are the real ones."""

    def __init__(self, conn: db.SyncConnection, user_id: uuid.UUID, *, is_own: bool = False) -> None:
        """`is_own`: the connection belongs to this user alone."""
        self._conn = conn
        self._is_own = is_own
        self._claims = json.dumps({"sub": str(user_id)})
        if is_own:
            self._become_user()

    def _become_user(self) -> None:
        self._conn.execute(
            "select set_config('request.jwt.claims', %s, %s), set_config('role', 'authenticated', %s)",
            [self._claims, not self._is_own, not self._is_own],
        )

    def _rows(self, query: str, *params: Any) -> list[db.Row]:
        if self._is_own:
            return self._conn.execute(query.encode(), params).fetchall()
        with self._conn.transaction():
            self._become_user()
            return self._conn.execute(query.encode(), params).fetchall()

    def state(self) -> ServerState:
        [row] = self._rows("select penstock.sync_state('notes') as state")
        tables = {name: TableState(**state) for name, state in row["state"]["tables"].items()}
        return ServerState(tables, row["state"]["server_ms"])

    def push(self, changes: list[dict[str, Any]]) -> list[Outcome]:
        rows = self._rows("select * from penstock.push_changes(%s, 'notes')", Jsonb(changes))
        return [Outcome(r["table"], r["id"], r["outcome"], r["code"], r["message"]) for r in rows]

    def pull(self, table: str, after: int, limit: int) -> list[Record] | None:
        query = f"select * from notes.{table} where change_seq > %s order by change_seq limit %s"
        return self._rows(query, after, limit)


@dataclass
class FlakyServer:
    """A server whose requests get lost, repeated and delayed."""

    server: SqlServer
    chance: random.Random
    late: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    """Pushes that arrive once more, later."""
    is_flaky: bool = True

    def state(self) -> ServerState:
        return self._send(self.server.state)

    def push(self, changes: list[dict[str, Any]]) -> list[Outcome]:
        if self.is_flaky and self.chance.random() < 0.3:
            self.late.append(changes)
        if self.is_flaky and self.chance.random() < 0.2:
            self.server.push(self.chance.sample(changes, len(changes)))
        return self._send(lambda: self.server.push(changes))

    def pull(self, table: str, after: int, limit: int) -> list[Record] | None:
        # Small pages, so that requests get lost between them.
        return self._send(lambda: self.server.pull(table, after, 2 if self.is_flaky else limit))

    def _send(self, request: Callable[[], T]) -> T:
        if self.is_flaky and self.chance.random() < 0.15:
            raise Offline("lost on the way there")
        answer = request()
        if self.is_flaky and self.chance.random() < 0.15:
            raise Offline("lost on the way back")
        return answer


class History:
    """One user with three devices."""

    def __init__(self, conn: db.SyncConnection, session: db.SyncConnection | None, seed: int) -> None:
        self.conn = conn
        self.chance = random.Random(seed)
        self.user_id = new_user(conn)
        # Old enough for their tombstones to be purged.
        self.now = int(time.time() * 1000) - 3 * DAY_MS
        self.has_purges = self.chance.random() < 0.2
        self.server = SqlServer(session or conn, self.user_id, is_own=session is not None)
        self.wires = [FlakyServer(self.server, self.chance) for _ in range(DEVICES)]
        skews = [self.chance.randint(-SKEW_MS, SKEW_MS) for _ in range(DEVICES)]
        self.stores = [Store(now_ms=lambda skew=skew: self.now + skew) for skew in skews]

    def run(self, steps: int) -> None:
        """Run random steps."""
        for _ in range(steps):
            self.now += self.chance.choice((0, 0, 1, 1000, SKEW_MS))
            self.step(self.chance.randrange(DEVICES), self.chance.random())

    def step(self, number: int, what: float) -> None:
        """One edit, or one sync that may fail."""
        store, wire = self.stores[number], self.wires[number]
        if what < 0.55:
            self.edit(store)
        elif what < 0.9:
            try:
                sync(store, wire)
            except Offline:
                return
        elif what < 0.97:
            for each in self.wires:
                if each.late:
                    self.server.push(each.late.pop(self.chance.randrange(len(each.late))))
        elif self.has_purges:
            self.conn.execute("select penstock.purge_tombstones(%s, 1)", [self.user_id])

    def edit(self, store: Store) -> None:
        """Change something on a device, as its user would."""
        pick = self.chance.choice
        table, id = pick((("books", "b1"), ("books", "b2"), ("notes", "n1"), ("notes", "n2"), ("notes", "n3"),
                          ("collections", "c1"), ("collection_memberships", "c1:n1")))  # fmt: skip
        what = self.chance.random()
        if what < 0.25:
            store.delete(table, id)
        elif what < 0.4:
            store.undelete(table, id)
        elif table == "books":
            store.save(table, id=id, title=f"title {self.chance.randrange(10**6)}")
        elif table == "notes":
            store.save(
                table, id=id, text=f"text {self.chance.randrange(10**6)}", book_id=pick((None, "b1", "b2"))
            )
        elif table == "collections":
            store.save(table, id=id, name=f"name {self.chance.randrange(10**6)}")
        elif not self.has_purges and store.get("notes", "n1") and store.get("collections", "c1"):
            store.save(table, id=id, note_id="n1", collection_id="c1")

    def settle(self) -> list[str]:
        """Sync every device without faults until nothing moves. Returns the differences."""
        for wire in self.wires:
            wire.is_flaky = False
        for _ in range(3):
            for store, wire in zip(self.stores, self.wires, strict=True):
                sync(store, wire)
        return [
            problem
            for n, store in enumerate(self.stores)
            for problem in differences(f"device {n}", store, self.server)
        ]

    def close(self) -> None:
        """Close the devices, and remove the user's rows."""
        for store in self.stores:
            store.close()


def differences(name: str, store: Store, server: Server) -> list[str]:
    """How a device differs from the server."""
    waiting = len(outbox.pending(store.conn))
    found = [f"{name} has {waiting} changes left"] if waiting else []
    found += [f"{name}: {each}" for each in outbox.shelf(store.conn)]
    for table, spec in SYNCED.items():
        remote = {
            row["id"]: {column: row[column] for column in spec.synced}
            for row in server.pull(table, 0, 1000) or []
        }
        local = {
            row["id"]: {column: row[column] for column in spec.synced}
            for row in store.rows(table, with_deleted=True)
        }
        if local != remote:
            found.append(f"{name}, {table}: {local} instead of {remote}")
    return found


def new_user(conn: db.SyncConnection) -> uuid.UUID:
    """A user as the authentication service makes one."""
    name = f"{uuid.uuid4().hex}@example.org"
    [row] = conn.execute("insert into auth.users (email) values (%s) returning id", [name]).fetchall()
    return row["id"]


def prepare(database: testing.Database) -> None:
    """Make the tables of the notes app, as far as devices sync them."""
    statements = ["create schema notes", "grant usage on schema notes to authenticated"]
    for position, (table, spec) in enumerate(SYNCED.items(), start=1):
        columns = [f"{name} {'jsonb' if name in spec.documents else 'text'}" for name in spec.columns]
        keys = [
            f"foreign key (user_id, {column}) references notes.{parent} on delete cascade"
            for column, parent in spec.parents.items() if table != "notes"
        ]  # fmt: skip
        lines = ["user_id uuid not null default auth.uid()", "id text not null", *columns, "created_at bigint not null",
                 "updated_at bigint not null", "deleted boolean not null default false", "change_seq bigint not null",
                 "primary key (user_id, id)", *keys]  # fmt: skip
        written = ", ".join(spec.synced)
        statements += [
            f"create table notes.{table} ({', '.join(lines)})",
            f"grant select, insert (user_id, {written}), update ({written}) on notes.{table} to authenticated",
            f"alter table notes.{table} enable row level security",
            f"create policy own on notes.{table} for all to authenticated"
            " using (user_id = (select auth.uid())) with check (user_id = (select auth.uid()))",
            f"select penstock.make_synced('notes.{table}', {position})",
        ]
    statements += [
        f"select penstock.cascade_deletes('notes.{parent}', 'notes.{table}', '{column}')"
        for table, spec in SYNCED.items() for column, parent in spec.parents.items()
    ]  # fmt: skip
    for statement in statements:
        database.execute(statement)


def check(
    conn: db.SyncConnection, seed: int, steps: int = 40, *, session: db.SyncConnection | None = None
) -> list[str]:
    """Run one history. Returns how the devices differ from the server.

    `session` is a connection for the user's requests alone; without it `conn` makes them, too.
    """
    history = History(conn, session, seed)
    try:
        history.run(steps)
        return history.settle()
    finally:
        history.close()


def main() -> int:
    """Run many histories and print the result."""
    parser = argparse.ArgumentParser(prog="python -m faults.sync_histories", description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first history")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--server", type=int, default=18, help="which PostgreSQL: 15 or 18")
    given = parser.parse_args()
    failed = 0
    started = time.monotonic()
    with testing.server(given.server).database() as database:
        prepare(database)
        dsn = database.dsn
        with db.connect(dsn, name="histories") as conn, db.connect(dsn, name="devices") as session:
            for seed in range(given.first, given.first + given.histories):
                if problems := check(conn, seed, given.steps, session=session):
                    failed += 1
                    print(f"history {seed}:", *problems, sep="\n  ")
                if (done := seed - given.first + 1) % 500 == 0:
                    print(f"{done} histories, {failed} did not converge", flush=True)
    testing.close_servers()
    seconds = time.monotonic() - started
    print(f"{given.histories} histories of {DEVICES} devices and {given.steps} steps on PostgreSQL {given.server}: "
          f"{given.histories - failed} converged, {failed} did not ({seconds:.0f} s)")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
