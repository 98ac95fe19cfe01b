"""Lists as files for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, TypeVar

from fastapi import Response

from penstock import db, sources

MOST = 10_000
"""Lines in a file."""
PER_PAGE = 200
"""Lines read at once."""


class Line(Protocol):
    @property
    def id(self) -> Any: ...


L = TypeVar("L", bound=Line)
Row: TypeAlias = Sequence[Any]
"""The cells of a line."""


async def whole(
    page: Callable[..., Awaitable[list[L]]],
    cells: Callable[[list[L]], Awaitable[list[Row]]],
    held: db.Connection,
    **chosen: Any,
) -> list[Row]:
    """A list from its first page on, as far as a file takes it.

    Of each page only its cells are kept: what a line has besides may be large.
    """
    found: list[Row] = []
    before = None
    while len(found) < MOST:
        some = await page(held, before=before, limit=PER_PAGE, **chosen)
        found += await cells(some)
        if len(some) < PER_PAGE:
            break
        before = some[-1].id
    return found


def fields(*names: str) -> Callable[[Sequence[Line]], Awaitable[list[Row]]]:
    """Of each line these fields."""

    async def cells(lines: Sequence[Line]) -> list[Row]:
        return [[getattr(line, name) for name in names] for line in lines]

    return cells


def as_csv(name: str, head: Sequence[str], rows: Iterable[Row]) -> Response:
    """A CSV file. What a spreadsheet would take for a formula is a text in it."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows([_cell(value) for value in row] for row in rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return sources.safe(value) if isinstance(value, str) else value
