"""Sessions of the dashboard."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.postgres import db
from penstock.types import Session


async def open(
    database: db.Database,
    *,
    role: str,
    subject: UUID | None,
    user_agent: str | None = None,
    expires_at: datetime | None = None,
) -> str:
    """Open a session for a user or key. Returns the secret for the browser's cookie."""
    options: dict[str, Any] = {"user_agent": user_agent, "expires_at": expires_at and expires_at.isoformat()}
    [row] = await db.call(
        database, "open_session", p_role=role, p_subject=subject, p_options=db.Json(options)
    )
    return row["secret"]


async def list(database: db.Database, *, subject: UUID | None = None) -> builtins.list[Session]:
    """The caller's sessions, last used first; for the service those of a subject, or all."""
    return [Session(**row) for row in await db.call(database, "list_sessions", p_subject=subject)]


async def end(database: db.Database, *, session_id: UUID) -> None:
    """End a session at once."""
    await db.call(database, "end_session", p_session_id=session_id)


async def end_others(database: db.Database) -> int:
    """End all sessions of the caller except the current one. Returns their number."""
    return await db.value(database, "end_other_sessions")
