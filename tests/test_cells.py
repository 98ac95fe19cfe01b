"""Several databases: ids, shared facts, provider limits, and the move of a tenant while it works."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.cells import Cell, apply, move, moving, rebalance
from penstock.errors import Conflict, NotFound, PenstockError, TimedOut
from tests.conftest import Eventually
from tests.sql.conftest import Contract, prepare

pytestmark = pytest.mark.every_postgres

BALANCES = """
select
  (select jsonb_agg(to_jsonb(a) order by a.meter, a.period, a.job_id) from penstock.accounts a
    where a.tenant_id = %(tenant)s) as accounts,
  (select jsonb_agg(to_jsonb(c) - 'price_id' order by c.id) from penstock.cost_entries c
    where c.tenant_id = %(tenant)s) as ledger,
  (select jsonb_object_agg(concat_ws(' ', day, provider, cost_type), amount) from (
    select day, provider, cost_type, trim_scale(sum(amount)) as amount from penstock.cost_sums
    where tenant_id = %(tenant)s group by 1, 2, 3) as s) as sums,
  (select jsonb_object_agg(action || meter, amount) from (
    select action, meter, sum(amount) as amount from penstock.usage_sums
    where tenant_id = %(tenant)s group by 1, 2) as u) as usage,
  (select jsonb_object_agg(meter, amount) from penstock.tenant_limits where tenant_id = %(tenant)s) as limits,
  penstock.get_usage_status(%(tenant)s) as status"""


@dataclass
class Pair:
    """Two cells. The first one has the directory."""

    old: Contract
    new: Contract
    dbs: tuple[testing.Database, testing.Database]
    cells: dict[int, Cell]
    tenant: uuid.UUID

    def move(self, to: int = 1, **options: Any) -> int:
        return move(self.cells, self.tenant, to, **{"seconds": 60, **options})

    def place(self) -> Any:
        return self.old.execute("select * from penstock.tenant_cells where tenant_id = %s", self.tenant)[0]

    def balances(self, sql: Contract) -> Any:
        (row,) = sql.connection.execute(BALANCES.encode(), {"tenant": self.tenant})
        return row

    def total(self) -> Any:
        """The costs of all tenants of both cells."""
        query = "select coalesce(sum(amount), 0) from penstock.cost_sums where tenant_id is null"
        return self.old.one(query) + self.new.one(query)


@pytest.fixture
def pair(
    server: testing.Server, db: testing.Database, clock: testing.Clock, tenant: uuid.UUID,
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[Pair]:  # fmt: skip
    monkeypatch.setattr(moving, "GRACE_SECONDS", 0)
    monkeypatch.setattr(moving, "_WAIT_SECONDS", 0.01)
    with server.database() as second:
        old, new = prepare(Contract(db.connect(), tenant)), prepare(Contract(second.connect(), tenant))
        new.value("set_cell", number=1)
        old.value("add_cell", number=0, name="main")
        old.value("add_cell", number=1, name="second")
        cells = {0: Cell(0, db.dsn), 1: Cell(1, second.dsn)}
        yield Pair(old, new, (db, second), cells, tenant)


def fill(pair: Pair) -> dict[str, uuid.UUID]:
    """A tenant with a past and a present: ended, waiting, retrying, paused and limited work, money and keys."""
    sql, tenant = pair.old, pair.tenant
    sql.value("set_meter", name="pages", values=Jsonb({"period": "month"}))
    sql.value("set_limit", tenant_id=tenant, meter="pages", amount=100)
    sql.provider("acme/write", requests_per_minute=600, concurrency=10)
    sql.value("set_price", provider="acme/write", meter="tokens", amount=Decimal("0.5"), options=Jsonb({}))
    sql.execute("select penstock.set_provider('acme/own', '{\"concurrency\": 3}', %s)", tenant)
    apply(pair.cells)
    jobs: dict[str, uuid.UUID] = {}
    jobs["ended"] = sql.start(3, idempotency_key="first")
    sql.drain()
    jobs["failed"] = sql.start(2, stop_after="5")
    sql.kill(sql.claim_one())
    sql.fail(sql.claim_one(), retry_after_seconds=3600.0)
    jobs["asked"] = sql.start(1)
    sql.park(sql.claim_one(), options=["yes", "no"], default="no", seconds=86400)
    jobs["paused"] = sql.start(2)
    sql.pause(jobs["paused"], "by the user")
    jobs["graph"] = sql.start([
        {"kind": "work", "key": "a", "provider": "acme/own"},
        {"kind": "other", "key": "b", "after": ["a"], "provider": "acme/write"},
    ])  # fmt: skip
    sql.value("record_usage", units=Jsonb({"pages": 7}), tenant_id=tenant, action="print", options=Jsonb({}))
    sql.value("reserve_quota", tenant_id=tenant, amounts=Jsonb({"pages": 5}), action="print", key="open")
    line = sql.value(
        "record_cost", cost_type="render", amount=3, tenant_id=tenant, options=Jsonb({"key": "x"})
    )
    sql.value("record_cost", cost_type="render", amount=-1, options=Jsonb({"corrects": line}))
    sql.execute(
        "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, 'owner')",
        tenant,
        uuid.uuid4(),
    )
    return jobs


# Ids


def test_the_cell_is_read_from_the_id_of_everything_new(pair: Pair) -> None:
    job = pair.old.start(1)
    assert pair.old.value("cell_of", id=job) == 0
    assert pair.old.one("select penstock.cell_of(id) from penstock.jobs") == 0
    made = pair.new.value("create_tenant", name="there")
    assert (made.version, pair.new.value("cell_of", id=made)) == (7, 1)


@pytest.mark.parametrize("number", [0, 1, 3, 4, 512, 1023])
def test_an_id_carries_each_of_1024_numbers_and_stays_random(pair: Pair, number: int) -> None:
    pair.new.value("set_cell", number=number)
    rows = pair.new.execute("select penstock._uuid7() as id from generate_series(1, 200)")
    ids = [row["id"] for row in rows]
    assert {pair.new.value("cell_of", id=each) for each in ids} == {number}
    assert {(each.version, each.variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert len({each.int & (1 << 62) - 1 for each in ids}) == 200
    assert sorted(i.hex[:12] for i in ids) == [i.hex[:12] for i in ids]


def test_an_id_from_before_the_cells_or_of_another_version_has_no_cell(pair: Pair) -> None:
    # Version 7 of 2020, and version 4.
    assert pair.old.value("cell_of", id=uuid.UUID("016f5e66-e800-7abc-8def-0123456789ab")) is None
    assert pair.old.value("cell_of", id=uuid.uuid4()) is None


def test_row_numbers_of_cells_never_meet(pair: Pair) -> None:
    task = pair.old.claim(1, kinds=None)
    assert task == []
    pair.old.start(1)
    pair.new.tenant = pair.new.value("create_tenant", name="there")
    pair.new.start(1)
    assert pair.old.claim_one()["id"] < 2**43 < pair.new.claim_one()["id"] < 2**44


@pytest.mark.parametrize("number", [-1, 1024, None])
def test_a_cell_has_a_number_between_0_and_1023(pair: Pair, number: int | None) -> None:
    with pair.new.refused(422, "invalid_cell"):
        pair.new.value("set_cell", number=number)
    with pair.old.refused(422, "invalid_cell"):
        pair.old.value("add_cell", number=number, name="x")


def test_the_number_of_a_database_with_tenants_is_fixed(pair: Pair) -> None:
    with pair.old.refused(409, "cell_in_use"):
        pair.old.value("set_cell", number=2)
    with pair.old.refused(409, "fixed_setting"):
        pair.old.value("set_setting", name="cell", value=Jsonb(2))


# Shared facts and limits


def test_apply_makes_providers_prices_and_plans_equal_and_repeats_without_changes(pair: Pair) -> None:
    sql = pair.old
    sql.value("set_plan", name="pro", values=Jsonb({"title": "Pro", "limits": {}}))
    sql.provider("acme/write", requests_per_minute=600, concurrency=11, features=["json"])
    sql.value("set_price", provider="acme/write", meter="tokens", amount=Decimal("0.25"), options=Jsonb({}))
    changed = apply(pair.cells)
    assert changed[1] > 0
    assert apply(pair.cells) == {0: 0, 1: 0}
    for query in (
        "select provider, amount, valid_from from penstock.prices where tenant_id is null order by 1",
        "select name, title from penstock.plans order by 1",
        "select name, features, status from penstock.endpoints order by 1",
    ):
        assert pair.new.execute(query) == sql.execute(query)


def limits(sql: Contract, limit: str = "concurrency") -> Any:
    return sql.one(f"select {limit} from penstock.endpoints where name = 'acme/write'")


def test_provider_limits_are_split_by_share_and_never_exceeded(pair: Pair) -> None:
    pair.old.provider("acme/write", requests_per_minute=601, concurrency=11)
    apply(pair.cells)
    assert (limits(pair.old), limits(pair.new)) == (6, 5)
    assert limits(pair.old, "requests_per_minute") + limits(pair.new, "requests_per_minute") == 601
    pair.old.value("add_cell", number=1, name="second", share=3)
    rebalance(pair.cells)
    assert (limits(pair.old), limits(pair.new)) == (3, 8)
    assert limits(pair.old, "tokens_per_minute") is None
    pair.old.value("set_cell_limits", name="acme/write", limits=Jsonb({"concurrency": 21}))
    rebalance(pair.cells)
    assert limits(pair.old) + limits(pair.new) == 21


@pytest.mark.slow
def test_rebalance_shrinks_before_it_grows(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.old.provider("acme/write", concurrency=11)
    apply(pair.cells)
    pair.old.value("add_cell", number=1, name="second", share=3)
    # The new cell, which grows, cannot be reached.
    cells = {**pair.cells, 1: Cell(1, "postgresql://127.0.0.1:1/none")}
    with pytest.raises((PenstockError, psycopg.Error)):
        rebalance(cells)
    assert limits(pair.old) + limits(pair.new) <= 11
    rebalance(pair.cells)
    assert limits(pair.old) + limits(pair.new) == 11
    # The new cell, which shrinks and comes last, cannot be reached: the first one must not have grown.
    pair.old.value("add_cell", number=1, name="second", share=1)
    with pytest.raises((PenstockError, psycopg.Error)):
        rebalance(cells)
    assert limits(pair.old) + limits(pair.new) == 11
    rebalance(pair.cells)
    assert limits(pair.old) == 6


def test_a_limit_smaller_than_the_number_of_cells_is_rejected(pair: Pair) -> None:
    pair.old.provider("acme/write", concurrency=1)
    with pytest.raises(psycopg.Error, match="cannot be split over 2 cells"):
        apply(pair.cells)
    with pair.old.refused(404, "unknown_provider"):
        pair.old.value("set_cell_limits", name="no/such", limits=Jsonb({}))
    with pair.old.refused(422, "invalid_provider"):
        pair.old.value("set_cell_limits", name="acme/write", limits=Jsonb({"concurrency": -1}))


# The move


def test_a_move_takes_everything_of_the_tenant_and_of_nobody_else(pair: Pair, tenant: uuid.UUID) -> None:
    jobs = fill(pair)
    other = Contract(pair.old.connection, pair.old.value("create_tenant", name="other"))
    kept = other.start(2)
    before, total = pair.balances(pair.old), pair.total()
    lines = pair.old.one("select count(*) from penstock.audit_log where tenant_id = %s", tenant)

    assert pair.move() == 1

    assert pair.balances(pair.new) == before
    assert pair.total() == total
    assert pair.new.one("select count(*) from penstock.audit_log where tenant_id = %s", tenant) >= lines
    for name, status in {
        "ended": "completed",
        "failed": "running",
        "paused": "paused",
        "asked": "running",
    }.items():
        assert pair.new.status(jobs[name]) == status, name
    assert pair.new.job(jobs["paused"])["status_reason"] == "by the user"
    with pair.old.refused(404):
        pair.old.job(jobs["ended"])
    pair.old.check()
    pair.new.do_chores()
    pair.new.check()
    # The work goes on, with the tenant's own limits.
    assert pair.new.answer(
        pair.new.execute("select id from penstock.tasks where job_id = %s", jobs["asked"])[0], "yes"
    )
    pair.new.drain()
    assert pair.new.status(jobs["graph"]) == pair.new.status(jobs["asked"]) == "completed"
    assert other.drain() == 2
    assert other.status(kept) == "completed"
    assert pair.place()["cell"] == 1
    assert pair.place()["moving_to"] is None


def test_nothing_is_lost_or_done_twice_while_workers_run(pair: Pair, eventually: Eventually) -> None:
    sql = pair.old
    job = sql.start(60)
    held = sql.claim(5, worker="slow")
    worker = Contract(pair.dbs[0].connect(), pair.tenant)
    done: list[int] = []
    moved: list[Any] = []
    thread = threading.Thread(target=lambda: moved.append(pair.move()))
    for task in worker.claim(20):
        worker.complete(task)
        done.append(task["id"])
    thread.start()
    eventually(lambda: sql.job(job)["status"] == "paused")
    # Tasks that run end in the old cell; no other one starts there.
    assert worker.claim(10) == []
    for task in held:
        assert sql.complete(task, worker="slow")
        done.append(task["id"])
    thread.join(60)
    assert moved == [1]
    pair.new.do_chores()
    while tasks := pair.new.claim(10):
        pair.new.complete_all(tasks)
        done += [task["id"] for task in tasks]
    assert len(done) == len(set(done)) == 60
    assert pair.new.progress(job)["succeeded"] == 60
    pair.new.check()


def test_a_stale_worker_of_the_old_cell_is_rejected(pair: Pair, clock: testing.Clock) -> None:
    pair.old.start(1)
    task = pair.old.claim_one(seconds=10)
    clock.advance(seconds=11)
    pair.move()
    with pair.old.refused(410, "lease_lost"):
        pair.old.complete(task)
    pair.new.do_chores()
    again = pair.new.claim_one()
    assert again["id"] == task["id"]
    # The number of a lease only grows, also across cells, so the stale one is no newer anywhere.
    assert again["lease"] > task["lease"]
    with pair.new.refused(410, "lease_lost"):
        pair.new.complete(task)
    assert pair.new.complete(again)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["drain", "copy", "verify", "switch", "activate", "remove"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_a_move_continues_after_a_crash_at_each_step(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    fill(pair)
    before = pair.balances(pair.old)
    real = moving._STEPS[step]

    def crash(running: moving.Move) -> Any:
        if is_done:
            # The step has done its work, and the record of it is lost.
            monkeypatch.setattr(running.__class__, "record", lambda *_: None)
            real(running)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(moving._STEPS, step, crash)
        with pytest.raises(KeyboardInterrupt):
            pair.move()
    monkeypatch.undo()
    monkeypatch.setattr(moving, "GRACE_SECONDS", 0)
    assert pair.place()["step"] == step
    active = [
        sql
        for sql in (pair.old, pair.new)
        if sql.one("select suspended is null from penstock.tenants where id = %s", pair.tenant)
    ]
    assert len(active) <= 1
    assert pair.move() == 1
    assert pair.balances(pair.new) == before
    assert pair.place()["step"] is None
    assert pair.old.one("select count(*) from penstock.jobs") == 0
    assert pair.move() == 1


def test_a_tenant_moves_there_and_back(pair: Pair) -> None:
    jobs = fill(pair)
    before, total = pair.balances(pair.old), pair.total()
    lines = "select count(*) from penstock.audit_log where tenant_id = %s and action = 'tenant.created'"
    pair.move(1)
    pair.move(0)
    assert pair.balances(pair.old) == before
    assert pair.total() == total
    assert pair.old.one(lines, pair.tenant) == 1
    pair.old.do_chores()
    pair.old.check()
    pair.old.drain()
    assert pair.old.status(jobs["graph"]) == "completed"


def test_an_aborted_move_leaves_the_tenant_at_work(pair: Pair) -> None:
    fill(pair)
    held = pair.old.start(2)
    task = pair.old.claim_one()
    before = pair.balances(pair.old)
    with pytest.raises(TimedOut):
        pair.move(seconds=0)
    assert pair.old.status(held) == "paused"
    assert pair.move(abort=True) == 0
    assert pair.balances(pair.old) == before
    assert pair.old.complete(task)
    pair.old.do_chores()
    pair.old.drain()
    assert pair.old.status(held) == "completed"
    assert pair.new.one("select count(*) from penstock.tenants where id = %s", pair.tenant) == 0


def test_a_suspended_tenant_gets_nothing_new_in_the_old_cell(pair: Pair) -> None:
    fill(pair)
    pair.old.start(1)
    task = pair.old.claim_one()
    with pytest.raises(TimedOut):
        pair.move(seconds=0)
    # A running handler may start work; users may not.
    assert pair.old.start(1)
    pair.old.complete(task)
    pair.old.execute("select penstock._suspend_tenant(%s, 'frozen')", pair.tenant)
    with pair.old.refused(503, "tenant_suspended"):
        pair.old.start(1)
    assert pair.old.rows("due_schedules") == []


def test_rows_that_come_after_the_copy_are_reported_and_kept(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pair)
    monkeypatch.setitem(moving._STEPS, "activate", lambda running: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pair.move()
    monkeypatch.setitem(moving._STEPS, "activate", moving._activate)
    # A program of the operator's wrote to the old database itself.
    pair.old.execute(
        "insert into penstock.cost_entries (at, tenant_id, cost_type, amount, currency, base_amount)"
        " values (penstock._now(), %s, 'render', 9, 'USD', 9)",
        pair.tenant,
    )
    with pytest.raises(Conflict, match="cost_entries") as caught:
        pair.move()
    assert caught.value.code == "late_rows"
    assert (
        pair.old.one("select sum(amount) from penstock.cost_entries where tenant_id = %s", pair.tenant) == 11
    )


def test_a_copy_that_differs_is_never_switched_to(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(pair)
    real = moving._copy_table

    def lose(running: moving.Move, table: moving.Table) -> None:
        if table.name != "penstock.cost_entries":
            real(running, table)

    monkeypatch.setattr(moving, "_copy_table", lose)
    with pytest.raises(Conflict, match="cost_entries") as caught:
        pair.move()
    assert caught.value.code == "copy_differs"
    assert pair.place()["cell"] == 0
    monkeypatch.setattr(moving, "_copy_table", real)
    assert pair.move() == 1


def test_moves_that_cannot_succeed_change_nothing(pair: Pair) -> None:
    for tenant, to, error in (
        (uuid.uuid4(), 1, NotFound),
        (pair.tenant, 2, NotFound),
    ):
        with pytest.raises(error):
            move(pair.cells, tenant, to)
    pair.dbs[1].execute("insert into penstock.migrations (name, sha256) values ('9999_later.sql', '')")
    with pytest.raises(Conflict) as caught:
        pair.move()
    assert caught.value.code == "schema_differs"
    assert pair.old.execute("select * from penstock.tenant_cells") == []


def test_two_commands_cannot_move_the_same_tenant(pair: Pair) -> None:
    with moving._only_mover(pair.cells[0], pair.tenant), pytest.raises(Conflict) as caught:
        pair.move()
    assert caught.value.code == "move_in_progress"


def test_every_table_is_copied_or_known_to_stay(pair: Pair) -> None:
    """A new table with a tenant's rows is part of the copy by itself; this is the list of those that are not."""
    rows = pair.old.execute(
        "select c.relname as name from pg_class c where c.relnamespace = 'penstock'::regnamespace"
        " and c.relkind in ('r', 'p') and not c.relispartition"
        " and penstock._tenant_condition(c.oid, %s) is null order by 1",
        pair.tenant,
    )
    assert {row["name"] for row in rows} == {
        # Of the installation or of one database.
        "access_changes", "audit_marks", "audit_seals", "bill_lines", "billing_syncs", "cell_limits", "cells",
        "cost_snapshots", "endpoint_states", "exchange_rates", "fixed_costs", "gates", "job_params", "job_types",
        "kinds", "link_secrets", "meters", "migrations", "operator_alerts", "plan_prices", "plans", "prompts", "sessions",
        "settings", "tenant_cells", "upkeep_runs", "workers",
        # Made again in the new cell.
        "calls", "chores", "cost_sums", "lanes", "leases", "mixed", "ready", "route_failures", "routed_lanes",
        "shares", "spent", "task_sums",
    }  # fmt: skip
