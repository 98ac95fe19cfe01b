"""Logs: send log lines of tasks to the database. A batch that cannot be stored is dropped."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from penstock.contract import logs, tasks
from penstock.postgres import db
from penstock.redaction import redact
from penstock.sdk import task_log
from penstock.sdk.task_log import Sink
from penstock.worker.batches import Batches

MAX_BATCH = 1000
MAX_WAITING = 10_000
MAX_PER_ATTEMPT = 1000
MAX_READ = 20_000
MAX_TEXT = 3000
"""The database cuts messages at 2,000 characters, after it has removed credentials."""


class Logs(Batches):
    """Collects lines from any thread. If they come faster than they are stored, the oldest are dropped."""

    lost = "worker.logs_lost"

    def __init__(self, pool: db.Pool, worker_id: str) -> None:
        super().__init__()
        self._pool, self._worker_id = pool, worker_id
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MAX_WAITING)
        self._capture = task_log.Capture()
        self._open: set[int] = set()
        """The leases of the running attempts; a lease's number is unique."""

    def begin(self, claim: tasks.Claim) -> Sink:
        """Capture the lines of an attempt in this context; returns where they go."""
        number = 0
        self._open.add(claim.lease)

        def add(level: str, message: str, fields: dict[str, Any]) -> None:
            nonlocal number
            # A background task that a handler started may outlive its attempt, and serve other tenants.
            if claim.lease not in self._open:
                return
            number += 1
            if number > MAX_PER_ATTEMPT:
                return
            if number == MAX_PER_ATTEMPT:
                level, message, fields = "warning", f"no more than {MAX_PER_ATTEMPT} lines are stored", {}
            text = redact(message[:MAX_READ])[:MAX_TEXT]
            self._waiting.append(
                {
                    "job_id": str(claim.job_id), "task_id": claim.id, "lease": claim.lease, "number": number,
                    "level": level, "message": text, "fields": _plain(fields) or None, "at": time.monotonic(),
                }
            )  # fmt: skip

        task_log.current.set(add)
        return add

    def end(self, claim: tasks.Claim) -> None:
        """Store no more lines of this attempt."""
        self._open.discard(claim.lease)
        task_log.current.set(None)

    async def run(self) -> None:
        """Send lines until canceled."""
        logging.getLogger().addHandler(self._capture)
        try:
            await super().run()
        finally:
            logging.getLogger().removeHandler(self._capture)

    def _take(self) -> list[dict[str, Any]]:
        return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    async def _store(self, batch: list[dict[str, Any]]) -> None:
        now = time.monotonic()
        lines = tasks.clean([{**line, "ago": now - line["at"]} for line in batch])
        await logs.store(self._pool, self._worker_id, lines)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as JSON: simple values as they are, others as text."""
    return {str(name)[:100]: _value(value) for name, value in list(fields.items())[:50]}


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    text = repr(value) if isinstance(value, BaseException) else str(value)
    # Before it is cut: half of a private key would not be recognized.
    return redact(text[:MAX_READ])[:1000]
