"""Types of workers, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that runs tasks."""

    id: str
    host: str
    pid: int
    kinds: list[str]
    concurrency: int
    version: str
    state: Literal["running", "draining", "late", "gone", "stopped"]
    running: int
    started_at: datetime
    beat_at: datetime

    @property
    def is_alive(self) -> bool:
        """Whether it sent a heartbeat recently. A late worker may send one again."""
        return self.state not in ("gone", "stopped")


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Numbers of workers."""

    alive: int
    late: int
    gone: int
    slots: int
