"""The outcome of an attempt as the database stores it, for anything that a handler returns or raises."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pydantic
import pydantic_core
import structlog

from penstock.contract import tasks
from penstock.errors import LeaseLost
from penstock.sdk import signals
from penstock.sdk.context import Fail, Reschedule, Waiting, retry_after
from penstock.sdk.operations import Waits

if TYPE_CHECKING:
    from penstock.sdk.context import Context
    from penstock.sdk.job_types import Task

TOO_LARGE = "the output is too large, nested too deeply, or holds a number beyond 1e308"
log = structlog.get_logger("penstock.worker")


class TimedOutHandler(Exception):
    """The handler ran longer than its timeout."""

    code = "timeout"


class ProcessDied(Exception):
    """The process that ran the handler died."""

    code = "process_died"


class HandlerFailed(Exception):
    """An exception raised in another process, already described there."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message"))
        self.error = error


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How an attempt ended: its claim, its duration, and the exception of its handler if it raised one."""

    claim: tasks.Claim
    seconds: float
    error: BaseException | None


@asynccontextmanager
async def limited(seconds: float | None) -> AsyncGenerator[None]:
    """Raise TimedOutHandler after `seconds`. A TimeoutError of the handler itself passes through."""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise
        raise TimedOutHandler(f"the handler took longer than {seconds:g} s") from None


def caught(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """The result of a call, or the exception it raised.

    A future cannot carry every exception: a StopIteration, for one, would leave its waiter waiting for ever.
    """
    try:
        return call(*arguments), None
    except BaseException as error:
        return None, error


def unless_stopped(context: Context, call: Callable[[], Any]) -> Any:
    """Call the handler, unless its attempt was stopped while it waited for a thread or a connection."""
    if context.is_stopped:
        raise LeaseLost("the attempt was stopped before its handler began")
    return call()


def output(task: Task[Any, Any], result: Any) -> str | None:
    """A handler's return value as JSON text for the database."""
    if result is None:
        return None
    try:
        text, was_cleaned = tasks.dump(task.signature.dump(result))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = "".join(f".{part}" for part in first["loc"])
        raise Fail(f"the output{path}: {first['msg']}", code="bad_output") from error
    except (ValueError, TypeError, RecursionError, pydantic_core.PydanticSerializationError) as error:
        raise Fail(f"the output cannot be stored: {error}", code="bad_output") from error
    if was_cleaned:
        log.warning("task.output_cleaned", kind=task.kind)
    return text


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as the database stores it, without characters that it cannot store."""
    if isinstance(error, HandlerFailed):
        return error.error
    try:
        return _described(error)
    except Exception as problem:
        # An exception may raise errors of its own when it is formatted.
        name = type(error).__name__
        return {"code": "handler_error", "message": f"{name} (no details: {type(problem).__name__})"}


def _described(error: BaseException) -> dict[str, Any]:
    stack = "".join(traceback.format_exception(error))[-20_000:]
    details: dict[str, Any] = {"type": type(error).__name__, "stack": stack}
    record: dict[str, Any] = {
        "code": str(getattr(error, "code", None) or "handler_error")[:100],
        "message": str(error)[:10_000] or type(error).__name__,
        "permanent": isinstance(error, Fail),
    }
    if (wait := retry_after(error)) is not None:
        record["retry_after_seconds"] = wait
    cleaned = tasks.clean({**record, "details": details})
    if cleaned != {**record, "details": details}:
        cleaned["details"]["cleaned"] = True
    if isinstance(error, Fail) and error.details is not None:
        try:
            # The details have to be JSON, and small.
            cleaned["details"]["details"] = _small(error.details)
        except (TypeError, ValueError, RecursionError, pydantic_core.PydanticSerializationError) as problem:
            cleaned["details"]["details"] = f"(cannot be stored: {problem})"
    return cleaned


def _small(details: Any) -> Any:
    value = pydantic_core.to_jsonable_python(details)
    text, _ = tasks.dump(value)
    if text is not None and len(text) > 100_000:
        raise ValueError("larger than 100 kB")
    return tasks.clean(value)


def waiting(error: BaseException) -> Waiting | Waits | None:
    """The reason to park the task, also if several parts of the handler wait at once."""
    if isinstance(error, BaseExceptionGroup):
        others = cast("BaseExceptionGroup[BaseException]", error)
        found, rest = others.split((Waiting, Waits))
        first = found.exceptions[0] if found is not None and rest is None else None
        return None if first is None else waiting(first)
    return error if isinstance(error, Waiting | Waits) else None


def signal(error: BaseException) -> dict[str, Any] | None:
    """What an exception says about the provider's limits, or None."""
    try:
        return signals.of(error)
    except Exception:
        # An exception whose attributes raise errors does not come from a provider.
        return None


def is_failure(error: BaseException | None) -> bool:
    """Whether an attempt failed: not if it waits, was rescheduled, or met a provider's limit."""
    return (
        error is not None
        and not isinstance(error, Reschedule)
        and waiting(error) is None
        and signal(error) is None
    )
