"""Execute: run the handler of one task, in the event loop, a thread or a process, and report its outcome."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString, TypeGuard, TypeVar, cast
from uuid import uuid4

import structlog

from penstock import tracing
from penstock.contract import artifacts, jobs, provider_keys, tasks, waits
from penstock.errors import Invalid, TooLarge, Unavailable
from penstock.postgres import db
from penstock.sdk import bulk_guards
from penstock.sdk.context import Context, Fail, Hooks, Reschedule
from penstock.sdk.signature import decode
from penstock.types import SealedKey
from penstock.worker import outcome
from penstock.worker.engines import Engines
from penstock.worker.logs import Logs
from penstock.worker.losses import Losses, is_caused_by_loss
from penstock.worker.operations import Operations
from penstock.worker.streams import Streams

if TYPE_CHECKING:
    from penstock.sdk.job_types import Task
    from penstock.sdk.prompts import DeclaredPrompt
    from penstock.types import Prompt
    from penstock.worker.finish import Finish
    from penstock.worker.task_buffer import LeasedTask, TaskBuffer

R = TypeVar("R")
log = structlog.get_logger("penstock.worker")
# Handlers that never await would block the event loop: after this time a slot lets others run.
TURN_SECONDS = 0.005
CLEANUP_SECONDS = 2.0
# Outputs up to this size are always allowed: no need to ask the database for its limit.
LARGE_BYTES = 8192
# Connections for the calls of handlers; the worker's own calls use another pool. Not all of them may add
# tasks: adding may wait for the transaction of another handler, and that handler needs a connection to go on.
CALL_CONNECTIONS = 3
ADDING_CONNECTIONS = 2
# A report on a second connection must not wait for ever for locks that the handler's own transaction holds.
_LOCK_TIMEOUT: LiteralString = "set local lock_timeout = '10s'"
# The server then detects within a minute, not after hours, that a worker's machine is gone.
_KEEPALIVES: LiteralString = (
    "select set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),"
    " set_config('tcp_keepalives_count', '3', true)"
)
_COMPLETED = object()
_UNTRACED = nullcontext()


class Execute(Hooks):
    """Runs one slot per unit of concurrency; each slot runs one task after the other."""

    def __init__(self, buffer: TaskBuffer, finish: Finish, dsn: str, calls: db.Pool) -> None:
        self.logs = Logs(buffer.pool, buffer.worker_id)
        self.streams = Streams(buffer.pool, buffer.worker_id)
        self._buffer, self._finish, self._dsn = buffer, finish, dsn
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._threads = ThreadPoolExecutor(buffer.concurrency, thread_name_prefix="penstock task")
        self._engines = Engines(buffer.concurrency, buffer.app.tasks)
        self._opened = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._calls = calls
        self._adding = asyncio.Semaphore(ADDING_CONNECTIONS)
        self._transactions: db.Pool | None = None
        self._is_thread_left = False
        self._losses = Losses()
        self._is_traced = tracing.tracer() is not None
        self._waiting_for_database: set[Context] = set()
        self.on_attempt: Callable[[outcome.AttemptEnd], None] | None = None

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._slot(), name=f"slot {n}") for n in range(self._buffer.concurrency)]

    async def hand_back_running(self) -> None:
        """Stop the handlers that still run after the grace time, and requeue their tasks."""
        running = [leased for leased in self._buffer.leased.values() if leased.runner is not None]
        for leased in running:
            self._buffer.stop(leased.claim.id, leased.claim.lease, "handed back")
        # Handlers get CLEANUP_SECONDS for their `finally` blocks.
        deadline = time.monotonic() + CLEANUP_SECONDS
        while self._buffer.running > self._buffer.abandoned and time.monotonic() < deadline:
            await self._buffer.wait_for_change(deadline - time.monotonic())
        for leased in running:
            if leased.runner is not None:
                log.warning("task.does_not_stop", task_id=leased.claim.id, kind=leased.claim.kind)
                self.release(leased)

    async def close(self) -> bool:
        """End threads and processes. Returns False if a thread still runs."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._engines.close()
        await self._opened.aclose()
        return self._buffer.running == 0 and not self._is_thread_left

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        turn = time.monotonic()
        while not self._buffer.is_closing:
            leased = self._buffer.take_next() or await self._buffer.next_task()
            leased.runner, claim = me, leased.claim
            try:
                with tracing.processing(claim, claim.traceparent) if self._is_traced else _UNTRACED:
                    await self._run(leased, me)
            finally:
                leased.runner = None
                try:
                    if leased.thread is not None:
                        await self._wait_for_thread(leased.thread)
                finally:
                    self.logs.end(claim)
                    self.streams.discard(claim)
                    self._buffer.handler_ended()
            if time.monotonic() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()

    async def _wait_for_thread(self, thread: asyncio.Future[Any]) -> None:
        """Keep the slot until the thread of a stopped attempt ends: a thread cannot be stopped."""
        self._buffer.abandoned += 1
        self._buffer.notify()
        try:
            await asyncio.wait([thread])
        finally:
            self._buffer.abandoned -= 1
            self._is_thread_left |= not thread.done()

    def release(self, leased: LeasedTask) -> None:
        """Requeue the task without an outcome, unless its lease is lost."""
        if leased.stop_reason == "lease_lost":
            self._buffer.remove(leased.claim.id, leased.claim.lease)
        else:
            self._finish.returned(leased, 0, leased.stop_reason or "handed back")

    async def _run(self, leased: LeasedTask, me: asyncio.Task[None]) -> None:
        claim = leased.claim
        task = self._buffer.app.tasks[claim.kind]
        self.streams.begin(claim)
        leased.context = context = Context(claim, self._buffer.worker_id, self, self.logs.begin(claim))
        started = time.monotonic()
        try:
            try:
                output = await self._attempt(task, leased, context)
            finally:
                stopped = asyncio.CancelledError | KeyboardInterrupt
                if self.streams.has_parts(claim) and not isinstance(sys.exception(), stopped):
                    await self.streams.end(claim)
            if self._is_large(output):
                output = await self._store_if_too_large(context, output)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if leased.stop_reason is not None:
                self._stopped(leased, me)
            elif isinstance(error, asyncio.CancelledError) and me.cancelling():
                raise  # the slot was canceled, not the handler
            else:
                self._report_error(leased, context, error)
                self._tell(leased, started, error)
        else:
            if leased.stop_reason is not None:
                self._stopped(leased, me)
                return
            if output is not _COMPLETED:
                self._finish.done(leased, output)
            self._tell(leased, started, None)

    def _tell(self, leased: LeasedTask, started: float, error: BaseException | None) -> None:
        if leased.context is not None and leased.context.prompts:
            self._finish.prompted(leased.context, time.monotonic() - started, error)
        if self.on_attempt is not None:
            self.on_attempt(outcome.AttemptEnd(leased.claim, time.monotonic() - started, error))

    def _report_error(self, leased: LeasedTask, context: Context, error: BaseException) -> None:
        if (waiting := outcome.waiting(error)) is not None:
            self._finish.waits(leased, waiting.wait_id, getattr(waiting, "seconds", None))
        elif isinstance(error, Reschedule):
            self._finish.returned(leased, error.delay, error.reason)
        elif self._is_database_lost(error, context):
            self._return_after_loss(leased, error)
        elif leased.claim.provider is not None and (signal := outcome.signal(error)) is not None:
            self._finish.limited(leased, signal)
            self._finish.hand_back(self._buffer.pop_unstarted_for(leased.claim.provider))
        else:
            described = outcome.describe(error)
            tracing.failed(described["code"])
            self._finish.failed(leased, described)

    def _is_database_lost(self, error: BaseException, context: Context) -> bool:
        """Whether an attempt ended because this worker lost its connection to the database."""
        is_waiting = isinstance(error, outcome.TimedOutHandler) and context in self._waiting_for_database
        return is_waiting or is_caused_by_loss(error)

    def _return_after_loss(self, leased: LeasedTask, error: BaseException) -> None:
        """Requeue the task without costing an attempt; after several times, fail the attempt."""
        delay = self._losses.delay(leased.claim.id)
        log.warning("task.connection_lost", task_id=leased.claim.id, kind=leased.claim.kind, error=str(error))
        if delay is None:
            self._finish.failed(leased, outcome.describe(error))
        else:
            self._finish.returned(leased, delay, "database connection lost")

    async def _retry_while_unavailable(self, ctx: Context, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make an idempotent call, again while the database is down, full or gives up on the call.

        A handler that reports paid work must not fail because of the database. This ends when the lease is
        lost, because then the handler is stopped. A handler's own transaction may hold the locks: no retry.
        """
        self._waiting_for_database.add(ctx)
        try:
            while True:
                try:
                    return await call()
                except Unavailable as error:
                    if ctx.is_stopped or (ctx.connection and not isinstance(error, db.ConnectionLost)):
                        raise
                    log.warning("task.database_away", task_id=ctx.task_id, error=str(error))
                await asyncio.sleep(random.uniform(0.2, 1))
        finally:
            self._waiting_for_database.discard(ctx)

    def _stopped(self, leased: LeasedTask, me: asyncio.Task[None]) -> None:
        while me.cancelling():
            me.uncancel()
        log.info(
            "task.stopped", task_id=leased.claim.id, job_id=str(leased.claim.job_id), why=leased.stop_reason
        )
        self.release(leased)

    async def _attempt(self, task: Task[Any, Any], leased: LeasedTask, context: Context) -> Any:
        try:
            claim = leased.claim
            if "after" in claim.input:
                claim = await self._with_stored_outputs(claim, context)
            arguments = _arguments_of(claim)
            if bulk_guards.KEY in arguments:
                task, arguments = await bulk_guards.screened(self._buffer.app.bulks, task, arguments, context)
            values = task.signature.check(arguments)
        except Invalid as error:
            raise Fail(error.message, code="bad_input", details=error.details) from None
        limit = leased.claim.timeout_seconds
        if task.mode in ("process", "ray"):
            return await self._engines.call(task, values, limit)
        if limit is None:
            return await self._call(task, leased, context, values)
        async with outcome.limited(limit):
            return await self._call(task, leased, context, values)

    async def _call(
        self, task: Task[Any, Any], leased: LeasedTask, context: Context, values: dict[str, Any]
    ) -> Any:
        arguments: tuple[Any, ...] = (context,) if task.signature.takes_context else ()
        if task.is_transactional:
            return await self._call_in_transaction(task, leased, context, values)
        if task.mode == "async":
            return outcome.output(task, await task.function(*arguments, **values))
        call = partial(task.function, *arguments, **values)
        return await self._in_thread(leased, context, lambda: outcome.output(task, call()))

    async def _in_thread(self, leased: LeasedTask, context: Context, call: Callable[[], Any]) -> Any:
        call = tracing.in_context(call)
        thread = self._loop.run_in_executor(
            self._threads, outcome.caught, outcome.unless_stopped, context, call
        )
        try:
            result, error = await asyncio.shield(thread)
        except asyncio.CancelledError:
            # A thread cannot be stopped: the handler has to check `is_stopped`.
            context.stop()
            leased.thread = thread
            raise
        if error is not None:
            raise error
        return result

    async def _call_in_transaction(
        self, task: Task[Any, Any], leased: LeasedTask, context: Context, values: dict[str, Any]
    ) -> Any:
        """Commit the handler's writes and the task's completion in one transaction."""
        try:
            if task.mode == "async":
                async with db.pipelined_commit(await self._connections()) as (connection, execute_last):
                    if connection.info.hostaddr:
                        await db.rows(connection, _KEEPALIVES, ())
                    context.connection = connection
                    output = outcome.output(task, await task.function(context, **values))
                    if self._is_large(output):
                        output = await self._store_if_too_large(context, output)
                    await self.streams.end(leased.claim)
                    done = tasks.Done(context.task_id, context.lease, output)
                    await tasks.complete_last(execute_last, context.worker_id, done)
            else:
                call = partial(self._transaction_in_thread, task, leased.claim, context, values)
                await self._in_thread(leased, context, call)
        except TooLarge as error:
            if error.details.get("field") == "p_output":
                raise Fail(outcome.TOO_LARGE, code="bad_output") from error
            raise
        self._buffer.remove(leased.claim.id, leased.claim.lease)
        return _COMPLETED

    def _transaction_in_thread(
        self, task: Task[Any, Any], claim: tasks.Claim, context: Context, values: dict[str, Any]
    ) -> None:
        name = f"penstock task {context.task_id}"
        with (
            db.connect(self._dsn, name=name) as connection,
            db.pipelined_commit_sync(connection) as execute_last,
        ):
            if connection.info.hostaddr:
                db.rows_sync(connection, _KEEPALIVES, ())
            context.connection = connection
            call = partial(task.function, context, **values)
            output = outcome.output(task, outcome.unless_stopped(context, call))
            if self._is_large(output):
                output = self.block(self._store_if_too_large(context, output))
            self.block(self.streams.end(claim))
            done = tasks.Done(context.task_id, context.lease, output)
            tasks.complete_last_sync(execute_last, context.worker_id, done)

    def _is_large(self, output: Any) -> TypeGuard[str]:
        return isinstance(output, str) and len(output) > LARGE_BYTES and self._buffer.app.artifacts is None

    async def _store_if_too_large(self, context: Context, output: str) -> str:
        """The output; if it is too large for the database, it becomes a file and a reference."""
        max_bytes = partial(artifacts.max_output_bytes, self._calls)
        if len(output) <= await self._retry_while_unavailable(context, max_bytes):
            return output
        if len(output) > artifacts.MAX_OUTPUT:
            raise Fail(outcome.TOO_LARGE, code="bad_output")
        return artifacts.reference(
            await self.save(context, artifacts.OUTPUT, output.encode(), "application/json")
        )

    async def _with_stored_outputs(self, claim: tasks.Claim, context: Context) -> tasks.Claim:
        """The claim, with those outputs of its dependencies read that are stored as files."""
        outputs = claim.input.get("after")
        if not isinstance(outputs, dict) or not artifacts.is_any_reference(cast("dict[str, Any]", outputs)):
            return claim
        found = cast("dict[str, Any]", outputs)
        expand = partial(
            artifacts.expanded, self._calls, self._buffer.app, job_id=claim.job_id, outputs=found
        )
        complete = await self._retry_while_unavailable(context, expand)
        return claim._replace(input={**claim.input, "after": complete})

    async def _connections(self) -> db.Pool:
        """A pool of its own for transactional handlers: they keep their connections for long."""
        async with self._opening:
            if self._transactions is None:
                opening = db.pool(self._dsn, name="penstock task", max_size=self._buffer.concurrency)
                self._transactions = await self._opened.enter_async_context(opening)
        return self._transactions

    def progressed(self, ctx: Context) -> None:
        self._finish.progress(ctx)

    def streamed(self, ctx: Context, part: str | Mapping[str, Any]) -> None:
        self.streams.add(ctx, part)

    async def heartbeat(self, ctx: Context) -> None:
        await self._report(ctx, "heartbeat_task")

    async def add_tasks(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        chosen: dict[str, Any] = {"job_id": ctx.job_id, "tasks": new, "task_id": ctx.task_id}
        chosen |= {"worker_id": ctx.worker_id, "lease": ctx.lease}
        if ctx.connection is not None:
            return await jobs.add_tasks(ctx.connection, **chosen)
        async with self._adding:
            return await jobs.add_tasks(self._calls, **chosen)

    def add_tasks_sync(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        if ctx.connection is None:
            return self.block(self.add_tasks(ctx, new))
        [row] = db.call_sync(
            ctx.connection, "add_tasks", p_job_id=ctx.job_id, p_tasks=db.Json(list(new)),
            p_task_id=ctx.task_id, p_worker_id=ctx.worker_id, p_lease=ctx.lease,
        )  # fmt: skip
        return row["add_tasks"]

    async def save(self, ctx: Context, name: str, data: artifacts.Data, content_type: str, **how: Any) -> Any:
        app = self._buffer.app
        if app.artifacts is not None:
            return await app.artifacts(ctx, name, data, content_type)
        return await artifacts.save(
            self._calls, app.storage, task_id=ctx.task_id, worker_id=ctx.worker_id, lease=ctx.lease,
            name=name, data=data, content_type=content_type, **how,
        )  # fmt: skip

    async def prompt(self, ctx: Context, prompt: DeclaredPrompt) -> Prompt:
        return await self._buffer.app.prompts.get_for_job(prompt, ctx.job_id)

    async def usage(self, ctx: Context, units: dict[str, float], variant: str) -> None:
        tracing.used(ctx.provider, units)
        details = ctx.prompts[-1].details if ctx.prompts else {}
        options = {"variant": variant, "key": _report_key(ctx), "details": details}
        await self._report(ctx, "record_usage", p_units=db.Json(units), p_options=db.Json(options))

    async def cost(
        self, ctx: Context, cost_type: str, amount: Decimal, currency: str | None, options: dict[str, Any]
    ) -> None:
        await self._report(
            ctx, "record_cost", p_cost_type=cost_type, p_amount=amount, p_currency=currency,
            p_options=db.Json({"key": _report_key(ctx), **options}),
        )  # fmt: skip

    async def _report(self, ctx: Context, function: str, **arguments: Any) -> None:
        """Call an SQL function about the attempt and commit at once, outside the handler's own transaction.

        The function has to be idempotent, because it may be called twice.
        """
        arguments |= {"p_task_id": ctx.task_id, "p_worker_id": ctx.worker_id, "p_lease": ctx.lease}

        async def report() -> None:
            if ctx.connection is None:
                await db.call(self._calls, function, **arguments)
                return
            async with db.transaction_with_setup(self._calls, _LOCK_TIMEOUT, ()) as conn:
                await db.call(conn, function, **arguments)

        await self._retry_while_unavailable(ctx, report)

    async def report_signal(self, ctx: Context, signal: dict[str, Any]) -> None:
        if ctx.provider is not None:
            report = partial(
                db.call, self._calls, "report_provider", p_name=ctx.provider,
                p_signal=db.Json(tasks.clean(signal)), p_tenant_id=ctx.tenant_id,
            )  # fmt: skip
            await self._retry_while_unavailable(ctx, report)

    async def sealed_key(self, ctx: Context, provider: str) -> SealedKey | None:
        return await provider_keys.get(self._calls, provider=provider, tenant_id=ctx.tenant_id)

    def require_async(self) -> None:
        if threading.get_ident() != self._loop_thread:
            raise Invalid(
                "a handler in a thread must call the method that ends with `_sync`, such as wait_for_sync",
                code="use_sync",
            )

    async def open_wait(self, ctx: Context, name: str, options: dict[str, Any]) -> dict[str, Any]:
        call = partial(
            waits.open, self._calls, task_id=ctx.task_id, worker_id=ctx.worker_id, lease=ctx.lease,
            name=name, options=tasks.clean(options),
        )  # fmt: skip
        return await self._retry_while_unavailable(ctx, call)

    def operations(self) -> Operations:
        return Operations(self._calls, self._retry_while_unavailable)

    async def load_steps(self, ctx: Context) -> dict[str, Any]:
        call = partial(waits.steps, self._calls, job_id=ctx.job_id, task_id=ctx.task_id)
        return await self._retry_while_unavailable(ctx, call)

    async def store_step(self, ctx: Context, name: str, output: Any) -> Any:
        call = partial(
            waits.store_step, self._calls, task_id=ctx.task_id, worker_id=ctx.worker_id, lease=ctx.lease,
            name=name, output=output,
        )  # fmt: skip
        return await self._retry_while_unavailable(ctx, call)

    async def compute(self, function: Callable[..., R], args: Any, kwargs: Any, on: Any, resources: Any) -> R:
        return await self._engines.compute(function, args, kwargs, on, resources)

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        if threading.get_ident() == self._loop_thread:
            work.close()
            raise Invalid(
                "an async handler cannot call this method: await the one that starts with an `a`,"
                " such as aheartbeat, aadd_tasks or asave",
                code="use_await",
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _report_key(ctx: Context) -> str:
    return f"{ctx.task_id}:{ctx.lease}:{uuid4().hex}"


def _arguments_of(claim: tasks.Claim) -> dict[str, Any]:
    """The handler's arguments, with references to dependencies replaced by their outputs."""
    outputs = claim.input.get("after")
    if outputs is None:
        return claim.input
    return {name: decode(value, outputs) for name, value in claim.input.items() if name != "after"}
