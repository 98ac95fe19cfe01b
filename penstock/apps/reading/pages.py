"""A chapter or a whole book as a PDF/A file.

Words reach the template as a JSON document in `sys.inputs`, which it shows as text. There is no way from
there to its code, to a file or to the network.
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
_MOST_MARKS = 8
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
_INSTEAD = "\N{WHITE SQUARE}"
_ROUNDS = 4


def make(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the PDF into a folder; says how many pages it has, and how many characters no font here shows."""
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
                # No file and no package can be needed: there are none here, and none are fetched.
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
            # An archive must show what it says: what no font here has is marked, and counted.
            every = re.compile("|".join(re.escape(found) for found in sorted(missing, key=len, reverse=True)))
            book, count = _replaced(book, every)
            replaced += count
    raise Fail("typst: no font here shows this text", code="not_typeset")


def _replaced(value: Any, what: re.Pattern[str]) -> tuple[Any, int]:
    """A document with a square in place of each such text in it, and how many that are."""
    if isinstance(value, str):
        return what.subn(_INSTEAD, value)
    if isinstance(value, dict):
        pairs = {key: _replaced(item, what) for key, item in cast("dict[str, Any]", value).items()}
        return {key: item for key, (item, _) in pairs.items()}, sum(count for _, count in pairs.values())
    if isinstance(value, list):
        found = [_replaced(item, what) for item in cast("list[Any]", value)]
        return [item for item, _ in found], sum(count for _, count in found)
    return value, 0


def parts(text: str) -> list[dict[str, Any]]:
    """The paragraphs and headings of a text: an empty line ends a paragraph, `##` begins a heading."""
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
    """Words with single blanks between them, and without characters that are none."""
    kept: list[str] = []
    marks = 0
    for character in unicodedata.normalize("NFC", text):
        # Towers of accents, which no language has, bring typst down.
        marks = marks + 1 if unicodedata.combining(character) else 0
        if character.isspace():
            kept.append(" ")
        elif marks <= _MOST_MARKS and not _is_none(character):
            kept.append(character)
    return _APOSTROPHE.sub("\N{RIGHT SINGLE QUOTATION MARK}", " ".join("".join(kept).split()))


def _is_none(character: str) -> bool:
    """Whether it is a control, half a character, one of nobody's, or a mark of byte order."""
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
