"""How an attempt went, as the database keeps it: something, whatever a handler returns or raises."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pydantic
import pydantic_core
import structlog

from penstock import tasks
from penstock.context import Fail, retry_after

if TYPE_CHECKING:
    from penstock.app import Task

TOO_LARGE = "the output is too large, nested too deeply, or holds a number beyond 1e308"
log = structlog.get_logger("penstock.worker")


class TimedOutHandler(Exception):
    """The handler took longer than it may."""

    code = "timeout"


class ProcessDied(Exception):
    """The process that ran the handler died."""

    code = "process_died"


class HandlerFailed(Exception):
    """What was raised in another process, described there."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message"))
        self.error = error


@asynccontextmanager
async def limited(seconds: float | None) -> AsyncGenerator[None]:
    """Let a handler run for so long. (A TimeoutError may also be its own.)"""
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise
        raise TimedOutHandler(f"the handler took longer than {seconds:g} s") from None


def caught(call: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """What a call in a thread gives or raises. (Not every exception can be set on a future: one that cannot
    would leave its waiter waiting for ever.)"""
    try:
        return call(*arguments), None
    except BaseException as error:
        return None, error


def output(task: Task[Any, Any], result: Any) -> str | None:
    """What a handler returned, as JSON text for the database."""
    if result is None:
        return None
    try:
        text, was_cleaned = tasks.dump(task.signature.dump(result))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f".{part}" for part in first["loc"])
        raise Fail(f"the output{where}: {first['msg']}", code="bad_output") from error
    except (ValueError, TypeError, RecursionError, pydantic_core.PydanticSerializationError) as error:
        raise Fail(f"the output cannot be stored: {error}", code="bad_output") from error
    if was_cleaned:
        log.warning("task.output_cleaned", kind=task.kind)
    return text


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as the database keeps it, cleaned of what it cannot store."""
    if isinstance(error, HandlerFailed):
        return error.error
    try:
        return _described(error)
    except Exception as problem:
        # An exception that cannot even be looked at.
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
            # Only what goes into a JSON document and is no heap of data.
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
