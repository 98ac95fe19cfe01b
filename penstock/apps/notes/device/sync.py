"""Exchanges changes with the server: push the outbox, then pull each table from its cursor.

Safe to stop at any point and to run again: a pushed change is removed only after the server reported on it, a
repeated push changes nothing there, and a cursor moves in the transaction that stores its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from penstock.apps.notes.device import outbox
from penstock.apps.notes.device.crypto import is_sealed
from penstock.apps.notes.device.store import LOCKED, Record, Store, plain_columns
from penstock.apps.notes.device.tables import SYNCED

PAGE = 1000
"""Rows of a page; the server's limit."""
BATCH = 500
"""Changes of a push."""
BATCH_BYTES = 4 << 20
"""Bytes of a push, unless one change is larger. The server takes 8 MB."""
CLOCK_TOLERANCE_MS = 300_000
"""The server refuses rows that are this far in its future."""


@dataclass(frozen=True)
class TableState:
    """What the server has of a table: the highest change number, and that of permanently deleted rows."""

    seq: int
    horizon: int


@dataclass(frozen=True)
class ServerState:
    """The answer of `sync_state`."""

    tables: Mapping[str, TableState]
    server_ms: int


@dataclass(frozen=True)
class Outcome:
    """The outcome of a pushed change: applied, stale or refused."""

    table: str
    id: str
    outcome: str
    code: str | None = None
    message: str | None = None


class PageTooLarge(Exception):
    """The rows of a page are too large for one answer: ask for fewer."""


class Server(Protocol):
    """The three calls of sync. `http.py` makes them over HTTP."""

    def state(self) -> ServerState:
        """Call `sync_state`."""
        ...

    def push(self, changes: list[dict[str, Any]]) -> list[Outcome]:
        """Call `push_changes`."""
        ...

    def pull(self, table: str, after: int, limit: int) -> list[Record] | None:
        """Read rows with a higher change number, in their order. None: the server has no such table yet.

        Raises PageTooLarge.
        """
        ...


@dataclass(frozen=True)
class Report:
    """What a sync did."""

    applied: int = 0
    stale: int = 0
    refused: int = 0
    pulled: int = 0

    def __str__(self) -> str:
        return f"pushed {self.applied}, pulled {self.pulled}, refused {self.refused}"


def sync(store: Store, server: Server) -> Report:
    """Push, then pull. Raises what the server raises; everything done until then stays."""
    state = server.state()
    withheld = 0 if store.get_meta("lastSyncAt") else _withhold_texts(store, server)
    report = push(store, server, state.server_ms)
    if report.applied or report.stale:
        # The push has changed rows and perhaps their children.
        state = server.state()
    pulled = sum(pull(store, server, table, state) for table in SYNCED)
    store.set_meta("lastSyncAt", state.server_ms)
    return replace(report, refused=report.refused + withheld, pulled=pulled)


def _withhold_texts(store: Store, server: Server) -> int:
    """Before the first sync: shelve readable texts if the library turns out to be encrypted.

    Returns their number. Stores nothing of what it reads: a pull comes after the push.
    """
    changes = outbox.collapse(outbox.pending(store.conn))
    plain = [change for change in changes if plain_columns(change.table, change.record)]
    if not plain or not _is_encrypted(server):
        return 0
    with store.transaction():
        for change in plain:
            outbox.shelve(store.conn, change, "locked", LOCKED)
    return len(plain)


def _is_encrypted(server: Server) -> bool:
    cursor, limit = 0, PAGE
    while True:
        page, limit = _read(server, "notes", cursor, limit)
        if not page:
            return False
        if any(is_sealed(row["text"]) for row in page):
            return True
        cursor = page[-1]["change_seq"]


def push(store: Store, server: Server, server_ms: int) -> Report:
    """Send the outbox, one change per record, in batches."""
    _correct_times(store, server_ms)
    counts = {"applied": 0, "stale": 0, "refused": 0}
    for batch in _batches(outbox.collapse(outbox.pending(store.conn))):
        sent = {(change.table, change.record["id"]): change for change in batch}
        outcomes = server.push([{"table": c.table, "record": c.record} for c in batch])
        with store.transaction():
            for outcome in outcomes:
                change = sent[outcome.table, outcome.id]
                counts[outcome.outcome] += 1
                if outcome.outcome == "refused":
                    outbox.shelve(store.conn, change, outcome.code or "refused", outcome.message or "")
                else:
                    outbox.remove(store.conn, change.table, change.record["id"], change.last_seq)
    return Report(**counts)


