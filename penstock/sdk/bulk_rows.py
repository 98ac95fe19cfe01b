"""The rows of bulk jobs: as handlers receive them, in batches, and as the tasks drawn from them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic, TypeVar, cast

import pydantic
import pydantic_core

from penstock.contract.bulks import Taken
from penstock.errors import Invalid
from penstock.redaction import redact
from penstock.types import RowProblem

T = TypeVar("T", bound=pydantic.BaseModel)
MOST_TASKS = 50_000
"""Maximum tasks added in one transaction."""
MAX_KEY_LENGTH = 1000


class BulkRow(pydantic.BaseModel, Generic[T]):
    """A row with its number and key, as batches and apply handlers receive it."""

    number: int
    key: str
    data: T


class Change(pydantic.BaseModel):
    """A value that an apply handler changed, before and after."""

    name: str = pydantic.Field(min_length=1, max_length=200)
    before: Any = None
    after: Any = None


class RowError(pydantic.BaseModel):
    """In a batch's output, in place of a row's value: this row failed, the others continue."""

    message: str
    code: str = "row_failed"

    @pydantic.model_serializer
    def _write(self) -> dict[str, Any]:
        # It is stored as part of an output, which the database does not search for credentials.
        return {"$error": {"code": self.code, "message": redact(self.message)}}


@dataclass(slots=True)
class Drawing:
    """The tasks of a row, or of a batch."""

    numbers: list[int]
    tasks: list[dict[str, Any]]
    result: int
    batch_size: int | None
    ids: list[int] = field(default_factory=list[int])

    def marks(self) -> Iterator[dict[str, Any]]:
        """The rows for `mark_rows`."""
        for number in self.numbers:
            yield {
                "number": number,
                "first_id": self.ids[0],
                "result_id": self.ids[self.result],
                "last_id": self.ids[-1],
                "batch_size": self.batch_size,
            }


def pack(
    rows: Sequence[Taken],
    batch: int,
    *,
    is_grouped: bool,
    is_more: bool = False,
    following: Taken | None = None,
) -> list[list[Taken]]:
    """Split rows into batches of at most `batch`, in order.

    A group that fits into a batch is never split; a larger one gets batches of its own. With `is_more`, omits
    a last batch that later rows could fill.
    """
    groups = [
        list(each) for _, each in groupby(rows, key=lambda row: row.group if is_grouped else row.number)
    ]
    if is_grouped and is_more and groups and (following is None or following.group == groups[-1][-1].group):
        last = groups.pop()
        if not groups:
            groups.append(last[: len(last) // batch * batch])
    packed: list[list[Taken]] = []
    current: list[Taken] = []
    for group in groups:
        for start in range(0, len(group), batch):
            chunk = group[start : start + batch]
            if len(current) + len(chunk) > batch:
                packed.append(current)
                current = []
            current = current + chunk
    if current and (not is_more or not packed or len(current) == batch):
        packed.append(current)
    return packed


def fitting(drawings: list[Drawing]) -> list[Drawing]:
    """As many drawings as fit into one call."""
    total = 0
    for place, each in enumerate(drawings):
        total += len(each.tasks)
        if total > MOST_TASKS and place:
            return drawings[:place]
    return drawings


class Sample:
    """A uniform random sample of a stream (reservoir sampling)."""

    def __init__(self, most: int) -> None:
        self.kept: list[Any] = []
        self.count = 0
        self._most = most
        self._random = random.Random(0)

    def add(self, item: Any) -> None:
        self.count += 1
        if len(self.kept) < self._most:
            self.kept.append(item)
        elif (place := self._random.randrange(self.count)) < self._most:
            self.kept[place] = item


def key_of_row(data: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """A row's key, equal for the same rows as the database's."""
    values = [data.get(column) for column in columns]
    if all(value is None or value == "" for value in values):
        return None
    key = str(values[0]) if len(values) == 1 else repr(values)
    return key if len(key) <= MAX_KEY_LENGTH else None


def reported_problem(number: int, problem: Any) -> RowProblem:
    told = cast("dict[str, Any]", pydantic_core.to_jsonable_python(problem))
    return RowProblem(
        number, told.get("column"), str(told.get("code") or "unreadable"), str(told.get("message") or "")
    )


def stored_problem(problems: Sequence[RowProblem]) -> dict[str, Any]:
    first = problems[0]
    text = "; ".join(
        f"{each.column}: {each.message}" if each.column else each.message for each in problems[:10]
    )
    return {"code": first.code, "column": first.column, "message": text}


def row_problem(number: int, code: str, message: str) -> dict[str, Any]:
    return {"number": number, "problem": {"code": code, "message": message[:2000]}}


def drawing_of_error(drawings: Sequence[Drawing], error: Invalid) -> Drawing | None:
    """The drawing that the error refers to."""
    text = str(error.details.get("field", ""))
    with suppress(ValueError, IndexError):
        place = int(text.split("tasks[")[1].split("]")[0])
        for each in drawings:
            if place < len(each.tasks):
                return each
            place -= len(each.tasks)
    return None
