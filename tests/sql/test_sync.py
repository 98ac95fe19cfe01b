"""Synced tables: the guard, the change numbers, cascades, pushes with an outcome per row, and the horizon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.postgres import migrate
from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.test_access import acting, join

pytestmark = pytest.mark.every_postgres

FOLDER = Path(__file__).parents[1] / "bookshelf/sql"


@pytest.fixture(scope="module")
def shelf(server: testing.Server) -> Iterator[testing.Database]:
    """A database with the tables of the app of the tests, whose clock stands still."""
    with server.database() as made:
        migrate.migrate(made.dsn, folder=FOLDER, schema="bookshelf")
        testing.Clock(made).freeze()
        yield made


@pytest.fixture
def two(shelf: testing.Database) -> Iterator[Sessions]:
    """Several sessions in that database, without rows."""
    own = testing.Database(shelf.server, shelf.name)
    own.execute("truncate bookshelf.topics, bookshelf.cards, penstock.sync_horizons")
    yield Sessions(own, UUID(int=0))
    own.disconnect()


@pytest.fixture
def sql(two: Sessions) -> Contract:
    return two.open()


@pytest.fixture
def ann(sql: Contract) -> UUID:
    return join(sql, "ann").id


@pytest.fixture
def now(sql: Contract) -> int:
    """The server's time in milliseconds."""
    return sql.one("select floor(extract(epoch from penstock._now()) * 1000)::bigint")


def change(table: str, id: str | None, at: Any, **values: Any) -> dict[str, Any]:
    return {"table": table, "record": {"id": id, "updated_at": at, **values}}


def push(sql: Contract, user: UUID, *changes: dict[str, Any], **options: Any) -> list[Any]:
    """Outcome and code of each change, as a user."""
    with acting(sql, user):
        rows = sql.rows("push_changes", changes=Jsonb(list(changes)), **options)
    return [(row["table"], row["id"], row["outcome"], row["code"]) for row in rows]


def pull(sql: Contract, user: UUID, table: str, after: int = 0, limit: int = 1000) -> list[Any]:
    """What a device reads."""
    with acting(sql, user):
        query = f"select * from bookshelf.{table} where change_seq > %s order by change_seq limit %s"
        return sql.execute(query, after, limit)


def seqs(sql: Contract, table: str = "topics") -> list[int]:
    return [row["change_seq"] for row in sql.execute(f"select change_seq from bookshelf.{table} order by id")]


class TestGuard:
    """R2.8/last-write: an older updated_at is skipped, an equal one passes."""

    def test_an_older_write_is_stale_and_changes_nothing(self, sql: Contract, ann: UUID, now: int) -> None:
        assert push(sql, ann, change("topics", "a", now, name="new"))[0][2] == "applied"
        [before] = pull(sql, ann, "topics")
        assert push(sql, ann, change("topics", "a", now - 1, name="old"))[0][2:] == ("stale", None)
        assert pull(sql, ann, "topics") == [before]

    def test_an_equal_time_passes(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "a", now, name="one"))
        assert push(sql, ann, change("topics", "a", now, name="two"))[0][2] == "applied"
        assert [row["name"] for row in pull(sql, ann, "topics")] == ["two"]

    def test_a_stale_row_is_skipped_and_its_batch_written(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "500", now, name="kept"))
        with acting(sql, ann):
            rows = sql.execute(
                "insert into bookshelf.topics (id, name, updated_at) select n::text, 'n', %s from generate_series(1, 1000) n"
                " on conflict (user_id, id) do update set name = excluded.name, updated_at = excluded.updated_at"
                " returning id", now - 1,
            )  # fmt: skip
        assert len(rows) == 999 and {"id": "500"} not in rows
        assert sql.one("select name from bookshelf.topics where id = '500'") == "kept"

    def test_a_clock_that_is_ahead_is_refused_with_the_servers_time(
        self, sql: Contract, ann: UUID, now: int
    ) -> None:
        assert push(sql, ann, change("topics", "a", now + 300_000))[0][2] == "applied"
        assert push(sql, ann, change("topics", "b", now + 300_001))[0][2:] == ("refused", "clock_ahead")
        with acting(sql, ann), sql.refused(422, "clock_ahead") as seen:
            sql.execute("insert into bookshelf.topics (id, updated_at) values ('b', %s)", now + 3_600_000)
        assert seen.details["server_ms"] == now

    def test_a_clock_that_is_behind_loses_to_newer_rows(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "a", now))
        assert push(sql, ann, change("topics", "a", now - 3_600_000))[0][2] == "stale"
        assert push(sql, ann, change("topics", "b", now - 3_600_000))[0][2] == "applied"

    def test_the_key_of_a_row_is_fixed(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "a", now))
        for assignment in ("id = 'b'", f"user_id = '{UUID(int=1)}'"):
            with sql.refused(422, "fixed_key"):
                sql.execute(f"update bookshelf.topics set {assignment}")


