"""Calls of the managed model: the guard before it, and its answer as a document of a fixed form."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock import guards, providers
from penstock.apps.notes.settings import anthropic_url
from penstock.errors import Invalid, Unavailable
from penstock.providers import anthropic_text
from penstock.redaction import redact_personal
from penstock.storage import content

PROVIDER = "anthropic"
MAX_IMAGE = 5 << 20
IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif")
_ATTEMPT_SECONDS = 60.0


@dataclass(slots=True)
class Guarded:
    """Texts that may go to the model, by key, and what the guard found."""

    texts: dict[str, str]
    screened: list[str] = field(default_factory=list[str])
    """Keys of texts that give instructions to the model; they are left out."""
    is_unchecked: bool = False
    """Whether the shield did not answer for some text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model returned, and the tokens it used."""

    document: Any
    input_tokens: int
    output_tokens: int


async def guard(texts: Mapping[str, str]) -> Guarded:
    """Redact and screen each text separately."""
    clean = {key: redact_personal(text) for key, text in texts.items()}
    verdicts = await guards.screen(list(clean.values()))
    found = Guarded({}, is_unchecked=any(verdict.is_unchecked for verdict in verdicts))
    for (key, text), verdict in zip(clean.items(), verdicts, strict=True):
        if verdict.is_attack:
            found.screened.append(key)
        else:
            found.texts[key] = text
    return found


def image_part(data: bytes) -> dict[str, Any]:
    """An image as a part of a message; its type comes from its content."""
    if len(data) > MAX_IMAGE:
        raise Invalid(f"the image must have at most {MAX_IMAGE >> 20} MB", code="too_large")
    kind = content.detected(data[: content.HEAD_BYTES])
    if kind not in IMAGES:
        raise Invalid("the image must be a JPEG, PNG, WebP or GIF", code="invalid_image")
    source = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}


def estimate(system: str, parts: list[dict[str, Any]], most: int) -> int:
    """An upper estimate of a call's tokens, for the capacity of the provider."""
    text = sum(providers.tokens(part.get("text", "")) for part in parts)
    images = sum(1600 for part in parts if part["type"] == "image")
    return providers.tokens(system) + text + images + most


async def ask(
    model: str, system: str, parts: list[dict[str, Any]], form: dict[str, Any], most: int
) -> Answer:
    """Ask for a document of this form. Raises Unavailable if the model cannot answer now."""
    import anthropic

    url = anthropic_url()
    tool: Any = {"name": "answer", "description": "Answer with this document.", "input_schema": form}
    messages: Any = [{"role": "user", "content": parts}]
    connection = providers.connect_with_environment("anthropic", url, _ATTEMPT_SECONDS)
    async with anthropic_text.client(connection) as client:
        try:
            message = await client.messages.create(
                model=model, max_tokens=most, system=system, messages=messages, tools=[tool],
                tool_choice={"type": "tool", "name": "answer"},
            )  # fmt: skip
        except anthropic.APIStatusError as error:
            if error.status_code in (400, 401, 403, 404, 413, 422):
                text = "the model rejected the request"
                raise Invalid(text, code="provider_refused") from error
            wait = error.response.headers.get("retry-after", "")
            details = {"retry_after_seconds": int(wait)} if wait.isdigit() else {}
            raise Unavailable("the model is overloaded", code="provider_busy", details=details) from error
        except anthropic.APIConnectionError as error:
            raise Unavailable("the model cannot be reached", code="provider_away") from error
    found: Any = next((block.input for block in message.content if block.type == "tool_use"), None)
    if isinstance(found, str):
        found = json.loads(found)
    return Answer(found, message.usage.input_tokens, message.usage.output_tokens)
