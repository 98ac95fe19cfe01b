"""Pages that an outside provider reads (`INTAKE_OCR`): its words, placed on the page as a person turns it."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from penstock.apps.intake import reading
from penstock.providers import Word

Point = tuple[float, float]


def page_of(number: int, words: Sequence[Word], width: int, height: int) -> dict[str, Any]:
    """A page in the form of `reading.read`. A page that is turned or skewed is straightened."""
    kept = [word for word in words if word.text.strip()]
    rotation = _rotation([_in_pixels(word, width, height) for word in kept])
    turned, (new_width, new_height) = _turn(rotation, width, height)
    found: list[dict[str, Any]] = []
    for word in kept:
        xs, ys = zip(*map(turned, _in_pixels(word, width, height)), strict=True)
        sides = (min(xs) / new_width, min(ys) / new_height, max(xs) / new_width, max(ys) / new_height)
        box = [round(min(1.0, max(0.0, side)), 5) for side in sides]
        found.append({"text": word.text.strip(), "box": box, "score": round(word.score, 4)})
    score = statistics.fmean(word["score"] for word in found) if found else 0.0
    return {
        "number": number,
        "method": "vision",
        "score": round(score, 4),
        "rotation": rotation,
        "words": found,
    }


def _in_pixels(word: Word, width: int, height: int) -> list[Point]:
    return [(x * width, y * height) for x, y in word.corners]


def _rotation(words: Sequence[Sequence[Point]]) -> float:
    """By how many degrees the page is to be turned counterclockwise, so that its lines run to the right."""
    if not words:
        return 0
    # The wider half, because the edge of a short word says little.
    wide = sorted(words, key=lambda corners: math.dist(corners[0], corners[1]))[len(words) // 2 :]
    angles = [math.degrees(math.atan2(b[1] - a[1], b[0] - a[0])) for a, b, *_ in wide]
    quarter = Counter(round(angle / 90) % 4 for angle in angles).most_common(1)[0][0]
    skew = statistics.median((angle - 90 * quarter + 180) % 360 - 180 for angle in angles)
    is_skewed = reading.LEAST_SKEW <= abs(skew) <= reading.MOST_SKEW
    return 90 * quarter + (round(skew, 2) if is_skewed else 0)


def _turn(rotation: float, width: int, height: int) -> tuple[Callable[[Point], Point], tuple[float, float]]:
    """How a point moves when its page is turned around the middle, and the size of the turned page."""
    sine, cosine = math.sin(math.radians(rotation)), math.cos(math.radians(rotation))
    size = (
        abs(width * cosine) + abs(height * sine),
        abs(width * sine) + abs(height * cosine),
    )

    def turned(point: Point) -> Point:
        x, y = point[0] - width / 2, point[1] - height / 2
        return x * cosine + y * sine + size[0] / 2, y * cosine - x * sine + size[1] / 2

    return turned, size
