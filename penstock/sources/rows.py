"""Rows, their problems, and column names."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import Invalid

LARGEST_ROW = 1 << 20
"""Maximum characters of a row, which bounds memory for files without line breaks."""
MOST_COLUMNS = 16_384
"""The limit of spreadsheets."""
# Markers that the decoder puts in place of invalid bytes (see text.py). Valid text never contains them.
MARKED = re.compile("[\udc00-\udcff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row is invalid."""

    line: int
    column: str | None
    code: str
    message: str


@dataclass(slots=True)
class Row:
    """A row: its line number in the file, and its cells by column, without empty cells."""

    number: int
    data: dict[str, Any]
    problem: Problem | None = None


class Header:
    """Column names of a table.

    White space around a name is ignored. A column without a name is called `column_3` by its position; the
    second column with the same name is called `name_2`.
    """

    def __init__(self, cells: Sequence[Any], rename: Mapping[str, str] | None = None) -> None:
        if len(cells) > MOST_COLUMNS:
            raise Invalid(f"the table has more than {MOST_COLUMNS:,} columns", code="too_many_columns")
        names = [_name(cell) for cell in cells]
        while names and not names[-1]:
            names.pop()  # empty columns at the right of a spreadsheet
        taken = set(names)
        found: dict[str, None] = {}
        # The next suffix for each name, so that many equal names stay fast.
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
        """Generated names for a table without a header."""
        return cls([f"column_{place}" for place in range(1, width + 1)], rename)

    def name_of(self, place: int) -> str:
        """The name of the column at this index, also beyond the last column."""
        return self.columns[place] if place < len(self.columns) else f"column_{place + 1}"

    def data(self, cells: Sequence[Any]) -> dict[str, Any]:
        """The cells by column, without empty cells."""
        return {
            name: cell
            for name, cell in zip(self.columns, cells, strict=False)
            if cell is not None and cell != ""
        }

    def too_many(self, number: int, cells: Sequence[Any]) -> Problem | None:
        """The problem of a row with cells beyond the last column, if any."""
        for place in range(len(self.columns), len(cells)):
            if cells[place] is not None and cells[place] != "":
                return self.beyond(number, place, cells[place])
        return None

    def beyond(self, number: int, place: int, cell: Any) -> Problem:
        """The problem of a row with this cell beyond the last column."""
        text = f"cell {place + 1}, {str(cell)[:40]!r}, is beyond the table's {len(self.columns)} columns"
        return Problem(number, self.name_of(place), "too_many_cells", text)


def renamed(columns: Sequence[str], rename: Mapping[str, str] | None) -> list[str]:
    """Apply new names to columns."""
    if not rename:
        return list(columns)
    known = set(columns)
    for name in rename:
        if name not in known:
            raise Invalid(
                f"unknown column {name!r}",
                code="unknown_column",
                hint=f"Columns: {', '.join(columns[:50])}.",
                details={"column": name},
            )
    found = [rename.get(name, name) for name in columns]
    counts = Counter(found)
    for name in rename.values():
        if counts[name] > 1:
            raise Invalid(
                f"two columns would be named {name!r}", code="duplicate_column", details={"column": name}
            )
    return found


def _name(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    text = MARKED.sub("\ufffd", text.replace("\0", "\ufffd"))
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean(value: Any) -> Any:
    """A value that the database can store: invalid characters become U+FFFD."""
    if isinstance(value, str):
        return MARKED.sub("\ufffd", value.replace("\0", "\ufffd"))
    return value
