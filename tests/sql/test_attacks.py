"""An attacker who can send SQL as a user: reading rows of other tenants, and disturbing other users."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from tests.sql.conftest import Contract
from tests.sql.test_access import (
    CATALOGUE,
    GRANTS,
    World,
    acting,
    api,
    committed,
    me,
    privileges,
    state,
    visible,
    world,
)

__all__ = ["api", "committed", "me", "world"]


def of_bob(world: World) -> str:
    """A condition that is true for bob's rows in any table."""
    return f"x::text ~ '{world.bob.tenant}|{world.bob.id}'"


class TestLeaks:
    """S17: conditions of a query are evaluated only on rows that its caller may see."""

    def test_errors_reveal_no_rows(self, sql: Contract, world: World) -> None:
        for relation in set(visible(sql)) - CATALOGUE:
            attacks = {
                "22012": f"1 / (case when {of_bob(world)} then 0 else 1 end) = 1",
                "22P02": f"(case when {of_bob(world)} then x::text else '1' end)::integer = 1",
                "22003": f"(case when {of_bob(world)} then 70000 else 1 end)::smallint = 1",
            }
            for code, condition in attacks.items():
                query = f"select count(*) from penstock.{relation} as x where {condition}".replace("%%", "%")
                assert state(sql, query) == code, "the attack is a real one"
                with acting(sql, world.ann):
                    assert state(sql, query) is None, (relation, code)
                    assert state(sql, query.replace("where", "where random() >= 0 and")) is None, relation

    def test_a_callers_function_is_not_called_on_hidden_rows(self, sql: Contract, world: World) -> None:
        """The policy is evaluated first, whatever cost the function declares."""
        heard: list[str] = []
        sql.connection.add_notice_handler(lambda notice: heard.append(notice.message_primary or ""))
        with acting(sql, world.ann):
            sql.execute("""
                create function pg_temp.hear(x text) returns boolean language plpgsql cost 0.0000001 as $$ begin
                  raise notice '%', x;
                  return true;
                end $$""")
            for relation in visible(sql):
                sql.execute(f"select count(*) from penstock.{relation} as x where pg_temp.hear(x::text)")
        assert "canary of ann" in "".join(heard)
        assert not [text for text in heard if "canary of bob" in text or str(world.bob.tenant) in text]

    def test_plans_and_statistics_reveal_no_rows(self, sql: Contract, world: World) -> None:
        sql.execute("analyze penstock.jobs, penstock.tasks, penstock.audit_log, penstock.profiles")
        statistics = "select count(*) from pg_stats where schemaname = 'penstock'"
        assert sql.one(statistics) > 20
        with acting(sql, world.ann):
            assert sql.one(statistics) == 0
            assert sql.one("select count(*) from pg_stats_ext where schemaname = 'penstock'") == 0
            for relation in visible(sql):
                plan = sql.execute(
                    f"explain (analyze, verbose, format json) select * from penstock.{relation}"
                )
                text = json.dumps(plan, default=str)
                assert "canary of bob" not in text and str(world.bob.tenant) not in text, relation

    def test_a_user_cannot_create_objects(self, sql: Contract, world: World) -> None:
        """Users cannot create functions, operators or tables that others would use."""
        with acting(sql, world.ann):
            for statement in (
                "create function penstock.mine() returns integer language sql as 'select 1'",
                "create function public.mine() returns integer language sql as 'select 1'",
                "create table penstock.mine ()",
                "create operator penstock.=== (function = pg_catalog.int4eq, leftarg = integer, rightarg = integer)",
                "create trigger mine before insert on penstock.jobs for each row execute function pg_catalog.suppress_redundant_updates_trigger()",
                "create rule mine as on select to penstock.jobs do instead nothing",
                "create index on penstock.jobs (type)",
                "comment on table penstock.jobs is 'mine'",
                "create event trigger mine on ddl_command_end execute function pg_catalog.suppress_redundant_updates_trigger()",
            ):
                assert state(sql, statement) == "42501", statement


def test_users_may_insert_into_no_table(sql: Contract) -> None:
    """S3, S6: users have no right to insert, so no upsert."""
    grants = sql.execute(GRANTS)
    for relation in visible(sql):
        found = privileges(grants, "relation", relation, "authenticated")
        assert found == ("select, update (display_name)" if relation == "profiles" else "select")


@pytest.mark.parametrize("how", ["locks", "notifications", "objects"])
def test_rights_of_every_role_do_not_stop_the_queue(
    db: testing.Database, api: Contract, committed: World, how: str
) -> None:
    """S18: one user does all that PostgreSQL allows every role; jobs of other users start, run and end meanwhile."""
    bob = committed.bob.tenant
    nuisance: dict[str, list[Any]] = {
        "locks": [
            "select pg_advisory_lock(n) from generate_series(-100, 1000) as n",
            f"select pg_advisory_lock(n, hashtext('{bob}')) from generate_series(1, 200) as n",
            "set statement_timeout = 0",
            "select pg_sleep(0)",
        ],
        "notifications": [
            "listen penstock",
            *(f"select pg_notify('penstock', '{text}')" for text in ("", ":", "ready", "ready:", "cancel:x", "chores:")),
            "select pg_notify('penstock', repeat('x', 7999)) from generate_series(1, 100)",
        ],
        "objects": [
            "create temp table ready (task_id bigint)",
            "create temp table tenants (id uuid)",
            "select lo_create(0)",
            "set search_path = pg_temp, penstock",
            "set default_transaction_isolation = 'serializable'",
        ],
    }  # fmt: skip
    for statement in nuisance[how]:
        with acting(api, committed.ann):
            api.execute(statement)
    own = Contract(db.connect(), bob)
    with api.connection.transaction(force_rollback=True), acting(api, committed.ann):
        job = own.start(3)
        tasks = own.claim(3)
        assert {task["tenant_id"] for task in tasks} <= {bob, committed.ann.tenant}
        while tasks:
            assert own.complete_all(tasks) == []
            tasks = own.claim(3)
        own.upkeep()
        own.reclaim()
        assert own.status(job) == "completed"


