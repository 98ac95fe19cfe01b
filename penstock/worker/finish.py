"""Finish: report what has ended. One report is under way at a time, and takes along all that ended meanwhile:
alone in an idle system a task is reported at once, in a busy one hundreds go together."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import structlog

from penstock import tasks
from penstock.errors import PenstockError, Unavailable
from penstock.tasks import Done, Failed, Refusal

if TYPE_CHECKING:
    from penstock.app import Context
    from penstock.worker.desk import Desk, Held

log = structlog.get_logger("penstock.worker")
MAX_BATCH = 1000
PROGRESS_SECONDS = 0.5


class Finish:
    """Collects outcomes and sends them in batches."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._done: list[Done] = []
        self._failed: list[Failed] = []
        self._returned: list[tuple[tuple[int, int], float, str]] = []
        self._progress: dict[int, Context] = {}
        self._something = asyncio.Event()
        self._progress_due = False

    def done(self, held: Held, output: str | None) -> None:
        self._done.append(Done(held.claim.id, held.claim.lease, output))
        self._something.set()

    def failed(self, held: Held, error: dict[str, Any]) -> None:
        self._failed.append(Failed(held.claim.id, held.claim.lease, error))
        self._something.set()

    def returned(self, held: Held, delay: float, reason: str) -> None:
        self._returned.append(((held.claim.id, held.claim.lease), delay, reason))
        self._something.set()

    def hand_back(self, all_held: list[Held]) -> None:
        """Tasks that never began go back to the queue at once."""
        for held in all_held:
            self.returned(held, 0, "handed back")

    def progress(self, context: Context) -> None:
        """Remember the latest word of a task; called from any thread."""
        self._progress[context.task_id] = context
        if not self._progress_due:
            self._progress_due = True
            loop = self._loop
            loop.call_soon_threadsafe(lambda: loop.call_later(PROGRESS_SECONDS, self._something.set))

    async def run(self) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            await self._something.wait()
            self._something.clear()
            await self._flush()

    async def flush_all(self) -> None:
        """Send everything that is left, for as long as the leases could still be ours."""
        deadline = asyncio.get_running_loop().time() + self._desk.lease_seconds
        while (self._done or self._failed or self._returned) and asyncio.get_running_loop().time() < deadline:
            await self._flush()

    async def _flush(self) -> None:
        try:
            while self._done:
                batch, self._done = self._done[:MAX_BATCH], self._done[MAX_BATCH:]
                await self._send(batch, tasks.complete(self._desk.pool, self._desk.worker_id, batch), self._done)
            while self._failed:
                errors, self._failed = self._failed[:MAX_BATCH], self._failed[MAX_BATCH:]
                await self._send(errors, tasks.fail(self._desk.pool, self._desk.worker_id, errors), self._failed)
            await self._flush_returned()
            await self._flush_progress()
        except Unavailable as error:
            # The same words again with the same leases: if they had arrived, they are accepted a second time.
            log.warning("worker.report_failed", error=str(error))
            self._something.set()
            await asyncio.sleep(random.uniform(0.2, 1))

    async def _send(self, batch: list[Any], sending: Any, queue: list[Any]) -> None:
        try:
            refused: list[Refusal] = await sending
        except Unavailable:
            queue[:0] = batch
            raise
        except PenstockError as error:
            # One report that the database cannot take must not hold up the others.
            log.error("worker.report_refused", error=str(error), tasks=len(batch))
            await self._send_singly(batch)
            return
        self._settle(batch, refused)

    async def _send_singly(self, batch: list[Any]) -> None:
        for report in batch:
            try:
                sender: Any = tasks.complete if isinstance(report, Done) else tasks.fail
                self._settle([report], await sender(self._desk.pool, self._desk.worker_id, [report]))
            except Unavailable:
                raise
            except PenstockError as error:
                if isinstance(report, Done):
                    self._failed.append(Failed(report.id, report.lease, _bad_output(str(error))))
                else:
                    # Not even the error can be written: the lease runs out and the task is taken back.
                    log.error("worker.error_unreportable", task_id=report.id, error=str(error))
                    self._desk.forget(report.id, report.lease)

    def _settle(self, batch: list[Any], refused: list[Refusal]) -> None:
        codes = {refusal.id: refusal.code for refusal in refused}
        for report in batch:
            code = codes.get(report.id)
            if code == "too_large":
                self._failed.append(Failed(report.id, report.lease, _bad_output("the output is too large")))
                continue
            if code is not None:
                log.warning("worker.lease_refused", task_id=report.id, lease=report.lease, code=code)
            self._desk.forget(report.id, report.lease)

    async def _flush_returned(self) -> None:
        returned, self._returned = self._returned, []
        groups: dict[tuple[float, str], list[tuple[int, int]]] = {}
        for held, delay, reason in returned:
            groups.setdefault((delay, reason), []).append(held)
        while groups:
            (delay, reason), batch = groups.popitem()
            try:
                await tasks.reschedule(self._desk.pool, self._desk.worker_id, batch, delay_seconds=delay, reason=reason)
            except Unavailable:
                self._returned += [(held, delay, reason) for held in batch]
                self._returned += [(held, *group) for group, rest in groups.items() for held in rest]
                raise
            for task_id, lease in batch:
                self._desk.forget(task_id, lease)

    async def _flush_progress(self) -> None:
        reports, self._progress, self._progress_due = self._progress, {}, False
        for context in reports.values():
            if context.task_id not in self._desk.held:
                continue
            try:
                await tasks.report_progress(
                    self._desk.pool, self._desk.worker_id, context.task_id, context.lease,
                    fraction=context.fraction, message=tasks.clean(context.message),
                )  # fmt: skip
            except PenstockError as error:
                log.info("worker.progress_refused", task_id=context.task_id, error=str(error))


def _bad_output(message: str) -> dict[str, Any]:
    return {"code": "bad_output", "message": message, "permanent": True}
