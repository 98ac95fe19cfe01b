"""Exact amounts, and reading documents that may say more than this version knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from penstock.errors import Invalid

Amount: TypeAlias = Decimal | int
"""An exact amount of money or of a meter, so never a float."""


def exact(amount: Amount | str, field: str = "amount") -> Decimal:
    """An exact amount. Rejects a float, because it may differ from the number that was written."""
    try:
        found = None if isinstance(amount, float | bool) else Decimal(amount)
    except (InvalidOperation, TypeError, ValueError):
        found = None
    if found is None or not found.is_finite():
        raise Invalid(
            f"{field} must be a decimal number (got {amount!r})",
            hint="In Python write Decimal('0.15'): a float is not exact.",
            details={"field": field},
        )
    return found


def exact_fields(cls: type[Any], document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    values = known_fields(cls, document)
    return values | {name: None if values[name] is None else Decimal(values[name]) for name in names}


def known_fields(cls: type[Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows: a newer schema may return more."""
    return {field.name: document[field.name] for field in fields(cls) if field.name in document}
