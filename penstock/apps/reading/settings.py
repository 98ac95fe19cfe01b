"""What the environment says: who writes, and who speaks.

`READING_MODEL` writes: `openai/gpt-5-mini`, `anthropic/claude-haiku-4-5`, or any `name/model` that speaks as
OpenAI does at `READING_URL`. `READING_VOICE_MODEL` reads aloud, as `READING_VOICE`, at `READING_VOICE_URL`;
without it that is espeak-ng, on this machine. Keys are where the clients look for them: `OPENAI_API_KEY`,
`ANTHROPIC_API_KEY`.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from urllib.parse import urlsplit

SIMULATOR = "simulator/gpt-demo"
SIMULATOR_URL = "http://127.0.0.1:8090/v1"


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


def is_here(url: str | None) -> bool:
    """Whether an address is on this machine: then no proxy stands between, whatever the environment names."""
    host = urlsplit(url or "").hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
