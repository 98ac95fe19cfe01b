"""Office files by their ZIP or OLE directory (R4.6/content, R4.6/mismatch), with bombs and damaged files."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest

from penstock.errors import Invalid
from penstock.storage import containers
from penstock.storage.containers import DOC, DOCX, PPT, PPTX, XLS, XLSX

MAIN = {DOCX: "word/document.xml", PPTX: "ppt/presentation.xml", XLSX: "xl/workbook.xml"}
STREAMS = {DOC: "WordDocument", PPT: "PowerPoint Document", XLS: "Workbook"}
FREE, END, FAT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD


def archive(*names: str, content: bytes = b"x") -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in names:
            opened.writestr(name, content)
    return made.getvalue()


def office(kind: str, *more: str) -> bytes:
    return archive("[Content_Types].xml", "_rels/.rels", MAIN[kind], *more)


def entry(name: str, kind: int, left: int = FREE, right: int = FREE, child: int = FREE) -> bytes:
    text = name.encode("utf-16-le") + b"\0\0"
    head = text.ljust(64, b"\0") + struct.pack("<HBBIII", len(text), kind, 1, left, right, child)
    return head.ljust(128, b"\0")


def ole(entries: list[bytes], fat: list[int] | None = None) -> bytes:
    """A compound file of 512-byte sectors: sector 0 has the table, the next sectors the directory."""
    sectors = -(-len(entries) // 4)
    table = fat or [FAT, *range(2, sectors + 1), END]
    header = bytearray(512)
    header[:8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
    struct.pack_into("<HHHHH", header, 24, 0x3E, 3, 0xFFFE, 9, 6)
    struct.pack_into("<II", header, 44, 1, 1)
    struct.pack_into("<II", header, 68, END, 0)
    struct.pack_into("<109I", header, 76, 0, *[FREE] * 108)
    rows = b"".join(entries).ljust(sectors * 512, b"\0")
    return bytes(header) + struct.pack("<128I", *table, *[FREE] * (128 - len(table))) + rows


def old_office(kind: str) -> bytes:
    root = [entry("Root Entry", 5, child=2), entry("\x05SummaryInformation", 2)]
    return ole([*root, entry(STREAMS[kind], 2, left=1, right=3), entry("Current User", 2)])


async def check(kind: str, data: bytes) -> int:
    """The number of bytes that the check read."""
    count = 0

    async def read(start: int, end: int) -> bytes:
        nonlocal count
        assert 0 <= start <= end <= len(data)
        count += end - start
        return data[start:end]

    await containers.check(kind, len(data), read)
    return count


async def rejected(kind: str, data: bytes) -> Invalid:
    with pytest.raises(Invalid) as caught:
        await check(kind, data)
    return caught.value


@pytest.mark.parametrize("kind", [*MAIN, *STREAMS])
async def test_office_file_is_accepted_as_its_own_type_only(kind: str) -> None:
    """S30 R4.6/mismatch: a DOCX does not pass as a PPTX, nor a DOC as a PPT."""
    family = MAIN if kind in MAIN else STREAMS
    data = office(kind) if kind in MAIN else old_office(kind)
    await check(kind, data)
    for other in set(family) - {kind}:
        error = await rejected(other, data)
        assert (error.code, error.details["detected"]) == ("wrong_type", kind)
    for other in set({**MAIN, **STREAMS}) - set(family):
        assert (await rejected(other, data)).code == "wrong_type"
    # Other types are not looked at.
    assert await check("application/zip", data) == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (archive(), "wrong_type"),
        (archive("ppt/presentation.xml"), "wrong_type"),
        (archive("[Content_Types].xml", "ppt/slides/slide1.xml"), "wrong_type"),
        # Two types in one: readers would disagree.
        (office(PPTX, "word/document.xml"), "wrong_type"),
        # Another archive, or a script, before the archive that the directory describes.
        (office(DOCX) + office(PPTX), "wrong_type"),
        (b"PK\x03\x04#!/bin/sh\n" + office(PPTX), "wrong_type"),
        (office(PPTX)[:-30], "wrong_type"),
        (office(PPTX)[:40], "wrong_type"),
        (b"PK\x03\x04" + b"\0" * 100, "wrong_type"),
        (b"", "wrong_type"),
        (office(PPTX, "ppt/vbaProject.bin"), "unsafe_file"),
        (archive(*(f"{n}" for n in range(10_001))), "unsafe_file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_damaged_and_ambiguous_archives_are_rejected(data: bytes, code: str) -> None:
    """S30 R4.6/mismatch"""
    assert (await rejected(PPTX, data)).code == code


async def test_presentation_with_an_embedded_document_is_accepted() -> None:
    await check(PPTX, office(PPTX, "ppt/embeddings/Microsoft_Word_Document.docx", "ppt/media/image1.png"))
    await check(DOCX, archive("[Content_Types].xml", "word/document2.xml"))
    inner = entry("WordDocument", 2)
    embedded = [entry("Root Entry", 5, child=1), entry("PowerPoint Document", 2, right=2)]
    await check(PPT, ole([*embedded, entry("MBD00A1", 1, child=3), inner]))


async def test_zip_bombs_are_rejected_without_unpacking() -> None:
    """S30: by the sizes in the directory, and by entries that share their bytes."""
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = b"\0" * (1 << 20)
    body = b"".join(packed.compress(zeros) for _ in range(80)) + packed.flush()
    bomb = rezip([("[Content_Types].xml", b"x", 1, 0), ("ppt/presentation.xml", body, 80 << 20, 8)])
    assert (await rejected(PPTX, bomb)).code == "unsafe_file"
    flat = office(PPTX, "a", "b")
    directory = flat.index(b"PK\x01\x02")
    # All entries point to the same bytes.
    shared = bytearray(flat)
    with zipfile.ZipFile(io.BytesIO(flat)) as opened:
        first = opened.infolist()[1].header_offset
    at = flat.index(b"PK\x01\x02", directory + 1)
    for _ in range(3):
        at = flat.index(b"PK\x01\x02", at + 1)
        struct.pack_into("<I", shared, at + 42, first)
    assert (await rejected(PPTX, bytes(shared))).code == "unsafe_file"


def rezip(entries: list[tuple[str, bytes, int, int]]) -> bytes:
    """An archive of already packed entries: name, bytes, unpacked size, method."""
    body, directory = b"", b""
    for name, data, size, method in entries:
        fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 0x21, 0, len(data), size, len(name.encode()), 0)
        directory += b"PK\x01\x02\x14\0" + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(body))
        directory += name.encode()
        body += b"PK\x03\x04" + fields + name.encode() + data
    count = len(entries)
    end = struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(body), 0)
    return body + directory + b"PK\x05\x06" + end


async def test_only_the_directory_of_a_large_archive_is_read() -> None:
    data = rezip(
        [("[Content_Types].xml", b"x", 1, 0), ("ppt/presentation.xml", b"y" * (5 << 20), 5 << 20, 0)]
    )
    assert await check(PPTX, data) == 2 << 20


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600,
        old_office(PPT)[:600],
        ole([entry("Root Entry", 2)]),
        # The directory's chain is a cycle, or leaves the file.
        ole([entry("Root Entry", 5, child=1), entry("PowerPoint Document", 2)], fat=[FAT, 1]),
        ole([entry("Root Entry", 5, child=1), entry("PowerPoint Document", 2)], fat=[FAT, 9_999]),
        # The tree is a cycle and names nothing.
        ole([entry("Root Entry", 5, child=1), entry("x", 2, left=1, right=1)]),
        # The stream is there, but below another document.
        ole([entry("Root Entry", 5, child=1), entry("Sub", 1, child=2), entry("PowerPoint Document", 2)]),
        ole([entry("Root Entry", 5, child=1), entry("EncryptedPackage", 2)]),
    ],
    ids=lambda data: f"{zlib.crc32(data):x}",
)
async def test_damaged_ole_files_are_rejected(data: bytes) -> None:
    """S30 R4.6/mismatch"""
    assert (await rejected(PPT, data)).code == "wrong_type"


@pytest.mark.parametrize("kind", [PPTX, PPT])
async def test_no_cut_or_changed_byte_breaks_the_check(kind: str) -> None:
    """A damaged file is accepted or rejected, in bounded time; it raises nothing else."""
    data = office(kind) if kind in MAIN else old_office(kind)
    for at in range(0, len(data), 7):
        for broken in (data[:at], data[:at] + b"\xff" + data[at + 1 :], data[:at] + b"\0" + data[at + 1 :]):
            try:
                assert await check(kind, broken) < 1 << 20
            except Invalid as error:
                assert error.code in ("wrong_type", "unsafe_file")
