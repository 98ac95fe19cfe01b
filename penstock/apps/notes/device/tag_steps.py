"""Renamed tags, as versioned steps: a store or an export of an older version gets the new names.

A step runs once on each device. Two devices that run it get the same tags, so their edits converge.
"""

from __future__ import annotations

from collections.abc import Iterable

STEPS: dict[int, dict[str, str]] = {
    11: {"Memory and Imagination": "Memory", "Signs and Symbols": "Symbols"},
    14: {"Angel": "Spirit", "Monarchy": "Government", "Aristocracy": "Government", "Mechanics": "Technology"},
}
"""Version → old name → new name."""


def after(version: int) -> list[dict[str, str]]:
    """The steps that data of this version lacks, oldest first."""
    return [names for number, names in sorted(STEPS.items()) if number > version]


def replace(tags: Iterable[str], names: dict[str, str]) -> list[str]:
    """The tags with new names, in their order, each once."""
    return list(dict.fromkeys(names.get(tag, tag) for tag in tags))
