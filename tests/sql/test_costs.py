"""Prices, the ledger, budgets and forecasts: exact sums, and no budget is exceeded."""

from __future__ import annotations

import random
import uuid
from decimal import Decimal as D
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract
from .test_limits import NAME, calls, provider
from .test_quotas import accounts_are_right as accounts_are_right
from .test_quotas import limit, report


def price(sql: Contract, meter: str, amount: Any, name: str = NAME, **options: Any) -> int:
    return sql.value("set_price", provider=name, meter=meter, amount=amount, options=Jsonb(options))


def ledger(sql: Contract) -> list[tuple[Any, ...]]:
    rows = sql.execute(
        "select cost_type, meter, unit_count, amount, currency, base_amount from penstock.cost_entries order by id"
    )
    return [tuple(row.values()) for row in rows]


def cost(sql: Contract, job: uuid.UUID) -> D:
    return sql.one("select cost from penstock.job_costs where job_id = %s", job) or D(0)


class TestPrices:
    """R0.5/dated, R0.5/tenant-wins: dated, by variant, by tenant."""

    def test_a_new_price_does_not_change_earlier_costs(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql)
        price(sql, "requests", 1)
        price(sql, "requests", 5, valid_from="2099-01-01T00:00:00Z")
        sql.start(calls(3))
        sql.complete(sql.claim_one())
        clock.advance(seconds=10)
        price(sql, "requests", 2)
        sql.complete(sql.claim_one())
        assert [line[3] for line in ledger(sql)] == [1, 2]
        rows = sql.execute(
            "select amount, is_current from penstock.price_list where provider = %s order by valid_from", NAME
        )
        assert [tuple(row.values()) for row in rows] == [(1, False), (2, True), (5, False)]

    def test_costs_are_exact_to_the_last_digit(self, sql: Contract) -> None:
        """R0.4/exact: 0.15 per million is not computed in floats."""
        provider(sql)
        price(sql, "input_tokens", D("0.15"), per=1_000_000)
        price(sql, "output_tokens", D("0.6"), per=1_000_000)
        sql.start(calls(1))
        task = sql.claim_one()
        report(sql, task, input_tokens=1234567, output_tokens=7)
        sql.complete(task)
        assert {line[1]: line[3] for line in ledger(sql)} == {
            "input_tokens": D("0.18518505"),
            "output_tokens": D("0.0000042"),
        }

    def test_a_tenants_price_and_a_variant_win(self, sql: Contract) -> None:
        provider(sql)
        price(sql, "images", 4)
        price(sql, "images", 2, variant="batch")
        sql.start(calls(1))
        task = sql.claim_one()
        for options in ({}, {"variant": "batch"}, {"variant": "cached"}):
            sql.value(
                "record_usage",
                units=Jsonb({"images": 1}),
                task_id=task["id"],
                worker_id="w1",
                lease=task["lease"],
                options=Jsonb(options),
            )
        price(sql, "images", 3, tenant_id=str(sql.tenant))
        report(sql, task, images=1)
        assert [line[3] for line in ledger(sql)] == [4, 2, 4, 3]

    def test_another_currency(self, sql: Contract) -> None:
        provider(sql)
        with sql.refused(422, "unknown_currency"):
            price(sql, "images", 1, currency="EUR")
        sql.value("set_exchange_rate", currency="EUR", rate=D("1.25"))
        price(sql, "images", 4, currency="EUR")
        sql.start(calls(1, units={"images": 2}))
        sql.complete(sql.claim_one())
        assert ledger(sql)[0][3:] == (8, "EUR", 10)

    @pytest.mark.parametrize(
        ("meter", "amount", "options", "code"),
        [
            ("bananas", 1, {}, "unknown_meter"), ("cost", 1, {}, "unknown_meter"), ("images", -1, {}, "invalid_price"),
            ("images", D("NaN"), {}, "invalid_price"), ("images", 1, {"per": 7}, "invalid_price"),
            ("images", 1, {"valid_from": "soon"}, "invalid_price"), ("images", 1, {"valid_from": "infinity"}, "invalid_time"),
            ("images", 1, {"currency": "ZZZ"}, "unknown_currency"), ("images", 1, {"variant": "No Way"}, "invalid_price"),
            ("images", 1, {"colour": "red"}, "unknown_field"), ("images", 1, {"tenant_id": "me"}, "invalid_price"),
        ],
    )  # fmt: skip
    def test_bad_prices(
        self, sql: Contract, meter: str, amount: Any, options: dict[str, Any], code: str
    ) -> None:
        provider(sql)
        with sql.refused(422, code):
            price(sql, meter, amount, **options)
        with sql.refused(422, "unknown_provider"):
            price(sql, "images", 1, name="no/such")

    def test_two_prices_cannot_start_at_the_same_time(self, sql: Contract) -> None:
        provider(sql)
        price(sql, "images", 1, valid_from="2026-01-01T00:00:00Z")
        with sql.refused(409, "price_exists"):
            price(sql, "images", 2, valid_from="2026-01-01T00:00:00Z")

    @pytest.mark.parametrize(
        ("currency", "rate"), [("USD", 1), ("euro", 1), (None, 1), ("EUR", 0), ("EUR", -1), ("EUR", D("NaN"))]
    )
    def test_bad_rates(self, sql: Contract, currency: Any, rate: Any) -> None:
        with sql.refused(422):
            sql.value("set_exchange_rate", currency=currency, rate=rate)

    def test_comparison(self, sql: Contract, clock: Clock) -> None:
        """R0.4/rate-matrix: the rate-comparison matrix."""
        for name, amount in (("a/x", 3), ("b/x", 1), ("c/x", 2)):
            provider(sql, name)
            price(sql, "seconds", amount, name)
        clock.advance(seconds=1)
        price(sql, "seconds", None, "c/x")
        rows = sql.execute(
            "select provider, base_amount, place from penstock.rate_comparison where meter = 'seconds' order by place"
        )
        assert [tuple(row.values()) for row in rows] == [("b/x", 1, 1), ("a/x", 3, 2)]


