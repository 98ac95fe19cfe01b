"""Finish: report what has ended. One report is under way at a time, and takes along all that ended meanwhile:
alone in an idle system a task is reported at once, in a busy one hundreds go together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from penstock import tasks
from penstock.errors import Unavailable
from penstock.tasks import Done, Failed, Refusal
from penstock.worker import outcome

if TYPE_CHECKING:
    from penstock.context import Context
    from penstock.worker.desk import Desk, Held

log = structlog.get_logger("penstock.worker")
MAX_BATCH = 1000
PROGRESS_SECONDS = 0.5


class Finish:
    """Collects outcomes and sends them in batches. Nothing that one of them contains holds up the others."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._done: list[Done] = []
        self._failed: list[Failed] = []
        self._limited: list[tuple[int, int, dict[str, Any]]] = []
        self._returned: dict[tuple[float, str], list[tuple[int, int]]] = {}
        self._progress: dict[int, Context] = {}
        self._progress_is_due = False
        self._progress_is_timed = False
        self._something = asyncio.Event()
        self._sending = asyncio.Lock()
        self.on_parked: Callable[[], None] = lambda: None
        """Called when something may have to be queued again soon."""

    def done(self, held: Held, output: str | None) -> None:
        self._done.append(Done(held.claim.id, held.claim.lease, output))
        self._something.set()

    def failed(self, held: Held, error: dict[str, Any]) -> None:
        self._failed.append(Failed(held.claim.id, held.claim.lease, error))
        self._something.set()

    def limited(self, held: Held, signal: dict[str, Any]) -> None:
        """A provider refused the call: the others are to know at once."""
        self._limited.append((held.claim.id, held.claim.lease, signal))
        self._something.set()

    def returned(self, held: Held, delay: float, reason: str) -> None:
        group = self._returned.setdefault((delay, reason), [])
        group.append((held.claim.id, held.claim.lease))
        self._something.set()

    def hand_back(self, all_held: list[Held]) -> None:
        """Tasks that never began go back to the queue at once."""
        for held in all_held:
            held.lost = "handed back"
            # The words tell the database that what was admitted for them was not used.
            self.returned(held, 0, "not begun")

    def progress(self, context: Context) -> None:
        """Remember the latest word of a task; called from any thread."""
        self._progress[context.task_id] = context
        if not self._progress_is_timed:
            self._progress_is_timed = True
            self._loop.call_soon_threadsafe(self._loop.call_later, PROGRESS_SECONDS, self._send_progress_soon)

    def _send_progress_soon(self) -> None:
        self._progress_is_timed, self._progress_is_due = False, True
        self._something.set()

    async def run(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            await self._flush()

    async def flush_all(self) -> None:
        """Send everything that is left, for as long as the leases could still be ours."""
        deadline = self._loop.time() + self._desk.lease_seconds
        while True:
            # Also waits for what is under way.
            await self._flush()
            is_empty = not (self._done or self._failed or self._limited or self._returned)
            if is_empty or self._loop.time() > deadline:
                return

    async def _flush(self) -> None:
        async with self._sending:
            try:
                while self._limited:
                    await self._send_limited()
                while self._done:
                    await self._send(self._done, tasks.complete)
                while self._failed:
                    await self._send(self._failed, tasks.fail)
                    self.on_parked()
                while self._returned:
                    await self._send_returned()
                if self._progress_is_due:
                    await self._send_progress()
            except Unavailable as error:
                # The same words again, with the same leases: if they had arrived, that is no error.
                log.warning("worker.report_failed", error=str(error))
                self._something.set()
                await asyncio.sleep(random.uniform(0.2, 1))

    async def _send(self, queue: list[Any], sender: Any) -> None:
        batch = queue[:MAX_BATCH]
        del queue[:MAX_BATCH]
        try:
            self._settle(batch, await sender(self._desk.pool, self._desk.worker_id, batch))
        except Unavailable:
            queue[:0] = batch
            raise
        except Exception as error:
            log.error("worker.report_refused", error=str(error), tasks=len(batch))
            await self._send_singly(batch, queue, sender)

    async def _send_singly(self, batch: list[Any], queue: list[Any], sender: Any) -> None:
        """One report that the database cannot take must not hold up the others."""
        while batch:
            report = batch.pop(0)
            try:
                self._settle([report], await sender(self._desk.pool, self._desk.worker_id, [report]))
            except Unavailable:
                queue[:0] = [report, *batch]
                raise
            except Exception as error:
                self._cannot_send(report, error)

    def _cannot_send(self, report: Done | Failed, error: Exception) -> None:
        if isinstance(report, Done):
            self._failed.append(Failed(report.id, report.lease, _bad_output(str(error))))
        elif len(report.error) > 2:
            bare = {"code": "unreportable_error", "permanent": bool(report.error.get("permanent"))}
            self._failed.append(Failed(report.id, report.lease, bare))
        else:
            # Not even that: the lease runs out and the task is taken back.
            log.error("worker.error_unreportable", task_id=report.id, error=str(error))
            self._desk.forget(report.id, report.lease)

    def _settle(self, batch: list[Any], refused: list[Refusal]) -> None:
        codes = {refusal.id: refusal.code for refusal in refused}
        for report in batch:
            code = codes.get(report.id) if codes else None
            if code == "too_large":
                self._failed.append(Failed(report.id, report.lease, _bad_output(outcome.TOO_LARGE)))
                continue
            if code is not None:
                log.warning("worker.lease_refused", task_id=report.id, lease=report.lease, code=code)
            self._desk.forget(report.id, report.lease)

    async def _send_limited(self) -> None:
        task_id, lease, signal = self._limited[0]
        try:
            await tasks.report_limited(self._desk.pool, self._desk.worker_id, task_id, lease, signal)
        except Unavailable:
            raise
        except Exception as error:
            log.warning("worker.lease_refused", task_id=task_id, lease=lease, error=str(error))
        self._limited.pop(0)
        self._desk.forget(task_id, lease)

    async def _send_returned(self) -> None:
        (delay, reason), group = self._returned.popitem()
        batch, rest = group[:MAX_BATCH], group[MAX_BATCH:]
        if rest:
            self._returned[delay, reason] = rest
        try:
            await tasks.reschedule(
                self._desk.pool, self._desk.worker_id, batch, delay_seconds=delay, reason=tasks.clean(reason)
            )
        except Unavailable:
            self._returned.setdefault((delay, reason), []).extend(batch)
            raise
        except Exception as error:
            log.error("worker.return_refused", error=str(error), tasks=len(batch))
        for task_id, lease in batch:
            self._desk.forget(task_id, lease)
        self.on_parked()

    async def _send_progress(self) -> None:
        reports, self._progress, self._progress_is_due = self._progress, {}, False
        for context in reports.values():
            held = self._desk.held.get(context.task_id)
            if held is None or held.context is not context or context.is_stopped:
                continue
            try:
                await tasks.report_progress(
                    self._desk.pool,
                    self._desk.worker_id,
                    context.task_id,
                    context.lease,
                    fraction=context.fraction,
                    message=None if context.message is None else tasks.clean(str(context.message)),
                )
            except Exception as error:
                log.info("worker.progress_refused", task_id=context.task_id, error=str(error))


def _bad_output(message: str) -> dict[str, Any]:
    return {"code": "bad_output", "message": message, "permanent": True}
