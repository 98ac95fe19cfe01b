"""Where a customer may be sent: to Stripe's checkout, and back."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from penstock.errors import Invalid, Unavailable

CHECKOUT_ORIGIN = "https://checkout.stripe.com"
"""Where the checkout pages of Stripe are."""
_LONGEST = 2000


def check_return_url(url: str, name: str, origins: Sequence[str]) -> str:
    """Raise Invalid unless the URL is on one of these origins: else it could lead customers anywhere."""
    parts = None
    # Browsers read a backslash as a slash and drop control characters; Python does neither.
    if len(url) <= _LONGEST and url.isascii() and url.isprintable() and not set(url) & set("\\ "):
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            parts = None
    if parts is None or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        raise Invalid(f"{name} must be an http or https URL", code="invalid_url", details={"field": name})
    if _origin(url) not in {_origin(each) for each in origins if each != "*"}:
        raise Invalid(
            f"{name} must be on an allowed origin (got {parts.scheme}://{parts.netloc})",
            code="invalid_url",
            hint="Add its origin to PENSTOCK_ALLOWED_ORIGINS.",
            details={"field": name},
        )
    return url


def check_checkout_url(url: str) -> str:
    """Raise Unavailable unless the URL is a page of Stripe's checkout."""
    if not url.startswith(f"{CHECKOUT_ORIGIN}/") or not url.isprintable() or set(url) & set("\\ "):
        raise Unavailable(
            f"Stripe returned a checkout page that is not on {CHECKOUT_ORIGIN}", code="stripe_unavailable"
        )
    return url


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return (
        parts.scheme,
        (parts.hostname or "").lower(),
        parts.port or {"http": 80, "https": 443}.get(parts.scheme),
    )
