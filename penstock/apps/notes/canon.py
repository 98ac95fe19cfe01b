"""The canon of ideas, and the canonical lenses. Devices and the server share them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MOST_IDEAS = 5
"""Ideas that a note gets at most, core and supporting together."""

CANON: tuple[str, ...] = (
    "Art", "Beauty", "Being", "Cause", "Chance", "Change", "Citizen", "Courage", "Custom", "Death", "Desire",
    "Duty", "Education", "Emotion", "Eternity", "Experience", "Family", "Fate", "Form", "Freedom", "God",
    "Good", "Government", "Habit", "Happiness", "History", "Honor", "Idea", "Infinity", "Judgment", "Justice",
    "Knowledge", "Labor", "Language", "Law", "Life", "Logic", "Love", "Memory", "Mind", "Nature", "Necessity",
    "Opinion", "Pleasure", "Poetry", "Power", "Progress", "Prudence", "Reason", "Religion", "Revolution",
    "Science", "Sense", "Sin", "Slavery", "Solitude", "Soul", "Space", "State", "Technology", "Time", "Truth",
    "Tyranny", "Virtue", "War", "Wealth", "Will", "Wisdom", "World",
)  # fmt: skip

CANONICAL_LENSES: Mapping[str, str] = MappingProxyType(
    {
        "canon:Life+Death": "Mortality",
        "canon:Law+Justice": "The just law",
        "canon:Reason+Emotion": "Head and heart",
        "canon:Freedom+Necessity": "Free will",
        "canon:Nature+Solitude": "Alone in nature",
        "canon:Wealth+Virtue": "The good rich",
    }
)
"""Lenses that every library has. They are never rows: `notes.lens_notes` reads the ideas from the id."""
