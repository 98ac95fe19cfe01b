"""Tables as they come (R0.1/files, R0.1/bad-rows): what is read, what is refused and why, and that nothing written runs as a formula."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import sources
from penstock.errors import Invalid, NotFound
from penstock.sources import rows as limits
from penstock.sources import writers

Found = tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, str | None, str]]]


def read(content: bytes, **options: Any) -> Found:
    """The good rows, and line, column and code of the bad ones."""
    with sources.open(io.BytesIO(content), **options) as source:
        found = list(source)
        assert [row.number for row in found] == sorted({row.number for row in found})
        json.dumps([row.data for row in found], allow_nan=False).encode()
        again = [(row.number, row.data) for row in source]
        assert again == [(row.number, row.data) for row in found]
    good = [(row.number, row.data) for row in found if row.problem is None]
    bad = [row.problem for row in found if row.problem is not None]
    assert all(problem.message and "\0" not in problem.message for problem in bad)
    return good, [(problem.line, problem.column, problem.code) for problem in bad]


A_1 = [(2, {"a": "1", "b": "x"})]


# Each: what is in the file, the good rows, and line, column and code of each bad one.
CSV: dict[str, tuple[bytes, Found]] = {
    "plain": (b"a,b\n1,x\n", (A_1, [])),
    "no line break at the end": (b"a,b\n1,x", (A_1, [])),
    "Windows line breaks": (b"a,b\r\n1,x\r\n", (A_1, [])),
    "old Mac line breaks": (b"a,b\r1,x\r", (A_1, [])),
    "UTF-8 with a mark": (b"\xef\xbb\xbfa,b\n1,x\n", (A_1, [])),
    "UTF-16": ("a,b\n1,x\n".encode("utf-16"), (A_1, [])),
    "UTF-16, big end first": (b"\xfe\xff" + "a,b\n1,x\n".encode("utf-16-be"), (A_1, [])),
    "UTF-32": ("a,b\n1,x\n".encode("utf-32"), (A_1, [])),
    "semicolons": (b"a;b\n1;x\n", (A_1, [])),
    "tabs": (b"a\tb\n1\tx\n", (A_1, [])),
    "bars": (b"a|b\n1|x\n", (A_1, [])),
    "the delimiter named for Excel": (b"sep=;\na;b\n1,5;x\n", ([(3, {"a": "1,5", "b": "x"})], [])),
    "commas in the cells of semicolons": (b"a;b\n1,5;x\n2,5;y,z\n", ([(2, {"a": "1,5", "b": "x"}), (3, {"a": "2,5", "b": "y,z"})], [])),
    "one column": (b"a\nx y\n", ([(2, {"a": "x y"})], [])),
    "quotes": (b'a,b\n"1","say ""hi"", you"\n', ([(2, {"a": "1", "b": 'say "hi", you'})], [])),
    "a quote within": (b'a,b\n5" pipe,x\n', ([(2, {"a": '5" pipe', "b": "x"})], [])),
    "line breaks in a cell": (b'a,b\n1,"x\ny\r\nz"\n2,x\n', ([(2, {"a": "1", "b": "x\ny\r\nz"}), (5, {"a": "2", "b": "x"})], [])),
    "a line that only looks like several": ("a,b\n1,x\u2028y\x0bz\n".encode(), ([(2, {"a": "1", "b": "x\u2028y\x0bz"})], [])),
    "empty lines and cells": (b"\n \na,b\n\n,\n1,\n , \n,x\n\n", ([(6, {"a": "1"}), (8, {"b": "x"})], [])),
    "names with blanks around": (b'" a ","b\nc"\n1,x\n', ([(3, {"a": "1", "b c": "x"})], [])),
    "no name, and one name twice": (b"a,,a,a_2,\n1,2,3,4,\n", ([(2, {"a": "1", "column_2": "2", "a_3": "3", "a_2": "4"})], [])),
    "apostrophes that we put there": (b"a,b\n'=1+1,'tis\n", ([(2, {"a": "=1+1", "b": "'tis"})], [])),
    "rows too short and too long": (b"a,b\n1\n1,x\n1,x,,\n1,x,,y\n", ([(3, A_1[0][1]), (4, A_1[0][1])], [(2, "b", "too_few_cells"), (5, "column_4", "too_many_cells")])),
    "another encoding": (b"a,b\n1,caf\xe9\n1,x\n", ([(3, A_1[0][1])], [(2, "b", "bad_encoding")])),
    "half a character of UTF-16": ("a,b\n".encode("utf-16") + b"1\0,\0\x00\xd8\n\0" + "1,x\n".encode("utf-16-le"), ([(3, A_1[0][1])], [(2, "b", "bad_encoding")])),
    "NUL": (b"a,b\n1,x\0y\n1,x\n", ([(3, A_1[0][1])], [(2, "b", "nul")])),
    "a quote that is not closed": (b'a,b\n1,"x\n1,x\n2,y\n', ([(3, A_1[0][1]), (4, {"a": "2", "b": "y"})], [(2, "b", "bad_quotes")])),
    "more after a quote": (b'a,b\n"1" ?,x\n1,x\n', ([(3, A_1[0][1])], [(2, "a", "bad_quotes")])),
    "quotes in the manner of C": (b'a,b\n1,"say \\"hi\\""\n1,x\n', ([(3, A_1[0][1])], [(2, "b", "bad_quotes")])),
    "a huge cell": (b"a,b\n1," + b"x" * 200_000 + b"\n1,x\n", ([(3, A_1[0][1])], [(2, "b", "too_large")])),
    "a huge line": (b"a,b\n" + b"1,x," * 400_000 + b"\n1,x\n", ([(3, A_1[0][1])], [(2, None, "too_large")])),
    "a huge cell in quotes": (b'a,b\n1,"' + b"xyz\n" * 40_000 + b'"\n', ([], [(2, "b", "bad_quotes"), *((n, "b", "too_few_cells") for n in range(3, 40_002)), (40_002, "a", "bad_quotes")])),
}  # fmt: skip


@pytest.mark.parametrize("name", CSV)
def test_csv(name: str) -> None:
    content, expected = CSV[name]
    assert read(content) == expected


JSONL: dict[str, tuple[bytes, Found]] = {
    "plain": (b'{"a": 1, "b": "x"}\n{"a": 2.5}', ([(1, {"a": 1, "b": "x"}), (2, {"a": 2.5})], [])),
    "nested": (b'{"a": {"b": [1, null, true]}}\r\n', ([(1, {"a": {"b": [1, None, True]}})], [])),
    "empty lines, and a mark": (b'\xef\xbb\xbf\n{"a": 1}\n  \n{"a": 2}\n', ([(2, {"a": 1}), (4, {"a": 2})], [])),
    "line separators in a text": ('{"a": "x\u2028y"}\n'.encode(), ([(1, {"a": "x\u2028y"})], [])),
    "no objects": (b'[1]\n"x"\nnull\n3\ntrue\n{"a": 1}\n', ([(6, {"a": 1})], [(n, None, "not_an_object") for n in range(1, 6)])),
    "no JSON": (b'{"a": 1\n{a: 1}\n{"a": NaN}\n{"a": 1} {}\n{"a": 1}\n', ([(5, {"a": 1})], [(n, None, "bad_json") for n in range(1, 5)])),
    "too deep": (b'{"a": 1}\n' + b'{"a":' * 300 + b"1" + b"}" * 300, ([(1, {"a": 1})], [(2, None, "bad_json")])),
    "NUL": (b'{"a": 1, "b": ["x\\u0000"]}\n{"a": "\\\\u0000"}\n', ([(2, {"a": "\\u0000"})], [(1, "b", "nul")])),
    "half a character": (b'{"a": "\\ud800"}\n{"a": 1}\n', ([(2, {"a": 1})], [(1, None, "bad_json")])),
    "a number without end": (b'{"a": [{"b": 1e999}]}\n{"a": 1}\n', ([(2, {"a": 1})], [(1, "a", "bad_number")])),
    "another encoding": (b'{"a": "caf\xe9"}\n{"a": 1}\n', ([(2, {"a": 1})], [(1, None, "bad_encoding")])),
    "a huge line": (b'{"a": "' + b"x" * (1 << 20) + b'"}\n{"a": 1}\n', ([(2, {"a": 1})], [(1, None, "too_large")])),
}  # fmt: skip


@pytest.mark.parametrize("name", JSONL)
def test_jsonl(name: str) -> None:
    content, expected = JSONL[name]
    assert read(content, format="jsonl") == expected


# Each: what is in the file, the options, and the code of the refusal.
REFUSED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "nothing": (b"", {}, "no_rows"),
    "nothing but blanks": (b"\n \n,,\n", {"format": "csv"}, "no_rows"),
    "no line": (b"\n\n", {"format": "jsonl"}, "no_rows"),
    "two delimiters fit": (b"a,b;c\n1,2;3\n", {}, "unknown_delimiter"),
    "no delimiter": (b"a,b\n", {"delimiter": "::"}, "unknown_delimiter"),
    "UTF-16 without a mark": ("a,b\n1,x\n".encode("utf-16-le"), {}, "unknown_encoding"),
    "no encoding": (b"a,b\n", {"encoding": "klingon"}, "unknown_encoding"),
    "no encoding of files": (b"a,b\n", {"encoding": "rot13"}, "unknown_encoding"),
    "another encoding than it says": (b"\xef\xbb\xbfa,b\n", {"encoding": "cp1252"}, "wrong_encoding"),
    "no format": (b"a,b\n", {"format": "ods"}, "unknown_format"),
    "an old Excel file": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" * 9, {"name": "x.csv"}, "wrong_type"),
    "XLSX by its name only": (b"a,b\n1,x\n", {"name": "x.xlsx"}, "wrong_type"),
    "CSV by its name only": (b"PK\x03\x04" + bytes(99), {"name": "x.csv"}, "wrong_type"),
    "a broken ZIP": (b"PK\x03\x04" + bytes(99), {}, "broken_file"),
    "too many columns": (b"," * 20_000 + b"a\n", {"format": "csv"}, "too_many_columns"),
    "a header that cannot be read": (b'"a,b\n1,x\n', {}, "bad_header"),
    "an unknown column is renamed": (b"a,b\n1,x\n", {"rename": {"c": "d"}}, "unknown_column"),
    "two columns get one name": (b"a,b\n1,x\n", {"rename": {"a": "b"}}, "duplicate_column"),
    "a sheet of CSV": (b"a,b\n1,x\n", {"sheet": "rows"}, "invalid"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_files_are_rejected(name: str) -> None:
    content, options, code = REFUSED[name]
    with pytest.raises(Invalid) as caught:
        sources.open(io.BytesIO(content), **options)
    assert caught.value.code == code


@pytest.mark.timeout(30)
def test_header_with_equal_names_is_fast() -> None:
    """Each name is looked at some times, and not each beside each other. (That would take days.)"""
    content = b",".join([b"a"] * limits.MOST_COLUMNS) + b"\n"
    with sources.open(io.BytesIO(content), delimiter=",") as source:
        assert source.columns == ["a", *(f"a_{number}" for number in range(2, limits.MOST_COLUMNS + 1))]


def test_renaming_many_columns_is_fast() -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    columns = [Name(f"n{number}") for number in range(1000)]
    found = limits.renamed(columns, {f"n{number}": f"m{number}" for number in range(0, 1000, 2)})
    assert found[:3] == ["m0", "n1", "m2"] and Name.compared < 10_000
    assert limits.renamed(columns, None) == columns and Name.compared < 10_000


# A quote stays open at the end of such a line, whether or not one is open at its beginning.
OPEN = 'x","' + "y" * 1000 + "\n"


def test_unclosed_quotes_do_not_cause_quadratic_time() -> None:
    """Some are bad rows. More are a file that is refused, before all of it is read again after each line."""
    good, bad = read(f"a,b\n{OPEN * 20}1,x\n".encode(), delimiter=",")
    assert good == [(22, A_1[0][1])]
    assert [(line, code) for line, _, code in bad] == [(number, "bad_quotes") for number in range(2, 22)]
    with sources.open(io.BytesIO(f"a,b\n{OPEN * 3000}".encode()), delimiter=",") as source:
        rows = iter(source)
        with pytest.raises(Invalid) as caught:
            for number in range(2, 3000):
                row = next(rows)
                assert row.number == number and row.problem and row.problem.code == "bad_quotes"
    assert caught.value.code == "unclosed_quotes" and 10 < caught.value.details["line"] < 100


def test_what_can_be_said_of_a_file(tmp_path: Path) -> None:
    """Encoding, names, no header; and what is kept of the source."""
    path = tmp_path / "ideas.csv"
    path.write_bytes("Video title;€\nCafé;5\n".encode("cp1252"))
    with sources.open(path, encoding="cp1252", rename={"Video title": "title"}) as source:
        assert [(row.number, row.data) for row in source] == [(2, {"title": "Café", "€": "5"})]
        assert source.columns == ["title", "€"]
        assert {**source.description, "digest": ""} == {
            "type": "csv", "name": "ideas.csv", "size": 21, "digest": "",
            "encoding": "cp1252", "delimiter": ";", "header": True,
        }  # fmt: skip
        assert source.description["digest"].startswith("sha256:")
    good, bad = read(b"x,1\ny,2\n", header=False, rename={"column_2": "n"})
    assert (good, bad) == ([(1, {"column_1": "x", "n": "1"}), (2, {"column_1": "y", "n": "2"})], [])
    assert read(b"a,b\n1,2\n", format="tsv", name="x.csv") == ([(2, {"a,b": "1,2"})], [])
    with pytest.raises(NotFound):
        sources.open(tmp_path / "no.csv")


def test_unseekable_stream_is_read() -> None:
    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: Any) -> int:
            raise OSError

    with sources.open(Stream(b"a,b\n1,x\n")) as source:  # pyright: ignore[reportArgumentType]
        assert [row.data for row in source] == [row.data for row in source] == [{"a": "1", "b": "x"}]


# --- XLSX --------------------------------------------------------------------------------------------------


def workbook(*rows: list[Any], **sheets: list[list[Any]]) -> bytes:
    book = openpyxl.Workbook()
    sheet: Any = book.active
    sheet.title = "first"
    for row in rows:
        sheet.append(row)
    for name, lines in sheets.items():
        other: Any = book.create_sheet(name)
        for line in lines:
            other.append(line)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def repacked(content: bytes, strings: bytes | None = None, **parts: bytes | None) -> bytes:
    """The same archive with other bytes in some parts (`sheet1`, …), and with shared texts, as Excel has them."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = parts.get(Path(name).stem, old.read(name))
            if strings is not None and name == "[Content_Types].xml" and data is not None:
                kind = b"application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
                part = b'<Override PartName="/xl/sharedStrings.xml" ContentType="%s"/></Types>' % kind
                data = data.replace(b"</Types>", part)
            if data is not None:
                new.writestr(name, data)
        if strings is not None:
            new.writestr("xl/sharedStrings.xml", strings)
    return out.getvalue()


