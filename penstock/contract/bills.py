"""Bills: what providers billed, compared with the ledger. Amounts of money are Decimals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from decimal import Decimal
from typing import Any

from penstock.postgres import db
from penstock.types import BillLine, CostDifference


async def import_lines(database: db.Database, *, provider: str, lines: Sequence[BillLine]) -> int:
    """Store lines of a provider's usage export; returns the number of lines stored.

    They replace earlier lines of the days that they are for. `provider` is the part of a provider's name
    before the slash.
    """
    documents = [asdict(line) | {"day": line.day.isoformat()} for line in lines]
    return await db.value(database, "import_bill", p_provider=provider, p_lines=db.exact_json(documents))


async def differences(database: db.Database, *, month: date) -> list[CostDifference]:
    """The ledger beside the bills of a month, for each provider."""
    rows = await db.rows(database, "select * from penstock.cost_differences(%s)", (month,))
    return [CostDifference(*row) for row in rows]


async def reconcile(database: db.Database, *, provider: str, month: date) -> tuple[CostDifference, int]:
    """Correct a provider's estimates by its bill; returns the comparison and the number of corrections."""
    found: dict[str, Any] = await db.document(database, "reconcile_costs", p_provider=provider, p_month=month)
    amounts = {name: Decimal(found[name]) for name in ("booked", "estimated", "billed", "difference")}
    return CostDifference(found["provider"], **amounts), found["corrections"]
