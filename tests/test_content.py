"""What a file is by its first bytes, and how it is safely shown."""

from __future__ import annotations

import io
import zipfile

import pytest

from penstock.errors import Invalid
from penstock.storage import content


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        for name in names:
            opened.writestr(name, "x")
    return made.getvalue()


PDF, GIF = b"%PDF-1.7\n%\xe2\xe3", b"GIF89a\x01\x00\x01\x00"
OFFICE = "application/vnd.openxmlformats-officedocument."
DOCX, PPTX, XLSX = (
    OFFICE + end
    for end in ("wordprocessingml.document", "presentationml.presentation", "spreadsheetml.sheet")
)
REAL = {
    "application/pdf": [PDF],
    "image/png": [b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"],
    "image/jpeg": [b"\xff\xd8\xff\xe0\x00\x10JFIF"],
    "image/gif": [GIF, b"GIF87a..."],
    "image/webp": [b"RIFF\x10\x00\x00\x00WEBPVP8 "],
    "audio/wav": [b"RIFF\x10\x00\x00\x00WAVEfmt "],
    "audio/mpeg": [b"ID3\x04\x00", b"\xff\xfb\x90\x64\x00", b"\xff\xf3\x44\xc4"],
    "audio/mp4": [b"\x00\x00\x00\x20ftypM4A "],
    "video/mp4": [b"\x00\x00\x00\x18ftypmp42"],
    "application/zip": [archive("a.txt"), archive()],
    DOCX: [archive("[Content_Types].xml", "word/document.xml")],
    PPTX: [archive("[Content_Types].xml"), archive("ppt/presentation.xml")],
    XLSX: [archive("_rels/.rels"), archive("xl/workbook.xml")],
    "application/vnd.ms-powerpoint": [b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1...."],
    "application/json": [b'{"a": 1}', b" [1]", b'"x"', b"-1", b"null", b"\xef\xbb\xbf{}"],
    "text/plain": ["Grüße, 世界 🎉".encode(), b"", "é".encode() * 2048 + "é".encode()[:1]],
    "text/csv": [b"a;b\r\n1;2\r\n"],
}
FAKE: list[tuple[str, bytes]] = [
    # Wrong type, empty, and polyglots that hide the true one behind another's beginning.
    ("application/pdf", b""),
    ("application/pdf", b"<html>%PDF-1.7"),
    ("application/pdf", b"junk\n" + PDF),
    ("application/pdf", GIF + PDF),
    ("image/gif", PDF + GIF),
    ("image/png", b"<svg onload=alert(1)>"),
    ("image/jpeg", b"\xff\xd8\x00"),
    ("image/webp", b"RIFF\x10\x00\x00\x00WAVEfmt "),
    ("audio/mpeg", b"\xff\xff\xff\xff"),
    ("audio/mpeg", b"\xff\xfe<\x00h\x00"),
    ("video/mp4", b"ftypmp42"),
    ("application/zip", b"MZ\x90\x00"),
    (DOCX, archive("evil.exe")),
    (DOCX, archive("ppt/presentation.xml")),
    (PPTX, b"PK"),
    ("application/json", b"<script>"),
    ("application/json", b""),
    ("application/json", b'{"a": "\xff"}'),
    ("text/plain", b"a\0b"),
    ("text/plain", b"\x7fELF\x02\x01\x01\x00"),
    ("text/plain", b"%PDF-1.7 is a PDF, whatever it is called"),
    ("text/html", GIF + b"<script>alert(1)</script>"),
    ("audio/ogg", GIF),
]


def type_of(value: str | bytes) -> str:
    """An id that is the same in every process: an archive holds the time."""
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("name", "head"), [(name, head) for name, heads in REAL.items() for head in heads], ids=type_of
)
def test_what_a_file_is_is_believed_if_its_bytes_say_so(name: str, head: bytes) -> None:
    """R4.6/content"""
    assert content.check(name, head) == name
    assert content.check(name.upper() + "; charset=utf-8", head) == name


@pytest.mark.parametrize(("name", "head"), FAKE, ids=type_of)
def test_what_is_something_else_is_refused(name: str, head: bytes) -> None:
    """R4.6/mismatch"""
    with pytest.raises(Invalid) as caught:
        content.check(name, head)
    assert caught.value.code == "wrong_type"


def test_undeclared_type_is_detected() -> None:
    assert content.check(content.ANY, PDF) == "application/pdf"
    assert content.check(content.ANY, b"\x00\x01\x02") == content.ANY
    # What nobody can tell by the first bytes is taken as it is said to be.
    assert content.check("model/gltf-binary", b"glTF") == "model/gltf-binary"


@pytest.mark.parametrize(
    "text", ["", "pdf", "a/b/c", "text/html\r\nX: y", "ä/b", "/", "text/", "x" * 70 + "/y"]
)
def test_invalid_content_types_are_rejected(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        content.known(text)
    assert caught.value.code == "invalid_content_type"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ann\\scan.pdf", "scan.pdf"),
        ("a\r\nSet-Cookie: x.txt", "aSet-Cookie: x.txt"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("e\u0301.txt", "é.txt"),
        ("世界.png", "世界.png"),
        ("half\ud800.txt", "half.txt"),
        ("a\0b", "ab"),
        ("..", ""),
        (" .hidden. ", "hidden"),
        ("x" * 300 + ".pdf", "x" * 196 + ".pdf"),
        ("x" * 300, "x" * 200),
    ],
)
def test_file_names_are_cleaned(given: str, kept: str) -> None:
    assert content.clean_name(given) == kept


@pytest.mark.parametrize(
    "name", ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml", "x/y", content.ANY]
)
def test_active_content_is_never_inline(name: str) -> None:
    shown = content.headers(name, "page")
    assert shown["Content-Disposition"].startswith("attachment;")
    assert name not in ("text/html", "image/svg+xml") or shown["Content-Type"] == content.ANY


def test_headers_accept_any_file_name() -> None:
    shown = content.headers("application/pdf", 'Bericht "Mai"; 世界.pdf')
    assert shown == {
        "Content-Type": "application/pdf",
        "Content-Disposition": 'inline; filename="Bericht _Mai__ __.pdf"; '
        "filename*=UTF-8''Bericht%20%22Mai%22%3B%20%E4%B8%96%E7%95%8C.pdf",
    }
    assert content.headers("text/plain", "a.txt")["Content-Type"] == "text/plain; charset=utf-8"
