"""Asks providers about operations that timed out here, and cancels those there that were canceled here.

The database gives each operation to one worker at a time, so any number of workers may run this.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import structlog

from penstock.contract import operations
from penstock.postgres import db
from penstock.sdk import operations as sdk
from penstock.sdk.app import App

log = structlog.get_logger("penstock.worker.reconcile")


class Reconcile:
    """Calls the app's provider for operations that are due."""

    PAUSE = 30.0
    CALL_SECONDS = 30.0
    BATCH = 20

    def __init__(self, pool: db.Pool, app: App) -> None:
        self._pool, self._app = pool, app

    async def run(self) -> None:
        while True:
            # The jitter keeps workers apart.
            await asyncio.sleep(self.PAUSE * random.uniform(0.5, 1.5))
            try:
                while await self.once() == self.BATCH:
                    pass
            except Exception as error:
                log.warning("reconcile.failed", error=str(error))

    async def once(self) -> int:
        """Do what is due. Returns the number of operations."""
        providers = self._app.operations.providers
        if not providers:
            return 0
        due = await operations.take(self._pool, providers=list(providers), limit=self.BATCH)
        await asyncio.gather(*(self._reconcile(row) for row in due))
        return len(due)

    async def _reconcile(self, row: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self.CALL_SECONDS):
                outcome, values = await sdk.reconcile(row, self._app.operations.providers[row["provider"]])
        except Exception as error:
            # The provider is asked again later.
            log.warning("reconcile.call_failed", operation=row["id"], error=str(error)[:500])
            outcome, values = "unknown", {}
        said = await operations.report(self._pool, operation_id=row["id"], outcome=outcome, values=values)
        log.info("reconcile.done", operation=row["id"], outcome=outcome, status=said)
