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

# A NUL, or a number that may be too large for a number.
_SUSPECT = re.compile(r"\\u0000|\d[eE]\+?\d{3}")
_MOST_SEEN = 1000
"""Columns that are remembered: lines may all have different keys."""


class Jsonl(Source):
    """An object on each line; values as they are, nested ones too."""

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
            raise Invalid("there is nothing in the file", code="no_rows")

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
            return _bad(number, "bad_encoding", f"the byte 0x{byte:02X} is not {name}")
        try:
            value: Any = pydantic_core.from_json(line, allow_inf_nan=False)
        except ValueError as error:
            return _bad(number, "bad_json", f"this is not JSON: {error}")
        if not isinstance(value, dict):
            return _bad(number, "not_an_object", f"the line holds {_KINDS[type(value)]} and no object")
        data = cast("dict[str, Any]", value)
        if self._rename:
            data = {self._rename.get(name, name): item for name, item in data.items()}
            if len(data) < len(value):  # pyright: ignore[reportUnknownArgumentType]
                return _bad(number, "duplicate_column", "two keys would have one name")
        if not data.keys() <= self._seen and len(self.columns) < _MOST_SEEN:
            self.columns.extend(clean(name) for name in data if name not in self._seen)
            self._seen.update(data)
        if _SUSPECT.search(line):
            return self._checked(number, data)
        return Row(number, data)

    def _checked(self, number: int, data: dict[str, Any]) -> Row:
        """What is JSON, and yet nothing that can be stored: texts with NUL, numbers without an end."""
        for name, value in data.items():
            if _is_endless(value):
                words = "a number is too large"
                return Row(number, {}, Problem(number, clean(name), "bad_number", words))
            if {name: value} != (stored := _without_nul({name: value})):
                words = "a text holds a NUL, which is no text"
                return Row(number, stored, Problem(number, clean(name), "nul", words))
        return Row(number, data)


_KINDS: dict[type, str] = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _bad(number: int, code: str, message: str) -> Row:
    return Row(number, {}, Problem(number, None, code, message))


def _is_endless(value: Any) -> bool:
    match value:
        case dict():
            return any(_is_endless(item) for item in cast("dict[str, Any]", value).values())
        case list():
            return any(_is_endless(item) for item in cast("list[Any]", value))
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
