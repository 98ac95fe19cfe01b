"""Limits of the API: sizes of requests, and requests per caller."""

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

MAX_PER_PAGE = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one API process."""

    body_bytes: int = 8 << 20
    body_seconds: float = 20
    """Time for a request body to arrive. No database connection is used meanwhile."""
    body_values: int = 200_000
    """JSON values in one request. Parsing more would block other requests."""
    file_bytes: int = 256 << 20
    """Size of an uploaded bulk file."""
    files: int = 4
    """Files parsed at once. Fewer than there are threads, so that other requests get one."""
    statement_seconds: float = 10
    per_second: float = 100
    """Average requests per second of one caller."""
    burst: float = 200
    """Requests that one caller can send at once."""
    streams: int = 5000
    """Open event streams."""
    streams_per_caller: int = 200
    streams_per_tenant: int = 2500
    """Across all its keys and users."""


class Rate:
    """A token bucket for each caller: holds up to `burst` requests and refills at `per_second`."""

    MOST = 10_000
    """Maximum number of buckets. The one idle longest, which is likely full, is dropped first."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str) -> None:
        """Count one request. Raises Limited if the bucket is empty."""
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
        """Return a request that turned out to be another caller's."""
        if name in self._buckets:
            left, at = self._buckets[name]
            self._buckets[name] = min(self._burst, left + 1), at


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the request body. Raises TooLarge or TimedOut."""
    length = request.headers.get("content-length")
    if length is None and "transfer-encoding" not in request.headers:
        return b""
    if length is not None and not length.isdecimal():
        raise Invalid("Content-Length must be a number")
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
        raise TimedOut(f"the request body did not arrive within {limits.body_seconds:g} seconds") from error
    return b"".join(parts)


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(
        f"the request body is larger than {limits.body_bytes} bytes",
        hint="Upload files to object storage, or add the tasks of a large job in several requests.",
        details={"limit": limits.body_bytes},
    )


async def arriving(request: Request) -> AsyncGenerator[bytes]:
    """Stream an uploaded file. Raises TimedOut if no data arrives for a while."""
    limits: Limits = request.app.state.limits
    chunks = request.stream()
    while True:
        try:
            async with asyncio.timeout(limits.body_seconds):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise TimedOut(f"no data arrived for {limits.body_seconds:g} seconds") from None
        if chunk is None:
            return
        yield chunk


def read_json(body: bytes, limits: Limits) -> Any:
    """Parse a JSON body.

    Rejects what parsers disagree about: duplicate keys, NaN, lone surrogates, encodings other than UTF-8; and
    more than 200 levels of nesting.
    """
    # Check the first megabyte before counting all of a large body.
    if _is_more(body[: 1 << 20], limits.body_values) or _is_more(body, limits.body_values):
        raise TooLarge(
            f"the body contains more than {limits.body_values} values",
            hint="Add the tasks of a large job in several requests.",
            details={"limit": limits.body_values},
        )
    try:
        return jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        text = f"the body is not valid JSON: {str(error)[:200]}"
        raise Invalid(text, code="invalid_json", details={"field": "body"}) from None


def _is_more(text: bytes, most: int) -> bool:
    """Whether the JSON text has more than `most` values. Scans the text a few times without parsing it."""
    if _separators(text) <= most:
        return False
    # Separators may be inside strings. Without escapes, every other part between quotation marks is a string.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A field with a string value has four quotation marks.
    return plain.count(b'"') > 4 * most or _separators(b"".join(plain.split(b'"')[::2])) > most


def _separators(text: bytes) -> int:
    """The number of separators: every value but the first follows one."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")