class TestNumbers:
    """R2.8/replays, R2.8/watermark: which writes get a number, and when a number is seen."""

    def test_replaying_an_outbox_ten_times_moves_no_number(self, sql: Contract, ann: UUID, now: int) -> None:
        outbox = [
            change("topics", "a", now, name="a"),
            change("topics", "b", now, deleted=True),
            change("cards", "1", now - 5, topic_id="a", body="text", tags=["x"]),
            change("cards", "2", now, topic_id="b"),
        ]
        push(sql, ann, *outbox)
        before = seqs(sql), seqs(sql, "cards"), pull(sql, ann, "cards")
        for _ in range(10):
            assert {row[2] for row in push(sql, ann, *reversed(outbox))} <= {"applied", "stale"}
        assert (seqs(sql), seqs(sql, "cards"), pull(sql, ann, "cards")) == before

    def test_every_change_gets_a_higher_number(self, sql: Contract, ann: UUID, now: int) -> None:
        for n, values in enumerate(({"name": "x"}, {"name": "y"}, {"deleted": True}, {"deleted": False})):
            [before] = seqs(sql) or [0]
            push(sql, ann, change("topics", "a", now + n, **values))
            assert seqs(sql)[0] > before

    def test_a_client_cannot_set_the_number(self, sql: Contract, ann: UUID, now: int) -> None:
        refused = push(sql, ann, change("topics", "a", now, change_seq=10**15))
        assert refused[0][2:] == ("refused", "not_allowed")
        for statement in (
            "insert into bookshelf.topics (id, updated_at, change_seq) values ('a', 1, 1)",
            "update bookshelf.topics set change_seq = 1",
        ):
            with sql.refused("42501"), acting(sql, ann):
                sql.execute(statement)
        # The service may name the column; the trigger decides.
        service = {"user_id": str(ann), "change_seq": 10**15}
        sql.rows("push_changes", changes=Jsonb([change("topics", "a", now, **service)]))
        assert 0 < seqs(sql)[0] < 10**15

    @pytest.mark.parametrize("writer", ["user", "service"])
    def test_a_late_commit_is_never_skipped(
        self, two: Sessions, sql: Contract, now: int, writer: str
    ) -> None:
        """R2.8/watermark: the second writer waits for the first, and its number follows all of the first's."""
        ann, bob = join(sql, "ann").id, join(sql, "bob").id

        def write(session: Contract, owner: UUID, id: str) -> str:
            """Insert one row, and return its outcome."""
            if writer == "user":
                return push(session, owner, change("topics", id, now))[0][2]
            changes = Jsonb([change("topics", id, now, user_id=str(owner))])
            return session.rows("push_changes", changes=changes)[0]["outcome"]

        first, second, other = two.open(), two.open(), two.open()
        first.connection.execute("begin")
        write(first, ann, "1")
        call = Call(lambda: write(second, ann, "3"))
        two.wait_until_blocked(second, call)
        waits = sql.execute("""
            select granted from pg_locks where locktype = 'advisory' and objsubid = 1 and database = (
              select oid from pg_database where datname = current_database()) order by granted""")
        assert [row["granted"] for row in waits] == [False, True]
        assert pull(sql, ann, "topics") == []
        # Another owner does not wait.
        assert write(other, bob, "bobs") == "applied"
        write(first, ann, "2")
        first.connection.execute("commit")
        assert call.result() == "applied"
        assert [row["id"] for row in pull(sql, ann, "topics")] == ["1", "2", "3"]

    def test_an_update_and_an_upsert_of_one_row_do_not_deadlock(
        self, two: Sessions, sql: Contract, ann: UUID, now: int
    ) -> None:
        """The owner's lock comes before the row's, in every kind of statement."""
        push(sql, ann, change("topics", "a", now), change("topics", "b", now))
        first, second = two.open(), two.open()
        first.connection.execute("begin")
        push(first, ann, change("topics", "a", now, name="upsert"))

        def patch() -> None:
            with acting(second, ann):
                second.execute("update bookshelf.topics set name = 'patch' where id = 'b'")

        call = Call(patch)
        two.wait_until_blocked(second, call)
        push(first, ann, change("topics", "b", now, name="upsert"))
        first.connection.execute("commit")
        call.result()
        assert [row["name"] for row in pull(sql, ann, "topics")] == ["upsert", "patch"]

    @pytest.mark.parametrize(("total", "batch"), [(400, 1), pytest.param(10_000, 10, marks=pytest.mark.slow)])
    def test_pages_miss_nothing_and_repeat_nothing_while_others_write(
        self, two: Sessions, sql: Contract, ann: UUID, now: int, total: int, batch: int
    ) -> None:
        """R2.8/pages: a reader that follows four writers has every row, once per change."""
        writers = [two.open() for _ in range(4)]

        def write(number: int) -> None:
            for n in range(0, total // 4, batch):
                rows = (change("topics", f"{number}:{n + k}", now) for k in range(batch))
                push(writers[number], ann, *rows)

        calls = [Call(lambda number=number: write(number)) for number in range(4)]
        seen: list[str] = []
        cursor = 0
        while True:
            is_over = not any(call.is_running for call in calls)
            page = pull(sql, ann, "topics", cursor, 7)
            seen += [row["id"] for row in page]
            cursor = page[-1]["change_seq"] if page else cursor
            if is_over and not page:
                break
        for call in calls:
            call.result()
        assert len(seen) == len(set(seen)) == total

    def test_old_clients_read_by_updated_at(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "a", now - 10), change("topics", "b", now))
        with acting(sql, ann):
            rows = sql.execute("select id from bookshelf.topics where updated_at >= %s", now)
        assert [row["id"] for row in rows] == ["b"]


