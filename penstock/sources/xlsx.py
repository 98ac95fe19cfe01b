"""XLSX. openpyxl reads what the workbook says of itself; its rows are read here, for two reasons: memory that
does not grow with the sheet, and a problem of its own for each cell that has no value.

The file may be hostile. No part of it is larger than it says or than is sane, none declares entities, no row
is longer than rows are, and there are not more of them than a sheet has.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (openpyxl is not typed)

from __future__ import annotations

import math
import os
import re
import tempfile
import warnings
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from typing import IO, Any, BinaryIO, cast
from xml.etree.ElementTree import Element, ParseError, iterparse
from xml.parsers import expat
from zipfile import BadZipFile, ZipFile

import pydantic_core
from openpyxl.reader.excel import ExcelReader
from openpyxl.styles.stylesheet import apply_stylesheet
from openpyxl.utils.datetime import from_excel
from openpyxl.xml.constants import SHARED_STRINGS, SHEET_MAIN_NS

from penstock.errors import Invalid
from penstock.sources.rows import MOST_COLUMNS, Header, Problem, Row, clean
from penstock.sources.source import Source

_MOST_PARTS = 10_000
_MOST_ROWS = 1 << 20
"""As many as a spreadsheet has."""
# The sheet and the texts that its cells share: all that is read of a file, but for small parts. A full sheet
# of ten columns has some 400 MiB.
_MOST_UNPACKED = 512 << 20
_MOST_TEXTS = 1 << 24
# What is read as a whole, and what is between two rows or two texts.
_LARGEST_READ = 16 << 20
_MOST_ELEMENTS = 16 * MOST_COLUMNS
_PROLOGUE = 1 << 16
# A sheet is some thirty times as large as its archive; the densest that deflate can make is a thousand times.
_MOST_DENSE = 250

_C, _DATA, _F, _IS, _R, _ROW, _SI, _T, _V = (
    f"{{{SHEET_MAIN_NS}}}{tag}" for tag in ("c", "sheetData", "f", "is", "r", "row", "si", "t", "v")
)
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_DIGITS = "0123456789"
_CACHED_BYTES, _MOST_CACHED = 200, 50_000


@dataclass(frozen=True, slots=True)
class _Bad:
    """In place of a value that cannot be read."""

    code: str
    message: str


class Xlsx(Source):
    """One sheet of a workbook."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        *,
        sheet: str | None,
        header: bool,
        rename: Mapping[str, str] | None,
        is_own: bool,
    ) -> None:
        super().__init__(file, name, "xlsx", is_own)
        try:
            with warnings.catch_warnings(action="ignore"):
                self._open(file, sheet)
        except Invalid:
            raise
        except Exception as error:
            # Whatever a broken or hostile file makes of the library.
            raise _broken(error) from error
        self.description |= {"sheet": self._sheet, "header": header}
        self._has_header = header
        try:
            self._header = self._first(rename)
        except BaseException:
            self._strings.close()
            raise
        self.columns = self._header.columns

    def _open(self, file: BinaryIO, sheet: str | None) -> None:
        self._archive = _Archive(file)
        book = _Book(self._archive)
        found = book.sheets()
        if not found:
            raise Invalid("there is no sheet in the workbook", code="unknown_sheet")
        self._sheet = sheet if sheet is not None else next(iter(found))
        if self._sheet not in found:
            raise Invalid(
                f"there is no sheet {sheet!r}", code="unknown_sheet", hint=f"There are: {', '.join(found)}."
            )
        self._path = found[self._sheet]
        texts = book.strings()
        if self._archive.size(self._path, texts) > _MOST_UNPACKED:
            raise _unsafe(f"more than {_MOST_UNPACKED >> 20} MiB when it is unpacked", "Save it as CSV.")
        known: Any = book.wb
        self._epoch: datetime = known.epoch
        self._dates: set[int] = set(known._date_formats)
        self._durations: set[int] = set(known._timedelta_formats)
        self._strings = _Strings(self._archive, texts)

    def _first(self, rename: Mapping[str, str] | None) -> Header:
        first = next(self._filled(), None)
        if first is None:
            raise Invalid(f"there is nothing in the sheet {self._sheet!r}", code="no_rows")
        number, cells = first
        width = max(cells) + 1
        if not self._has_header:
            return Header.without_names(width, rename)
        for cell in cells.values():
            if isinstance(cell, _Bad):
                raise Invalid(f"line {number}: {cell.message}", code="bad_header", details={"line": number})
        return Header([cells.get(place) for place in range(width)], rename)

    def close(self) -> None:
        self._strings.close()
        super().close()

    def __iter__(self) -> Iterator[Row]:
        rows = self._filled()
        if self._has_header:
            next(rows)
        header, columns = self._header, self.columns
        width = len(columns)
        for number, cells in rows:
            problem = None
            for place, cell in cells.items():
                if isinstance(cell, _Bad):
                    problem = Problem(number, header.name_of(place), cell.code, cell.message)
                    break
                if place >= width and cell is not None and problem is None:
                    problem = header.beyond(number, place, cell)
            if problem is not None:
                cells = {
                    place: clean(cell)
                    for place, cell in cells.items()
                    if place < width and not isinstance(cell, _Bad)
                }
            data = {columns[place]: cell for place, cell in cells.items() if cell is not None}
            yield Row(number, data, problem)

    def _filled(self) -> Iterator[tuple[int, dict[int, Any]]]:
        """Number and cells of the rows that are not empty, with the header."""
        try:
            for number, cells in self._rows():
                values = cells.values()
                if any(cell is not None and (not isinstance(cell, str) or cell.strip()) for cell in values):
                    yield number, cells
        except (ParseError, expat.ExpatError, BadZipFile, EOFError, ValueError, zlib.error) as error:
            raise _broken(error) from error

    def _rows(self) -> Iterator[tuple[int, dict[int, Any]]]:
        data: Element | None = None
        number = 0
        with self._archive.part(self._path) as stream:
            for event, element in iterparse(stream, ("start", "end")):  # noqa: S314 (without a DTD)
                if event == "start":
                    stream.keep()
                    if data is None and element.tag == _DATA:
                        data = element
                elif element.tag == _ROW:
                    before, number = number, int(element.get("r") or number + 1)
                    if number <= before:
                        raise ValueError(f"row {number} comes after row {before}")
                    if number > _MOST_ROWS:
                        # Also of empty ones: they would be read for hours, and nothing would come of it.
                        raise Invalid(f"a sheet has at most {_MOST_ROWS:,} rows", code="too_many_rows")
                    yield number, self._cells(element)
                    stream.forget()
                    if data is not None:
                        data.clear()
                elif element.tag == _DATA:
                    return

    def _cells(self, row: Element) -> dict[int, Any]:
        """The cells by their places. The only one of a row may be far to the right."""
        cells: dict[int, Any] = {}
        free = 0
        for element in row:
            if element.tag != _C:
                continue
            reference = element.get("r")
            place = _place(reference.rstrip(_DIGITS)) if reference else free
            if not free <= place < MOST_COLUMNS:
                raise ValueError(f"the cell {str(reference)[:20]!r} is out of place")
            free = place + 1
            cells[place] = self._value(element)
        return cells

    def _value(self, cell: Element) -> Any:
        kind = cell.get("t", "n")
        if kind == "inlineStr":
            inline = cell.find(_IS)
            return _checked("" if inline is None else _unescaped(_text(inline)))
        text = cell.findtext(_V)
        if not text:
            if cell.find(_F) is not None and kind != "str":
                return _Bad("no_value", "the formula has no value: open and save the file in a spreadsheet")
            return None
        match kind:
            case "s":
                return _checked(self._strings[int(text)])
            case "str":
                return _checked(_unescaped(text))
            case "b":
                return text.strip() in ("1", "true")
            case "e":
                return _Bad("cell_error", f"the cell holds the error {text[:20]}")
            case "d":
                return text
            case _:
                return self._number(text, int(cell.get("s") or 0))

    def _number(self, text: str, style: int) -> Any:
        try:
            value = int(text) if text.lstrip("-").isdigit() else float(text)
            is_number = math.isfinite(value)
        except (ValueError, OverflowError):
            value, is_number = math.inf, False
        if not is_number:
            return _Bad("bad_number", f"{text[:20]!r} is not a number")
        if style not in self._dates:
            return value
        try:
            return _iso(from_excel(value, self._epoch, timedelta=style in self._durations))
        except (OverflowError, ValueError, TypeError):
            return _Bad("bad_date", f"there is no day with the number {text[:20]}")


