"""What a process says of itself while it lives: one line for each event, written at once, so that what it did is
known when it is killed. (What was written stays with the kernel, whatever becomes of the process.)"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Kept from before any shim: the clock that the database has as well, and nobody's jumps.
now = time.time


class History:
    """A file of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._pid = os.getpid()

    def note(self, event: str, **values: Any) -> None:
        line = {"event": event, "at": now(), "pid": self._pid, **values}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read(folder: Path, of: str = "*") -> Iterator[dict[str, Any]]:
    """All lines of all processes, or of some. One that was cut short by a kill was never a whole one."""
    for path in sorted(folder.glob(f"{of}.jsonl")):
        with path.open() as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)
