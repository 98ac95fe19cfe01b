"""Plans, limits, holds and usage: no limit is exceeded, nothing is lost or counted twice."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Call, Contract, Sessions


def limit(sql: Contract, meter: str, amount: Any, tenant: uuid.UUID | None = None) -> None:
    sql.value("set_limit", tenant_id=tenant or sql.tenant, meter=meter, amount=amount)


def reserve(
    sql: Contract,
    tenant: uuid.UUID | None = None,
    *,
    key: str | None = None,
    ttl: float = 300,
    **amounts: Any,
) -> uuid.UUID:
    return sql.value(
        "reserve_quota", tenant_id=tenant or sql.tenant, amounts=Jsonb(amounts), key=key, ttl_seconds=ttl
    )


def usage(sql: Contract, meter: str, tenant: uuid.UUID | None = None) -> tuple[Decimal, Decimal]:
    """Used and held."""
    found = sql.value("get_usage_status", tenant_id=tenant or sql.tenant)["usage"].get(
        meter, {"used": 0, "held": 0}
    )
    return found["used"], found["held"]


def report(sql: Contract, task: dict[str, Any], worker: str = "w1", **units: Any) -> None:
    sql.value("record_usage", units=Jsonb(units), task_id=task["id"], worker_id=worker, lease=task["lease"])


@pytest.fixture(autouse=True)
def accounts_are_right(request: pytest.FixtureRequest) -> Any:
    """After each test every account equals the sum of its entries."""
    sql = request.getfixturevalue("sql")
    yield
    assert sql.rows("check_accounts") == []


class TestHolds:
    """R2.3/reserve, R2.2/over-limit, R2.4/enforce, R4.1/reserve: reserve, commit, release."""

    def test_reserve_commit_release(self, sql: Contract) -> None:
        limit(sql, "pages", 10)
        one, two = reserve(sql, pages=4), reserve(sql, pages=4)
        with sql.refused(429, "quota_exceeded") as refusal:
            reserve(sql, pages=3)
        details = refusal.details
        assert (details["meter"], details["used"], details["held"], details["limit"]) == ("pages", 0, 8, 10)
        assert details["resets_at"] and details["retry_after_seconds"] > 0
        sql.value("commit_hold", hold_id=one, actual=Jsonb({"pages": 1}))
        assert usage(sql, "pages") == (1, 4)
        assert sql.value("release_hold", hold_id=two) is True
        assert usage(sql, "pages") == (1, 0)
        reserve(sql, pages=9)

    def test_a_hold_reserves_all_meters_or_none(self, sql: Contract) -> None:
        limit(sql, "pages", 10)
        limit(sql, "files", 1)
        reserve(sql, files=1)
        with sql.refused(429, "quota_exceeded"):
            reserve(sql, pages=1, files=1)
        assert usage(sql, "pages") == (0, 0)

    def test_a_repeated_release_or_commit_changes_nothing(self, sql: Contract) -> None:
        """R4.1/double-release: a double release changes nothing; nor does a double commit."""
        limit(sql, "pages", 10)
        one = reserve(sql, pages=2, key="a")
        assert reserve(sql, pages=2, key="a") == one
        with sql.refused(409, "idempotency_key_reused"):
            reserve(sql, pages=3, key="a")
        for _ in range(2):
            sql.value("commit_hold", hold_id=one, actual=Jsonb({"pages": 2}))
        assert usage(sql, "pages") == (2, 0)
        with sql.refused(409, "hold_settled"):
            sql.value("commit_hold", hold_id=one, actual=Jsonb({"pages": 1}))
        with sql.refused(409, "hold_settled"):
            sql.value("release_hold", hold_id=one)
        two = reserve(sql, pages=5)
        assert sql.value("release_hold", hold_id=two) is True
        assert sql.value("release_hold", hold_id=two) is False
        with sql.refused(409, "hold_settled"):
            sql.value("commit_hold", hold_id=two)
        assert usage(sql, "pages") == (2, 0)

    def test_an_expired_hold_can_still_be_committed(self, sql: Contract, clock: Clock) -> None:
        limit(sql, "pages", 10)
        hold = reserve(sql, pages=10, ttl=60)
        clock.advance(seconds=61)
        sql.upkeep()
        assert usage(sql, "pages") == (0, 0)
        assert sql.value("release_hold", hold_id=hold) is False
        sql.value("commit_hold", hold_id=hold, actual=Jsonb({"pages": 7}))
        assert usage(sql, "pages") == (7, 0)

    def test_a_hold_of_another_tenant_is_unknown(self, sql: Contract) -> None:
        hold = reserve(sql, pages=1)
        other = sql.value("create_tenant", name="other")
        for verb in ("commit_hold", "release_hold"):
            with sql.refused(404, "unknown_hold"):
                sql.value(verb, hold_id=hold, tenant_id=other)
            with sql.refused(404, "unknown_hold"):
                sql.value(verb, hold_id=uuid.uuid4())

    def test_usage_above_the_reservation_is_booked(self, sql: Contract) -> None:
        limit(sql, "pages", 5)
        hold = reserve(sql, pages=5)
        sql.value("commit_hold", hold_id=hold, actual=Jsonb({"pages": 8}))
        assert usage(sql, "pages") == (8, 0)
        with sql.refused(429, "quota_exceeded"):
            reserve(sql, pages=1)

    def test_lowering_a_limit_below_use_is_legal(self, sql: Contract) -> None:
        """R4.1/lowered: it stops new work, and takes nothing back."""
        limit(sql, "pages", 10)
        sql.value("commit_hold", hold_id=reserve(sql, pages=8))
        limit(sql, "pages", 3)
        with sql.refused(429, "quota_exceeded"):
            reserve(sql, pages=1)
        reserve(sql, pages=0)
        limit(sql, "pages", 9)
        reserve(sql, pages=1)

    @pytest.mark.parametrize(
        ("amounts", "code"),
        [({"pages": -1}, "invalid_units"), ({"pages": "1"}, "invalid_units"), ({"pages": 1e300}, "invalid_units"),
         ({"bananas": 1}, "unknown_meter"), ({"cost": 1}, "unknown_meter"), ([], "invalid_units")],
    )  # fmt: skip
    def test_bad_amounts(self, sql: Contract, amounts: Any, code: str) -> None:
        with sql.refused(422, code):
            sql.value("reserve_quota", tenant_id=sql.tenant, amounts=Jsonb(amounts))
        hold = reserve(sql, pages=1)
        if amounts:
            with sql.refused(422, code):
                sql.value("commit_hold", hold_id=hold, actual=Jsonb(amounts))

    def test_an_unknown_tenant_is_refused(self, sql: Contract) -> None:
        """R2.2/unknown-tenant: an unknown tenant is never unlimited."""
        with sql.refused(404, "unknown_tenant"):
            reserve(sql, tenant=uuid.uuid4(), pages=1)
        with sql.refused(404, "unknown_tenant"):
            sql.rows("resolve_limits", tenant_id=uuid.uuid4())
        with sql.refused(404, "unknown_tenant"):
            sql.value("record_usage", units=Jsonb({"pages": 1}), tenant_id=uuid.uuid4(), action="x")

    @pytest.mark.parametrize("how", [{"key": ""}, {"key": "x" * 256}, {"ttl": 0}, {"ttl": 1e9}])
    def test_bad_options(self, sql: Contract, how: dict[str, Any]) -> None:
        with sql.refused(422):
            reserve(sql, pages=1, **how)


class TestLimits:
    """R2.2/override, R2.1/monthly, R3.7/at-once: plan plus valid overrides, from one resolver."""

    def resolved(self, sql: Contract) -> dict[str, Decimal]:
        return {row["meter"]: row["amount"] for row in sql.rows("resolve_limits", tenant_id=sql.tenant)}

    def test_default_plans_exist(self, sql: Contract) -> None:
        """R3.7/plans, R3.7/at-once: four plans, changed at once."""
        assert self.resolved(sql) == {}
        for plan, tokens in (("free", 50_000), ("basic", 500_000), ("premium", 2_500_000)):
            sql.value("set_tenant_plan", tenant_id=sql.tenant, plan=plan)
            assert self.resolved(sql)["tokens"] == tokens
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="enterprise")
        assert self.resolved(sql) == {}
        with sql.refused(404, "unknown_plan"):
            sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="gold")

    def test_an_override_counts_through_its_expiry_day(self, sql: Contract, clock: Clock) -> None:
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        day = sql.one("select (penstock._now() at time zone 'utc')::date")
        sql.value("add_allowance", tenant_id=sql.tenant, meter="pages", amount=50, expires_on=day)
        assert self.resolved(sql)["pages"] == 150
        clock.advance(days=1)
        assert self.resolved(sql)["pages"] == 100

    def test_an_override_needs_value_and_expiry(self, sql: Contract) -> None:
        with sql.refused(422, "invalid_allowance"):
            sql.value("add_allowance", tenant_id=sql.tenant, meter="pages", amount=50)
        for amount in (0, -1, None):
            with sql.refused(422, "invalid_limit"):
                sql.value(
                    "add_allowance", tenant_id=sql.tenant, meter="pages", amount=amount, source="purchase"
                )

    def test_a_purchase_counts_once_per_key(self, sql: Contract) -> None:
        """R4.1/purchase: purchase and reset."""
        limit(sql, "thumbnails", 10)
        for _ in range(2):
            sql.value(
                "add_allowance",
                tenant_id=sql.tenant,
                meter="thumbnails",
                amount=5,
                source="purchase",
                key="order-1",
            )
        assert self.resolved(sql)["thumbnails"] == 15
        sql.value("commit_hold", hold_id=reserve(sql, thumbnails=15))
        assert sql.value("reset_quota", tenant_id=sql.tenant, meter="thumbnails", reason="goodwill") == 15
        assert usage(sql, "thumbnails") == (0, 0)
        reserve(sql, thumbnails=15)

    def test_a_pack_is_used_up_once(self, sql: Contract, clock: Clock) -> None:
        """A pack is not renewed: usage above a month's limit is taken from it."""
        clock.freeze(datetime(2031, 1, 10, tzinfo=UTC))
        limit(sql, "pages", 100)
        for number in (1, 2):
            sql.value(
                "add_allowance",
                tenant_id=sql.tenant,
                meter="pages",
                amount=50,
                source="purchase",
                key=f"order-{number}",
            )
        lefts = [self.resolved(sql)["pages"]]
        # The third month stays below its limit and uses nothing of the pack.
        for is_settled, pages in ((True, 130), (False, 110), (True, 90), (True, 160)):
            sql.value("commit_hold", hold_id=reserve(sql, pages=pages))
            clock.advance(days=31)
            if is_settled:
                for _ in range(3):
                    sql.execute("select penstock._settle_packs(penstock._now())")
            lefts.append(self.resolved(sql)["pages"])
        assert lefts == [200, 170, 160, 160, 100]
        with sql.refused(429, "quota_exceeded"):
            reserve(sql, pages=101)
        used = sql.execute("select amount, used from penstock.allowances order by created_at, key")
        assert [(row["amount"], row["used"]) for row in used] == [(50, 50), (50, 50)]

    def test_null_is_unlimited_and_zero_is_nothing(self, sql: Contract) -> None:
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        limit(sql, "pages", None)
        reserve(sql, pages=10**9)
        limit(sql, "files", 0)
        with sql.refused(429, "quota_exceeded"):
            reserve(sql, files=1)
        sql.value("set_limit", tenant_id=sql.tenant, meter="files", amount=None, is_own=False)
        assert self.resolved(sql)["files"] == 10

    def test_a_plan_change_in_mid_period_keeps_what_was_used(self, sql: Contract) -> None:
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="basic")
        sql.value("commit_hold", hold_id=reserve(sql, pages=500))
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        with sql.refused(429, "quota_exceeded") as refusal:
            reserve(sql, pages=1)
        assert (refusal.details["used"], refusal.details["limit"]) == (500, 100)

    def test_a_month_ends_at_midnight_utc(self, sql: Contract, clock: Clock) -> None:
        limit(sql, "pages", 10)
        start = sql.one(
            "select extract(epoch from date_trunc('month', penstock._now()) + interval '1 month' - penstock._now())"
        )
        clock.freeze()
        clock.advance(seconds=float(start) - 1)
        hold = reserve(sql, pages=10)
        with sql.refused(429):
            reserve(sql, pages=1)
        clock.advance(seconds=2)
        reserve(sql, pages=10)
        # What was set aside before midnight is used when it is committed.
        sql.value("commit_hold", hold_id=hold)
        assert usage(sql, "pages") == (10, 10)
        with sql.refused(429):
            reserve(sql, pages=1)

    def test_an_observing_limit_only_records(self, sql: Contract) -> None:
        """R2.4/observe: the limit records what it would have refused."""
        limit(sql, "pages", 1)
        sql.value("set_meter", name="pages", values=Jsonb({"mode": "observe"}))
        reserve(sql, pages=5)
        assert sql.one("select details from penstock.usage_events") == {"would_have_blocked": "pages"}
        sql.start([{"kind": "work", "units": {"pages": 3}}])
        sql.complete(sql.claim_one())
        assert sql.one("select count(*) from penstock.usage_events where details ? 'would_have_blocked'") == 2

    def test_jobs_count_only_if_they_are_limited(self, sql: Contract) -> None:
        sql.start(1)
        limit(sql, "jobs", 2)
        sql.start(1, idempotency_key="a")
        sql.start(1, idempotency_key="a")
        sql.start(1)
        with sql.refused(429, "quota_exceeded") as refusal:
            sql.start(1)
        assert (refusal.details["meter"], refusal.details["used"]) == ("jobs", 2)

    @pytest.mark.parametrize(("meter", "amount"), [("jobs", 3), ("rows", 5), ("input_bytes", 400)])
    def test_the_free_plan_limits_what_is_stored(self, sql: Contract, meter: str, amount: int) -> None:
        """B9, S76: jobs, rows and input count, however they are added."""
        sql.value("set_plan", name="free", values=Jsonb({"limits": {meter: amount}}))
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        sql.value("define_kind", name="sheet.load")
        sql.value("define_job_type", name="sheet")
        sql.value("define_bulk_type", name="sheet")
        tenant = Jsonb({"tenant_id": str(sql.tenant)})
        first = sql.start([{"kind": "work", "input": {"text": "x" * 100}}])
        [bulk] = sql.rows("open_bulk", type="sheet", source=Jsonb({}), options=tenant)
        rows = [{"number": n, "data": {"text": "x" * 20}} for n in range(3)]

        def spend() -> None:
            for _ in range(10):
                sql.add(first, [{"kind": "work", "input": {"text": "x" * 50}}])
                sql.value("add_bulk_rows", job_id=bulk["job_id"], rows=Jsonb(rows))
                sql.rows("open_job", type="report", params=Jsonb({"text": "x" * 50}), options=tenant)

        with sql.refused(429, "quota_exceeded") as refusal:
            spend()
        assert refusal.details["meter"] == meter and refusal.details["limit"] == amount
        found = sql.value("get_usage_status", tenant_id=sql.tenant)["usage"][meter]
        assert 0 < found["used"] <= amount
        assert sql.execute("select * from penstock.check_accounts()") == []

    def test_tasks_added_later_count_their_input(self, sql: Contract) -> None:
        """B9, S76"""
        sql.value("set_plan", name="free", values=Jsonb({"limits": {"input_bytes": 1000}}))
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        job = sql.start(1)
        with sql.refused(429, "quota_exceeded"):
            for _ in range(30):
                sql.add(job, [{"kind": "work", "input": {"text": "x" * 50}}])

    def test_an_unknown_plan_is_refused(self, sql: Contract) -> None:
        """S76: never unlimited by accident."""
        for wrong in ("fre", ""):
            with sql.refused(422, "invalid_setting"):
                sql.value("set_setting", name="default_plan", value=Jsonb(wrong))
        sql.execute("update penstock.settings set value = '\"fre\"' where name = 'default_plan'")
        with sql.refused(422, "unknown_plan"):
            sql.execute("insert into auth.users (id, email) values (gen_random_uuid(), 'a@b.c')")
        sql.value("set_setting", name="default_plan", value=Jsonb("unlimited"))
        sql.execute("insert into auth.users (id, email) values (gen_random_uuid(), 'a@b.c')")
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="unlimited")
        assert self.resolved(sql) == {}

    def test_a_tenant_without_a_plan_gets_the_one_of_the_setting(self, sql: Contract) -> None:
        """S76: `create_tenant` names no plan, and a plan without limits must be named."""

        def plan_of(tenant: uuid.UUID) -> str:
            return sql.one("select plan from penstock.tenants where id = %s", tenant)

        sql.value("set_setting", name="tenant_plan", value=Jsonb("free"))
        assert plan_of(sql.value("create_tenant", name="customer")) == "free"
        # The tenant of the operator's own app.
        assert plan_of(sql.value("ensure_tenant", name="own")) == "unlimited"
        with sql.refused(404, "unknown_plan"):
            sql.value("set_tenant_plan", tenant_id=sql.tenant, plan=None)
        with sql.refused(422, "invalid_plan"):
            sql.value("set_plan", name="unlimited", values=Jsonb({"limits": {"pages": 1}}))
        sql.execute("update penstock.settings set value = '\"fre\"' where name = 'tenant_plan'")
        with sql.refused(422, "unknown_plan"):
            sql.value("create_tenant", name="customer")

    def test_new_users_have_the_default_plan(self, sql: Contract) -> None:
        user = uuid.uuid4()
        sql.execute("insert into auth.users (id, email) values (%s, 'a@b.c')", user)
        assert (
            sql.one(
                "select t.plan from penstock.profiles p join penstock.tenants t on t.id = p.tenant_id where p.user_id = %s",
                user,
            )
            == "free"
        )

    @pytest.mark.parametrize(
        ("function", "arguments", "status", "code"),
        [
            ("set_limit", {"meter": "bananas", "amount": 1}, 422, "unknown_meter"),
            ("set_limit", {"meter": "pages", "amount": -1}, 422, "invalid_limit"),
            ("set_limit", {"meter": "pages", "amount": Decimal("NaN")}, 422, "invalid_limit"),
            ("add_allowance", {"meter": "bananas", "amount": 1}, 422, "unknown_meter"),
            ("reset_quota", {"meter": "bananas"}, 422, "unknown_meter"),
        ],
    )
    def test_bad_input(
        self, sql: Contract, function: str, arguments: dict[str, Any], status: int, code: str
    ) -> None:
        with sql.refused(status, code):
            sql.value(function, tenant_id=sql.tenant, **arguments)
        if code != "unknown_meter":
            with sql.refused(404, "unknown_tenant"):
                sql.value(function, tenant_id=uuid.uuid4(), meter="pages", amount=1)

    @pytest.mark.parametrize(
        "values",
        [{"limits": []}, {"limits": {"bananas": 1}}, {"limits": {"pages": -1}}, {"price": -1}, {"colour": 1}],
    )
    def test_bad_plans(self, sql: Contract, values: Any) -> None:
        with sql.refused(422):
            sql.value("set_plan", name="gold", values=Jsonb(values))
        assert sql.one("select count(*) from penstock.plans where name = 'gold'") == 0


