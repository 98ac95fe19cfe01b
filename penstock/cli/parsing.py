"""Reads the values of arguments and options: amounts, dates, times, pairs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from penstock.errors import Invalid


def amount_of(text: str, name: str = "AMOUNT") -> Decimal:
    """Parse a decimal number without losing digits."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise Invalid(f"{name} must be a decimal number (got {text!r})", code="usage")
    return amount


def amount_or_none(text: str) -> Decimal | None:
    """Parse a decimal number; "none" means None."""
    return None if text == "none" else amount_of(text)


def day_of(text: str | None, name: str) -> date | None:
    """Parse a date such as 2026-03-31."""
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name} must be a date such as 2026-03-31 (got {text!r})", code="usage") from None


def moment_of(text: str | None, name: str) -> datetime | None:
    """Parse a date or time; UTC unless it has a time zone."""
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{name} must be a time such as 2026-03-31T12:00Z (got {text!r})", code="usage"
        ) from None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def pairs_of(words: list[str]) -> dict[str, str]:
    """Parse arguments of the form key=value."""
    pairs = dict[str, str]()
    for word in words:
        name, mark, value = word.partition("=")
        if not (name and mark):
            raise Invalid(f"expected KEY=VALUE (got {word!r})", code="usage")
        pairs[name] = value
    return pairs


def names_of(text: str) -> list[str]:
    """Parse names that are separated by commas."""
    return [name.strip() for name in text.split(",")]
