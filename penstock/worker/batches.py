"""Batches: send what handlers log and stream to the database, twice a second. Best effort: no task fails if
the database does not take it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import structlog

log = structlog.get_logger("penstock.worker")
SEND_SECONDS = 0.5
STORE_SECONDS = 5.0


class Batches(ABC):
    """Sends batches in turn. After a failure it waits for the next round."""

    lost: ClassVar[str]
    """The log event for a batch that could not be stored."""

    def __init__(self) -> None:
        self._failed_at = 0.0
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Send batches until canceled."""
        while True:
            await asyncio.sleep(SEND_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Send everything; after a failure, leave the rest to the next round."""
        async with self._sending:
            while batch := self._take():
                try:
                    async with asyncio.timeout(STORE_SECONDS):
                        await self._store(batch)
                except Exception as error:
                    # At most one a minute: while the database is down there are many.
                    if time.monotonic() - self._failed_at > 60:
                        self._failed_at = time.monotonic()
                        log.warning(self.lost, count=len(batch), error=str(error))
                    return

    @abstractmethod
    def _take(self) -> list[dict[str, Any]]:
        """The next batch; empty if nothing waits."""

    @abstractmethod
    async def _store(self, batch: list[dict[str, Any]]) -> None:
        """Store a batch."""
