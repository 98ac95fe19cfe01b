"""Stripe sends each event to every cell: one applies it, also while the tenant moves between them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.billing import events, sync
from penstock.billing.gateway import Fetched
from penstock.contract import webhooks
from penstock.postgres import db as dbs
from penstock.sdk.webhooks import Webhooks, process, retry_due
from penstock.settings import Settings
from tests.sql.conftest import Contract
from tests.test_cell_writes import freeze, stop_before
from tests.test_cells import Pair, pair

__all__ = ["pair"]

pytestmark = [pytest.mark.every_postgres, pytest.mark.slow]

SOURCES = Webhooks()
events.add_to(SOURCES, Settings(database_url="postgresql://x/x"))
SECONDS = 1_800_000_000


@pytest.fixture(autouse=True)
def plans(pair: Pair) -> None:
    for cell in (pair.old, pair.new):
        cell.execute("select penstock.set_plan_price('price_premium', '{\"plan\": \"premium\"}')")
    pair.old.value("bind_customer", tenant_id=pair.tenant, customer_id="cus_1")


def event(key: str, pair: Pair, status: str) -> webhooks.Delivery:
    subscription: dict[str, Any] = {
        "object": "subscription",
        "id": "sub_1",
        "customer": "cus_1",
        "status": status,
        "created": SECONDS,
        "metadata": {"tenant_id": str(pair.tenant)},
        "items": {"data": [{"price": {"id": "price_premium"}, "current_period_end": SECONDS + 86_400}]},
    }
    kind = "customer.subscription.updated"
    payload = {"id": key, "type": kind, "created": SECONDS + len(key), "data": {"object": subscription}}
    return webhooks.Delivery("stripe", key, kind, {**payload, "livemode": False})


def outcome(cell: Contract, key: str) -> Any:
    return cell.one("select outcome from penstock.webhooks where key = %s", key)


async def deliver(dsn: str, delivery: webhooks.Delivery) -> None:
    async with dbs.pool(dsn) as pool, dbs.transaction(pool) as conn:
        assert not await webhooks.take(conn, delivery)
        assert await process(conn, SOURCES["stripe"], delivery)


async def tell(pair: Pair, delivery: webhooks.Delivery) -> tuple[str, str]:
    """The event reaches both cells; what became of it in the old and in the new one."""
    for database in pair.dbs:
        await deliver(database.dsn, delivery)
    return outcome(pair.old, delivery.key), outcome(pair.new, delivery.key)


async def test_an_event_between_freeze_and_copy_is_applied_in_the_new_cell(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither cell may forget it: the old one changes nothing any more, the new one has no such tenant yet."""
    assert await tell(pair, event("evt_1", pair, "trialing")) == ("applied", "ignored")
    stop_before("copy", pair, monkeypatch)
    assert await tell(pair, event("evt_02", pair, "past_due")) == ("unmatched", "ignored")
    early = event("evt_003", pair, "past_due")
    await deliver(pair.dbs[1].dsn, early)
    stop_before("switch", pair, monkeypatch)
    await deliver(pair.dbs[0].dsn, early)
    assert await tell(pair, event("evt_0004", pair, "active")) == ("unmatched", "unmatched")
    assert pair.move() == 1
    assert outcome(pair.new, "evt_1") == "applied"
    assert [outcome(pair.new, key) for key in ("evt_02", "evt_003", "evt_0004")] == ["unmatched"] * 3
    pair.new.execute("update penstock.webhooks set next_try_at = penstock._now() where outcome = 'unmatched'")
    async with dbs.pool(pair.dbs[1].dsn) as pool:
        assert await retry_due(pool, SOURCES) == 3
    assert {outcome(pair.new, key) for key in ("evt_02", "evt_003", "evt_0004")} <= {"applied", "stale"}
    assert pair.new.one("select status from penstock.subscriptions") == "active"
    assert pair.new.one("select plan from penstock.tenants where id = %s", pair.tenant) == "premium"
    assert pair.old.one("select count(*) from penstock.webhooks where tenant_id is not null") == 0


async def test_a_comparison_with_stripe_skips_a_tenant_that_moves(pair: Pair) -> None:
    """It goes on with the subscriptions of the other tenants."""
    freeze(pair)
    subscription = event("evt_1", pair, "active").payload["data"]["object"]
    found = Fetched(subscription, datetime.now(UTC))
    async with dbs.pool(pair.dbs[0].dsn) as pool:
        assert not await sync._store(pool, found)
    assert pair.old.one("select count(*) from penstock.subscriptions") == 0
