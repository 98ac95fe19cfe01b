"""Execute: run the handler of one task, in the loop, a thread or a process, and say how it went."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from penstock import db, jobs, tasks
from penstock.app import Context, Fail, Hooks, Reschedule, decode
from penstock.errors import Invalid, LeaseLost, PenstockError
from penstock.worker.processes import Processes, ProcessDied

if TYPE_CHECKING:
    from penstock.app import Task
    from penstock.worker.desk import Desk, Held
    from penstock.worker.finish import Finish

R = TypeVar("R")
log = structlog.get_logger("penstock.worker")
# A handler that never awaits would keep the loop to itself: after so long the others get a turn.
TURN_SECONDS = 0.005


class Execute(Hooks):
    """As many slots as the worker's concurrency; each takes a task, runs it, and takes the next."""

    def __init__(self, desk: Desk, finish: Finish, dsn: str) -> None:
        self._desk, self._finish, self._dsn = desk, finish, dsn
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(desk.concurrency, thread_name_prefix="penstock task")
        self._processes = Processes(desk.concurrency)

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._slot(), name=f"slot {n}") for n in range(self._desk.concurrency)]

    async def hand_back_running(self) -> None:
        """The grace time is over: stop what still runs and give it back."""
        for held in list(self._desk.held.values()):
            if held.runner is not None:
                self._desk.lose(held.claim.id, held.claim.lease, "handed_back")
        # Handlers get a moment to clean up; a thread cannot be stopped and is left behind, fenced.
        deadline = time.monotonic() + 2
        while self._desk.running and time.monotonic() < deadline:
            await self._desk.changed(deadline - time.monotonic())

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._processes.close()

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        turn = time.monotonic()
        while True:
            held = await self._desk.take()
            held.runner = me
            try:
                await self._run(held)
            except asyncio.CancelledError:
                if held.lost is None:
                    raise
                # The handler was stopped, not this slot.
                me.uncancel()
                if held.lost == "handed_back":
                    self._finish.returned(held, 0, "handed back")
                else:
                    log.info("task.stopped", task_id=held.claim.id, job_id=str(held.claim.job_id), why=held.lost)
                    self._release(held)
            finally:
                held.runner = None
                self._desk.leave()
            if time.monotonic() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()

    def _release(self, held: Held) -> None:
        # Says nothing of the outcome; a canceled lease is taken away, a lost one is not ours any more.
        if held.lost == "canceled":
            self._finish.returned(held, 0, "canceled")
        else:
            self._desk.forget(held.claim.id, held.claim.lease)

    async def _run(self, held: Held) -> None:
        task = self._desk.app.tasks[held.claim.kind]
        held.context = context = Context(held.claim, self._desk.worker_id, self)
        try:
            values = task.signature.check(_values(held.claim))
        except Invalid as error:
            self._finish.failed(held, {"code": "bad_input", "message": error.message, "permanent": True})
            return
        try:
            if held.claim.timeout_seconds is None:
                output = await self._call(task, held, context, values)
            else:
                async with asyncio.timeout(held.claim.timeout_seconds) as limit:
                    output = await self._call(task, held, context, values)
                del limit
        except Reschedule as word:
            self._finish.returned(held, word.delay, word.reason)
        except Exception as error:
            if held.lost is None:
                self._finish.failed(held, describe(error, held.claim.timeout_seconds))
            else:
                self._release(held)
        else:
            if held.lost is not None:
                self._release(held)
            elif output is not _COMPLETED:
                self._finish.done(held, output)

    async def _call(self, task: Task[Any, Any], held: Held, context: Context, values: dict[str, Any]) -> Any:
        arguments: tuple[Any, ...] = (context,) if task.signature.takes_context else ()
        if task.is_transactional:
            return await self._call_in_transaction(task, held, context, arguments, values)
        if task.mode == "async":
            result: Any = await task.function(*arguments, **values)
        elif task.mode == "thread":
            result = await self._loop.run_in_executor(self._threads, lambda: task.function(*arguments, **values))
        else:
            result = await self._processes.call(task.function, values)
        return _output(task, result)

    async def _call_in_transaction(
        self, task: Task[Any, Any], held: Held, context: Context, arguments: tuple[Any, ...], values: dict[str, Any]
    ) -> Any:
        """The handler's writes and the task's completion are one commit, or none."""
        if task.mode == "async":
            async with db.transaction(self._desk.pool) as connection:
                context.connection = connection
                output = _output(task, await task.function(*arguments, **values))
                refused = await tasks.complete(connection, context.worker_id, [tasks.Done(context.task_id, context.lease, output)])
                if refused:
                    raise _refused(refused[0])
        else:
            await self._loop.run_in_executor(self._threads, lambda: self._transaction_in_thread(task, context, arguments, values))
        self._desk.forget(held.claim.id, held.claim.lease)
        return _COMPLETED

    def _transaction_in_thread(
        self, task: Task[Any, Any], context: Context, arguments: tuple[Any, ...], values: dict[str, Any]
    ) -> None:
        with db.connect(self._dsn, name="penstock transactional task") as connection, connection.transaction():
            context.connection = connection
            output = _output(task, task.function(*arguments, **values))
            db.call_sync(
                connection, "complete_task", p_task_id=context.task_id, p_worker_id=context.worker_id,
                p_output=None if output is None else db.Json(json.loads(output)), p_lease=context.lease,
            )  # fmt: skip

    # --- what a context asks for ---

    def reported(self, ctx: Context) -> None:
        self._finish.progress(ctx)

    async def heartbeat(self, ctx: Context) -> None:
        await db.call(
            self._desk.pool, "heartbeat_task", p_task_id=ctx.task_id, p_worker_id=ctx.worker_id, p_lease=ctx.lease
        )

    async def add_tasks(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        return await jobs.add_tasks(
            self._desk.pool, job_id=ctx.job_id, tasks=new, task_id=ctx.task_id, worker_id=ctx.worker_id, lease=ctx.lease
        )

    async def save(self, ctx: Context, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        if self._desk.app.artifacts is None:
            raise Invalid("this app has no place for artifacts", hint="Set app.artifacts.")
        return await self._desk.app.artifacts(ctx, name, data, content_type)

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


_COMPLETED = object()


def _values(claim: tasks.Claim) -> dict[str, Any]:
    outputs = claim.input.get("after")
    if outputs is None:
        return claim.input
    return {name: decode(value, outputs) for name, value in claim.input.items() if name != "after"}


def _output(task: Task[Any, Any], result: Any) -> str | None:
    if result is None:
        return None
    try:
        text, was_cleaned = tasks.dump(task.signature.dump(result))
    except (ValueError, TypeError, RecursionError, PenstockError) as error:
        raise Fail(f"the output cannot be stored: {error}", code="bad_output") from error
    if was_cleaned:
        log.warning("task.output_cleaned", kind=task.kind)
    return text


def _refused(refusal: tasks.Refusal) -> Exception:
    if refusal.code == "too_large":
        return Fail("the output is too large", code="bad_output")
    return LeaseLost(code=refusal.code)


def describe(error: BaseException, timeout: float | None) -> dict[str, Any]:
    """An exception as the database keeps it, cleaned of what it cannot store."""
    code, is_permanent, details = "handler_error", False, None
    match error:
        case Fail():
            code, is_permanent, details = error.code, True, error.details
        case TimeoutError() if timeout is not None and not str(error):
            code, error = "timeout", TimeoutError(f"the handler took longer than {timeout:g} s")
        case ProcessDied():
            code = "process_died"
        case _:
            code = str(getattr(error, "code", None) or code)
    stack = "".join(traceback.format_exception(error))[-20_000:]
    record: dict[str, Any] = {
        "code": code[:100],
        "message": str(error)[:10_000] or type(error).__name__,
        "permanent": is_permanent,
        "details": {"type": type(error).__name__, "stack": stack, **({"details": details} if details is not None else {})},
    }
    retry_after = getattr(error, "retry_after", None)
    if isinstance(retry_after, int | float) and retry_after > 0:
        record["retry_after_seconds"] = float(retry_after)
    try:
        cleaned = tasks.clean(record)
        if cleaned != record:
            cleaned["details"]["cleaned"] = True
        tasks.dump(cleaned)
    except (TypeError, ValueError, RecursionError):
        cleaned = {**tasks.clean({k: v for k, v in record.items() if k != "details"}), "details": {"type": type(error).__name__}}
    return cleaned
