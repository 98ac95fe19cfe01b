"""The form of a model's answer about notes, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

from penstock.apps.notes.canon import CANON, MOST_IDEAS


class Ideas(BaseModel):
    """The ideas of a note."""

    core: list[str] = []
    supporting: list[str] = []


class Applied(NamedTuple):
    """An idea that a note got, and its role."""

    name: str
    role: str


def schema(keys: Sequence[str], custom: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an answer for these notes."""
    names = {"type": "array", "items": {"type": "string", "enum": [*CANON, *custom]}, "maxItems": MOST_IDEAS}
    one = {
        "type": "object",
        "properties": {"core": names, "supporting": names},
        "required": ["core", "supporting"],
    }
    return {"type": "object", "properties": dict.fromkeys(keys, one), "required": list(keys)}


def parse(answer: Any, keys: Iterable[str], custom: Sequence[str]) -> dict[str, Ideas]:
    """The ideas of each note that the answer names. Unknown keys and unknown ideas are left out."""
    known = {*CANON, *custom}
    found: dict[str, Ideas] = {}
    fields = cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}
    for key in keys:
        given = fields.get(key)
        if not isinstance(given, dict):
            continue
        roles: dict[str, list[str]] = {}
        for role in ("core", "supporting"):
            names: Any = cast("dict[str, Any]", given).get(role)
            roles[role] = (
                [name for name in cast("list[Any]", names) if isinstance(name, str) and name in known]
                if isinstance(names, list)
                else []
            )
        found[key] = Ideas(**roles)
    return found


def applied(ideas: Ideas, preserved: Sequence[str] = ()) -> list[Applied]:
    """The ideas to add: core ones first, each once, at most `MOST_IDEAS`, without those that are there."""
    added: list[Applied] = []
    seen = set(preserved)
    for role, names in (("core", ideas.core), ("supporting", ideas.supporting)):
        for name in names:
            if name not in seen and len(added) < MOST_IDEAS:
                seen.add(name)
                added.append(Applied(name, role))
    return added
