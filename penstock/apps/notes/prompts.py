"""The prompts of the managed model. The texts here are version 0 of each: the constants of the registry."""

from __future__ import annotations

from penstock.apps.notes.instance import app

TRANSCRIBE = app.prompt(
    "transcribe",
    "Transcribe the text on this photo of a page. Keep paragraphs apart and leave out page numbers.",
    max_tokens=2048,
)
DISCOVER_CANON = app.prompt(
    "discover_canon",
    "Name the great ideas that each note is about: at most two core ideas and at most three supporting ones.",
    max_tokens=1024,
)
DISCOVER_WITH_CUSTOM = app.prompt(
    "discover_with_custom",
    "Name the great ideas that each note is about: at most two core ideas and at most three supporting ones. "
    "The reader has added these ideas: {{customList}}.",
    max_tokens=1024,
)
DISCOVER_BATCH = app.prompt(
    "discover_batch",
    "Name the great ideas of every note below, each note by itself: at most two core ideas and at most three "
    "supporting ones. The reader has added these ideas: {{customList}}.",
    max_tokens=4096,
)