class TestLedger:
    """R0.4/append-only, R0.4/rollups, R0.4/currencies: append-only, only the service writes, corrections are lines."""

    def test_any_cost_can_be_recorded(self, sql: Contract) -> None:
        job = sql.start([{"kind": "work"}])
        task = sql.claim_one()
        how = {"task_id": task["id"], "worker_id": "w1", "lease": task["lease"]}
        first = sql.value(
            "record_cost",
            cost_type="render",
            amount=D("0.000001"),
            **how,
            options=Jsonb({"unit_count": 3, "meter": "seconds", "key": "a"}),
        )
        assert (
            sql.value(
                "record_cost", cost_type="render", amount=D("0.000001"), **how, options=Jsonb({"key": "a"})
            )
            == first
        )
        with sql.refused(409, "idempotency_key_reused"):
            sql.value("record_cost", cost_type="render", amount=2, **how, options=Jsonb({"key": "a"}))
        sql.complete(task)
        sql.value(
            "record_cost",
            cost_type="storage",
            amount=5,
            tenant_id=sql.tenant,
            options=Jsonb({"job_id": str(job)}),
        )
        assert cost(sql, job) == D("5.000001")
        sql.value(
            "record_cost",
            cost_type="render",
            amount=D("-0.000001"),
            options=Jsonb({"corrects": first, "reason": "was free"}),
        )
        assert cost(sql, job) == 5
        with sql.refused(410, "lease_lost"):
            sql.value("record_cost", cost_type="render", amount=1, **how)

    def test_a_line_says_what_was_used_when_where_and_for_whom(self, sql: Contract, clock: Clock) -> None:
        """R0.4/fields: cost type, amount, currency, unit count, usage window, provider, job, task and tenant."""
        clock.freeze()
        provider(sql)
        price(sql, "seconds", D("0.5"), cost_type="render")
        job = sql.start([{**calls(1)[0], "units": {"seconds": 9}}])
        clock.advance(seconds=40)
        task = sql.claim_one()
        began = clock.now()
        clock.advance(seconds=30)
        report(sql, task, seconds=4)
        [line] = sql.execute("select * from penstock.cost_entries")
        assert {name: line[name] for name in ("tenant_id", "job_id", "task_id", "lease", "provider")} == {
            "tenant_id": sql.tenant, "job_id": job, "task_id": task["id"], "lease": task["lease"],
            "provider": NAME,
        }  # fmt: skip
        assert (line["cost_type"], line["meter"], line["unit_count"]) == ("render", "seconds", 4)
        assert (line["amount"], line["currency"]) == (2, "USD")
        assert (line["started_at"], line["ended_at"]) == (began, clock.now())

    def test_a_correction_uses_the_rate_of_its_day(self, sql: Contract, clock: Clock) -> None:
        """At the rate of the entry's day, and at most its amount."""
        clock.freeze()
        sql.value("set_exchange_rate", currency="EUR", rate=D("1.1"))
        line = sql.value("record_cost", cost_type="render", amount=3, currency="EUR", tenant_id=sql.tenant)
        clock.advance(days=1)
        sql.value("set_exchange_rate", currency="EUR", rate=2)
        for amount, options in ((D("-3.1"), {"corrects": line}), (-1, {"corrects": line, "reason": "x"})):
            with sql.refused(422, "invalid_cost"):
                sql.value(
                    "record_cost",
                    cost_type="render",
                    amount=amount,
                    currency="EUR" if amount < -3 else "USD",
                    options=Jsonb(options),
                )
        sql.value("record_cost", cost_type="render", amount=-3, options=Jsonb({"corrects": line}))
        assert sql.one("select sum(base_amount) from penstock.cost_entries") == 0
        with sql.refused(422, "invalid_cost"):
            sql.value("record_cost", cost_type="render", amount=-1, options=Jsonb({"corrects": line}))

    def test_ledger_lines_cannot_be_changed(self, sql: Contract) -> None:
        sql.value("record_cost", cost_type="storage", amount=5, tenant_id=sql.tenant)
        for statement in ("update penstock.cost_entries set amount = 0", "delete from penstock.cost_entries"):
            with sql.refused(409, "append_only"):
                sql.execute(statement)

    @pytest.mark.parametrize(
        ("arguments", "status", "code"),
        [
            ({"amount": -1}, 422, "invalid_cost"), ({"amount": D("NaN")}, 422, "invalid_cost"), ({"amount": None}, 422, "invalid_cost"),
            ({"amount": 10**13}, 422, "invalid_cost"), ({"cost_type": "No Type"}, 422, "invalid_cost"), ({"cost_type": None}, 422, "invalid_cost"),
            ({"currency": "XYZ"}, 422, "unknown_currency"), ({"tenant_id": uuid.uuid4()}, 404, "unknown_tenant"),
            ({"options": Jsonb({"corrects": 999})}, 404, "unknown_cost"), ({"options": Jsonb({"job_id": str(uuid.uuid4())})}, 404, "unknown_job"),
            ({"options": Jsonb({"unit_count": -1})}, 422, "invalid_cost"), ({"options": Jsonb({"unit_count": "x"})}, 422, "invalid_cost"),
            ({"options": Jsonb({"colour": 1})}, 422, "unknown_field"),
        ],
    )  # fmt: skip
    def test_bad_costs(self, sql: Contract, arguments: dict[str, Any], status: int, code: str) -> None:
        with sql.refused(status, code):
            sql.value(
                "record_cost", **{"cost_type": "render", "amount": 1, "tenant_id": sql.tenant, **arguments}
            )
        assert ledger(sql) == []

    def test_rollups_stay_the_sum(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        dice = random.Random(1)
        for n in range(60):
            sql.value("record_cost", cost_type=dice.choice(["inference", "render"]), amount=D(dice.randint(0, 999)) / 1000,
                      tenant_id=sql.tenant, options=Jsonb({"provider": dice.choice(["a/x", "b/x"])}))  # fmt: skip
            if n % 10 == 0:
                clock.advance(hours=9)
            if n % 7 == 0:
                sql.upkeep()
        truth = """select (at at time zone 'utc')::date as day, provider, cost_type, sum(base_amount) as amount, count(*) as lines
            from penstock.cost_entries group by 1, 2, 3 order by 1, 2, 3"""
        for view in ("cost_days", "cost_totals"):
            assert sql.execute(
                f"select day, provider, cost_type, amount, lines from penstock.{view} order by 1, 2, 3"
            ) == sql.execute(truth)


class TestBudgets:
    """R0.6/budget: each task reserves its cost, so a job pauses before it exceeds its budget."""

    @pytest.fixture(autouse=True)
    def priced(self, sql: Contract) -> None:
        provider(sql)
        price(sql, "tokens", D("0.001"))

    def test_pauses_before_it_overspends(self, sql: Contract) -> None:
        job = sql.start(calls(10, units={"tokens": 1000}), budget=3.5)
        tasks = sql.claim(10)
        assert len(tasks) == 3 and sql.claim(10) == []
        waiting = sql.tasks(job)[-1]
        assert sql.value("explain_task", job_id=job, task_id=waiting["id"])["text"].startswith(
            "waiting: budget: 0.5 left of 3.5, needs up to 1"
        )
        for task in tasks:
            report(sql, task, tokens=100)
            sql.complete(task)
        assert cost(sql, job) == D("0.3")
        while tasks := sql.claim(10):
            sql.complete_all(tasks)
            assert cost(sql, job) <= D("3.5")
        sql.upkeep()
        found = sql.job(job)
        assert (found["status"], found["status_reason"]) == (
            "paused",
            "budget: 3.3 of 3.5 USD spent, and the next task does not fit",
        )
        sql.value("set_budget", job_id=job, amount=100)
        sql.drain()
        assert sql.status(job) == "completed" and cost(sql, job) == D("7.3")

    def test_a_job_continues_while_its_budget_lasts(self, sql: Contract) -> None:
        """Queued tasks have reserved nothing; that does not pause the job."""
        job = sql.start(calls(20, units={"tokens": 1000}), budget=3.5)
        tasks = sql.claim(10)
        assert len(tasks) == 3 and sql.claim(10) == []
        for task in tasks:
            report(sql, task, tokens=100)
            sql.complete(task)
        sql.upkeep()
        assert sql.status(job) == "running" and cost(sql, job) == D("0.3")
        assert sql.drain() == 3
        sql.upkeep()
        assert sql.job(job)["status_reason"].startswith("budget: 3.3 of 3.5 USD spent")

    def test_tasks_continue_after_a_budget_is_raised_during_a_pause(self, sql: Contract) -> None:
        """A person pauses the job, raises the budget and resumes; its parked tasks must notice."""
        job = sql.start(calls(3, units={"tokens": 1000}), budget=1)
        sql.drain()
        sql.pause(job, "by hand")
        sql.value("set_budget", job_id=job, amount=10)
        sql.resume(job)
        # Upkeep looks at some tenants at a time, and may not have come to this one.
        sql.execute("select penstock._pause_spent_jobs()")
        assert sql.status(job) == "running"
        assert sql.drain() == 2 and sql.status(job) == "completed"

    def test_a_new_budget_resumes_only_jobs_that_the_budget_paused(self, sql: Contract) -> None:
        """A job that a person paused stays paused, even with a reason that mentions a budget."""
        job = sql.start(calls(3, units={"tokens": 1000}), budget=10)
        sql.pause(job, "budget: to be discussed")
        sql.value("set_budget", job_id=job, amount=20)
        assert sql.status(job) == "paused"

    def test_removing_a_budget_resumes_the_job(self, sql: Contract) -> None:
        job = sql.start(calls(3, units={"tokens": 1000}), budget=0)
        assert sql.claim(10) == []
        sql.upkeep()
        assert sql.status(job) == "paused"
        sql.value("set_budget", job_id=job, amount=None)
        sql.upkeep()
        sql.drain()
        assert sql.status(job) == "completed"

    def test_a_monthly_cost_limit_of_a_tenant_holds(self, sql: Contract, clock: Clock) -> None:
        limit(sql, "cost", D("2.5"))
        job = sql.start(calls(5, units={"tokens": 1000}))
        sql.drain()
        assert cost(sql, job) == 2
        clock.advance(days=31)
        sql.upkeep()
        sql.drain()
        assert cost(sql, job) == 4

    def test_a_budgeted_task_without_a_price_waits(self, sql: Contract, clock: Clock) -> None:
        provider(sql, "free/lunch")
        with sql.refused(422, "no_price", field="tasks[0].provider"):
            sql.start(calls(1, "free/lunch"), budget=5)
        job = sql.start(calls(2, units={"tokens": 10}), budget=5)
        clock.advance(seconds=1)
        price(sql, "tokens", None)
        assert sql.claim(1) == []
        assert sql.value("explain_task", job_id=job, task_id=sql.tasks(job)[0]["id"])["waits_for"] == "price"
        clock.advance(seconds=1)
        price(sql, "tokens", 1)
        sql.upkeep()
        assert sql.claim(2) == [], "ten tokens now cost more than there is"
        sql.value("set_budget", job_id=job, amount=100)
        assert sql.drain() == 2

    @pytest.mark.parametrize("budget", [-1, "much", 1e300, [5]])
    def test_bad_budgets(self, sql: Contract, budget: Any) -> None:
        with sql.refused(422, "invalid_options", field="options.budget"):
            sql.start(1, budget=budget)
        job = sql.start(1)
        with sql.refused(422, "invalid_budget"):
            sql.value("set_budget", job_id=job, amount=-1)
        sql.cancel(job)
        with sql.refused(409, "job_ended"):
            sql.value("set_budget", job_id=job, amount=1)

    def test_usage_reports_do_not_read_paused_jobs(self, sql: Contract) -> None:
        """A usage report wakes parked tasks; it must not read all paused jobs."""
        job = sql.start(calls(2, units={"tokens": 1000}), budget=0)
        sql.claim(5)
        sql.upkeep()
        assert sql.status(job) == "paused"
        sql.execute("update penstock.jobs set budget = 100 where id = %s", job)
        sql.value("record_usage", units=Jsonb({"requests": 1}), tenant_id=sql.tenant, action="test")
        sql.value("_wake_missed")
        assert [sql.where(task) for task in sql.tasks(job)] == [["parked"], ["parked"]]
        sql.value("set_budget", job_id=job, amount=50)
        assert [sql.where(task) for task in sql.tasks(job)] == [["ready"], ["ready"]]

    def test_another_job_is_not_paused(self, sql: Contract) -> None:
        sql.start(calls(500, units={"tokens": 1000}), budget=1)
        other = sql.start(calls(3, units={"tokens": 1000}))
        for _ in range(30):
            sql.complete_all(tasks) if (tasks := sql.claim(10)) else None
        assert sql.status(other) == "completed"


class TestForecast:
    """B2/before, R0.6/forecast: cost and end of a job before it starts."""

    def forecast(self, sql: Contract, tasks: list[Any], **options: Any) -> dict[str, Any]:
        return sql.value(
            "forecast_job",
            type="t",
            tasks=Jsonb(tasks),
            options=Jsonb({"tenant_id": str(sql.tenant), **options}),
        )

    def test_a_forecast_lists_cost_usage_and_duration(self, sql: Contract) -> None:
        provider(sql, requests_per_minute=10)
        price(sql, "requests", D("0.5"))
        limit(sql, "requests", 20)
        found = self.forecast(sql, calls(30), budget=10)
        assert found["tasks"] == 30 and found["units"]["requests"] == 30
        assert (found["cost"]["expected"], found["cost"]["high"], found["cost"]["currency"]) == (
            15,
            15,
            "USD",
        )
        assert found["quota"] == [{"meter": "requests", "needs": 30, "left": 20, "limit": 20, "fits": False}]
        assert found["budget"] == {"amount": 10, "fits": False}
        assert (
            found["finish"]["seconds"] is None
            and found["finish"]["reason"] == "no task of this kind has ended yet"
        )
        assert sql.one("select count(*) from penstock.jobs") == 0

    def test_a_forecast_uses_past_durations(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=10)
        price(sql, "tokens", D("0.001"))
        for n in range(20):
            sql.start(calls(1, units={"tokens": 1000}))
            task = sql.claim_one()
            clock.advance(seconds=5)
            report(sql, task, tokens=400 + 20 * (n % 5))
            sql.complete(task)
            clock.advance(seconds=10)
        clock.advance(minutes=5)
        found = self.forecast(sql, calls(50, units={"tokens": 1000}))
        assert 20 < found["cost"]["low"] < found["cost"]["expected"] == 22 < found["cost"]["high"] < 24
        # Ten at once, and ten more with each window.
        assert (
            found["finish"]["bottleneck"] == "test/model requests per minute"
            or found["finish"]["workers"] == 1
        )

    def test_a_forecast_expects_running_tasks_of_others_to_end(self, sql: Contract, clock: Clock) -> None:
        """A new job is not forecast to wait forever for slots that others use now."""
        clock.freeze()
        provider(sql, concurrency=2)
        sql.start(calls(5))
        (first, _) = sql.claim(2)
        clock.advance(seconds=4)
        sql.complete(first)
        sql.claim(1)
        found = self.forecast(sql, calls(4))
        assert 4 < found["finish"]["seconds"] < 40

    def test_of_a_running_job(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=10)
        job = sql.start(calls(30))
        (first, *_) = sql.claim(10)
        clock.advance(seconds=6)
        sql.complete(first)
        found = sql.value("forecast", job_id=job)
        assert found["tasks"] == 29 and found["finish"]["seconds"] > 60
        sql.cancel(job)
        with sql.refused(409, "job_ended"):
            sql.value("forecast", job_id=job)

    def test_bad_input(self, sql: Contract) -> None:
        with sql.refused(422, "unknown_provider"):
            self.forecast(sql, calls(1, "no/such"))
        with sql.refused(422, "no_tasks"):
            self.forecast(sql, [])
        with sql.refused(422, "invalid_options"):
            self.forecast(sql, calls(1, "openai/gpt-4o-mini"), budget="much")


def test_types_are_kept(sql: Contract) -> None:
    """Money comes back as decimals, not floats."""
    assert isinstance(sql.value("record_cost", cost_type="x", amount=D("0.1"), tenant_id=sql.tenant), int)
    assert ledger(sql)[0][3] == D("0.1") and psycopg.__version__
