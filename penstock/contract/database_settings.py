"""Settings in the database, which all processes share."""

from __future__ import annotations

import builtins
from typing import Any, LiteralString

from penstock.postgres import db
from penstock.types import Setting

_SETTINGS: LiteralString = "select name, value, comment from penstock.settings order by name"


async def settings(database: db.Database) -> builtins.list[Setting]:
    """All settings."""
    return [Setting(*row) for row in await db.rows(database, _SETTINGS, ())]


async def set(database: db.Database, *, name: str, value: Any) -> None:
    """Change a setting for all processes, at once."""
    await db.call(database, "set_setting", p_name=name, p_value=db.Json(value))
