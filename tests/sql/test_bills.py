"""Estimates of attempts without a report, bills of providers, and the prices that a tenant sets for itself."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from decimal import Decimal as D
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract
from .test_access import acting
from .test_costs import cost, price
from .test_limits import NAME, calls, provider
from .test_operations import begin, settle, submit
from .test_quotas import accounts_are_right as accounts_are_right
from .test_quotas import report


def estimates(sql: Contract) -> list[D]:
    rows = sql.execute("select base_amount from penstock.cost_entries where is_estimate order by id")
    return [row["base_amount"] for row in rows]


def lose(sql: Contract, clock: Clock) -> None:
    clock.advance(minutes=10)
    sql.value("reclaim_stale_tasks")


def bill(sql: Contract, *lines: tuple[str, str, Any], name: str = "test", currency: str = "USD") -> int:
    given = [
        {"day": day, "item": item, "amount": str(amount), "currency": currency} for day, item, amount in lines
    ]
    return sql.value("import_bill", provider=name, lines=Jsonb(given))


def difference(sql: Contract, month: str = "2026-03-01") -> dict[str, Any]:
    (row,) = sql.rows("cost_differences", month=month)
    return row


@pytest.fixture
def priced(sql: Contract, clock: Clock) -> Contract:
    clock.freeze()
    provider(sql)
    price(sql, "requests", 2)
    return sql


class TestUnreported:
    def test_a_lost_attempt_books_its_estimate(self, priced: Contract, clock: Clock) -> None:
        """R0.11/lost-attempts: the cost line of a lost or timed-out attempt is flagged and can be corrected."""
        sql = priced
        job = sql.start(calls(1))
        sql.claim_one()
        lose(sql, clock)
        assert (estimates(sql), cost(sql, job)) == ([2], 2)
        sql.fail(sql.claim_one(), "too slow", error_code="timeout")
        assert (estimates(sql), cost(sql, job)) == ([2, 2], 4)
        line = sql.one("select min(id) from penstock.cost_entries")
        sql.value(
            "record_cost",
            cost_type="inference",
            amount=D(-2),
            options=Jsonb({"corrects": line, "reason": "not billed"}),
        )
        assert cost(sql, job) == 2
        assert sql.one("select count(*) from penstock.usage_events") == 0

    def test_a_lost_answer_books_its_estimate(self, priced: Contract) -> None:
        """The provider took the request, but its answer did not arrive: each attempt may be billed."""
        sql = priced
        job = sql.start(calls(1))
        sql.fail(sql.claim_one(), "read timeout", error_code="answer_lost")
        assert (estimates(sql), cost(sql, job)) == ([2], 2)
        sql.fail(sql.claim_one(), "connection refused", error_code="network_error")
        assert (estimates(sql), cost(sql, job)) == ([2], 2)
        assert sql.execute("select * from penstock.check_accounts()") == []

    def test_a_lost_answer_to_a_submission_books_its_estimate(self, priced: Contract) -> None:
        """The next attempt submits again, and pays for that when it ends; the first may be billed as well."""
        sql = priced
        job = sql.start(calls(1))
        task = sql.claim_one()
        operation = begin(sql, task)
        sql.fail(task, "read timeout", error_code="answer_lost")
        assert (estimates(sql), cost(sql, job)) == ([2], 2)
        task = sql.claim_one()
        again = begin(sql, task)
        assert again["id"] == operation["id"]
        submit(sql, task, again)
        sql.fail(task, "a check without an answer", error_code="answer_lost")
        assert estimates(sql) == [2], "what was submitted is charged when it ends"
        task = sql.claim_one()
        settle(sql, task, again, "completed")
        sql.complete(task)
        assert cost(sql, job) == 4
        assert sql.execute("select * from penstock.check_accounts()") == []

    def test_other_failures_and_reports_book_no_estimate(self, priced: Contract, clock: Clock) -> None:
        sql = priced
        job = sql.start(calls(3))
        sql.fail(sql.claim_one(), "refused", permanent=True)
        task = sql.claim_one()
        report(sql, task, requests=1)
        lose(sql, clock)
        assert (estimates(sql), cost(sql, job)) == ([], 2)

    def test_a_success_without_a_report_is_flagged(self, priced: Contract) -> None:
        priced.start(calls(1))
        priced.complete(priced.claim_one())
        assert estimates(priced) == [2]

    def test_tokens_that_the_task_does_not_name_are_estimated(self, sql: Contract, clock: Clock) -> None:
        provider(sql, default_tokens=500)
        price(sql, "input_tokens", 1, per=1000)
        sql.start(calls(1))
        sql.claim_one()
        lose(sql, clock)
        assert estimates(sql) == [D("0.5")]

    def test_a_task_without_a_provider_books_nothing(self, sql: Contract, clock: Clock) -> None:
        sql.start()
        sql.claim_one()
        lose(sql, clock)
        assert estimates(sql) == []

    def test_a_canceled_job_pays_for_the_worker_that_died(self, priced: Contract, clock: Clock) -> None:
        job = priced.start(calls(1))
        priced.claim_one()
        priced.cancel(job)
        lose(priced, clock)
        assert estimates(priced) == [2]

    def test_deaths_stay_within_the_budget(self, priced: Contract, clock: Clock) -> None:
        """R0.11/budget-safe: what dead workers may have spent counts, so the job pauses before it spends more."""
        sql = priced
        job = sql.start(calls(10), budget=9)
        for claimed in (4, 0):
            assert len(sql.claim(10)) == claimed
            lose(sql, clock)
            sql.rows("upkeep")
        assert cost(sql, job) == 8 == sum(estimates(sql))
        assert (sql.status(job), sql.job(job)["status_reason"][:7]) == ("paused", "budget:")


class TestBills:
    @pytest.fixture
    def lost(self, sql: Contract, clock: Clock) -> Contract:
        """March 2026: two attempts of 2 USD were reported, two were lost."""
        clock.freeze(datetime(2026, 3, 10, 12, tzinfo=UTC))
        provider(sql)
        price(sql, "requests", 2)
        sql.start(calls(4))
        for _ in range(2):
            task = sql.claim_one()
            report(sql, task, requests=1)
            sql.complete(task)
        sql.claim(2)
        lose(sql, clock)
        return sql

    def test_the_report_compares_the_ledger_with_the_bill(self, lost: Contract) -> None:
        assert difference(lost) == {
            "provider": "test",
            "booked": 8,
            "estimated": 4,
            "billed": None,
            "difference": None,
        }
        assert bill(lost, ("2026-03-10", "gpt", 3), ("2026-03-10", "gpt", 2), ("2026-04-01", "gpt", 7)) == 2
        assert difference(lost) == {
            "provider": "test",
            "booked": 8,
            "estimated": 4,
            "billed": 5,
            "difference": 3,
        }

    def test_estimates_shrink_to_the_bill(self, lost: Contract) -> None:
        bill(lost, ("2026-03-10", "gpt", 5))
        after = lost.value("reconcile_costs", provider="test", month="2026-03-31")
        assert (after["booked"], after["estimated"], after["difference"], after["corrections"]) == (
            5,
            1,
            0,
            2,
        )
        assert lost.value("reconcile_costs", provider="test", month="2026-03-31")["corrections"] == 0
        assert lost.one("select sum(base_amount) from penstock.cost_entries") == 5
        assert lost.execute("select * from penstock.check_accounts()") == []

    def test_reported_costs_are_never_changed(self, lost: Contract) -> None:
        bill(lost, ("2026-03-10", "gpt", 1))
        after = lost.value("reconcile_costs", provider="test", month="2026-03-01")
        assert (after["booked"], after["estimated"], after["difference"]) == (4, 0, 3)

    def test_a_larger_bill_changes_nothing(self, lost: Contract) -> None:
        bill(lost, ("2026-03-10", "gpt", 50))
        after = lost.value("reconcile_costs", provider="test", month="2026-03-01")
        assert (after["booked"], after["difference"], after["corrections"]) == (8, -42, 0)

    def test_an_import_replaces_its_days(self, lost: Contract) -> None:
        bill(lost, ("2026-03-10", "gpt", 5), ("2026-03-11", "gpt", 1))
        bill(lost, ("2026-03-10", "tts", 2))
        assert difference(lost)["billed"] == 3
        lost.value("set_exchange_rate", currency="EUR", rate=D(2), valid_from="2026-01-01T00:00:00Z")
        bill(lost, ("2026-03-10", "tts", 2), currency="EUR")
        assert difference(lost)["billed"] == 5

    @pytest.mark.parametrize(
        "line",
        [
            {}, {"day": "soon", "amount": 1, "currency": "USD"}, {"day": "2026-03-01", "currency": "USD"},
            {"day": "2026-03-01", "amount": "NaN", "currency": "USD"}, {"day": "2026-03-01", "amount": 1, "currency": "XXX"},
            {"day": "2026-03-01", "amount": 1}, {"day": "2026-03-01", "amount": 1, "currency": "USD", "item": "x" * 201},
            {"day": "infinity", "amount": 1, "currency": "USD"},
        ],
    )  # fmt: skip
    def test_bad_lines_are_rejected(self, sql: Contract, line: dict[str, Any]) -> None:
        good = {"day": "2026-03-01", "amount": 1, "currency": "USD"}
        with sql.refused(422, "invalid_bill"):
            sql.value("import_bill", provider="test", lines=Jsonb([good, line]))
        assert sql.one("select count(*) from penstock.bill_lines") == 0

    def test_bad_calls_are_rejected(self, sql: Contract) -> None:
        for lines in ([], {}, None):
            with sql.refused(422, "invalid_bill"):
                sql.value("import_bill", provider="test", lines=Jsonb(lines))
        with sql.refused(422, "invalid_provider"):
            bill(sql, ("2026-03-10", "gpt", 5), name="openai/gpt")
        with sql.refused(409, "no_bill"):
            sql.value("reconcile_costs", provider="test", month="2026-03-01")


class TestOwnPrices:
    """R0.5/tenant-wins: an owner sets the prices of providers that the tenant pays, and of no others."""

    def give_key(self, sql: Contract, tenant: uuid.UUID | None = None) -> None:
        sql.execute(
            "insert into penstock.provider_keys (tenant_id, provider, host, sealed, wrapped_key, master_id, "
            "created_by, created_at) values (%s, %s, 'test.example', repeat('x', 40)::bytea, "
            "repeat('x', 40)::bytea, repeat('0', 16), 'test', now())",
            tenant or sql.tenant,
            NAME.partition("/")[0],
        )

    def price_as(self, sql: Contract, role: str) -> int:
        user = uuid.uuid4()
        sql.execute("insert into auth.users (id, email) values (%s, %s)", user, f"{user}@test")
        sql.execute(
            "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, %s)",
            sql.tenant,
            user,
            role,
        )
        with acting(sql, user):
            return sql.value("set_own_price", provider=NAME, meter="images", amount=3, tenant_id=sql.tenant)

    def test_an_owner_sets_the_price_of_an_own_provider(self, sql: Contract) -> None:
        sql.value("set_provider", name=NAME, tenant_id=sql.tenant)
        self.give_key(sql)
        self.price_as(sql, "owner")
        rows = sql.execute("select tenant_id, amount from penstock.prices where meter = 'images'")
        assert rows == [{"tenant_id": sql.tenant, "amount": 3}]

    def test_shared_providers_and_other_roles_are_refused(self, sql: Contract) -> None:
        provider(sql)
        with sql.refused(422, "unknown_provider"):
            self.price_as(sql, "owner")
        # Another tenant pays this provider with its own key.
        other = sql.one("select penstock.create_tenant('other')")
        sql.value("set_provider", name=NAME, tenant_id=other)
        self.give_key(sql, other)
        with sql.refused(422, "unknown_provider"):
            self.price_as(sql, "owner")
        sql.value("set_provider", name=NAME, tenant_id=sql.tenant)
        # Limits of its own, but calls with the operator's key.
        with sql.refused(422, "unknown_provider"):
            self.price_as(sql, "owner")
        self.give_key(sql)
        for role in ("admin", "member", "viewer"):
            with sql.refused(403, "forbidden"):
                self.price_as(sql, role)
        assert sql.one("select count(*) from penstock.prices where meter = 'images'") == 0
