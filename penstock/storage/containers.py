"""What an Office file is: its ZIP or OLE directory says so, which its first bytes do not.

DOCX, PPTX and XLSX are ZIP archives that begin alike; DOC, PPT and XLS are OLE files that begin alike. Only
the directory is read, in few and bounded reads, and nothing is unpacked. Rejects a damaged directory, macros
in a type without macros, and archives that would unpack to far more than they hold (bombs).
"""

from __future__ import annotations

import asyncio
import io
import re
import zipfile
from collections.abc import Awaitable, Callable

from penstock.errors import Invalid

Read = Callable[[int, int], Awaitable[bytes]]
"""Reads the bytes of a file from the first position up to, not including, the second."""

_OFFICE = "application/vnd.openxmlformats-officedocument."
DOCX = _OFFICE + "wordprocessingml.document"
PPTX = _OFFICE + "presentationml.presentation"
XLSX = _OFFICE + "spreadsheetml.sheet"
DOC, PPT, XLS = "application/msword", "application/vnd.ms-powerpoint", "application/vnd.ms-excel"
# The main part of each type. Word on the web numbers it.
_MAIN_PARTS = {
    DOCX: re.compile(r"word/document\d*\.xml"),
    PPTX: re.compile(r"ppt/presentation\d*\.xml"),
    XLSX: re.compile(r"xl/workbook\d*\.xml"),
}
_MAIN_STREAMS = {"WordDocument": DOC, "PowerPoint Document": PPT, "Workbook": XLS, "Book": XLS}
_ZIP_TYPES, _OLE_TYPES = frozenset(_MAIN_PARTS), frozenset(_MAIN_STREAMS.values())

_TAIL_BYTES = 2 << 20
"""The end of an archive that is read. A directory of 10,000 entries needs less."""
_MAX_ENTRIES = 10_000
_MAX_UNPACKED = 2 << 30
# Slides with much text pack to a hundredth; a bomb packs to a thousandth.
_MAX_RATIO = 250
_RATIO_FROM = 64 << 20
_LOCAL_HEADER = 30
_ENCRYPTED = 0x1

_END_OF_CHAIN = 0xFFFFFFFA
"""This sector number and all above it are not sectors."""
_HEADER_FAT_SECTORS = 109
_ENTRY = 128
_MAX_DIRECTORY_SECTORS = 64
_MAX_CHAIN = 256


async def check(content_type: str, size: int, read: Read) -> None:
    """Raise Invalid if the type is one of Office and the file's directory is not of that type."""
    if content_type in _ZIP_TYPES:
        tail = await read(max(0, size - _TAIL_BYTES), size)
        found = await asyncio.to_thread(_zip_types, tail, size)
    elif content_type in _OLE_TYPES:
        found = await _ole_types(size, read)
    else:
        return
    if found != {content_type}:
        raise _wrong(content_type, " and ".join(sorted(found)) or "no Office document")


def _wrong(declared: str, found: str) -> Invalid:
    return Invalid(
        f"the file is not {declared} but {found}",
        code="wrong_type",
        hint="Declare its actual content type, or application/octet-stream.",
        details={"content_type": declared, "detected": found},
    )


def _damaged(why: str) -> Invalid:
    return Invalid(f"the file is damaged: {why}", code="wrong_type", hint="Save it again, and upload that.")


def _unsafe(why: str) -> Invalid:
    return Invalid(f"the file is unsafe to unpack: {why}", code="unsafe_file")


# ZIP


class _Tail(io.RawIOBase):
    """A file of which only the end is there."""

    def __init__(self, tail: bytes, size: int) -> None:
        self._tail, self._start, self._size, self._at = tail, size - len(tail), size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        if self._at < self._start:
            raise _unsafe(f"its directory is larger than {_TAIL_BYTES >> 20} MB")
        first = self._at - self._start
        found = self._tail[first:] if size < 0 else self._tail[first : first + size]
        self._at += len(found)
        return found


def _zip_types(tail: bytes, size: int) -> set[str]:
    try:
        # Reads the directory only.
        with zipfile.ZipFile(_Tail(tail, size)) as archive:  # pyright: ignore[reportArgumentType]
            entries = archive.infolist()
    except Invalid:
        raise
    except Exception as error:
        # zipfile raises several types for bytes that it cannot read.
        raise _damaged("its ZIP directory cannot be read") from error
    _check_entries(entries, size)
    names = [entry.filename for entry in entries]
    if any(name.lower().endswith("vbaproject.bin") for name in names):
        raise _unsafe("it contains macros")
    if "[Content_Types].xml" not in names:
        return set()
    return {kind for kind, part in _MAIN_PARTS.items() if any(part.fullmatch(name) for name in names)}