def larger(content: bytes, **sizes: int) -> bytes:
    """The same archive, whose directory says that some parts are of these sizes, and packed as sheets are."""
    out = io.BytesIO(content)
    with zipfile.ZipFile(out, "a") as archive:
        for info in archive.infolist():
            info.file_size = sizes.get(Path(info.filename).stem, info.file_size)
            info.compress_size = max(info.compress_size, info.file_size // 30)
        archive.comment = b"written again"
    return out.getvalue()


MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def sheet_of(*rows: str, strings: str | None = None) -> bytes:
    """A workbook whose first sheet has these rows, as XML, and these shared texts."""
    sheet = f'<worksheet xmlns="{MAIN}"><sheetData>{"".join(rows)}</sheetData></worksheet>'
    texts = None if strings is None else f'<sst xmlns="{MAIN}">{strings}</sst>'.encode()
    return repacked(workbook(["a", "b"]), texts, sheet1=sheet.encode())


def test_xlsx_values() -> None:
    """Numbers, dates, times, texts as they are; JSON can hold them all."""
    content = workbook(
        ["text", "number", "share", "yes", "day", "moment", "clock", "long"],
        [],
        [" x\ny_x0041_", 5, 0.1, True, date(2026, 3, 1), datetime(2026, 3, 1, 9, 30), time(9, 30), timedelta(hours=30)],
        ["é", -7, 1e20, False, None, None, None, None],
        other=[["k"], ["v"]],
    )  # fmt: skip
    good, bad = read(content)
    assert bad == []
    assert good == [
        (3, {"text": " x\nyA", "number": 5, "share": 0.1, "yes": True, "day": "2026-03-01",
             "moment": "2026-03-01T09:30:00", "clock": "09:30:00", "long": "P1DT6H"}),
        (4, {"text": "é", "number": -7, "share": 1e20, "yes": False}),
    ]  # fmt: skip
    assert read(content, sheet="other") == ([(2, {"k": "v"})], [])
    with pytest.raises(Invalid) as caught:
        sources.open(io.BytesIO(content), sheet="third")
    assert caught.value.code == "unknown_sheet" and "first, other" in str(caught.value)


def test_xlsx_cells_without_a_value() -> None:
    """Formulas count by their last value; one that never had one, and an error, is a problem of its row."""
    head = '<row r="1"><c t="str"><v>a</v></c><c t="str"><v>b</v></c></row>'
    rows = [
        '<row r="2"><c r="A2"><f>1+1</f><v>2</v></c><c r="B2" t="str"><f>"x"</f><v>x</v></c></row>',
        '<row r="3"><c r="B3"><f>1+1</f></c></row>',
        '<row r="4"><c r="A4" t="e"><v>#DIV/0!</v></c></row>',
        '<row r="5"><c r="A5"><v>nan</v></c></row>',
        '<row r="6"><c r="A6" t="inlineStr"><is><r><t>x</t></r><r><t>y</t></r><rPh><t>z</t></rPh></is></c></row>',
        '<row r="7"><c r="A7" t="inlineStr"><is><t>_x0000_</t></is></c></row>',
        '<row r="8"><c r="A8"/></row>',
        '<row r="9"><c r="A9" t="b"><v>1</v></c><c r="D9"><v>1</v></c></row>',
        f'<row r="10"><c r="A10"><v>{"9" * 400}</v></c></row>',
    ]
    good, bad = read(sheet_of(head, *rows))
    assert good == [(2, {"a": 2, "b": "x"}), (6, {"a": "xy"})]
    # An empty cell is one of the first row's, as between two commas.
    wide = [
        '<row r="1"><c r="A1"><v>1</v></c><c r="C1"/></row>',
        '<row r="2"><c r="C2"><v>2</v></c><c r="D2"/></row>',
    ]
    assert read(sheet_of(*wide), header=False)[0] == [(1, {"column_1": 1}), (2, {"column_3": 2})]
    assert bad == [
        (3, "b", "no_value"), (4, "a", "cell_error"), (5, "a", "bad_number"), (7, "a", "nul"),
        (9, "column_4", "too_many_cells"), (10, "a", "bad_number"),
    ]  # fmt: skip


def test_xlsx_shared_texts() -> None:
    texts = "<si><t>a</t></si><si><r><t>x </t></r><r><t>y</t></r><rPh><t>z</t></rPh></si><si><t>é_x000D_</t></si><si/>"
    head = '<row r="1"><c t="s"><v>0</v></c></row>'
    rows = [f'<row r="{n}"><c t="s"><v>{n - 1}</v></c></row>' for n in range(2, 5)]
    assert read(sheet_of(head, *rows, strings=texts)) == ([(2, {"a": "x y"}), (3, {"a": "é\r"})], [])


def hostile() -> dict[str, tuple[bytes, str]]:
    plain = workbook(["a", "b"], ["x", "y"])
    doctype = b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><sst><si><t>&e;</t></si></sst>'
    head = '<row r="1"><c t="str"><v>a</v></c></row>'
    return {
        "entities in the texts": (repacked(plain, doctype), "unsafe_file"),
        "entities in the workbook": (repacked(plain, workbook=doctype), "unsafe_file"),
        "entities after a long comment": (repacked(plain, sheet1=b"<!--" + b" " * 99_999 + b"-->" + doctype), "unsafe_file"),
        "a bomb": (repacked(plain, sheet1=b" " * (40 << 20)), "unsafe_file"),
        "a large workbook": (repacked(plain, workbook=b"<x>" + bytes(range(33, 60)) * (1 << 20)), "unsafe_file"),
        "no workbook": (repacked(plain, workbook=None), "broken_file"),
        "no XML": (repacked(plain, sheet1=b"<worksheet"), "broken_file"),
        "rows beyond the last": (sheet_of(head, '<row r="1048576"/>', "<row/>"), "too_many_rows"),
        "a sheet larger than sheets are": (larger(plain, sheet1=513 << 20), "unsafe_file"),
        "texts larger than texts are": (larger(repacked(plain, b"<sst/>"), sharedStrings=513 << 20), "unsafe_file"),
        "a sheet and texts of some size": (larger(repacked(plain, b"<sst/>"), sheet1=300 << 20, sharedStrings=300 << 20), "unsafe_file"),
        "no such text": (sheet_of('<row r="1"><c t="s"><v>99</v></c></row>'), "broken_file"),
        "rows twice": (sheet_of(head, head), "broken_file"),
        "a cell far to the right": (sheet_of('<row r="1"><c r="ZZZZ1"><v>1</v></c></row>'), "broken_file"),
        "no sheet": (repacked(plain, sheet1=None), "unknown_sheet"),
        "nothing": (sheet_of(), "no_rows"),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", hostile())
def test_hostile_xlsx(name: str) -> None:
    content, code = hostile()[name]
    with pytest.raises(Invalid) as caught:
        read(content)
    assert caught.value.code == code


def test_xlsx_row_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sources.xlsx._LARGEST_READ", 1 << 17)
    cells = [f'<c t="str"><v>{os.urandom(30_000).hex()}</v></c>' for _ in range(8)]
    rows = [f'<row r="{number}">{cell}</row>' for number, cell in enumerate(cells, 1)]
    assert len(read(sheet_of(*rows))[0]) == 7
    for long in (f'<row r="1">{"".join(cells)}</row>', f'<row r="1"><c t="str"><v>{"".join(cells)}'):
        with pytest.raises(Invalid) as caught:
            read(sheet_of(long))
        assert caught.value.code == "unsafe_file"


@pytest.mark.timeout(60)
def test_xlsx_cell_far_to_the_right_uses_little_memory() -> None:
    """Rows of one cell are not filled up to it. (That would take five minutes here, and hours in a full sheet.)"""
    head = '<row r="1"><c t="str"><v>a</v></c></row>'
    rows = [
        f'<row r="{number}"><c r="A{number}"/><c r="XFD{number}"><v>1</v></c></row>'
        for number in range(2, 60_002)
    ]
    with sources.open(io.BytesIO(sheet_of(head, *rows))) as source:
        found = {row.problem.code for row in source if row.problem and row.problem.column == "column_16384"}
    assert found == {"too_many_cells"}


@pytest.mark.slow
@pytest.mark.parametrize("element", ["row", "si"])
def test_xlsx_element_memory_is_bounded(element: str) -> None:
    """An element takes some hundred bytes, whatever it has in the file."""
    many = f"<{element}>{'<c/>' * 300_000}</{element}>"
    content = sheet_of(many) if element == "row" else sheet_of(strings=many)
    with pytest.raises(Invalid) as caught:
        read(content)
    assert caught.value.code == "unsafe_file"


def test_xlsx_shared_string_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each text there is a number in memory, even of an empty one."""
    monkeypatch.setattr("penstock.sources.xlsx._MOST_TEXTS", 100)
    head = '<row r="1"><c t="s"><v>0</v></c></row>'
    assert read(sheet_of(head, strings="<si><t>a</t></si>" + "<si/>" * 98))[0] == []
    with pytest.raises(Invalid) as caught:
        read(sheet_of(head, strings="<si><t>a</t></si>" + "<si/>" * 99))
    assert caught.value.code == "unsafe_file"


# --- writing -----------------------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\ufeff=1", "＝1", "＋1", "－1", "＠x",
            "=cmd|' /C calc'!A0", "-2+3+cmd|' /C calc'!D2", "'=1", "''=1", "- buy milk"]  # fmt: skip
HARMLESS = ["x", "-5", "+5", "-5.25", "-1,5", "1e5", "'tis", "a=b", "x;-5|+5\t-1,5\n-2", "a; b", ""]
# What a program that splits at another character would take for a cell of its own.
INNER = {"a;=1+1;b": "a;'=1+1;b", "a|@x": "a|'@x", "a\t=1": "a\t'=1", "x\n=1\r\n-a": "x\n'=1\r'\n'-a",
         'a;"=1+1;': "a;'\"=1+1;", "a; =1": "a;' =1", "a;'=1": "a;''=1", "a;'-5": "a;''-5", ";\n=1": ";'\n'=1"}  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_exports_contain_no_formulas(text: str) -> None:
    """S48: the rule, in each format: text stays text for a spreadsheet, and comes back as it was."""
    for format in ("csv", "jsonl", "xlsx"):
        out = io.BytesIO()
        assert sources.write([{text: text, "n": -5}], [text, "n"], format, out) == 1
        if format == "csv":
            _, cells = csv.reader(io.StringIO(out.getvalue().decode("utf-8-sig"), newline=""))
            assert cells == [sources.safe(text), "-5"] and cells[0].startswith("'")
        elif format == "xlsx":
            [_, cells] = openpyxl.load_workbook(out).active.iter_rows()  # pyright: ignore[reportOptionalMemberAccess]
            values = [str(cell.value).replace("_x000D_", "\r") for cell in cells]
            assert (values, [cell.data_type for cell in cells]) == ([text, "-5"], ["s", "n"])
        with sources.open(out, format=format, delimiter="," if format == "csv" else None) as source:
            [row] = source
        assert text in row.data.values()


@pytest.mark.parametrize("text", [*FORMULAS, *INNER])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_separator_turns_a_csv_export_into_formulas(text: str, separator: str) -> None:
    """S48: every cell is quoted, and a program that splits the file elsewhere finds no formula either."""
    out = io.BytesIO()
    sources.write([{"id": "x", "title": text, "more": text}], ["id", "title", "more"], "csv", out)
    written = out.getvalue().decode("utf-8-sig")
    assert written.startswith('"id","title","more"\r\n"x","')
    rows = csv.reader(io.StringIO(written, newline=""), delimiter=separator)
    cells = [cell.strip(" \ufeff\t\r\n") for row in rows for cell in row]
    assert not [cell for cell in cells if cell[:1] in tuple("=+-@＝＋－＠") and not cell[1:].isdigit()]
    with sources.open(out, format="csv", delimiter=",") as source:
        [row] = source
    assert row.data == {"id": "x", "title": text, "more": text}


@pytest.mark.parametrize("text", INNER)
def test_formulas_inside_a_cell_are_escaped_and_come_back(text: str) -> None:
    assert sources.safe(text) == INNER[text]


@given(text=st.text("a5'\"=-+@;|\t\r\n .", max_size=12))
def test_csv_escape_is_reversible(text: str) -> None:
    assert writers.original(sources.safe(text)) == text


@pytest.mark.parametrize("text", HARMLESS)
def test_text_that_is_no_formula_stays_unchanged(text: str) -> None:
    assert sources.safe(text) == text


def test_values_in_files() -> None:
    row = {"a": Decimal("0.0000010"), "b": True, "c": {"k": [1, "é"]}, "d": None, "e": datetime(2026, 3, 1, 9, 30),
           "f": 0.1, "g": float("inf"), "h": "x y\ud800", "i": 12345678901234567890, "more": 1}  # fmt: skip
    out = io.BytesIO()
    sources.write([row], list("abcdefghi"), "csv", out)
    assert (
        out.getvalue()
        == (
            '\ufeff"a","b","c","d","e","f","g","h","i"\r\n'
            '"0.0000010","true","{""k"": [1, ""é""]}","","2026-03-01T09:30:00","0.1","inf","x y\ufffd",'
            '"12345678901234567890"\r\n'
        ).encode()
    )
    out = io.BytesIO()
    sources.write([row], list("abcdhi"), "jsonl", out)
    assert json.loads(out.getvalue()) == {
        "a": "0.0000010", "b": True, "c": {"k": [1, "é"]}, "d": None, "h": "x y\ufffd", "i": 12345678901234567890,
    }  # fmt: skip
    out = io.BytesIO()
    sources.write([row, {"h": "x" * 40_000}], list("abcdefghi"), "xlsx", out)
    one, two = sources.open(out)
    assert one.data == {
        "a": 0.000001, "b": True, "c": '{"k": [1, "é"]}', "e": "2026-03-01T09:30:00", "f": 0.1, "g": "inf",
        "h": "x y\ufffd", "i": "12345678901234567890",
    }  # fmt: skip
    assert two.data == {"h": "x" * 32_766 + "…"}
    with pytest.raises(Invalid):
        sources.write([], [], "ods", out)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NAMES = st.lists(st.text("abcdefgh =-'é", min_size=1, max_size=5).map(lambda name: f"n{name}".strip()), min_size=1, max_size=4,
                 unique_by=lambda name: " ".join(name.split()))  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_written_tables_are_read_back(data: st.DataObject) -> None:
    """Any text in any cell comes back the same, from each format."""
    columns = [" ".join(name.split()) for name in data.draw(NAMES)]
    written = data.draw(st.lists(st.fixed_dictionaries({name: TEXTS for name in columns}), max_size=5))
    for format in ("csv", "jsonl", "xlsx"):
        out = io.BytesIO()
        sources.write(written, columns, format, out)
        if format == "jsonl":
            assert [row.data for row in sources.open(out, format=format)] == written if written else True
            continue
        options: dict[str, Any] = {} if format == "xlsx" else {"delimiter": ","}
        rows = list(sources.open(out, format=format, **options))
        # A row of blanks is an empty line, and an empty cell is none.
        expected = [{k: v for k, v in row.items() if v} for row in written if "".join(row.values()).strip()]
        assert [(row.data, row.problem) for row in rows] == [(row, None) for row in expected]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.text("a,;\"\n\r'=\t", max_size=60).map(str.encode))
def test_arbitrary_bytes_are_read_or_rejected(content: bytes) -> None:
    for format in ("csv", "jsonl", "xlsx"):
        try:
            read(content, format=format)
        except Invalid as error:
            assert error.code != "error"


def test_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    """R0.1/files: rows are streamed, in every format. (The benchmark does it with a million.)"""
    text = "otters and herons " * 10
    with (tmp_path / "x.jsonl").open("w") as jsonl, (tmp_path / "x.csv").open("w") as table:
        table.write("a,b\n")
        for number in range(100_000):
            table.write(f"{number},{text}{number}\n")
            jsonl.write(f'{{"a": {number}, "b": "{text}{number}"}}\n')
    code = """
import resource, sys
from penstock import sources
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = sum(row.problem is None for path in sys.argv[1:] for row in sources.open(path))
print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.csv", tmp_path / "x.jsonl"], capture_output=True, text=True, check=True
    )  # fmt: skip
    count, grown = map(int, out.stdout.split())
    assert count == 200_000
    assert grown < 20_000  # kB; each file has 20 MB
    assert limits.LARGEST_ROW == 1 << 20 and resource.RUSAGE_SELF == 0
