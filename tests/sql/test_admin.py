"""Administration: admins of the installation, their changes with reasons, fixed costs, snapshots and margin."""

from __future__ import annotations

import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract
from .test_access import acting, join


def person(sql: Contract, name: str = "ann") -> uuid.UUID:
    return join(sql, name).id


def tenant_of(sql: Contract, user: uuid.UUID) -> uuid.UUID:
    return sql.one("select tenant_id from penstock.profiles where user_id = %s", user)


@pytest.fixture
def admin(sql: Contract) -> uuid.UUID:
    user = person(sql, "root")
    sql.value("set_profile_role", user_id=user, role="admin")
    return user


class TestRole:
    def test_no_user_makes_himself_an_admin(self, sql: Contract) -> None:
        """R2.11/role: neither a column, nor a function, nor the role admin of a tenant makes an admin."""
        user = person(sql)
        tenant = tenant_of(sql, user)
        for role in ("owner", "admin"):
            sql.execute("update penstock.members set role = %s where user_id = %s", role, user)
            with acting(sql, user):
                assert sql.value("is_admin") is False
                with sql.refused(403, "forbidden"):
                    sql.rows("admin_list_profiles")
                with sql.refused(403, "forbidden"):
                    sql.value("admin_get_profile", user_id=user)
                with sql.refused(403, "forbidden"):
                    sql.value("admin_set_plan", user_id=user, plan="enterprise", reason="I want it")
                with sql.refused(403, "forbidden"):
                    sql.value(
                        "admin_set_override", user_id=user, meter="tokens", amount=9,
                        expires_on=date(2090, 1, 1), reason="I want it",
                    )  # fmt: skip
                with sql.refused(403, "forbidden"):
                    sql.value("admin_spend")
                with sql.refused(403, "forbidden"):
                    sql.rows("tenant_margins")
                with sql.refused("42501"):
                    sql.execute("update penstock.profiles set role = 'admin' where user_id = %s", user)
                with sql.refused("42501"):
                    sql.value("set_profile_role", user_id=user, role="admin")
                with sql.refused("42501"):
                    sql.value("set_tenant_plan", tenant_id=tenant, plan="enterprise")
        assert sql.one("select role from penstock.profiles where user_id = %s", user) == "user"

    def test_the_service_makes_admins_and_users(self, sql: Contract, admin: uuid.UUID) -> None:
        """R2.11/role: only the service sets the role, and the audit log says so."""
        with acting(sql, admin):
            assert sql.value("is_admin") is True
        sql.value("set_profile_role", user_id=admin, role="user")
        with acting(sql, admin):
            assert sql.value("is_admin") is False
        lines = sql.execute(
            "select details from penstock.audit_log where action = 'admin.role_changed' order by id"
        )
        assert [row["details"]["to"] for row in lines] == ["admin", "user"]
        with sql.refused(422, "invalid_role"):
            sql.value("set_profile_role", user_id=admin, role="root")
        with sql.refused(404, "unknown_user"):
            sql.value("set_profile_role", user_id=uuid.uuid4(), role="admin")

    def test_a_key_is_no_person(self, sql: Contract) -> None:
        key = sql.value(
            "create_api_key", name="k", role="owner", options=Jsonb({"tenant_id": str(sql.tenant)})
        )
        with sql.refused(404, "unknown_user"):
            sql.value("set_profile_role", user_id=key, role="admin")


