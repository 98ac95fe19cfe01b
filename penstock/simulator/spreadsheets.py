"""Spreadsheets in memory."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from penstock.errors import Invalid
from penstock.sources import a1

Cell = str | int | float | bool | None

_MOST_CELLS = 10_000_000
_LONGEST_CELL = 50_000
_STATUSES = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    413: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class SheetsError(Exception):
    """An error response."""

    def __init__(self, status: int, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.reason = status, message, reason

    def body(self) -> dict[str, Any]:
        """The body in Google's format."""
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "status": _STATUSES.get(self.status, "UNKNOWN"),
        }
        if self.reason:
            kind = "type.googleapis.com/google.rpc.ErrorInfo"
            error["details"] = [
                {"@type": kind, "reason": self.reason, "domain": "googleapis.com", "metadata": {}}
            ]
        return {"error": error}


@dataclass(slots=True)
class Sheet:
    """One sheet with its cells and grid size."""

    id: int
    title: str
    cells: list[list[Cell]]
    rows: int = 1000
    columns: int = 26

    def values(self, area: a1.Range) -> list[list[Cell]]:
        """The values of a range, without empty cells at the end of rows and empty rows at the end."""
        top, left, bottom, right = area.top or 1, area.left or 1, area.bottom, area.right
        found = [row[left - 1 : right] for row in self.cells[top - 1 : bottom]]
        for row in found:
            while row and row[-1] in (None, ""):
                row.pop()
        while found and not found[-1]:
            found.pop()
        return [["" if cell is None else cell for cell in row] for row in found]

    def clipped(self, area: a1.Range) -> a1.Range:
        """Limit a range to the grid. Raises if it begins outside."""
        top, left = area.top or 1, area.left or 1
        if top > self.rows or left > self.columns:
            raise self._beyond(area)
        bottom, right = (
            min(area.bottom or self.rows, self.rows),
            min(area.right or self.columns, self.columns),
        )
        return a1.Range(self.title, top, left, bottom, right)

    def check(self, area: a1.Range, values: Any) -> list[list[Cell]]:
        """Validate the values of a write and their range."""
        rows = cast("list[list[Any]]", values) if _are_lists(values) else None
        if rows is None:
            raise SheetsError(400, "Invalid value at 'data.values'")
        for cell in (cell for row in rows for cell in row):
            if not (cell is None or isinstance(cell, str | int | float)):
                raise SheetsError(400, "Invalid values: struct_value")
            if isinstance(cell, str) and len(cell) > _LONGEST_CELL:
                words = f"more than the maximum of {_LONGEST_CELL} characters in a single cell."
                raise SheetsError(400, f"Your input contains {words}")
        bottom = (area.top or 1) + len(rows) - 1
        right = (area.left or 1) + max((len(row) for row in rows), default=0) - 1
        if area.bottom is not None and bottom > area.bottom:
            words = f"tried writing to row [{area.bottom + 1}]"
            raise SheetsError(400, f"Requested writing within range [{area}], but {words}")
        if area.right is not None and right > area.right:
            words = f"tried writing to column [{a1.letters(area.right + 1)}]"
            raise SheetsError(400, f"Requested writing within range [{area}], but {words}")
        if max(bottom, area.bottom or 0) > self.rows or max(right, area.right or 0) > self.columns:
            raise self._beyond(area)
        return rows

    def set(self, row: int, column: int, value: Cell) -> None:
        """Write one cell."""
        while len(self.cells) < row:
            self.cells.append([])
        line = self.cells[row - 1]
        line.extend([None] * (column - len(line)))
        line[column - 1] = value

    def properties(self, index: int) -> dict[str, Any]:
        """The properties in spreadsheets.get."""
        grid = {"rowCount": self.rows, "columnCount": self.columns}
        found = {"sheetId": self.id, "title": self.title, "index": index, "sheetType": "GRID"}
        return {"properties": {**found, "gridProperties": grid}}

    def _beyond(self, area: a1.Range) -> SheetsError:
        words = f"exceeds grid limits. Max rows: {self.rows}, max columns: {self.columns}"
        return SheetsError(400, f"Range ({area}) {words}")


@dataclass(slots=True)
class Spreadsheet:
    """A spreadsheet with its readers and writers (None for everyone)."""

    id: str
    title: str
    sheets: list[Sheet]
    readers: set[str] | None = None
    writers: set[str] | None = None

    @classmethod
    def of(cls, id: str, title: str, sheets: Mapping[str, Iterable[Sequence[Cell]]]) -> Spreadsheet:
        """A spreadsheet with these rows, in a grid at least as large as a new sheet's."""
        made: list[Sheet] = []
        for number, (name, rows) in enumerate(sheets.items()):
            cells = [list(row) for row in rows]
            width = max((len(row) for row in cells), default=0)
            made.append(Sheet(number, name, cells, max(1000, len(cells)), max(26, width)))
        if not made or sum(sheet.rows * sheet.columns for sheet in made) > _MOST_CELLS:
            raise Invalid(f"a spreadsheet must have at least one sheet and at most {_MOST_CELLS:,} cells")
        return cls(id, title, made)

    def find(self, area: a1.Range) -> Sheet:
        """The sheet of a range. Default: the first."""
        for sheet in self.sheets:
            if area.sheet is None or sheet.title.lower() == area.sheet.lower():
                return sheet
        raise SheetsError(400, f"Unable to parse range: {area}")

    def may(self, user: str, verb: str) -> bool:
        """Whether a user may read or write the spreadsheet."""
        if verb == "write":
            return self.writers is None or user in self.writers
        return self.readers is None or user in self.readers | (self.writers or set())


def parsed(text: str) -> a1.Range:
    """Parse a range of a request."""
    try:
        return a1.parse(text)
    except Invalid:
        raise SheetsError(400, f"Unable to parse range: {text}") from None


def imported(lines: Iterable[str]) -> list[list[Cell]]:
    """Import CSV rows as Google does, with numbers detected."""
    return [[_value(text) for text in row] for row in csv.reader(lines)]


def formatted(cell: Cell) -> str:
    """The displayed text of a cell."""
    return str(cell).upper() if isinstance(cell, bool) else str(cell)


def _value(text: str) -> Cell:
    if re.fullmatch(r"-?(?:0|[1-9]\d{0,14})", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,15}\.\d{1,15}", text) else text


def _are_lists(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(row, list) for row in cast("list[Any]", values))
