"""Entitlements: one resolver for limits and features; gates that observe or enforce, at start and claim."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Call, Contract, Sessions


def plan(sql: Contract, name: str | None, tenant: uuid.UUID | None = None) -> None:
    sql.value("set_tenant_plan", tenant_id=tenant or sql.tenant, plan=name)


def gate(sql: Contract, name: str, **values: Any) -> None:
    sql.value("set_gate", name=name, values=Jsonb(values))


def events(sql: Contract) -> list[str]:
    found = sql.execute(
        "select details ->> 'would_have_blocked' as gate from penstock.usage_events"
        " where tenant_id = %s and details ? 'would_have_blocked' order by id",
        sql.tenant,
    )
    return [row["gate"] for row in found]


def require(sql: Contract, name: str, amount: Any = 1, key: str | None = None) -> dict[str, Any]:
    return sql.value("require_gate", gate=name, tenant_id=sql.tenant, amount=amount, key=key)


@pytest.fixture
def plans(sql: Contract) -> None:
    """Plan `basic` has no features, plan `premium` has pdf; the tenant is on basic."""
    sql.value("set_plan", name="premium", values=Jsonb({"features": ["pdf"], "limits": {"pages": 10}}))
    sql.value("set_plan", name="basic", values=Jsonb({"features": [], "limits": {"pages": 3}}))
    plan(sql, "basic")


class TestResolver:
    """R2.4/resolver: tier, limits and capabilities from one function."""

    def test_lists_every_meter_and_the_feature_of_every_gate(self, sql: Contract, plans: None) -> None:
        gate(sql, "export", feature="pdf")
        found = sql.value("resolve_entitlements", tenant_id=sql.tenant)
        assert (found["tier"], found["plan"], found["until"]) == ("basic", "basic", None)
        assert found["limits"]["pages"] == 3
        assert found["limits"]["images"] is None
        assert set(found["limits"]) == {
            row["name"] for row in sql.execute("select name from penstock.meters")
        }
        assert found["capabilities"] == {"pdf": False}
        plan(sql, "premium")
        assert sql.value("resolve_entitlements", tenant_id=sql.tenant)["capabilities"] == {"pdf": True}

    def test_an_override_counts_until_the_end_of_its_day(
        self, sql: Contract, plans: None, clock: Clock
    ) -> None:
        clock.freeze()
        today = sql.one("select (penstock._now() at time zone 'utc')::date")
        sql.value("add_allowance", tenant_id=sql.tenant, meter="pages", amount=5, expires_on=today)
        assert sql.value("resolve_entitlements", tenant_id=sql.tenant)["limits"]["pages"] == 8
        clock.advance(days=1)
        assert sql.value("resolve_entitlements", tenant_id=sql.tenant)["limits"]["pages"] == 3

    def test_a_plan_ends_at_its_second(self, sql: Contract, plans: None, clock: Clock) -> None:
        """R2.4/resolver: limits, features and usage status change when plan_until is reached."""
        clock.freeze()
        plan(sql, "premium")
        gate(sql, "export", feature="pdf", mode="enforce")
        sql.execute(
            "update penstock.tenants set plan_until = penstock._now() + interval '60 seconds',"
            " plan_after = 'basic' where id = %s",
            sql.tenant,
        )
        clock.advance(seconds=59)
        assert sql.value("resolve_entitlements", tenant_id=sql.tenant)["tier"] == "premium"
        assert require(sql, "export")["allowed"]
        clock.advance(seconds=1)
        found = sql.value("resolve_entitlements", tenant_id=sql.tenant)
        assert (found["tier"], found["plan"], found["limits"]["pages"]) == ("basic", "premium", 3)
        assert sql.value("get_usage_status", tenant_id=sql.tenant)["plan"] == "basic"
        with sql.refused(402, "upgrade_required"):
            require(sql, "export")

    def test_a_session_that_asks_often_gets_the_same_answer(self, sql: Contract, plans: None) -> None:
        """From the sixth call on, PostgreSQL plans the queries of a function without knowing its arguments."""
        found = [sql.value("resolve_entitlements", tenant_id=sql.tenant) for _ in range(7)]
        assert found == found[:1] * 7

    def test_a_tenant_cannot_be_without_a_plan(self, sql: Contract, plans: None) -> None:
        """R2.2: a missing plan never looks like an unlimited one."""
        with sql.refused("23502"):
            sql.execute("update penstock.tenants set plan = null where id = %s", sql.tenant)

    def test_a_stranger_reads_nothing(self, sql: Contract, plans: None) -> None:
        other = sql.value("create_tenant", name="other")
        user = uuid.uuid4()
        sql.execute("insert into auth.users (id) values (%s)", user)
        with sql.connection.transaction(force_rollback=True):
            sql.execute(
                "select set_config('request.jwt.claims', %s, true), set_config('role', 'authenticated', true)",
                f'{{"sub": "{user}"}}',
            )
            assert sql.value("resolve_entitlements")["tier"] == "free"
            for tenant in (other, uuid.uuid4()):
                with sql.refused(403, "forbidden"):
                    sql.value("resolve_entitlements", tenant_id=tenant)
                with sql.refused(403, "forbidden"):
                    sql.value("check_gate", gate="export", tenant_id=tenant)


class TestGates:
    """R2.4/observe, R2.4/enforce: what a gate does in each mode."""

    @pytest.mark.parametrize(
        ("name", "mode", "passes", "recorded"),
        [
            ("basic", "observe", True, ["export"]),
            ("basic", "enforce", False, []),
            ("premium", "observe", True, []),
            ("premium", "enforce", True, []),
        ],
    )
    def test_plan_and_mode_decide(
        self, sql: Contract, plans: None, name: str, mode: str, passes: bool, recorded: list[str]
    ) -> None:
        plan(sql, name)
        gate(sql, "export", feature="pdf", mode=mode)
        checked = sql.value("check_gate", gate="export", tenant_id=sql.tenant)
        assert checked["allowed"] is passes
        assert checked["would_have_blocked"] is (name == "basic")
        assert events(sql) == [], "a check records nothing"
        if passes:
            assert require(sql, "export")["allowed"]
        else:
            with sql.refused(402, "upgrade_required") as seen:
                require(sql, "export")
            assert seen.details["gate"] == "export"
            assert (seen.details["plan"], seen.details["feature"]) == ("basic", "pdf")
        assert events(sql) == recorded

    def test_a_meter_gate_reserves_and_tells_limit_and_usage(self, sql: Contract, plans: None) -> None:
        gate(sql, "paper", meter="pages", mode="enforce")
        first = require(sql, "paper", 2, key="a")
        assert require(sql, "paper", 2, key="a")["hold_id"] == first["hold_id"]
        with sql.refused(402, "upgrade_required") as seen:
            require(sql, "paper", 2)
        assert (seen.details["limit"], seen.details["used"]) == (3, 2)
        sql.value("release_hold", hold_id=first["hold_id"])
        assert require(sql, "paper", 3)["hold_id"]

    def test_an_enforcing_gate_rejects_although_its_meter_observes(self, sql: Contract, plans: None) -> None:
        sql.value("set_meter", name="pages", values=Jsonb({"mode": "observe"}))
        gate(sql, "paper", meter="pages", mode="enforce")
        with sql.refused(402, "upgrade_required"):
            require(sql, "paper", 4)
        assert sql.one("select count(*) from penstock.holds where tenant_id = %s", sql.tenant) == 0

    def test_an_observing_gate_passes_over_the_limit(self, sql: Contract, plans: None) -> None:
        gate(sql, "paper", meter="pages")
        assert require(sql, "paper", 4)["allowed"]
        assert events(sql) == ["paper"]

    def test_an_unlimited_meter_passes(self, sql: Contract, plans: None) -> None:
        gate(sql, "pictures", meter="images", mode="enforce")
        assert require(sql, "pictures", 10**6)["limit"] is None

    def test_unknown_gates_and_plans_without_features_are_refused(self, sql: Contract, plans: None) -> None:
        with sql.refused(404, "unknown_gate"):
            require(sql, "nothing")
        gate(sql, "export", feature="pdf", mode="enforce")
        plan(sql, "unlimited")
        # It has no limits, and no features either.
        with sql.refused(402, "upgrade_required"):
            require(sql, "export")

    @pytest.mark.parametrize(
        "values",
        [
            {},
            {"feature": "a", "meter": "pages"},
            {"meter": "nothing"},
            {"feature": "a", "mode": "sometimes"},
            {"meter": "pages", "kinds": ["work"]},
            {"feature": "Not A Word"},
            {"feature": "a", "kinds": "work"},
        ],
    )
    def test_invalid_gates_are_refused(self, sql: Contract, values: dict[str, Any]) -> None:
        with sql.refused(422, "invalid_gate"):
            gate(sql, "export", **values)

    def test_invalid_amounts_are_refused(self, sql: Contract, plans: None) -> None:
        gate(sql, "paper", meter="pages")
        for amount in (-1, 10**16):
            with sql.refused(422):
                sql.value("check_gate", gate="paper", tenant_id=sql.tenant, amount=amount)


class TestKinds:
    """R2.4/enforce: a gate of a kind is checked when a job starts and at the claim."""

    def test_start_and_add_are_refused_without_the_feature(self, sql: Contract, plans: None) -> None:
        job = sql.start(["other"])
        gate(sql, "export", feature="pdf", mode="enforce", kinds=["work"])
        with sql.refused(402, "upgrade_required"):
            sql.start(["work"])
        with sql.refused(402, "upgrade_required"):
            sql.add(job, ["work"])
        assert sql.start(["other"])
        plan(sql, "premium")
        assert sql.start(["work"])

    def test_a_job_type_needs_its_gate(self, sql: Contract, plans: None) -> None:
        gate(sql, "export", feature="pdf", mode="enforce", kinds=["report"])
        with sql.refused(402, "upgrade_required"):
            sql.start(["work"], type="report")
        assert sql.start(["work"], type="letter")

    def test_observe_records_one_line_for_a_job(self, sql: Contract, plans: None) -> None:
        gate(sql, "export", feature="pdf", kinds=["work"])
        sql.start(["work", "work"])
        assert events(sql) == ["export"]
        assert len(sql.claim(10)) == 2

    @pytest.mark.parametrize("units", [None, {"pages": 1}])
    def test_the_claim_parks_tasks_after_a_downgrade(
        self, sql: Contract, plans: None, units: dict[str, int] | None
    ) -> None:
        plan(sql, "premium")
        gate(sql, "export", feature="pdf", mode="enforce", kinds=["work"])
        job = sql.start([{"kind": "work", **({"units": units} if units else {})} for _ in range(3)])
        other = sql.value("create_tenant", name="other")
        plan(sql, "premium", other)
        sql.start(["work"], tenant_id=str(other))
        plan(sql, "basic")
        claimed = sql.claim(10) + sql.claim(10)
        assert [task["tenant_id"] for task in claimed] == [other]
        found = sql.execute("select reason, waits_for from penstock.parked where job_id = %s", job)
        assert {(row["reason"], row["waits_for"]) for row in found} == {("upgrade required: export", "gate")}
        assert len(found) == 3
        plan(sql, "premium")
        sql.rows("upkeep")
        assert len(sql.claim(10)) == 3

    def test_removing_a_gate_queues_its_tasks(self, sql: Contract, plans: None) -> None:
        sql.start(["work"])
        gate(sql, "export", feature="pdf", mode="enforce", kinds=["work"])
        assert sql.claim(10) == []
        sql.value("remove_gate", name="export")
        sql.rows("upkeep")
        assert len(sql.claim(10)) == 1


def test_parallel_calls_pass_a_gate_as_often_as_its_limit(sessions: Sessions) -> None:
    """R2.4/enforce: 50 calls at once on a limit of 10 let 10 through."""
    first = sessions.open()
    first.value("set_plan", name="premium", values=Jsonb({"limits": {"pages": 10}}))
    plan(first, "premium")
    gate(first, "paper", meter="pages", mode="enforce")
    many = [sessions.open() for _ in range(10)]

    def passes(sql: Contract) -> int:
        passed = 0
        for _ in range(5):
            try:
                require(sql, "paper")
                passed += 1
            except psycopg.Error as error:
                assert error.sqlstate == "PT402"
        return passed

    calls = [Call(partial(passes, each)) for each in many]
    assert sum(call.result() for call in calls) == 10
    assert first.one("select held from penstock.accounts where meter = 'pages'") == 10
