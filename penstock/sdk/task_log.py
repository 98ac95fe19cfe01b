"""The log of a task: `ctx.log`, and what other code logs while a handler runs."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

import structlog

Sink: TypeAlias = Callable[[str, str, dict[str, Any]], None]
"""Takes the level, the message and the fields of a line."""
logger = structlog.get_logger("penstock.task")
_LEVELS = ("debug", "info", "warning", "error", "critical")

current: contextvars.ContextVar[Sink | None] = contextvars.ContextVar("penstock_task_log", default=None)
"""Where lines of the running handler go."""


def nowhere(level: str, message: str, fields: dict[str, Any]) -> None:
    """Store no line: for unit tests of handlers."""


class TaskLog:
    """Logs to the process's log, with the job and task, and beside the task."""

    def __init__(self, logger: Any, sink: Sink, fields: dict[str, Any] | None = None) -> None:
        self._logger, self._sink, self._fields = logger, sink, fields or {}

    def bind(self, **fields: Any) -> TaskLog:
        """A log that adds these fields to each line."""
        return TaskLog(self._logger.bind(**fields), self._sink, {**self._fields, **fields})

    def debug(self, event: object, *args: Any, **fields: Any) -> None:
        """Log a line for developers. It is not stored with the task."""
        self._logger.debug(event, *args, **fields)

    def info(self, event: object, *args: Any, **fields: Any) -> None:
        """Log a line."""
        self._write("info", event, args, fields)

    def warning(self, event: object, *args: Any, **fields: Any) -> None:
        """Log a warning."""
        self._write("warning", event, args, fields)

    def error(self, event: object, *args: Any, **fields: Any) -> None:
        """Log an error."""
        self._write("error", event, args, fields)

    def critical(self, event: object, *args: Any, **fields: Any) -> None:
        """Log a failure of more than this task."""
        self._write("critical", event, args, fields)

    def exception(self, event: object, *args: Any, **fields: Any) -> None:
        """Log an error with the exception that is being handled."""
        self._logger.exception(event, *args, **fields)
        self._store("error", event, args, {**fields, "exception": sys.exc_info()[1]})

    warn = warning
    fatal = critical

    def _write(self, level: str, event: object, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        getattr(self._logger, level)(event, *args, **fields)
        self._store(level, event, args, fields)

    def _store(self, level: str, event: object, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        # A value that cannot be written as text loses its line: it must not fail the handler.
        with contextlib.suppress(Exception):
            self._sink(level, _text(event, args), {**self._fields, **fields})


class Capture(logging.Handler):
    """Stores what `logging` gets while a handler runs, from INFO on."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        sink = current.get()
        # `ctx.log` has stored its lines already, and the worker's own are about all tasks.
        if sink is None or record.name.startswith("penstock."):
            return
        try:
            fields: dict[str, Any] = {"logger": record.name}
            if record.exc_info and record.exc_info[1] is not None:
                fields["exception"] = "".join(traceback.format_exception_only(record.exc_info[1])).strip()
            level = _LEVELS[min(4, max(0, record.levelno // 10 - 1))]
            sink(level, record.getMessage(), fields)
        except Exception:
            self.handleError(record)


def _text(event: object, args: tuple[Any, ...]) -> str:
    text = str(event)
    try:
        return text % args if args else text
    except (TypeError, ValueError):
        return text
