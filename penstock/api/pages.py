"""Pagination: query parameters of lists, and the page they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel

from penstock.api.limits import MAX_PER_PAGE

T = TypeVar("T")

LimitQuery = Annotated[int, Query(ge=1, le=MAX_PER_PAGE, description="Items per page.")]
TenantQuery = Annotated[UUID | None, Query(description="Only of this tenant.")]
LARGEST = (1 << 53) - 1
"""The largest integer that JSON parsers agree on."""
NumberCursor = Annotated[int | None, Query(ge=0, le=LARGEST, description="`next` of the previous page.")]
UuidCursor = Annotated[UUID | None, Query(description="`next` of the previous page.")]


def filter_query(example: str) -> Any:
    """A filter parameter, documented with an example."""
    text = f"Filter terms such as `{example}`. All must match."
    return Query(max_length=2000, description=text, examples=[example])


class Page(BaseModel, Generic[T]):
    """One page of a list. `next` is the cursor of the next page; null on the last page."""

    items: Sequence[T]
    next: str | None


def page(found: Sequence[T], limit: int, cursor: Callable[[T], Any]) -> Page[T]:
    """Make a page of rows that were read with a limit of one more."""
    items = found[:limit]
    return Page[Any](items=items, next=str(cursor(items[-1])) if len(found) > limit else None)
