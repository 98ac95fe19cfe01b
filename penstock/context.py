"""What a handler is given, and how it says how it went."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import structlog

from penstock import artifacts, signals, tasks
from penstock.errors import Invalid
from penstock.words import seconds

P = ParamSpec("P")
R = TypeVar("R")


# --- how a handler says how it went ------------------------------------------------------------------------


class Fail(Exception):
    """Raise to end the task as failed for good: no retry would help."""

    def __init__(self, message: str, *, code: str = "failed", details: Any = None) -> None:
        super().__init__(message)
        self.code, self.details = code, details


class Retry(Exception):
    """Raise to fail this attempt and run the task again, not before `after` (seconds, or "40s", "2m")."""

    def __init__(self, message: str = "", *, after: float | str = 0, code: str = "retry") -> None:
        super().__init__(message)
        self.retry_after, self.code = seconds(after), code


class Reschedule(Exception):
    """Raise to give the task back until later, without costing an attempt."""

    def __init__(self, delay: float | str, reason: str = "rescheduled") -> None:
        super().__init__(reason)
        self.delay, self.reason = seconds(delay), reason


# --- what a handler is given -------------------------------------------------------------------------------


class Context:
    """A running attempt: who it is for, how it reports, what it may do. Ask for it as the first parameter."""

    __slots__ = (
        *("task_id", "lease", "job_id", "tenant_id", "kind", "key", "attempt", "max_attempts", "worker_id"),
        *("provider", "fraction", "message", "connection", "_hooks", "_is_stopped", "_log"),
    )

    def __init__(self, claim: tasks.Claim, worker_id: str, hooks: Hooks) -> None:
        self.task_id, self.lease = claim.id, claim.lease
        self.job_id, self.tenant_id = claim.job_id, claim.tenant_id
        self.kind, self.key = claim.kind, claim.key
        self.attempt, self.max_attempts = claim.attempt, claim.max_attempts
        self.provider = claim.provider
        """The provider endpoint the task is for, as `name/endpoint`."""
        self.worker_id = worker_id
        self.fraction: float | None = None
        self.message: str | None = None
        self.connection: Any = None
        """In a transactional task: the connection whose transaction also completes the task."""
        self._hooks = hooks
        self._log: Any = None
        self._is_stopped = False

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """A logger that says of which job and task a line is."""
        if self._log is None:
            self._log = structlog.get_logger("penstock.task").bind(
                job_id=str(self.job_id), task_id=self.task_id, kind=self.kind, attempt=self.attempt
            )
        return self._log

    @property
    def is_stopped(self) -> bool:
        """Whether the attempt is over: canceled, timed out, its lease lost. A thread looks now and then."""
        return self._is_stopped

    def stop(self) -> None:
        """Mark the attempt as over: nothing it says counts from now on."""
        self._is_stopped = True

    def progress(self, done: float, of: float = 1, message: str | None = None) -> None:
        """Say how far the task is. Costs nothing: the worker sends the latest word now and then."""
        if self._is_stopped:
            return
        self.fraction = min(1.0, max(0.0, done / of)) if of > 0 else 0.0
        self.message = message if message is not None else self.message
        self._hooks.reported(self)

    async def aheartbeat(self) -> None:
        """Extend the lease now; raises LeaseLost when it is gone. (The worker extends it by itself.)"""
        await self._hooks.heartbeat(self)

    def heartbeat(self) -> None:
        """`aheartbeat` from a handler in a thread."""
        self._hooks.block(self._hooks.heartbeat(self))

    async def aadd_tasks(self, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the running job; they may come after this one by its key. Returns their ids.

        In a transactional task they are part of its transaction.
        """
        return await self._hooks.add_tasks(self, new)

    def add_tasks(self, new: Sequence[dict[str, Any]]) -> list[int]:
        """`aadd_tasks` from a handler in a thread."""
        return self._hooks.add_tasks_sync(self, new)

    async def ausage(self, *, variant: str = "standard", **units: float) -> None:
        """Say what a call really used: `await ctx.ausage(input_tokens=812, output_tokens=120)`.

        It takes the estimate's place in limits and quotas, and is priced at once. Say it after each call:
        what was said counts also when the attempt fails later.
        """
        await self._hooks.usage(self, units, variant)

    def usage(self, *, variant: str = "standard", **units: float) -> None:
        """`ausage` from a handler in a thread."""
        self._hooks.block(self._hooks.usage(self, units, variant))

    async def acost(
        self, cost_type: str, amount: Decimal | int | str, currency: str | None = None, **options: Any
    ) -> None:
        """Add a cost that no price list knows: `await ctx.acost("render", "0.042", unit_count=12)`."""
        await self._hooks.cost(self, cost_type, _money(amount), currency, options)

    def cost(
        self, cost_type: str, amount: Decimal | int | str, currency: str | None = None, **options: Any
    ) -> None:
        """`acost` from a handler in a thread."""
        self._hooks.block(self._hooks.cost(self, cost_type, _money(amount), currency, options))

    async def aheard(self, response: Any) -> None:
        """Pass on what an answer's headers say about the provider's limits (any httpx-like response).

        A refusal that is raised as an exception is understood without this.
        """
        signal = signals.read(int(response.status_code), dict(response.headers))
        if signals.is_scarce(signal):
            await self._hooks.heard(self, signal)

    def heard(self, response: Any) -> None:
        """`aheard` from a handler in a thread."""
        self._hooks.block(self.aheard(response))

    async def asave(
        self, name: str, data: artifacts.Data, content_type: str = "application/octet-stream"
    ) -> dict[str, Any]:
        """Keep a file: bytes, the path of a local one, or an async iterator of bytes.

        Returns what to put into the output. The same name again, also by a retry, is the same file; an empty
        name is the task's one file without a name.
        """
        return await self._hooks.save(self, name, data, content_type)

    def save(
        self, name: str, data: artifacts.Data, content_type: str = "application/octet-stream"
    ) -> dict[str, Any]:
        """`asave` from a handler in a thread."""
        return self._hooks.block(self._hooks.save(self, name, data, content_type))

    async def acompute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a plain function of a module in one of the worker's processes: it may take a core, or crash.

        A crash there fails this attempt and nothing else; stopping the task kills it. It gets no context:
        what it writes into a folder, the handler can save. Arguments and result must bear being pickled.
        """
        return await self._hooks.compute(function, args, kwargs)

    def compute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`acompute` from a handler in a thread."""
        return self._hooks.block(self._hooks.compute(function, args, kwargs))

    @classmethod
    def fake(cls, **values: Any) -> Context:
        """A context for calling a handler in a plain test."""
        claim = tasks.Claim(0, 0, UUID(int=0), UUID(int=0), "test", None, {}, 1, 1, None)
        return cls(claim._replace(**values), "test", Hooks())


