"""Writes a chapter with a language model."""

from __future__ import annotations

from penstock import Context, providers
from penstock.apps.reading.settings import Settings

_SYSTEM_PROMPT = "You write small books for curious readers, in plain, exact and unhurried prose."


def units(prompt: str, words: int, language: str, provider: str) -> dict[str, int]:
    """The most units that a text of this length can use, for the reservation."""
    return providers.most_units(_request(prompt, words, language), provider)


def question(book: str, number: int, chapters: list[str], words: int) -> str:
    """The prompt for a chapter."""
    title = chapters[number - 1].replace('"', "'").replace("“", "'").replace("”", "'")
    return (
        f"Write chapter {number} of {len(chapters)} of a small book, {book[:200]}, in about {words} words. "
        "Leave an empty line between paragraphs. Begin with a paragraph; after it have two sections, each "
        "with a line of `## ` and a short heading before it. Use no other markup, and do not repeat the "
        f"chapter's title, which is:\n“{title}”"
    )


async def write(ctx: Context, prompt: str, words: int, language: str, settings: Settings) -> providers.Answer:
    """Call the task's provider."""
    wanted = _request(prompt, words, language)
    return await providers.ask(ctx, wanted, provider=ctx.provider or settings.model, url=settings.url)


def _request(prompt: str, words: int, language: str) -> providers.TextRequest:
    return providers.TextRequest(
        prompt, _most_tokens(words, language), system=_SYSTEM_PROMPT, language=language
    )


def _most_tokens(words: int, language: str) -> int:
    """A limit, not an estimate: English words have about 1.3 tokens, those of other languages up to four."""
    return words * (2 if language.lower().startswith("en") else 4) + 100