class TestChanges:
    def test_a_change_needs_a_reason_and_is_in_the_tenants_audit_log(
        self, sql: Contract, admin: uuid.UUID, clock: Clock
    ) -> None:
        """R2.11/audit: actor, subject, tenant and reason of each change."""
        user = person(sql)
        tenant = tenant_of(sql, user)
        today: date = sql.one("select (penstock._now() at time zone 'utc')::date")
        change: dict[str, Any] = {"user_id": user, "meter": "tokens", "amount": 500, "expires_on": today}
        with acting(sql, admin):
            for reason in (None, "", "  x ", "a\nb\x00"[:3] + "\x07", "x" * 1001):
                with sql.refused(422, "invalid_reason"):
                    sql.value("admin_set_override", **change, reason=reason)
                with sql.refused(422, "invalid_reason"):
                    sql.value("admin_set_plan", user_id=user, plan="basic", reason=reason)
            with sql.refused(422, "invalid_expiry"):
                sql.value("admin_set_override", **{**change, "expires_on": date(2000, 1, 1)}, reason="sorry")
            with sql.refused(422, "unknown_meter"):
                sql.value("admin_set_override", **{**change, "meter": "x"}, reason="sorry")
            with sql.refused(404, "unknown_plan"):
                sql.value("admin_set_plan", user_id=user, plan="x", reason="sorry")
            with sql.refused(404, "unknown_user"):
                sql.value("admin_set_plan", user_id=uuid.uuid4(), plan="basic", reason="sorry")
            sql.value("admin_set_override", **change, reason=" outage on Monday ")
            sql.value("admin_set_plan", user_id=user, plan="basic", reason="promised by sales")
            [found] = sql.rows("admin_list_profiles", filter="ann@")
            assert (found["user_id"], found["tier"]) == (user, "basic")
            details = sql.value("admin_get_profile", user_id=user)
        assert details["overrides"][0]["reason"] == "outage on Monday"
        with acting(sql, user):
            lines = sql.execute(
                "select actor, action, subject, details ->> 'reason' as reason, tenant_id"
                " from penstock.audit_log where action like 'admin.%%' order by id"
            )
        assert [tuple(row.values()) for row in lines] == [
            (f"user:{admin}", "admin.override_set", f"user:{user}", "outage on Monday", tenant),
            (f"user:{admin}", "admin.plan_set", f"user:{user}", "promised by sales", tenant),
        ]
        with acting(sql, admin):
            assert sql.one("select count(*) from penstock.audit_log where action = 'admin.plan_set'") == 1
            assert (
                sql.one(
                    "select count(*) from penstock.audit_log where tenant_id = %s and action not like 'admin.%%'",
                    tenant,
                )
                == 0
            )

    @pytest.mark.parametrize(
        "statement",
        [
            "update penstock.audit_log set details = '{}'",
            "delete from penstock.audit_log",
            "truncate penstock.audit_log",
            "insert into penstock.audit_log (at, actor, action) values (now(), 'x', 'y')",
            "update penstock.fixed_costs set amount = 0",
            "delete from penstock.cost_snapshots",
        ],
    )
    @pytest.mark.parametrize("role", ["service_role", "authenticated"])
    def test_nobody_rewrites_what_happened(self, sql: Contract, role: str, statement: str) -> None:
        """R2.11/audit: append-only, for the service too."""
        sql.execute(f"set local role {role}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege), sql.connection.transaction():
            sql.execute(statement)
        sql.execute("reset role")


class TestSpend:
    def test_costs_are_for_the_service_only(self, sql: Contract, admin: uuid.UUID) -> None:
        """R2.11/costs: fixed costs and snapshots are readable by the service only."""
        for user in (admin, person(sql)):
            with acting(sql, user):
                for statement in (
                    "select * from penstock.fixed_costs",
                    "select * from penstock.cost_snapshots",
                    "select penstock.spend()",
                    "select penstock.set_fixed_cost('rent', '{\"amount\": 1}')",
                    "select penstock.take_cost_snapshot()",
                ):
                    with sql.refused("42501"):
                        sql.execute(statement)
        sql.value("set_fixed_cost", name="rent", values=Jsonb({"amount": 310}))
        sql.execute("set local role service_role")
        assert sql.one("select amount from penstock.fixed_costs") == 310
        sql.value("take_cost_snapshot")
        assert sql.one("select count(*) from penstock.cost_snapshots") == 1
        sql.execute("reset role")
        with acting(sql, admin):
            assert sql.value("admin_spend")["fixed_total"] >= 0

    def test_fixed_costs_count_by_days(self, sql: Contract) -> None:
        def fixed(month: str) -> Decimal:
            return Decimal(str(sql.value("spend", month=date.fromisoformat(f"{month}-01"))["fixed_total"]))

        def cost(name: str, **values: Any) -> None:
            sql.value("set_fixed_cost", name=name, values=Jsonb(values))

        cost("rent", amount=310, from_day="2030-01-11")
        cost("audit", amount=1200, period="year", from_day="2030-02-01")
        cost("desk", amount=500, period="once", from_day="2030-03-31")
        assert [fixed(m) for m in ("2029-12", "2030-01", "2030-02", "2030-03", "2030-04")] == [
            0, 210, 410, 910, 410,
        ]  # fmt: skip
        cost("rent", amount=620, from_day="2030-04-16")
        assert (fixed("2030-04"), fixed("2030-05")) == (565, 720)
        sql.value("end_fixed_cost", name="rent", day=date(2030, 5, 15))
        assert fixed("2030-06") == 100
        assert sql.one("select count(*) from penstock.fixed_costs where name = 'rent'") == 2
        with sql.refused(404, "unknown_fixed_cost"):
            sql.value("end_fixed_cost", name="rent")
        with sql.refused(409, "fixed_cost_later"):
            cost("audit", amount=1, from_day="2029-01-01")
        for values in ({"amount": -1}, {"amount": 1, "period": "week"}, {}, {"amount": "x"}):
            with sql.refused(422, "invalid_fixed_cost"):
                cost("bad", **values)
        with sql.refused(422, "unknown_currency"):
            cost("bad", amount=1, currency="XXX")

    def test_margin_is_revenue_minus_costs(self, sql: Contract, clock: Clock) -> None:
        """R2.11/costs: the snapshot, the revenue by plan, and the margin per tenant."""
        sql.value("set_plan", name="pro", values=Jsonb({"price": 30, "title": "Pro"}))
        other = sql.value("create_tenant", name="Other")
        now = sql.one("select penstock._now()")
        insert = """insert into penstock.subscriptions (id, tenant_id, customer_id, price_ids, plan, status, created_at,
          as_of) values (%s, %s, 'c', '{p}', 'pro', %s, %s, %s)"""
        for name, tenant, status in (
            ("s1", sql.tenant, "active"), ("s2", sql.tenant, "past_due"), ("s3", other, "trialing"),
            ("s4", other, "incomplete_expired"),
        ):  # fmt: skip
            sql.execute(insert, name, tenant, status, now, now)
        for tenant, amount in ((sql.tenant, "12.5"), (other, "4")):
            sql.value(
                "record_cost", cost_type="api", amount=Decimal(amount), currency="USD", tenant_id=tenant
            )
        sql.value("set_fixed_cost", name="rent", values=Jsonb({"amount": 5, "period": "once"}))
        before = sql.value("spend")
        assert (before["variable_total"], before["taken_at"]) == (0, None)
        assert sql.value("take_due_snapshot") is True
        assert sql.value("take_due_snapshot") is False
        found = sql.value("spend")
        assert found["by_plan"] == {"pro": {"tenants": 1, "revenue": 30}}
        assert (found["revenue"], found["fixed_total"], found["variable_total"]) == (30, 5, 16.5)
        assert found["margin"] == 8.5
        margins = [
            (row["tenant_id"], row["revenue"], row["cost"], row["margin"])
            for row in sql.rows("tenant_margins")
        ]
        assert margins == [(other, 0, 4, -4), (sql.tenant, 30, Decimal("12.5"), Decimal("17.5"))]
        sql.value("record_cost", cost_type="api", amount=Decimal(1), currency="USD", tenant_id=other)
        assert sql.value("spend")["variable_total"] == 16.5, "the snapshot is cached"
        clock.advance(hours=1, seconds=1)
        assert sql.value("take_due_snapshot") is True
        assert sql.value("spend")["variable_total"] in (17.5, 0), "0 if a month has begun meanwhile"
