"""The tasks and the job.

    plan ─┬─ text 1 ─┬─ pdf 1 ───┐
          │          └─ audio 1 ─┤
          ├─ text 2 ─┬─ pdf 2 ───┼─ book
          …          └─ audio 2 ─┘

Start it with `python -m penstock.apps.reading`, with `reading.start(...)`, or over HTTP by its type.
"""

from __future__ import annotations

import json
import re
import tempfile
import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from penstock import App, Context
from penstock.apps.reading import pages, sound, speech, writing
from penstock.apps.reading.settings import settings
from penstock.contract import providers

Title = Annotated[str, Field(min_length=1, max_length=200)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$")]
Words = Annotated[int, Field(ge=20, le=5000)]
Chapters = Annotated[list[Title], Field(min_length=1, max_length=200)]
Format = Literal["mp3", "m4a"]
_TYPES = {"mp3": "audio/mpeg", "m4a": "audio/mp4"}

app = App(tenant="reading")


class Plan(BaseModel):
    """The input that all tasks of a book share."""

    title: str
    subtitle: str
    chapters: list[str]
    language: str
    words: int
    date: str

    def name(self, number: int) -> str:
        """The base name of a chapter's files."""
        return f"{number:02d}-{_plain(self.chapters[number - 1]) or 'chapter'}"


class Text(BaseModel):
    """The text of a chapter."""

    number: int
    title: str
    text: str
    words: int


class File(BaseModel):
    """A stored file with its pages or seconds."""

    artifact_id: str
    path: str
    name: str
    content_type: str
    bytes: int
    sha256: str
    pages: int | None = None
    seconds: float | None = None
    replaced: int | None = None
    """Number of characters without a glyph, which were replaced with a square."""


class Book(BaseModel):
    """The result: the whole book as PDF, and its metadata."""

    title: str
    documents: int
    words: int
    pages: int
    seconds: float
    pdf: File
    metadata: File


# Tasks


@app.task(phase="calculating", timeout="30s")
async def plan(
    ctx: Context, title: Title, subtitle: str, chapters: Chapters, language: Language, words: Words
) -> Plan:
    """Make the plan for all chapters. It fixes the date, so that retries produce identical files."""
    ctx.progress(1, of=2, message=f"planning {title}")
    date = datetime.now(UTC).date().isoformat()
    return Plan(title=title, subtitle=subtitle, chapters=chapters, language=language, words=words, date=date)


@app.task(kind="text", max_attempts=5, timeout="2m")
async def write(ctx: Context, number: int, plan: Plan) -> Text:
    """Write a chapter with a language model."""
    title = plan.chapters[number - 1]
    ctx.progress(0, message=f"writing {number} of {len(plan.chapters)}: {title}")
    prompt = writing.question(plan.title, number, plan.chapters, plan.words)
    answer = await writing.write(ctx, prompt, plan.words, plan.language, settings())
    text = Text(number=number, title=title, text=answer.text, words=len(answer.text.split()))
    record = {**text.model_dump(), "model": ctx.provider, "output_tokens": answer.units["output_tokens"]}
    await ctx.asave(f"{plan.name(number)}.json", _json(record), "application/json")
    return text


@app.task(kind="pdf", timeout="3m")
async def typeset(ctx: Context, plan: Plan, text: Text) -> File:
    """Typeset a chapter as PDF."""
    ctx.progress(0, message=f"typesetting {text.number} of {len(plan.chapters)}: {text.title}")
    return await _typeset(ctx, plan, [text], f"{plan.name(text.number)}.pdf", is_whole=False)


@app.task(kind="audio", timeout="10m")
async def speak(ctx: Context, plan: Plan, text: Text, formats: list[Format]) -> list[File]:
    """Record a chapter as audio."""
    ctx.progress(0, message=f"reading {text.number} of {len(plan.chapters)}: {text.title}")
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        target, chosen = Path(folder), settings()
        paragraphs = [
            text.title,
            *(part for part in re.split(r"\s*\n\s*", text.text.replace("#", "")) if part),
        ]
        request: dict[str, Any] = {"formats": formats, "language": plan.language, "paragraphs": paragraphs}
        if chosen.voice_model:
            request["recordings"] = await speech.record(ctx, paragraphs, plan.language, target, chosen)
        made = await ctx.acompute(sound.make, request, target)
        return [
            File(
                **await ctx.asave(
                    f"{plan.name(text.number)}.{name}",
                    target / file,
                    _TYPES[name],
                    metadata={"duration": made["seconds"]},
                ),
                seconds=made["seconds"],
            )
            for name, file in made["files"].items()
        ]


@app.task(kind="book", phase="finalizing", timeout="5m")
async def bind(
    ctx: Context, plan: Plan, texts: list[Text], pdfs: list[File], audio: list[list[File]]
) -> Book:
    """Bind all chapters into one PDF with a table of contents, and store a JSON file that lists all files."""
    ctx.progress(0, message=f"binding {plan.title}")
    name = _plain(plan.title) or "book"
    pdf = await _typeset(ctx, plan, texts, f"{name}.pdf", is_whole=True)
    chapters = [
        {
            "number": text.number,
            "title": text.title,
            "words": text.words,
            "pdf": pdf_file.model_dump(exclude_none=True),
            "audio": [file.model_dump(exclude_none=True) for file in sounds],
        }
        for text, pdf_file, sounds in zip(texts, pdfs, audio or [[] for _ in texts], strict=True)
    ]
    whole: dict[str, Any] = {
        "title": plan.title,
        "documents": len(texts),
        "words": sum(text.words for text in texts),
        "pages": pdf.pages or 0,
        "seconds": round(sum(sounds[0].seconds or 0 for sounds in audio), 3),
    }
    record = {**plan.model_dump(), **whole, "pdf": pdf.model_dump(exclude_none=True), "chapters": chapters}
    saved = await ctx.asave(f"{name}.json", _json(record), "application/json")
    return Book(**whole, pdf=pdf, metadata=File(**saved))


async def _typeset(ctx: Context, plan: Plan, texts: list[Text], name: str, *, is_whole: bool) -> File:
    request = {
        **plan.model_dump(include={"title", "subtitle", "language", "date"}),
        "whole": is_whole,
        "chapters": [text.model_dump(include={"number", "title", "text"}) for text in texts],
    }
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        made = await ctx.acompute(pages.make, request, Path(folder))
        saved = await ctx.asave(
            name, Path(folder) / made["file"], "application/pdf", metadata={"pages": made["pages"]}
        )
    return File(**saved, pages=made["pages"], replaced=made["replaced"] or None)


# The job


@app.job(
    title="{title}",
    phases={"calculating": 10, "text": 40, "pdf": 20, "audio": 25, "finalizing": 5},
)
def reading(
    title: Title,
    chapters: Chapters,
    subtitle: Annotated[str, Field(max_length=500)] = "",
    language: Language = "en",
    words: Words = 330,
    audio: Annotated[list[Format], Field(max_length=2)] = ["mp3"],  # noqa: B006 (only read)
) -> None:
    """A book: text, PDF and recording of each chapter, then one PDF. Empty `audio` skips the recordings."""
    chosen = settings()
    speaker = speak
    if chosen.voice_model:
        speaker = speak.options(provider=chosen.voice_model, units={"characters": words * 7})
    planned = plan.options(key="plan").step(title, subtitle, chapters, language, words)
    texts: list[Any] = []
    for number in range(1, len(chapters) + 1):
        prompt = writing.question(title, number, chapters, words)
        units = writing.units(prompt, words, language, chosen.model)
        key = f"{number} {_printable(chapters[number - 1])}"
        texts.append(write.options(provider=chosen.model, units=units, key=key).step(number, planned))
    pdfs = [typeset.options(key=f"{n} pdf").step(planned, text) for n, text in enumerate(texts, 1)]
    formats = list(dict.fromkeys(audio))
    sounds = [
        speaker.options(key=f"{n} audio").step(planned, text, formats)
        for n, text in enumerate(texts, 1)
        if formats
    ]
    bind.options(key="book").step(planned, texts, pdfs, sounds)


async def declare() -> None:
    """Declare the providers, without limits unless they already have some."""
    chosen = settings()
    async with app.connections() as pool:
        for name, url in ((chosen.model, chosen.url), (chosen.voice_model, chosen.voice_url)):
            if name:
                # The answers of another server under the provider's name count as well.
                host = urlsplit(url).hostname if url else None
                await providers.set(pool, name=name, hosts=[host] if host else None)


def _printable(title: str) -> str:
    """A title without control characters and marks that change its direction, which keys must not contain."""
    return "".join(character for character in title if character.isprintable())


def _plain(title: str) -> str:
    """A title as a file name."""
    letters = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", letters).strip("-")[:50].strip("-")


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
