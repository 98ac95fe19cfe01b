"""Billing: events of Stripe in any order end in Stripe's own state, and plans end at their second."""

from __future__ import annotations

import itertools
import os
import random
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from penstock.billing.states import moment, subscription_values
from penstock.simulator.subscriptions import DAY, PERIOD, Account
from penstock.testing import Clock

from .conftest import Contract

GRACE = 30 * DAY
BEFORE = "unlimited"  # the plan of tenants in tests
PRICES = {"price_basic": "basic", "price_premium": "premium"}
LIVE = ("active", "trialing", "past_due")


class Site:
    """A tenant, and an account at Stripe whose clock the test moves."""

    def __init__(self, sql: Contract) -> None:
        self.sql = sql
        self.tenant: uuid.UUID = sql.value("create_tenant", name="customer")
        self.start: datetime = sql.one("select date_trunc('second', penstock._now())")
        self.account = Account(self.start.timestamp)
        self.customer: str = self.account.add_customer({"tenant_id": str(self.tenant)})["id"]

    def subscribe(self, price: str = "price_premium", **how: Any) -> str:
        return self.account.subscribe(self.customer, [price], {"tenant_id": str(self.tenant)}, **how)["id"]

    def record(self, event: dict[str, Any]) -> str:
        """Apply an event as its webhook does."""
        values = subscription_values(event["data"]["object"])
        return self.sql.value(
            "record_subscription",
            values=Jsonb(values),
            as_of=moment(event["created"]),
            event_id=event["id"],
        )["outcome"]

    def fetch(self, id: str) -> str:
        """Store what Stripe says now."""
        values = Jsonb(subscription_values(self.account.subscriptions[id]))
        now = moment(self.account.now)
        return self.sql.value("record_subscription", values=values, as_of=now, is_fetched=True)["outcome"]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [each for each in self.account.events if ".subscription." in each["type"]]

    def record_all(self) -> None:
        for event in self.events:
            self.record(event)

    def suspects(self) -> list[str]:
        query = "select id from penstock.subscriptions where is_suspect and tenant_id = %s order by id"
        return [row["id"] for row in self.sql.execute(query, self.tenant)]

    def tier(self, at: int | None = None) -> str | None:
        """The plan at this second of Stripe's clock."""
        query = "select penstock._plan(t, %s) from penstock.tenants t where id = %s"
        return self.sql.one(query, moment(self.account.now if at is None else at), self.tenant)

    def expected(self, at: int) -> str | None:
        """The same from Stripe's own state, by the rules of docs/billing.md."""
        found = [
            each
            for each in self.account.subscriptions.values()
            if each["status"] not in ("incomplete", "incomplete_expired")
        ]
        if not found:
            return BEFORE
        each = max(found, key=lambda s: (s["status"] in LIVE, s["created"], s["id"]))
        plan = PRICES[each["items"]["data"][0]["price"]["id"]]
        end = max(item["current_period_end"] for item in each["items"]["data"])
        if each["status"] in ("active", "trialing"):
            return plan
        return plan if each["status"] in ("past_due", "canceled") and at < end + GRACE else "free"

    def stored(self) -> dict[str, Any]:
        rows = self.sql.execute(
            "select id, status, price_ids, extract(epoch from period_end)::bigint as period_end,"
            " cancel_at_period_end from penstock.subscriptions where tenant_id = %s",
            self.tenant,
        )
        return {row.pop("id"): row for row in rows}

    def told(self) -> dict[str, Any]:
        return {
            id: {
                "status": each["status"],
                "price_ids": [each["items"]["data"][0]["price"]["id"]],
                "period_end": each["items"]["data"][0]["current_period_end"],
                "cancel_at_period_end": each["cancel_at_period_end"],
            }
            for id, each in self.account.subscriptions.items()
        }


@pytest.fixture
def site(sql: Contract) -> Site:
    for price, plan in PRICES.items():
        sql.value("set_plan_price", price_id=price, values=Jsonb({"plan": plan}))
    return Site(sql)


