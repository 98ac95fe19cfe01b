"""Execute: run the handler of one task, in the loop, a thread or a process, and say how it went."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, LiteralString, TypeGuard, TypeVar, cast
from uuid import uuid4

import structlog

from penstock import artifacts, db, jobs, signals, tasks
from penstock.context import Context, Fail, Hooks, Reschedule
from penstock.errors import Invalid, TooLarge
from penstock.signature import decode
from penstock.worker import outcome
from penstock.worker.processes import Processes

if TYPE_CHECKING:
    from penstock.app import Task
    from penstock.worker.desk import Desk, Held
    from penstock.worker.finish import Finish

R = TypeVar("R")
log = structlog.get_logger("penstock.worker")
# A handler that never awaits would keep the loop to itself: after so long the others get a turn.
TURN_SECONDS = 0.005
CLEANUP_SECONDS = 2.0
# A smaller output is not worth the question how large it may be.
LARGE_BYTES = 8192
# Connections for what handlers ask for; the worker's own are apart. Of them, so many for adding tasks, which
# may have to wait for another handler's transaction, while that asks for something itself.
CALLS = 3
ADDING = 2
# A transactional handler must not wait for itself: what it has in hand is not to be had.
_IN_HAND: LiteralString = "set local lock_timeout = '10s'"
# A machine that vanishes during a handler's transaction is noticed in about a minute, and not after hours.
_GUARD: LiteralString = (
    "select set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),"
    " set_config('tcp_keepalives_count', '3', true)"
)
# How often a task may lose the database in one worker before that counts as a failed attempt, and of how many
# tasks that is remembered.
MAX_LOSSES = 5
REMEMBERED_LOSSES = 10_000
_COMPLETED = object()


class Execute(Hooks):
    """As many slots as the worker's concurrency; each takes a task, runs it, and takes the next."""

    def __init__(self, desk: Desk, finish: Finish, dsn: str, calls: db.Pool) -> None:
        self._desk, self._finish, self._dsn = desk, finish, dsn
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._threads = ThreadPoolExecutor(desk.concurrency, thread_name_prefix="penstock task")
        self._processes = Processes(desk.concurrency)
        self._opened = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._calls = calls
        self._adding = asyncio.Semaphore(ADDING)
        self._transactions: db.Pool | None = None
        self._is_left_behind = False
        self._losses: dict[int, int] = {}
        self._waiting_for_database: set[Context] = set()

    def start(self) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._slot(), name=f"slot {n}") for n in range(self._desk.concurrency)]

    async def hand_back_running(self) -> None:
        """The grace time is over: stop what still runs and give it back."""
        running = [held for held in self._desk.held.values() if held.runner is not None]
        for held in running:
            self._desk.lose(held.claim.id, held.claim.lease, "handed back")
        # Handlers get a moment to clean up.
        deadline = time.monotonic() + CLEANUP_SECONDS
        while self._desk.running > self._desk.abandoned and time.monotonic() < deadline:
            await self._desk.changed(deadline - time.monotonic())
        for held in running:
            if held.runner is not None:
                log.warning("task.does_not_stop", task_id=held.claim.id, kind=held.claim.kind)
                self.release(held)

    async def close(self) -> bool:
        """End it all. False if something still runs that cannot be stopped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._processes.close()
        await self._opened.aclose()
        return self._desk.running == 0 and not self._is_left_behind

    async def _slot(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        turn = time.monotonic()
        while not self._desk.is_closing:
            held = await self._desk.take()
            held.runner = me
            try:
                await self._run(held, me)
            finally:
                held.runner = None
                try:
                    if held.thread is not None:
                        await self._outlive(held.thread)
                finally:
                    self._desk.leave()
            if time.monotonic() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
                turn = time.monotonic()

    async def _outlive(self, thread: asyncio.Future[Any]) -> None:
        """A thread cannot be stopped: its place stays taken until it ends."""
        self._desk.abandoned += 1
        self._desk.touch()
        try:
            await asyncio.wait([thread])
        finally:
            self._desk.abandoned -= 1
            self._is_left_behind |= not thread.done()

    def release(self, held: Held) -> None:
        """Say nothing of the outcome: give the lease back, unless it is another's by now."""
        if held.lost == "lease_lost":
            self._desk.forget(held.claim.id, held.claim.lease)
        else:
            self._finish.returned(held, 0, held.lost or "handed back")

    async def _run(self, held: Held, me: asyncio.Task[None]) -> None:
        task = self._desk.app.tasks[held.claim.kind]
        held.context = context = Context(held.claim, self._desk.worker_id, self)
        try:
            output = await self._attempt(task, held, context)
            if self._is_large(output):
                output = await self._small(context, output)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if held.lost is not None:
                self._stopped(held, me)
            elif isinstance(error, asyncio.CancelledError) and me.cancelling():
                raise  # this slot is to end, not the handler
            elif isinstance(error, Reschedule):
                self._finish.returned(held, error.delay, error.reason)
            elif self._is_database_lost(error, context):
                self._return_after_loss(held, error)
            elif held.claim.provider is not None and (signal := _signal(error)) is not None:
                self._finish.limited(held, signal)
                self._finish.hand_back(self._desk.take_waiting_for(held.claim.provider))
            else:
                self._finish.failed(held, outcome.describe(error))
        else:
            if held.lost is not None:
                self._stopped(held, me)
            elif output is not _COMPLETED:
                self._finish.done(held, output)

    def _is_database_lost(self, error: BaseException, context: Context) -> bool:
        """Whether an attempt ended because this worker lost its connection to the database."""
        if isinstance(error, outcome.TimedOutHandler) and context in self._waiting_for_database:
            return True
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, db.ConnectionLost):
            cause = cause.__cause__
        return cause is not None

    def _return_after_loss(self, held: Held, error: BaseException) -> None:
        """Hand the task back: it costs no attempt, unless it loses the connection again and again.

        A statement that crashes the server, or a transaction that idles until the server ends it, would
        otherwise come back for ever.
        """
        losses = self._losses[held.claim.id] = self._losses.pop(held.claim.id, 0) + 1
        while len(self._losses) > REMEMBERED_LOSSES:
            self._losses.pop(next(iter(self._losses)))
        log.warning("task.connection_lost", task_id=held.claim.id, kind=held.claim.kind, error=str(error))
        if losses > MAX_LOSSES:
            self._finish.failed(held, outcome.describe(error))
        else:
            self._finish.returned(held, 0 if losses == 1 else 2.0 ** (losses - 2), "database connection lost")

    async def _patiently(self, ctx: Context, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make a call that may be made twice, again and again while the database is away.

        What a handler reports about paid work must not fail the attempt. When the lease is lost meanwhile,
        the handler is stopped, and this with it.
        """
        self._waiting_for_database.add(ctx)
        try:
            while True:
                try:
                    return await call()
                except db.ConnectionLost as error:
                    if ctx.is_stopped:
                        raise
                    log.warning("task.database_away", task_id=ctx.task_id, error=str(error))
                await asyncio.sleep(random.uniform(0.2, 1))
        finally:
            self._waiting_for_database.discard(ctx)

    def _stopped(self, held: Held, me: asyncio.Task[None]) -> None:
        while me.cancelling():
            me.uncancel()
        log.info("task.stopped", task_id=held.claim.id, job_id=str(held.claim.job_id), why=held.lost)
        self.release(held)

    async def _attempt(self, task: Task[Any, Any], held: Held, context: Context) -> Any:
        try:
            values = task.signature.check(_values(await self._whole(held.claim, context)))
        except Invalid as error:
            raise Fail(error.message, code="bad_input", details=error.details) from None
        limit = held.claim.timeout_seconds
        if task.mode == "process":
            return await self._processes.call(task.function, values, limit)
        if limit is None:
            return await self._call(task, held, context, values)
        async with outcome.limited(limit):
            return await self._call(task, held, context, values)

    async def _call(self, task: Task[Any, Any], held: Held, context: Context, values: dict[str, Any]) -> Any:
        arguments: tuple[Any, ...] = (context,) if task.signature.takes_context else ()
        if task.is_transactional:
            return await self._call_in_transaction(task, held, context, values)
        if task.mode == "async":
            return outcome.output(task, await task.function(*arguments, **values))
        call = partial(task.function, *arguments, **values)
        return await self._in_thread(held, context, lambda: outcome.output(task, call()))

    async def _in_thread(self, held: Held, context: Context, call: Callable[[], Any]) -> Any:
        thread = self._loop.run_in_executor(self._threads, outcome.caught, call)
        try:
            result, error = await asyncio.shield(thread)
        except asyncio.CancelledError:
            # Lost, canceled or too slow: the thread can only be told.
            context.stop()
            held.thread = thread
            raise
        if error is not None:
            raise error
        return result

    async def _call_in_transaction(
        self, task: Task[Any, Any], held: Held, context: Context, values: dict[str, Any]
    ) -> Any:
        """The handler's writes and the task's completion are one commit, or none."""
        try:
            if task.mode == "async":
                async with db.ending(await self._connections()) as (connection, say):
                    if connection.info.hostaddr:
                        await db.rows(connection, _GUARD, ())
                    context.connection = connection
                    output = outcome.output(task, await task.function(context, **values))
                    if self._is_large(output):
                        output = await self._small(context, output)
                    done = tasks.Done(context.task_id, context.lease, output)
                    await tasks.complete_last(say, context.worker_id, done)
            else:
                call = partial(self._transaction_in_thread, task, context, values)
                await self._in_thread(held, context, call)
        except TooLarge as error:
            if error.details.get("field") == "p_output":
                raise Fail(outcome.TOO_LARGE, code="bad_output") from error
            raise
        self._desk.forget(held.claim.id, held.claim.lease)
        return _COMPLETED

    def _transaction_in_thread(self, task: Task[Any, Any], context: Context, values: dict[str, Any]) -> None:
        name = f"penstock task {context.task_id}"
        with db.connect(self._dsn, name=name) as connection, db.ending_sync(connection) as say:
            if connection.info.hostaddr:
                db.rows_sync(connection, _GUARD, ())
            context.connection = connection
            output = outcome.output(task, task.function(context, **values))
            if self._is_large(output):
                output = self.block(self._small(context, output))
            done = tasks.Done(context.task_id, context.lease, output)
            tasks.complete_last_sync(say, context.worker_id, done)

    def _is_large(self, output: Any) -> TypeGuard[str]:
        return isinstance(output, str) and len(output) > LARGE_BYTES and self._desk.app.artifacts is None

    async def _small(self, context: Context, output: str) -> str:
        """An output that the database takes: in place of one too large for it, where its file is."""
        if len(output) <= await self._patiently(context, partial(artifacts.max_output_bytes, self._calls)):
            return output
        if len(output) > artifacts.MAX_OUTPUT:
            raise Fail(outcome.TOO_LARGE, code="bad_output")
        return artifacts.reference(
            await self.save(context, artifacts.OUTPUT, output.encode(), "application/json")
        )

    async def _whole(self, claim: tasks.Claim, context: Context) -> tasks.Claim:
        """The claim, with its parents' outputs read back that are in files."""
        outputs = claim.input.get("after")
        if not isinstance(outputs, dict) or not artifacts.is_any_reference(cast("dict[str, Any]", outputs)):
            return claim
        found = cast("dict[str, Any]", outputs)
        expand = partial(artifacts.expanded, self._calls, self._desk.app, job_id=claim.job_id, outputs=found)
        whole = await self._patiently(context, expand)
        return claim._replace(input={**claim.input, "after": whole})

    async def _connections(self) -> db.Pool:
        """Connections for transactional handlers, apart from the worker's own: they are held for long."""
        async with self._opening:
            if self._transactions is None:
                opening = db.pool(self._dsn, name="penstock task", max_size=self._desk.concurrency)
                self._transactions = await self._opened.enter_async_context(opening)
        return self._transactions

    # --- what a context asks for ---

    def reported(self, ctx: Context) -> None:
        self._finish.progress(ctx)

    async def heartbeat(self, ctx: Context) -> None:
        await self._tell(ctx, "heartbeat_task")

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

    async def save(self, ctx: Context, name: str, data: artifacts.Data, content_type: str) -> dict[str, Any]:
        app = self._desk.app
        if app.artifacts is not None:
            return await app.artifacts(ctx, name, data, content_type)
        return await artifacts.save(
            self._calls, app.storage, task_id=ctx.task_id, worker_id=ctx.worker_id, lease=ctx.lease,
            name=name, data=data, content_type=content_type,
        )  # fmt: skip

    async def usage(self, ctx: Context, units: dict[str, float], variant: str) -> None:
        options = {"variant": variant, "key": _report_key(ctx)}
        await self._tell(ctx, "record_usage", p_units=db.Json(units), p_options=db.Json(options))

    async def cost(
        self, ctx: Context, cost_type: str, amount: Decimal, currency: str | None, options: dict[str, Any]
    ) -> None:
        await self._tell(
            ctx, "record_cost", p_cost_type=cost_type, p_amount=amount, p_currency=currency,
            p_options=db.Json({"key": _report_key(ctx), **options}),
        )  # fmt: skip

    async def _tell(self, ctx: Context, function: str, **arguments: Any) -> None:
        """Report about the attempt, at once, whatever becomes of the handler's own transaction.

        The same report may arrive twice: it carries a key, or changes nothing the second time.
        """
        arguments |= {"p_task_id": ctx.task_id, "p_worker_id": ctx.worker_id, "p_lease": ctx.lease}

        async def tell() -> None:
            if ctx.connection is None:
                await db.call(self._calls, function, **arguments)
                return
            async with db.beginning(self._calls, _IN_HAND, ()) as conn:
                await db.call(conn, function, **arguments)

        await self._patiently(ctx, tell)

    async def heard(self, ctx: Context, signal: dict[str, Any]) -> None:
        if ctx.provider is not None:
            report = partial(
                db.call,
                self._calls,
                "report_provider",
                p_name=ctx.provider,
                p_signal=db.Json(tasks.clean(signal)),
                p_tenant_id=ctx.tenant_id,
            )
            await self._patiently(ctx, report)

    async def compute(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        return await self._processes.compute(function, args, kwargs)

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        if threading.get_ident() == self._loop_thread:
            work.close()
            raise Invalid("an async handler awaits: aheartbeat, aadd_tasks, asave", code="use_await")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _report_key(ctx: Context) -> str:
    return f"{ctx.task_id}:{ctx.lease}:{uuid4().hex}"


def _signal(error: BaseException) -> dict[str, Any] | None:
    try:
        return signals.of(error)
    except Exception:
        # An exception that cannot even be looked at is no answer of a provider.
        return None


def _values(claim: tasks.Claim) -> dict[str, Any]:
    outputs = claim.input.get("after")
    if outputs is None:
        return claim.input
    return {name: decode(value, outputs) for name, value in claim.input.items() if name != "after"}
