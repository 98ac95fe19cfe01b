"""Conversion between tables and cells of a sheet: parts to read, rows, and blocks to write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from penstock.sources import Header, Problem, Row
from penstock.sources.a1 import Range

LARGEST_REQUEST = 2_000_000
"""Bytes of a request, as Google recommends."""
LONGEST_CELL = 50_000
"""Characters of a cell."""

_WANTED_ANSWER = 1_500_000
_MOST_ROWS, _FIRST_CELLS = 50_000, 50_000
_ERRORS = {"#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A", "#ERROR!"}


@dataclass(frozen=True, slots=True)
class Part:
    """Progress of reading a range, and the number of rows to read next, adapted to their size."""

    area: Range
    """The range with all bounds."""
    done: int = 0
    """Rows read so far."""
    size: int = 0
    """Rows of the next part; 0 for a first guess."""

    @property
    def next(self) -> Range | None:
        """The rows to read next; None at the end."""
        top, bottom = (self.area.top or 1) + self.done, self.area.bottom or 0
        return None if top > bottom else replace(self.area, top=top, bottom=min(bottom, top + self._size - 1))

    def after(self, values: Sequence[Sequence[Any]]) -> Part:
        """The part after reading these rows. Small rows make the next part larger."""
        size = self._size
        fitting = int(_WANTED_ANSWER * size / len(json.dumps(values)))
        return Part(self.area, self.done + size, max(1, min(_MOST_ROWS, 8 * size, fitting)))

    @property
    def _size(self) -> int:
        width = (self.area.right or 1) - (self.area.left or 1) + 1
        return self.size or max(1, min(_MOST_ROWS, _FIRST_CELLS // width))


def table_rows(header: Header, number: int, values: Iterable[Sequence[Any]]) -> Iterator[Row]:
    """Rows of a sheet from their values. `number` is the number of the first row."""
    for line, cells in enumerate(values, number):
        if not any(cell is not None and cell != "" for cell in cells):
            continue
        problem = header.too_many(line, cells)
        for place, value in enumerate(cells[: len(header.columns)]):
            if isinstance(value, str) and value in _ERRORS:
                words = f"the cell contains the error {value}"
                problem = Problem(line, header.name_of(place), "cell_error", words)
                break
        yield Row(line, header.data(cells), problem)


@dataclass(frozen=True, slots=True)
class Block:
    """Values to write, starting at the first cell of the range."""

    range: Range
    values: list[list[Any]]

    @property
    def area(self) -> Range:
        """The range of all cells to write."""
        top, left = self.range.top or 1, self.range.left or 1
        width = max(len(row) for row in self.values)
        return Range(self.range.sheet, top, left, top + len(self.values) - 1, left + width - 1)


def blocks(sheet: str, left: int, rows: Mapping[int, Sequence[Any]]) -> list[Block]:
    """Combine rows, given by number and starting at column `left`, into as few blocks as possible."""
    found: list[Block] = []
    for number in sorted(rows):
        if found and (found[-1].range.top or 1) + len(found[-1].values) == number:
            found[-1].values.append(list(rows[number]))
        else:
            found.append(Block(Range(sheet, number, left), [list(rows[number])]))
    return found


def cell(value: Any) -> str | int | float | bool:
    """A value for a cell: an empty string for None, JSON for lists and objects, truncated to the limit."""
    if isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < 10**15):
        return value
    if isinstance(value, Decimal) and abs(value) < 10**15:
        return float(value)
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


def request(blocks: Sequence[Block]) -> bytes:
    """The body of the request that writes these blocks."""
    data = [{"range": str(block.area), "values": block.values} for block in blocks]
    document = {"valueInputOption": "RAW", "includeValuesInResponse": False, "data": data}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
