"""Decodes bytes to lines of text. Bytes that are invalid in the file's encoding are marked, which makes their
row invalid."""

from __future__ import annotations

import codecs
import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from penstock.errors import Invalid
from penstock.sources.rows import LARGEST_ROW

HEAD_BYTES = 65_536
# Limits of re-reading, in characters and per line. Without them, a file in which every line has an unclosed
# quote would be read again from each line.
_MAX_REREAD = 64 * LARGEST_ROW
_PER_LINE = 64

# Longest first, because the BOM of UTF-32 begins with that of UTF-16.
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Python codecs that are not file encodings.
_NOT_FILE_ENCODINGS = {
    "idna",
    "punycode",
    "unicode-escape",
    "raw-unicode-escape",
    "undefined",
    "utf-7",
    "mbcs",
    "oem",
}
_MARK_ERRORS = "penstock.mark"


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    bad = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in bad), error.end


codecs.register_error(_MARK_ERRORS, _mark)


def encoding_of(head: bytes, given: str | None) -> str:
    """The encoding of a file: from its BOM, otherwise the given one, otherwise UTF-8."""
    marked = next((name for mark, name in _BOMS.items() if head.startswith(mark)), None)
    if given is not None:
        chosen = _known(given)
        if marked is None or chosen == marked:
            return chosen
        if not chosen.startswith(marked.removesuffix("-sig")):
            raise Invalid(
                f"the file has a BOM of {marked.removesuffix('-sig').upper()}, but encoding is {given}",
                code="wrong_encoding",
                details={"field": "encoding"},
            )
    if marked is None and given is None and _looks_like_utf_16(head):
        raise Invalid(
            "the file looks like UTF-16 without a BOM",
            code="unknown_encoding",
            hint='Set encoding to "utf-16-le" (Windows) or "utf-16-be".',
        )
    return marked or "utf-8"


def _known(given: str) -> str:
    try:
        found = codecs.lookup(given)
    except LookupError:
        found = None
    name = (found.name if found else "").replace("_", "-")
    if found is None or name in _NOT_FILE_ENCODINGS or not getattr(found, "_is_text_encoding", True):
        raise Invalid(
            f"unknown encoding {given!r}",
            code="unknown_encoding",
            hint="Use an encoding such as utf-8, utf-16, cp1252 or latin-1.",
        )
    return name


def _looks_like_utf_16(head: bytes) -> bool:
    some = head[:2000]
    return max(some[0::2].count(0), some[1::2].count(0)) > len(some) / 5


@contextmanager
def reading(file: BinaryIO, encoding: str) -> Generator[io.TextIOWrapper]:
    """Open the file as text from its beginning, with unchanged line breaks."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding=encoding, errors=_MARK_ERRORS, newline="")
    try:
        yield text
    finally:
        text.detach()  # otherwise it would close the file


def head_of(file: BinaryIO, encoding: str) -> str:
    """The first complete lines of a file, or a part of the first line if it is very long."""
    with reading(file, encoding) as text:
        found = text.read(HEAD_BYTES)
        return found if len(found) < HEAD_BYTES else found[: found.rfind("\n") + 1] or found


class TooLong(Exception):
    """A row is longer than LARGEST_ROW."""


class Lines(Iterator[str]):
    """Reads lines one by one. The lines of a malformed row, except the first, can be read again."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._back: list[str] = []
        self._size = self._again = 0
        self.taken: list[str] = []
        """The lines of the current row."""
        self.number = 0
        """Number of the last line."""

    def __next__(self) -> str:
        line = self._back.pop() if self._back else self._text.readline(LARGEST_ROW + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.taken.append(line)
        self._size += len(line)
        if self._size > LARGEST_ROW:
            if len(line) > LARGEST_ROW:
                self._skip(line)
            raise TooLong
        return line

    def begin(self) -> None:
        """Begin a new row with the next line."""
        self.taken.clear()
        self._size = 0

    def give_back(self) -> None:
        """Return all lines of the current row except the first, because other rows may begin there."""
        again = self.taken[1:]
        self._back.extend(reversed(again))
        self.number -= len(again)
        self._again += sum(map(len, again)) + _PER_LINE * len(again)
        if self._again > _MAX_REREAD:
            raise Invalid(
                f"unclosed quotes up to line {self.number}",
                code="unclosed_quotes",
                hint="Close every quoted cell, and double quotes within a cell.",
                details={"line": self.number},
            )

    def _skip(self, line: str) -> None:
        while line and not line.endswith(("\n", "\r")):
            line = self._text.readline(LARGEST_ROW)
