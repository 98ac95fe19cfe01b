"""Google Sheets and accounts: each is bound to the tenant that used it first."""

from __future__ import annotations

import builtins
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.postgres import db
from penstock.types import BindingKind, SheetBinding

_BINDINGS: LiteralString = """\
select tenant_id, kind, name, label, created_at from penstock.sheet_bindings
where %s::uuid is null or tenant_id = %s order by tenant_id, kind, name limit %s"""


async def bind(
    database: db.Database,
    *,
    tenant_id: UUID,
    account: str,
    label: str | None = None,
    sheet: str | None = None,
    is_new: bool = True,
) -> None:
    """Bind an account and a sheet to a tenant. Raises Forbidden if another tenant has one of them.

    With `is_new=False` a sheet that no tenant has stays free.
    """
    options: dict[str, Any] = {"sheet": sheet, "label": label, "is_new": is_new}
    given = db.Json({name: value for name, value in options.items() if value is not None})
    await db.call(database, "bind_sheet", p_tenant_id=tenant_id, p_account=account, p_options=given)


async def list(
    database: db.Database, *, tenant_id: UUID | None = None, limit: int = 50
) -> builtins.list[SheetBinding]:
    """The bindings of a tenant, or of all."""
    rows = await db.rows(database, _BINDINGS, (tenant_id, tenant_id, filters.page(limit)))
    return [SheetBinding(*row) for row in rows]


async def release(database: db.Database, *, kind: BindingKind, name: str) -> UUID:
    """End a binding, so that the next tenant can use the sheet or account. Returns the former tenant."""
    return await db.value(database, "release_sheet", p_kind=kind, p_name=name)