class TestPush:
    """Each change of a push has an outcome of its own."""

    def test_one_bad_row_sinks_nothing(self, sql: Contract, ann: UUID, now: int) -> None:
        outcomes = push(
            sql, ann,
            change("cards", "1", now, topic_id="a"),
            change("cards", "2", now, topic_id="none"),
            change("cards", "3", now, tags="{"),
            change("cards", "4", now, color="red"),
            change("cards", "5", now, user_id=str(UUID(int=7))),
            change("topics", "canon:x", now),
            change("topics", "a", now),
            change("topics", None, now),
            change("topics", "b", "yesterday"),
            change("topics", "c", 10**30),
            change("notes", "d", now),
            {"table": "topics"},
            {},
        )  # fmt: skip
        assert outcomes == [
            ("topics", "canon:x", "refused", "reserved_id"),
            ("topics", "a", "applied", None),
            ("topics", "c", "refused", "invalid_value"),
            ("topics", None, "refused", "invalid_record"),
            ("topics", "b", "refused", "invalid_record"),
            ("topics", None, "refused", "invalid_record"),
            # Parents come first, whatever the order.
            ("cards", "1", "applied", None),
            ("cards", "2", "refused", "missing_parent"),
            ("cards", "3", "applied", None),
            ("cards", "4", "refused", "unknown_column"),
            ("cards", "5", "refused", "not_allowed"),
            ("notes", "d", "refused", "unknown_table"),
            (None, None, "refused", "unknown_table"),
        ]
        assert len(pull(sql, ann, "cards")) == 2

    def test_many_rows_are_written_together(self, sql: Contract, ann: UUID, now: int) -> None:
        """The outcomes are those of rows written one by one: applied, stale, and twice in one push."""
        push(sql, ann, change("topics", "2", now, name="newer"))
        rows = [change("topics", str(n), now - 1, name="older") for n in range(5)]
        with acting(sql, ann):
            found = sql.rows("push_changes", changes=Jsonb(rows))
        assert [row["outcome"] for row in found] == ["applied", "applied", "stale", "applied", "applied"]
        assert [row["change_seq"] for row in found] == seqs(sql)
        twice = push(sql, ann, change("topics", "9", now, name="a"), change("topics", "9", now, name="b"))
        assert [row[2] for row in twice] == ["applied", "applied"]
        assert sql.one("select name from bookshelf.topics where id = '9'") == "b"

    def test_a_push_takes_an_array_of_1000(self, sql: Contract, ann: UUID, now: int) -> None:
        for wrong in ({}, None, [change("topics", "a", now)] * 1001):
            with acting(sql, ann), sql.refused(422, "invalid_changes"):
                sql.rows("push_changes", changes=Jsonb(wrong))

    def test_an_error_that_is_not_about_a_change_fails_the_push(
        self, two: Sessions, sql: Contract, ann: UUID, now: int
    ) -> None:
        """A timeout while waiting must not become a refused row, which a device would shelve."""
        other = two.open()
        other.connection.execute("begin")
        push(other, ann, change("topics", "a", now))
        sql.execute("set lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            push(sql, ann, change("topics", "b", now))
        other.connection.execute("rollback")

    def test_nobody_sees_or_writes_anothers_rows(self, sql: Contract, ann: UUID, now: int) -> None:
        bob = join(sql, "bob").id
        push(sql, ann, change("topics", "a", now, name="ann's"))
        assert pull(sql, bob, "topics") == []
        assert push(sql, bob, change("topics", "a", now, name="bob's"))[0][2] == "applied"
        assert [row["name"] for row in pull(sql, ann, "topics")] == ["ann's"]
        with acting(sql, bob):
            state = sql.value("sync_state")["tables"]
        assert state["topics"]["seq"] == pull(sql, bob, "topics")[0]["change_seq"]

    def test_a_name_in_two_schemas_needs_the_schema(self, sql: Contract, ann: UUID, now: int) -> None:
        sql.execute("""
            create schema other;
            create table other.topics (like bookshelf.topics including all);
            select penstock.make_synced('other.topics', 1);
            grant usage on schema other to authenticated;
            grant select on other.topics to authenticated""")
        assert push(sql, ann, change("topics", "a", now))[0][2:] == ("refused", "ambiguous_table")
        assert push(sql, ann, change("topics", "a", now), schema="bookshelf")[0][2] == "applied"
        assert push(sql, ann, change("bookshelf.topics", "a", now))[0][2] == "applied"
        with acting(sql, ann):
            assert set(sql.value("sync_state")["tables"]) == {"cards", "bookshelf.topics", "other.topics"}
            assert set(sql.value("sync_state", schema="bookshelf")["tables"]) == {"cards", "topics"}
        sql.execute("drop schema other cascade")
        assert push(sql, ann, change("topics", "a", now))[0][2] == "applied"


class TestDeletes:
    """R2.8/tombstones: deletes travel as tombstones and cascade, in whatever order they arrive."""

    def test_children_that_are_not_newer_are_deleted(self, sql: Contract, ann: UUID, now: int) -> None:
        push(
            sql, ann, change("topics", "a", now - 9), change("topics", "b", now - 9),
            change("cards", "1", now - 5, topic_id="a"), change("cards", "2", now, topic_id="a"),
            change("cards", "3", now + 1, topic_id="a"), change("cards", "4", now - 5, topic_id="b"),
        )  # fmt: skip
        cursor = max(seqs(sql, "cards"))
        push(sql, ann, change("topics", "a", now, deleted=True))
        rows = pull(sql, ann, "cards", cursor)
        assert [(row["id"], row["deleted"], row["updated_at"]) for row in rows] == [
            ("1", True, now),
            ("2", True, now),
        ]

    def test_a_child_that_arrives_after_the_deletion_follows_it(
        self, sql: Contract, ann: UUID, now: int
    ) -> None:
        push(sql, ann, change("topics", "a", now, deleted=True))
        push(
            sql, ann, change("cards", "1", now - 5, topic_id="a"), change("cards", "2", now + 1, topic_id="a")
        )
        rows = {row["id"]: (row["deleted"], row["updated_at"]) for row in pull(sql, ann, "cards")}
        assert rows == {"1": (True, now), "2": (False, now + 1)}

    def test_an_older_write_of_a_child_does_not_change_its_tombstone(
        self, sql: Contract, ann: UUID, now: int
    ) -> None:
        """An upsert takes the time of its parent's deletion before the guard compares times."""
        push(sql, ann, change("topics", "a", now - 9))
        push(sql, ann, change("cards", "1", now - 5, topic_id="a", body="newer"))
        push(sql, ann, change("topics", "a", now, deleted=True))
        before = pull(sql, ann, "cards")
        older = change("cards", "1", now - 7, topic_id="a", body="older")
        assert push(sql, ann, older) == [("cards", "1", "stale", None)]
        other = change("cards", "2", now - 7, topic_id="a", body="new")
        assert [row[2] for row in push(sql, ann, older, other)] == ["stale", "applied"]
        assert pull(sql, ann, "cards")[:1] == before and before[0]["body"] == "newer"

    def test_an_undelete_comes_back(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "a", now, deleted=True))
        assert push(sql, ann, change("topics", "a", now + 1, deleted=False))[0][2] == "applied"
        assert [row["deleted"] for row in pull(sql, ann, "topics")] == [False]

    def state(self, sql: Contract, user: UUID, table: str = "topics") -> tuple[int, int]:
        with acting(sql, user):
            found = sql.value("sync_state")["tables"][table]
        return found["seq"], found["horizon"]

    def test_purged_tombstones_raise_the_horizon(self, sql: Contract, ann: UUID, now: int) -> None:
        day = 86_400_000
        bob = join(sql, "bob").id
        for user in (ann, bob):
            push(
                sql, user, change("topics", "old", now - 40 * day, deleted=True),
                change("topics", "new", now - 20 * day, deleted=True), change("topics", "live", now - 50 * day),
                change("cards", "1", now - 41 * day, topic_id="old"),
            )  # fmt: skip
        old = sql.one("select change_seq from bookshelf.topics where user_id = %s and id = 'old'", ann)
        assert self.state(sql, ann)[1] == 0
        assert sql.value("purge_tombstones", user_id=ann, older_than_days=30) == 2
        assert {row["id"] for row in pull(sql, ann, "topics")} == {"new", "live"}
        assert self.state(sql, ann)[1] == old and self.state(sql, ann, "cards")[1] > old
        assert self.state(sql, bob)[1] == 0 and len(pull(sql, bob, "topics")) == 3
        assert sql.value("purge_tombstones", user_id=ann, older_than_days=30) == 0
        for wrong in ({"user_id": None}, {"older_than_days": 0}, {"older_than_days": None}):
            with sql.refused(422, "invalid"):
                sql.value("purge_tombstones", **{"user_id": ann, "older_than_days": 1, **wrong})

    def test_a_live_row_deleted_for_good_raises_the_horizon_above_all(
        self, sql: Contract, ann: UUID, now: int
    ) -> None:
        """Every device has the row, so every device pulls again. Foreign keys cascade the same way."""
        push(sql, ann, change("topics", "a", now), change("cards", "1", now, topic_id="a"))
        seen = self.state(sql, ann)[0], self.state(sql, ann, "cards")[0]
        with acting(sql, ann):
            sql.execute("delete from bookshelf.topics where id = 'a'")
        assert self.state(sql, ann)[1] > seen[0] and self.state(sql, ann, "cards")[1] > seen[1]
        gone = push(sql, ann, change("cards", "1", now + 1, topic_id="a"))
        assert gone[0][2:] == ("refused", "missing_parent")

    def test_erasing_a_user_erases_synced_rows(self, sql: Contract, ann: UUID, now: int) -> None:
        push(sql, ann, change("topics", "a", now), change("cards", "1", now, topic_id="a"))
        sql.value("erase_user", user_id=ann)
        for table in ("bookshelf.topics", "bookshelf.cards", "penstock.sync_horizons"):
            assert sql.execute(f"select 1 as one from {table}") == []


