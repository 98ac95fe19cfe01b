"""What the plan of a tenant allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

GateMode = Literal["observe", "enforce"]


@dataclass(frozen=True, slots=True)
class Entitlements:
    """What a tenant may do now."""

    tenant_id: UUID
    tier: str | None
    """The plan that applies now."""
    plan: str | None
    """The plan that the tenant is on. From `until` on another one applies."""
    since: datetime | None
    until: datetime | None
    limits: dict[str, Decimal | None]
    """Every meter; None: not limited."""
    used: dict[str, Decimal]
    capabilities: dict[str, bool]
    """The feature of every gate."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Entitlements:
        """From the database's document."""
        times = {name: _time(document[name]) for name in ("since", "until")}
        return cls(
            UUID(document["tenant_id"]),
            document["tier"],
            document["plan"],
            times["since"],
            times["until"],
            {meter: None if x is None else Decimal(x) for meter, x in document["limits"].items()},
            {meter: Decimal(x) for meter, x in document["used"].items()},
            dict(document["capabilities"]),
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """What a tenant needs a feature of its plan, or room in a meter, for."""

    name: str
    feature: str | None
    meter: str | None
    mode: GateMode
    kinds: list[str]
    comment: str


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether a tenant passes a gate."""

    gate: str
    allowed: bool
    mode: GateMode
    would_have_blocked: bool
    plan: str | None
    feature: str | None
    meter: str | None
    limit: Decimal | None
    used: Decimal | None
    hold_id: UUID | None = None
    """The reservation of a gate of a meter: commit or release it."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> GateVerdict:
        """From the database's document."""
        numbers = {name: document[name] for name in ("limit", "used")}
        hold_id = document.get("hold_id")
        return cls(
            document["gate"],
            document["allowed"],
            document["mode"],
            document["would_have_blocked"],
            document["plan"],
            document["feature"],
            document["meter"],
            **{name: None if x is None else Decimal(x) for name, x in numbers.items()},
            hold_id=UUID(hold_id) if hold_id else None,
        )


class GateValues(TypedDict, total=False):
    """What can be set of a gate."""

    feature: str | None
    meter: str | None
    mode: GateMode
    kinds: list[str]
    comment: str


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