NO_TIMES = (
    "-infinity",
    "infinity",
    "20000-01-01",
    "0044-03-15 BC",
    "1999-12-31 23:59:59+00",
    "9999-01-01 00:00+00",
)


@pytest.mark.parametrize("at", NO_TIMES)
def test_timestamps_that_clients_cannot_parse_are_rejected(
    sql: Contract, me: Contract, world: World, at: str
) -> None:
    """One such row would break every list that contains it, for workers and operators."""
    schedule: dict[str, Any] = {"name": "x", "cron": "0 3 * * *", "job_type": "report"}
    with acting(sql, world.ann):
        with sql.refused(422, "invalid_time", field="next_run_at"):
            me.value("set_schedule", **schedule, next_run_at=at)
        with sql.refused(422, "invalid_time", field="options.run_at"):
            me.start(1, run_at=at)
        with sql.refused(422, "invalid_run_at", field="tasks[0].run_at"):
            me.start([{"kind": "work", "run_at": at}])
        with sql.refused(422, "invalid_time", field="expires_at"):
            me.value("create_key", name="x", role="member", expires_at=at)
        with sql.refused(422, "invalid_time", field="p_at"):
            me.rows("resolve_limits", tenant_id=world.ann.tenant, at=at)
    sql.value("set_provider", name="openai/gpt", values=Jsonb({}))
    with sql.refused(422, "invalid_time", field="valid_from"):
        sql.value(
            "set_price", provider="openai/gpt", meter="tokens", amount=1, options=Jsonb({"valid_from": at})
        )
    with sql.refused(422, "invalid_time", field="p_valid_from"):
        sql.value("set_exchange_rate", currency="CHF", rate=1, valid_from=at)
    for name in ("started_at", "ended_at"):
        with sql.refused(422, "invalid_time", field=name):
            sql.value(
                "record_cost", cost_type="x", amount=1, tenant_id=world.ann.tenant, options=Jsonb({name: at})
            )
    with sql.refused(422, "invalid_time", field="p_expires_on"):
        # As a date: without the time of day.
        sql.value(
            "add_allowance",
            tenant_id=world.ann.tenant,
            meter="tokens",
            amount=1,
            expires_on=re.sub(" [0-9].*", "", at),
        )


def test_stored_schedules_can_be_read(sql: Contract, me: Contract, world: World) -> None:
    deep = json.loads('{"a": ' * 100 + "1" + "}" * 100)
    task = {"kind": "work", "input": {}}
    for options, status, code in (
        ({"params": deep}, 422, "unreadable"),
        ({"params": {"a": 10**400}}, 422, "unreadable"),
        ({"params": {"a": "x" * 300_000}}, 413, "too_large"),
        ({"params": None}, 422, "invalid_schedule"),
        ({"options": []}, 422, "invalid_schedule"),
        ({"options": deep}, 422, "unreadable"),
        ({"options": {"a": "x" * 20_000}}, 413, "too_large"),
        ({"tasks": [{**task, "units": deep}]}, 422, "unreadable"),
        ({"tasks": [{**task, "input": {"a": "x" * 200_000}}] * 2}, 413, "too_large"),
    ):
        with acting(sql, world.ann), sql.refused(status, code):
            me.value(
                "set_schedule",
                name="x",
                cron="0 3 * * *",
                job_type="report",
                next_run_at="2026-01-01",
                options=Jsonb(options),
            )


def test_schedules_and_keys_of_a_tenant_are_limited(sql: Contract, me: Contract, world: World) -> None:
    """S41: the service may create more."""
    ann = world.ann
    schedule: dict[str, Any] = {"cron": "0 3 * * *", "job_type": "report", "next_run_at": "2026-01-01"}
    sql.execute(
        "insert into penstock.schedules (tenant_id, name, cron, job_type, next_run_at, created_at) "
        "select %s, n::text, '0 3 * * *', 'report', now(), now() from generate_series(1, "
        "1000 - (select count(*) from penstock.schedules where tenant_id = %s)) as n",
        ann.tenant,
        ann.tenant,
    )
    while sql.one("select count(*) from penstock.list_keys(%s) where revoked_at is null", ann.tenant) < 100:
        last = sql.rows("create_key", name="x", role="viewer", tenant_id=ann.tenant)[0]["id"]
    with acting(sql, ann):
        with sql.refused(409, "too_many_schedules"):
            me.value("set_schedule", name="one more", **schedule)
        assert me.value("set_schedule", name="1", **schedule), "what is there can be changed"
        with sql.refused(409, "too_many_keys"):
            me.value("create_key", name="one more", role="viewer")
        me.value("revoke_key", key_id=last)
        assert me.value("create_key", name="in its place", role="viewer")
    options = Jsonb({"tenant_id": str(ann.tenant)})
    assert sql.value("set_schedule", name="one more", **schedule, options=options)
    assert sql.value("create_key", name="one more", role="viewer", tenant_id=ann.tenant)
