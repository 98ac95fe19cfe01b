"""Writes a chapter with a language model."""

from __future__ import annotations

from penstock import Context
from penstock.apps import asking
from penstock.apps.reading.settings import Settings

_SYSTEM_PROMPT = "You write small books for curious readers, in plain, exact and unhurried prose."


def units(prompt: str, words: int) -> dict[str, int]:
    """The most units that a text of this length can use, for the reservation."""
    return {"input_tokens": asking.tokens(_SYSTEM_PROMPT + prompt), "output_tokens": words * 2 + 100}


def question(book: str, number: int, chapters: list[str], words: int) -> str:
    """The prompt for a chapter."""
    title = chapters[number - 1].replace('"', "'").replace("“", "'").replace("”", "'")
    return (
        f"Write chapter {number} of {len(chapters)} of a small book, {book[:200]}, in about {words} words. "
        "Leave an empty line between paragraphs. Begin with a paragraph; after it have two sections, each "
        "with a line of `## ` and a short heading before it. Use no other markup, and do not repeat the "
        f"chapter's title, which is:\n“{title}”"
    )


async def write(ctx: Context, prompt: str, words: int, settings: Settings) -> asking.Completion:
    """Call the task's provider."""
    return await asking.ask(
        ctx,
        prompt,
        provider=ctx.provider or settings.model,
        system_prompt=_SYSTEM_PROMPT,
        most_tokens=units(prompt, words)["output_tokens"],
        url=settings.url,
    )