def discard(store: Store, number: int) -> bool:
    """Drop a refused change. The next sync brings the server's row, if it has one.

    Returns whether the change was on the shelf.
    """
    with store.transaction():
        refused = outbox.unshelve(store.conn, number)
        if refused is None:
            return False
        table, row = refused.table, store.get(refused.table, refused.record["id"])
        if row is not None and not outbox.has(store.conn, table, row["id"]):
            # Older than any row of the server, which thereby replaces it but for what only this device has.
            store.put(table, {**row, "deleted": True, "updated_at": 0})
        store.set_meta(f"lastSeq:{table}", 0)
    return True


def retry(store: Store, number: int) -> bool:
    """Queue a refused change again. Returns whether it was on the shelf."""
    with store.transaction():
        refused = outbox.unshelve(store.conn, number)
        if refused is not None:
            store.requeue(refused.table, refused.record)
    return refused is not None


def _batches(changes: list[outbox.Change]) -> Iterator[list[outbox.Change]]:
    """Changes that go together, in their order."""
    batch: list[outbox.Change] = []
    size = 0
    for change in changes:
        more = len(json.dumps(change.record))
        if batch and (len(batch) == BATCH or size + more > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(change)
        size += more
    if batch:
        yield batch


def _correct_times(store: Store, server_ms: int) -> None:
    """Give changes of a device whose clock was ahead the server's time: it would refuse them."""
    with store.transaction():
        late = [
            e for e in outbox.pending(store.conn) if e.payload["updated_at"] > server_ms + CLOCK_TOLERANCE_MS
        ]
        for entry in late:
            record = store.get(entry.table, entry.record_id)
            if record is not None and record["updated_at"] > server_ms:
                store.put(entry.table, {**record, "updated_at": server_ms})
            outbox.rewrite(store.conn, entry, updated_at=server_ms)


def pull(store: Store, server: Server, table: str, state: ServerState) -> int:
    """Read what changed in a table since the cursor. Returns the number of rows."""
    there = state.tables.get(table)
    if there is None:
        return 0
    cursor = int(store.get_meta(f"lastSeq:{table}") or 0)
    if there.horizon > int(store.get_meta(f"horizon:{table}") or 0):
        return _pull_everything(store, server, table, there.horizon)
    total, limit = 0, PAGE
    while cursor < there.seq:
        page, limit = _read(server, table, cursor, limit)
        if not page:
            break
        with store.transaction():
            for row in page:
                _merge(store, table, row)
            cursor = page[-1]["change_seq"]
            store.set_meta(f"lastSeq:{table}", cursor)
        total += len(page)
    return total


def _read(server: Server, table: str, cursor: int, limit: int) -> tuple[list[Record] | None, int]:
    """A page, and the number of rows to ask for next: fewer, once a page was too large for one answer."""
    while True:
        try:
            return server.pull(table, cursor, limit), limit
        except PageTooLarge:
            if limit == 1:
                raise
            limit //= 2


def _pull_everything(store: Store, server: Server, table: str, horizon: int) -> int:
    """Rows were deleted permanently: replace the local table with the server's, except for queued changes."""
    rows: list[Record] = []
    cursor = 0
    page, limit = _read(server, table, cursor, PAGE)
    while page:
        rows += page
        cursor = page[-1]["change_seq"]
        page, limit = _read(server, table, cursor, limit)
    if page is None:
        return 0
    with store.transaction():
        for row in rows:
            if outbox.has(store.conn, table, row["id"]):
                _merge(store, table, row)
            else:
                _take(store, table, row, store.get(table, row["id"]))
        known = {row["id"] for row in rows}
        for local in store.rows(table, with_deleted=True):
            if local["id"] not in known and not outbox.has(store.conn, table, local["id"]):
                store.forget(table, local["id"])
        store.set_meta(f"lastSeq:{table}", cursor)
        # As it was before the first page: rows deleted since then raise it, and everything is read again.
        store.set_meta(f"horizon:{table}", horizon)
    return len(rows)


def _merge(store: Store, table: str, remote: Record) -> None:
    """Last write wins. Of two writes in the same millisecond the server's wins, once ours was pushed."""
    local = store.get(table, remote["id"])
    if local is not None and remote["updated_at"] < local["updated_at"]:
        return
    if local is not None and remote["updated_at"] == local["updated_at"]:
        if outbox.has(store.conn, table, remote["id"]):
            return
    else:
        # Changes of an older row would be stale, and a queued delete must not stick to the newer row.
        outbox.remove(store.conn, table, remote["id"])
    _take(store, table, remote, local)


def _take(store: Store, table: str, remote: Record, local: Record | None) -> None:
    """Store a row of the server, and keep the columns that only this device has."""
    mine = {name: local[name] for name in SYNCED[table].local} if local else {}
    store.put(table, store.opened(table, {**remote, **mine}))
