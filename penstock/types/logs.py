"""Log lines of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a handler logged."""

    id: int
    task_id: int
    attempt: int
    at: datetime
    level: str
    message: str
    fields: dict[str, Any] | None
