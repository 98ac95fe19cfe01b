"""Types of usage, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

from penstock.types.amounts import Amount, exact_fields, known_fields


@dataclass(frozen=True, slots=True)
class Meter:
    """A unit of usage that is counted, such as tokens."""

    name: str
    period: Literal["day", "month", "total"]
    mode: Literal["observe", "enforce"]
    comment: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A subscription plan. A meter that is not in `limits` is not limited."""

    name: str
    title: str
    comment: str
    features: list[str]
    price: Decimal
    currency: str
    weight: float
    is_active: bool
    limits: dict[str, Decimal | None]


class PlanValues(TypedDict, total=False):
    """The settings of a plan. Those left out do not change; `limits` are replaced as a whole."""

    title: str
    comment: str
    limits: Mapping[str, Amount | None]
    features: list[str]
    price: Amount
    currency: str
    weight: float
    is_active: bool
    position: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A tenant's limit of a meter in the current period."""

    meter: str
    amount: Decimal
    mode: Literal["observe", "enforce"]
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class MeterUsage:
    """How much of a meter is used, reserved and left in the current period (`left` None: not limited)."""

    meter: str
    used: Decimal
    held: Decimal
    limit: Decimal | None
    left: Decimal | None
    mode: Literal["observe", "enforce"] | None
    period: Literal["day", "month", "total"]
    resets_at: datetime | None


@dataclass(frozen=True, slots=True)
class UsageStatus:
    """A tenant's plan and its usage."""

    tenant_id: UUID
    plan: str | None
    features: list[str]
    over_limit: bool
    usage: tuple[MeterUsage, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> UsageStatus:
        """Convert the result of get_usage_status."""
        lines: list[MeterUsage] = []
        for meter, line in document["usage"].items():
            values = exact_fields(MeterUsage, {"meter": meter, **line}, "used", "held", "limit", "left")
            values["resets_at"] = values["resets_at"] and datetime.fromisoformat(values["resets_at"])
            lines.append(MeterUsage(**values))
        known = known_fields(cls, document)
        known |= {"tenant_id": UUID(document["tenant_id"]), "usage": tuple(lines)}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class UsageDay:
    """A tenant's usage of a meter on a day (UTC), by action: a task kind, or a name that a caller gave."""

    tenant_id: UUID
    day: date
    action: str
    meter: str
    amount: Decimal
