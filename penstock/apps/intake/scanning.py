"""Checks a file before anything else opens it: its real type, damage, encryption, bombs and active content.

Runs in a subprocess of the worker with limits of memory and time. Nothing in a document is executed: PDFium
is built without JavaScript.
"""

from __future__ import annotations

import re
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

from penstock import Fail
from penstock.apps.intake.limits import TooMuchWork, limited

MOST_PAGES = 500
MOST_PIXELS = 100_000_000
"""Of one image: 10,000 × 10,000."""
MOST_INFLATED = 256 << 20
"""What the compressed streams of a PDF may unpack to, in bytes."""
MOST_POINTS = 14_400
"""The side of a PDF page, which the format limits to 200 inches."""
SECONDS = 60
EICAR = b"X5O!P%@AP[4\\PZX54(P^)7CC)7}$EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*"
IMAGES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "TIFF": "image/tiff"}
TYPES = ("application/pdf", *IMAGES.values())
_ACTIVE = {
    "javascript": re.compile(rb"/(?:JavaScript|JS)\b"),
    "launch": re.compile(rb"/Launch\b"),
    "embedded_file": re.compile(rb"/EmbeddedFiles?\b"),
    # An array is the place to show first, which LibreOffice writes into every PDF.
    "open_action": re.compile(rb"/(?:OpenAction\b(?!\s*\[)|AA\b)"),
    "form_submission": re.compile(rb"/SubmitForm\b"),
}
_STREAM = re.compile(rb"stream\r?\n")
_NAME_ESCAPE = re.compile(rb"#([0-9A-Fa-f]{2})")


def scan(path: str, content_type: str, clamd: tuple[str, int] | None = None) -> dict[str, Any]:
    """Check a file. Returns its pages and warnings, or raises Fail with the code of what is wrong."""
    data = Path(path).read_bytes()
    if not data:
        raise Fail("the file is empty", code="empty_file")
    try:
        with limited(SECONDS):
            found = _scan(data, content_type)
    except MemoryError:
        raise Fail("the file needs more memory than a document may", code="document_too_large") from None
    except TooMuchWork as error:
        raise Fail(f"the scan did not finish: {error}", code="document_too_large") from None
    if clamd is not None:
        _ask_clamd(clamd, data)
    return found


def _scan(data: bytes, content_type: str) -> dict[str, Any]:
    if EICAR in data:
        raise Fail("the file contains the EICAR test virus", code="virus_found")
    actual = _type_of(data)
    if actual is None:
        raise Fail(f"the content is of no known type (allowed: {', '.join(TYPES)})", code="unknown_content")
    if actual != content_type:
        raise Fail(f"the content is {actual}, not {content_type}", code="content_type_mismatch")
    return _scan_pdf(data) if actual == "application/pdf" else _scan_image(data)


def _type_of(data: bytes) -> str | None:
    if b"%PDF-" in data[:1024]:
        return "application/pdf"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "image/tiff"
    return None


def _scan_pdf(data: bytes) -> dict[str, Any]:
    import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

    warnings = _check_streams(data)
    try:
        document: Any = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Fail("the PDF is encrypted: upload it without a password", code="encrypted_pdf") from None
        raise Fail(f"the PDF cannot be opened: {str(error)[:200]}", code="broken_pdf") from None
    try:
        pages = len(document)
        if pages == 0:
            raise Fail("the PDF has no pages", code="broken_pdf")
        if pages > MOST_PAGES:
            raise Fail(f"the PDF has {pages:,} pages; the limit is {MOST_PAGES}", code="too_many_pages")
        for number in range(pages):
            width, height = document.get_page_size(number)
            if not (0 < width <= MOST_POINTS and 0 < height <= MOST_POINTS):
                text = f"page {number + 1} is {width:.0f} × {height:.0f} points; the limit is {MOST_POINTS}"
                raise Fail(text, code="page_too_large")
    except pypdfium2.PdfiumError as error:
        raise Fail(f"the PDF cannot be read: {str(error)[:200]}", code="broken_pdf") from None
    finally:
        document.close()
    return {"content_type": "application/pdf", "pages": pages, "warnings": warnings}


def _check_streams(data: bytes) -> list[str]:
    """The kinds of active content of a PDF. Unpacks its streams, and rejects a decompression bomb."""
    found = _active_in(data)
    left = MOST_INFLATED
    view = memoryview(data)
    for match in _STREAM.finditer(data):
        head, left = _inflate(view[match.end() :], left)
        # Names in object streams are near the beginning of the unpacked text.
        found |= _active_in(head)
    return sorted(found)


def _inflate(stream: memoryview, left: int) -> tuple[bytes, int]:
    """The first part of a compressed stream, and how many bytes the other streams may still unpack to."""
    unpacker, head, position = zlib.decompressobj(), b"", 0
    try:
        while position < len(stream) and not unpacker.eof:
            rest = bytes(stream[position : position + (1 << 16)])
            position += len(rest)
            while rest and not unpacker.eof:
                part = unpacker.decompress(rest, 1 << 20)
                rest, left = unpacker.unconsumed_tail, left - len(part)
                head = head or part
                if left < 0:
                    text = f"the PDF unpacks to more than {MOST_INFLATED >> 20} MB"
                    raise Fail(text, code="decompression_bomb")
    except zlib.error:
        pass
    return head, left


def _active_in(data: bytes) -> set[str]:
    # A name may be written with hexadecimal escapes: /J#61vaScript.
    plain = _NAME_ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), data) if b"#" in data else data
    return {name for name, pattern in _ACTIVE.items() if pattern.search(plain)}


def _scan_image(data: bytes) -> dict[str, Any]:
    from io import BytesIO

    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # checked here, from the header, before a pixel is decoded
    try:
        with Image.open(BytesIO(data), formats=list(IMAGES)) as image:
            pages = int(getattr(image, "n_frames", 1))
            if pages > MOST_PAGES:
                raise Fail(f"the image has {pages:,} pages; the limit is {MOST_PAGES}", code="too_many_pages")
            kind = IMAGES[image.format or ""]
            if kind != "image/tiff":
                pages = 1  # an animation is one page
            for number in range(pages):
                image.seek(number)
                width, height = image.size
                if width * height > MOST_PIXELS:
                    text = f"the image has {width:,} × {height:,} pixels; the limit is {MOST_PIXELS:,}"
                    raise Fail(text, code="too_many_pixels")
                image.load()
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise Fail(f"the image cannot be read: {str(error)[:200]}", code="broken_image") from None
    return {"content_type": kind, "pages": pages, "warnings": []}


def _ask_clamd(address: tuple[str, int], data: bytes) -> None:
    """Send the file to clamd with INSTREAM. Raises Fail for a virus, OSError if clamd does not answer."""
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"zINSTREAM\0")
        for start in range(0, len(data), 1 << 16):
            part = data[start : start + (1 << 16)]
            connection.sendall(struct.pack(">I", len(part)) + part)
        connection.sendall(struct.pack(">I", 0))
        answer = b""
        while b"\0" not in answer and (part := connection.recv(4096)):
            answer += part
    text = answer.rstrip(b"\0\n").decode(errors="replace")
    if text.endswith("FOUND"):
        raise Fail(f"clamd found {text.removeprefix('stream: ').removesuffix(' FOUND')}", code="virus_found")
    if not text.endswith("OK"):
        raise OSError(f"clamd answered {text[:200]!r}")
