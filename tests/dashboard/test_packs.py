"""Packs on a page of the app: what it shows, who buys, and what the webhook adds. Against the simulated Stripe."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from penstock import api, dashboard, testing
from penstock.apps.slides.app import app as slides
from penstock.billing import check_checkout_url
from penstock.errors import Unavailable
from penstock.settings import Settings
from penstock.simulator import Simulator
from tests.test_billing import KEY, simulated

# Stripe's client passes the body to httpx in the old way.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=.*:DeprecationWarning"),
    pytest.mark.own_sql(slides),
]

CHECKOUT = "/app/quota/checkout"


@pytest.fixture(scope="module")
def sim() -> Iterator[Simulator]:
    with simulated() as made:
        yield made


@pytest.fixture
def stripe_settings(dashboard_settings: Settings, sim: Simulator) -> Settings:
    return replace(
        dashboard_settings,
        stripe_key=KEY,
        stripe_webhook_secrets=(sim.stripe.secret,),
        stripe_url=sim.stripe_url,
    )


class Shop:
    """The dashboard of slides with two tenants; the first is Acme."""

    def __init__(self, db: testing.Database, site: Any, sim: Simulator) -> None:
        self.db, self.site, self.sim = db, site, sim
        self.acme, self.other = site.tenant("Acme"), site.tenant("Other")
        db.execute("select slides._ensure_quota(t.id) from penstock.tenants t")

    def browser(self, role: str, tenant: Any = None) -> Any:
        return self.site.browser(self.site.key(role, tenant or self.acme))

    def buy(self, browser: Any, **values: Any) -> Any:
        return browser.post(CHECKOUT, {"tenant": str(self.acme), "price": "price_500", **values})

    def allowances(self) -> list[tuple[Any, ...]]:
        rows = self.db.execute("select tenant_id, meter, amount from penstock.allowances")
        return [tuple(row.values()) for row in rows]

    def deliver(self) -> list[int]:
        """Send all events of Stripe twice."""
        codes: list[int] = []
        for event in self.sim.stripe.take() * 2:
            body, signature = self.sim.stripe.signed(event, at=int(time.time()))
            headers = {"Stripe-Signature": signature}
            codes.append(self.site.client.post("/webhooks/stripe", content=body, headers=headers).status_code)
        return codes


def opened(db: testing.Database, settings: Settings, sim: Simulator) -> Iterator[Shop]:
    import tests.dashboard.conftest as own

    made = api.create(settings, slides)
    dashboard.mount(made)
    with TestClient(made) as client:
        yield Shop(db, own.Site(db, made, client), sim)


@pytest.fixture
def shop(
    db: testing.Database, stripe_settings: Settings, sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    # The loops that compare with Stripe would race with the tests.
    monkeypatch.setattr("penstock.billing.sync.CHECK_SECONDS", 3600.0)
    monkeypatch.setattr(api.webhooks, "RETRY_SECONDS", 3600.0)
    db.execute("select penstock.take_reconciliation()")
    sim.stripe.reset()
    account = sim.stripe.account
    account.add_price("price_premium")
    account.add_price("price_pages", is_recurring=False)
    account.add_price("price_500", is_recurring=False, amount=2550, name="Large <b>pack</b>")
    account.add_price("price_50", is_recurring=False, amount=400, name="Small pack")
    for made in opened(db, stripe_settings, sim):
        db.execute("""select penstock.set_plan_price('price_premium', '{"plan": "premium"}'),
            penstock.set_plan_price('price_pages', '{"meter": "pages", "amount": 7}'),
            penstock.set_plan_price('price_500', '{"meter": "thumbnails", "amount": 500}'),
            penstock.set_plan_price('price_50', '{"meter": "thumbnails", "amount": 50}')""")
        yield made


def forms(page: str) -> list[dict[str, str]]:
    """The hidden fields of each form that buys."""
    found = re.findall(
        r'<form method="post" action="/dashboard/app/quota/checkout".*?</form>', page, re.DOTALL
    )
    return [dict(re.findall(r'name="(\w+)" value="([^"]*)"', each)) for each in found]


def total(page: str) -> str:
    return re.findall(r'data-label="total">([^<]*)<', page)[0].strip()


def test_owner_buys_a_pack_and_the_page_shows_it(shop: Shop) -> None:
    """R4.1, F57: from the button to the quota; the same payment counts once."""
    owner = shop.browser("owner")
    answer = owner.get("/app/quota")
    page = answer.text
    assert total(page) == "5"
    assert "Large &lt;b&gt;pack&lt;/b&gt;" in page and "25.50 USD" in page and "500 thumbnails" in page
    assert page.index("Small pack") < page.index("Large &lt;b&gt;"), "the smallest first"
    assert "price_premium" not in page and "price_pages" not in page
    assert "form-action 'self' https://checkout.stripe.com;" in answer.headers["content-security-policy"]
    small, large = forms(page)
    assert (small["price"], large["price"], large["tenant"]) == ("price_50", "price_500", str(shop.acme))

    sent = owner.client.post(
        "/dashboard" + CHECKOUT,
        data={name: html.unescape(value) for name, value in large.items()},
        headers={"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"},
    )
    assert sent.status_code == 303, sent.text
    assert sent.headers["location"].startswith("https://checkout.stripe.com/")
    [(session_id, session)] = shop.sim.stripe.account.sessions.items()
    assert session["success_url"] == "http://testserver/dashboard/app/quota?bought=1"
    assert session["cancel_url"] == "http://testserver/dashboard/app/quota"
    assert shop.allowances() == []

    assert "when Stripe confirms the payment; this page" in owner.get("/app/quota?bought=1").text
    shop.sim.stripe.account.pay(session_id)
    assert set(shop.deliver()) == {200}
    assert shop.allowances() == [(shop.acme, "thumbnails", 500)]
    assert total(owner.get("/app/quota").text) == "505"


def test_only_owners_and_admins_see_the_button_and_buy(shop: Shop) -> None:
    """F57, S97: a viewer is refused, and so is everybody for another tenant."""
    assert len(forms(shop.browser("admin").get("/app/quota").text)) == 2
    assert shop.buy(shop.browser("admin")).status_code == 303
    shop.sim.stripe.reset()
    for role in ("viewer", "member"):
        browser = shop.browser(role)
        answer = browser.get("/app/quota")
        assert forms(answer.text) == [] and "Only owners and admins can buy packs" in answer.text
        assert "form-action 'self';" in answer.headers["content-security-policy"]
        assert shop.buy(browser).status_code == 403, role
    stranger = shop.browser("owner", shop.other)
    assert shop.buy(stranger).status_code == 403
    assert str(shop.acme) not in stranger.get("/app/quota").text
    operator = shop.site.browser(shop.site.key("service")).get("/app/quota").text
    assert forms(operator) == [] and "penstock usage allow TENANT thumbnails 500 --purchase" in operator
    signed_out = shop.site.browser(None).client.post("/dashboard" + CHECKOUT)
    assert signed_out.headers["location"] == "/dashboard/sign-in"
    assert shop.sim.stripe.calls["POST checkout"] == 0


def test_forged_and_invalid_purchases_are_rejected(shop: Shop) -> None:
    owner = shop.browser("owner")
    shop.sim.stripe.calls.clear()
    assert shop.buy(owner, token="wrong").status_code == 403
    elsewhere = owner.post(CHECKOUT, {}, headers={"Sec-Fetch-Site": "cross-site"})
    assert elsewhere.status_code == 403
    for price in ("premium", "price_premium", "price_pages", "nothing", ""):
        assert shop.buy(owner, price=price).status_code == 422, price
    assert shop.buy(owner, tenant="x").status_code == 422
    assert shop.buy(owner, tenant="").status_code == 404
    for name in ("events", "nothing"):
        answer = owner.post(f"/app/{name}/checkout", {"tenant": str(shop.acme), "price": "price_500"})
        assert answer.status_code == 404, name
    assert owner.client.get("/dashboard" + CHECKOUT).status_code in (404, 405)
    assert shop.sim.stripe.calls["POST checkout"] == 0


def test_member_of_several_tenants_chooses_among_those_they_may_buy_for(shop: Shop) -> None:
    owner = shop.browser("owner")
    [key] = shop.db.execute("select user_id from penstock.members where tenant_id = %s", [shop.acme])
    third = shop.site.tenant("Third")
    for tenant, role in ((shop.other, "admin"), (third, "viewer")):
        join = "insert into penstock.members (tenant_id, user_id, role) values (%s, %s, %s)"
        shop.db.execute(join, [tenant, key["user_id"], role])
    page = owner.get("/app/quota").text
    assert set(re.findall(r'<option value="([^"]*)"', page)) == {str(shop.acme), str(shop.other)}
    assert shop.buy(owner, tenant=str(shop.other)).status_code == 303
    assert shop.buy(owner, tenant=str(third)).status_code == 403


@pytest.mark.slow
def test_page_works_while_stripe_is_away(shop: Shop) -> None:
    """The price is then shown at the checkout, and Stripe is not asked again for every page."""
    owner = shop.browser("owner")
    shop.sim.stripe.fail_next = 1000
    try:
        page = owner.get("/app/quota").text
        assert page.count("shown at checkout") == 2 and "500 thumbnails" in page and len(forms(page)) == 2
        asked = shop.sim.stripe.calls.copy()
        owner.get("/app/quota")
        assert shop.sim.stripe.calls == asked
        answer = shop.buy(owner)
        assert answer.status_code == 503 and "Stripe is unavailable" in answer.text
    finally:
        shop.sim.stripe.fail_next = 0


def test_browser_is_led_to_stripe_only(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lead_astray(*given: Any, **values: Any) -> str:
        return "https://checkout.stripe.com.evil.example/pay"

    monkeypatch.setattr("penstock.billing.Gateway.checkout", lead_astray)
    answer = shop.buy(shop.browser("owner"))
    assert answer.status_code == 503 and "location" not in answer.headers


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/",
        "https://checkout.stripe.com",
        "https://checkout.stripe.com@evil.example/",
        "https://checkout.stripe.com:8443/",
        "http://checkout.stripe.com/",
        "//checkout.stripe.com/",
        "https://checkout.stripe.com/\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
    ],
)
def test_other_checkout_pages_are_rejected(url: str) -> None:
    with pytest.raises(Unavailable):
        check_checkout_url(url)


def test_page_without_billing_says_how_packs_are_added(
    db: testing.Database, dashboard_settings: Settings, sim: Simulator
) -> None:
    for shop in opened(db, dashboard_settings, sim):
        owner = shop.browser("owner")
        page = owner.get("/app/quota").text
        assert "No packs are on sale" in page and forms(page) == []
        assert "penstock usage allow TENANT thumbnails 500 --purchase" in page
        db.execute(
            """select penstock.set_plan_price('price_500', '{"meter": "thumbnails", "amount": 500}')"""
        )
        answer = shop.buy(owner)
        assert answer.status_code == 422 and "illing is not configured" in answer.text
        assert "Packs" not in owner.get("/app/events").text


def test_read_only_dashboard_has_no_button(
    db: testing.Database, shop: Shop, stripe_settings: Settings
) -> None:
    shop.site.app.state.settings = replace(stripe_settings, read_only=True)
    owner = shop.browser("owner")
    assert forms(owner.get("/app/quota").text) == []
    answer = shop.buy(owner)
    assert answer.status_code == 403 and "read-only" in answer.text
