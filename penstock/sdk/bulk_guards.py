"""The guard of a bulk type: rows are redacted when their tasks are drawn, and screened when a task starts.

Screening calls an outside service, so it cannot happen while rows are loaded: that is one transaction.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import pydantic

from penstock.errors import Invalid
from penstock.guards import Guard
from penstock.sdk.bulk_rows import BulkRow, RowError
from penstock.sdk.context import Context, Fail

if TYPE_CHECKING:
    from penstock.sdk.signature import Signature

T = TypeVar("T", bound=pydantic.BaseModel)
KEY = "$guard"
"""In a task's input: the bulk type whose guard screens it."""
SECONDS = 60.0
"""How long the screening of a task's input may take; longer fails the attempt."""
SCREENED = "the text gives instructions to the model"
_ROW = {"number", "key", "data"}


class Type(Protocol):
    """The parts of a bulk type that its guard needs."""

    @property
    def app(self) -> Any: ...
    @property
    def name(self) -> str: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def guard(self) -> Guard | None: ...


def redacted(guard: Guard | None, rows: Sequence[BulkRow[T]]) -> Sequence[BulkRow[T]]:
    """The rows with the guarded columns redacted. The stored rows stay as they are."""
    if guard is None or (redact := guard.redact) is None:
        return rows
    changed: list[BulkRow[T]] = []
    for row in rows:
        texts = {name: getattr(row.data, name, None) for name in guard.columns}
        update = {name: redact(text) for name, text in texts.items() if isinstance(text, str)}
        changed.append(row.model_copy(update={"data": row.data.model_copy(update=update)}))
    return changed


def mark(type: Type, tasks: Sequence[dict[str, Any]], rows: Sequence[BulkRow[Any]]) -> None:
    """Mark the tasks that get rows, so that the worker screens their input first."""
    if type.guard is None or type.guard.screen is None:
        return
    if type.batch is None:
        given = [getattr(row.data, name, None) for row in rows for name in type.guard.columns]
        texts = [text for text in given if isinstance(text, str) and text]
        marked = [task for task in tasks if not task.get("after") or _contains(task.get("input", {}), texts)]
    else:
        marked = [task for task in tasks if any(True for _ in _row_lists(task.get("input", {})))]
    if not marked:
        raise Invalid(
            f"the body of {type.name} passes its list of rows to no step, so they cannot be screened",
            code="not_guarded",
            hint="Pass the whole list: tag.step(rows).",
        )
    for task in marked:
        found = type.app.tasks.get(task["kind"])
        if found is not None and found.mode in ("process", "ray"):
            raise Invalid(
                f"{task['kind']} runs outside of the worker and cannot get guarded rows",
                code="not_guarded",
                hint="Call ctx.acompute from an async task instead.",
            )
        task["input"] = {**task.get("input", {}), KEY: type.name}


async def screened(
    bulks: Mapping[str, Type], task: Any, arguments: dict[str, Any], ctx: Context
) -> tuple[Any, dict[str, Any]]:
    """The task and its arguments without poisoned rows, which the task's output then reports as errors."""
    type = bulks[arguments[KEY]]
    arguments = {name: value for name, value in arguments.items() if name != KEY}
    guard = type.guard
    if guard is None or guard.screen is None:
        return task, arguments
    lists = list(_row_lists(arguments)) if type.batch is not None else []
    texts = _texts_of_rows(guard, lists) if lists else {"": list(_strings(arguments))}
    flat = [(key, text) for key, found in texts.items() for text in found]
    async with asyncio.timeout(SECONDS):
        verdicts = await guard.screen([text for _, text in flat])
    unchecked = sum(verdict.is_unchecked for verdict in verdicts)
    if unchecked:
        ctx.log.warning("guard.fail_open", texts=unchecked)
    poisoned = {key for (key, _), verdict in zip(flat, verdicts, strict=True) if verdict.is_attack}
    if not poisoned:
        return task, arguments
    if not lists:
        raise Fail(SCREENED, code="screened")
    for name, rows in lists:
        arguments[name] = [row for row in rows if row["key"] not in poisoned]
    errors = {key: RowError(message=SCREENED, code="screened").model_dump() for key in sorted(poisoned)}
    is_any_left = any(arguments[name] for name, _ in lists)
    return _reporting(task, errors, is_any_left), arguments


def _reporting(task: Any, errors: dict[str, Any], is_any_left: bool) -> Any:
    """A copy of the task whose output also has the errors; without rows its handler is not called."""
    other = copy.copy(task)
    other.signature = _Reporting(task.signature, errors)
    if not is_any_left:
        other.function, other.mode = _nothing, "async"
    return other


async def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}


class _Reporting:
    """A signature whose outputs also contain the errors of poisoned rows."""

    def __init__(self, signature: Signature, errors: dict[str, Any]) -> None:
        self._signature, self._errors = signature, errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._signature, name)

    def dump(self, value: Any) -> Any:
        document = self._signature.dump(value) if value else value
        if not isinstance(document, dict):
            return document
        return {**cast("dict[str, Any]", document), **self._errors}


def _row_lists(arguments: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name, value in arguments.items():
        if isinstance(value, list) and value:
            items = cast("list[Any]", value)
            if all(isinstance(item, dict) and set(cast("Any", item)) == _ROW for item in items):
                yield name, items


def _texts_of_rows(guard: Guard, lists: Sequence[tuple[str, list[dict[str, Any]]]]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for row in (row for _, rows in lists for row in rows):
        found = [row["data"].get(column) for column in guard.columns]
        texts.setdefault(row["key"], []).extend(text for text in found if isinstance(text, str))
    return texts


def _contains(value: Any, texts: Sequence[str]) -> bool:
    """Whether a value contains one of these texts."""
    return any(text in found for found in _strings(value) for text in texts)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        items: Any = cast("Any", value)
        found: Any = items.values() if isinstance(value, dict) else items
        for item in found:
            yield from _strings(item)