class TestOrder:
    """R2.5/order: the state is that of the newest event, in any order of delivery."""

    @pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
    def test_every_order_of_four_events_ends_in_the_state_of_the_last(
        self, site: Site, order: tuple[int, ...]
    ) -> None:
        id = site.subscribe(is_paid=False)
        for status in ("active", "past_due", "canceled"):
            site.account.advance(10)
            site.account.set_status(id, status)
        for number in (*order, *order):
            site.record(site.events[number])
        assert site.stored() == site.told()
        assert site.suspects() == []
        assert site.tier() == "premium"
        assert site.tier(site.account.now + PERIOD + GRACE) == "free"

    def test_two_states_in_one_second_are_fetched(self, site: Site) -> None:
        """R2.5/order: Stripe's times have whole seconds, so the order of such events is unknown."""
        id = site.subscribe()
        site.record_all()
        site.account.advance(10)
        site.account.set_status(id, "past_due")
        site.account.set_status(id, "active")
        *_, first, second = site.events
        assert site.record(second) == "applied"
        assert site.record(first) == "applied"
        assert site.suspects() == [id]
        assert site.sql.rows("take_suspects") == [{"take_suspects": id}]
        assert site.sql.rows("take_suspects") == [], "another server fetches it"
        site.account.advance(1)
        assert site.fetch(id) == "applied"
        assert (site.suspects(), site.stored()) == ([], site.told())

    def test_the_end_wins_in_its_second(self, site: Site) -> None:
        id = site.subscribe()
        site.account.set_status(id, "past_due")
        site.account.cancel(id)
        for event in reversed(site.events):
            site.record(event)
        assert (site.stored()[id]["status"], site.suspects()) == ("canceled", [])

    def test_an_older_answer_of_stripe_changes_nothing(self, site: Site) -> None:
        id = site.subscribe()
        values = Jsonb(subscription_values(site.account.subscriptions[id]))
        before = moment(site.account.now)
        site.account.advance(10)
        site.account.cancel(id)
        site.record_all()
        found = site.sql.value("record_subscription", values=values, as_of=before, is_fetched=True)
        assert found["outcome"] == "stale"
        assert site.stored() == site.told()


STEPS: dict[str, Callable[[Site, str], Any]] = {
    "past_due": lambda site, id: site.account.set_status(id, "past_due"),
    "active": lambda site, id: site.account.set_status(id, "active"),
    "unpaid": lambda site, id: site.account.set_status(id, "unpaid"),
    "paused": lambda site, id: site.account.set_status(id, "paused"),
    "trialing": lambda site, id: site.account.set_status(id, "trialing"),
    "expire": lambda site, id: site.account.set_status(id, "incomplete_expired"),
    "renew": lambda site, id: site.account.renew(id),
    "fail": lambda site, id: site.account.renew(id, succeeds=False),
    "cancel": lambda site, id: site.account.cancel(id),
    "cancel_later": lambda site, id: site.account.update(id, {"cancel_at_period_end": True}),
}
STEP = st.tuples(
    st.sampled_from(["paid", "unpaid_first", "basic", *STEPS]),
    st.sampled_from([0, 0, 0, 1, 60, DAY, PERIOD, 2 * PERIOD]),
    st.integers(0, 2),
)


