"""A load generator in its own process: `python -m bench.load` reads a job description and writes its results.

Both are one line of JSON. It uses raw sockets, because a client library would dominate the measurement.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any

from bench.measure import percentile

WARM_UP_SHARE = 0.1
"""The share of the time at the start that is not counted."""


class Client(asyncio.Protocol):
    """A persistent connection. It sends the next request when the response to the last one is complete."""

    def __init__(self, requests: Iterator[bytes], note: Callable[[int, float, float], None]) -> None:
        self._requests = requests
        self._note = note
        self._buffer = b""
        self._sent_at = 0.0
        self._needed: int | None = None
        self.is_stopping = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self) -> None:
        """The next request."""
        request = None if self.is_stopping else next(self._requests, None)
        if request is None:
            self._transport.close()
            return
        self._sent_at = time.monotonic()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._needed is None:
            head, mark, _ = self._buffer.partition(b"\r\n\r\n")
            if not mark:
                return
            length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._needed = len(head) + 4 + int(length or 0)
        if len(self._buffer) >= self._needed:
            now = time.monotonic()
            self._note(int(self._buffer[9:12]), now, now - self._sent_at)
            self._buffer, self._needed, self._sent_at = b"", None, 0.0
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sent_at:
            self._note(0, time.monotonic(), 0.0)
        if not self.ended.done():
            self.ended.set_result(None)


def posts(job: dict[str, Any]) -> Callable[[str], bytes]:
    """Requests that start a job, each with its own idempotency key."""
    body = json.dumps(job).encode()
    run, numbers = uuid.uuid4().hex, count()

    def request(head: str) -> bytes:
        return (
            f"{head}Content-Type: application/json\r\nIdempotency-Key: {run}-{next(numbers)}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    return request


def gets(head: str) -> bytes:
    return f"{head}\r\n".encode()


def head(method: str, path: str, key: str) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"


async def requests(what: dict[str, Any]) -> dict[str, Any]:
    """Many clients, each sending its next request right after a response, for some seconds."""
    make = posts(what["job"]) if "job" in what else gets
    pairs = zip(what["paths"], what["keys"], strict=True)
    heads = cycle([head(what["method"], path, key) for path, key in pairs])
    answers: list[tuple[int, float, float]] = []
    loop = asyncio.get_running_loop()

    def generate() -> Iterator[bytes]:
        # Each client is one caller and keeps its API key.
        mine = next(heads)
        while True:
            yield make(mine)

    clients: list[Client] = []
    for _ in range(what["connections"]):
        _, client = await loop.create_connection(
            lambda: Client(generate(), lambda *answer: answers.append(answer)), "127.0.0.1", what["port"]
        )
        clients.append(client)
    began = time.monotonic()
    for client in clients:
        client.send()
    await asyncio.sleep(what["seconds"])
    ended = time.monotonic()
    for client in clients:
        client.is_stopping = True
    await asyncio.wait([client.ended for client in clients], timeout=60)
    began += what["seconds"] * WARM_UP_SHARE
    counted = [answer for answer in answers if began <= answer[1] <= ended and answer[0] == what["expected"]]
    latencies = [1000 * answer[2] for answer in counted]
    return {
        "per_second": len(counted) / (ended - began),
        "errors": {
            str(status): n
            for status, n in Counter(a[0] for a in answers).items()
            if status != what["expected"]
        },
        "answered": len(answers),
        "p50": percentile(latencies, 0.5),
        "p99": percentile(latencies, 0.99),
    }


class Watching(asyncio.Protocol):
    """One event stream. It records its job's progress and when each event arrived."""

    def __init__(self, request: bytes, note: Callable[[int, float], None]) -> None:
        self._request = request
        self._note = note
        self._buffer = b""
        self.is_open = asyncio.get_running_loop().create_future()
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._buffer += data
        *whole, self._buffer = self._buffer.split(b"\n\n")
        for event in whole:
            told = event.partition(b'"docsComplete":')[2]
            if told:
                self._note(int(told.partition(b",")[0]), now)
                if not self.is_open.done():
                    self.is_open.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.is_open.done():
            self.is_open.set_exception(ConnectionError("a stream was refused"))


async def watch(what: dict[str, Any]) -> dict[str, Any]:
    """Many watchers of some jobs. Prints a line once all are connected, and listens until it is stopped."""
    loop = asyncio.get_running_loop()
    heard: list[list[tuple[int, float]]] = []
    streams: list[Watching] = []
    for number in range(what["connections"]):
        mine: list[tuple[int, float]] = []
        heard.append(mine)
        place = number % len(what["jobs"])
        request = head("GET", f"/api/jobs/{what['jobs'][place]}/events", what["keys"][place])
        _, stream = await loop.create_connection(
            lambda request=request, mine=mine: Watching(
                f"{request}\r\n".encode(), lambda done, at: mine.append((done, at))
            ),
            "127.0.0.1",
            what["port"],
        )
        streams.append(stream)
        if number % 50 == 49:
            # They connect one after the other, not all at once.
            await stream.is_open
    await asyncio.gather(*(stream.is_open for stream in streams))
    print("watching", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    lost = sum(stream.is_lost for stream in streams)
    for stream in streams:
        stream.transport.close()
    return {"heard": heard, "lost": lost}


def main() -> None:
    what = json.loads(sys.stdin.readline())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 100_000) if hard > 0 else 100_000, hard))
    result = asyncio.run({"requests": requests, "watch": watch}[what["mode"]](what))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
