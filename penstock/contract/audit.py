"""Audit: who did what, when, to what."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.postgres import db
from penstock.types import AuditHead, AuditLine, AuditSeal

FIELDS: Mapping[str, filters.Field] = {
    "action": filters.words("action"),
    "actor": filters.words("actor"),
    "subject": filters.words("subject"),
    "job": filters.ids("job_id"),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("at"),
}

_LINES: LiteralString = """\
select id, at, tenant_id, actor, action, job_id, subject, details from penstock.audit_log where """


async def seal(database: db.Database) -> AuditSeal | None:
    """Seal the next lines, which proves later that none of them was changed. None: nothing to seal yet."""
    rows = await db.call(database, "seal_audit_log")
    return AuditSeal(**rows[0]) if rows else None


async def head(database: db.Database) -> AuditHead:
    """The newest seal, and how many lines are sealed and not sealed."""
    [row] = await db.call(database, "audit_head")
    return AuditHead(**row)


async def check(
    database: db.Database, *, lines: int | None = None, head: str | None = None
) -> builtins.list[str]:
    """What is wrong with the log: lines that are not as they were sealed, newest first."""
    rows = await db.call(database, "check_audit_log", p_lines=lines, p_head=head)
    return [f"seal {row['seal']}: {row['problem']}" if row["seal"] else row["problem"] for row in rows]


async def list(
    database: db.Database,
    *,
    filter: str = "",
    tenant_ids: Sequence[UUID] | None = None,
    job_id: UUID | None = None,
    before: int | None = None,
    limit: int = 50,
) -> builtins.list[AuditLine]:
    """Lines of the audit log, newest first. The next page is `before` the id of the last line."""
    chosen = await filters.conditions(database, filter, FIELDS)
    if tenant_ids is not None:
        # Row security restricts the tenants anyway, but this condition makes an index usable.
        chosen.append(("tenant_id = any (%s)", [builtins.list(tenant_ids)]))
    if job_id is not None:
        chosen.append(("job_id = %s", [job_id]))
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _LINES + condition + " order by id desc limit %s"
    rows = await db.rows(database, statement, [*values, filters.page(limit)])
    return [AuditLine(*row) for row in rows]
