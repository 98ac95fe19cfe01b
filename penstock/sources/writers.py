"""Tables as files: CSV, JSONL and XLSX, row by row.

A spreadsheet takes a text that begins with `=`, `+`, `-` or `@` for a formula, and runs what a stranger
wrote. In CSV such a text gets an apostrophe before it, unless it is a number; our reader takes it away again.
In XLSX a cell says that it is a text, so nothing needs to be changed.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from types import TracebackType
from typing import IO, Any, BinaryIO, cast

from penstock.errors import Invalid, TooLarge

FORMATS = ("csv", "jsonl", "xlsx")
"""What can be written."""

# Also after blanks and what cannot be seen, and in full width, which some programs fold to the plain ones.
_FORMULA = re.compile(r"'*(?:[\t\r\n]|[\s\u200b-\u200f\u2060\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_XLSX_ROWS = 1_048_576
_XLSX_CELL = 32_767
# What XML cannot hold, and what would be taken for Excel's way to write it.
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
# What no database and no file in UTF-8 can hold.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def safe(text: str) -> str:
    """A text that no spreadsheet takes for a formula. `original` gives it back."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def original(text: str) -> str:
    """The text that `safe` was given."""
    return (
        text[1:]
        if text.startswith("'") and _FORMULA.match(text) and not _NUMBER.fullmatch(text[1:])
        else text
    )


def plain(value: Any) -> str | int | float | Decimal | bool | None:
    """A value as one cell can hold it. Lists and objects are JSON there; half characters are replaced."""
    if isinstance(value, str):
        return _NO_TEXT.sub("\ufffd", value)
    if value is None or isinstance(value, bool | int | Decimal):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping | list | tuple):
        return _NO_TEXT.sub("\ufffd", json.dumps(value, ensure_ascii=False, default=str))
    return str(value)


class Writer(ABC):
    """A table that is being written. Use it as a context: leaving it completes the file."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self.count = 0
        """Rows so far."""

    @abstractmethod
    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, by column. What it has besides the columns is left out."""

    @abstractmethod
    def close(self) -> None:
        """Complete the file. It is not closed itself."""

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def discard(self) -> None:  # noqa: B027 (most have nothing to do)
        """Give up: what was written so far is no whole file."""


def writer(columns: Sequence[str], format: str, out: BinaryIO | IO[bytes]) -> Writer:
    """Begin a table."""
    match format:
        case "csv":
            return _Csv(columns, out)
        case "jsonl":
            return _Jsonl(columns, out)
        case "xlsx":
            return _Xlsx(columns, out)
        case _:
            raise Invalid(
                f"{format!r} is not a format", code="unknown_format", hint=f"One of: {', '.join(FORMATS)}."
            )


class _Csv(Writer):
    """With a mark that tells Excel that it is UTF-8, and line breaks as the standard has them."""

    def __init__(self, columns: Sequence[str], out: IO[bytes]) -> None:
        super().__init__(columns)
        self._text = io.TextIOWrapper(
            cast("BinaryIO", _Kept(out)), encoding="utf-8-sig", newline="", write_through=False
        )
        self._csv = csv.writer(self._text, lineterminator="\r\n")
        self._csv.writerow([cell(name) for name in self.columns])

    def add(self, row: Mapping[str, Any]) -> None:
        self._csv.writerow([cell(row.get(name)) for name in self.columns])
        self.count += 1

    def close(self) -> None:
        self._text.flush()


def cell(value: Any) -> str:
    """A value as a cell of CSV."""
    match plain(value):
        case None:
            return ""
        case bool() as found:
            return "true" if found else "false"
        case Decimal() as found:
            return format(found, "f")
        case str() as found:
            return safe(found)
        case found:
            return repr(found)


class _Kept(io.RawIOBase):
    """A file that stays open, and need not be more than something with `write`."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._out.write(bytes(data))
        return len(data)


class _Jsonl(Writer):
    def __init__(self, columns: Sequence[str], out: IO[bytes]) -> None:
        super().__init__(columns)
        self._out = out

    def add(self, row: Mapping[str, Any]) -> None:
        found = {name: row[name] for name in self.columns if name in row}
        text = json.dumps(found, ensure_ascii=False, default=_jsonable)
        self._out.write(_NO_TEXT.sub("\ufffd", text).encode() + b"\n")
        self.count += 1

    def close(self) -> None:
        pass


def _jsonable(value: Any) -> Any:
    return format(value, "f") if isinstance(value, Decimal) else plain(value)


class _Xlsx(Writer):
    """One sheet; each text is marked as a text."""

    def __init__(self, columns: Sequence[str], out: IO[bytes]) -> None:
        # Only here: openpyxl takes as long to load as all the rest, and workers need it seldom.
        from openpyxl import Workbook
        from openpyxl.cell import WriteOnlyCell

        super().__init__(columns)
        self._out = out
        self._new_cell: Any = WriteOnlyCell
        self._book = Workbook(write_only=True)
        self._sheet: Any = self._book.create_sheet("rows")
        self._sheet.append([self._cell(name) for name in self.columns])

    def add(self, row: Mapping[str, Any]) -> None:
        if self.count + 1 == _XLSX_ROWS:
            raise TooLarge(f"XLSX holds at most {_XLSX_ROWS - 1:,} rows", hint="Write CSV or JSONL.")
        self._sheet.append([self._cell(row.get(name)) for name in self.columns])
        self.count += 1

    def _cell(self, value: Any) -> Any:
        found = plain(value)
        # A spreadsheet keeps fifteen digits of a number.
        if isinstance(found, int) and not isinstance(found, bool) and abs(found) >= 10**15:
            found = str(found)
        if not isinstance(found, str):
            return found
        text = found if len(found) <= _XLSX_CELL else found[: _XLSX_CELL - 1] + "…"
        made: Any = self._new_cell(self._sheet)
        # Not by its setter: that makes formulas, and cuts in silence.
        made._value, made.data_type = _ESCAPED.sub(_escape, text), "s"
        return made

    def close(self) -> None:
        self._book.save(self._out)  # pyright: ignore[reportArgumentType]

    def discard(self) -> None:
        self._sheet.close()
        self._sheet._writer.cleanup()


def _escape(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04X}_"
