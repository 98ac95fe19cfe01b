"""Typesets a chapter or a whole book as PDF/A.

The template receives all text as JSON in `sys.inputs` and shows it literally. Text cannot reach the
template's code, files or the network.
"""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import typst

from penstock import Fail

STANDARD = "a-2a"
FILE = "book.pdf"
_TEMPLATE = Path(__file__).with_name("book.typ")
_MISSING = re.compile(r'the text `"((?:[^"\\]|\\.)*)"` could not be displayed')
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-f]+)\}|(.))")
_MAX_MARKS = 8
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_REPLACEMENT = "\N{WHITE SQUARE}"
_ROUNDS = 4


def make(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the PDF into a folder. Returns its number of pages and of replaced characters."""
    book = {
        "title": plain(request["title"]),
        "subtitle": plain(request.get("subtitle", "")),
        "date": request["date"],
        "language": request["language"].partition("-")[0].lower(),
        "whole": request["whole"],
        "chapters": [
            {
                "number": chapter["number"],
                "title": plain(chapter["title"]),
                "parts": parts(chapter["text"]),
            }
            for chapter in request["chapters"]
        ],
    }
    made = datetime.fromisoformat(request["date"]).replace(tzinfo=UTC)
    pdf, replaced = _compiled(book, made, folder)
    (folder / FILE).write_bytes(pdf)
    return {"file": FILE, "pages": _pages(pdf), "replaced": replaced}


def _compiled(book: dict[str, Any], made: datetime, folder: Path) -> tuple[bytes, int]:
    replaced = 0
    for _ in range(_ROUNDS):
        try:
            compiler = typst.Compiler(
                _TEMPLATE.read_bytes(),
                # An empty folder: the template can use no other file or package.
                root=folder,
                package_path=folder,
                package_cache_path=folder,
                sys_inputs={"book": json.dumps(book)},
            )
            pdf = compiler.compile(format="pdf", pdf_standards=STANDARD, timestamp=made)
            assert isinstance(pdf, bytes)
            return pdf, replaced
        except typst.TypstError as error:
            missing = {_unescaped(found) for found in _MISSING.findall(error.diagnostic) if found}
            if not missing:
                raise Fail(f"typst: {error.message}", code="not_typeset") from None
            # PDF/A requires glyphs for all text: replace and count characters that no font has.
            every = re.compile("|".join(re.escape(found) for found in sorted(missing, key=len, reverse=True)))
            book, count = _replaced(book, every)
            replaced += count
    raise Fail("typst: no font has the characters of this text", code="not_typeset")


def _replaced(value: Any, what: re.Pattern[str]) -> tuple[Any, int]:
    """Replace all matches in a JSON value with a square. Returns the value and the number of replacements."""
    if isinstance(value, str):
        return what.subn(_REPLACEMENT, value)
    if isinstance(value, dict):
        pairs = {key: _replaced(item, what) for key, item in cast("dict[str, Any]", value).items()}
        return {key: item for key, (item, _) in pairs.items()}, sum(count for _, count in pairs.values())
    if isinstance(value, list):
        found = [_replaced(item, what) for item in cast("list[Any]", value)]
        return [item for item, _ in found], sum(count for _, count in found)
    return value, 0


def parts(text: str) -> list[dict[str, Any]]:
    """Split a text into paragraphs and headings: an empty line ends a paragraph, `##` begins a heading."""
    found: list[dict[str, Any]] = []
    for part in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        heading = re.match(r"\s*#{1,6} +([^\n]+)\n?", part)
        if heading:
            found.append({"is-heading": True, "text": plain(heading[1])})
            part = part[heading.end() :]
        if words := plain(part):
            found.append({"is-heading": False, "text": words})
    return [part for part in found if part["text"]]


def plain(text: str) -> str:
    """Normalize white space, and remove control and unassigned characters."""
    kept: list[str] = []
    marks = 0
    for character in unicodedata.normalize("NFC", text):
        # Long runs of combining marks crash typst.
        marks = marks + 1 if unicodedata.combining(character) else 0
        if character.isspace():
            kept.append(" ")
        elif marks <= _MAX_MARKS and not _is_invalid(character):
            kept.append(character)
    return _APOSTROPHE.sub("\N{RIGHT SINGLE QUOTATION MARK}", " ".join("".join(kept).split()))


def _is_invalid(character: str) -> bool:
    """Whether this is a control, surrogate, private-use or unassigned character, or a BOM."""
    return unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn") or character == "\ufeff"


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)


def _pages(pdf: bytes) -> int:
    import pypdfium2  # pyright: ignore[reportMissingTypeStubs]

    document = pypdfium2.PdfDocument(pdf)
    try:
        return len(document)
    finally:
        document.close()
