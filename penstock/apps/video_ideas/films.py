"""Renders a script as a short film: a title, then its scenes, drawn with Pillow, encoded as H.264 with PyAV.

Runs in a subprocess and depends on nothing else of the app. The same script makes the same pictures.
"""

# The types of Pillow and PyAV refer to numpy, which nothing here needs.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import io
import math
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import av
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

Color: TypeAlias = tuple[int, int, int]
Font: TypeAlias = ImageFont.FreeTypeFont | ImageFont.ImageFont

FONT_VARIABLE = "VIDEO_IDEAS_FONT"
"""Path of a TrueType font for non-Latin text. Pillow's own font has only Latin letters."""

TITLE_SHARE = 0.28
"""Share of the film that shows the title."""
_FADE_SECONDS = 0.45
_RISE = 0.035
_MARGIN = 0.09


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene: a heading and a text."""

    heading: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Film:
    """Format of a film: size in pixels, length in seconds, frames per second."""

    width: int
    height: int
    seconds: int
    rate: int
    crf: int
    """Compression of the encoder, 0 (none) to 51."""


@dataclass(frozen=True, slots=True)
class Made:
    """Frames, duration and size of a rendered film."""

    frames: int
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class _Palette:
    top: Color
    bottom: Color
    glow: Color
    accent: Color
    ink: Color = (250, 250, 248)
    soft: Color = (214, 220, 226)


_PALETTES = (
    _Palette((16, 42, 67), (36, 94, 120), (82, 182, 190), (255, 190, 92)),
    _Palette((46, 24, 58), (110, 44, 92), (232, 112, 128), (255, 208, 134)),
    _Palette((18, 52, 46), (44, 108, 80), (142, 200, 122), (250, 220, 130)),
    _Palette((30, 30, 62), (66, 72, 148), (126, 148, 246), (255, 170, 160)),
    _Palette((58, 30, 20), (140, 74, 40), (240, 156, 84), (255, 226, 168)),
)


def render(title: str, scenes: list[Scene], path: str, film: Film) -> Made:
    """Render the film to `path`."""
    count = film.seconds * film.rate
    with av.open(path, "w", format="mp4", options={"movflags": "+faststart"}) as out:
        out.metadata["title"] = _plain(title)
        # One thread, because the worker runs several renderings at once.
        options = {"crf": str(film.crf), "preset": "veryfast", "tune": "animation", "threads": "1"}
        stream = out.add_stream("libx264", rate=film.rate, options=options)
        stream.width, stream.height, stream.pix_fmt = film.width, film.height, "yuv420p"
        for number, picture in enumerate(frames(title, scenes, film)):
            frame = av.VideoFrame.from_image(picture)
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return Made(count, count / film.rate, os.path.getsize(path))


def measure(data: bytes) -> tuple[float, int, tuple[int, int]]:
    """Seconds, frames and size in pixels of a film; raises an error if it is none."""
    with av.open(io.BytesIO(data), "r") as film:
        stream = film.streams.video[0]
        count = sum(1 for _ in film.decode(stream))
        seconds = count / float(stream.average_rate or 1)
        return round(seconds, 3), count, (stream.codec_context.width, stream.codec_context.height)


def frames(title: str, scenes: list[Scene], film: Film) -> Iterator[Image.Image]:
    """Yield all frames."""
    cards = _Cards(title, scenes, film)
    for number in range(film.seconds * film.rate):
        yield cards.at(number / film.rate)


class _Cards:
    """Layers drawn once; each frame only combines them."""

    def __init__(self, title: str, scenes: list[Scene], film: Film) -> None:
        self._film = film
        digest = hashlib.sha256(title.encode("utf-8", "replace")).digest()
        self._palette = _PALETTES[digest[0] % len(_PALETTES)]
        self._phase = digest[1] / 255 * math.tau
        shown = [scene for scene in scenes if _plain(scene.heading + scene.text)]
        self._starts = _starts(film.seconds, len(shown))
        self._layers = [
            self._title(title),
            *(self._scene(scene, n, len(shown)) for n, scene in enumerate(shown, 1)),
        ]
        self._ground = self._gradient()
        self._glow = self._blob(round(max(film.width, film.height) * 0.75))

    def at(self, second: float) -> Image.Image:
        """The frame at this time."""
        film = self._film
        part = second / film.seconds
        width, height = film.width, film.height
        left = round((self._ground.width - width) * part)
        top = round((self._ground.height - height) * (0.5 + 0.5 * math.sin(self._phase + part * math.pi)))
        picture = self._ground.crop((left, top, left + width, top + height))
        angle = self._phase + part * 1.6
        place = (
            round(width * (0.5 + 0.42 * math.cos(angle))) - self._glow.width // 2,
            round(height * (0.5 + 0.42 * math.sin(angle))) - self._glow.height // 2,
        )
        picture.paste(self._palette.glow, place, self._glow)
        for layer, (start, end) in zip(self._layers, self._starts, strict=True):
            if start <= second < end:
                self._put(picture, layer, second - start, end - second, is_last=end >= film.seconds)
        self._timeline(picture, part)
        return picture

    def _put(
        self, picture: Image.Image, layer: Image.Image, since: float, left: float, *, is_last: bool
    ) -> None:
        """Fade a layer in while it rises, and fade it out, except for the last layer."""
        coming = _eased(min(1.0, since / _FADE_SECONDS))
        going = 1.0 if is_last else _eased(min(1.0, left / _FADE_SECONDS))
        strength = min(coming, going)
        shift = round(self._film.height * _RISE * (1 - coming))
        mask = layer.getchannel("A")
        if strength < 1:
            mask = mask.point([round(value * strength) for value in range(256)])
        picture.paste(layer, (0, shift), mask)

    def _timeline(self, picture: Image.Image, part: float) -> None:
        film = self._film
        thick = max(2, film.height // 90)
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, film.height - thick, round(film.width * part), film.height), self._palette.accent)

    def _gradient(self) -> Image.Image:
        """The background, slightly larger than the film, which pans over it."""
        size = (round(self._film.width * 1.2), round(self._film.height * 1.2))
        shades = Image.linear_gradient("L").rotate(180).resize(size, Image.Resampling.BICUBIC)
        return ImageOps.colorize(shades, self._palette.bottom, self._palette.top)

    def _blob(self, size: int) -> Image.Image:
        """A soft circle of light, as a mask."""
        small = Image.new("L", (64, 64), 0)
        ImageDraw.Draw(small).ellipse((16, 16, 48, 48), fill=110)
        return small.filter(ImageFilter.GaussianBlur(9)).resize((size, size), Image.Resampling.BICUBIC)

    def _title(self, title: str) -> Image.Image:
        film, layer = self._film, self._layer()
        draw = ImageDraw.Draw(layer)
        size = _fitting(title, film, share=0.115, most_lines=4)
        lines = _lines(_plain(title), size, self._room)
        height = len(lines) * round(size * 1.18)
        top = (film.height - height) // 2
        left = round(film.width * _MARGIN)
        rule = max(3, film.height // 70)
        draw.rectangle(
            (left, top - rule * 4, left + round(film.width * 0.16), top - rule * 3), self._palette.accent
        )
        for number, line in enumerate(lines):
            draw.text((left, top + number * round(size * 1.18)), line, self._palette.ink, _font(size))
        return layer

    def _scene(self, scene: Scene, number: int, of: int) -> Image.Image:
        film, layer = self._film, self._layer()
        draw = ImageDraw.Draw(layer)
        short = min(film.width, film.height)
        left, small = round(film.width * _MARGIN), round(short * 0.042)
        large = _fitting(scene.heading, film, share=0.085, most_lines=2)
        words = max(12, round(short * 0.062))
        heading = _lines(_plain(scene.heading), large, self._room)
        most = max(1, (film.height * 6 // 10 - len(heading) * round(large * 1.2)) // round(words * 1.4))
        text = _cut(_lines(_plain(scene.text), words, self._room), most)
        height = len(heading) * round(large * 1.2) + round(words * 0.6) + len(text) * round(words * 1.4)
        top = (film.height - height) // 2
        if of > 1:
            draw.text((left, top - small * 2), f"{number} / {of}", self._palette.accent, _font(small))
        for line in heading:
            draw.text((left, top), line, self._palette.ink, _font(large))
            top += round(large * 1.2)
        top += round(words * 0.6)
        for line in text:
            draw.text((left, top), line, self._palette.soft, _font(words))
            top += round(words * 1.4)
        return layer

    def _layer(self) -> Image.Image:
        return Image.new("RGBA", (self._film.width, self._film.height))

    @property
    def _room(self) -> int:
        return round(self._film.width * (1 - 2 * _MARGIN))


# Time


def _starts(seconds: int, scenes: int) -> list[tuple[float, float]]:
    """Start and end of the title and each scene, in seconds."""
    if not scenes:
        return [(0.0, float(seconds))]
    title = max(1.0, seconds * TITLE_SHARE) if seconds > 1 else seconds / 2
    each = (seconds - title) / scenes
    return [(0.0, title), *((title + n * each, title + (n + 1) * each) for n in range(scenes))]


def _eased(part: float) -> float:
    return 1 - (1 - part) ** 3


# Text


def _font(size: int) -> Font:
    path = os.environ.get(FONT_VARIABLE)
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size)


def _plain(text: str) -> str:
    """Normalize white space and remove control characters."""
    kept = (c if unicodedata.category(c)[0] != "C" else " " for c in unicodedata.normalize("NFC", text))
    return " ".join("".join(kept).split())


def _fitting(text: str, film: Film, *, share: float, most_lines: int) -> int:
    """The largest font size at which the text has at most `most_lines` lines."""
    size = round(min(film.width, film.height * 1.2) * share)
    room = round(film.width * (1 - 2 * _MARGIN))
    while size > 14 and len(_lines(_plain(text), size, room)) > most_lines:
        size = size * 9 // 10
    return size


def _lines(text: str, size: int, room: int) -> list[str]:
    """Wrap a text into lines that fit, splitting words that are too long."""
    font = _font(size)
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if font.getlength(longer) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        line = word
        while font.getlength(line) > room and len(line) > 1:
            fits = next(n for n in range(len(line) - 1, 0, -1) if n == 1 or font.getlength(line[:n]) <= room)
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line] if line else lines


def _cut(lines: list[str], most: int) -> list[str]:
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], lines[most - 1].rstrip(" ,.;:") + "…"]
