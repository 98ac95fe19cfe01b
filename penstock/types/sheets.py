"""Types of bindings of Google Sheets, with the names of SQL and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

BindingKind = Literal["account", "sheet"]


@dataclass(frozen=True, slots=True)
class SheetBinding:
    """A Google Sheet or a Google account, and the tenant that it serves."""

    tenant_id: UUID
    kind: BindingKind
    name: str
    """The id of the spreadsheet, or the anonymous id of the account."""
    label: str | None
    """The e-mail address of the account, if known."""
    created_at: datetime
