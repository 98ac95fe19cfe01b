"""Tables to read from and to write to: CSV, TSV, XLSX and JSONL, as a stream, in bounded memory.

    with sources.open("ideas.csv") as source:
        source.columns                     # ["title", "seconds"]
        for row in source:                 # from the beginning, each time
            row.number, row.data           # 2, {"title": "Otters", "seconds": "5"}
            row.problem                    # None, or why this row cannot be read: line, column, code, message

    with open("results.xlsx", "wb") as out:
        sources.write(rows, ["title", "url"], "xlsx", out)

What is accepted, and how it is understood: docs/sources.md.
"""

from __future__ import annotations

import builtins
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from penstock.errors import Invalid, NotFound
from penstock.sources.delimited import Delimited
from penstock.sources.jsonl import Jsonl
from penstock.sources.rows import Header, Problem, Row
from penstock.sources.source import Source
from penstock.sources.writers import FORMATS as WRITTEN
from penstock.sources.writers import Writer, safe, writer

FORMATS = ("csv", "tsv", "xlsx", "jsonl")
"""What can be read."""

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
    """Open a table. What is not said is found out: the format by name and content, encoding and delimiter by
    content; where that is not certain, it is refused and not guessed.

    `rename` gives columns other names: `{"Video title": "title"}`. `header=False`: the first row is like the
    others, and the columns are `column_1`, `column_2`, … A file that was opened by the caller stays open.
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
                raise Invalid(f"{option} is not for {chosen}", details={"field": option})
        match chosen:
            case "xlsx":
                # Only here: openpyxl takes as long to load as all the rest, and workers need it seldom.
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
    """Write a table, and say how many rows it has. No text in it becomes a formula, whoever opens it."""
    with writer(columns, format, out) as table:
        for row in rows:
            table.add(row)
        return table.count


def _opened(path: Path) -> BinaryIO:
    try:
        return builtins.open(path, "rb")
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", code="unreadable_file") from None


def _seekable(file: BinaryIO) -> BinaryIO:
    if file.seekable():
        return file
    copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 (the source closes it)
    shutil.copyfileobj(file, copy)
    return copy


def _format(given: str | None, name: str, head: bytes) -> str:
    if given is not None and given not in FORMATS:
        raise Invalid(
            f"{given!r} is not a format", code="unknown_format", hint=f"One of: {', '.join(FORMATS)}."
        )
    chosen = given or _ENDINGS.get(Path(name).suffix.lower())
    if head.startswith(_OLE):
        raise Invalid("this is an old or an encrypted Excel file", code="wrong_type",
                      hint="Save it as XLSX, without a password.")  # fmt: skip
    if head.startswith(_ZIP) != (chosen == "xlsx") and chosen is not None:
        is_zip = head.startswith(_ZIP)
        raise Invalid(f"this is {'an XLSX or other ZIP file, not' if is_zip else 'not'} {chosen.upper()}",
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
