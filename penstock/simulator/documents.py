"""JSON documents that fit a schema, made from the words of the prompt. The same prompt gives the same one."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any, cast

_WORD = re.compile(r"[^\W_]{2,}")
_MOST_ITEMS = 3
_MOST_DEPTH = 20


def fill(schema: Mapping[str, Any], prompt: str, seed: int) -> str:
    """A JSON document that fits the schema: strings are words of the prompt, enums and numbers are chosen."""
    words = _WORD.findall(prompt[-20_000:]) or ["water"]
    chance = random.Random(f"{seed}:{prompt}")
    return json.dumps(_Filler(schema, words, chance).value(schema, 0), ensure_ascii=False)


class _Filler:
    def __init__(self, root: Mapping[str, Any], words: list[str], chance: random.Random) -> None:
        self._root, self._words, self._chance = root, words, chance

    def value(self, schema: Mapping[str, Any], depth: int) -> Any:
        if depth > _MOST_DEPTH:
            return None
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._chance.choice(list(schema["enum"]))
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self.value(self._chance.choice(list(options)), depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self._chance.choice(cast("list[str]", kind))
        return self._of_type(str(kind), schema, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        if kind == "object":
            properties = cast("Mapping[str, Any]", schema.get("properties", {}))
            return {name: self.value(each, depth + 1) for name, each in properties.items()}
        if kind == "array":
            least = int(schema.get("minItems", 0))
            count = min(
                int(schema.get("maxItems", _MOST_ITEMS)), max(least, self._chance.randint(1, _MOST_ITEMS))
            )
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]
        if kind == "integer":
            return self._chance.randint(int(schema.get("minimum", 0)), int(schema.get("maximum", 100)))
        if kind == "number":
            return round(self._chance.uniform(schema.get("minimum", 0), schema.get("maximum", 100)), 3)
        if kind == "boolean":
            return self._chance.random() < 0.5
        return None if kind == "null" else self._text(schema)

    def _text(self, schema: Mapping[str, Any]) -> str:
        count = self._chance.randint(1, 4)
        start = self._chance.randrange(len(self._words))
        text = " ".join(self._words[start : start + count])[: int(schema.get("maxLength", 200))]
        return text.ljust(int(schema.get("minLength", 0)), ".")

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_MOST_DEPTH):
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return schema
            found: Any = self._root
            for part in reference[2:].split("/"):
                found = found[part]
            schema = found
        return {"type": "null"}
