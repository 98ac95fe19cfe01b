"""What may happen while a tenant moves: people who leave or accept, webhooks, messages under way, other versions."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.cells import apply, move
from penstock.cells.checks import opened
from penstock.errors import Conflict
from penstock.postgres import migrate
from tests.conftest import Eventually
from tests.sql.conftest import Contract
from tests.sql.test_access import acting, join
from tests.test_cell_routing import key_of, serve, served, started
from tests.test_cell_writes import freeze, stop_before
from tests.test_cells import Pair, fill, pair

__all__ = ["pair", "serve", "served"]

pytestmark = [pytest.mark.every_postgres, pytest.mark.slow]

ISSUER = "https://id.example.org"


def invited(pair: Pair, guest: uuid.UUID) -> str:
    """The secret of an invitation to the tenant."""
    [made] = pair.old.rows("create_invitation", role="member", tenant_id=pair.tenant, options=Jsonb({}))
    return made["secret"]


# What is rejected while the tenant is frozen


def accept(pair: Pair) -> Callable[[], Any]:
    bob = join(pair.old, "bob")
    secret = invited(pair, bob.id)
    return lambda: as_user(pair, bob.id, "accept_invitation", secret=secret)


def decline(pair: Pair) -> Callable[[], Any]:
    bob = join(pair.old, "bob")
    secret = invited(pair, bob.id)
    return lambda: as_user(pair, bob.id, "decline_invitation", secret=secret)


def leave(pair: Pair) -> Callable[[], Any]:
    bob = join(pair.old, "bob")
    pair.old.execute(
        "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, 'member')",
        pair.tenant,
        bob.id,
    )
    return lambda: as_user(pair, bob.id, "leave_tenant", tenant_id=pair.tenant)


def start_action(pair: Pair) -> Callable[[], Any]:
    bob = join(pair.old, "bob")
    pair.old.execute(
        "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, 'member')",
        pair.tenant,
        bob.id,
    )
    job = pair.old.start(1)
    return lambda: as_user(pair, bob.id, "start_action", verb="cancel", subjects=[str(job)])


def discard(pair: Pair) -> Callable[[], Any]:
    pair.old.start(1)
    pair.old.kill(pair.old.claim_one())
    return lambda: pair.old.value("discard_dead_letters", filter=Jsonb({"all": True}))


def set_key(pair: Pair) -> Callable[[], Any]:
    sealed = {"sealed": b"s" * 40, "wrapped_key": b"w" * 60, "master_id": "0" * 16}
    pair.old.value("set_provider_key", provider="acme", host="api.acme.com", tenant_id=pair.tenant, **sealed)
    return lambda: pair.old.value(
        "set_provider_key", provider="acme", host="api.acme.com", tenant_id=pair.tenant, **sealed
    )


def remove_key(pair: Pair) -> Callable[[], Any]:
    set_key(pair)
    return lambda: pair.old.value("remove_provider_key", provider="acme", tenant_id=pair.tenant)


def own_provider(pair: Pair) -> None:
    pair.old.value("set_provider", name="acme/own", values=Jsonb({"concurrency": 1}), tenant_id=pair.tenant)


def set_provider(pair: Pair) -> Callable[[], Any]:
    return lambda: own_provider(pair)


def open_provider(pair: Pair) -> Callable[[], Any]:
    own_provider(pair)
    return lambda: pair.old.value("open_provider", name="acme/own", tenant_id=pair.tenant)


def report_provider(pair: Pair) -> Callable[[], Any]:
    own_provider(pair)
    signal = Jsonb({"status": 429, "retry_after_seconds": 60})
    return lambda: pair.old.value("report_provider", name="acme/own", signal=signal, tenant_id=pair.tenant)


def record_outcome(pair: Pair) -> Callable[[], Any]:
    return lambda: pair.old.value(
        "record_outcome", tenant_id=pair.tenant, scope="import", is_success=False, code="c", message="m"
    )


def forget_customer(pair: Pair) -> Callable[[], Any]:
    pair.old.value("bind_customer", tenant_id=pair.tenant, customer_id="cus_1")
    return lambda: pair.old.value("forget_customer", customer_id="cus_1")


def as_user(pair: Pair, user: uuid.UUID, function: str, **arguments: Any) -> Any:
    with acting(pair.old, user):
        return pair.old.value(function, **arguments)


@pytest.mark.parametrize(
    "prepare",
    [
        accept, decline, leave, start_action, discard, set_key, remove_key, set_provider, open_provider,
        report_provider, record_outcome, forget_customer,
    ],
    ids=lambda prepare: prepare.__name__,
)  # fmt: skip
def test_nothing_is_acknowledged_that_the_copy_would_miss(
    pair: Pair, prepare: Callable[[Pair], Callable[[], Any]]
) -> None:
    act = prepare(pair)
    freeze(pair)
    with pair.old.refused(503, "tenant_suspended"):
        act()
    pair.old.execute("select penstock._suspend_tenant(%s, null)", pair.tenant)
    act()


def test_an_action_continues_in_the_new_cell(pair: Pair) -> None:
    """An unfinished action of a user neither runs nor fails while its tenant moves."""
    jobs = [pair.old.start(1) for _ in range(3)]
    action = pair.old.one(
        "insert into penstock.actions (actor, tenant_id, verb, total, created_at)"
        " values ('user:x', %s, 'cancel', 3, penstock._now()) returning id",
        pair.tenant,
    )
    for job in jobs:
        pair.old.execute("insert into penstock.action_items values (%s, %s)", action, str(job))
    freeze(pair)
    assert pair.old.value("do_actions") == 0
    pair.old.execute("select penstock._suspend_tenant(%s, null)", pair.tenant)
    pair.move()
    assert pair.new.value("do_actions") == 3
    assert pair.new.one("select done from penstock.actions") == 3
    assert {pair.new.status(job) for job in jobs} == {"canceled"}


def test_an_action_of_an_operator_skips_only_the_tenant_that_moves(pair: Pair) -> None:
    other = Contract(pair.old.connection, pair.old.value("create_tenant", name="other"))
    jobs = [str(pair.old.start(1)), str(other.start(1))]
    freeze(pair)
    action = pair.old.value("start_action", verb="cancel", subjects=jobs)
    assert pair.old.execute("select done, refused from penstock.actions where id = %s", action) == [
        {"done": 1, "refused": 1}
    ]
    assert [pair.old.status(uuid.UUID(job)) for job in jobs] == ["queued", "canceled"]


# Work under way


def operation(pair: Pair) -> Any:
    """A task that waits for an outside system."""
    pair.old.provider("cc/convert", concurrency=5)
    pair.old.start([{"kind": "work", "provider": "cc/convert"}])
    apply(pair.cells)
    task = pair.old.claim_one()
    assert pair.old.park_operation(task) == "parked"
    return task


@pytest.mark.parametrize("step", ["verify", "switch", "activate", "remove"])
def test_a_webhook_that_reaches_the_old_cell_holds_up_no_move(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The provider is asked in the new cell; the old one keeps the event as unmatched and changes no row."""
    task = operation(pair)
    stop_before(step, pair, monkeypatch)
    told = pair.old.value("tell_operation", provider="cc", operation_id=pair.old.operation_id(task))
    assert told == "unmatched"
    assert pair.move() == 1
    assert (
        pair.new.value("tell_operation", provider="cc", operation_id=pair.new.operation_id(task)) == "applied"
    )
    again = pair.new.claim_one()
    assert again["id"] == task["id"]


