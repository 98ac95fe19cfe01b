"""What the environment says: who writes, and who speaks.

`READING_MODEL` writes: `openai/gpt-5-mini`, `anthropic/claude-haiku-4-5`, or any `name/model` that speaks as
OpenAI does at `READING_URL`. `READING_VOICE_MODEL` reads aloud, as `READING_VOICE`, at `READING_VOICE_URL`;
without it that is espeak-ng, on this machine. Keys are where the clients look for them: `OPENAI_API_KEY`,
`ANTHROPIC_API_KEY`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.apps.asking import SIMULATOR_URL

SIMULATOR = "simulator/gpt-demo"


@dataclass(frozen=True, slots=True)
class Settings:
    """Who writes and who speaks. A provider is named as `name/model`, as its limits and prices are."""

    model: str = SIMULATOR
    url: str | None = SIMULATOR_URL
    voice_model: str | None = None
    voice_url: str | None = None
    voice: str = "alloy"


def settings() -> Settings:
    """As the environment has it now."""
    model = os.environ.get("READING_MODEL") or SIMULATOR
    return Settings(
        model=model,
        url=os.environ.get("READING_URL") or (SIMULATOR_URL if model == SIMULATOR else None),
        voice_model=os.environ.get("READING_VOICE_MODEL") or None,
        voice_url=os.environ.get("READING_VOICE_URL") or None,
        voice=os.environ.get("READING_VOICE") or "alloy",
    )
