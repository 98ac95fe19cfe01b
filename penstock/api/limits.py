"""Limits of the API: sizes of requests, and requests per caller and tenant."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import jiter
from fastapi import Request

from penstock.api.shares import ByteShare, Flight, Flights, Share
from penstock.errors import Invalid, Limited, TimedOut, TooLarge

MAX_PER_PAGE = 200
_CONNECTIONS = Share(slots=10, per_tenant=3, per_caller=2, waiting=100, seconds=20)
_OTHER_FILES = 200
"""Files and sockets that a process needs apart from its clients' connections."""
_BODIES = Share(slots=2, per_tenant=1, per_caller=1, waiting=20, seconds=30)
_UPLOADS = Share(slots=40, per_tenant=4, per_caller=3, waiting=0, seconds=0)
_FILES = Share(slots=4, per_tenant=2, per_caller=1, waiting=10, seconds=120)
_PUTS = Share(slots=40, per_tenant=8, per_caller=8, waiting=32, seconds=60)
_EXPORTS = Share(slots=3, per_tenant=1, per_caller=1, waiting=4, seconds=60)
_BODY_FLIGHTS = ByteShare(total=256 << 20, per_tenant=64 << 20, per_caller=32 << 20)
_FILE_FLIGHTS = ByteShare(total=4 << 30, per_tenant=1 << 30, per_caller=512 << 20)


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
    file_seconds: float = 600
    """Time for a bulk file or an uploaded artifact to arrive."""
    body_flights: ByteShare = _BODY_FLIGHTS
    """Bytes of request bodies in memory."""
    file_flights: ByteShare = _FILE_FLIGHTS
    """Bytes of files that arrive or are read."""
    puts: Share = _PUTS
    """Artifacts that arrive at once with signed URLs."""
    uploads: Share = _UPLOADS
    """Bulk files that arrive at once."""
    files: Share = _FILES
    """Files parsed at once. Fewer than there are threads, so that other requests get one."""
    check_seconds: float = 60
    """CPU time to check a file or to forecast its job."""
    statement_seconds: float = 10
    read_seconds: float = 3
    """Time for one statement of a user's read."""
    connections: Share = _CONNECTIONS
    """Database connections for users' requests."""
    exports: Share = _EXPORTS
    """Exports at once. They have database connections of their own."""
    export_seconds: float = 300
    bodies: Share = _BODIES
    """Bodies of job types that run at once."""
    body_tasks: int = 50_000
    """Tasks that one body can add."""
    body_draw_seconds: float = 10
    """CPU time of one body."""
    per_second: float = 100
    """Average requests per second of one caller."""
    burst: float = 200
    """Requests that one caller can send at once."""
    tenant_per_second: float = 300
    """Average requests per second of one tenant, across all its keys and users."""
    tenant_burst: float = 600
    bytes_per_request: int = 16 << 10
    """Bytes of a request or response that count as one more request."""
    refusals_per_second: float = 50
    """Responses with status 429 that one tenant or address gets; the others wait their turn."""
    streams: int = 5000
    """Open event streams."""
    streams_per_caller: int = 200
    streams_per_tenant: int = 1250
    """Across all its keys and users."""

    @classmethod
    def fitting(cls, files: int) -> Limits:
        """The limits of a process that can open this many files and sockets.

        Streams get three quarters of those that other requests, files and connections leave; a tenant gets a
        quarter of them.
        """
        most = cls()
        streams = max(8, min(most.streams, (files - _OTHER_FILES) * 3 // 4))
        per_tenant = min(most.streams_per_tenant, streams // 4)
        per_caller = min(most.streams_per_caller, per_tenant)
        return cls(streams=streams, streams_per_tenant=per_tenant, streams_per_caller=per_caller)


class Rate:
    """A token bucket for each caller: holds up to `burst` requests and refills at `per_second`."""

    MOST = 10_000
    """Maximum number of buckets. The one idle longest, which is likely full, is dropped first."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, count: float = 1) -> None:
        """Count a request, or one that costs as much as several. Raises Limited if too few are left."""
        # A full bucket is enough for any request.
        count = min(count, self._burst)
        left = self._left(name)
        if left < count:
            self._set(name, left)
            seconds = (count - left) / self._per_second
            raise Limited("too many requests", details={"retry_after_seconds": round(seconds, 3)})
        self._set(name, left - count)

    def charge(self, name: str, count: float) -> None:
        """Count what a request has cost on top. The bucket may go into debt by one burst."""
        self._set(name, max(self._left(name) - count, -self._burst))

    def _left(self, name: str) -> float:
        left, at = self._buckets.get(name, (self._burst, 0.0))
        return min(self._burst, left + (time.monotonic() - at) * self._per_second)

    def _set(self, name: str, left: float) -> None:
        self._buckets[name] = left, time.monotonic()
        self._buckets.move_to_end(name)
        if len(self._buckets) > self.MOST:
            self._buckets.popitem(last=False)

    def give(self, name: str) -> None:
        """Return a request that turned out to be another caller's."""
        if name in self._buckets:
            left, at = self._buckets[name]
            self._buckets[name] = min(self._burst, left + 1), at


class Refusals:
    """Spreads refusals over time: each tenant or address gets a limited number per second.

    A client that repeats refused requests at once would otherwise keep the process busy with refusals alone.
    A refusal that waits costs nothing but an open connection.
    """

    LONGEST_SECONDS = 20

    def __init__(self, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._next: OrderedDict[str, float] = OrderedDict()

    def delay(self, name: str) -> float:
        """Seconds that the next refusal waits; none if the last one was a while ago."""
        now = time.monotonic()
        at = min(max(now, self._next.pop(name, now)), now + self.LONGEST_SECONDS)
        self._next[name] = at + self._seconds
        if len(self._next) > Rate.MOST:
            self._next.popitem(last=False)
        return at - now


class Rates:
    """The rate limits of callers and of their tenants."""

    def __init__(self, limits: Limits) -> None:
        self.callers = Rate(limits.per_second, limits.burst)
        self.tenants = Rate(limits.tenant_per_second, limits.tenant_burst)
        self.refusals = Refusals(limits.refusals_per_second)

    def charge(self, caller: str, tenant: str, count: float) -> None:
        """Count a request as several: it was refused for a used-up share, or used much of one."""
        self.callers.charge(caller, count)
        self.tenants.charge(tenant, count)


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the request body. Raises TooLarge, TimedOut or Limited.

    Its bytes count for the tenant and the caller until the request is answered.
    """
    length = request.headers.get("content-length")
    if length is None and "transfer-encoding" not in request.headers:
        return b""
    if length is not None and not length.isdecimal():
        raise Invalid("Content-Length must be a number")
    if length is not None and (len(length) > 15 or int(length) > limits.body_bytes):
        raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    flight = _flight(request)
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                flight.add(len(part))
                if size > limits.body_bytes:
                    raise _too_large(limits)
                parts.append(part)
    except TimeoutError as error:
        raise TimedOut(f"the request body did not arrive within {limits.body_seconds:g} seconds") from error
    finally:
        if not hasattr(request.state, "flights"):
            # A dashboard within another application has no task that releases the bytes later.
            flight.close()
    weigh(request, size)
    return b"".join(parts)


def _flight(request: Request) -> Flight:
    """The bytes of this request's body. `Observed` forgets them when the request ends."""
    flights: Flights = request.app.state.body_flights
    flight = Flight(flights, *_tenant_and_caller(request))
    if hasattr(request.state, "flights"):
        request.state.flights.append(flight)
    return flight


def weigh(request: Request, size: int) -> None:
    """Count the bytes of a user's request or response as further requests: handling them takes time."""
    limits: Limits = request.app.state.limits
    caller = getattr(request.state, "caller", None)
    if size > limits.bytes_per_request and (caller is None or caller.role != "service_role"):
        tenant, name = _tenant_and_caller(request)
        request.app.state.rates.charge(name, tenant, size / limits.bytes_per_request)


def _tenant_and_caller(request: Request) -> tuple[str, str]:
    """The names in shares and rate limits; for an anonymous request, the client's address."""
    caller = getattr(request.state, "caller", None)
    if caller is None or caller.role == "anon":
        address = f"nobody:{request.client.host if request.client else ''}"
        return address, address
    return caller.share, caller.name


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
