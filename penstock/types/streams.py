"""Streams of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What a handler streamed within half a second."""

    attempt: int
    """The number of the attempt."""
    lease: int
    """The lease of the attempt. A chunk with another lease begins a new stream: drop the earlier ones."""
    number: int
    """The position in the stream, from 1."""
    parts: list[str | dict[str, Any]]
    """Texts and events, in order."""

    @property
    def text(self) -> str:
        """The texts, without the events."""
        return "".join(part for part in self.parts if isinstance(part, str))
