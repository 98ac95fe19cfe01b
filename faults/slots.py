"""A process of a run that is started again when it dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Slot:
    """A process that is started again when it dies."""

    name: str
    spawn: Callable[[], Any]
    process: Any = None
    why: str | None = None
    """The reason for its coming end, where the run knows it."""
    drained_at: float = 0.0
    is_paused: bool = False
    is_short: bool = False
    armed: str | None = None
    """The point at which it kills itself."""
    has_begun: Callable[[int], bool] = lambda _: True
    """Whether the process with this pid handles signals by now."""

    @property
    def is_up(self) -> bool:
        return (
            self.process is not None and self.process.is_alive() and not self.is_paused and self.why is None
            and self.has_begun(self.process.pid)
        )  # fmt: skip

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)
