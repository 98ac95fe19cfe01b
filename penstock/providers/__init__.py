"""Adapters of outside providers: text, speech, vision and video behind one small interface.

    answer = await providers.ask(ctx, TextRequest("Write a haiku.", 200), provider="openai/gpt-5.4-mini")

An adapter has `submit`, `check` and `cancel`, tells the units of an answer, reads limits from headers, and
maps errors to codes. Keys are stored encrypted per provider and tenant, and sent to the provider's host only.
"""

from __future__ import annotations

from penstock.providers.calling import ask, connect, connect_with_environment
from penstock.providers.catalogue import room_to_think
from penstock.providers.connection import Connection
from penstock.providers.interface import (
    Adapter,
    Answer,
    Image,
    Medium,
    Request,
    Schema,
    SpeechRequest,
    Submitted,
    TextRequest,
    VideoRequest,
    VisionRequest,
    Word,
)
from penstock.providers.operating import operate, receive_webhooks
from penstock.providers.registry import adapter, adapters
from penstock.providers.reserving import most_units, reasoning_units, tokens

__all__ = [
    "Adapter",
    "Answer",
    "Connection",
    "Image",
    "Medium",
    "Request",
    "Schema",
    "SpeechRequest",
    "Submitted",
    "TextRequest",
    "VideoRequest",
    "VisionRequest",
    "Word",
    "adapter",
    "adapters",
    "ask",
    "connect",
    "connect_with_environment",
    "most_units",
    "operate",
    "reasoning_units",
    "receive_webhooks",
    "room_to_think",
    "tokens",
]
