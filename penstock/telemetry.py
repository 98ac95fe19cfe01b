"""Product telemetry: events for a PostHog-compatible server, sent by a background thread.

    telemetry.send("note_exported", user_id, format="json", notes=12)

`send` never waits and never raises. Events are dropped while the queue is full or the server is down.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import structlog

from penstock.settings import settings

MAX_EVENTS = 10_000
"""Events in the queue; further ones are dropped."""
MAX_BATCH = 100
ANSWER_SECONDS = 5.0
RETRY_SECONDS = 5.0
EXIT_SECONDS = 1.0
"""How long a program that ends waits for the rest."""
MAX_TEXT = 100
REMOVED = "[removed]"
_NAME = re.compile(r"[a-z][a-z0-9_$.]{0,99}")
_ADDRESS = re.compile(r"\S@\S")
log = structlog.get_logger("penstock.telemetry")


@dataclass(slots=True)
class Counts:
    """How many events of this process were sent and dropped."""

    sent: int = 0
    dropped: int = 0


class Sender:
    """A queue of events and the thread that posts them."""

    def __init__(self, url: str, key: str = "") -> None:
        self._url, self._key = f"{url.rstrip('/')}/batch/", key
        self._events: deque[dict[str, Any]] = deque()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._process = 0
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self.counts = Counts()

    def send(self, event: str, distinct_id: object, **properties: object) -> None:
        """Add an event to the queue."""
        try:
            if len(self._events) >= MAX_EVENTS or not _NAME.fullmatch(event):
                self.counts.dropped += 1
                return
            self._events.append(
                {
                    "uuid": str(uuid4()),
                    "event": event,
                    "distinct_id": _identity(distinct_id),
                    "properties": {name: _harmless(value) for name, value in properties.items()},
                    "timestamp": datetime.now(UTC).isoformat(),
                }
            )
            self._start()
            if len(self._events) >= MAX_BATCH:
                self._wake.set()
        except Exception as error:
            # An error of telemetry must not fail the work that it reports on.
            self.counts.dropped += 1
            log.debug("telemetry.failed", error=str(error))

    def _start(self) -> None:
        if self._process == os.getpid():
            return
        # Also in a forked process, which has the queue but not the thread.
        with self._lock:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
                self._thread.start()
                atexit.register(self.close)

    def _run(self) -> None:
        while not (self._is_ending and not self._events):
            self._wake.wait(0 if self._is_ending else 1)
            self._wake.clear()
            while self._events:
                batch = [self._events.popleft() for _ in range(min(MAX_BATCH, len(self._events)))]
                if self._post(batch):
                    self.counts.sent += len(batch)
                    continue
                self.counts.dropped += len(batch)
                if self._is_ending:
                    return
                # The queue fills up meanwhile, and then drops the newest.
                time.sleep(RETRY_SECONDS)

    def _post(self, batch: list[dict[str, Any]]) -> bool:
        body = json.dumps({"api_key": self._key, "batch": batch}).encode()
        request = Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - of the operator
        try:
            with urlopen(request, timeout=ANSWER_SECONDS) as response:  # noqa: S310
                return 200 <= response.status < 300
        except HTTPError as error:
            log.info("telemetry.rejected", status=error.code, events=len(batch))
            error.close()
        except Exception as error:
            log.info("telemetry.unreachable", error=str(error), events=len(batch))
        return False

    def close(self) -> None:
        """Send the rest, for at most a second."""
        self._is_ending = True
        self._wake.set()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join(EXIT_SECONDS)


@cache
def sender() -> Sender | None:
    """The sender of this process; None without `PENSTOCK_TELEMETRY_URL`."""
    found = settings()
    return Sender(found.telemetry_url, found.telemetry_key or "") if found.telemetry_url else None


def send(event: str, distinct_id: object, **properties: object) -> None:
    """Send an event about a user. Returns at once; without `PENSTOCK_TELEMETRY_URL` it does nothing.

    Properties are numbers, booleans and short words: other values are removed, because telemetry must not
    carry texts of users, addresses or payloads.
    """
    if (found := sender()) is not None:
        found.send(event, distinct_id, **properties)


def counts() -> Counts:
    """How many events this process has sent and dropped."""
    found = sender()
    return Counts() if found is None else found.counts


def _harmless(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and len(value) <= MAX_TEXT and not _ADDRESS.search(value) and "\n" not in value:
        return value
    return REMOVED


def _identity(value: object) -> str:
    text = str(value)
    return REMOVED if _ADDRESS.search(text) or len(text) > 200 else text
