"""A1 notation of cell ranges, as in Google Sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import Invalid

_CELLS = re.compile(r"\$?([A-Za-z]{1,3})?\$?([1-9]\d{0,7})?(?::\$?([A-Za-z]{1,3})?\$?([1-9]\d{0,7})?)?")


@dataclass(frozen=True, slots=True)
class Range:
    """A rectangle of cells. Rows and columns count from 1; both ends are inclusive; None is unbounded."""

    sheet: str | None = None
    top: int | None = None
    left: int | None = None
    bottom: int | None = None
    right: int | None = None

    def __str__(self) -> str:
        first = f"{letters(self.left)}{self.top or ''}"
        last = f"{letters(self.right)}{self.bottom or ''}"
        is_cell = first == last and self.left is not None and self.top is not None
        cells = first if is_cell else f"{first}:{last}" if first or last else ""
        if self.sheet is None:
            return cells
        # Always quoted, because some names look like cells.
        name = "'" + self.sheet.replace("'", "''") + "'"
        return f"{name}!{cells}" if cells else name


def parse(text: str) -> Range:
    """Parse a range: `A1:D`, `'My ideas'!B2:C9`, `Ideas`."""
    sheet, cells = _split(text.strip())
    found = _CELLS.fullmatch(cells)
    if found is None and sheet is None:
        return Range(cells)  # a sheet name without cells
    if found is None or (not cells and sheet is None):
        raise _invalid(text)
    left, top, right, bottom = found.groups()
    numbers = [number(left), int(top) if top else None, number(right), int(bottom) if bottom else None]
    if cells and ":" not in cells:
        if not (left and top):
            if sheet is None:
                return Range(cells)
            raise _invalid(text)
        numbers[2:] = numbers[:2]
    # B9:A1 is the same as A1:B9.
    for one, other in ((0, 2), (1, 3)):
        first, last = numbers[one], numbers[other]
        if first is not None and last is not None and first > last:
            numbers[one], numbers[other] = last, first
    return Range(sheet, numbers[1], numbers[0], numbers[3], numbers[2])


def letters(column: int | None) -> str:
    """The letters of a column: 1 is A, 27 is AA."""
    found = ""
    while column:
        column, rest = divmod(column - 1, 26)
        found = chr(65 + rest) + found
    return found


def number(column: str | None) -> int | None:
    """The column number of letters: A is 1, AA is 27."""
    if not column:
        return None
    found = 0
    for letter in column.upper():
        found = found * 26 + ord(letter) - 64
    return found


def _split(text: str) -> tuple[str | None, str]:
    quoted = re.match(r"'((?:[^']|'')+)'(?:!(?=.)|$)", text)
    if quoted:
        return quoted[1].replace("''", "'"), text[quoted.end() :]
    if "'" in text or text.count("!") > 1:
        raise _invalid(text)
    sheet, mark, cells = text.rpartition("!")
    if mark and not (sheet and cells):
        raise _invalid(text)
    return sheet or None, cells


def _invalid(text: str) -> Invalid:
    return Invalid(
        f"invalid range {text[:100]!r}",
        code="invalid_range",
        hint="Use a form such as A1:D or 'My ideas'!A1:D500.",
    )
