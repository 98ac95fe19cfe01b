"""Limits on ourselves: how much one request may bring, and how many requests one caller may send."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import jiter
from fastapi import Request

from penstock.errors import Invalid, Limited, TimedOut, TooLarge

MOST_PER_PAGE = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What one caller may ask of one process."""

    body_bytes: int = 8 << 20
    body_seconds: float = 20
    """How long a request may take to arrive; no connection to the database is held meanwhile."""
    body_values: int = 200_000
    """Values in the JSON of one request: reading more of them would keep everybody else waiting."""
    file_bytes: int = 256 << 20
    """Of a file whose rows make a job."""
    files: int = 4
    """Files that are read at once. Fewer than there are threads, which others need too."""
    statement_seconds: float = 10
    per_second: float = 100
    """Requests of one caller, on average."""
    burst: float = 200
    """Requests of one caller at once."""
    streams: int = 5000
    """Streams of events that are open at once."""
    streams_per_caller: int = 200
    streams_per_tenant: int = 2500
    """However many keys it has."""


class Rate:
    """A bucket for each caller. It holds `burst` requests, and `per_second` flow into it."""

    MOST = 10_000
    """Callers remembered; of more, the longest idle are forgotten, whose buckets are likely full."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Let one more request through, or raise Limited."""
        now = time.monotonic()
        left, at = self._buckets.pop(name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        self._buckets[name] = (max(left - 1, 0) if left >= 1 else left, now)
        if len(self._buckets) > self.MOST:
            self._buckets.popitem(last=False)
        if left < 1:
            seconds = (1 - left) / self._per_second
            raise Limited("too many requests", details={"retry_after_seconds": round(seconds, 3)})

    def give(self, name: str) -> None:
        """Take back what was taken for a request that was another's."""
        if name in self._buckets:
            left, at = self._buckets[name]
            self._buckets[name] = min(self._burst, left + 1), at


async def read_body(request: Request, limits: Limits) -> bytes:
    """What the request brings, unless it is too large or too slow."""
    length = request.headers.get("content-length")
    if length is None and "transfer-encoding" not in request.headers:
        return b""
    if length is not None and not length.isdecimal():
        raise Invalid("Content-Length is not a number")
    if length is not None and (len(length) > 15 or int(length) > limits.body_bytes):
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body_bytes:
                    raise _too_large(limits)
                parts.append(part)
    except TimeoutError as error:
        raise TimedOut("the request did not arrive in time") from error
    return b"".join(parts)


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(
        f"a request has at most {limits.body_bytes} bytes",
        hint="Keep files in object storage; add the tasks of a large job in several requests.",
        details={"limit": limits.body_bytes},
    )


async def arriving(request: Request) -> AsyncGenerator[bytes]:
    """A file that is sent, for as long as something comes."""
    limits: Limits = request.app.state.limits
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.body_seconds):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise TimedOut("the file came too slowly") from None
        if chunk is None:
            return
        yield chunk


def read_json(body: bytes, limits: Limits) -> Any:
    """The value that the body is.

    What readers disagree about is refused: keys that come twice, NaN, half a surrogate pair, another encoding
    than UTF-8. So is what is nested deeper than 200 levels.
    """
    # Of what would take long to count, the first part says enough.
    if _is_more(body[: 1 << 20], limits.body_values) or _is_more(body, limits.body_values):
        raise TooLarge(
            f"the body holds more than {limits.body_values} values",
            hint="Add the tasks of a large job in several requests.",
            details={"limit": limits.body_values},
        )
    try:
        return jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        text = f"the body is not JSON: {str(error)[:200]}"
        raise Invalid(text, code="invalid_json", details={"field": "body"}) from None


def _is_more(text: bytes, most: int) -> bool:
    """Whether there are more values than so many. Takes as long as reading the memory some times over."""
    if _marks(text) <= most:
        return False
    # They may be inside of strings. Without what is escaped, every other part between quotation marks is.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A field has four of them.
    return plain.count(b'"') > 4 * most or _marks(b"".join(plain.split(b'"')[::2])) > most


def _marks(text: bytes) -> int:
    """At every value but the first there is one."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")
