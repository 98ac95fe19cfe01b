"""Export and import of a library as one JSON document.

The document has the form of the app's first clients: camel case, `customIdeas`, times in milliseconds.
"""

from __future__ import annotations

import re
import time
from typing import Any, cast

from penstock.apps.notes.device.store import Record, Store
from penstock.apps.notes.device.tables import CLEARED_BY_REPLACE, SCHEMA_VERSION, SYNCED

FLAG = "_syntopicon"
_KEYS = {"custom_ideas": "customIdeas"}
"""Tables whose key in the document is not their name."""
_REQUIRED = ("books", "notes")
"""Tables that every export has; the others came in later versions."""


class InvalidExport(ValueError):
    """The document is not an export that this version can read."""


def build_export(store: Store) -> dict[str, Any]:
    """All synced rows, tombstones included. Nothing that is local to the device."""
    document: dict[str, Any] = {
        FLAG: True,
        "schemaVersion": SCHEMA_VERSION,
        "exportedAt": int(time.time() * 1000),
    }
    for table, spec in SYNCED.items():
        rows = store.rows(table, with_deleted=True)
        document[_KEYS.get(table, table)] = [
            {_camel(name): row[name] for name in spec.synced} for row in rows
        ]
    return document


def parse_import(document: Any) -> dict[str, list[Record]]:
    """The rows by table. Raises InvalidExport; tables that an older version did not have are empty."""
    if not isinstance(document, dict) or document.get(FLAG) is not True:  # pyright: ignore[reportUnknownMemberType]
        raise InvalidExport("this is not an export of a library")
    found = cast("dict[str, Any]", document)
    version = found.get("schemaVersion")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InvalidExport(f"schemaVersion must be a number (got {version!r})")
    if version > SCHEMA_VERSION:
        raise InvalidExport(f"the export has version {version}; this program reads up to {SCHEMA_VERSION}")
    rows: dict[str, list[Record]] = {}
    for table in SYNCED:
        key = _KEYS.get(table, table)
        if key not in found and table in _REQUIRED:
            raise InvalidExport(f"the export has no {key}")
        rows[table] = [_record(table, row) for row in _list(found.get(key, []), key)]
    return rows


def import_merge(store: Store, document: Any) -> int:
    """Add rows whose ids are new, and queue them. Returns their number."""
    rows = parse_import(document)
    with store.transaction():
        new = {
            table: [record for record in records if store.get(table, record["id"]) is None]
            for table, records in rows.items()
        }
        store.check_lock("notes", new["notes"])
        for table, records in new.items():
            for record in records:
                store.restore(table, record)
        store.retag(document["schemaVersion"])
    return sum(map(len, new.values()))


def import_replace(store: Store, document: Any) -> int:
    """Make the library the one of the document. Returns the number of rows.

    Clears every table, local-only ones included: a job or a vector of the old library must not meet a new
    note with the same id. Rows that the document lacks become tombstones, so that other devices lose them.
    """
    rows = parse_import(document)
    with store.transaction():
        store.check_lock("notes", rows["notes"])
        missing = {
            table: [
                row for row in store.rows(table) if row["id"] not in {record["id"] for record in rows[table]}
            ]
            for table in SYNCED
        }
        older = {
            (table, row["id"]): row["updated_at"]
            for table in SYNCED
            for row in store.rows(table, with_deleted=True)
        }
        for name in (*SYNCED, *CLEARED_BY_REPLACE):
            store.conn.execute(f"delete from {name}")  # noqa: S608 our own names
        for table, records in rows.items():
            for record in records:
                # Newer than what other devices have, or they would keep their own.
                store.restore(table, record, after=older.get((table, record["id"])))
            for row in missing[table]:
                store.restore(table, {**row, "deleted": True}, after=row["updated_at"])
        store.retag(document["schemaVersion"])
    return sum(map(len, rows.values()))


def _record(table: str, row: Any) -> Record:
    if not isinstance(row, dict):
        raise InvalidExport(f"a row of {table} must be an object (got {type(row).__name__})")
    found = {_snake(str(key)): value for key, value in cast("dict[Any, Any]", row).items()}
    spec = SYNCED[table]
    record = {name: found.get(name) for name in spec.synced}
    if not isinstance(record["id"], str) or not record["id"]:
        raise InvalidExport(f"a row of {table} has no id")
    if not isinstance(record["updated_at"], int):
        raise InvalidExport(f"{table} {record['id']}: updatedAt must be a time in milliseconds")
    record["deleted"] = bool(record["deleted"])
    return record


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidExport(f"{key} must be a list (got {type(value).__name__})")
    return cast("list[Any]", value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])[A-Z]", lambda found: "_" + found[0].lower(), name)
