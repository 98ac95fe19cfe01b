"""The prompt for a film's script, and parsing of the model's answer into scenes."""

from __future__ import annotations

import re

from penstock import providers

SYSTEM_PROMPT = "You write scripts for very short films: plain, concrete, one thought in a scene."
MOST_CHARACTERS = 2000
_SCENE_SECONDS = 2.5
_MOST_SCENES = 8
_SENTENCE = re.compile(r"(?<=[.!?…])\s+")
_HEADING = re.compile(r"#{1,6} +")


def count(seconds: int) -> int:
    """Number of scenes of a film of this length, without the title."""
    return max(1, min(_MOST_SCENES, round(seconds * 0.72 / _SCENE_SECONDS)))


def words(seconds: int) -> int:
    """Number of words to ask for. More than fits, to choose from."""
    return 40 + 35 * count(seconds)


def request(title: str, idea: str, seconds: int, language: str | None) -> providers.TextRequest:
    """The request for a script. Its limit of tokens is for the languages with the longest words."""
    most = words(seconds) * 4 + 200
    return providers.TextRequest(
        question(title, idea, seconds), most, system=SYSTEM_PROMPT, language=language
    )


def question(title: str, idea: str, seconds: int) -> str:
    """The prompt for a script."""
    about = f" What it is about: {' '.join(idea.split())[:MOST_CHARACTERS]}" if idea.strip() else ""
    plain = title.replace('"', "'").replace("“", "'").replace("”", "'")
    return (
        f"Write the script of a film of {seconds} seconds in about {words(seconds)} words. It has "
        f"{count(seconds)} scenes. Begin each with a line of `## ` and a short heading, then say in one or "
        f"two sentences what is seen. Use no other markup.{about} The film's title is:\n“{plain}”"
    )


def film_prompt(title: str, found: list[tuple[str, str]]) -> str:
    """The prompt for a provider that makes the film of a script."""
    shots = " ".join(f"{heading.rstrip('.')}: {text}".strip(": ") for heading, text in found)
    return f"A short film, “{title}”. {shots}"


def scenes(text: str, most: int) -> list[tuple[str, str]]:
    """Split an answer into at most `most` scenes, at headings, or at sentences if there are none.

    Models do not always follow the format, so any text yields scenes.
    """
    found: list[tuple[str, str]] = []
    for part in re.split(r"^(?=#{1,6} )", text, flags=re.MULTILINE):
        if heading := _HEADING.match(part):
            first, _, rest = part[heading.end() :].partition("\n")
            found.append((_clean(first), _short(rest)))
    found = [scene for scene in found if any(scene)][:most]
    if found:
        return found
    sentences = [sentence for part in text.splitlines() for sentence in _SENTENCE.split(_clean(part))]
    return [(sentence, "") for sentence in sentences if sentence][:most]


def _clean(text: str) -> str:
    return " ".join(re.sub(r"[*_`#]+", "", text).split())


def _short(text: str) -> str:
    """The first two sentences."""
    return " ".join(_SENTENCE.split(_clean(text))[:2])
