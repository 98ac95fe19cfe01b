"""The providers that are known by name: their address and the environment variable of their key."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A provider's own address, and where its key may be in the environment."""

    url: str
    variable: str


LOCAL = ("espeak",)
"""Providers that run on this machine, without an address and a key."""

OWN: dict[str, Known] = {
    "anthropic": Known("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "elevenlabs": Known("https://api.elevenlabs.io", "ELEVENLABS_API_KEY"),
    "google": Known("https://vision.googleapis.com", "GOOGLE_API_KEY"),
    "openai": Known("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "replicate": Known("https://api.replicate.com/v1", "REPLICATE_API_TOKEN"),
    "runway": Known("https://api.dev.runwayml.com/v1", "RUNWAYML_API_SECRET"),
}
