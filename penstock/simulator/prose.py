"""Text for the simulator's answers, about the topic and in the length that a prompt asks for.

`prose.txt` has an article for some topics and one for any other: one sentence per line, an empty line ends a
paragraph, `##` begins a section.
"""

from __future__ import annotations

import random
import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_ANYTHING = "anything"
_QUOTED = re.compile(r"[\"“]([^\"“”\n]{1,200})[\"”]")
_ABOUT = re.compile(r"\babout (?:an? |the )?([\w' -]{1,200})", re.IGNORECASE)
_WORDS = re.compile(r"\b(\d{1,5}) words\b")
_WORD_CHARACTERS = 5.6  # with the space after it
_SHORT = 200  # characters: shorter answers are truncated instead of left half empty


class _Paragraph(NamedTuple):
    heading: str
    sentences: tuple[str, ...]


@cache
def _pieces() -> dict[str, tuple[_Paragraph, ...]]:
    """The paragraphs about each topic."""
    text = files(__package__ or "").joinpath("prose.txt").read_text(encoding="utf-8")
    pieces: dict[str, tuple[_Paragraph, ...]] = {}
    for piece in text.split("\n# "):
        name, _, rest = piece.removeprefix("# ").strip().partition("\n")
        paragraphs: list[_Paragraph] = []
        for part in rest.split("\n\n"):
            first, *others = part.strip().split("\n")
            is_section = first.startswith("## ")
            heading = first.removeprefix("## ") if is_section else ""
            paragraphs.append(_Paragraph(heading, tuple(others if is_section else (first, *others))))
        pieces[name] = tuple(paragraphs)
    return pieces


def wanted_characters(prompt: str) -> int | None:
    """The length that the prompt asks for, as in "in about 300 words", if any."""
    found = _WORDS.findall(prompt)
    return round(int(found[-1]) * _WORD_CHARACTERS) if found else None


def compose(prompt: str, most: int, chance: random.Random, *, is_long: bool) -> str:
    """A text of at most `most` characters about the prompt's topic: its last quoted text, or the text after
    "about".

    A long text has paragraphs, and sections if the prompt contains `##`.
    """
    topic = _topic(prompt)
    known = _known(topic)
    if not is_long:
        if known is None and topic is None:
            known = chance.choice([name for name in _pieces() if name != _ANYTHING])
        paragraphs = _pieces()[known or _ANYTHING]
        sentences = [sentence for paragraph in paragraphs for sentence in paragraph.sentences]
        start = chance.randrange(len(sentences))
        return _filled([*sentences[start:], *sentences[:start]], most, topic or "")
    paragraphs = [*(_pieces()[known] if known else ()), *_pieces()[_ANYTHING]]
    if known and _size(_pieces()[known]) >= most * 0.65:
        paragraphs = list(_pieces()[known])
    return _article(paragraphs, most, topic or "water", has_sections="## " in prompt)


def _topic(prompt: str) -> str | None:
    found = _QUOTED.findall(prompt) or _ABOUT.findall(prompt)
    # Skip numbers: "about 300 words" is a length, not a topic.
    topics = [topic.strip() for topic in found if topic.strip() and not topic.strip()[0].isdigit()]
    return topics[-1] if topics else None


def _known(topic: str | None) -> str | None:
    for word in re.findall(r"[a-z]+", (topic or "").lower()):
        for name in (word, f"{word}s"):
            if name in _pieces() and name != _ANYTHING:
                return name
    return None


def _size(paragraphs: tuple[_Paragraph, ...]) -> int:
    return sum(len(sentence) + 1 for paragraph in paragraphs for sentence in paragraph.sentences)


def _filled(sentences: list[str], most: int, topic: str) -> str:
    """One paragraph that fills the length."""
    text, number = "", 0
    while True:
        sentence = sentences[number % len(sentences)].replace("{topic}", topic)
        longer = f"{text} {sentence}" if text else sentence
        if len(longer) > most:
            cut = longer[: most - 1].rpartition(" ")[0] or longer[: most - 1]
            return text if len(text) > max(_SHORT, most * 0.9) else cut.rstrip(" ,.;:") + "…"
        text, number = longer, number + 1


def _article(paragraphs: list[_Paragraph], most: int, topic: str, *, has_sections: bool) -> str:
    """Paragraphs in order, each shortened so that all fit, repeated if there is room."""
    whole = _size(tuple(paragraphs))
    share = min(1.0, most / whole)
    parts: list[str] = []
    left = most
    while True:
        for heading, sentences in paragraphs:
            kept = sentences[: max(1, round(len(sentences) * share))]
            text = " ".join(kept).replace("{topic}", topic)
            if heading and has_sections:
                text = f"## {heading}\n\n{text}"
            if len(text) + 2 > left:
                return "\n\n".join(parts) or _filled(list(sentences), most, topic)
            parts.append(text)
            left -= len(text) + 2
