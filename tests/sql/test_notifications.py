"""Failures in a row cause one alert; messages commit with their cause and are delivered at least once."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.postgres import db
from tests.sql.conftest import Call, Contract, Sessions

HOOK = "https://hooks.example.com/penstock"


def outcome(sql: Contract, is_success: bool = False, scope: str = "event:1", **more: Any) -> dict[str, Any]:
    failed = {} if is_success else {"code": "api_error", "message": "the converter responded 500"}
    return sql.value(
        "record_outcome", tenant_id=sql.tenant, scope=scope, is_success=is_success, **failed, **more
    )


def target(sql: Contract, *events: str, address: str = HOOK, channel: str = "webhook") -> uuid.UUID:
    options = Jsonb({"tenant_id": str(sql.tenant)})
    [row] = sql.rows(
        "set_notification_target", channel=channel, address=address, events=list(events), options=options
    )
    return row["id"]


def queued(sql: Contract) -> list[db.Row]:
    return sql.execute("select * from penstock.notifications order by id")


def take(sql: Contract, limit: int = 20) -> list[db.Row]:
    return sql.rows("take_notifications", limit=limit)


def end(sql: Contract, taken: db.Row, result: str, error: str | None = None) -> bool:
    return sql.value(
        "end_notification", id=taken["id"], attempt=taken["attempt"], outcome=result, error=error
    )


def test_three_failures_in_a_row_cause_one_alert_per_streak(sql: Contract) -> None:
    """R4.5/alert R4.5/one-per-streak R4.5/reset"""
    target(sql, "alert")
    alerts = [outcome(sql)["alerted"] for _ in range(4)]
    assert alerts == [False, False, True, False]
    assert len(queued(sql)) == 1
    outcome(sql, is_success=True)
    assert [outcome(sql)["alerted"] for _ in range(3)] == [False, False, True]
    assert len(queued(sql)) == 2
    assert sql.one("select count(*) from penstock.failures") == 7


def test_failures_are_typed_lines_that_nobody_changes(sql: Contract) -> None:
    """R4.5/log"""
    outcome(sql, subject="slide:7", options=Jsonb({"details": {"status": 500}}))
    [line] = sql.execute("select * from penstock.failures")
    assert (line["code"], line["subject"], line["details"]) == ("api_error", "slide:7", {"status": 500})
    for statement in ("update penstock.failures set code = 'x'", "delete from penstock.failures"):
        with sql.refused("42501"):
            sql.execute("set local role service_role")
            sql.execute(statement)
    with sql.refused(422, "invalid_outcome"):
        sql.value("record_outcome", tenant_id=sql.tenant, scope="event:1", is_success=False)


def test_a_success_in_between_resets_the_count(sql: Contract) -> None:
    """R4.5/reset"""
    target(sql, "alert")
    for _ in range(5):
        outcome(sql)
        outcome(sql)
        assert outcome(sql, is_success=True) == {"failures": 0, "alerted": False}
    assert queued(sql) == []


def test_failures_of_other_scopes_do_not_count(sql: Contract) -> None:
    target(sql, "alert")
    for number in range(6):
        outcome(sql, scope=f"event:{number}")
    assert queued(sql) == []


def test_failures_count_only_within_24_hours(sql: Contract, clock: testing.Clock) -> None:
    """R4.5/alert: at 0, 1, 25 and 26 hours none; at 27 hours the last three fall into a day."""
    target(sql, "alert")
    alerts: list[bool] = []
    for hours in (0, 1, 24, 1, 1):
        clock.advance(hours=hours)
        alerts.append(outcome(sql)["alerted"])
    assert alerts == [False, False, False, False, True]


def test_an_alert_without_a_target_goes_to_owners_and_admins_by_email(sql: Contract) -> None:
    for role, email in (
        ("owner", "ann@example.com"),
        ("admin", "bob@example.com"),
        ("member", "cy@example.com"),
    ):
        user = uuid.uuid4()
        sql.execute(
            "insert into penstock.profiles (user_id, tenant_id, email) values (%s, %s, %s)",
            user,
            sql.tenant,
            email,
        )
        sql.execute(
            "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, %s)",
            sql.tenant,
            user,
            role,
        )
    for _ in range(3):
        outcome(sql)
    assert sorted(row["address"] for row in queued(sql)) == ["ann@example.com", "bob@example.com"]
    assert {row["channel"] for row in queued(sql)} == {"email"}


def test_two_concurrent_third_failures_cause_one_alert(sessions: Sessions) -> None:
    """R4.5/one-per-streak"""
    one, two = sessions.open(), sessions.open()
    target(one, "alert")
    outcome(one)
    outcome(one)
    with one.connection.transaction():
        assert outcome(one)["alerted"]
        call = Call(lambda: outcome(two))
        sessions.wait_until_blocked(two, call)
    assert call.result() == {"failures": 4, "alerted": False}
    assert len(queued(one)) == 1


def test_twenty_failures_at_once_cause_one_alert(sessions: Sessions) -> None:
    """R4.5/one-per-streak"""
    contracts = [sessions.open() for _ in range(20)]
    target(contracts[0], "alert")
    calls = [Call(lambda each=each: outcome(each)) for each in contracts]
    assert sorted(call.result()["failures"] for call in calls) == list(range(1, 21))
    assert len(queued(contracts[0])) == 1


def test_the_end_of_a_job_reaches_its_subscribers(sql: Contract) -> None:
    target(sql, "job.completed")
    target(sql, "job.failed", address="https://other.example.com/")
    job = sql.start(1)
    sql.drain()
    [row] = queued(sql)
    assert (row["event"], row["address"], row["details"]["job_id"]) == ("job.completed", HOOK, str(job))
    sql.start([{"kind": "work", "max_attempts": 1}])
    sql.fail(sql.claim_one())
    assert [row["event"] for row in queued(sql)] == ["job.completed", "job.failed"]


def test_a_retried_job_notifies_again(sql: Contract, clock: testing.Clock) -> None:
    target(sql, "job.failed")
    job = sql.start([{"kind": "work", "max_attempts": 1}])
    sql.fail(sql.claim_one())
    clock.advance(seconds=1)
    sql.retry(job)
    sql.fail(sql.claim_one())
    assert [row["event"] for row in queued(sql)] == ["job.failed", "job.failed"]


def test_jobs_of_other_tenants_notify_nobody(sql: Contract) -> None:
    target(sql, "job.completed")
    other = sql.value("create_tenant", name="other")
    sql.start(1, tenant_id=str(other))
    sql.drain()
    assert queued(sql) == []


def test_a_message_whose_sender_died_is_taken_again(sql: Contract, clock: testing.Clock) -> None:
    """No message is lost; the dead sender's late report changes nothing."""
    sql.value("send_test_notification", target_id=target(sql, "alert"))
    [first] = take(sql)
    assert take(sql) == []
    clock.advance(seconds=61)
    [second] = take(sql)
    assert (second["id"], second["attempt"]) == (first["id"], 2)
    assert not end(sql, first, "failed")
    assert end(sql, second, "sent")
    assert queued(sql)[0]["status"] == "sent"
    assert take(sql) == []