class TestTasks:
    """B3/quotas, R4.1/wakes: a task's units are reserved with its lease and settled at its end."""

    def test_a_task_above_the_quota_waits_with_its_reason(self, sql: Contract) -> None:
        limit(sql, "pages", 10)
        job = sql.start([{"kind": "work", "units": {"pages": 4}} for _ in range(4)])
        one, _ = sql.claim(10)
        assert sql.claim(10) == []
        assert usage(sql, "pages") == (0, 8)
        third = sql.tasks(job)[2]
        assert third["waiting_for"] == "quota: pages, 2 left of 10"
        text = sql.value("explain_task", job_id=job, task_id=third["id"])["text"]
        assert text.startswith("waiting: quota: pages, 2 left of 10, about ") and text.endswith(
            ", 1st in line"
        )
        report(sql, one, pages=1)
        assert usage(sql, "pages") == (1, 7)
        sql.complete(one)
        (third,) = sql.claim(10)
        assert usage(sql, "pages") == (1, 8)
        sql.complete(third)
        assert usage(sql, "pages") == (5, 4)

    def test_success_without_a_report_commits_the_estimate(self, sql: Contract) -> None:
        sql.start([{"kind": "work", "units": {"pages": 4, "input_tokens": 10, "output_tokens": 5}}])
        sql.complete(sql.claim_one())
        assert [usage(sql, meter) for meter in ("pages", "tokens", "input_tokens")] == [
            (4, 0),
            (15, 0),
            (10, 0),
        ]
        assert sql.one("select is_estimate from penstock.usage_events")

    def test_other_ends_commit_only_reported_usage(self, sql: Contract, clock: Clock) -> None:
        limit(sql, "pages", 100)
        sql.start([{"kind": "work", "units": {"pages": 10}, "max_attempts": 1} for _ in range(4)])
        tasks = sql.claim(4)
        assert usage(sql, "pages") == (0, 40)
        for task in tasks:
            report(sql, task, pages=3)
        assert usage(sql, "pages") == (12, 28)
        sql.kill(tasks[0])
        sql.reschedule(tasks[1], 60)
        assert usage(sql, "pages") == (12, 14)
        clock.advance(seconds=31)
        sql.reclaim()
        assert usage(sql, "pages") == (12, 0)

    def test_holds_of_a_canceled_job_are_released(self, sql: Contract, clock: Clock) -> None:
        limit(sql, "pages", 10)
        job = sql.start([{"kind": "work", "units": {"pages": 5}} for _ in range(2)])
        one, two = sql.claim(2)
        sql.cancel(job)
        assert sql.complete_all([one])[0]["code"] == "canceled"
        assert usage(sql, "pages") == (0, 5)
        clock.advance(seconds=31)
        sql.reclaim()
        assert usage(sql, "pages") == (0, 0) and two

    def test_a_job_may_refuse_instead_of_waiting(self, sql: Contract) -> None:
        limit(sql, "pages", 4)
        job = sql.start(
            [{"kind": "work", "key": str(n), "units": {"pages": 4}} for n in range(3)], on_limit="refuse"
        )
        sql.complete(sql.claim_one())
        sql.claim(5)
        sql.upkeep()
        assert sql.status(job) == "failed"
        assert {row["error_code"] for row in sql.execute("select error_code from penstock.dead_letters")} == {
            "quota_exceeded"
        }
        limit(sql, "pages", 100)
        assert sql.retry(job) == 2
        sql.drain()
        assert sql.status(job) == "completed"

    @pytest.mark.parametrize("how", ["limit", "allowance", "reset", "plan", "month", "meter"])
    def test_a_waiting_task_continues_when_quota_is_free(self, sql: Contract, clock: Clock, how: str) -> None:
        sql.value("set_plan", name="tiny", values=Jsonb({"limits": {"pages": 4}}))
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="tiny")
        job = sql.start([{"kind": "work", "units": {"pages": 4}} for _ in range(3)])
        sql.drain()
        assert sql.progress(job)["succeeded"] == 1
        match how:
            case "limit":
                limit(sql, "pages", 100)
            case "allowance":
                sql.value("add_allowance", tenant_id=sql.tenant, meter="pages", amount=8, source="purchase")
            case "reset":
                for _ in range(2):
                    sql.value("reset_quota", tenant_id=sql.tenant, meter="pages")
                    sql.drain()
            case "plan":
                sql.value("set_plan", name="tiny", values=Jsonb({"limits": {"pages": None}}))
            case "month":
                for _ in range(2):
                    clock.advance(days=31)
                    sql.upkeep()
                    sql.drain()
            case _:
                sql.value("set_meter", name="pages", values=Jsonb({"mode": "observe"}))
        sql.drain()
        assert sql.status(job) == "completed"

    def test_a_tenant_over_its_quota_does_not_block_others(self, sql: Contract) -> None:
        limit(sql, "pages", 1)
        sql.start([{"kind": "work", "units": {"pages": 1}} for _ in range(2000)])
        other = sql.value("create_tenant", name="other")
        sql.start([{"kind": "work", "units": {"pages": 1}} for _ in range(5)], tenant_id=str(other))
        taken: list[Any] = []
        for _ in range(8):
            taken += sql.claim(10)
        assert sum(task["tenant_id"] == other for task in taken) == 5 and len(taken) == 6

    def test_a_retry_reserves_again(self, sql: Contract) -> None:
        limit(sql, "pages", 4)
        sql.start([{"kind": "work", "units": {"pages": 4}}])
        for _ in range(2):
            task = sql.claim_one()
            assert usage(sql, "pages") == (0, 4)
            sql.fail(task)
            assert usage(sql, "pages") == (0, 0)

    def test_usage_of_a_lost_lease_is_rejected(self, sql: Contract, clock: Clock) -> None:
        sql.start([{"kind": "work", "units": {"pages": 4}}])
        task = sql.claim_one()
        clock.advance(seconds=31)
        sql.reclaim()
        with sql.refused(410, "lease_lost"):
            report(sql, task, pages=4)
        assert usage(sql, "pages") == (0, 0)

    @pytest.mark.slow
    def test_accounts_are_exact_after_random_histories(self, sql: Contract, clock: Clock) -> None:
        dice = random.Random(3)
        limit(sql, "pages", 40)
        truth = 0
        jobs = [
            sql.start(
                [
                    {"kind": "work", "units": {"pages": dice.randint(0, 9)}, "max_attempts": 2}
                    for _ in range(20)
                ]
            )
            for _ in range(3)
        ]
        held: list[Any] = []
        for _ in range(300):
            match dice.randint(0, 7):
                case 0 | 1 | 2:
                    held += sql.claim(dice.randint(1, 5))
                case 3 if held:
                    task = held.pop(dice.randrange(len(held)))
                    if dice.random() < 0.5:
                        amount = dice.randint(0, 5)
                        report(sql, task, pages=amount)
                        truth += amount
                    else:
                        truth += sql.one(
                            "select coalesce((units ->> 'pages')::integer, 0) from penstock.tasks where id = %s",
                            task["id"],
                        )
                    sql.complete(task)
                case 4 if held:
                    sql.fail(held.pop(dice.randrange(len(held))))
                case 5 if held:
                    sql.reschedule(held.pop(dice.randrange(len(held))), dice.choice([0, 5]))
                case 6:
                    clock.advance(seconds=dice.choice([1, 10]))
                    sql.upkeep()
                case _:
                    limit(sql, "pages", dice.randint(10, 80))
            held = [task for task in held if sql.where(task) == ["leases"]]
            used, set_aside = usage(sql, "pages")
            assert used == truth and set_aside >= 0
        assert jobs


