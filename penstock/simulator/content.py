"""What the simulator answers with: text, vectors and pictures that depend on the prompt and a seed only."""

from __future__ import annotations

import hashlib
import math
import random
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

LONGEST_ANSWER = 256
"""Tokens of the longest answer that nobody asked to be shorter."""

_SHORTEST_ANSWER = 16
_TOKEN = 4  # characters
_PIECES = 16
_PICTURE_PIXELS = 32
_VOCABULARY = """
water turbine river sluice valve pressure canal gate spillway reservoir meadow heron otter willow mill weir
current basin stone bridge runs turns falls carries under over beside slow deep bright the and with every
still quiet morning evening against between toward upstream downstream harbour lantern engine
"""
# With the blank after it no word is shorter than a token: so many words are always enough for so many tokens.
_WORDS = _VOCABULARY.split()


def tokens(text: str) -> int:
    """How many tokens a text is: a quarter of its characters."""
    return -(-len(text) // _TOKEN)


def texts(value: Any) -> Iterator[str]:
    """The texts in a message's content, whatever its shape."""
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
    """The text for a prompt, and whether it had to be cut to so many tokens."""
    chance = random.Random(_bytes(prompt, seed))
    wanted = chance.randint(_SHORTEST_ANSWER, LONGEST_ANSWER)
    text = " ".join(chance.choices(_WORDS, k=wanted)).capitalize()
    whole = text[: wanted * _TOKEN - 1] + "."
    if most_tokens is None or most_tokens >= wanted:
        return whole, False
    return whole[: most_tokens * _TOKEN], True


def pieces(text: str) -> list[str]:
    """A text as it comes in a stream."""
    size = max(_TOKEN, -(-len(text) // _PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def vector(text: str, seed: int, dimensions: int) -> bytes:
    """An embedding of length one, as little-endian floats: each bit of a hash is the sign of a dimension."""
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
    """A small PNG in one colour."""
    colour = hashlib.shake_128(_bytes(prompt, seed) + bytes([number])).digest(3)
    rows = (b"\0" + colour * _PICTURE_PIXELS) * _PICTURE_PIXELS
    header = struct.pack(">2I5B", _PICTURE_PIXELS, _PICTURE_PIXELS, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _bytes(text: str, seed: int) -> bytes:
    # JSON can spell halves of characters that UTF-8 cannot.
    return f"{seed}\n{text}".encode("utf-8", "surrogatepass")
