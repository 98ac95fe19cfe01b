"""Content types: detection from a file's first bytes, safe file names, and safe response headers.

Nothing here unpacks or renders a file, so zip bombs do no harm. A file is served only with the content type
it was checked for, and browsers are told not to guess another.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable
from urllib.parse import quote

from penstock.errors import Invalid
from penstock.storage import containers

ANY = "application/octet-stream"
HEAD_BYTES = 4096
"""Bytes at the beginning of a file that are needed for detection."""

_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,99}")
# The folder of each kind of Office document. The first entry of the archive may be in it.
_OFFICE_FOLDERS = {containers.DOCX: b"word/", containers.PPTX: b"ppt/", containers.XLSX: b"xl/"}
_OFFICE_FIRST = (b"[Content_Types].xml", b"_rels/", b"docProps/", b"mimetype")
_JSON_START = re.compile(r"\s*[\[{\"\-0-9tfn]")
# Control characters that plain text may contain.
_IN_TEXT = {"\t", "\n", "\r", "\f", "\x1b"}


def _starts(*marks: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(marks)


def _riff(kind: bytes) -> Callable[[bytes], bool]:
    return lambda head: head[:4] == b"RIFF" and head[8:12] == kind


def _is_mp3(head: bytes) -> bool:
    if head.startswith(b"ID3"):
        return True
    # The first frame's header: sync, version, layer III, valid bit rate and sample rate.
    return (
        len(head) >= 4
        and head[0] == 0xFF
        and head[1] & 0xE6 == 0xE2
        and head[1] & 0x18 != 0x08
        and head[2] & 0xF0 not in (0x00, 0xF0)
        and head[2] & 0x0C != 0x0C
    )


def _is_mp4(head: bytes) -> bool:
    return head[4:8] == b"ftyp"


def _first_name(head: bytes) -> bytes:
    """The name of an archive's first entry."""
    return head[30 : 30 + int.from_bytes(head[26:28], "little")]


def _is_zip(head: bytes) -> bool:
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def _is_office(own: bytes) -> Callable[[bytes], bool]:
    return lambda head: _is_zip(head) and _first_name(head).startswith((*_OFFICE_FIRST, own))


def _text(head: bytes) -> str | None:
    """Decode the bytes as UTF-8 text; None if they are not text. The last character may be incomplete."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return None
    is_plain = all(c in _IN_TEXT or unicodedata.category(c) != "Cc" for c in text)
    return text if is_plain else None


def _is_text(head: bytes) -> bool:
    return _text(head) is not None


def _is_json(head: bytes) -> bool:
    text = _text(head)
    return text is not None and _JSON_START.match(text) is not None


_OLE = _starts(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")
# The check for each content type.
_CHECKS: dict[str, Callable[[bytes], bool]] = {
    "application/pdf": _starts(b"%PDF-"),
    "image/png": _starts(b"\x89PNG\r\n\x1a\n"),
    "image/jpeg": _starts(b"\xff\xd8\xff"),
    "image/gif": _starts(b"GIF87a", b"GIF89a"),
    "image/webp": _riff(b"WEBP"),
    "audio/wav": _riff(b"WAVE"),
    "audio/mpeg": _is_mp3,
    "audio/mp4": _is_mp4,
    "video/mp4": _is_mp4,
    "application/zip": _is_zip,
    **{name: _is_office(own) for name, own in _OFFICE_FOLDERS.items()},
    containers.DOC: _OLE,
    containers.PPT: _OLE,
    containers.XLS: _OLE,
    "application/json": _is_json,
    "text/plain": _is_text,
    "text/csv": _is_text,
    "text/markdown": _is_text,
    "text/html": _is_text,
    "image/svg+xml": _is_text,
}
# Types that the first bytes identify. (ZIP and OLE files can be many types: see containers.py.)
_IDENTIFIED = (
    "application/pdf",
    "image/png",
    "image/jpeg",
    "image/gif",
    "image/webp",
    "audio/wav",
    "audio/mpeg",
)
# Types that can run scripts in a browser: never shown inline.
_ACTIVE = {"text/html", "image/svg+xml"}
UPLOADS = frozenset(_CHECKS) - _ACTIVE
"""Content types that clients may upload."""
_INLINE = {
    *("application/pdf", "image/png", "image/jpeg", "image/gif", "image/webp", "audio/wav", "audio/mpeg"),
    *("audio/mp4", "video/mp4", "application/json", "text/plain", "text/csv", "text/markdown"),
}


def known(content_type: str) -> str:
    """Normalize a content type: lower case, without parameters. Raises Invalid if it is not one."""
    found = content_type.partition(";")[0].strip().lower()
    if not _TYPE.fullmatch(found):
        raise Invalid(
            "invalid content type", code="invalid_content_type", hint="Use a form such as image/png."
        )
    return found


def detected(head: bytes) -> str | None:
    """The content type that the first bytes identify, if any."""
    return next((name for name in _IDENTIFIED if _CHECKS[name](head)), None)


def check(content_type: str, head: bytes) -> str:
    """Check a file's first bytes against its declared content type. Returns the type to store."""
    declared = known(content_type)
    looks_like = detected(head)
    if declared == ANY:
        return looks_like or ANY
    fits = _CHECKS[declared](head) if declared in _CHECKS else True
    if not fits or (looks_like is not None and looks_like != declared):
        raise Invalid(
            f"the file is not {declared}" + (f" but {looks_like}" if looks_like else ""),
            code="wrong_type",
            hint="Declare its actual content type, or application/octet-stream.",
            details={"content_type": declared, "detected": looks_like},
        )
    return declared


def clean_name(name: str) -> str:
    """A safe display name of a file: without folders, control and bidirectional characters."""
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rsplit("/", 1)[-1]
    plain = "".join(c for c in last if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
    plain = plain.strip(" .")
    if len(plain) <= 200:
        return plain
    stem, dot, end = plain.rpartition(".")
    return stem[: 199 - len(end)] + "." + end if dot and len(end) <= 10 else plain[:200]


def headers(content_type: str, name: str) -> dict[str, str]:
    """Response headers of a file: an inert content type, and inline only if that is safe."""
    is_inline = content_type in _INLINE
    shown = content_type if content_type not in _ACTIVE and _TYPE.fullmatch(content_type) else ANY
    if shown.startswith("text/"):
        shown += "; charset=utf-8"
    plain = "".join(c if (c.isalnum() and c.isascii()) or c in "._- " else "_" for c in name) or "file"
    kind = "inline" if is_inline else "attachment"
    exact = quote(name or "file", safe="")
    return {
        "Content-Type": shown,
        "Content-Disposition": f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{exact}",
    }
