"""A job before it is started: its options, the graph of its tasks, and where its result will be."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from penstock.errors import Invalid, TooLarge
from penstock.formatting import seconds
from penstock.sdk.signature import Signature, Step, key_of
from penstock.types import BulkOptions, JobOptions, TaskOptions, exact
from penstock.types.options import table_of


def _names(*tables: type) -> dict[str, str]:
    """The options of these tables that `options()` takes: name there → name in the database."""
    lines = [(name, option) for table in tables for name, (_, option) in table_of(table).items()]
    return {option.sdk or name: name for name, option in lines if option.sdk is not None}


_OF_JOB = _names(JobOptions)
_OF_BULK = _names(BulkOptions)
_OF_STEP = _names(TaskOptions)
# A job of one task takes these as options of the job.
_OF_TASK = {name: field for name, field in _OF_STEP.items() if name not in _OF_JOB}
_OF_SCHEDULE = {name for name, (_, option) in table_of(JobOptions).items() if option.schedule}
# Options of a call, not of what it starts: the caller's connection, the steps that come first.
_OF_CALL = ("using", "after")


class Options:
    """The options of a job or a step, apart from its arguments."""

    def __init__(self, **values: Any) -> None:
        self._values = {name: value for name, value in values.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        if name in _OF_BULK or name in _OF_STEP or name in _OF_CALL:
            return self._values.get(name)
        raise AttributeError(name)

    def changed(self, changes: dict[str, Any]) -> Options:
        """A copy with other values."""
        for name in changes:
            if name not in _OF_BULK and name not in _OF_STEP and name not in _OF_CALL:
                raise Invalid(f"options() got an unexpected keyword argument {name!r}")
        for name in ("delay", "timeout"):
            if changes.get(name) is not None:
                changes[name] = seconds(changes[name])
        run_at = changes.get("run_at")
        if run_at is not None and (not isinstance(run_at, datetime) or run_at.tzinfo is None):
            raise Invalid(
                f"run_at must be a datetime with a time zone (got {run_at!r})", details={"field": "run_at"}
            )
        return Options(**self._values | changes)

    def for_job(self) -> JobOptions:
        """The options of `jobs.start`."""
        return cast("JobOptions", self._chosen(_OF_JOB))

    def for_bulk(self) -> BulkOptions:
        """The options of `bulks.start`."""
        return cast("BulkOptions", self._chosen(_OF_BULK))

    def for_task(self) -> dict[str, Any]:
        """The fields of the one task of a job."""
        return self._chosen(_OF_TASK)

    def for_step(self) -> dict[str, Any]:
        """The fields of one of several tasks of a job."""
        self._reject("an option of a job, not of a step", {*_OF_BULK, "using"} - {*_OF_STEP})
        chosen = self._chosen(_OF_STEP)
        if "run_at" in chosen:
            chosen["run_at"] = chosen["run_at"].isoformat()
        return chosen

    def for_schedule(self) -> dict[str, Any]:
        """The options of a schedule."""
        self._reject("not an option of a schedule", {*_OF_JOB} - {*_OF_SCHEDULE, "tenant_id"})
        chosen = self._chosen({name: name for name in _OF_JOB if name in _OF_SCHEDULE})
        if "budget" in chosen:
            chosen["budget"] = format(exact(chosen["budget"], "budget"), "f")
        return chosen

    def _chosen(self, fields: dict[str, str]) -> dict[str, Any]:
        return {field: self._values[name] for name, field in fields.items() if name in self._values}

    def _reject(self, why: str, names: set[str]) -> None:
        for name in self._values:
            if name in names:
                raise Invalid(f"{name} is {why}", details={"field": name})


@dataclass(frozen=True, slots=True)
class DrawLimit:
    """Limits of the tasks that a body may add while it runs for a request of another user."""

    tasks: int
    seconds: float
    until: float
    """By `time.monotonic`."""

    @classmethod
    def starting_now(cls, tasks: int, seconds: float) -> DrawLimit:
        return cls(tasks, seconds, time.monotonic() + seconds)

    def check(self, count: int) -> None:
        """Raise unless one more task may be added."""
        if count >= self.tasks:
            raise TooLarge(
                f"the body of the job type adds more than {self.tasks:,} tasks",
                code="too_many_tasks",
                hint="Start several jobs, or a bulk job.",
                details={"limit": self.tasks},
            )
        if time.monotonic() > self.until:
            raise body_too_slow(self.seconds)


draw_limit: ContextVar[DrawLimit | None] = ContextVar("penstock_draw_limit", default=None)
"""The limit of bodies that run in this context."""


def body_too_slow(seconds: float) -> Invalid:
    """The error for a body that takes too long."""
    return Invalid(
        f"the body of the job type did not end within {seconds:g} seconds",
        code="body_too_slow",
        hint="Draw fewer steps, or move the work into a task.",
        details={"limit": seconds},
    )


class Graph:
    """The tasks that a job's body adds; each comes after its dependencies."""

    def __init__(self, prefix: str = "") -> None:
        self.tasks: list[dict[str, Any]] = []
        self._prefix = prefix
        self._counts: dict[str, int] = {}

    def add(
        self,
        kind: str,
        signature: Signature,
        values: dict[str, Any],
        fields: dict[str, Any],
        after: Sequence[Any] | None = None,
    ) -> Step:
        """Add a task; returns the placeholder for its output."""
        if (limit := draw_limit.get()) is not None:
            limit.check(len(self.tasks))
        document, parents = signature.encode(values)
        for step in after or ():
            if not isinstance(step, Step):
                raise Invalid(
                    f"{kind}: after must be a list of steps (got {step!r})", details={"field": "after"}
                )
            parents.append(key_of(step))
        spec: dict[str, Any] = {"kind": kind, "input": document, **fields}
        if "key" not in spec:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            spec["key"] = f"{kind}-{self._counts[kind]}"
        spec["key"] = f"{self._prefix}{spec['key']}"
        if parents:
            spec["after"] = list(dict.fromkeys(parents))
        self.tasks.append(spec)
        return Step(spec["key"])


current: ContextVar[Graph | None] = ContextVar("penstock_graph", default=None)
"""The graph to which the running body adds its steps."""


@contextmanager
def drawing(graph: Graph) -> Generator[None]:
    """Add steps to this graph inside the context."""
    token = current.set(graph)
    try:
        yield
    finally:
        current.reset(token)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A job that is ready to be started: its params, its tasks, and its result with references to outputs."""

    params: dict[str, Any]
    tasks: list[dict[str, Any]]
    result: Any
    load: Callable[[Any], Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `jobs.start`."""
        return {"params": self.params, "tasks": self.tasks, "result": self.result_option}

    @property
    def result_option(self) -> Any:
        """The job option `result`; None where it is the default, the output of the last task."""
        return None if self.result == {"$from": self.tasks[-1]["key"]} else self.result
