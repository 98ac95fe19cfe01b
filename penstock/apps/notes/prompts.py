"""The prompts of the managed model. The texts here are the constants, version 0 of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from penstock.errors import Invalid

_VARIABLE = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready to be rendered."""

    name: str
    body: str
    version: int = 0
    model: str | None = None
    max_tokens: int | None = None
    is_fallback: bool = False

    async def aget(self) -> Prompt:
        """The version to use."""
        return self

    def render(self, **values: Any) -> str:
        """The text with its variables replaced, in one pass."""
        if set(values) != set(_VARIABLE.findall(self.body)):
            raise Invalid(f"prompt {self.name}: wrong variables (got {sorted(values)})")
        return _VARIABLE.sub(lambda found: str(values[found[1]]), self.body)

    @property
    def details(self) -> dict[str, Any]:
        """What a usage event says about the prompt of its call."""
        return {
            "prompt_name": self.name,
            "prompt_version": self.version,
            "prompt_fallback": self.is_fallback,
        }


TRANSCRIBE = Prompt(
    "transcribe",
    "Transcribe the text on this photo of a page. Keep paragraphs apart and leave out page numbers.",
    max_tokens=2048,
)
DISCOVER_CANON = Prompt(
    "discover_canon",
    "Name the great ideas that each note is about: at most two core ideas and at most three supporting ones.",
    max_tokens=1024,
)
DISCOVER_WITH_CUSTOM = Prompt(
    "discover_with_custom",
    "Name the great ideas that each note is about: at most two core ideas and at most three supporting ones. "
    "The reader has added these ideas: {{customList}}.",
    max_tokens=1024,
)
DISCOVER_BATCH = Prompt(
    "discover_batch",
    "Name the great ideas of every note below, each note by itself: at most two core ideas and at most three "
    "supporting ones. The reader has added these ideas: {{customList}}.",
    max_tokens=4096,
)
