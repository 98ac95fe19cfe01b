"""Lists in pages: what a list takes, and what it answers with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel

from penstock.api.limits import MOST_PER_PAGE

T = TypeVar("T")

LimitQuery = Annotated[int, Query(ge=1, le=MOST_PER_PAGE, description="How many there are on a page.")]
TenantQuery = Annotated[UUID | None, Query(description="Of this tenant only.")]
LARGEST = (1 << 53) - 1
"""What counts up never gets there, and what is larger is another number to most readers of JSON."""
NumberCursor = Annotated[int | None, Query(ge=0, le=LARGEST, description="`next` of the page before.")]
UuidCursor = Annotated[UUID | None, Query(description="`next` of the page before.")]


def filter_query(example: str) -> Any:
    """A filter, of a list for which this is one."""
    text = f"Terms such as `{example}`; all must hold."
    return Query(max_length=2000, description=text, examples=[example])


class Page(BaseModel, Generic[T]):
    """Some of a list. `next` is the cursor of the next page; null on the last."""

    items: Sequence[T]
    next: str | None


def page(found: Sequence[T], limit: int, place: Callable[[T], Any]) -> Page[T]:
    """A page of what was found with a limit of one more."""
    items = found[:limit]
    return Page[Any](items=items, next=str(place(items[-1])) if len(found) > limit else None)