def test_retries_back_off_and_give_up_after_a_day(sql: Contract, clock: testing.Clock) -> None:
    sql.value("send_test_notification", target_id=target(sql, "alert"))
    waits: list[float] = []
    while taken := take(sql):
        end(sql, taken[0], "retry", "the webhook responded 503")
        [row] = queued(sql)
        if row["status"] == "failed":
            break
        waits.append((row["next_try_at"] - clock.now()).total_seconds())
        clock.advance(seconds=waits[-1])
    assert waits == [60, 300, 1500, 7500, 21600, 21600, 21600]
    assert queued(sql)[0]["last_error"] == "the webhook responded 503"


def test_a_target_that_is_gone_is_disabled(sql: Contract) -> None:
    chosen = target(sql, "alert")
    sql.value("send_test_notification", target_id=chosen)
    [taken] = take(sql)
    end(sql, taken, "gone", "the webhook responded 410 Gone")
    [row] = sql.execute("select is_enabled, disabled_reason from penstock.notification_targets")
    assert (row["is_enabled"], row["disabled_reason"]) == (False, "the webhook responded 410 Gone")


def test_two_senders_never_take_the_same_message(sessions: Sessions) -> None:
    one, two = sessions.open(), sessions.open()
    chosen = target(one, "alert")
    for _ in range(2):
        one.value("send_test_notification", target_id=chosen)
    with one.connection.transaction():
        [first] = take(one, limit=1)
        taken = take(two)
        assert [row["id"] for row in taken] != [first["id"]] and len(taken) == 1


