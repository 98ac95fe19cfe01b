"""Reads XLSX. openpyxl reads the workbook's metadata; this module reads the rows, which keeps memory bounded
and reports a problem for each cell without a value.

Files are untrusted: this module limits the sizes of parts, rows and sheets, and rejects document types, which
could declare entities.
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
"""The limit of spreadsheets."""
# Unpacked size of the sheet and its shared strings. A full sheet of ten columns has about 400 MiB.
_MOST_UNPACKED = 512 << 20
_MOST_TEXTS = 1 << 24
# Limit of parts that are read at once, and of one row or shared string.
_LARGEST_READ = 16 << 20
_MOST_ELEMENTS = 16 * MOST_COLUMNS
_PROLOGUE = 1 << 16
# Compression ratio. Sheets have about 30, deflate's maximum is about 1000.
_MOST_DENSE = 250

_C, _DATA, _F, _IS, _R, _ROW, _SI, _T, _V = (
    f"{{{SHEET_MAIN_NS}}}{tag}" for tag in ("c", "sheetData", "f", "is", "r", "row", "si", "t", "v")
)
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_DIGITS = "0123456789"
_CACHED_BYTES, _MOST_CACHED = 200, 50_000


@dataclass(frozen=True, slots=True)
class _Bad:
    """Stands for a value that cannot be read."""

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
            # A broken or hostile file can raise anything in openpyxl.
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
            raise Invalid("the workbook has no sheets", code="unknown_sheet")
        self._sheet = sheet if sheet is not None else next(iter(found))
        if self._sheet not in found:
            raise Invalid(
                f"unknown sheet {sheet!r}", code="unknown_sheet", hint=f"Sheets: {', '.join(found)}."
            )
        self._path = found[self._sheet]
        texts = book.strings()
        if self._archive.size(self._path, texts) > _MOST_UNPACKED:
            raise _unsafe(f"it is larger than {_MOST_UNPACKED >> 20} MiB when unpacked", "Save it as CSV.")
        known: Any = book.wb
        self._epoch: datetime = known.epoch
        self._dates: set[int] = set(known._date_formats)
        self._durations: set[int] = set(known._timedelta_formats)
        self._strings = _Strings(self._archive, texts)

    def _first(self, rename: Mapping[str, str] | None) -> Header:
        first = next(self._filled(), None)
        if first is None:
            raise Invalid(f"sheet {self._sheet!r} is empty", code="no_rows")
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
        """Yield number and cells of rows that are not empty, with the header."""
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
                        # Also limits empty rows, which could take hours to read.
                        raise Invalid(f"the sheet has more than {_MOST_ROWS:,} rows", code="too_many_rows")
                    yield number, self._cells(element)
                    stream.forget()
                    if data is not None:
                        data.clear()
                elif element.tag == _DATA:
                    return

    def _cells(self, row: Element) -> dict[int, Any]:
        """The cells of a row by column index."""
        cells: dict[int, Any] = {}
        free = 0
        for element in row:
            if element.tag != _C:
                continue
            reference = element.get("r")
            place = _place(reference.rstrip(_DIGITS)) if reference else free
            if not free <= place < MOST_COLUMNS:
                raise ValueError(f"cell {str(reference)[:20]!r} is out of order")
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
                return _Bad(
                    "no_value", "the formula has no cached value: open and save the file in a spreadsheet"
                )
            return None
        match kind:
            case "s":
                return _checked(self._strings[int(text)])
            case "str":
                return _checked(_unescaped(text))
            case "b":
                return text.strip() in ("1", "true")
            case "e":
                return _Bad("cell_error", f"the cell contains the error {text[:20]}")
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
            return _Bad("bad_date", f"invalid date number {text[:20]}")


class _Book(ExcelReader):
    """Reads the metadata of a workbook without its cells."""

    def __init__(self, archive: _Archive) -> None:
        self.archive = archive
        self.valid_files = archive.namelist()
        self.read_only, self.keep_vba, self.data_only = True, False, True
        self.keep_links = self.rich_text = False
        self.read_manifest()
        self.read_workbook()
        apply_stylesheet(archive, self.wb)

    def sheets(self) -> dict[str, str]:
        """Paths of worksheets by name."""
        return {
            str(sheet.name): str(rel.target)
            for sheet, rel in self.parser.find_sheets()
            if rel.Type.endswith("/worksheet") and rel.target in self.valid_files
        }

    def strings(self) -> str | None:
        """The path of the shared strings."""
        part: Any = self.package.find(SHARED_STRINGS)
        return part.PartName[1:] if part is not None and part.PartName[1:] in self.valid_files else None


class _Archive(ZipFile):
    """A ZIP file that checks each part before reading it. (zipfile enforces the declared sizes.)"""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        if len(self.infolist()) > _MOST_PARTS:
            raise _unsafe(f"it has more than {_MOST_PARTS:,} parts")
        for info in self.infolist():
            is_dense = info.file_size > _LARGEST_READ and info.file_size > _MOST_DENSE * info.compress_size
            if is_dense:
                raise _unsafe("a part has an extreme compression ratio")

    def size(self, *names: str | None) -> int:
        """Unpacked bytes of the parts."""
        return sum(self.getinfo(name).file_size for name in names if name is not None)

    def read(self, name: Any, pwd: bytes | None = None) -> bytes:
        """Read a small part at once."""
        if self.getinfo(name).file_size > _LARGEST_READ:
            raise _unsafe(f"a part is larger than {_LARGEST_READ >> 20} MiB")
        self._check(name)
        return super().read(name, pwd)

    def part(self, name: str) -> _Part:
        """Open a large part as a stream."""
        self._check(name)
        return _Part(self.open(name))

    def _check(self, name: Any) -> None:
        """Reject a document type, which could declare entities. It must come before the first element."""
        parser = expat.ParserCreate()
        is_begun = False

        def begin(*_: Any) -> None:
            nonlocal is_begun
            is_begun = True

        def refuse(*_: Any) -> None:
            raise _unsafe("it contains a document type declaration")

        parser.StartElementHandler, parser.StartDoctypeDeclHandler = begin, refuse
        with self.open(name) as stream:
            for _ in range(_PROLOGUE // 1024):
                block = stream.read(1024)
                parser.Parse(block, not block)
                if is_begun or not block:
                    return
        raise _unsafe("a part has no element in its first 64 KiB")


class _Part:
    """A stream of a part that limits what its reader keeps in memory."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._bytes = self._elements = 0

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self._bytes += len(block)
        if self._bytes > _LARGEST_READ:
            raise _unsafe(f"a row is larger than {_LARGEST_READ >> 20} MiB")
        return block

    def keep(self) -> None:
        """Count one more element in memory, where it is about 20 times larger than in the file."""
        self._elements += 1
        if self._elements > _MOST_ELEMENTS:
            raise _unsafe(f"a row has more than {_MOST_ELEMENTS:,} elements")

    def forget(self) -> None:
        """Reset the counts after a row."""
        self._bytes = self._elements = 0

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


class _Strings:
    """Shared strings of cells, kept on disk because there may be millions."""

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
                        raise _unsafe(f"it has more than {_MOST_TEXTS:,} shared strings")
                    root.clear()
                    stream.forget()
        file.flush()

    def __getitem__(self, index: int) -> str:
        found = self._cache.get(index)
        if found is None:
            if self._file is None or not 0 <= index < len(self._ends) - 1:
                raise ValueError(f"shared string {index} does not exist")
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
    """The text of a cell, plain or in runs, without phonetic hints."""
    runs = [element, *element.iterfind(_R)]
    return "".join(text.text or "" for run in runs for text in run.iterfind(_T))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _checked(text: str) -> Any:
    if "\0" in text or not _is_whole(text):
        return _Bad("nul", "the cell contains a NUL character or a lone surrogate")
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
    return Invalid(f"unsafe file: {what}", code="unsafe_file", hint=hint)


def _broken(error: Exception) -> Invalid:
    return Invalid(f"not a valid XLSX file ({type(error).__name__}: {str(error)[:200]})", code="broken_file")