@settings(
    max_examples=int(os.environ.get("PENSTOCK_BILLING_HISTORIES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEP, min_size=1, max_size=8), seed=st.integers(0, 2**32), is_lossy=st.booleans())
def test_every_history_ends_in_the_state_of_stripe(
    sql: Contract, steps: list[tuple[str, int, int]], seed: int, is_lossy: bool
) -> None:
    """R2.5/order, R2.5/once, R2.5/crash: any history, in any order, with duplicates, crashes and losses."""
    chance = random.Random(seed)
    with sql.connection.transaction(force_rollback=True):
        for price, plan in PRICES.items():
            sql.value("set_plan_price", price_id=price, values=Jsonb({"plan": plan}))
        site = Site(sql)
        live(site, steps)
        deliveries = site.events * 2
        chance.shuffle(deliveries)
        if is_lossy:
            deliveries = deliveries[: len(deliveries) // 3]
        for event in deliveries:
            with sql.connection.transaction(force_rollback=chance.random() < 0.1):
                site.record(event)
        # A period may end in this second, with one more event.
        site.account.advance(1)
        for event in [] if is_lossy else site.events:
            # Stripe repeats what was not answered with 2xx.
            site.record(event)
        site.account.advance(1)
        for id in list(site.account.subscriptions) if is_lossy else site.suspects():
            site.fetch(id)
        assert site.stored() == site.told()
        assert site.suspects() == []
        for later in (0, PERIOD, PERIOD + GRACE, 3 * PERIOD + GRACE):
            at = site.account.now + later
            assert site.tier(at) == site.expected(at), (later, site.told())


def live(site: Site, steps: list[tuple[str, int, int]]) -> None:
    """What customers and cards do at Stripe."""
    for name, seconds, number in steps:
        site.account.advance(seconds)
        ids = [id for id, each in site.account.subscriptions.items() if each["ended_at"] is None]
        if name in ("paid", "unpaid_first", "basic"):
            site.subscribe(
                "price_basic" if name == "basic" else "price_premium", is_paid=name != "unpaid_first"
            )
        elif ids:
            chosen = ids[number % len(ids)]
            is_begun = site.account.subscriptions[chosen]["status"] != "incomplete"
            if is_begun != (name == "expire") or name in ("active", "cancel"):
                STEPS[name](site, chosen)


def test_the_state_is_in_columns_of_the_subscription_and_the_tenant(site: Site) -> None:
    """R2.5/subscription: status, prices, period end and cancellation; plan, since, until and the plan after."""
    id = site.subscribe()
    site.record_all()

    def columns() -> dict[str, Any]:
        query = "select plan, plan_since, plan_until, plan_after from penstock.tenants where id = %s"
        return site.sql.execute(query, site.tenant)[0]

    first = columns()
    assert (first["plan"], first["plan_until"], first["plan_after"]) == ("premium", None, None)
    assert first["plan_since"] is not None
    site.account.advance(DAY)
    site.account.cancel(id)
    site.record_all()
    assert site.stored() == site.told()
    end = moment(site.told()[id]["period_end"] + GRACE)
    assert columns() == {**first, "plan_until": end, "plan_after": "free"}


class TestGrace:
    """R2.5/grace: evaluated at each read, to the second."""

    @pytest.mark.parametrize("status", ["canceled", "past_due"])
    def test_the_plan_ends_thirty_days_after_its_period(self, site: Site, clock: Clock, status: str) -> None:
        id = site.subscribe()
        site.account.advance(1)
        site.account.set_status(id, status)
        site.record_all()
        end = site.told()[id]["period_end"]
        clock.advance(seconds=end + GRACE - 1 - site.start.timestamp())
        clock.freeze()
        now = site.sql.one("select extract(epoch from penstock._now())")
        clock.advance(seconds=float(end + GRACE - 1 - now))
        status_of = site.sql.value("billing_status", tenant_id=site.tenant)
        assert (status_of["tier"], status_of["is_in_grace"]) == ("premium", True)
        clock.advance(seconds=1)
        status_of = site.sql.value("billing_status", tenant_id=site.tenant)
        assert (status_of["tier"], status_of["plan"], status_of["is_in_grace"]) == ("free", "premium", False)

    def test_a_cancellation_without_a_period_end_expires_at_once(self, site: Site) -> None:
        """R2.5/no-period-end"""
        id = site.subscribe()
        site.record_all()
        site.account.advance(1)
        for item in site.account.subscriptions[id]["items"]["data"]:
            del item["current_period_end"]
        site.account.cancel(id)
        site.record_all()
        assert site.tier() == "free"

    @pytest.mark.parametrize("status", ["unpaid", "paused"])
    def test_unpaid_and_paused_lose_the_plan_at_once(self, site: Site, status: str) -> None:
        id = site.subscribe()
        site.record_all()
        assert site.tier() == "premium"
        site.account.advance(1)
        site.account.set_status(id, status)
        site.record_all()
        assert site.tier() == "free"

    def test_a_new_subscription_in_grace_ends_the_grace(self, site: Site) -> None:
        site.account.cancel(site.subscribe())
        site.account.advance(PERIOD + DAY)
        site.subscribe("price_basic")
        site.record_all()
        assert site.tier(site.account.now + 10 * PERIOD) == "basic"

    def test_a_first_payment_that_fails_changes_nothing(self, site: Site) -> None:
        site.sql.value("set_tenant_plan", tenant_id=site.tenant, plan="enterprise")
        site.subscribe(is_paid=False)
        site.account.advance(DAY)
        site.record_all()
        assert site.tier() == "enterprise"

    def test_upkeep_gives_the_weight_of_the_plan_after(self, site: Site, clock: Clock) -> None:
        id = site.subscribe()
        site.account.advance(1)
        site.account.set_status(id, "unpaid")
        site.record_all()
        weight = "select weight from penstock.tenants where id = %s"
        assert site.sql.one(weight, site.tenant) == 4
        clock.advance(seconds=5)
        site.sql.upkeep()
        assert site.sql.one(weight, site.tenant) == 1


class TestRejected:
    """R2.5/unknown-status: unknown values are rejected and change nothing."""

    def test_an_unknown_status(self, site: Site) -> None:
        id = site.subscribe()
        site.account.subscriptions[id]["status"] = "sleeping"
        with site.sql.refused(422, "unknown_status"):
            site.fetch(id)
        assert (site.stored(), site.tier()) == ({}, BEFORE)

    def test_an_unknown_price(self, site: Site) -> None:
        id = site.account.subscribe(site.customer, ["price_of_another"], {"tenant_id": str(site.tenant)})[
            "id"
        ]
        with site.sql.refused(422, "unknown_price"):
            site.fetch(id)
        assert (site.stored(), site.tier()) == ({}, BEFORE)

    def test_the_end_of_a_subscription_counts_after_its_price_is_unmapped(self, site: Site) -> None:
        id = site.subscribe()
        site.record_all()
        site.sql.value("set_plan_price", price_id="price_premium", values=None)
        site.account.advance(1)
        for item in site.account.subscriptions[id]["items"]["data"]:
            del item["current_period_end"]
        site.account.cancel(id)
        assert site.fetch(id) == "applied"
        assert site.tier() == "free"

    def test_a_customer_of_another_tenant(self, site: Site) -> None:
        """S97"""
        site.subscribe()
        site.record_all()
        other = site.sql.value("create_tenant", name="other")
        mine = site.account.subscribe(site.customer, ["price_premium"], {"tenant_id": str(other)})["id"]
        with site.sql.refused(409, "foreign_customer"):
            site.fetch(mine)
        second = site.account.add_customer({})["id"]
        theirs = site.account.subscribe(second, ["price_premium"], {"tenant_id": str(site.tenant)})["id"]
        with site.sql.refused(409, "foreign_customer"):
            site.fetch(theirs)
        assert site.sql.one("select plan from penstock.tenants where id = %s", other) == BEFORE

    def test_a_customer_of_another_product_is_ignored(self, site: Site) -> None:
        stranger = site.account.add_customer({})["id"]
        id = site.account.subscribe(stranger, ["price_premium"])["id"]
        assert site.fetch(id) == "ignored"
        assert site.stored() == {}

    def test_invalid_prices(self, sql: Contract) -> None:
        for values in (
            {},
            {"plan": "free", "meter": "pages", "amount": 1},
            {"meter": "pages"},
        ):
            with sql.refused(422, "invalid_price"):
                sql.value("set_plan_price", price_id="p", values=Jsonb(values))
        with sql.refused(404, "unknown_plan"):
            sql.value("set_plan_price", price_id="p", values=Jsonb({"plan": "none"}))


def test_a_pack_counts_once(site: Site) -> None:
    """R4.1: a purchase raises the limit."""
    sql = site.sql
    sql.value("set_plan_price", price_id="price_pages", values=Jsonb({"meter": "pages", "amount": 50}))
    sql.value("set_limit", tenant_id=site.tenant, meter="pages", amount=10)
    bought = Jsonb(
        {"id": "cs_1", "customer_id": site.customer, "tenant_id": str(site.tenant), "price_id": "price_pages"}
    )
    for _ in range(3):
        assert sql.value("record_purchase", values=bought)["outcome"] == "applied"
    [found] = [row for row in sql.rows("resolve_limits", tenant_id=site.tenant) if row["meter"] == "pages"]
    assert found["amount"] == 60
    with sql.refused(422, "unknown_price"):
        sql.value("record_purchase", values=Jsonb({**bought.obj, "price_id": "price_premium"}))


def test_reconciliation_is_due_once_a_day(sql: Contract, clock: Clock) -> None:
    assert sql.value("take_reconciliation") is True
    assert sql.value("take_reconciliation") is False
    clock.advance(hours=23)
    assert sql.value("take_reconciliation") is False
    clock.advance(hours=1)
    assert sql.value("take_reconciliation") is True


def test_the_period_end_is_read_from_both_places() -> None:
    """Since API version 2025-03-31 it is on the items."""
    common = {"id": "sub_1", "customer": {"id": "cus_1"}, "status": "active", "created": 1_700_000_000}
    new = {
        "data": [{"price": {"id": "p"}, "current_period_end": end} for end in (1_800_000_000, 1_900_000_000)]
    }
    old = {"data": [{"price": {"id": "p"}}]}
    assert subscription_values({**common, "items": new})["period_end"].startswith("2030-03")
    found = subscription_values({**common, "items": old, "current_period_end": 1_800_000_000})
    assert (found["period_end"][:7], found["customer_id"]) == ("2027-01", "cus_1")
    assert subscription_values({**common, "items": old})["period_end"] is None
    assert timedelta(seconds=GRACE) == timedelta(days=30)
