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


async def get(database: db.Database, *, name: str) -> Any:
    """The value of a setting. Raises NotFound for an unknown name."""
    return await db.value(database, "get_setting", p_name=name)


async def define(database: db.Database, *, name: str, value: Any, comment: str) -> None:
    """Define a setting of an app, named `app.word`, with its default. A value that was set stays."""
    await db.call(database, "define_setting", p_name=name, p_value=db.Json(value), p_comment=comment)
