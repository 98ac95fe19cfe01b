"""Calls of SQL functions, transactions, notifications, and the errors they raise."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import psycopg
import pytest

from penstock import settings, testing
from penstock.errors import Invalid, NotFound, Unauthenticated, Unavailable
from penstock.postgres import db as database


async def test_a_call_names_its_arguments_and_returns_rows(db: testing.Database) -> None:
    async with database.pool(db.dsn) as pool:
        tenant = await database.value(pool, "create_tenant", p_name="acme", p_weight=2)
        assert isinstance(tenant, uuid.UUID)
        rows = await database.call(pool, "create_tenant", p_name="bravo")
        assert [list(row) for row in rows] == [["create_tenant"]]
    assert db.execute("select name, weight from penstock.tenants order by name") == [
        {"name": "acme", "weight": 2},
        {"name": "bravo", "weight": 1},
    ]


async def test_a_transaction_commits_all_calls_or_none(db: testing.Database) -> None:
    async with database.pool(db.dsn) as pool:
        with pytest.raises(NotFound, match="no such tenant"):
            async with database.transaction(pool) as connection:
                await database.call(connection, "create_tenant", p_name="acme")
                await database.call(connection, "set_tenant_weight", p_tenant_id=uuid.uuid4(), p_weight=2)
        assert db.execute("select * from penstock.tenants") == []
        async with database.transaction(pool) as connection:
            with pytest.raises(NotFound):
                async with database.transaction(connection) as inner:
                    await database.call(inner, "set_tenant_weight", p_tenant_id=uuid.uuid4(), p_weight=2)
            await database.call(connection, "create_tenant", p_name="acme")
    assert len(db.execute("select * from penstock.tenants")) == 1


async def test_a_pool_with_setup_runs_each_statement_after_the_setup(db: testing.Database) -> None:
    """Setup and statement are one transaction: both or neither, and nothing stays on the connection."""
    hostile = "x'; drop schema penstock cascade; -- %s \\ {a} é"
    setup = "select set_config('penstock.actor', %s, true); select 1"
    seen = "select current_setting('penstock.actor', true), %s::text, pg_current_xact_id_if_assigned()::text"
    async with database.pool(db.dsn, max_size=1) as pool:
        calls = database.PoolWithSetup(pool, setup, (hostile,))
        assert await database.rows(calls, seen, (hostile,)) == [(hostile, hostile, None)]
        assert await database.value(calls, "create_tenant", p_name=hostile)
        with pytest.raises(NotFound, match="no such tenant"):
            await database.call(calls, "set_tenant_weight", p_tenant_id=uuid.uuid4(), p_weight=2)
        assert (await database.rows(pool, seen, ("",)))[0][0] in (None, ""), "the setup was local"
        async with database.transaction(calls) as conn:
            assert (await database.rows(conn, seen, ("",)))[0][0] == hostile
        reading = database.PoolWithSetup(pool, setup, ("a",), read_only=True)
        assert await database.rows(reading, seen, ("b",)) == [("a", "b", None)]
        with pytest.raises(Unavailable, match="read-only transaction"):
            await database.value(reading, "create_tenant", p_name="bravo")
    assert [row["name"] for row in db.execute("select name from penstock.tenants")] == [hostile]


async def test_a_failing_setup_prevents_the_statement(db: testing.Database) -> None:
    """So a revoked key starts no job, although its check and the start are one message."""
    async with database.pool(db.dsn) as pool:
        calls = database.PoolWithSetup(pool, "select penstock._refuse(401, 'unauthenticated', 'no')", ())
        with pytest.raises(Unauthenticated):
            await database.value(calls, "create_tenant", p_name="acme")
    assert db.execute("select from penstock.tenants") == []


def test_call_sync_works_outside_the_event_loop(db: testing.Database) -> None:
    with database.connect(db.dsn) as connection:
        assert database.call_sync(connection, "create_tenant", p_name="acme")
        with pytest.raises(NotFound):
            database.call_sync(connection, "set_tenant_weight", p_tenant_id=uuid.uuid4(), p_weight=2)


@pytest.mark.parametrize("name", ["a(); drop schema penstock; --", "Upper", 'a"b', ""])
def test_call_accepts_only_valid_function_names(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name"):
        asyncio.run(database.call(None, name))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"p_name": "a\0b"}, "name contains a NUL character"),
        ({"p_name": "a\ud800"}, "name contains an unpaired surrogate"),
        ({"p_name": "a", "p_value": {"x": [1, {"y": "\0"}]}}, r"value\.x\[1\]\.y contains a NUL"),
        ({"p_name": "a", "p_value": {"x\0": 1}}, "a key of value contains a NUL"),
        ({"p_name": "a", "p_value": {"x": "\udfff"}}, r"value\.x contains an unpaired"),
        ({"p_name": "a", "p_value": {"x": float("nan")}}, r"value\.x contains a number that is not finite"),
        (
            {"p_name": "a", "p_value": database.Json([float("inf")])},
            r"value\[0\] contains a number that is not",
        ),
    ],
)
def test_a_value_that_postgresql_cannot_store_is_rejected_with_its_field(
    conn: database.SyncConnection, arguments: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid, match=field):
        database.call_sync(conn, "set_setting", **{"p_value": {}, **arguments})


async def test_an_unreachable_database_raises_unavailable() -> None:
    away = "postgresql://postgres@127.0.0.1:1/nowhere"
    with pytest.raises(Unavailable):
        async with database.pool(away, wait_seconds=0.2):
            pass
    with pytest.raises(Unavailable, match="cannot be reached"):
        database.connect(away, wait_seconds=0.2)


async def test_a_pool_replaces_a_terminated_connection(db: testing.Database) -> None:
    async with database.pool(db.dsn, name="cut me", max_size=1) as pool:
        await database.call(pool, "create_tenant", p_name="acme")
        db.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'cut me'"
        )
        await database.call(pool, "create_tenant", p_name="charlie")


async def test_listen_yields_once_it_listens_and_then_payloads(db: testing.Database) -> None:
    payloads = database.listen(db.dsn, "penstock_test")
    assert await anext(payloads) == ""
    db.execute("select pg_notify('penstock_test', 'hello')")
    assert await anext(payloads) == "hello"
    await payloads.aclose()  # type: ignore[attr-defined]


def test_calls_prepare_no_statements(db: testing.Database) -> None:
    with database.connect(db.dsn) as connection:
        for _ in range(10):
            database.call_sync(connection, "my_tenants")
        assert connection.execute("select * from pg_prepared_statements").fetchall() == []


def test_settings_are_read_from_the_environment() -> None:
    assert settings.read({}) == settings.Settings()
    assert settings.read({"DATABASE_URL": "", "PENSTOCK_LISTEN": "off"}).listen == "off"
    with pytest.raises(Invalid, match="PENSTOCK_LISTEN must be auto, on or off"):
        settings.read({"PENSTOCK_LISTEN": "maybe"})


def test_errors_of_psycopg_become_errors_of_penstock(conn: database.SyncConnection) -> None:
    with pytest.raises(Invalid) as caught, conn.transaction():
        database.call_sync(conn, "set_setting", p_name="lease_seconds", p_value={"a": 1})
    assert isinstance(caught.value.__cause__, psycopg.Error)
