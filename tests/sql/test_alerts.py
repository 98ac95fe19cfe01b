"""Alerts to the operator (S83): their causes, one row for a storm, and retention."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Contract


def listed(sql: Contract) -> list[tuple[str, str, int]]:
    return [(row["kind"], row["subject"], row["count"]) for row in sql.rows("list_alerts")]


def test_a_closed_provider_raises_an_alert(sql: Contract) -> None:
    """S83: once per closing, without the provider's text."""
    sql.provider("openai/gpt")
    signal = Jsonb({"status": 402, "exhausted": True, "message": "sk-secret of a tenant"})
    for _ in range(3):
        sql.value("report_provider", name="openai/gpt", signal=signal)
    assert listed(sql) == [("provider_closed", "provider:openai/gpt", 1)]
    assert "secret" not in str(sql.rows("list_alerts"))


def test_new_keys_of_a_tenant_are_one_alert_a_day(sql: Contract, clock: Clock) -> None:
    """S83"""
    tenant = sql.one("select id from penstock.tenants limit 1")
    for name in ("a", "b"):
        sql.rows("create_key", name=name, role="viewer", tenant_id=tenant)
    (key,) = sql.rows("create_key", name="ops", role="service")
    assert sorted(listed(sql)) == [
        ("key_created", f"key:{key['id']}", 1),
        ("key_created", f"tenant:{tenant}", 2),
    ]
    clock.advance(days=1)
    sql.rows("create_key", name="c", role="viewer", tenant_id=tenant)
    assert listed(sql)[0] == ("key_created", f"tenant:{tenant}", 1)


def test_alerts_are_taken_once_and_kept_for_a_month(sql: Contract, clock: Clock) -> None:
    """S83"""
    report = {"kind": "failed_logins", "subject": "address:192.0.2.1"}
    sql.value("raise_alert", **report, count=20)
    assert [row["count"] for row in sql.rows("take_alerts")] == [20]
    assert sql.rows("take_alerts") == []
    sql.value("raise_alert", **report, count=5)
    assert [row["count"] for row in sql.rows("take_alerts")] == [5]
    assert listed(sql) == [("failed_logins", "address:192.0.2.1", 25)]
    clock.advance(days=32)
    sql.value("raise_alert", kind="quota_refusals", subject="tenant:x", count=20)
    assert [row["kind"] for row in sql.execute("select kind from penstock.operator_alerts")] == [
        "quota_refusals"
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "provider_closed"}, {"kind": None}, {"subject": "a\nb"}, {"subject": ""}, {"count": 0}],
)
def test_invalid_reports_are_rejected(sql: Contract, wrong: dict[str, object]) -> None:
    given = {"kind": "failed_logins", "subject": "address:x", "count": 1, **wrong}
    with pytest.raises(psycopg.Error) as caught, sql.connection.transaction():
        sql.value("raise_alert", **given)
    assert caught.value.sqlstate == "PT422"
