"""Rows, what can be wrong with one, and the names of a table's columns."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Invalid

LARGEST_ROW = 1 << 20
"""Characters of the longest row. It bounds the memory: a file without a line break is no reason to die."""
MOST_COLUMNS = 16_384
"""As many as a spreadsheet has."""
# How the decoder marks bytes that are no text (see text.py). No valid text holds these.
MARKED = re.compile("[\udc00-\udcff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row cannot be read."""

    line: int
    column: str | None
    code: str
    message: str


@dataclass(slots=True)
class Row:
    """A row: its number as a person sees it in the file, and its cells by column, without the empty ones."""

    number: int
    data: dict[str, Any]
    problem: Problem | None = None


class Header:
    """The names of a table's columns.

    Blanks around a name do not count. A column without a name is called `column_3` by its place; of two with
    one name the second is called `name_2`.
    """

    def __init__(self, cells: Sequence[Any], rename: Mapping[str, str] | None = None) -> None:
        if len(cells) > MOST_COLUMNS:
            raise Invalid(f"a table has at most {MOST_COLUMNS:,} columns", code="too_many_columns")
        names = [_name(cell) for cell in cells]
        while names and not names[-1]:
            names.pop()  # a spreadsheet's empty columns at the right
        taken = set(names)
        found: dict[str, None] = {}
        # The next number for each name: a header may be one name all over.
        numbers: dict[str, int] = {}
        for place, name in enumerate(names, 1):
            unique = base = name or f"column_{place}"
            while unique in found or (unique in taken and unique != name):
                number = numbers.get(base, 2)
                unique, numbers[base] = f"{base}_{number}", number + 1
            found[unique] = None
        self.columns = renamed(list(found), rename)

    @classmethod
    def without_names(cls, width: int, rename: Mapping[str, str] | None = None) -> Header:
        """The names of a table that has none."""
        return cls([f"column_{place}" for place in range(1, width + 1)], rename)

    def name_of(self, place: int) -> str:
        """The name of a column by its place, counted from 0; also of one that is too many."""
        return self.columns[place] if place < len(self.columns) else f"column_{place + 1}"

    def data(self, cells: Sequence[Any]) -> dict[str, Any]:
        """A row's cells by column, without the empty ones."""
        return {
            name: cell
            for name, cell in zip(self.columns, cells, strict=False)
            if cell is not None and cell != ""
        }

    def too_many(self, number: int, cells: Sequence[Any]) -> Problem | None:
        """The problem of a row with something beyond the last column."""
        for place in range(len(self.columns), len(cells)):
            if cells[place] is not None and cells[place] != "":
                return self.beyond(number, place, cells[place])
        return None

    def beyond(self, number: int, place: int, cell: Any) -> Problem:
        """The problem of a row with this beyond the last column."""
        text = f"cell {place + 1}, {str(cell)[:40]!r}, is beyond the table's {len(self.columns)} columns"
        return Problem(number, self.name_of(place), "too_many_cells", text)


def renamed(columns: Sequence[str], rename: Mapping[str, str] | None) -> list[str]:
    """Columns under the names they are to have."""
    if not rename:
        return list(columns)
    known = set(columns)
    for name in rename:
        if name not in known:
            raise Invalid(
                f"there is no column {name!r}",
                code="unknown_column",
                hint=f"There are: {', '.join(columns[:50])}.",
                details={"column": name},
            )
    found = [rename.get(name, name) for name in columns]
    counts = Counter(found)
    for name in rename.values():
        if counts[name] > 1:
            raise Invalid(
                f"two columns would be called {name!r}", code="duplicate_column", details={"column": name}
            )
    return found


def _name(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    text = MARKED.sub("\ufffd", text.replace("\0", "\ufffd"))
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean(value: Any) -> Any:
    """A value as the database can store it: what is no text becomes U+FFFD."""
    if isinstance(value, str):
        return MARKED.sub("\ufffd", value.replace("\0", "\ufffd"))
    return value
