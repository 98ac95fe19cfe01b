"""Operations of a handler: begin, submit, wait without a worker, ask the provider, settle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

from penstock.errors import Invalid, PenstockError

# A crash between the call and the note of its id: the provider may need a moment to show the new job.
SETTLE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Operation:
    """What `submit`, `find`, `check` and `cancel` get. `id` is the tag to give to the provider."""

    id: UUID
    object: str
    external_id: str | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What `check` returns when the provider is done."""

    outcome: Literal["completed", "failed", "canceled"]
    result: Any = None
    units: dict[str, float] | None = None
    code: str = "operation_failed"
    message: str = ""


class OperationFailed(PenstockError):
    """The operation failed: the attempt fails, and the next one begins another operation."""

    code = "operation_failed"


class Waits(BaseException):
    """Ends the handler until a webhook comes, or for this many seconds."""

    def __init__(self, operation_id: UUID, seconds: float) -> None:
        super().__init__("the task waits")
        self.wait_id, self.seconds = operation_id, seconds


Submit = Callable[[Operation], Awaitable[str]]
Find = Callable[[Operation], Awaitable[str | None]]
Check = Callable[[Operation], Awaitable[Settled | None]]
Cancel = Callable[[Operation], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Calls:
    """The provider's side of an operation."""

    object: str
    timeout: float
    checks: Sequence[float]
    submit: Submit
    check: Check
    find: Find | None = None
    cancel: Cancel | None = None
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ProviderCalls:
    """How a worker asks a provider about operations that ended here without its word."""

    check: Check
    find: Find | None = None
    cancel: Cancel | None = None


class Operations:
    """The providers whose operations a worker reconciles."""

    def __init__(self) -> None:
        self.providers: dict[str, ProviderCalls] = {}

    def add(
        self, provider: str, *, check: Check, find: Find | None = None, cancel: Cancel | None = None
    ) -> None:
        """Reconcile the operations of a provider, or of a kind whose tasks name no provider.

        A worker asks with `check` about operations that timed out, and ends canceled ones with `cancel`.
        `find` returns the provider's id where the worker died before it noted the id.
        """
        if provider in self.providers:
            raise Invalid(f"operations of {provider!r} are declared twice", details={"field": "provider"})
        self.providers[provider] = ProviderCalls(check, find, cancel)


async def reconcile(row: dict[str, Any], calls: ProviderCalls) -> tuple[str, dict[str, Any]]:
    """Ask the provider about an operation that timed out, or cancel it there. Returns outcome and values."""
    operation = _operation(row)
    if operation.external_id is None:
        found = await calls.find(operation) if calls.find is not None else None
        if found is None:
            # The provider never got it, or cannot say.
            return "unknown", {}
        operation = replace(operation, external_id=found)
    # Noted with the outcome, so that people see the id of an operation that was found by its tag.
    known = {"external_id": operation.external_id}
    if row["status"] == "canceled":
        if calls.cancel is None:
            return "failed", known
        await calls.cancel(operation)
        return "canceled", known
    asked = await calls.check(operation)
    return ("running", known) if asked is None else (asked.outcome, {**_values(asked), **known})


async def run(ctx: Any, hooks: Any, calls: Calls) -> Any:
    """The result of the operation. Raises Waits while it is under way, OperationFailed when it failed."""
    unfinished: list[dict[str, Any]] = await hooks.unfinished(ctx)
    live = [row for row in unfinished if row["status"] != "timeout"]
    for late in [row for row in unfinished if row["status"] == "timeout"]:
        if late["external_id"] is None:
            late["external_id"] = await calls.find(_operation(late)) if calls.find is not None else None
        if late["external_id"] is None:
            continue
        asked = await calls.check(_operation(late))
        if asked is not None and asked.outcome == "completed":
            values = {**_values(asked), "external_id": late["external_id"]}
            await hooks.settle(ctx, late["id"], "completed", values)
            for other in live:
                if calls.cancel is not None:
                    await calls.cancel(_operation(other))
                await hooks.settle(ctx, other["id"], "canceled", {})
            return asked.result
        if asked is None and calls.cancel is not None:
            await calls.cancel(_operation(late))
    row = await hooks.begin(ctx, calls.object, calls.timeout)
    if row["status"] == "completed":
        return row["result"]
    if row["status"] in ("failed", "timeout", "canceled"):
        raise OperationFailed(
            row["error_message"] or f"the operation ended: {row['status']}",
            code=row["error_code"] or "operation_failed",
        )
    if row["external_id"] is None:
        row["external_id"] = await _submitted(row, calls)
        await hooks.submit(ctx, row["id"], row["external_id"])
        if row["is_new"]:
            raise Waits(UUID(row["id"]), _next_check(0, calls.checks))
    await hooks.note_check(ctx, row["id"])
    asked = await calls.check(_operation(row))
    if asked is not None:
        status = await hooks.settle(ctx, row["id"], asked.outcome, _values(asked))
        if status == "completed":
            return asked.result
        if status == "canceled":
            raise OperationFailed("the operation was canceled", code="operation_canceled")
        raise OperationFailed(asked.message or f"the operation {asked.outcome}", code=asked.code)
    if row["left_seconds"] <= 0:
        await hooks.settle(ctx, row["id"], "timeout", {})
        raise OperationFailed("the provider did not finish in time", code="operation_timeout")
    raise Waits(UUID(row["id"]), _next_check(row["age_seconds"], calls.checks))


async def _submitted(row: dict[str, Any], calls: Calls) -> str:
    """The provider's id of the operation: found by its tag after a crash, or from a new call."""
    if not row["is_new"]:
        if row["age_seconds"] < SETTLE_SECONDS:
            raise Waits(UUID(row["id"]), SETTLE_SECONDS - row["age_seconds"])
        found = await calls.find(_operation(row)) if calls.find is not None else None
        if found is not None:
            return found
    return await calls.submit(_operation(row))


def _operation(row: dict[str, Any]) -> Operation:
    return Operation(UUID(row["id"]), row["object"], row["external_id"])


def _values(asked: Settled) -> dict[str, Any]:
    values: dict[str, Any] = {"result": asked.result, "code": asked.code, "message": asked.message}
    return values if asked.units is None else {**values, "units": asked.units}


def _next_check(age: float, checks: Sequence[float]) -> float:
    """Seconds until the next check: at these ages, then again after each last pause."""
    for point in checks:
        if point > age:
            return point - age
    return checks[-1] if checks else 30.0
