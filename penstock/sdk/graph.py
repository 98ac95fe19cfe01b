"""A job before it is started: its options, the graph of its tasks, and where its result will be."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from penstock.errors import Invalid
from penstock.formatting import seconds
from penstock.sdk.signature import Signature, Step, key_of
from penstock.types import JobOptions, exact


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a job or a step, apart from its arguments."""

    # of a job
    tenant_id: UUID | None = None
    idempotency_key: str | None = None
    delay: float | None = None
    on_failure: str | None = None
    paused: bool | None = None
    budget: Decimal | int | None = None
    on_limit: str | None = None
    stop_after: int | str | None = None
    preview: bool | None = None
    skip_done: bool | None = None
    using: Any = None
    # of a job or a step
    priority: int | None = None
    run_at: datetime | None = None
    # of a step
    key: str | None = None
    phase: str | None = None
    provider: str | None = None
    route: dict[str, Any] | None = None
    units: dict[str, int] | None = None
    after: Sequence[Any] | None = None
    after_failure: str | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    confirm: bool | None = None

    def changed(self, changes: dict[str, Any]) -> Options:
        """A copy with other values."""
        for name in ("delay", "timeout"):
            if changes.get(name) is not None:
                changes[name] = seconds(changes[name])
        run_at = changes.get("run_at")
        if run_at is not None and (not isinstance(run_at, datetime) or run_at.tzinfo is None):
            raise Invalid(
                f"run_at must be a datetime with a time zone (got {run_at!r})", details={"field": "run_at"}
            )
        try:
            return replace(self, **changes)
        except TypeError as error:
            raise Invalid(str(error).replace("Options.__init__() ", "options() ")) from error

    def for_job(self) -> JobOptions:
        """The options of `jobs.start`."""
        return {
            "tenant_id": self.tenant_id,
            "idempotency_key": self.idempotency_key,
            "priority": self.priority,
            "run_at": self.run_at,
            "delay_seconds": self.delay,
            "on_failure": cast("Any", self.on_failure),
            "paused": self.paused,
            "budget": self.budget,
            "on_limit": cast("Any", self.on_limit),
            "stop_after": self.stop_after,
        }

    def for_task(self) -> dict[str, Any]:
        """The fields of the one task of a job."""
        names = ("key", "phase", "provider", "route", "units", "after_failure", "max_attempts", "confirm")
        chosen = {name: getattr(self, name) for name in names} | {"timeout_seconds": self.timeout}
        return {name: value for name, value in chosen.items() if value is not None}

    def for_step(self) -> dict[str, Any]:
        """The fields of one of several tasks of a job."""
        self._reject("an option of a job, not of a step", "tenant_id", "delay", "on_failure", "paused")
        self._reject("an option of a job, not of a step", "idempotency_key", "using", "budget", "on_limit")
        self._reject("an option of a job, not of a step", "stop_after", "preview", "skip_done")
        chosen = self.for_task()
        if self.priority is not None:
            chosen["priority"] = self.priority
        if self.run_at is not None:
            chosen["run_at"] = self.run_at.isoformat()
        return chosen

    def for_schedule(self) -> dict[str, Any]:
        """The options of a schedule."""
        self._reject("not an option of a schedule", "run_at", "delay", "paused", "idempotency_key")
        chosen = {
            "priority": self.priority,
            "on_failure": self.on_failure,
            "budget": None if self.budget is None else format(exact(self.budget, "budget"), "f"),
            "on_limit": self.on_limit,
            "stop_after": self.stop_after,
        }
        return {name: value for name, value in chosen.items() if value is not None}

    def _reject(self, why: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise Invalid(f"{name} is {why}", details={"field": name})


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
