"""Matches the columns of a table with those that a bulk type expects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_ALIKE = 0.72


@dataclass(frozen=True, slots=True)
class Match:
    """An expected column, and the column of the table for it."""

    name: str
    is_required: bool
    found: str
    """Empty: the table has none."""
    is_suggested: bool = False
    """Whether the names only look alike, so that a person has to agree."""


def matches(expected: Mapping[str, bool], columns: Sequence[str]) -> list[Match]:
    """Match each expected column: with the column of its name, else with the one that looks most like it."""
    free = [column for column in columns if column not in expected]
    found: list[Match] = []
    for name, is_required in expected.items():
        if name in columns:
            found.append(Match(name, is_required, name))
            continue
        best = max(free, key=lambda column: _likeness(name, column), default="")
        if not best or _likeness(name, best) < _ALIKE:
            found.append(Match(name, is_required, ""))
            continue
        free.remove(best)
        found.append(Match(name, is_required, best, is_suggested=True))
    return found


def _likeness(one: str, other: str) -> float:
    one, other = _plain(one), _plain(other)
    if not one or not other:
        return 0.0
    words, others = set(one.split()), set(other.split())
    # "Video title" is for "title", and "Duration (seconds)" for "seconds".
    if words <= others or others <= words:
        return 0.9
    return SequenceMatcher(None, one, other).ratio()


def _plain(name: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name[:100]).lower()))
