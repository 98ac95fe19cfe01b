"""Types of costs, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal, TypeAlias
from uuid import UUID

from penstock.types.jobs import JobStatus

By: TypeAlias = Literal["day", "provider", "type", "tenant", "job"]
"""Fields to sum costs by."""


@dataclass(frozen=True, slots=True)
class CostSum:
    """Costs in the base currency, summed by `key`: a day, a provider, a type or an id."""

    key: str
    amount: Decimal
    unit_count: Decimal
    lines: int


@dataclass(frozen=True, slots=True)
class CostDay:
    """The costs of a provider on a day (UTC), in the base currency."""

    day: date
    provider: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class ExpensiveJob:
    """A job and its cost."""

    id: UUID
    tenant_id: UUID
    type: str
    title: str | None
    status: JobStatus
    cost: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class CostEntry:
    """A line of the ledger. `base_amount` is the amount in the base currency, at that day's exchange rate."""

    id: int
    at: datetime
    tenant_id: UUID
    job_id: UUID | None
    task_id: int | None
    provider: str | None
    cost_type: str
    meter: str | None
    unit_count: Decimal | None
    amount: Decimal
    currency: str
    base_amount: Decimal
    corrects: int | None
    reason: str | None
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class BillLine:
    """A line of a provider's usage export: what an item, such as a model, cost on a day (UTC)."""

    day: date
    item: str
    amount: Decimal
    currency: str


@dataclass(frozen=True, slots=True)
class CostDifference:
    """A provider's month in the base currency: the ledger, the estimates in it, the bill, ledger minus bill.

    `billed` and `difference` are None while no bill was imported.
    """

    provider: str
    booked: Decimal
    estimated: Decimal
    billed: Decimal | None
    difference: Decimal | None


@dataclass(frozen=True, slots=True)
class JobCost:
    """The cost of a job, the amount reserved for its running tasks, and its budget."""

    job_id: UUID
    cost: Decimal
    held: Decimal
    budget: Decimal | None


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one unit of a meter at a provider from a date on; None ends the price."""

    id: int
    provider: str
    tenant_id: UUID | None
    meter: str
    variant: str
    cost_type: str
    amount: Decimal | None
    currency: str
    valid_from: datetime
    valid_until: datetime | None
    is_current: bool


@dataclass(frozen=True, slots=True)
class ComparedPrice:
    """The current price of one unit of a meter at a provider; `place` 1 is the cheapest."""

    meter: str
    variant: str
    provider: str
    tenant_id: UUID | None
    amount: Decimal
    currency: str
    base_amount: Decimal
    place: int


@dataclass(frozen=True, slots=True)
class ExchangeRate:
    """The value of one unit of a currency in the base currency, from a date on."""

    currency: str
    rate: Decimal
    valid_from: datetime
