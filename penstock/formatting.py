"""Text for people: durations, amounts of money, counts, and text that is safe to print on a terminal."""

from __future__ import annotations

import re
from decimal import Decimal

from penstock.errors import Invalid

_YEAR = 366 * 86400
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")


def clean(text: str) -> str:
    """The text on one line, without escape sequences and control characters."""
    return _CONTROL.sub(" ", _ESCAPE.sub("", text)).strip()


def seconds(value: float | str) -> float:
    """Seconds of a duration: a number, or text such as "90s", "2m", "1h30m", "1d". At most a year."""
    if isinstance(value, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise Invalid(f"invalid duration {value!r}", hint='Use a form such as "90s", "2m" or "1h30m".')
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 <= value <= _YEAR:
        raise Invalid(f"duration must be between 0 seconds and 366 days (got {value})")
    return float(value)


def duration(seconds: float | None) -> str:
    """A duration in its largest unit."""
    if seconds is None:
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(seconds, 0))}s"


def money(amount: Decimal | None, currency: str = "") -> str:
    """An amount of money with two to six decimal places."""
    if amount is None:
        return ""
    whole, _, cents = format(round(amount, 6), ",f").partition(".")
    return f"{whole}.{cents.rstrip('0').ljust(2, '0')} {currency}".strip()


def spending(cost: Decimal, budget: Decimal | None, currency: str) -> str:
    """A cost with its budget: "0.03 of 0.05 USD". Empty if there is neither."""
    if not cost and budget is None:
        return ""
    return f"{money(cost)}{'' if budget is None else f' of {money(budget)}'} {currency}"


def counted(count: int, noun: str) -> str:
    """A count with its noun, singular or plural: "1 task", "2,000 tasks"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