class _Book(ExcelReader):
    """What a workbook says of itself, and nothing of what is in it."""

    def __init__(self, archive: _Archive) -> None:
        self.archive = archive
        self.valid_files = archive.namelist()
        self.read_only, self.keep_vba, self.data_only = True, False, True
        self.keep_links = self.rich_text = False
        self.read_manifest()
        self.read_workbook()
        apply_stylesheet(archive, self.wb)

    def sheets(self) -> dict[str, str]:
        """The path of each sheet of cells, by its name."""
        return {
            str(sheet.name): str(rel.target)
            for sheet, rel in self.parser.find_sheets()
            if rel.Type.endswith("/worksheet") and rel.target in self.valid_files
        }

    def strings(self) -> str | None:
        """The path of the texts that cells share."""
        part: Any = self.package.find(SHARED_STRINGS)
        return part.PartName[1:] if part is not None and part.PartName[1:] in self.valid_files else None


class _Archive(ZipFile):
    """A ZIP of which each part is checked before it is read. (A part is never longer than it says.)"""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        if len(self.infolist()) > _MOST_PARTS:
            raise _unsafe(f"more than {_MOST_PARTS:,} parts")
        for info in self.infolist():
            is_dense = info.file_size > _LARGEST_READ and info.file_size > _MOST_DENSE * info.compress_size
            if is_dense:
                raise _unsafe("a part that is small only as long as it is packed")

    def size(self, *names: str | None) -> int:
        """Bytes of some parts when they are unpacked."""
        return sum(self.getinfo(name).file_size for name in names if name is not None)

    def read(self, name: Any, pwd: bytes | None = None) -> bytes:
        """A small part, as a whole."""
        if self.getinfo(name).file_size > _LARGEST_READ:
            raise _unsafe("a part that is larger than such parts are")
        self._check(name)
        return super().read(name, pwd)

    def part(self, name: str) -> _Part:
        """A large part, as a stream."""
        self._check(name)
        return _Part(self.open(name))

    def _check(self, name: Any) -> None:
        """Refuse a document type: it comes before the first element, and nothing here needs one."""
        parser = expat.ParserCreate()
        is_begun = False

        def begin(*_: Any) -> None:
            nonlocal is_begun
            is_begun = True

        def refuse(*_: Any) -> None:
            raise _unsafe("a document type, which may declare anything")

        parser.StartElementHandler, parser.StartDoctypeDeclHandler = begin, refuse
        with self.open(name) as stream:
            for _ in range(_PROLOGUE // 1024):
                block = stream.read(1024)
                parser.Parse(block, not block)
                if is_begun or not block:
                    return
        raise _unsafe("a long beginning without an element")


class _Part:
    """A part as a stream, whose reader says what it keeps. It ends before that is too much."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._bytes = self._elements = 0

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self._bytes += len(block)
        if self._bytes > _LARGEST_READ:
            raise _unsafe("a row that is longer than rows are")
        return block

    def keep(self) -> None:
        """Of what was read, one more element is kept: twenty times as large as the four bytes it may have."""
        self._elements += 1
        if self._elements > _MOST_ELEMENTS:
            raise _unsafe("a row with more in it than rows have")

    def forget(self) -> None:
        """Nothing is kept of what was read."""
        self._bytes = self._elements = 0

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


class _Strings:
    """The texts that cells share, kept on disk: there may be a million."""

    def __init__(self, archive: _Archive, path: str | None) -> None:
        self._file: IO[bytes] | None = None
        self._ends = array("I", [0])
        self._cache: dict[int, str] = {}
        if path is not None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
            try:
                self._load(archive, path, self._file)
            except BaseException:
                self.close()
                raise

    def _load(self, archive: _Archive, path: str, file: IO[bytes]) -> None:
        end = 0
        root: Any = None
        with archive.part(path) as stream:
            for event, element in iterparse(stream, ("start", "end")):  # noqa: S314 (without a DTD)
                root = element if root is None else root
                if event == "start":
                    stream.keep()
                elif element.tag == _SI:
                    data = _unescaped(_text(element)).encode("utf-8", "surrogatepass")
                    end += file.write(data)
                    self._ends.append(end)
                    if len(self._ends) > _MOST_TEXTS:
                        raise _unsafe("more texts than sheets have")
                    root.clear()
                    stream.forget()
        file.flush()

    def __getitem__(self, index: int) -> str:
        found = self._cache.get(index)
        if found is None:
            if self._file is None or not 0 <= index < len(self._ends) - 1:
                raise ValueError(f"there is no shared text {index}")
            start, end = self._ends[index], self._ends[index + 1]
            found = os.pread(self._file.fileno(), end - start, start).decode("utf-8", "surrogatepass")
            if end - start <= _CACHED_BYTES and len(self._cache) < _MOST_CACHED:
                self._cache[index] = found
        return found

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@lru_cache(maxsize=MOST_COLUMNS)
def _place(letters: str) -> int:
    place = 0
    for letter in letters[:4]:
        if not "A" <= letter <= "Z":
            raise ValueError(f"{letters[:20]!r} is not a column")
        place = place * 26 + ord(letter) - 64
    return place - 1


def _text(element: Element) -> str:
    """The text of a cell, plain or in runs. (What says how to pronounce it is no part of it.)"""
    runs = [element, *element.iterfind(_R)]
    return "".join(text.text or "" for run in runs for text in run.iterfind(_T))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _checked(text: str) -> Any:
    if "\0" in text or not _is_whole(text):
        return _Bad("nul", "the cell holds a NUL or half a character, which is no text")
    return text or None


def _is_whole(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _iso(value: datetime | time | timedelta) -> str:
    if isinstance(value, timedelta):
        return cast("str", pydantic_core.to_jsonable_python(value))
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    return value.isoformat()


def _unsafe(what: str, hint: str | None = None) -> Invalid:
    return Invalid(f"the file is not read: it has {what}", code="unsafe_file", hint=hint)


def _broken(error: Exception) -> Invalid:
    return Invalid(
        f"the file is not a whole XLSX file ({type(error).__name__}: {str(error)[:200]})", code="broken_file"
    )
