"""Bytes as lines of text. Nothing is guessed: what is not valid in the file's encoding is marked, and the row
it is in is refused."""

from __future__ import annotations

import codecs
import io
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from penstock.errors import Invalid
from penstock.sources.rows import LARGEST_ROW

HEAD_BYTES = 65_536
# So much of a file is read again: characters, and so many more for each line. Lines may be such that each
# begins a row that never ends, and to read all of them again after each would take for ever.
_MOST_AGAIN = 64 * LARGEST_ROW
_PER_LINE = 64

# Longest first: the mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Encodings for Python of Python's own, which are none of files.
_NOT_OF_FILES = {
    "idna",
    "punycode",
    "unicode-escape",
    "raw-unicode-escape",
    "undefined",
    "utf-7",
    "mbcs",
    "oem",
}
_MARKING = "penstock.mark"


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    bad = error.object[error.start : error.end]
    return "".join(chr(0xDC00 + byte) for byte in bad), error.end


codecs.register_error(_MARKING, _mark)


def encoding_of(head: bytes, given: str | None) -> str:
    """The encoding of a file that begins so: the one its mark names, or the given one, or UTF-8."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if given is not None:
        chosen = _known(given)
        if marked is None or chosen == marked:
            return chosen
        if not chosen.startswith(marked.removesuffix("-sig")):
            raise Invalid(
                f"the file begins as {marked.removesuffix('-sig').upper()} does, and not as {given}",
                code="wrong_encoding",
                details={"field": "encoding"},
            )
    if marked is None and given is None and _looks_like_utf_16(head):
        raise Invalid(
            "the file looks like UTF-16 without the mark at its beginning",
            code="unknown_encoding",
            hint='Say which one: encoding="utf-16-le" (Windows) or "utf-16-be".',
        )
    return marked or "utf-8"


def _known(given: str) -> str:
    try:
        found = codecs.lookup(given)
    except LookupError:
        found = None
    name = (found.name if found else "").replace("_", "-")
    if found is None or name in _NOT_OF_FILES or not getattr(found, "_is_text_encoding", True):
        raise Invalid(
            f"{given!r} is not an encoding",
            code="unknown_encoding",
            hint="Such as utf-8, utf-16, cp1252, latin-1.",
        )
    return name


def _looks_like_utf_16(head: bytes) -> bool:
    some = head[:2000]
    return max(some[0::2].count(0), some[1::2].count(0)) > len(some) / 5


@contextmanager
def reading(file: BinaryIO, encoding: str) -> Generator[io.TextIOWrapper]:
    """The file as text, from the beginning; line breaks as they are."""
    file.seek(0)
    text = io.TextIOWrapper(file, encoding=encoding, errors=_MARKING, newline="")
    try:
        yield text
    finally:
        text.detach()  # or it would close the file


def head_of(file: BinaryIO, encoding: str) -> str:
    """The first lines of a file, whole ones unless the first is very long."""
    with reading(file, encoding) as text:
        found = text.read(HEAD_BYTES)
        return found if len(found) < HEAD_BYTES else found[: found.rfind("\n") + 1] or found


class TooLong(Exception):
    """A row is longer than a row may be."""


class Lines(Iterator[str]):
    """Lines one by one. Those of a row that turned out bad are given back, all but the first."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text
        self._back: list[str] = []
        self._size = self._again = 0
        self.taken: list[str] = []
        """The lines of the present row."""
        self.number = 0
        """Of the line that was given last."""

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
        """A new row begins with the next line."""
        self.taken.clear()
        self._size = 0

    def give_back(self) -> None:
        """Take back all lines of the present row but its first: rows may begin there."""
        again = self.taken[1:]
        self._back.extend(reversed(again))
        self.number -= len(again)
        self._again += sum(map(len, again)) + _PER_LINE * len(again)
        if self._again > _MOST_AGAIN:
            raise Invalid(
                f"line {self.number}: here, and in lines before, a quote is not closed",
                code="unclosed_quotes",
                hint="A cell that begins with a quote ends with one; a quote within it is written twice.",
                details={"line": self.number},
            )

    def _skip(self, line: str) -> None:
        while line and not line.endswith(("\n", "\r")):
            line = self._text.readline(LARGEST_ROW)
