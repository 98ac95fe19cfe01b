"""Content of responses: text, vectors, pictures and sounds that depend only on prompt and seed."""

from __future__ import annotations

import hashlib
import math
import random
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

from penstock.simulator import prose

LONGEST_ANSWER = 256
"""Maximum tokens of an answer if the prompt asks for no length."""

_SHORTEST_ANSWER = 16
_TOKEN = 4  # characters
_PIECES = 16
_PICTURE_PIXELS = 32
_SOUND_RATE = 24_000
_SPOKEN_CHARACTERS = 15  # in a second


def tokens(text: str) -> int:
    """The number of tokens of a text: a quarter of its characters."""
    return -(-len(text) // _TOKEN)


def texts(value: Any) -> Iterator[str]:
    """All texts in a message's content of any shape."""
    rest: list[Any] = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            rest.extend(reversed(cast("list[Any]", item)))
        elif isinstance(item, dict):
            part = cast("dict[str, Any]", item)
            rest.extend(part[name] for name in ("output", "content", "text") if name in part)


def answer(prompt: str, seed: int, most_tokens: int | None) -> tuple[str, bool]:
    """The answer to a prompt, and whether it was truncated to `most_tokens`."""
    chance = random.Random(_bytes(prompt, seed))
    asked = prose.wanted_characters(prompt)
    most = asked or chance.randint(_SHORTEST_ANSWER, LONGEST_ANSWER) * _TOKEN
    whole = prose.compose(prompt, most, chance, is_long=asked is not None)
    if most_tokens is None or most_tokens >= tokens(whole):
        return whole, False
    return whole[: most_tokens * _TOKEN], True


def pieces(text: str) -> list[str]:
    """Split a text into the pieces of a stream."""
    size = max(_TOKEN, -(-len(text) // _PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def vector(text: str, seed: int, dimensions: int) -> bytes:
    """An embedding of length 1 as little-endian floats. Bits of a hash are the signs of the dimensions."""
    bits = hashlib.shake_128(_bytes(text, seed)).digest(-(-dimensions // 8))
    signs = _signs(dimensions)
    return b"".join([signs[byte] for byte in bits])[: dimensions * 4]


@lru_cache(maxsize=16)
def _signs(dimensions: int) -> list[bytes]:
    size = 1 / math.sqrt(dimensions)
    return [
        struct.pack("<8f", *(size if byte >> bit & 1 else -size for bit in range(8))) for byte in range(256)
    ]


def picture(prompt: str, seed: int, number: int) -> bytes:
    """A small PNG in one color."""
    colour = hashlib.shake_128(_bytes(prompt, seed) + bytes([number])).digest(3)
    rows = (b"\0" + colour * _PICTURE_PIXELS) * _PICTURE_PIXELS
    header = struct.pack(">2I5B", _PICTURE_PIXELS, _PICTURE_PIXELS, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


def sound(text: str, seed: int) -> bytes:
    """A WAV with a soft tone, as long as speaking the text takes."""
    pitch = 150 + hashlib.shake_128(_bytes(text, seed)).digest(1)[0]
    period = round(_SOUND_RATE / pitch)
    wave = struct.pack(
        f"<{period}h", *(round(6000 * math.sin(2 * math.pi * n / period)) for n in range(period))
    )
    data = wave * max(1, len(text) * _SOUND_RATE // _SPOKEN_CHARACTERS // period)
    head = struct.pack("<IHHIIHH", 16, 1, 1, _SOUND_RATE, _SOUND_RATE * 2, 2, 16)
    return b"".join(
        [
            *(b"RIFF", struct.pack("<I", 36 + len(data)), b"WAVE"),
            *(b"fmt ", head),
            *(b"data", struct.pack("<I", len(data)), data),
        ]
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bytes(text: str, seed: int) -> bytes:
    # JSON can contain lone surrogates, which UTF-8 cannot.
    return f"{seed}\n{text}".encode("utf-8", "surrogatepass")
