"""The event log of a process: one line per event, written at once, so that it survives a kill of the process: the
kernel keeps written data."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Saved before any shim replaces it: this clock is the database's too, and does not jump.
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
