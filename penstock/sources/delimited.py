"""CSV and TSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import BinaryIO

from penstock.errors import Invalid
from penstock.sources import text, writers
from penstock.sources.rows import LARGEST_ROW, MARKED, Header, Problem, Row, clean
from penstock.sources.source import Source

_DELIMITERS = ",;\t|"
_SAMPLE_ROWS = 50
# Excel's `sep=;` line before the header.
_NAMED = re.compile(r'"?sep=(.)"?\r?\n')
_Record = tuple[int, list[str], str, Problem | None]


class Delimited(Source):
    """A CSV or TSV file."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        format: str,
        *,
        encoding: str | None,
        delimiter: str | None,
        header: bool,
        rename: Mapping[str, str] | None,
        is_own: bool,
    ) -> None:
        super().__init__(file, name, format, is_own)
        if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n\0 '):
            raise Invalid(
                f"delimiter must be one character, not a quote, space or line break (got {delimiter!r})",
                code="unknown_delimiter",
            )
        file.seek(0)
        self._encoding = text.encoding_of(file.read(text.HEAD_BYTES), encoding)
        head = text.head_of(file, self._encoding)
        named = _NAMED.match(head)
        self._skipped = 1 if named else 0
        self._delimiter = (
            delimiter or (named and named[1]) or ("\t" if format == "tsv" else _delimiter_of(head))
        )
        self.description |= {
            "encoding": self._encoding.removesuffix("-sig"),
            "delimiter": self._delimiter,
            "header": header,
        }
        self._has_header = header
        self._header = Header([])  # used while reading the first row
        self._header = self._first(rename)
        self.columns = self._header.columns

    def _first(self, rename: Mapping[str, str] | None) -> Header:
        first = next(self._records(), None)
        if first is None:
            raise Invalid("the file is empty", code="no_rows")
        number, cells, _, problem = first
        if problem is not None:
            raise Invalid(f"line {number}: {problem.message}", code="bad_header", details={"line": number})
        return Header(cells, rename) if self._has_header else Header.without_names(len(cells), rename)

    def __iter__(self) -> Iterator[Row]:
        records = self._records()
        if self._has_header:
            next(records)
        header, columns = self._header, self.columns
        width = len(columns)
        for number, cells, whole, problem in records:
            if problem is None and (
                len(cells) != width or "\0" in whole or (not whole.isascii() and MARKED.search(whole))
            ):
                problem = self._problem(number, cells)
            if problem is not None:
                yield Row(number, header.data([clean(cell) for cell in cells]), problem)
            else:
                if "'" in whole:
                    cells = [writers.original(cell) for cell in cells]
                # Inlined Header.data for speed.
                yield Row(number, {name: cell for name, cell in zip(columns, cells, strict=False) if cell})

    def _records(self) -> Iterator[_Record]:
        """Yield number, cells, joined text and problem of each row that is not empty, with the header."""
        with text.reading(self._file, self._encoding) as opened:
            lines = text.Lines(opened)
            reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
            for _ in range(self._skipped):
                next(lines)
            while True:
                lines.begin()
                number = lines.number + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except (csv.Error, text.TooLong) as error:
                    problem = self._unreadable(number, error, lines.taken)
                    lines.give_back()
                    yield number, [], "", problem
                    continue
                whole = "".join(cells)
                if whole and not whole.isspace():
                    yield number, cells, whole, None

    def _unreadable(self, number: int, error: Exception, taken: list[str]) -> Problem:
        if isinstance(error, text.TooLong) and len(taken) == 1:
            return Problem(number, None, "too_large", f"the line is longer than {LARGEST_ROW:,} characters")
        place, is_open = _bad_cell("".join(taken), self._delimiter)
        column = self._header.name_of(place)
        if is_open:
            return Problem(number, column, "bad_quotes", f"cell {place + 1}: unclosed quote")
        if "field larger" in str(error):
            words = f"cell {place + 1} is longer than {csv.field_size_limit():,} characters"
            return Problem(number, column, "too_large", words)
        words = f"cell {place + 1}: text after the closing quote"
        return Problem(number, column, "bad_quotes", words)

    def _problem(self, number: int, cells: list[str]) -> Problem | None:
        for place, cell in enumerate(cells):
            column = self._header.name_of(place)
            if "\0" in cell:
                return Problem(number, column, "nul", "the cell contains a NUL character")
            if found := MARKED.search(cell):
                byte = ord(found[0]) - 0xDC00
                name = self._encoding.removesuffix("-sig").upper()
                return Problem(number, column, "bad_encoding", f"byte 0x{byte:02X} is not valid {name}")
        width = len(self.columns)
        if len(cells) < width:
            words = f"{len(cells)} cells, expected {width}: check for an unquoted line break"
            return Problem(number, self._header.name_of(len(cells)), "too_few_cells", words)
        return self._header.too_many(number, cells)


def _delimiter_of(head: str) -> str:
    """Detect the delimiter that splits the first rows most evenly. Default: a comma."""
    scores: dict[str, tuple[float, int]] = {}
    for delimiter in _DELIMITERS:
        reader = csv.reader(io.StringIO(head, newline=""), delimiter=delimiter)
        try:
            widths = [len(cells) for cells in islice((cells for cells in reader if any(cells)), _SAMPLE_ROWS)]
        except csv.Error:
            continue
        if widths and widths[0] > 1:
            scores[delimiter] = (widths.count(widths[0]) / len(widths), widths[0])
    if not scores:
        return ","
    best = max(scores.values())
    found = [delimiter for delimiter, score in scores.items() if score == best]
    if len(found) > 1:
        raise Invalid(
            f"ambiguous delimiter: {' or '.join(map(repr, found))}",
            code="unknown_delimiter",
            hint="Set the delimiter.",
        )
    return found[0]


def _bad_cell(record: str, delimiter: str) -> tuple[int, bool]:
    """The index of the first cell that is too long or malformed, and whether its quote is unclosed."""
    mark, quoted = re.escape(delimiter), r'"[^"]*(?:""[^"]*)*"'
    cell = re.compile(rf'(?:{quoted}|[^"{mark}\r\n][^{mark}\r\n]*|)({mark}|$|(?=[\r\n]))')
    most = csv.field_size_limit()
    place = at = 0
    while (found := cell.match(record, at)) and found[1] and found.end() - at <= most:
        place, at = place + 1, found.end()
    return place, record.startswith('"', at) and re.compile(quoted).match(record, at) is None
