"""Speech from a provider with an OpenAI-compatible API (`/v1/audio/speech`)."""

from __future__ import annotations

from pathlib import Path

from penstock import Context
from penstock.apps.asking import openai_client, provider_error
from penstock.apps.reading.settings import Settings

MOST_CHARACTERS = 4000
"""Characters per request. The API accepts 4096."""


async def record(ctx: Context, paragraphs: list[str], folder: Path, settings: Settings) -> list[str]:
    """Record the paragraphs. Returns the names of the recordings in `folder`, in order."""
    import openai

    model = (ctx.provider or settings.voice_model or "").partition("/")[2]
    files: list[str] = []
    async with openai_client(settings.voice_url) as client:
        for text in pieces(paragraphs):
            try:
                response = await client.audio.speech.create(
                    model=model, voice=settings.voice, input=text, response_format="wav"
                )
            except openai.APIStatusError as error:
                raise provider_error(error) from error
            files.append(f"{len(files):03d}.wav")
            folder.joinpath(files[-1]).write_bytes(await response.aread())
            if ctx.provider is not None:
                await ctx.ausage(requests=1, characters=len(text))
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
