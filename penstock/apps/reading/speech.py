"""Speech from the provider in `READING_VOICE_MODEL`."""

from __future__ import annotations

from pathlib import Path

from penstock import Context, providers
from penstock.apps.reading.settings import Settings

MOST_CHARACTERS = 4000
"""Characters per request. OpenAI accepts 4096, ElevenLabs 5000 or more."""


async def record(
    ctx: Context, paragraphs: list[str], language: str, folder: Path, settings: Settings
) -> list[str]:
    """Record the paragraphs. Returns the names of the recordings in `folder`, in order."""
    provider = ctx.provider or settings.voice_model or ""
    files: list[str] = []
    for text in pieces(paragraphs):
        wanted = providers.SpeechRequest(text, settings.voice, language)
        answer = await providers.ask(ctx, wanted, provider=provider, url=settings.voice_url)
        files.append(f"{len(files):03d}.wav")
        folder.joinpath(files[-1]).write_bytes(answer.data or b"")
    return files


def pieces(paragraphs: list[str]) -> list[str]:
    """Combine paragraphs into pieces of at most MOST_CHARACTERS, and split longer ones."""
    found: list[str] = []
    for paragraph in paragraphs:
        for start in range(0, len(paragraph), MOST_CHARACTERS):
            part = paragraph[start : start + MOST_CHARACTERS]
            if found and len(found[-1]) + len(part) + 2 <= MOST_CHARACTERS:
                found[-1] += "\n\n" + part
            else:
                found.append(part)
    return found
