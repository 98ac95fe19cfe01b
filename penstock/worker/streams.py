"""Streams: send what handlers stream, such as the tokens of a model, in chunks of half a second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from penstock.contract import streams, tasks
from penstock.postgres import db
from penstock.sdk.context import Context
from penstock.worker.batches import Batches

MAX_CHUNKS = 1000
"""Chunks in one batch."""
MAX_BATCH_BYTES = 4 << 20
MAX_CHUNK_BYTES = 16 << 10
MAX_BYTES = 256 << 10
"""Bytes that one attempt can stream."""
MAX_NUMBER = 10_000
"""Chunks that one attempt can stream."""
END_SECONDS = 2.0
RETRY_SECONDS = 0.2
_SLICE = 2000
"""Characters of one part, so that no part is larger than a chunk."""

Part = str | dict[str, Any]


class Streams(Batches):
    """Collects parts from any thread. A chunk that could not be stored is sent again."""

    lost = "worker.streams_late"

    def __init__(self, pool: db.Pool, worker_id: str) -> None:
        super().__init__()
        self._pool, self._worker_id = pool, worker_id
        self._open: set[int] = set()
        """The leases of the running attempts; a lease's number is unique."""
        self._streams: dict[int, _Stream] = {}
        self._taken: list[_Stream] = []

    def begin(self, claim: tasks.Claim) -> None:
        """Accept parts of this attempt."""
        self._open.add(claim.lease)

    def has_parts(self, claim: tasks.Claim) -> bool:
        """Whether the attempt has streamed anything."""
        return claim.lease in self._streams

    def add(self, ctx: Context, part: str | Mapping[str, Any]) -> None:
        """Add a part to the attempt's stream, unless the attempt is over."""
        # A background task that a handler started may outlive its attempt.
        if ctx.lease in self._open and not ctx.is_stopped:
            # Two threads of one handler get the same stream.
            stream = self._streams.get(ctx.lease) or self._streams.setdefault(ctx.lease, _Stream(ctx))
            stream.add(part)

    async def end(self, claim: tasks.Claim) -> None:
        """Store the rest of the attempt's stream, before its outcome is reported: within two seconds."""
        stream = self._streams.get(claim.lease)
        if stream is None:
            return
        stream.is_open = False
        deadline = time.monotonic() + END_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                # The pool may drop the cancellation by which the timeout ends this: see penstock.upkeep.end.
                while stream.is_waiting and time.monotonic() < deadline:
                    await self.flush()
                    if stream.is_waiting:
                        await asyncio.sleep(RETRY_SECONDS)
        self.discard(claim)

    def discard(self, claim: tasks.Claim) -> None:
        """Accept and send no more parts of this attempt."""
        self._open.discard(claim.lease)
        self._streams.pop(claim.lease, None)

    def _take(self) -> list[dict[str, Any]]:
        batch: list[dict[str, Any]] = []
        self._taken = []
        size = 0
        for lease, stream in list(self._streams.items()):
            if lease not in self._open:
                # A thread added a part while its attempt ended.
                del self._streams[lease]
            elif stream.is_waiting:
                batch.append(stream.chunk())
                self._taken.append(stream)
                size += stream.taken_bytes
                if len(batch) == MAX_CHUNKS or size >= MAX_BATCH_BYTES:
                    break
        return batch

    async def _store(self, batch: list[dict[str, Any]]) -> None:
        await streams.store(self._pool, self._worker_id, batch)
        for stream in self._taken:
            stream.stored()


class _Stream:
    """The stream of one attempt."""

    def __init__(self, ctx: Context) -> None:
        self._ids = {"job_id": str(ctx.job_id), "task_id": ctx.task_id, "lease": ctx.lease}
        self._parts: list[tuple[Part, int]] = []
        self._lock = threading.Lock()
        self._accepted = self._sent = 0
        self._number = 0
        self._taken: dict[str, Any] | None = None
        self.taken_bytes = 0
        self.is_open = True

    @property
    def is_waiting(self) -> bool:
        """Whether a part is not stored yet."""
        return self._taken is not None or bool(self._parts)

    def add(self, part: str | Mapping[str, Any]) -> None:
        for each in _pieces(part):
            size = len(json.dumps(each, ensure_ascii=False).encode())
            with self._lock:
                if not self.is_open:
                    return
                if self._accepted + size > MAX_BYTES or self._number >= MAX_NUMBER - 1:
                    self.is_open = False
                    each, size = _dropped(f"no more than {MAX_BYTES} bytes of an attempt are streamed"), 0
                self._accepted += size
                self._parts.append((each, size))

    def chunk(self) -> dict[str, Any]:
        """The next chunk; the same one until it is stored."""
        if self._taken is None:
            parts: list[Part] = []
            self.taken_bytes = 0
            with self._lock:
                count = 0
                for part, size in self._parts:
                    if count and self.taken_bytes + size > MAX_CHUNK_BYTES:
                        break
                    count += 1
                    self.taken_bytes += size
                    parts.append(part)
                del self._parts[:count]
            self._number += 1
            self._taken = {**self._ids, "number": self._number, "sent": self._sent, "parts": _joined(parts)}
        return self._taken

    def stored(self) -> None:
        """The chunk has been stored."""
        self._sent += self.taken_bytes
        self._taken = None


def _pieces(part: str | Mapping[str, Any]) -> list[Part]:
    """The part in pieces that fit a chunk. A value that is no JSON becomes text."""
    if isinstance(part, str):
        clean: str = tasks.clean(part)
        return [clean[start : start + _SLICE] for start in range(0, len(clean), _SLICE)]
    try:
        text = json.dumps(dict(part), default=str, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return [_dropped(f"an event that is not JSON: {error}"[:200])]
    if len(text) > MAX_CHUNK_BYTES:
        return [_dropped(f"an event of {len(text)} bytes; at most {MAX_CHUNK_BYTES} are allowed")]
    return [tasks.clean(json.loads(text))]


def _dropped(reason: str) -> Part:
    return {"dropped": reason}


def _joined(parts: list[Part]) -> list[Part]:
    """The parts with neighbouring texts joined."""
    joined: list[Part] = []
    texts: list[str] = []
    for part in [*parts, {}]:
        if isinstance(part, str):
            texts.append(part)
            continue
        if texts:
            joined.append("".join(texts))
            texts = []
        joined.append(part)
    return joined[:-1]
