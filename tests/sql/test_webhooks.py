"""The inbox: one row per event, locked while a delivery is processed."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions

pytestmark = pytest.mark.every_postgres


def take(sql: Contract, key: str = "evt_1", payload: Any = None) -> bool:
    (row,) = sql.rows(
        "take_webhook", source="stripe", key=key, type="paid", payload=Jsonb(payload or {"n": 1})
    )
    return row["is_done"]


def end(sql: Contract, outcome: str = "applied", key: str = "evt_1", error: str | None = None) -> None:
    sql.value("end_webhook", source="stripe", key=key, outcome=outcome, error=error)


def test_second_delivery_is_known(sql: Contract) -> None:
    """R4.3/deliveries"""
    assert take(sql) is False
    end(sql)
    assert take(sql) is True
    [row] = sql.execute("select deliveries, attempts, outcome from penstock.webhooks")
    assert row == {"deliveries": 2, "attempts": 1, "outcome": "applied"}


def test_second_delivery_waits_for_the_first(sessions: Sessions) -> None:
    """R4.3/deliveries: two deliveries at once apply the event once."""
    one, two = sessions.open(), sessions.open()
    with one.connection.transaction():
        assert take(one) is False
        call = Call(lambda: take(two))
        sessions.wait_until_blocked(two, call)
        end(one)
    assert call.result() is True


def test_delivery_whose_transaction_is_lost_leaves_nothing(sessions: Sessions) -> None:
    one, two = sessions.open(), sessions.open()
    with one.connection.transaction(force_rollback=True):
        take(one)
        call = Call(lambda: take(two))
        sessions.wait_until_blocked(two, call)
    assert call.result() is False
    assert one.one("select deliveries from penstock.webhooks") == 1


@pytest.mark.parametrize("outcome", ["failed", "unmatched"])
def test_failed_and_unmatched_events_are_tried_four_times(sql: Contract, clock: Clock, outcome: str) -> None:
    take(sql)
    end(sql, outcome, error="boom")
    for minutes in (1, 10, 60, 360):
        assert sql.rows("next_webhook", sources=["stripe"])[0]["key"] is None
        clock.advance(minutes=minutes)
        assert sql.rows("next_webhook", sources=["other"])[0]["key"] is None
        assert sql.rows("next_webhook", sources=["stripe"])[0]["key"] == "evt_1"
        end(sql, outcome)
    clock.advance(days=9)
    assert sql.rows("next_webhook", sources=["stripe"])[0]["key"] is None
    assert take(sql) is False, "a new delivery is processed"
    end(sql)
    assert sql.one("select error from penstock.webhooks") is None


def test_replay_processes_an_applied_event_again(sql: Contract) -> None:
    take(sql)
    end(sql)
    sql.value("replay_webhook", source="stripe", key="evt_1")
    assert sql.rows("next_webhook", sources=["stripe"])[0]["payload"] == {"n": 1}
    with sql.refused(404, "unknown_webhook"):
        sql.value("replay_webhook", source="stripe", key="evt_2")


def test_payload_is_deleted_and_the_row_stays(sql: Contract, clock: Clock) -> None:
    take(sql)
    end(sql)
    clock.advance(days=91)
    sql.value("prune")
    assert sql.one("select payload from penstock.webhooks") == {}
    assert take(sql) is True
    with sql.refused(409, "payload_deleted"):
        sql.value("replay_webhook", source="stripe", key="evt_1")


def test_invalid_arguments_are_rejected(sql: Contract) -> None:
    with sql.refused(422, "invalid_webhook"):
        take(sql, "")
    with sql.refused(422, "invalid_webhook"):
        sql.value("take_webhook", source="No", key="a", type="b", payload=Jsonb({}))
    take(sql)
    with sql.refused(422, "invalid_webhook", field="p_outcome"):
        end(sql, "done")
    with sql.refused(404, "unknown_webhook"):
        end(sql, key="other")
