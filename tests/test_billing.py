"""Billing over HTTP: the real stripe client against the simulated Stripe, webhooks, checkout, portal, reconciliation."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from penstock import api, server, simulator, testing
from penstock.billing import Gateway, check_return_url, reconcile, refresh_suspects, sync_tenant
from penstock.contract import billing
from penstock.errors import Invalid, NotFound, Unavailable
from penstock.postgres import db as dbs
from penstock.settings import Settings, read
from penstock.simulator import Simulator
from penstock.simulator.stripe import decoded, shaped
from penstock.simulator.subscriptions import DAY
from tests.api.conftest import SECRET, Person, World

# Stripe's client passes the body to httpx in the old way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=.*:DeprecationWarning")

KEY = "sk_test_simulated"
SITE = "https://app.example.org"
BACK: dict[str, Any] = {"success_url": f"{SITE}/paid", "cancel_url": f"{SITE}/plans"}


@contextmanager
def simulated() -> Iterator[Simulator]:
    """A simulator in a thread, as another process would run it."""
    loop, started, stop, found = (
        asyncio.new_event_loop(),
        threading.Event(),
        asyncio.Event(),
        list[Simulator](),
    )

    async def run() -> None:
        async with simulator.serve() as made:
            found.append(made)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert started.wait(30)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


@dataclass
class Site:
    """The API with billing, the simulated Stripe, and a user who may buy."""

    world: World
    sim: Simulator
    settings: Settings
    ann: Person

    def post(self, path: str, person: Person | None = None, **body: Any) -> Any:
        who = person or self.ann
        body = {"tenant_id": str(self.ann.tenant), **body}
        return self.world.client.post(f"/api/billing/{path}", json=body, headers=who.headers)

    def checkout(self, price: str = "premium") -> str:
        """Open a checkout; returns the id of its session."""
        answer = self.post("checkout", price=price, **BACK)
        assert answer.status_code == 200, answer.text
        return list(self.sim.stripe.account.sessions)[-1]

    def send(self, event: dict[str, Any], **how: Any) -> Any:
        body, signature = self.sim.stripe.signed(event, **{"at": int(time.time()), **how})
        headers = {"Stripe-Signature": signature}
        return self.world.client.post("/webhooks/stripe", content=body, headers=headers)

    def deliver(self) -> list[int]:
        return [self.send(event).status_code for event in self.sim.stripe.take()]

    def status(self) -> dict[str, Any]:
        return self.world.client.get("/api/billing", headers=self.ann.headers).json()

    def outcomes(self) -> dict[str, str]:
        rows = self.world.db.execute("select key, outcome from penstock.webhooks")
        return {row["key"]: row["outcome"] for row in rows}

    def subscribed(self) -> str:
        """Buy premium; returns the id of the subscription."""
        session = self.sim.stripe.account.pay(self.checkout())
        assert set(self.deliver()) == {200}
        return session["subscription"]


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulator]:
    with simulated() as made:
        yield made


@pytest.fixture
def site(db: testing.Database, sim: Simulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # The loops that compare with Stripe would race with the tests, which call them.
    monkeypatch.setattr("penstock.billing.sync.CHECK_SECONDS", 3600.0)
    monkeypatch.setattr(api.webhooks, "RETRY_SECONDS", 3600.0)
    db.execute("select penstock.take_reconciliation()")
    stripe = sim.stripe
    stripe.reset()
    stripe.account.add_price("price_premium")
    stripe.account.add_price("price_pages", is_recurring=False)
    db.execute("""select penstock.set_plan_price('price_premium', '{"plan": "premium"}'),
        penstock.set_plan_price('price_pages', '{"meter": "pages", "amount": 50}')""")
    settings = Settings(
        database_url=db.dsn,
        api_url=server.ensure_login(db.dsn),
        jwt_secret=SECRET,
        stripe_key=KEY,
        stripe_webhook_secrets=("the next secret", stripe.secret),
        stripe_url=sim.stripe_url,
        allowed_origins=(SITE,),
    )
    app = api.create(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        world = World(db, app, client)
        yield Site(world, sim, settings, world.join("ann"))


class TestCheckout:
    """R2.5/sessions, R2.5/customer: from the first click to the plan."""

    def test_paying_gives_the_plan(self, site: Site) -> None:
        assert (site.status()["tier"], site.status()["has_customer"]) == ("free", False)
        site.subscribed()
        found = site.status()
        assert (found["tier"], found["status"], found["until"]) == ("premium", "active", None)
        [customer] = site.sim.stripe.account.customers.values()
        assert customer["metadata"] == {"tenant_id": str(site.ann.tenant)}
        answer = site.post("portal", return_url=f"{SITE}/plans")
        assert answer.json()["url"].startswith("https://billing.stripe.com/")
        again = site.post("checkout", price="premium", **BACK)
        assert (again.status_code, again.json()["code"]) == (409, "already_subscribed")

    def test_two_requests_at_once_make_one_customer(self, site: Site) -> None:
        """R2.5/customer"""
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(site.post, "checkout", price="premium", **BACK) for _ in range(4)]
        assert {each.result().status_code for each in asked} == {200}
        assert len(site.sim.stripe.account.customers) == 1

    def test_a_crash_before_the_customer_is_stored_makes_no_second_one(self, site: Site) -> None:
        """R2.5/customer: also after a day, when Stripe has forgotten the idempotency key."""
        site.checkout()
        for seconds in (0, 2 * DAY):
            site.sim.stripe.account.advance(seconds)
            site.world.db.execute("update penstock.billing_accounts set customer_id = null")
            site.checkout()
        assert len(site.sim.stripe.account.customers) == 1

    def test_a_second_checkout_expires_the_first(self, site: Site) -> None:
        first, second = site.checkout(), site.checkout()
        sessions = site.sim.stripe.account.sessions
        assert (sessions[first]["status"], sessions[second]["status"]) == ("expired", "open")

    def test_a_pack_is_added_once(self, site: Site) -> None:
        """R4.1: bought once, delivered three times."""
        site.sim.stripe.account.pay(site.checkout("price_pages"))
        for event in site.sim.stripe.take() * 3:
            assert site.send(event).status_code == 200
        rows = site.world.db.execute("select amount, source from penstock.allowances")
        assert [(row["amount"], row["source"]) for row in rows] == [(50, "purchase")]

    def test_only_owners_and_admins_buy(self, site: Site) -> None:
        """R2.5/sessions, S97: and nobody for another tenant."""
        bob = site.world.join("bob")
        for person, status in ((bob, 403), (site.world.member("member", site.ann.tenant), 403)):
            assert site.post("checkout", person, price="premium", **BACK).status_code == status
            assert site.post("portal", person, return_url=SITE).status_code == status
        admin = site.world.member("admin", site.ann.tenant)
        assert site.post("checkout", admin, price="premium", **BACK).status_code == 200
        anon = site.world.client.post(
            "/api/billing/portal", json={"tenant_id": str(bob.tenant), "return_url": SITE}
        )
        assert anon.status_code == 401
        assert site.sim.stripe.calls["POST billing_portal"] == 0

    @pytest.mark.parametrize("price", ["none", "free", "price_of_another"])
    def test_unknown_prices_are_rejected(self, site: Site, price: str) -> None:
        answer = site.post("checkout", price=price, **BACK)
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_price")

    def test_stripe_away_is_503_without_its_text(self, site: Site) -> None:
        site.sim.stripe.fail_next = 10
        answer = site.post("checkout", price="premium", **BACK)
        site.sim.stripe.fail_next = 0
        assert (answer.status_code, answer.json()["code"]) == (503, "stripe_unavailable")
        assert "unknown error" not in answer.text


class TestReturnUrls:
    """Open redirects: only this server and the allowed origins."""

    @pytest.mark.parametrize(
        "url",
        [
            "https://evil.example/",
            "//evil.example/",
            "javascript:alert(1)",
            f"{SITE}@evil.example/",
            f"{SITE}.evil.example/",
            "https://app.example.org:8443/",
            "http://app.example.org/",
            "https://evil.example\\@app.example.org/",
            "https:/\\app.example.org/",
            "https://app.example.org\t/",
            "/plans",
            "",
            "https://app.example.org/" + "x" * 2000,
            "https://[/",
        ],
    )
    def test_other_origins_are_rejected(self, url: str) -> None:
        """S97"""
        with pytest.raises(Invalid) as error:
            check_return_url(url, "success_url", [SITE, "*"])
        assert error.value.code == "invalid_url"

    def test_allowed_origins_pass(self) -> None:
        for url in (f"{SITE}/paid?a=b#c", SITE, "https://APP.example.org:443/x"):
            assert check_return_url(url, "success_url", [SITE]) == url

    def test_the_route_rejects_them(self, site: Site) -> None:
        answer = site.post("checkout", price="premium", success_url="https://evil.example/", cancel_url=SITE)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_url")
        assert site.sim.stripe.account.customers == {}


class TestWebhooks:
    """R2.5/once, R2.5/crash, R2.5/signature: what arrives is applied once, or rejected and recorded."""

    def test_twenty_parallel_deliveries_apply_once(self, site: Site) -> None:
        site.sim.stripe.account.pay(site.checkout())
        events = site.sim.stripe.take()
        with ThreadPoolExecutor(20) as pool:
            sent = [pool.submit(site.send, event) for event in events for _ in range(20)]
        assert {each.result().status_code for each in sent} == {200}
        assert site.status()["tier"] == "premium"
        query = "select count(*) as n from penstock.audit_log where action = 'tenant.plan_set'"
        assert site.world.db.execute(query) == [{"n": 1}]

    def test_a_crash_midway_is_applied_on_retry(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """R2.5/crash"""
        real, crashes = billing.record_subscription, [True]

        async def crash(*args: Any, **values: Any) -> Any:
            found = await real(*args, **values)
            if crashes:
                raise RuntimeError("out of memory")
            return found

        monkeypatch.setattr("penstock.contract.billing.record_subscription", crash)
        site.sim.stripe.account.pay(site.checkout())
        events = site.sim.stripe.take()
        assert 500 in {site.send(event).status_code for event in events}
        assert (site.status()["tier"], site.status()["status"]) == ("free", None)
        crashes.clear()
        assert {site.send(event).status_code for event in events} == {200}
        assert site.status()["tier"] == "premium"

    def test_forged_old_and_future_signatures_are_rejected(self, site: Site) -> None:
        """R2.5/signature, S97"""
        site.sim.stripe.account.pay(site.checkout())
        event = site.sim.stripe.take()[-1]
        now = int(time.time())
        for how in ({"secret": "whsec_other"}, {"at": now - 400}, {"at": now + 400}):
            assert site.send(event, **how).status_code == 400
        assert site.outcomes() == {}

    def test_an_unknown_status_fails_and_is_recorded(self, site: Site) -> None:
        """R2.5/unknown-status"""
        id = site.subscribed()
        site.sim.stripe.account.advance(5)
        site.sim.stripe.account.set_status(id, "sleeping")
        [event] = site.sim.stripe.take()
        assert site.send(event).status_code == 500
        assert site.outcomes()[event["id"]] == "failed"
        assert site.status()["status"] == "active"

    def test_events_of_the_other_mode_and_other_types_are_ignored(self, site: Site) -> None:
        id = site.subscribed()
        site.sim.stripe.account.cancel(id)
        [event] = site.sim.stripe.take()
        for other in ({"livemode": True}, {"type": "charge.refunded"}, {"type": "charge.dispute.created"}):
            changed = {**event, "id": f"evt_{uuid.uuid4().hex}", **other}
            assert site.send(changed).status_code == 200
            assert site.outcomes()[changed["id"]] == "ignored"
        assert site.status()["status"] == "active"

    def test_an_endpoint_of_an_older_version_works(self, site: Site) -> None:
        site.sim.stripe.webhook_version = "2024-06-20"
        try:
            site.subscribed()
        finally:
            site.sim.stripe.webhook_version = "2026-06-24"
        assert site.status()["period_end"] is not None

    def test_a_failed_payment_alerts_the_tenant_once_per_invoice(self, site: Site) -> None:
        site.subscribed()
        db = site.world.db
        db.execute(
            "insert into penstock.notification_targets (tenant_id, channel, address, events, created_by, created_at)"
            " values (%s, 'email', 'ann@example.org', '{alert}', 'test', now())", [site.ann.tenant],
        )  # fmt: skip
        [customer] = site.sim.stripe.account.customers
        event: dict[str, Any] = {
            "object": "event", "type": "invoice.payment_failed", "created": int(time.time()), "livemode": False,
        }  # fmt: skip
        for n, who in enumerate((customer, customer, "cus_other")):
            invoice = {"object": "invoice", "id": f"in_{n // 2}", "customer": who}
            assert site.send({**event, "id": f"evt_{n}", "data": {"object": invoice}}).status_code == 200
        assert [site.outcomes()[f"evt_{n}"] for n in range(3)] == ["applied", "applied", "ignored"]
        rows = db.execute("select subject, details from penstock.notifications")
        assert [(row["subject"], row["details"]["invoice"]) for row in rows] == [("A payment failed", "in_0")]

    def test_a_deleted_customer_is_replaced_at_the_next_checkout(self, site: Site) -> None:
        site.subscribed()
        [old] = site.sim.stripe.account.customers
        site.sim.stripe.account.advance(5)
        site.sim.stripe.account.delete_customer(old)
        assert set(site.deliver()) == {200}
        assert (site.status()["status"], site.status()["has_customer"]) == ("canceled", False)
        site.checkout()
        [new] = site.sim.stripe.account.customers
        assert new != old


class TestComparison:
    """R2.5/order: what webhooks did not bring is fetched."""

    @staticmethod
    async def with_gateway(site: Site, work: Any) -> Any:
        async with (
            dbs.pool(site.settings.database_url or "", name="test") as pool,
            Gateway.open(site.settings) as g,
        ):
            return await work(pool, g)

    async def test_lost_webhooks_are_reconciled(self, site: Site) -> None:
        id = site.subscribed()
        site.sim.stripe.account.advance(60)
        site.sim.stripe.account.renew(id, succeeds=False)
        site.sim.stripe.take()
        assert site.status()["status"] == "active"
        site.sim.stripe.account.advance(1)
        assert await self.with_gateway(site, reconcile) == 1
        assert site.status()["status"] == "past_due"
        assert await self.with_gateway(site, reconcile) == 0

    async def test_a_tenant_is_synced(self, site: Site) -> None:
        site.sim.stripe.account.pay(site.checkout())
        site.sim.stripe.take()
        site.sim.stripe.account.advance(1)

        async def sync(pool: dbs.Pool, gateway: Gateway) -> int:
            return await sync_tenant(pool, gateway, tenant_id=site.ann.tenant)

        assert await self.with_gateway(site, sync) == 1
        assert site.status()["tier"] == "premium"

    async def test_two_states_in_a_second_are_fetched(self, site: Site) -> None:
        id = site.subscribed()
        site.sim.stripe.account.advance(60)
        site.sim.stripe.account.set_status(id, "past_due")
        site.sim.stripe.account.set_status(id, "active")
        for event in reversed(site.sim.stripe.take()):
            site.send(event)
        assert site.status()["status"] == "past_due"
        site.sim.stripe.account.advance(1)
        assert await self.with_gateway(site, refresh_suspects) == 1
        assert site.status()["status"] == "active"

    async def test_errors_of_stripe_are_translated(self, site: Site) -> None:
        async def ask(pool: dbs.Pool, gateway: Gateway) -> None:
            with pytest.raises(NotFound):
                await gateway.subscription("sub_of_nobody")
            site.sim.stripe.fail_next = 10
            with pytest.raises(Unavailable):
                await gateway.subscription("sub_of_nobody")
            site.sim.stripe.fail_next = 0

        await self.with_gateway(site, ask)


class TestSimulator:
    """The simulated Stripe speaks as the real one does."""

    def test_an_idempotency_key_replays_the_answer(self, site: Site) -> None:
        headers = {"Authorization": f"Bearer {KEY}", "Idempotency-Key": "k"}
        url = f"{site.sim.stripe_url}/v1/customers"
        first = httpx.post(url, data={"metadata[a]": "1"}, headers=headers)
        again = httpx.post(url, data={"metadata[a]": "1"}, headers=headers)
        assert (again.json(), again.headers["idempotent-replayed"]) == (first.json(), "true")
        other = httpx.post(url, data={"metadata[a]": "2"}, headers=headers)
        assert (other.status_code, other.json()["error"]["type"]) == (400, "idempotency_error")
        assert httpx.get(f"{url}/cus_none", headers=headers).json()["error"]["code"] == "resource_missing"
        assert httpx.get(f"{url}/cus_none").status_code == 401

    def test_people_act_over_the_control_url(self, site: Site) -> None:
        session = site.checkout()
        paid = httpx.post(f"{site.sim.control_url}/stripe/pay", json={"id": session}).json()
        id = paid["subscription"]
        base = f"{site.sim.control_url}/stripe"
        assert httpx.post(f"{base}/renew", json={"id": id, "succeeds": False}).json()["status"] == "past_due"
        assert httpx.post(f"{base}/cancel", json={"id": id}).json()["status"] == "canceled"
        assert httpx.post(f"{base}/cancel", json={"id": id}).status_code == 404
        assert httpx.post(f"{base}/nothing", json={}).status_code == 404
        assert len(httpx.post(f"{base}/state", json={}).json()["subscriptions"]) == 1

    def test_forms_and_versions(self) -> None:
        pairs = [("a[b]", "1"), ("line_items[0][price]", "p"), ("line_items[1][price]", "q"), ("c", "")]
        assert decoded(pairs) == {"a": {"b": "1"}, "line_items": [{"price": "p"}, {"price": "q"}], "c": ""}
        item = {"current_period_start": 1, "current_period_end": 2}
        found = shaped({"object": "subscription", "items": {"data": [item]}}, "2024-06-20")
        assert (found["current_period_end"], found["items"]["data"][0]) == (2, {})

    async def test_webhooks_are_sent_with_faults_and_repeated(self) -> None:
        async with simulator.serve() as made:
            stripe, seen = made.stripe, list[str]()

            def answer(request: httpx.Request) -> httpx.Response:
                seen.append(request.headers["stripe-signature"])
                return httpx.Response(500 if len(seen) == 1 else 200)

            stripe.webhook_url = "http://receiver/webhooks/stripe"
            for _ in range(10):
                stripe.account.add_customer()
            async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
                found = await stripe.deliver(client, duplicates=1, shuffle=True, at_once=True)
                assert (found[200], found[500]) == (19, 1)
                stripe.account.add_customer()
                assert (await stripe.deliver(client, lose=1)).total() in (0, 1)


class TestSettings:
    def test_key_secret_and_mode_belong_together(self) -> None:
        with pytest.raises(Invalid, match="WEBHOOK_SECRET"):
            read({"PENSTOCK_STRIPE_KEY": "sk_test_x"})
        secret = {"PENSTOCK_STRIPE_WEBHOOK_SECRET": "a, b"}
        with pytest.raises(Invalid, match="LIVE"):
            read({"PENSTOCK_STRIPE_KEY": "sk_live_x", **secret})
        found = read({"PENSTOCK_STRIPE_KEY": "sk_live_x", "PENSTOCK_STRIPE_LIVE": "1", **secret})
        assert (found.stripe_webhook_secrets, found.stripe_live) == (("a", "b"), True)
        assert "sk_live_x" not in repr(found)

    def test_a_gateway_needs_a_key(self) -> None:
        with pytest.raises(Invalid) as error:
            Gateway(Settings())
        assert error.value.code == "no_billing"