def _check_entries(entries: list[zipfile.ZipInfo], size: int) -> None:
    if len(entries) > _MAX_ENTRIES:
        raise _unsafe(f"it has {len(entries):,} entries; the limit is {_MAX_ENTRIES:,}")
    names = {entry.filename for entry in entries}
    if len(names) < len(entries):
        raise _damaged("two of its entries have the same name")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > _MAX_UNPACKED or (unpacked > _RATIO_FROM and unpacked > _MAX_RATIO * size):
        raise _unsafe(f"it would unpack to {unpacked:,} bytes")
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        # An archive whose first entry is not at the beginning hides another file before it.
        if end == 0 and entry.header_offset != 0:
            raise _damaged("another file is before its first entry")
        if entry.header_offset < end:
            raise _unsafe("its entries overlap")
        if entry.flag_bits & _ENCRYPTED:
            raise _damaged("it is encrypted")
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
    if end > size:
        raise _damaged("an entry lies outside the file")


# OLE (compound files, MS-CFB)


async def _ole_types(size: int, read: Read) -> set[str]:
    header = await read(0, min(size, 512))
    if len(header) < 512:
        raise _damaged("it is too short")
    shift = int.from_bytes(header[30:32], "little")
    if shift not in (9, 12):
        raise _damaged("its OLE header is invalid")
    file = _Sectors(header, 1 << shift, size, read)
    directory = await file.directory()
    return {_MAIN_STREAMS[name] for name in _root_streams(directory) if name in _MAIN_STREAMS}


class _Sectors:
    """The sectors of an OLE file, and the table (FAT) that says which sector follows which."""

    def __init__(self, header: bytes, bytes_each: int, size: int, read: Read) -> None:
        self._header, self._bytes, self._size, self._read = header, bytes_each, size, read
        self._known: dict[int, bytes] = {}

    async def directory(self) -> bytes:
        found, seen = b"", set[int]()
        number = _number(self._header, 48)
        while number < _END_OF_CHAIN:
            if number in seen or len(seen) == _MAX_DIRECTORY_SECTORS:
                raise _damaged("its OLE directory is a cycle or too long")
            seen.add(number)
            found += await self._sector(number)
            number = await self._next(number)
        return found

    async def _sector(self, number: int) -> bytes:
        if number not in self._known:
            start = (number + 1) * self._bytes
            if start >= self._size:
                raise _damaged("an OLE sector lies outside the file")
            found = await self._read(start, min(self._size, start + self._bytes))
            self._known[number] = found.ljust(self._bytes, b"\0")
        return self._known[number]

    async def _next(self, number: int) -> int:
        index, place = divmod(number, self._bytes // 4)
        return _number(await self._sector(await self._fat_sector(index)), place * 4)

    async def _fat_sector(self, index: int) -> int:
        """The sector with this part of the table: the header lists the first, a chain of sectors the rest."""
        if index < _HEADER_FAT_SECTORS:
            return _number(self._header, 76 + index * 4)
        steps, place = divmod(index - _HEADER_FAT_SECTORS, self._bytes // 4 - 1)
        if steps > _MAX_CHAIN:
            raise _damaged("its OLE table is too long")
        number = _number(self._header, 68)
        for _ in range(steps):
            number = _number(await self._sector(number), self._bytes - 4)
        return _number(await self._sector(number), place * 4)


def _root_streams(directory: bytes) -> set[str]:
    """The names directly below the root. An embedded document is further below."""
    entries = [directory[at : at + _ENTRY] for at in range(0, len(directory) - _ENTRY + 1, _ENTRY)]
    if not entries or entries[0][66] != 5:
        raise _damaged("its OLE directory has no root")
    found, seen = set[str](), set[int]()
    waiting = [_number(entries[0], 76)]
    while waiting:
        index = waiting.pop()
        if index >= len(entries) or index in seen:
            continue
        seen.add(index)
        entry = entries[index]
        length = min(64, int.from_bytes(entry[64:66], "little"))
        if entry[66] == 2:
            found.add(entry[: max(0, length - 2)].decode("utf-16-le", "replace"))
        waiting += [_number(entry, 68), _number(entry, 72)]
    return found


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")
