"""Answers of language models: whole, cut off, refused or filtered, after some reasoning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from penstock.simulator import content, documents
from penstock.simulator.provider import ProviderRequest, invalid

REFUSAL = "I'm sorry, but I can't help with that request."


@dataclass(frozen=True, slots=True)
class Written:
    """A model's answer."""

    text: str
    end: Literal["stop", "length", "refusal", "filter"]
    reasoning_tokens: int

    @property
    def tokens(self) -> int:
        """All output tokens."""
        return content.tokens(self.text) + self.reasoning_tokens


def write(
    request: ProviderRequest, prompt: str, most: int | None, schema: dict[str, Any] | None = None
) -> Written:
    """The answer of at most `most` tokens, including reasoning; with a schema, a document that fits it."""

    def make(room: int | None) -> tuple[str, bool]:
        if schema is None:
            return content.answer(prompt, request.seed, room)
        return _document(schema, prompt, request.seed, room)

    thought = request.behavior.reasoning_tokens
    if most is not None and thought >= most:
        return Written("", "length", most)
    match request.behavior.outcome:
        case "refusal":
            return Written(REFUSAL, "refusal", thought)
        case "filter" | "truncated" as outcome:
            text, _ = make(None if most is None else most - thought)
            return Written(text[: len(text) // 2], "filter" if outcome == "filter" else "length", thought)
        case None:
            text, is_cut = make(None if most is None else most - thought)
            return Written(text, "length" if is_cut else "stop", thought)


def schema_of(value: Any, field: str) -> dict[str, Any]:
    """The schema in a field that must have one."""
    schema: Any = cast("dict[str, Any]", value).get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, dict):
        raise invalid(field, "an object with a schema", cast("object", value))
    return cast("dict[str, Any]", schema)


def _document(schema: dict[str, Any], prompt: str, seed: int, most: int | None) -> tuple[str, bool]:
    text = documents.fill(schema, prompt, seed)
    if most is None or most >= content.tokens(text):
        return text, False
    return text[: most * 4], True
