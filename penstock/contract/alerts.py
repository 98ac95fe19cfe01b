"""Alerts to the operator: closed providers, new keys, storms of refusals and of failed logins."""

from __future__ import annotations

import builtins
from typing import Any, Literal
from uuid import UUID

from penstock.postgres import db
from penstock.types import Alert

Storm = Literal["quota_refusals", "failed_logins"]


async def list(database: db.Database, *, days: int = 7, limit: int = 50) -> builtins.list[Alert]:
    """The alerts of the last days, newest first."""
    return [Alert(**row) for row in await db.call(database, "list_alerts", p_days=days, p_limit=limit)]


async def take(database: db.Database) -> builtins.list[dict[str, Any]]:
    """Alerts that no process has logged yet. Each is returned once."""
    return [dict(row) for row in await db.call(database, "take_alerts")]


async def report(
    database: db.Database,
    kind: Storm,
    *,
    subject: str,
    count: int,
    tenant_id: UUID | None = None,
    details: dict[str, Any] | None = None,
) -> None:
    """Report a storm that this process has counted."""
    await db.call(
        database,
        "raise_alert",
        p_kind=kind,
        p_subject=subject,
        p_count=count,
        p_tenant_id=tenant_id,
        p_details=details or {},
    )
