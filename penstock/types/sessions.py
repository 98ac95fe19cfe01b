"""Types of dashboard sessions, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Session:
    """A dashboard session. `subject` is the user or key that signed in; None for a service token."""

    id: UUID
    subject: UUID | None
    role: str
    user_agent: str | None
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    is_current: bool
