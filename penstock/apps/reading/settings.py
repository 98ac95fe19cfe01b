"""Settings from environment variables: the language model and the voice.

`READING_MODEL`: the language model, such as `openai/gpt-5-mini`, `anthropic/claude-haiku-4-5`, or any
`name/model` with an OpenAI-compatible API at `READING_URL`. `READING_VOICE_MODEL`, `READING_VOICE` and
`READING_VOICE_URL`: the speech model, its voice and URL; default: espeak-ng on this machine. Keys come from
`OPENAI_API_KEY` and `ANTHROPIC_API_KEY`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.apps.addresses import SIMULATOR_URL

SIMULATOR = "simulator/gpt-demo"


@dataclass(frozen=True, slots=True)
class Settings:
    """The providers of text and speech, by their Penstock names `name/model`."""

    model: str = SIMULATOR
    url: str | None = SIMULATOR_URL
    voice_model: str | None = None
    voice_url: str | None = None
    voice: str = "alloy"


def settings() -> Settings:
    """Read the settings from the environment."""
    model = os.environ.get("READING_MODEL") or SIMULATOR
    return Settings(
        model=model,
        url=os.environ.get("READING_URL") or (SIMULATOR_URL if model == SIMULATOR else None),
        voice_model=os.environ.get("READING_VOICE_MODEL") or None,
        voice_url=os.environ.get("READING_VOICE_URL") or None,
        voice=os.environ.get("READING_VOICE") or "alloy",
    )
