"""Writes tables as CSV, JSONL and XLSX, row by row.

Spreadsheets run text that begins with `=`, `+`, `-` or `@` as a formula (CSV injection). In CSV, such text
gets a leading apostrophe unless it is a number; the reader removes it again. A spreadsheet that splits the
file at another separator (`;` in many countries) loses the quotes of every column but the first, so the rule
also holds after each separator and line break inside a cell. In XLSX, cells are marked as text instead.
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

from penstock import extras
from penstock.errors import Invalid, TooLarge

FORMATS = ("csv", "jsonl", "xlsx")
"""Formats that can be written."""

# Also after white space and invisible characters, and in full width, which some programs convert.
_FORMULA = re.compile(r"'*(?:[\t\r\n]|[\s\u200b-\u200f\u2060\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20])")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:[.,]\d+)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
# A separator or line break inside a cell with a formula behind it. The blanks before the formula include the
# apostrophe: an escaped text matches at the same places as its original, which makes the escape reversible.
_SPLITS = r"(?<=[;|\t\r\n])"
_NO_NUMBER = rf"(?!{_NUMBER.pattern}(?:[;|\t\r\n]|\Z))"
_INNER_FORMULA = r"(?=['\"\s\u200b-\u200f\u2060\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20])"
_INNER = re.compile(_SPLITS + _NO_NUMBER + _INNER_FORMULA)
_INNER_ESCAPED = re.compile(_SPLITS + "'" + _NO_NUMBER + _INNER_FORMULA)
_XLSX_ROWS = 1_048_576
_XLSX_CELL = 32_767
# Characters that XML cannot contain, and text that looks like Excel's escape for them.
_ESCAPED = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
# Characters that neither a database nor a UTF-8 file can contain.
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def safe(text: str) -> str:
    """Escape text that a spreadsheet would run as a formula. `original` reverses it."""
    escaped = _INNER.sub("'", text)
    return f"'{escaped}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else escaped


def original(text: str) -> str:
    """Reverse `safe`."""
    found = _INNER_ESCAPED.sub("", text)
    is_escaped = found.startswith("'") and _FORMULA.match(found) and not _NUMBER.fullmatch(found[1:])
    return found[1:] if is_escaped else found


def plain(value: Any) -> str | int | float | Decimal | bool | None:
    """A value for one cell. Lists and objects become JSON; lone surrogates are replaced."""
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
    """A table writer. Use it as a context manager, which completes the file on exit."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = list(columns)
        self.count = 0
        """Rows written so far."""

    @abstractmethod
    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row. Keys that are not columns are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Complete the file without closing it."""

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
        """Abort writing. The file is incomplete."""


def writer(columns: Sequence[str], format: str, out: BinaryIO | IO[bytes]) -> Writer:
    """Create a writer for the format."""
    match format:
        case "csv":
            return _Csv(columns, out)
        case "jsonl":
            return _Jsonl(columns, out)
        case "xlsx":
            return _Xlsx(columns, out)
        case _:
            raise Invalid(
                f"unknown format {format!r}", code="unknown_format", hint=f"Use one of: {', '.join(FORMATS)}."
            )


class _Csv(Writer):
    """CSV with a BOM, so that Excel detects UTF-8, and CRLF line breaks (RFC 4180)."""

    def __init__(self, columns: Sequence[str], out: IO[bytes]) -> None:
        super().__init__(columns)
        self._text = io.TextIOWrapper(
            cast("BinaryIO", _Kept(out)), encoding="utf-8-sig", newline="", write_through=False
        )
        self._csv = csv_writer(self._text, "\r\n")
        self._csv.writerow([cell(name) for name in self.columns])

    def add(self, row: Mapping[str, Any]) -> None:
        self._csv.writerow([cell(row.get(name)) for name in self.columns])
        self.count += 1

    def close(self) -> None:
        self._text.flush()


def csv_writer(out: Any, line_end: str) -> Any:
    """A CSV writer that quotes every cell, for all exports. Escape the cells with `cell`."""
    return csv.writer(out, lineterminator=line_end, quoting=csv.QUOTE_ALL)


def cell(value: Any) -> str:
    """A value as a CSV cell."""
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
    """Adapts an object with `write`, and keeps it open."""

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
    """A workbook with one sheet. Text cells are marked as text."""

    def __init__(self, columns: Sequence[str], out: IO[bytes]) -> None:
        # Imported here because openpyxl loads slowly and is rarely needed.
        with extras.required():
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
            raise TooLarge(f"XLSX is limited to {_XLSX_ROWS - 1:,} rows", hint="Use CSV or JSONL.")
        self._sheet.append([self._cell(row.get(name)) for name in self.columns])
        self.count += 1

    def _cell(self, value: Any) -> Any:
        found = plain(value)
        # Spreadsheets keep only 15 digits of a number.
        if isinstance(found, int) and not isinstance(found, bool) and abs(found) >= 10**15:
            found = str(found)
        if not isinstance(found, str):
            return found
        text = found if len(found) <= _XLSX_CELL else found[: _XLSX_CELL - 1] + "…"
        made: Any = self._new_cell(self._sheet)
        # Bypasses the setter, which creates formulas and truncates silently.
        made._value, made.data_type = _ESCAPED.sub(_escape, text), "s"
        return made

    def close(self) -> None:
        self._book.save(self._out)  # pyright: ignore[reportArgumentType]

    def discard(self) -> None:
        self._sheet.close()
        self._sheet._writer.cleanup()


def _escape(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04X}_"
