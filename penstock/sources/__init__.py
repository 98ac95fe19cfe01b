"""Reads and writes tables as CSV, TSV, XLSX and JSONL: row by row, in bounded memory.

    with sources.open("ideas.csv") as source:
        source.columns                     # ["title", "seconds"]
        for row in source:                 # each iteration starts at the beginning
            row.number, row.data           # 2, {"title": "Otters", "seconds": "5"}
            row.problem                    # None, or why this row is invalid: line, column, code, message

    with open("results.xlsx", "wb") as out:
        sources.write(rows, ["title", "url"], "xlsx", out)

docs/sources.md describes the accepted files.
"""

from __future__ import annotations

import builtins
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from penstock import extras
from penstock.errors import Invalid, NotFound
from penstock.sources.delimited import Delimited
from penstock.sources.jsonl import Jsonl
from penstock.sources.rows import Header, Problem, Row
from penstock.sources.source import Source
from penstock.sources.writers import FORMATS as WRITTEN
from penstock.sources.writers import Writer, safe, writer

FORMATS = ("csv", "tsv", "xlsx", "jsonl")
"""Formats that can be read."""

_ENDINGS = {".csv": "csv", ".txt": "csv", ".tsv": "tsv", ".tab": "tsv", ".xlsx": "xlsx", ".xlsm": "xlsx",
            ".jsonl": "jsonl", ".ndjson": "jsonl"}  # fmt: skip
_HEAD_BYTES = 4096
_ZIP, _OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"


def open(
    file: str | Path | BinaryIO | IO[bytes],
    *,
    format: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    sheet: str | None = None,
    header: bool = True,
    rename: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Source:
    """Open a table. Omitted options are detected: the format from name and content, encoding and delimiter
    from the content. Raises Invalid where the content is ambiguous.

    `rename` renames columns: `{"Video title": "title"}`. `header=False`: the first row is data, and the
    columns are named `column_1`, `column_2`, … A file object that the caller opened stays open.
    """
    path = Path(file) if isinstance(file, str | Path) else None
    binary = _opened(path) if path else _seekable(cast("BinaryIO", file))
    is_own = path is not None or binary is not file
    try:
        binary.seek(0)
        named = name or (path.name if path else Path(str(getattr(file, "name", ""))).name)
        chosen = _format(format, named, binary.read(_HEAD_BYTES))
        for option, fits in (("sheet", chosen == "xlsx"), ("delimiter", chosen in ("csv", "tsv")),
                             ("encoding", chosen != "xlsx")):  # fmt: skip
            if locals()[option] is not None and not fits:
                raise Invalid(f"{option} cannot be used with {chosen}", details={"field": option})
        match chosen:
            case "xlsx":
                # Imported here because openpyxl loads slowly and is rarely needed.
                with extras.required():
                    from penstock.sources.xlsx import Xlsx

                return Xlsx(binary, named, sheet=sheet, header=header, rename=rename, is_own=is_own)
            case "jsonl":
                return Jsonl(binary, named, encoding=encoding, rename=rename, is_own=is_own)
            case _:
                return Delimited(
                    binary, named, chosen, encoding=encoding, delimiter=delimiter, header=header,
                    rename=rename, is_own=is_own,
                )  # fmt: skip
    except BaseException:
        if is_own:
            binary.close()
        raise


def write(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], format: str, out: BinaryIO | IO[bytes]
) -> int:
    """Write a table and return its number of rows. Spreadsheets show all text as text, never as a formula."""
    with writer(columns, format, out) as table:
        for row in rows:
            table.add(row)
        return table.count


def _opened(path: Path) -> BinaryIO:
    try:
        return builtins.open(path, "rb")
    except FileNotFoundError:
        raise NotFound(f"file {path} not found") from None
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}", code="unreadable_file") from None


def _seekable(file: BinaryIO) -> BinaryIO:
    if file.seekable():
        return file
    copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 (the source closes it)
    shutil.copyfileobj(file, copy)
    return copy


def _format(given: str | None, name: str, head: bytes) -> str:
    if given is not None and given not in FORMATS:
        raise Invalid(
            f"unknown format {given!r}", code="unknown_format", hint=f"Use one of: {', '.join(FORMATS)}."
        )
    chosen = given or _ENDINGS.get(Path(name).suffix.lower())
    if head.startswith(_OLE):
        raise Invalid("the file is an old (.xls) or encrypted Excel file", code="wrong_type",
                      hint="Save it as XLSX, without a password.")  # fmt: skip
    if head.startswith(_ZIP) != (chosen == "xlsx") and chosen is not None:
        is_zip = head.startswith(_ZIP)
        raise Invalid(f"the file is {'an XLSX or other ZIP file, not' if is_zip else 'not'} {chosen.upper()}",
                      code="wrong_type")  # fmt: skip
    if chosen is None:
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        chosen = "xlsx" if head.startswith(_ZIP) else "jsonl" if first.startswith(b"{") else "csv"
    return chosen


__all__ = [
    "FORMATS",
    "WRITTEN",
    "Header",
    "Problem",
    "Row",
    "Source",
    "Writer",
    "open",
    "safe",
    "write",
    "writer",
]
