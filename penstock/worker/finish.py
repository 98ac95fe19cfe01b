"""Finish: report outcomes. One report is sent at a time, with all outcomes collected since the last one.

So an idle worker reports a task at once, and a busy one reports hundreds together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from penstock.contract import operations, prompts, tasks, waits
from penstock.contract.tasks import Done, Failed, Rejection
from penstock.errors import Unavailable
from penstock.postgres import db
from penstock.worker import outcome

if TYPE_CHECKING:
    from penstock.sdk.context import Context
    from penstock.worker.task_buffer import LeasedTask, TaskBuffer

log = structlog.get_logger("penstock.worker")
MAX_BATCH = 1000
PROGRESS_SECONDS = 0.5
# A report that is not answered in time is sent again on another connection.
ANSWER_SECONDS = 15.0


class Finish:
    """Collects outcomes and sends them in batches. A report that is rejected does not block the others."""

    def __init__(self, buffer: TaskBuffer, reports: db.Pool) -> None:
        self._buffer, self._pool = buffer, reports
        self._loop = asyncio.get_running_loop()
        self._done: list[Done] = []
        self._failed: list[Failed] = []
        self._limited: list[tuple[int, int, dict[str, Any]]] = []
        self._handed_back: list[tuple[int, int]] = []
        self._returned: dict[tuple[float, str], list[tuple[int, int]]] = {}
        self._waiting: list[tuple[int, int, UUID, float | None]] = []
        self._progress: dict[int, Context] = {}
        self._progress_is_due = False
        self._prompted: list[dict[str, Any]] = []
        self._progress_is_timed = False
        self._has_reports = asyncio.Event()
        self._sending = asyncio.Lock()
        self.on_parked: Callable[[], None] = lambda: None
        """Called when a task was parked that may be due again soon."""

    def done(self, leased: LeasedTask, output: str | None) -> None:
        self._done.append(Done(leased.claim.id, leased.claim.lease, output))
        self._has_reports.set()

    def failed(self, leased: LeasedTask, error: dict[str, Any]) -> None:
        self._failed.append(Failed(leased.claim.id, leased.claim.lease, error))
        self._has_reports.set()

    def limited(self, leased: LeasedTask, signal: dict[str, Any]) -> None:
        """Report that the provider rejected the call because of a limit; sent before all other reports."""
        self._limited.append((leased.claim.id, leased.claim.lease, signal))
        self._has_reports.set()

    def returned(self, leased: LeasedTask, delay: float, reason: str) -> None:
        group = self._returned.setdefault((delay, reason), [])
        group.append((leased.claim.id, leased.claim.lease))
        self._has_reports.set()

    def waits(self, leased: LeasedTask, wait_id: UUID, seconds: float | None = None) -> None:
        """Park a task whose handler waits; with seconds, for its operation."""
        self._waiting.append((leased.claim.id, leased.claim.lease, wait_id, seconds))
        self._has_reports.set()

    def prompted(self, context: Context, seconds: float, error: BaseException | None) -> None:
        """Report the prompts of an attempt; sent before its outcome, which may be charged by an estimate."""
        about = {"job_id": str(context.job_id), "task_id": context.task_id, "lease": context.lease}
        about |= {"seconds": seconds, "is_failed": outcome.is_failure(error)}
        for each in context.prompts:
            use = {"name": each.name, "version": each.version, "is_fallback": each.is_fallback}
            self._prompted.append(about | use)
        self._has_reports.set()

    def hand_back(self, unstarted: list[LeasedTask]) -> None:
        """Requeue tasks that never started."""
        for leased in unstarted:
            leased.stop_reason = "handed back"
            self._handed_back.append((leased.claim.id, leased.claim.lease))
            self._has_reports.set()

    def progress(self, context: Context) -> None:
        """Keep the latest progress of a task to be sent soon; may be called from any thread."""
        self._progress[context.task_id] = context
        if not self._progress_is_timed:
            self._progress_is_timed = True
            self._loop.call_soon_threadsafe(self._loop.call_later, PROGRESS_SECONDS, self._send_progress_soon)

    def _send_progress_soon(self) -> None:
        self._progress_is_timed, self._progress_is_due = False, True
        self._has_reports.set()

    async def run(self) -> None:
        while True:
            await self._has_reports.wait()
            self._has_reports.clear()
            await self._flush()

    async def flush_all(self) -> None:
        """Send all remaining reports; give up once the leases have expired anyway."""
        deadline = self._loop.time() + self._buffer.lease_seconds
        while True:
            # This also waits for a report that is being sent.
            await self._flush()
            is_empty = not any(
                (
                    self._done,
                    self._failed,
                    self._limited,
                    self._handed_back,
                    self._returned,
                    self._waiting,
                    self._prompted,
                )
            )
            if is_empty or self._loop.time() > deadline:
                return

    async def _flush(self) -> None:
        async with self._sending:
            try:
                if self._prompted:
                    await self._send_prompted()
                while self._limited:
                    await self._send_limited()
                while self._done:
                    await self._send(self._done, tasks.complete)
                while self._failed:
                    await self._send(self._failed, tasks.fail)
                    self.on_parked()
                while self._handed_back:
                    await self._send_handed_back()
                while self._returned:
                    await self._send_returned()
                while self._waiting:
                    await self._send_waiting()
                if self._progress_is_due:
                    await self._send_progress()
            except Unavailable as error:
                # The reports are sent again with the same leases; one that had arrived is accepted again.
                log.warning("worker.report_failed", error=str(error))
                self._has_reports.set()
                await asyncio.sleep(random.uniform(0.2, 1))

    async def _send(self, queue: list[Any], sender: Any) -> None:
        batch = queue[:MAX_BATCH]
        del queue[:MAX_BATCH]
        try:
            async with db.answering(self._pool, ANSWER_SECONDS) as conn:
                rejected = await sender(conn, self._buffer.worker_id, batch)
            self._accept(batch, rejected)
        except Unavailable:
            queue[:0] = batch
            raise
        except Exception as error:
            log.error("worker.report_refused", error=str(error), tasks=len(batch))
            await self._send_singly(batch, queue, sender)

    async def _send_singly(self, batch: list[Any], queue: list[Any], sender: Any) -> None:
        """Send reports one by one, so that one that the database rejects does not block the others."""
        while batch:
            report = batch.pop(0)
            try:
                self._accept([report], await sender(self._pool, self._buffer.worker_id, [report]))
            except Unavailable:
                queue[:0] = [report, *batch]
                raise
            except Exception as error:
                self._simplify(report, error)

    def _simplify(self, report: Done | Failed, error: Exception) -> None:
        """Replace a report that the database rejects with one that says less."""
        if isinstance(report, Done):
            self._failed.append(Failed(report.id, report.lease, _bad_output(str(error))))
        elif len(report.error) > 2:
            bare = {"code": "unreportable_error", "permanent": bool(report.error.get("permanent"))}
            self._failed.append(Failed(report.id, report.lease, bare))
        else:
            # The database rejects even this, so the lease expires and the task is requeued.
            log.error("worker.error_unreportable", task_id=report.id, error=str(error))
            self._buffer.remove(report.id, report.lease)

    def _accept(self, batch: list[Any], rejected: list[Rejection]) -> None:
        """Remove reported tasks from the buffer; an output that is too large fails its task."""
        codes = {rejection.id: rejection.code for rejection in rejected}
        for report in batch:
            code = codes.get(report.id) if codes else None
            if code == "too_large":
                self._failed.append(Failed(report.id, report.lease, _bad_output(outcome.TOO_LARGE)))
                continue
            if code is not None:
                log.warning("worker.lease_refused", task_id=report.id, lease=report.lease, code=code)
            self._buffer.remove(report.id, report.lease)

    async def _send_prompted(self) -> None:
        batch, self._prompted = self._prompted[:MAX_BATCH], self._prompted[MAX_BATCH:]
        try:
            async with db.answering(self._pool, ANSWER_SECONDS) as conn:
                await prompts.record_uses(conn, uses=batch)
        except Unavailable:
            # Outcomes of tasks do not wait for statistics: they find out whether the database is away.
            self._prompted[:0] = batch
        except Exception as error:
            log.error("worker.prompts_refused", error=str(error), uses=len(batch))

    async def _send_limited(self) -> None:
        task_id, lease, signal = self._limited[0]
        try:
            await tasks.report_limited(self._pool, self._buffer.worker_id, task_id, lease, signal)
        except Unavailable:
            raise
        except Exception as error:
            log.warning("worker.lease_refused", task_id=task_id, lease=lease, error=str(error))
        self._limited.pop(0)
        self._buffer.remove(task_id, lease)

    async def _send_waiting(self) -> None:
        task_id, lease, wait_id, seconds = self._waiting[0]
        pool, worker_id = self._pool, self._buffer.worker_id
        try:
            if seconds is None:
                result = await waits.park(
                    pool, task_id=task_id, worker_id=worker_id, lease=lease, wait_id=wait_id
                )
            else:
                result = await operations.park(
                    pool, operation_id=wait_id, worker_id=worker_id, lease=lease, seconds=seconds
                )
            if result not in ("parked", "queued"):
                log.warning("worker.lease_refused", task_id=task_id, lease=lease, code=result)
        except Unavailable:
            raise
        except Exception as error:
            log.error("worker.park_refused", task_id=task_id, error=str(error))
        self._waiting.pop(0)
        self._buffer.remove(task_id, lease)
        self.on_parked()

    async def _send_handed_back(self) -> None:
        batch, self._handed_back = self._handed_back[:MAX_BATCH], self._handed_back[MAX_BATCH:]
        try:
            await tasks.hand_back(self._pool, self._buffer.worker_id, batch)
        except Unavailable:
            self._handed_back[:0] = batch
            raise
        except Exception as error:
            log.error("worker.return_refused", error=str(error), tasks=len(batch))
        self._forget_returned(batch)

    async def _send_returned(self) -> None:
        (delay, reason), group = self._returned.popitem()
        batch, rest = group[:MAX_BATCH], group[MAX_BATCH:]
        if rest:
            self._returned[delay, reason] = rest
        try:
            await tasks.reschedule(
                self._pool,
                self._buffer.worker_id,
                batch,
                delay_seconds=delay,
                reason=tasks.clean(reason),
            )
        except Unavailable:
            self._returned.setdefault((delay, reason), []).extend(batch)
            raise
        except Exception as error:
            log.error("worker.return_refused", error=str(error), tasks=len(batch))
        self._forget_returned(batch)

    def _forget_returned(self, batch: list[tuple[int, int]]) -> None:
        for task_id, lease in batch:
            self._buffer.remove(task_id, lease)
        self.on_parked()

    async def _send_progress(self) -> None:
        reports, self._progress, self._progress_is_due = self._progress, {}, False
        for context in reports.values():
            leased = self._buffer.leased.get(context.task_id)
            if leased is None or leased.context is not context or context.is_stopped:
                continue
            try:
                await tasks.report_progress(
                    self._pool,
                    self._buffer.worker_id,
                    context.task_id,
                    context.lease,
                    fraction=context.fraction,
                    message=None if context.message is None else tasks.clean(str(context.message)),
                )
            except Exception as error:
                log.info("worker.progress_refused", task_id=context.task_id, error=str(error))


def _bad_output(message: str) -> dict[str, Any]:
    return {"code": "bad_output", "message": message, "permanent": True}
