"""Types of jobs that a server's app can start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StartableType:
    """A type of job, or a task that is a job of its own, that clients can start by name."""

    name: str
    summary: str
    """The first line of its docstring."""
    params_schema: dict[str, Any] | None
    """The JSON schema of its params."""
