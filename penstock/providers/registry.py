"""Finds the adapter of a provider."""

from __future__ import annotations

from functools import cache

from penstock.providers.anthropic_text import AnthropicText
from penstock.providers.elevenlabs import ElevenLabsSpeech
from penstock.providers.espeak import EspeakSpeech
from penstock.providers.google_vision import GoogleVision
from penstock.providers.interface import Adapter, Medium
from penstock.providers.openai_speech import OpenAISpeech
from penstock.providers.openai_text import CompatibleText, OpenAIText
from penstock.providers.replicate import ReplicateVideo
from penstock.providers.runway import RunwayVideo
from penstock.sdk.context import Fail

_COMPATIBLE: tuple[Adapter, ...] = (CompatibleText(), OpenAISpeech())


@cache
def adapters() -> dict[str, tuple[Adapter, ...]]:
    """The adapters of the providers that are known by name."""
    found: tuple[Adapter, ...] = (
        *(OpenAIText(), AnthropicText(), GoogleVision()),
        *(OpenAISpeech(), ElevenLabsSpeech(), EspeakSpeech()),
        *(ReplicateVideo(), RunwayVideo()),
    )
    return {name: tuple(a for a in found if a.name == name) for name in sorted({a.name for a in found})}


def adapter(provider: str, medium: Medium) -> Adapter:
    """The adapter of `name` or `name/model`. Other names are hosts with OpenAI's API."""
    name = provider.partition("/")[0]
    for found in adapters().get(name, _COMPATIBLE):
        if medium in found.media:
            return found
    raise Fail(f"{name} makes no {medium}", code="unknown_provider")
