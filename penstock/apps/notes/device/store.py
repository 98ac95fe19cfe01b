"""A device's database: one SQLite file. Works without a server; `sync.py` exchanges changes later.

Every write changes the row and queues the change in one transaction: neither exists without the other.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.apps.notes.device import outbox, tag_steps
from penstock.apps.notes.device.crypto import PREFIX, Cipher, WrongKey, is_sealed
from penstock.apps.notes.device.tables import DEFAULTS, SCHEMA_VERSION, SYNCED, Table

Record = dict[str, Any]
LOCKED = "the library is encrypted: unlock this device before you write a text"
RESERVED = "canon:"
"""Ids of lenses that are part of the app begin with this."""

_LOCAL = """
create table meta (key text primary key, value text);
create table outbox (seq integer primary key autoincrement, table_name text not null, record_id text not null,
  payload text not null, created_at integer not null);
create index outbox_record on outbox (table_name, record_id);
create table shelf (number integer primary key autoincrement, table_name text not null,
  record_id text not null, payload text not null, code text not null, message text not null);
create table embeddings (note_id text primary key, model_version text not null, dim integer not null,
  source_hash text not null, vector blob not null, updated_at integer not null);
create table discovery_jobs (id text primary key, status text not null, document text not null);
create virtual table note_index using fts5 (id unindexed, text, tokenize = 'unicode61 remove_diacritics 2');
"""


class Store:
    """The rows of one user on one device."""

    def __init__(
        self,
        path: str | Path = ":memory:",
        *,
        now_ms: Callable[[], int] | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        """Open or create the database. With a cipher, note texts are sealed before they leave the device."""
        self.now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._cipher = cipher
        self.conn = sqlite3.connect(path, isolation_level=None)
        self.conn.execute("pragma journal_mode = wal")
        self.conn.execute("pragma synchronous = full")
        with self.transaction():
            self._create()

    def close(self) -> None:
        """Close the file."""
        self.conn.close()

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Make several writes one; a transaction within another is part of it."""
        if self.conn.in_transaction:
            yield
            return
        self.conn.execute("begin immediate")
        try:
            yield
        except BaseException:
            self.conn.execute("rollback")
            raise
        self.conn.execute("commit")

    def _create(self) -> None:
        version = self.conn.execute("pragma user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise ValueError(f"the file has version {version}; this program reads up to {SCHEMA_VERSION}")
        if version == 0:
            for statement in filter(str.strip, _LOCAL.split(";\n")):
                self.conn.execute(statement)
            for name, table in SYNCED.items():
                columns = ", ".join((*table.columns, *table.local))
                self.conn.execute(
                    f"create table {name} (id text primary key, {columns}, created_at integer,"
                    " updated_at integer not null, deleted integer not null)"
                )
        else:
            self.retag(version)
        self.conn.execute(f"pragma user_version = {SCHEMA_VERSION}")

    # Rows

    def get(self, table: str, id: str) -> Record | None:
        """A row, also a deleted one."""
        return next(iter(self._read(table, "id = ?", (id,))), None)

    def rows(self, table: str, *, with_deleted: bool = False) -> list[Record]:
        """All rows of a table, oldest id first."""
        return self._read(table, "true" if with_deleted else "not deleted", ())

    def save(self, table: str, **values: Any) -> Record:
        """Insert or edit a row. Values that are not given stay as they are; a deleted row stays deleted."""
        spec = _spec(table)
        if unknown := set(values) - {"id", "created_at", *spec.columns, *spec.local}:
            raise ValueError(f"unknown column {sorted(unknown)[0]} of {table}")
        id = values.get("id") or _new_id(table, values)
        if table == "lenses" and id.startswith(RESERVED):
            raise ValueError(f"ids that begin with {RESERVED} are reserved (got {id})")
        with self.transaction():
            self.check_lock(table, [values])
            old = self.get(table, id)
            stamp = self._stamp(old)
            new = {"deleted": False, **DEFAULTS.get(table, {}), "created_at": stamp}
            record = {**new, **(old or {}), **values, "id": id, "updated_at": stamp}
            self.put(table, record)
            outbox.add(self.conn, table, self._payload(table, record))
        return record

    def check_lock(self, table: str, records: Iterable[Record]) -> None:
        """Keep plain text out of an encrypted library: the server could read it."""
        if any(plain_columns(table, record) for record in records) and self.is_locked:
            raise ValueError(LOCKED)

    @property
    def is_locked(self) -> bool:
        """Whether the library is encrypted and this device has no key."""
        query = f"select 1 from notes where text like '{PREFIX}%' limit 1"  # noqa: S608 our own prefix
        return self._cipher is None and self.conn.execute(query).fetchone() is not None

    def delete(self, table: str, id: str) -> None:
        """Make a row a tombstone, and its children that were not edited later."""
        with self.transaction():
            old = self.get(table, id)
            if old is not None and not old["deleted"]:
                self._delete(table, old, self._stamp(old))

    def undelete(self, table: str, id: str) -> None:
        """Bring a deleted row back. Its children stay deleted."""
        with self.transaction():
            old = self.get(table, id)
            if old is not None and old["deleted"]:
                record = {**old, "deleted": False, "updated_at": self._stamp(old)}
                self.put(table, record)
                outbox.add(self.conn, table, self._payload(table, record))

    def _delete(self, table: str, old: Record, stamp: int) -> None:
        record = {**old, "deleted": True, "updated_at": stamp}
        self.put(table, record)
        outbox.add(self.conn, table, self._payload(table, record))
        for name, child in SYNCED.items():
            for column in (c for c, parent in child.parents.items() if parent == table):
                condition = f"{column} = ? and not deleted and updated_at <= ?"
                for each in self._read(name, condition, (old["id"], stamp)):
                    self._delete(name, each, stamp)

    def _stamp(self, old: Record | None) -> int:
        """The time of an edit. It is always later than the row that the user edited."""
        return max(self.now_ms(), old["updated_at"] + 1 if old else 0)

    def put(self, table: str, record: Record) -> None:
        """Write a row without queueing a change: for rows of the server and of imports."""
        spec = _spec(table)
        names = ("id", *spec.columns, *spec.local, "created_at", "updated_at", "deleted")
        values = [
            json.dumps(record.get(name)) if name in spec.documents else record.get(name) for name in names
        ]
        marks = ", ".join("?" for _ in names)
        self.conn.execute(f"insert or replace into {table} ({', '.join(names)}) values ({marks})", values)  # noqa: S608 our own names
        if table == "notes":
            self._index(record)

    def restore(self, table: str, record: Record, *, after: int | None = None) -> None:
        """Write an imported row and queue it. With `after` it becomes newer than that time."""
        record = {**DEFAULTS.get(table, {}), **{k: v for k, v in record.items() if v is not None}}
        record = self.opened(table, record)
        if after is not None:
            record["updated_at"] = max(self.now_ms(), after + 1)
        self.put(table, record)
        outbox.add(self.conn, table, self._payload(table, record))

    def requeue(self, table: str, record: Record) -> None:
        """Queue a refused change again."""
        self.check_lock(table, [record])
        outbox.add(self.conn, table, self._payload(table, record))

    def forget(self, table: str, id: str) -> None:
        """Remove a row that the server deleted permanently."""
        _spec(table)
        self.conn.execute(f"delete from {table} where id = ?", (id,))  # noqa: S608 our own names
        if table == "notes":
            self.conn.execute("delete from note_index where id = ?", (id,))
            self.conn.execute("delete from embeddings where note_id = ?", (id,))

    def _payload(self, table: str, record: Record) -> Record:
        """What of a row may leave the device, sealed if the device has a key."""
        spec = SYNCED[table]
        payload: Record = {name: record.get(name) for name in spec.synced}
        if self._cipher is not None:
            for name in spec.sealed:
                if payload[name] is not None:
                    payload[name] = self._cipher.seal(payload[name], _bound_to(table, record["id"]))
        return payload

    def opened(self, table: str, record: Record) -> Record:
        """A row of the server as this device stores it: opened if it has the key, else sealed."""
        if self._cipher is None:
            return record
        found = dict(record)
        for name in SYNCED[table].sealed:
            if is_sealed(found.get(name)):
                try:
                    found[name] = self._cipher.open(found[name], _bound_to(table, record["id"]))
                except WrongKey:
                    # Another key, or damage: the row stays sealed, and the others sync.
                    continue
        return found

    def unlock(self, cipher: Cipher) -> None:
        """Use this key from now on: open what is stored sealed, and seal what is queued."""
        self._cipher = cipher
        with self.transaction():
            for entry in outbox.pending(self.conn):
                for name in plain_columns(entry.table, entry.payload):
                    sealed = cipher.seal(entry.payload[name], _bound_to(entry.table, entry.record_id))
                    outbox.rewrite(self.conn, entry, **{name: sealed})
            for note in self._read("notes", "text like 'enc:v1:%'", ()):
                self.put("notes", self.opened("notes", note))

    def _read(self, table: str, condition: str, params: Iterable[Any]) -> list[Record]:
        spec = _spec(table)
        names = ("id", *spec.columns, *spec.local, "created_at", "updated_at", "deleted")
        query = f"select {', '.join(names)} from {table} where {condition} order by id"  # noqa: S608 our own names
        found = [dict(zip(names, row, strict=True)) for row in self.conn.execute(query, tuple(params))]
        for record in found:
            record["deleted"] = bool(record["deleted"])
            for name in spec.documents:
                record[name] = json.loads(record[name]) if record[name] is not None else None
        return found

    # Small facts of this device

    def get_meta(self, key: str) -> str | None:
        """A value that never leaves the device, such as a cursor or the user's own API key."""
        row = self.conn.execute("select value from meta where key = ?", (key,)).fetchone()
        return row[0] if row else None

    def set_meta(self, key: str, value: object) -> None:
        """Store such a value."""
        self.conn.execute("insert or replace into meta values (?, ?)", (key, str(value)))

    # Search and ideas

    def _index(self, note: Record) -> None:
        self.conn.execute("delete from note_index where id = ?", (note["id"],))
        if note.get("text") and not note["deleted"] and not is_sealed(note["text"]):
            self.conn.execute("insert into note_index values (?, ?)", (note["id"], note["text"]))

    def search(self, words: str, limit: int = 50) -> list[Record]:
        """Notes that contain all words or their beginnings, best match first."""
        parts = ['"' + word.replace('"', '""') + '"*' for word in words.split()]
        if not parts:
            return []
        query = "select id from note_index where note_index match ? order by rank limit ?"
        ids = [id for (id,) in self.conn.execute(query, (" ".join(parts), limit))]
        return [note for id in ids if (note := self.get("notes", id))]

    def rename_idea(self, id: str, name: str) -> int:
        """Rename a custom idea, and the tag in all notes. Returns the number of notes."""
        with self.transaction():
            idea = self.get("custom_ideas", id)
            if idea is None:
                raise KeyError(id)
            self.save("custom_ideas", id=id, name=name)
            return self._replace_tags({idea["name"]: name})

    def retag(self, version: int) -> int:
        """Apply the tag steps that are newer than this version. Returns the number of notes."""
        with self.transaction():
            return sum(self._replace_tags(names) for names in tag_steps.after(version))

    def _replace_tags(self, names: dict[str, str]) -> int:
        changed = 0
        for note in self.rows("notes"):
            tags = tag_steps.replace(note["tags"] or [], names)
            if tags != note["tags"]:
                self.save("notes", id=note["id"], tags=tags)
                changed += 1
        return changed

    def add_embedding(self, note_id: str, vector: bytes, *, model: str, source_hash: str) -> None:
        """Store a note's int8 vector, sealed with the key. It never leaves the device."""
        if self._cipher is None:
            raise ValueError("embeddings need the master key: unlock the device")
        sealed = self._cipher.seal_bytes(vector, note_id)
        self.conn.execute(
            "insert or replace into embeddings values (?, ?, ?, ?, ?, ?)",
            (note_id, model, len(vector), source_hash, sealed, self.now_ms()),
        )

    def embedding(self, note_id: str) -> bytes | None:
        """A note's vector, opened with the key."""
        row = self.conn.execute("select vector from embeddings where note_id = ?", (note_id,)).fetchone()
        if row is None or self._cipher is None:
            return None
        return self._cipher.open_bytes(row[0], note_id)


def plain_columns(table: str, record: Record) -> list[str]:
    """The columns of a record that an encrypted library has sealed, and that are not."""
    return [name for name in SYNCED[table].sealed if record.get(name) and not is_sealed(record[name])]


def _spec(table: str) -> Table:
    if table not in SYNCED:
        raise ValueError(f"unknown table {table}: use one of {', '.join(SYNCED)}")
    return SYNCED[table]


def _new_id(table: str, values: Record) -> str:
    if table == "collection_memberships":
        # The same on all devices, so that adding a note twice makes one membership.
        return f"{values['collection_id']}:{values['note_id']}"
    return uuid.uuid4().hex


def _bound_to(table: str, id: str) -> str:
    return f"{table.removesuffix('s')}:{id}"