def test_tenants_take_turns(sql: Contract) -> None:
    """A tenant with many messages does not delay a tenant with one."""
    busy = target(sql, "alert")
    for _ in range(10):
        sql.value("send_test_notification", target_id=busy)
    other = sql.value("create_tenant", name="other")
    sql.value("notify", tenant_id=other, subject="nobody", body="is subscribed")
    options = Jsonb({"tenant_id": str(other)})
    [quiet] = sql.rows(
        "set_notification_target", channel="webhook", address=HOOK, events=["alert"], options=options
    )
    sql.value("send_test_notification", target_id=quiet["id"])
    assert {row["tenant_id"] for row in take(sql, limit=2)} == {sql.tenant, other}


def test_a_rotated_secret_and_the_old_one_sign_for_a_day(sql: Contract, clock: testing.Clock) -> None:
    chosen = target(sql, "alert")
    [old] = sql.execute("select secret from penstock.notification_secrets")
    new = sql.value("rotate_notification_secret", target_id=chosen)
    sql.value("send_test_notification", target_id=chosen)
    assert take(sql)[0]["secrets"] == [new, old["secret"]]
    clock.advance(hours=25)
    assert take(sql)[0]["secrets"] == [new]


def test_target_that_is_created_again_gets_no_more_test_messages(sql: Contract) -> None:
    """S89: otherwise a tenant fills anybody's mailbox."""
    for _ in range(2):
        made = target(sql, "alert", address="victim@example.com", channel="email")
        for _ in range(10):
            sql.value("send_test_notification", target_id=made)
        sql.value("remove_notification_target", target_id=made)
    made = target(sql, "alert", address="victim@example.com", channel="email")
    with sql.refused(429, "too_many_tests"):
        sql.value("send_test_notification", target_id=made)
    other = target(sql, "alert", address="other@example.com", channel="email")
    assert sql.value("send_test_notification", target_id=other)


def test_a_removed_target_gets_nothing_more(sql: Contract) -> None:
    chosen = target(sql, "alert")
    sql.value("send_test_notification", target_id=chosen)
    sql.value("remove_notification_target", target_id=chosen)
    assert take(sql) == []
    assert [row["last_error"] for row in queued(sql)] == ["the target was removed"]


@pytest.mark.parametrize(
    ("channel", "address", "events", "code"),
    [
        ("sms", "x", ["alert"], "invalid_channel"),
        ("email", "no address", ["alert"], "invalid_address"),
        ("email", "a@b.example\nBcc: c@d.example", ["alert"], "invalid_address"),
        ("webhook", "ftp://example.com/", ["alert"], "invalid_address"),
        ("webhook", "https://user:pass@example.com/", ["alert"], "invalid_address"),
        ("webhook", "https://example.com/\r\nX: y", ["alert"], "invalid_address"),
        ("webhook", HOOK, [], "invalid_events"),
        ("webhook", HOOK, ["job.started"], "invalid_events"),
    ],
)
def test_a_bad_target_is_rejected(
    sql: Contract, channel: str, address: str, events: list[str], code: str
) -> None:
    with sql.refused(422, code):
        target(sql, *events, address=address, channel=channel)


def test_a_tenant_has_at_most_20_targets(sql: Contract) -> None:
    for number in range(20):
        target(sql, "alert", address=f"{HOOK}/{number}")
    with sql.refused(409, "too_many_targets"):
        target(sql, "alert")


def test_old_notifications_and_failures_are_pruned(sql: Contract, clock: testing.Clock) -> None:
    target(sql, "alert")
    for _ in range(3):
        outcome(sql)
    end(sql, take(sql)[0], "sent")
    clock.advance(days=91)
    sql.value("prune")
    for table in ("notifications", "failures", "streaks"):
        assert sql.one(f"select count(*) from penstock.{table}") == 0