class TestMakeSynced:
    """Any table of an app becomes a synced one by one call."""

    def test_a_filled_table_gets_numbers_and_a_second_call_changes_nothing(self, sql: Contract) -> None:
        sql.execute("""
            create table bookshelf.tags (user_id uuid, id text, updated_at bigint not null, deleted boolean not null,
              change_seq bigint not null default 0, primary key (user_id, id));
            insert into bookshelf.tags select gen_random_uuid(), n::text, n, false from generate_series(1, 5) n;
            select penstock.make_synced('bookshelf.tags', 5)""")
        numbers = seqs(sql, "tags")
        assert len(set(numbers)) == 5 and min(numbers) > 0
        sql.execute("select penstock.make_synced('bookshelf.tags', 5)")
        assert seqs(sql, "tags") == numbers
        sql.execute("drop table bookshelf.tags")

    @pytest.mark.parametrize(
        ("columns", "problem"),
        [
            ("user_id uuid, id text, primary key (user_id, id)", "updated_at bigint not null, deleted"),
            ("user_id uuid not null, id text primary key, updated_at bigint not null, deleted boolean not null, "
             "change_seq bigint not null", "primary key must be (user_id, id)"),
        ],
    )  # fmt: skip
    def test_a_table_without_the_columns_is_refused(self, sql: Contract, columns: str, problem: str) -> None:
        with sql.refused(422, "invalid_table") as seen:
            sql.execute(f"create table bookshelf.wrong ({columns})")
            sql.execute("select penstock.make_synced('bookshelf.wrong', 1)")
        assert problem in seen.message


def test_writers_of_one_owner_are_numbered_in_the_order_of_their_commits(
    two: Sessions, sql: Contract, ann: UUID, now: int
) -> None:
    """R2.8/watermark: under load, a reader that has seen a number has seen all lower ones."""
    stop = threading.Event()
    problems: list[str] = []

    def watch(reader: Contract) -> None:
        known: set[int] = set()
        while not stop.is_set():
            numbers = {row["change_seq"] for row in pull(reader, ann, "topics")}
            late = {n for n in numbers - known if known and n < max(known)}
            if late:
                problems.append(f"{late} appeared after {max(known)}")
            known |= numbers

    reader = two.open()
    watcher = Call(lambda: watch(reader))
    writers = [two.open() for _ in range(4)]

    def write(number: int) -> None:
        for n in range(50):
            push(writers[number], ann, *(change("topics", f"{number}:{n}:{m}", now) for m in range(3)))

    calls = [Call(lambda number=number: write(number)) for number in range(4)]
    for call in calls:
        call.result()
    stop.set()
    watcher.result()
    assert problems == []