class Hooks:
    """What a context asks of its surroundings. The worker has the real one; this one is for plain tests."""

    def reported(self, ctx: Context) -> None:
        """Progress has moved."""

    async def heartbeat(self, ctx: Context) -> None:
        """Extend the lease."""

    async def add_tasks(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the job."""
        return list(range(1, len(new) + 1))

    def add_tasks_sync(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the job, from a thread."""
        return self.block(self.add_tasks(ctx, new))

    async def save(self, ctx: Context, name: str, data: artifacts.Data, content_type: str) -> dict[str, Any]:
        """Keep a file."""
        size = len(data) if isinstance(data, bytes) else None
        return {"path": name, "bytes": size, "content_type": content_type}

    async def usage(self, ctx: Context, units: dict[str, float], variant: str) -> None:
        """Record what was used."""

    async def cost(
        self, ctx: Context, cost_type: str, amount: Decimal, currency: str | None, options: dict[str, Any]
    ) -> None:
        """Record a cost."""

    async def heard(self, ctx: Context, signal: dict[str, Any]) -> None:
        """Pass on a provider's signal."""

    async def compute(self, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Run a function in a process."""
        return function(*args, **kwargs)

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run in the worker's loop from a thread, and wait."""
        return asyncio.run(work)


def _money(amount: Decimal | int | str) -> Decimal:
    if isinstance(amount, float):
        raise Invalid("an amount of money is a Decimal, an int or a text such as '0.042', not a float")
    try:
        return Decimal(amount)
    except InvalidOperation:
        raise Invalid(f"{amount!r} is not an amount") from None


def retry_after(error: BaseException) -> float | None:
    """The seconds to wait that an exception's `retry_after` names: a number, "30", or a timedelta."""
    value: Any = getattr(error, "retry_after", None)
    try:
        found = float(value.total_seconds() if hasattr(value, "total_seconds") else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found > 0 else None
