"""The rows, the tasks and the bulk job.

    row ── script ── render        both go to the cheapest provider that supports the row's options

Start it with `penstock bulk run video_ideas ideas.csv` or `video_ideas.start("ideas.csv")`.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, model_validator

from penstock import App, Context, Fail, providers
from penstock.apps.video_ideas import scripts
from penstock.apps.video_ideas.settings import check_seconds, url_of

try:
    from penstock.apps.video_ideas import films
except ImportError as error:
    raise ImportError(f"{error}. Run: pip install 'penstock[apps]'") from error

Shape = Literal["landscape", "portrait", "square"]
Quality = Literal["360p", "720p"]
Prefer = Literal["cheapest", "fastest"]

# Frames per second and CRF (compression) of each studio in sql/migrations.
STUDIOS = {"studio/sketch": (12, 30), "studio/print": (24, 24), "studio/cinema": (30, 18)}
_LINES: dict[Quality, int] = {"360p": 360, "720p": 720}
# An upper estimate, for reservations.
_BYTES_PER_SECOND: dict[Quality, int] = {"360p": 30_000, "720p": 150_000}

app = App(tenant="video_ideas", schema="video_ideas", sql=Path(__file__).parent / "sql")
providers.receive_webhooks(app)


class Idea(BaseModel):
    """A row of the sheet. Empty cells count as missing. Unknown columns are kept."""

    title: Annotated[str, Field(min_length=1, max_length=120)]
    idea: Annotated[str, Field(max_length=scripts.MOST_CHARACTERS)] = ""
    format: Shape = "landscape"
    quality: Quality = "360p"
    seconds: Annotated[int, Field(ge=2, le=60)] = 6
    language: Annotated[str | None, Field(pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$")] = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_cells(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        cells = cast("dict[str, Any]", data)
        stripped = {name: value.strip() if isinstance(value, str) else value for name, value in cells.items()}
        return {name: value for name, value in stripped.items() if value not in ("", None)}


class Script(BaseModel):
    """Scenes of a film: a heading and a text each."""

    scenes: list[tuple[str, str]]
    model: str


class Video(BaseModel):
    """A rendered film. `url` redirects to a signed URL."""

    artifact_id: str
    url: str
    path: str
    name: str
    content_type: str
    bytes: int
    sha256: str
    seconds: float
    frames: int
    width: int
    height: int
    provider: str


@app.task(kind="script", max_attempts=5, timeout="2m")
async def write(ctx: Context, idea: Idea) -> Script:
    """Write the script with a language model."""
    ctx.progress(0, message=f"writing {idea.title}")
    provider = ctx.provider or "simulator/gpt-brook"
    wanted = scripts.request(idea.title, idea.idea, idea.seconds, idea.language)
    answer = await providers.ask(ctx, wanted, provider=provider, url=url_of(provider))
    return Script(scenes=scripts.scenes(answer.text, scripts.count(idea.seconds)), model=provider)


@app.task(kind="render", timeout="10m")
async def render(ctx: Context, idea: Idea, script: Script) -> Video:
    """Render the film at the task's provider: one of the studios on this machine, or a provider of video."""
    ctx.progress(0, message=f"rendering {idea.title}")
    studio = await ctx.aoperation_provider() or "studio/sketch"
    if studio.partition("/")[0] == "studio":
        return await _render_here(ctx, idea, script, studio)
    return await _render_there(ctx, idea, script, studio)


async def _render_here(ctx: Context, idea: Idea, script: Script, studio: str) -> Video:
    if studio not in STUDIOS:
        raise Fail(f"unknown studio {studio!r} (known: {', '.join(STUDIOS)})", code="unknown_studio")
    rate, crf = STUDIOS[studio]
    width, height = _size(idea)
    film = films.Film(width, height, idea.seconds, rate, crf)
    scenes = [films.Scene(heading, text) for heading, text in script.scenes]
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        path = Path(folder) / "film.mp4"
        made = await ctx.acompute(films.render, idea.title, scenes, str(path), film)
        # Reported separately, because rendering costs money even if the file cannot be stored.
        await ctx.ausage(seconds=made.seconds)
        saved = await ctx.asave(_file_name(idea), path, "video/mp4", metadata={"duration": made.seconds})
        await ctx.ausage(requests=0, video_bytes=made.bytes)
    return _video(saved, studio, made.seconds, made.frames, (width, height))


async def _render_there(ctx: Context, idea: Idea, script: Script, provider: str) -> Video:
    """Hand the film to a provider and wait without a worker."""
    width, height = _size(idea)

    async def save(answer: providers.Answer) -> dict[str, Any]:
        data = answer.data or b""
        measured = await ctx.acompute(films.measure, data)
        saved = await ctx.asave(_file_name(idea), data, "video/mp4", metadata={"duration": measured[0]})
        return _video(saved, provider, *measured).model_dump()

    made = await providers.operate(
        ctx,
        providers.VideoRequest(scripts.film_prompt(idea.title, script.scenes), idea.seconds, width, height),
        provider=provider,
        object=f"film:{ctx.task_id}",
        save=save,
        url=url_of(provider),
        checks=check_seconds(),
    )
    return Video.model_validate(made)


def _file_name(idea: Idea) -> str:
    return re.sub(r"[/\\]", "-", idea.title) + ".mp4"


def _video(saved: dict[str, Any], provider: str, seconds: float, frames: int, size: tuple[int, int]) -> Video:
    return Video(
        **saved,
        url=f"/api/artifacts/{saved['artifact_id']}",
        seconds=seconds,
        frames=frames,
        width=size[0],
        height=size[1],
        provider=provider,
    )


@app.bulk(row=Idea, key=["title"], phases={"script": 20, "render": 80})
def video_ideas(row: Idea, prefer: Prefer = "cheapest") -> Any:
    """Make a film for each row."""
    writer = write.options(
        route={"features": ["script"], "prefer": prefer, "extra_units": providers.reasoning_units()},
        units=providers.most_units(scripts.request(row.title, row.idea, row.seconds, row.language)),
    )
    studio = render.options(
        route={"features": ["video", row.quality, row.format], "prefer": prefer},
        units={"seconds": row.seconds, "video_bytes": row.seconds * _BYTES_PER_SECOND[row.quality]},
    )
    return studio.step(row, writer.step(row))


def _size(idea: Idea) -> tuple[int, int]:
    lines = _LINES[idea.quality]
    wide = lines * 16 // 9
    return {"landscape": (wide, lines), "portrait": (lines, wide), "square": (lines, lines)}[idea.format]
