"""Lists as files for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

from fastapi import Response

from penstock import db, sources

MOST = 10_000
"""Lines in a file."""
PER_PAGE = 1000


class Line(Protocol):
    @property
    def id(self) -> Any: ...


L = TypeVar("L", bound=Line)


async def whole(page: Callable[..., Awaitable[list[L]]], held: db.Connection, **chosen: Any) -> list[L]:
    """A list from its first page on, as far as a file takes it."""
    found: list[L] = []
    while len(found) < MOST:
        before = found[-1].id if found else None
        some = await page(held, before=before, limit=PER_PAGE, **chosen)
        found += some
        if len(some) < PER_PAGE:
            break
    return found


def as_csv(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Response:
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
