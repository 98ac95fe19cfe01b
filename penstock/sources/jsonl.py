"""JSONL: a JSON object on each line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

import pydantic_core

from penstock.errors import Invalid
from penstock.sources import text
from penstock.sources.rows import LARGEST_ROW, MARKED, Problem, Row, clean
from penstock.sources.source import Source

# A NUL, or a number that may overflow.
_SUSPECT = re.compile(r"\\u0000|\d[eE]\+?\d{3}")
_MOST_SEEN = 1000
"""Limit of remembered columns, because all lines may have different keys."""


class Jsonl(Source):
    """A JSONL file. Values keep their JSON types."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        *,
        encoding: str | None,
        rename: Mapping[str, str] | None,
        is_own: bool,
    ) -> None:
        super().__init__(file, name, "jsonl", is_own)
        file.seek(0)
        self._encoding = text.encoding_of(file.read(text.HEAD_BYTES), encoding)
        self.description["encoding"] = self._encoding.removesuffix("-sig")
        self._rename = dict(rename or {})
        self.columns = []
        self._seen: set[str] = set()
        if next(iter(self), None) is None:
            raise Invalid("the file is empty", code="no_rows")

    def __iter__(self) -> Iterator[Row]:
        with text.reading(self._file, self._encoding) as opened:
            lines = text.Lines(opened)
            while True:
                lines.begin()
                try:
                    line = next(lines)
                except StopIteration:
                    return
                except text.TooLong:
                    words = f"the line is longer than {LARGEST_ROW:,} characters"
                    yield Row(lines.number, {}, Problem(lines.number, None, "too_large", words))
                    continue
                if not line.isspace():
                    yield self._row(lines.number, line)

    def _row(self, number: int, line: str) -> Row:
        if not line.isascii() and (found := MARKED.search(line)):
            byte, name = ord(found[0]) - 0xDC00, self._encoding.removesuffix("-sig").upper()
            return _bad(number, "bad_encoding", f"byte 0x{byte:02X} is not valid {name}")
        try:
            value: Any = pydantic_core.from_json(line, allow_inf_nan=False)
        except ValueError as error:
            return _bad(number, "bad_json", f"invalid JSON: {error}")
        if not isinstance(value, dict):
            return _bad(number, "not_an_object", f"expected a JSON object, got {_KINDS[type(value)]}")
        data = cast("dict[str, Any]", value)
        if self._rename:
            data = {self._rename.get(name, name): item for name, item in data.items()}
            if len(data) < len(value):  # pyright: ignore[reportUnknownArgumentType]
                return _bad(number, "duplicate_column", "renaming gives two keys the same name")
        if not data.keys() <= self._seen and len(self.columns) < _MOST_SEEN:
            self.columns.extend(clean(name) for name in data if name not in self._seen)
            self._seen.update(data)
        if _SUSPECT.search(line):
            return self._checked(number, data)
        return Row(number, data)

    def _checked(self, number: int, data: dict[str, Any]) -> Row:
        """Check a row for JSON values that cannot be stored: NUL characters and infinite numbers."""
        for name, value in data.items():
            if _has_infinity(value):
                words = "the number is too large"
                return Row(number, {}, Problem(number, clean(name), "bad_number", words))
            if {name: value} != (stored := _without_nul({name: value})):
                words = "the text contains a NUL character"
                return Row(number, stored, Problem(number, clean(name), "nul", words))
        return Row(number, data)


_KINDS: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _bad(number: int, code: str, message: str) -> Row:
    return Row(number, {}, Problem(number, None, code, message))


def _has_infinity(value: Any) -> bool:
    match value:
        case dict():
            return any(_has_infinity(item) for item in cast("dict[str, Any]", value).values())
        case list():
            return any(_has_infinity(item) for item in cast("list[Any]", value))
        case _:
            return isinstance(value, float) and math.isinf(value)


def _without_nul(value: Any) -> Any:
    match value:
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {clean(name): _without_nul(item) for name, item in items}
        case list():
            return [_without_nul(item) for item in cast("list[Any]", value)]
        case _:
            return clean(value)
