"""The button that buys a pack in Chromium: it reaches Stripe under the page's content security policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import server
from penstock.apps.slides.app import app as slides
from penstock.postgres import migrate
from penstock.settings import Settings
from penstock.simulator import Simulator
from tests.dashboard.test_browser import (
    RUN_AXE,
    TOO_WIDE,
    VARIANTS,
    Served,
    axe,
    chromium,
    key,
    serving,
    tenant,
)
from tests.dashboard.test_packs import sim, stripe_settings

__all__ = ["axe", "chromium", "sim", "stripe_settings"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Use 'content=.*:DeprecationWarning"),
]


@pytest.fixture
def shop(db: Any, stripe_settings: Settings, sim: Simulator, chromium: Any) -> Iterator[tuple[Served, str]]:
    """The dashboard of slides, and the key of an owner."""
    assert slides.own is not None
    migrate.migrate(db.dsn, folder=slides.own.folder, schema=slides.own.schema)
    sim.stripe.reset()
    for id, amount, name in (("price_50", 400, "Small pack"), ("price_500", 2550, "Large pack")):
        sim.stripe.account.add_price(id, is_recurring=False, amount=amount, name=name)
    db.execute("""select penstock.set_plan_price('price_500', '{"meter": "thumbnails", "amount": 500}'),
        penstock.set_plan_price('price_50', '{"meter": "thumbnails", "amount": 50}')""")
    owner = key(db, "owner", tenant(db, "Acme"))
    with serving(server.application(stripe_settings, slides), chromium) as served:
        yield served, owner


def test_button_leads_to_the_checkout(shop: tuple[Served, str], axe: str) -> None:
    served, owner = shop
    page = served.page(owner)
    for scheme, size in VARIANTS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(size)
        page.goto(f"{served.base}/dashboard/app/quota?bought=1")
        page.evaluate(axe)
        assert page.evaluate(RUN_AXE) == [] and page.evaluate(TOO_WIDE) <= 0, (scheme, size)
    page.context.route("https://checkout.stripe.com/**", lambda route: route.fulfill(body="Pay here"))
    page.get_by_role("button", name="Buy Large pack").click()
    page.wait_for_url("https://checkout.stripe.com/**")
    assert page.inner_text("body") == "Pay here"
    # Nothing but the checkout itself is requested elsewhere, and the policy blocked nothing.
    served.errors = [each for each in served.errors if not each.startswith("request to https://checkout")]
