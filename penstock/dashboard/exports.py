"""CSV exports of lists."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from fastapi import Response

from penstock.postgres import db
from penstock.sources.writers import cell, csv_writer

MAX_ROWS = 10_000
"""Rows in a file."""
PER_PAGE = 50
"""Rows read per query."""


class Item(Protocol):
    @property
    def id(self) -> Any: ...


ItemT = TypeVar("ItemT", bound=Item)
Row: TypeAlias = Sequence[Any]
"""The cells of a row."""


async def all_rows(
    list_page: Callable[..., Awaitable[list[ItemT]]],
    to_rows: Callable[[list[ItemT]], Awaitable[list[Row]]],
    conn: db.Connection,
    **filters: Any,
) -> list[Row]:
    """Read a list page by page, up to the limit of a file.

    Only the exported cells are kept in memory: an item may be large.
    """
    rows: list[Row] = []
    before = None
    while len(rows) < MAX_ROWS:
        items = await list_page(conn, before=before, limit=PER_PAGE, **filters)
        rows += await to_rows(items)
        if len(items) < PER_PAGE:
            break
        before = items[-1].id
    return rows


def fields(*names: str) -> Callable[[Sequence[Item]], Awaitable[list[Row]]]:
    """Return a function that picks these fields from each item."""

    async def to_rows(items: Sequence[Item]) -> list[Row]:
        return [[getattr(item, name) for name in names] for item in items]

    return to_rows


async def as_csv(name: str, head: Sequence[str], rows: Iterable[Row]) -> Response:
    """Return a CSV file in which no cell can be run as a spreadsheet formula."""
    # Formatting thousands of rows would block other requests.
    text = await asyncio.to_thread(_csv, head, rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _csv(head: Sequence[str], rows: Iterable[Row]) -> bytes:
    text = io.StringIO()
    writer = csv_writer(text, "\r\n")
    writer.writerow([cell(name) for name in head])
    writer.writerows([cell(value) for value in row] for row in rows)
    return text.getvalue().encode()
