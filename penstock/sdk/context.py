"""The context of a running attempt, and the exceptions with which a handler ends it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

from penstock.contract import artifacts, tasks
from penstock.errors import Invalid
from penstock.formatting import seconds
from penstock.sdk import engines, operations, signals, steps, task_log
from penstock.sdk.prompts import DeclaredPrompt
from penstock.settings import settings
from penstock.types import Answer, Prompt, SealedKey

P = ParamSpec("P")
R = TypeVar("R")


class Fail(Exception):
    """Raise to fail the task permanently: a retry would not help."""

    def __init__(self, message: str, *, code: str = "failed", details: Any = None) -> None:
        super().__init__(message)
        self.code, self.details = code, details


class Retry(Exception):
    """Raise to fail this attempt and retry the task, not before `after` (seconds, or "40s", "2m")."""

    def __init__(self, message: str = "", *, after: float | str = 0, code: str = "retry") -> None:
        super().__init__(message)
        self.retry_after, self.code = seconds(after), code


class Reschedule(Exception):
    """Raise to run the task again after `delay`, without costing an attempt."""

    def __init__(self, delay: float | str, reason: str = "rescheduled") -> None:
        super().__init__(reason)
        self.delay, self.reason = seconds(delay), reason


class WaitTimedOut(Fail):
    """Raised by `wait_for` when nobody answered in time and there is no default. Fails the task."""


class Waiting(BaseException):
    """Ends the handler of a task that waits. Not an Exception, so that `except Exception` lets it pass."""

    def __init__(self, wait_id: UUID) -> None:
        super().__init__("the task waits")
        self.wait_id = wait_id


class Context(engines.Computing):
    """A running attempt. A handler that takes it as its first parameter reports and saves files with it."""

    __slots__ = (
        *("task_id", "lease", "job_id", "tenant_id", "kind", "key", "attempt", "max_attempts", "worker_id"),
        *("provider", "fraction", "message", "connection", "_hooks", "_is_stopped", "_log", "_sink"),
        *("_steps", "_sleeps", "prompts"),
    )

    def __init__(
        self, claim: tasks.Claim, worker_id: str, hooks: Hooks, sink: task_log.Sink = task_log.nowhere
    ) -> None:
        self.task_id, self.lease = claim.id, claim.lease
        self.job_id, self.tenant_id = claim.job_id, claim.tenant_id
        self.kind, self.key = claim.kind, claim.key
        self.attempt, self.max_attempts = claim.attempt, claim.max_attempts
        self.provider = claim.provider
        """The provider and endpoint that the task calls, as `name/endpoint`."""
        self.worker_id = worker_id
        self.fraction: float | None = None
        self.message: str | None = None
        self.connection: Any = None
        """In a transactional task: the connection whose transaction also completes the task."""
        self._hooks: Hooks = hooks
        self._log: Any = None
        self._sink = sink
        self._is_stopped = False
        self._steps: dict[str, Any] | None = None
        self._sleeps = 0
        self.prompts: list[Prompt] = []
        """The prompts that the attempt has taken, the latest one last."""

    @property
    def log(self) -> task_log.TaskLog:
        """A logger: lines go to the process's log, with job, task, kind and attempt, and beside the task."""
        if self._log is None:
            logger = task_log.logger.bind(
                job_id=str(self.job_id), task_id=self.task_id, kind=self.kind, attempt=self.attempt
            )
            self._log = task_log.TaskLog(logger, self._sink)
        return self._log

    @property
    def is_stopped(self) -> bool:
        """Whether the attempt is over: canceled, timed out, or its lease lost.

        A handler in a thread cannot be stopped; a long one should check this regularly and return.
        """
        return self._is_stopped

    def stop(self) -> None:
        """Mark the attempt as over: from now on its reports are ignored."""
        self._is_stopped = True

    def progress(self, done: float, of: float = 1, message: str | None = None) -> None:
        """Report progress. Cheap: the worker sends the latest report every half second."""
        if self._is_stopped:
            return
        self.fraction = min(1.0, max(0.0, done / of)) if of > 0 else 0.0
        self.message = message if message is not None else self.message
        self._hooks.progressed(self)

    def stream(self, part: str | Mapping[str, Any]) -> None:
        """Stream a text, such as a model's token, or an event to followers of the task. It never waits."""
        self._hooks.streamed(self, part)

    async def aheartbeat(self) -> None:
        """Extend the lease now; raises LeaseLost if it is lost. (The worker also extends it regularly.)"""
        await self._hooks.heartbeat(self)

    def heartbeat(self) -> None:
        """`aheartbeat` from a handler in a thread."""
        self._hooks.block(self._hooks.heartbeat(self))

    async def aadd_tasks(self, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the running job; returns their ids. They may depend on this task, by its key.

        In a transactional task they are part of its transaction.
        """
        return await self._hooks.add_tasks(self, new)

    def add_tasks(self, new: Sequence[dict[str, Any]]) -> list[int]:
        """`aadd_tasks` from a handler in a thread."""
        return self._hooks.add_tasks_sync(self, new)

    async def aprompt(self, prompt: DeclaredPrompt) -> Prompt:
        """The active version of a prompt; in a bulk job, the one that was active when the job was loaded.

        Without an answer of the database within 2 seconds it is the constant in the code: version 0, with
        `is_fallback`. Usage that is reported afterwards carries the name and the version.
        """
        found = await self._hooks.prompt(self, prompt)
        self.prompts = [*(each for each in self.prompts if each.name != found.name), found]
        return found

    def prompt(self, prompt: DeclaredPrompt) -> Prompt:
        """`aprompt` from a handler in a thread."""
        return self._hooks.block(self.aprompt(prompt))

    async def ausage(self, *, variant: str = "standard", **units: float) -> None:
        """Report what a call really used: `await ctx.ausage(input_tokens=812, output_tokens=120)`.

        It replaces the estimate in limits and quotas, and is priced at once. Report after each call: the
        usage counts even if the attempt fails later. It carries the prompt that was taken last.
        """
        await self._hooks.usage(self, units, variant)

    def usage(self, *, variant: str = "standard", **units: float) -> None:
        """`ausage` from a handler in a thread."""
        self._hooks.block(self._hooks.usage(self, units, variant))

    async def acost(
        self, cost_type: str, amount: Decimal | int | str, currency: str | None = None, **options: Any
    ) -> None:
        """Report a cost that no price list has: `await ctx.acost("render", "0.042", unit_count=12)`."""
        await self._hooks.cost(self, cost_type, _money(amount), currency, options)

    def cost(
        self, cost_type: str, amount: Decimal | int | str, currency: str | None = None, **options: Any
    ) -> None:
        """`acost` from a handler in a thread."""
        self._hooks.block(self._hooks.cost(self, cost_type, _money(amount), currency, options))

    async def areport_response(self, response: Any) -> None:
        """Report what a response's headers say about the provider's limits (any httpx-like response).

        Not needed for a rejection that is raised as an exception: the worker reads its headers.
        """
        await self.areport_signal(signals.read(int(response.status_code), dict(response.headers)))

    def report_response(self, response: Any) -> None:
        """`areport_response` from a handler in a thread."""
        self._hooks.block(self.areport_response(response))

    async def areport_signal(self, signal: Mapping[str, Any]) -> None:
        """Report a signal that `penstock.sdk.signals` has read from a response."""
        if signals.is_scarce(signal):
            await self._hooks.report_signal(self, dict(signal))

    async def asealed_key(self, provider: str) -> SealedKey | None:
        """The encrypted key of a provider, for the adapters in `penstock.providers`."""
        return await self._hooks.sealed_key(self, provider)

    async def aheard(self, response: Any) -> None:
        """Deprecated: the old name of `areport_response`."""
        await self.areport_response(response)

    def heard(self, response: Any) -> None:
        """Deprecated: the old name of `report_response`."""
        self.report_response(response)

    async def asave(
        self, name: str, data: artifacts.Data, content_type: str = "application/octet-stream", *,
        type: str | None = None, metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Store a file: bytes, the path of a local file, or an async iterator of bytes.

        Returns a reference to put into the output. The same name, in a retry too, replaces the same file. A
        task may have one file with an empty name. `metadata` says more, such as `pages`, or `duration` in
        seconds; `type` defaults to one from the content type, such as `audio_mp3`.
        """
        return await self._hooks.save(self, name, data, content_type, type=type, metadata=metadata)

    def save(
        self, name: str, data: artifacts.Data, content_type: str = "application/octet-stream", *,
        type: str | None = None, metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """`asave` from a handler in a thread."""
        return self._hooks.block(
            self._hooks.save(self, name, data, content_type, type=type, metadata=metadata)
        )

    # A handler that waits ends, and runs again from its start when the wait is over. Async handlers await
    # these methods; handlers in threads call those that end with `_sync`.

    def sleep(self, duration: float | str, *, name: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait without a worker: `await ctx.sleep("6h")`. At most ten years.

        The handler runs again from its start after that time, and this call then returns at once.
        """
        self._hooks.require_async()
        return self._sleep(duration, name)

    def sleep_sync(self, duration: float | str, *, name: str | None = None) -> None:
        """`sleep` from a handler in a thread."""
        self._hooks.block(self._sleep(duration, name))

    def wait_for(
        self,
        name: str,
        *,
        timeout: float | str | None = None,
        options: Sequence[str] = (),
        fields: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
        default: str | None = None,
        message: str | None = None,
    ) -> Coroutine[Any, Any, Answer]:
        """Wait for a person or another system, without a worker, and return the answer.

        `options`: the allowed answers. `fields`: of the payload, with their types: `{"note": "text?"}`.
        `roles`: who may answer (default: owner, admin, member). `default`: the answer after the `timeout`;
        without one the task fails with `wait_timeout`. The timeout runs from the first call of this name.
        """
        self._hooks.require_async()
        return self._wait_for(name, _question(timeout, options, fields, roles, default, message))

    def wait_for_sync(self, name: str, **question: Any) -> Answer:
        """`wait_for` from a handler in a thread."""
        return self._hooks.block(self._wait_for(name, _question(**question)))

    def answer_url(self, name: str, *, base: str | None = None, **question: Any) -> Coroutine[Any, Any, str]:
        """Open the wait `name` and return a link with which anybody who has it can answer, once.

        Takes the arguments of `wait_for`, which the handler calls next. `base`: the server's address; default
        PENSTOCK_URL.
        """
        self._hooks.require_async()
        return self._answer_url(name, base, _question(**question))

    def answer_url_sync(self, name: str, *, base: str | None = None, **question: Any) -> str:
        """`answer_url` from a handler in a thread."""
        return self._hooks.block(self._answer_url(name, base, _question(**question)))

    def step(
        self, name: str, function: Callable[P, Awaitable[R] | R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Call the function once for this task, and return its stored result in every later run.

        The result is stored as JSON under the lease before this returns. If the worker dies between the call
        and the storing, the call is repeated. The return annotation of the function decides the type.
        """
        self._hooks.require_async()
        return self._step(name, function, lambda: function(*args, **kwargs))

    def step_sync(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`step` from a handler in a thread."""
        stored = self._hooks.block(self._load_steps())
        if name not in stored:
            output = steps.dump(function, function(*args, **kwargs))
            stored[name] = self._hooks.block(self._hooks.store_step(self, name, output))
        return steps.load(function, stored[name])

    async def aoperation_provider(self) -> str | None:
        """The provider of the task's operation, which runs again without one when the operation has begun."""
        return self.provider or await self._hooks.operations().provider(self)

    def operation(
        self,
        object: str,
        *,
        submit: operations.Submit,
        check: operations.Check,
        find: operations.Find | None = None,
        cancel: operations.Cancel | None = None,
        timeout: float | str = "5m",
        checks: Sequence[float | str] = ("30s", "1m", "2m"),
    ) -> Coroutine[Any, Any, Any]:
        """Hand work to a provider that answers later, wait without a worker, and return its result.

        `submit` starts it and returns the provider's id; the operation's id goes along as the tag. `check`
        asks the provider: Settled, or None while it runs. `find` looks for the tag after a crash. `cancel`
        is called for an operation that timed out. A webhook only makes the handler ask earlier.
        """
        self._hooks.require_async()
        self._require_plain()
        points = [seconds(each) for each in checks]
        calls = operations.Calls(object, seconds(timeout), points, submit, check, find, cancel)
        return operations.run(self, self._hooks.operations(), calls)

    async def _step(self, name: str, function: Callable[..., Any], call: Callable[[], Awaitable[R] | R]) -> R:
        stored = await self._load_steps()
        if name not in stored:
            result = call()
            value = await cast("Awaitable[R]", result) if isinstance(result, Awaitable) else result
            stored[name] = await self._hooks.store_step(self, name, steps.dump(function, value))
        return steps.load(function, stored[name])

    async def _sleep(self, duration: float | str, name: str | None) -> None:
        self._sleeps += 1
        options = {"kind": "sleep", "seconds": seconds(duration)}
        wait = await self._open(name or f"sleep {self._sleeps}", options)
        if wait["outcome"] is None:
            raise Waiting(UUID(wait["id"]))

    async def _wait_for(self, name: str, question: dict[str, Any]) -> Answer:
        return _answer(name, await self._open(name, question))

    async def _answer_url(self, name: str, base: str | None, question: dict[str, Any]) -> str:
        address = base or settings().url
        if address is None:
            raise Invalid("base is missing", hint="Pass the server's address, or set PENSTOCK_URL.")
        wait = await self._open(name, {**question, "link": True})
        return f"{address.rstrip('/')}/answers/{wait['token']}"

    async def _open(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        self._require_plain()
        return await self._hooks.open_wait(self, name, options)

    async def _load_steps(self) -> dict[str, Any]:
        self._require_plain()
        if self._steps is None:
            self._steps = await self._hooks.load_steps(self)
        return self._steps

    def _require_plain(self) -> None:
        if self.connection is not None:
            raise Invalid(
                "a transactional task can neither wait nor store steps",
                code="transactional_wait",
                hint="Wait in a task of its own, and let the transactional task depend on it.",
            )

    @classmethod
    def fake(cls, **values: Any) -> Context:
        """A context for calling a handler in a unit test."""
        claim = tasks.Claim(0, 0, UUID(int=0), UUID(int=0), "test", None, {}, 1, 1, None)
        return cls(claim._replace(**values), "test", Hooks())


class Hooks:
    """The calls of a context. The worker implements them; these do nothing, for unit tests of handlers."""

    def progressed(self, ctx: Context) -> None:
        """Send the context's new progress."""

    def streamed(self, ctx: Context, part: str | Mapping[str, Any]) -> None:
        """Send a part of the attempt's stream."""

    async def heartbeat(self, ctx: Context) -> None:
        """Extend the lease."""

    async def add_tasks(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the job."""
        return list(range(1, len(new) + 1))

    def add_tasks_sync(self, ctx: Context, new: Sequence[dict[str, Any]]) -> list[int]:
        """Add tasks to the job, from a thread."""
        return self.block(self.add_tasks(ctx, new))

    async def save(self, ctx: Context, name: str, data: artifacts.Data, content_type: str, **how: Any) -> Any:
        """Store a file."""
        size = len(data) if isinstance(data, bytes) else None
        return {"path": name, "bytes": size, "content_type": content_type}

    async def prompt(self, ctx: Context, prompt: DeclaredPrompt) -> Prompt:
        """The version of a prompt for the task. In a unit test it is the constant."""
        return prompt.constant

    async def usage(self, ctx: Context, units: dict[str, float], variant: str) -> None:
        """Record usage."""

    async def cost(
        self, ctx: Context, cost_type: str, amount: Decimal, currency: str | None, options: dict[str, Any]
    ) -> None:
        """Record a cost."""

    async def report_signal(self, ctx: Context, signal: dict[str, Any]) -> None:
        """Report what a provider said about its limits."""

    async def sealed_key(self, ctx: Context, provider: str) -> SealedKey | None:
        """The encrypted key of a provider: the tenant's own, or the one for all tenants."""
        return None

    async def compute(self, function: Callable[..., R], args: Any, kwargs: Any, on: Any, resources: Any) -> R:
        """Run a function in a process or on Ray."""
        return function(*args, **kwargs)

    def require_async(self) -> None:
        """Reject a call from a handler that runs in a thread."""

    async def open_wait(self, ctx: Context, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Open a wait, or find the one with this name. In a unit test the first option is the answer."""
        option = options.get("default") or next(iter(options.get("options") or ()), None)
        at = datetime.now(UTC).isoformat()
        return {"id": str(UUID(int=0)), "outcome": "answered", "option": option, "payload": {},
                "ended_by": "test", "ended_at": at, "token": "test"}  # fmt: skip

    def operations(self) -> Any:
        """The calls of operations."""
        raise Invalid("operations need a worker: test the functions that you pass to `operation`")

    async def load_steps(self, ctx: Context) -> dict[str, Any]:
        """The stored steps of the task."""
        return {}

    async def store_step(self, ctx: Context, name: str, output: Any) -> Any:
        """Store the result of a step."""
        return output

    def block(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the worker's event loop from a thread, and wait for its result."""
        return asyncio.run(work)


def _question(
    timeout: float | str | None = None,
    options: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    roles: Sequence[str] = (),
    default: str | None = None,
    message: str | None = None,
) -> dict[str, Any]:
    """The options of open_wait."""
    return {
        "seconds": None if timeout is None else seconds(timeout), "options": list(options),
        "fields": dict(fields or {}), "roles": list(roles), "default": default, "message": message,
    }  # fmt: skip


def _answer(name: str, wait: Mapping[str, Any]) -> Answer:
    """The answer of a wait; raises Waiting while there is none, and WaitTimedOut if there never will be."""
    if wait["outcome"] is None:
        raise Waiting(UUID(wait["id"]))
    is_default = wait["outcome"] == "timeout"
    if is_default and wait["option"] is None:
        raise WaitTimedOut(f"nobody answered {name} in time", code="wait_timeout")
    at = datetime.fromisoformat(wait["ended_at"])
    return Answer(wait["option"], wait["payload"], wait["ended_by"], at, is_default)


def _money(amount: Decimal | int | str) -> Decimal:
    if isinstance(amount, float):
        raise Invalid(
            f"an amount of money must be a Decimal, an int or a text like '0.042' (got a float: {amount})"
        )
    try:
        return Decimal(amount)
    except InvalidOperation:
        raise Invalid(f"an amount of money must be a number, such as '0.042' (got {amount!r})") from None


def retry_after(error: BaseException) -> float | None:
    """The seconds in an exception's `retry_after`: a number, a text such as "30", or a timedelta."""
    value: Any = getattr(error, "retry_after", None)
    try:
        found = float(value.total_seconds() if hasattr(value, "total_seconds") else value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) and found > 0 else None
