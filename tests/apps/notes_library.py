"""A user's library of notes, as the tests of the app use it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.postgres.db import SyncConnection

DENIED = "42501"
KEY = "insert into notes.wrapped_key_blobs (type, blob, device_label) values (%s, 'AAAA', %s)"


@dataclass
class Library:
    """A user with a library."""

    db: testing.Database
    user: uuid.UUID
    tenant: uuid.UUID

    def one(self, query: str, *values: Any) -> Any:
        [row] = self.db.execute(query, list(values))
        return next(iter(row.values()))

    @contextmanager
    def acting(self, **claims: Any) -> Iterator[SyncConnection]:
        """A transaction of the user."""
        with psycopg.Connection[dict[str, Any]].connect(self.db.dsn, row_factory=dict_row) as conn:
            every = {"sub": str(self.user), "role": "authenticated", "iat": int(time.time()), **claims}
            conn.execute("select set_config('request.jwt.claims', %s, true)", [json.dumps(every)])
            conn.execute("set local role authenticated")
            yield conn

    def call(self, query: str, *values: Any, **claims: Any) -> list[dict[str, Any]]:
        with self.acting(**claims) as conn:
            made = conn.execute(query, values)  # pyright: ignore[reportArgumentType]
            return list(made.fetchall()) if made.description else []

    def push(self, table: str, **record: Any) -> dict[str, Any]:
        """Push one row, as a device does."""
        record = {"created_at": 1, "updated_at": self.ms(), **record}
        [row] = self.call(
            "select * from penstock.push_changes(%s)", Jsonb([{"table": table, "record": record}])
        )
        return row

    def ms(self) -> int:
        return self.one("select notes._ms()")

    def row(self, table: str, id: str) -> dict[str, Any]:
        [row] = self.db.execute(
            f"select * from notes.{table} where user_id = %s and id = %s", [self.user, id]
        )
        return dict(row)

    def live(self, table: str) -> list[str]:
        rows = self.db.execute(
            f"select id from notes.{table} where user_id = %s and not deleted order by id", [self.user]
        )
        return [row["id"] for row in rows]

    def refused(self, query: str, *values: Any, **claims: Any) -> tuple[str, str | None]:
        """The SQLSTATE, and the code of an error with details."""
        with pytest.raises(psycopg.Error) as caught:
            self.call(query, *values, **claims)
        detail = caught.value.diag.message_detail or ""
        found = json.loads(detail).get("code") if detail.startswith("{") else None
        return caught.value.sqlstate or "", found

    def used(self, meter: str) -> int:
        rows = self.db.execute(
            "select used from penstock.accounts where tenant_id = %s and meter = %s and job_id is null",
            [self.tenant, meter],
        )
        return int(sum(row["used"] for row in rows))


def join(db: testing.Database, name: str = "ada", **columns: Any) -> Library:
    user = uuid.uuid4()
    db.execute("insert into auth.users (id, email) values (%s, %s)", [user, f"{name}-{user}@x.org"])
    [row] = db.execute("select tenant_id from penstock.profiles where user_id = %s", [user])
    return Library(db, user, row["tenant_id"])


def filled(library: Library) -> None:
    """A book with two notes, a link, an idea, a lens and a collection with both notes."""
    library.push("books", id="b1", title="Walden", isbn="978", cover_url="https://x.org/1.jpg")
    library.push("notes", id="n1", book_id="b1", text="ponds", tags=["Nature", "Solitude"])
    library.push("notes", id="n2", book_id="b1", text="beans", tags=["Nature"])
    library.push("custom_ideas", id="i1", name="Ponds", description="water")
    library.push("note_links", id="l1", from_note_id="n1", to_note_id="n2", relation_type="supports")
    library.push("lenses", id="v1", name="Alone outside", leaf_ids=["Nature", "Solitude"])
    library.push("collections", id="c1", name="Best")
    for note in ("n1", "n2"):
        library.push("collection_memberships", id=f"c1:{note}", note_id=note, collection_id="c1")