def test_a_result_that_is_found_late_is_charged_in_one_cell(pair: Pair) -> None:
    """A check of the old cell that was under way when the tenant froze is rejected."""
    task = operation(pair)
    operation_id = pair.old.operation_id(task)
    pair.old.execute(
        "update penstock.operations set status = 'timeout', completed_at = penstock._now(),"
        " reconcile_at = penstock._now()"
    )
    freeze(pair)
    with pair.old.refused(503, "tenant_suspended"):
        pair.old.value("reconcile_operation", operation_id=operation_id, outcome="completed")


def test_a_job_that_ends_while_it_is_paused_stops_no_move(pair: Pair, eventually: Eventually) -> None:
    job = pair.old.start(1)
    worker = Contract(pair.dbs[0].connect(), pair.tenant)
    blocked = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query ~ '_drain_tenant'"
    task = worker.claim_one()
    with ThreadPoolExecutor(1) as threads:
        with worker.connection.transaction():
            worker.complete(task)
            moving = threads.submit(pair.move)
            eventually(lambda: pair.old.execute(blocked))
        assert moving.result(60) == 1
    assert pair.new.status(job) == "completed"


@pytest.mark.parametrize("step", ["switch", "remove"])
def test_upkeep_of_the_old_cell_holds_up_no_move(
    pair: Pair, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Hours between two steps: holds, waits, retries and refused tasks fall due in the old cell, too."""
    fill(pair)
    operation(pair)
    job = pair.old.start(2)
    pair.old.execute(
        "update penstock.parked set waits_for = 'refused', until = 'infinity' where task_id = ("
        "select min(task_id) from penstock.parked where reason = 'retry')"
    )
    stop_before(step, pair, monkeypatch)
    clock.advance(days=2)
    for _ in range(20):
        pair.old.upkeep()
        pair.old.value("do_actions")
    assert pair.move() == 1
    pair.new.do_chores()
    pair.new.check()
    assert pair.new.status(job) == "queued"


def test_a_message_that_is_being_sent_is_not_sent_again_by_the_new_cell(
    pair: Pair, eventually: Eventually
) -> None:
    pair.old.execute(
        "insert into penstock.notification_targets (tenant_id, channel, address, events, created_by, created_at)"
        " values (%s, 'email', 'a@example.org', '{alert}', 'service:x', penstock._now())",
        pair.tenant,
    )
    assert pair.old.value("notify", tenant_id=pair.tenant, subject="a", body="b") is not None
    [taken] = pair.old.rows("take_notifications")
    moved: list[int] = []
    thread = threading.Thread(target=lambda: moved.append(pair.move()))
    thread.start()
    state = "select suspended from penstock.tenants where id = %s"
    eventually(lambda: pair.old.one(state, pair.tenant) == "draining")
    assert pair.old.value("end_notification", id=taken["id"], attempt=1, outcome="sent")
    thread.join(60)
    assert moved == [1]
    assert pair.new.one("select status from penstock.notifications") == "sent"


# People


def test_a_member_signs_in_with_the_same_account_in_the_new_cell(pair: Pair) -> None:
    """Also one whose own tenant stays where it was."""
    bob = pair.old.value("sign_in_identity", issuer=ISSUER, subject="bob", email="bob@example.org")
    pair.old.execute(
        "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, 'member')", pair.tenant, bob
    )
    pair.move()
    assert pair.new.value("sign_in_identity", issuer=ISSUER, subject="bob") == bob
    with acting(pair.new, bob):
        assert pair.new.one("select array_agg(t) from penstock.my_tenants() as t") == [pair.tenant]
    assert pair.old.value("sign_in_identity", issuer=ISSUER, subject="bob") == bob


def test_a_member_with_another_account_in_the_new_cell_is_named_before_anything_changes(pair: Pair) -> None:
    bob = pair.old.value("sign_in_identity", issuer=ISSUER, subject="bob")
    pair.old.execute(
        "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, 'member')", pair.tenant, bob
    )
    other = pair.new.value("sign_in_identity", issuer=ISSUER, subject="bob")
    with pytest.raises(Conflict) as caught:
        pair.move()
    assert (caught.value.code, caught.value.details["users"]) == ("accounts_differ", [str(other)])
    assert pair.old.execute("select * from penstock.tenant_cells") == []
    pair.new.value("erase_user", user_id=other)
    assert pair.move() == 1


def test_a_user_who_exists_in_both_cells_is_named_before_the_own_tenant_moves(pair: Pair) -> None:
    ann = join(pair.old, "ann")
    pair.new.execute("insert into auth.users (id, email) values (%s, 'ann@example.org')", ann.id)
    with pytest.raises(Conflict) as caught:
        move(pair.cells, ann.tenant, 1, seconds=60)
    assert caught.value.code == "accounts_differ"
    assert pair.old.one("select suspended from penstock.tenants where id = %s", ann.tenant) is None


def test_a_tenant_that_another_cell_made_is_served_and_moved(
    pair: Pair, served: Any, eventually: Eventually
) -> None:
    """Such as that of somebody who signed in there first. The directory has no row of it."""
    there = pair.new.value("create_tenant", name="there")
    headers = key_of(pair.new, there)
    pair.new.tenant = there
    job = eventually(
        lambda: served.get("/api/jobs", headers=headers).status_code == 200 and started(served, headers)
    )
    assert pair.new.value("cell_of", id=job) == 1
    assert move(pair.cells, there, 0, seconds=60) == 0
    assert pair.old.status(job) in ("queued", "running")
    answer = eventually(
        lambda: (found := served.get(f"/api/jobs/{job}", headers=headers)).status_code == 200 and found
    )
    assert json.loads(answer.text)["id"] == str(job)


@pytest.mark.parametrize("lines", [20_000])
def test_a_long_audit_log_is_copied_once_also_by_a_move_there_and_back(pair: Pair, lines: int) -> None:
    """The time grows with the number of lines, not with its square."""
    add = (
        "insert into penstock.audit_log (at, tenant_id, actor, action, subject, details)"
        " select penstock._now() + n / 2 * interval '1 ms', %s, 'service:x', 'app.did', 'n:' || n / 2, '{}'"
        " from generate_series(1, %s) as n"
    )
    pair.old.execute(add, pair.tenant, lines)
    count = "select count(*) from penstock.audit_log where action = 'app.did' and tenant_id = %s"
    for to in (1, 0, 1):
        pair.move(to)
        # Equal lines are lines of their own.
        assert (pair.old.one(count, pair.tenant), pair.new.one(count, pair.tenant)) == (lines, lines)
    in_order = "select bool_and(at >= before) from (select at, lag(at) over (order by id) as before from penstock.audit_log where action = 'app.did') as l"
    assert pair.new.one(in_order)


def test_the_session_of_a_killed_command_ends(pair: Pair) -> None:
    with opened(pair.cells[0], pair.cells[1]) as sessions:
        for session in sessions:
            row = session.execute("show client_connection_check_interval").fetchone()
            assert row == {"client_connection_check_interval": "1s"}


# Versions and numbers


@pytest.mark.parametrize("step", ["copy", "verify", "switch"])
def test_a_move_waits_for_a_cell_that_was_migrated_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fill(pair)
    stop_before(step, pair, monkeypatch)
    pair.dbs[1].execute("insert into penstock.migrations (name, sha256) values ('9999_later.sql', '')")
    with pytest.raises(Conflict) as caught:
        pair.move()
    assert (caught.value.code, pair.place()["step"]) == ("schema_differs", step)
    pair.dbs[0].execute("insert into penstock.migrations (name, sha256) values ('9999_later.sql', '')")
    assert pair.move() == 1


def test_shared_facts_are_applied_between_equal_versions_only(pair: Pair) -> None:
    """A column that the older database does not know would be emptied in the newer one."""
    pair.old.provider("acme/write", concurrency=10)
    pair.dbs[1].execute("insert into penstock.migrations (name, sha256) values ('9999_later.sql', '')")
    with pytest.raises(Conflict) as caught:
        apply(pair.cells)
    assert caught.value.code == "schema_differs"
    assert pair.new.execute("select 1 from penstock.endpoints where name = 'acme/write'") == []
    pair.dbs[0].execute("insert into penstock.migrations (name, sha256) values ('9999_later.sql', '')")
    assert apply(pair.cells)[1] > 0


def test_a_move_between_versions_can_be_aborted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    job = pair.old.start(1)
    stop_before("switch", pair, monkeypatch)
    pair.dbs[1].execute("insert into penstock.migrations (name, sha256) values ('9999_later.sql', '')")
    assert pair.move(abort=True) == 0
    pair.old.drain()
    assert pair.old.status(job) == "completed"


def test_rows_of_an_app_that_is_added_later_have_numbers_of_their_cell(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations/0001_create_things.sql").write_text(
        "-- phase: expand\ncreate table later.things (id bigint generated always as identity primary key,"
        " tenant_id uuid not null);\nalter table later.things enable row level security;\n"
    )
    for each in pair.dbs:
        migrate.migrate(each.dsn, folder=tmp_path, schema="later")
    made = [
        sql.one("insert into later.things (tenant_id) values (%s) returning id", pair.tenant)
        for sql in (pair.old, pair.new)
    ]
    assert made == [1, 2**43 + 1]
