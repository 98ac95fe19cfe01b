"""Sessions wait for each other's rows in the order that claim.sql declares. The races and storms check it as well."""

from __future__ import annotations

import pytest

from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.lock_order import Wait, declared, violation

BACKWARDS = """
create function penstock._backwards() returns void language plpgsql set search_path = penstock, pg_temp as $$
begin
  perform 1 from jobs for no key update;
  perform 1 from phases for update;
end
$$"""


def test_the_order_names_every_table_that_functions_lock(sql: Contract) -> None:
    """B1: one lock order, in one place."""
    order = declared()
    tables = {row["relname"] for row in sql.execute(
        "select relname from pg_class where relnamespace = 'penstock'::regnamespace and relkind = 'r'")}  # fmt: skip
    assert {*order.ranks, *order.never, *order.inserted} <= tables
    assert {"leases", "ready", "parked", "phases", "jobs", "accounts"} <= order.ranks.keys()
    assert max(order.ranks, key=order.ranks.__getitem__) == "accounts"
    assert not order.never & order.ranks.keys()


def test_the_order_is_numbered_without_gaps() -> None:
    assert sorted(set(declared().ranks.values())) == list(range(1, len(set(declared().ranks.values())) + 1))


@pytest.mark.parametrize("table", declared().ranks)
def test_a_wait_for_any_table_of_the_order_is_judged_by_its_rank(table: str) -> None:
    """A session may wait for a table while it has locked earlier tables of the order, but no later one."""
    order = declared()
    above = {other for other, rank in order.ranks.items() if rank < order.ranks[table]}
    below = {other for other, rank in order.ranks.items() if rank > order.ranks[table]} - order.inserted
    assert violation(Wait("f", table, frozenset(above))) is None
    assert [other for other in below if violation(Wait("f", table, frozenset({other}))) is None] == []


def test_completions_wait_for_counts_before_accounts(sessions: Sessions) -> None:
    """One completion has locked the job's counts; another one waits for them before it locks its account."""
    one, two = sessions.open(), sessions.open()
    one.value("set_limit", tenant_id=one.tenant, meter="pages", amount=100)
    job = one.start([{"kind": "work", "units": {"pages": 1}}, {"kind": "other", "phase": "work"}])
    plain, counted = sorted(one.claim(2), key=lambda task: task["kind"])
    with one.connection.transaction():
        one.complete(plain)
        call = Call(lambda: two.complete(counted))
        sessions.wait_until_wait_is_seen(two, call)
    call.result()
    assert one.status(job) == "completed"
    (wait,) = sessions.locks.seen
    assert (wait.function, wait.waits_for) == ("complete_task", "phases")
    assert "leases" in wait.held and "accounts" not in wait.held


def test_a_wait_against_the_order_is_found(sessions: Sessions) -> None:
    one, two = sessions.open(), sessions.open()
    one.start(2)
    one.execute(BACKWARDS)
    with one.connection.transaction():
        one.execute("select from penstock.phases for update")
        call = Call(lambda: two.execute("select penstock._backwards()"))
        sessions.wait_until_wait_is_seen(two, call)
    call.result()
    with pytest.raises(
        pytest.fail.Exception, match="_backwards waits for a row of phases while it holds rows of jobs"
    ):
        sessions.locks.check()
    sessions.locks.seen.clear()


def test_ready_tasks_are_locked_in_the_order_of_their_ids(sessions: Sessions) -> None:
    """Two replays that name the same tasks in another order lock them in the same order: no deadlock."""
    one, two, three = (sessions.open() for _ in range(3))
    job = one.start(3)
    first, *_, last = sorted(row["id"] for row in one.tasks(job))
    with one.connection.transaction():
        one.execute("select from penstock.ready where task_id = %s for update", first)
        locks = "select penstock._lock_jobs_and_tasks(array[%s]::uuid[], array[%s, %s]::uuid[], array[%s, %s]::bigint[])"
        call = Call(lambda: two.execute(locks, job, job, job, last, first))
        sessions.wait_until_blocked(two, call)
        free = "select task_id from penstock.ready where task_id = %s for update nowait"
        assert three.one(free, last) == last
    call.result()


def test_a_tenants_place_in_a_lane_is_never_waited_for(sessions: Sessions) -> None:
    """B1: while one start holds the place, another start queues its tasks without it, and the next one moves it again."""
    one, two = sessions.open(), sessions.open()
    one.start(1)
    place = "select tail from penstock.shares"
    with one.connection.transaction():
        one.start(5)
        before = two.one(place)
        two.start(5)
        assert two.one(place) == before
    after = one.one(place)
    assert after > before
    two.start(1)
    assert two.one(place) > after


@pytest.mark.parametrize(("table", "why"), [("shares", "never waited for"), ("attempts", "does not name")])
def test_a_wait_for_any_other_table_is_found(table: str, why: str) -> None:
    assert why in str(violation(Wait("claim_tasks", table, frozenset())))
