"""Types of forecasts, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from penstock.types.amounts import exact_fields, known_fields


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected cost, usage and duration of a job, as far as known."""

    tasks: int
    units: dict[str, Decimal]
    cost: ForecastCost
    quota: tuple[ForecastQuota, ...]
    finish: ForecastFinish
    budget: ForecastBudget | None = None

    @property
    def fits(self) -> bool:
        """Whether the quotas and the budget suffice for all of its tasks."""
        return all(line.fits for line in self.quota) and (self.budget is None or self.budget.fits)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Forecast:
        """Convert the result of forecast_job and forecast."""
        values = known_fields(cls, document)
        values["tasks"] = values["tasks"] or 0
        values["units"] = {name: Decimal(amount) for name, amount in values["units"].items()}
        values["cost"] = ForecastCost(**exact_fields(ForecastCost, values["cost"], "low", "expected", "high"))
        values["quota"] = tuple(
            ForecastQuota(**exact_fields(ForecastQuota, line, "needs", "left", "limit"))
            for line in values["quota"]
        )
        values["finish"] = ForecastFinish.read(values["finish"])
        if values.get("budget") is not None:
            values["budget"] = ForecastBudget(**exact_fields(ForecastBudget, values["budget"], "amount"))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ForecastCost:
    """A cost range in the base currency, and the providers without a price."""

    low: Decimal
    expected: Decimal
    high: Decimal
    currency: str
    unpriced: list[str]


@dataclass(frozen=True, slots=True)
class ForecastQuota:
    """How much of a limited meter a job needs, and how much is left now."""

    meter: str
    needs: Decimal
    left: Decimal
    limit: Decimal
    fits: bool


@dataclass(frozen=True, slots=True)
class ForecastFinish:
    """The seconds until a job ends, with a range; if unknown, the reason."""

    seconds: float | None
    low: float | None
    high: float | None
    at: datetime | None
    workers: int
    bottleneck: str | None
    reason: str | None

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> ForecastFinish:
        """Convert a part of a forecast."""
        values = known_fields(cls, document)
        for name in ("seconds", "low", "high"):
            values[name] = None if values[name] is None else float(values[name])
        values["at"] = values["at"] and datetime.fromisoformat(values["at"])
        values["workers"] = int(values["workers"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class ForecastBudget:
    """The requested budget, and whether the job surely stays within it."""

    amount: Decimal
    fits: bool
