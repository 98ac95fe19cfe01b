"""Entitlements: what the plan of a tenant allows, and the gates that ask for it."""

from __future__ import annotations

from typing import LiteralString, Unpack
from uuid import UUID

from penstock.postgres import db
from penstock.types import Amount, Entitlements, Gate, GateValues, GateVerdict, exact

_GATES: LiteralString = "select name, feature, meter, mode, kinds, comment from penstock.gates order by name"


async def resolve(database: db.Database, *, tenant_id: UUID | None = None) -> Entitlements:
    """The limits and capabilities of a tenant. Raises Conflict (`no_plan`) for a user without a plan."""
    return Entitlements.read(await db.document(database, "resolve_entitlements", p_tenant_id=tenant_id))


async def check(
    database: db.Database, *, gate: str, tenant_id: UUID | None = None, amount: Amount = 1
) -> GateVerdict:
    """Whether a tenant passes a gate. Reserves and records nothing."""
    return GateVerdict.read(
        await db.document(
            database, "check_gate", p_gate=gate, p_tenant_id=tenant_id, p_amount=exact(amount, "amount")
        )
    )


async def require(
    database: db.Database, *, gate: str, tenant_id: UUID, amount: Amount = 1, key: str | None = None
) -> GateVerdict:
    """Pass a gate, or raise UpgradeRequired with what is missing.

    A gate of a meter reserves the amount: commit or release `hold_id` with `usage.commit` and
    `usage.release`. The same key returns the same hold.
    """
    return GateVerdict.read(
        await db.document(
            database,
            "require_gate",
            p_gate=gate,
            p_tenant_id=tenant_id,
            p_amount=exact(amount, "amount"),
            p_key=key,
        )
    )


async def gates(database: db.Database) -> list[Gate]:
    """All gates."""
    return [Gate(*row) for row in await db.rows(database, _GATES, ())]


async def set_gate(database: db.Database, *, name: str, **values: Unpack[GateValues]) -> None:
    """Create or change a gate."""
    await db.call(database, "set_gate", p_name=name, p_values=dict(values))


async def remove_gate(database: db.Database, *, name: str) -> None:
    """Remove a gate; tasks that it held back are queued."""
    await db.call(database, "remove_gate", p_name=name)
