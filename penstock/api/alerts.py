"""Counts refusals and failed logins of this process, and reports storms as alerts to the operator.

A refused request rolls its transaction back, so the database cannot count it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from uuid import UUID

import structlog
from fastapi import Request

from penstock.api.callers import Caller, Callers
from penstock.contract import alerts
from penstock.contract.alerts import Storm

logger = structlog.get_logger(__name__)
_SERVICE = Caller("service_role", {"role": "service_role"})


class Storms:
    """Counts by kind and subject. `MOST` counts within `SECONDS` are a storm, which is reported."""

    SECONDS = 60.0
    MOST = 20
    SUBJECTS = 1000
    """Subjects that are counted at once. The one counted longest ago is dropped first."""

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[Storm, str], tuple[float, int]] = OrderedDict()
        self._reports: set[asyncio.Task[None]] = set()

    def count(self, kind: Storm, subject: str) -> int:
        """Count one; returns the number to report, or 0."""
        now = time.monotonic()
        begun, count = self._counts.pop((kind, subject), (now, 0))
        if now - begun > self.SECONDS:
            begun, count = now, 0
        count += 1
        is_storm = count >= self.MOST
        self._counts[(kind, subject)] = (begun, 0 if is_storm else count)
        while len(self._counts) > self.SUBJECTS:
            self._counts.popitem(last=False)
        return count if is_storm else 0

    def note(self, request: Request, kind: Storm, subject: str, tenant_id: UUID | None = None) -> None:
        """Count one, and report a storm beside the request."""
        if count := self.count(kind, subject):
            callers: Callers = request.app.state.callers
            task = asyncio.create_task(self._report(callers, kind, subject, count, tenant_id))
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)

    async def _report(
        self, callers: Callers, kind: Storm, subject: str, count: int, tenant_id: UUID | None
    ) -> None:
        try:
            async with callers.acting(_SERVICE) as conn:
                await alerts.report(conn, kind, subject=subject, count=count, tenant_id=tenant_id)
        except Exception as error:
            logger.warning("alert.failed", kind=kind, error=str(error))