def test_one_function_computes_a_limit(sql: Contract) -> None:
    """R2.2/one-resolver: no other function reads the parts of a limit."""
    rows = sql.execute("""
        select proname as name from pg_proc where pronamespace = 'penstock'::regnamespace
          and prosrc ~ '\\m(from|join) (penstock\\.)?allowances\\M' and prosrc ~ '\\mtenant_limits\\M'""")
    assert [row["name"] for row in rows] == ["_limits"]
    rows = sql.execute("""
        select proname as name from pg_proc where pronamespace = 'penstock'::regnamespace
          and prosrc ~ '\\m(from|join) (penstock\\.)?allowances\\M' and prosrc ~ 'sum\\('""")
    # _limits calls _packs_left.
    assert sorted(row["name"] for row in rows) == ["_limits", "_packs_left"]


class TestUsage:
    """R2.1/daily: per tenant, action and UTC day."""

    def test_each_use_leaves_an_event(self, sql: Contract) -> None:
        """R3.7/events"""
        for pages in (1, 2, 2):
            sql.value("record_usage", units=Jsonb({"pages": pages}), tenant_id=sql.tenant, action="scan")
        events = sql.execute("select tenant_id, action, units from penstock.usage_events order by id")
        assert [(event["tenant_id"], event["action"], event["units"]) for event in events] == [
            (sql.tenant, "scan", {"pages": pages}) for pages in (1, 2, 2)
        ]

    def test_usage_is_counted_by_day_and_action(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        for action in ("upload", "upload", "scan"):
            sql.value(
                "record_usage", units=Jsonb({"files": 1, "bytes": 2.5}), tenant_id=sql.tenant, action=action
            )
        clock.advance(days=1)
        sql.value(
            "record_usage",
            units=Jsonb({"input_tokens": 3, "output_tokens": 4}),
            tenant_id=sql.tenant,
            action="chat",
        )
        before = sql.execute("select day, action, meter, amount from penstock.usage_days order by 1, 2, 3")
        for _ in range(2):
            sql.upkeep()
            assert (
                sql.execute("select day, action, meter, amount from penstock.usage_days order by 1, 2, 3")
                == before
            )
        assert [(row["action"], row["meter"], row["amount"]) for row in before] == [
            ("scan", "bytes", Decimal("2.5")), ("scan", "files", 1), ("upload", "bytes", 5), ("upload", "files", 2),
            ("chat", "input_tokens", 3), ("chat", "output_tokens", 4), ("chat", "tokens", 7)]  # fmt: skip
        assert sql.one("select count(*) from penstock.usage_sums where is_fresh") == 0

    def test_status(self, sql: Contract) -> None:
        sql.value("set_tenant_plan", tenant_id=sql.tenant, plan="free")
        sql.value("record_usage", units=Jsonb({"pages": 100}), tenant_id=sql.tenant, action="scan")
        status = sql.value("get_usage_status", tenant_id=sql.tenant)
        assert (status["plan"], status["over_limit"]) == ("free", True)
        assert status["usage"]["pages"]["left"] == 0 and status["usage"]["pages"]["percent"] == 100
        assert status["usage"]["files"] | {"resets_at": 0} == {
            "used": 0, "held": 0, "limit": 10, "left": 10, "percent": 0, "mode": "enforce", "period": "month", "resets_at": 0}  # fmt: skip


@pytest.mark.slow
def test_the_last_unit_is_reserved_once(sessions: Sessions) -> None:
    """R2.3/no-overshoot: many sessions compete for the last unit repeatedly; one gets it."""
    first = sessions.open()
    tenant = first.tenant
    limit(first, "pages", 0)
    callers = [sessions.open() for _ in range(8)]

    def attempt(sql: Contract) -> uuid.UUID | None:
        try:
            return reserve(sql, pages=1)
        except psycopg.Error as error:
            assert error.sqlstate == "PT429"
            return None

    for n in range(1, 26):
        limit(first, "pages", n)
        won = [
            hold
            for call in [Call(lambda sql=sql: attempt(sql)) for sql in callers]
            if (hold := call.result())
        ]
        assert len(won) == 1
        first.value("commit_hold", hold_id=won[0])
    assert usage(first, "pages", tenant) == (25, 0)


def test_two_starts_count_without_a_deadlock(sessions: Sessions) -> None:
    """An opened bulk job that gets rows, beside a start: both lock accounts in one order."""
    one, two = sessions.open(), sessions.open()
    one.value("define_kind", name="sheet.load")
    one.value("define_job_type", name="sheet")
    one.value("define_bulk_type", name="sheet")
    one.value("set_tenant_plan", tenant_id=one.tenant, plan="free")
    rows = Jsonb([{"number": 1, "data": {}}])
    with one.connection.transaction():
        [bulk] = one.rows("open_bulk", type="sheet", source=Jsonb({}),
                          options=Jsonb({"tenant_id": str(one.tenant)}))  # fmt: skip
        call = Call(lambda: two.start(3))
        sessions.wait_until_blocked(two, call)
        one.value("add_bulk_rows", job_id=bulk["job_id"], rows=rows)
    call.result()
    used = one.value("get_usage_status", tenant_id=one.tenant)["usage"]
    assert (used["jobs"]["used"], used["rows"]["used"]) == (2, 4)
