"""Options and arguments of `penstock bulk`, and the file or sheet they describe."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from penstock import sources
from penstock.cli.parsing import pairs_of
from penstock.errors import Invalid
from penstock.sheets import GoogleSheet
from penstock.types import LinkKind

_APP_OPTION = typer.Option(
    "--app",
    metavar="MODULE:APP",
    envvar="PENSTOCK_APP",
    show_default=False,
    help="App that defines the bulk type.",
)
AppOption = Annotated[str, _APP_OPTION]
MaybeAppOption = Annotated[str | None, _APP_OPTION]
TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", show_default=False, help="Bulk job type.")]
FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", show_default=False, help="CSV, TSV, XLSX or JSONL file, or the URL of a Google Sheet."
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="File format: csv, tsv, xlsx or jsonl (default: from the file name)."),
]
EncodingOption = Annotated[
    str | None, typer.Option(help="Text encoding (default: from the BOM, otherwise UTF-8).")
]
DelimiterOption = Annotated[str | None, typer.Option(help="Delimiter (default: detected).")]
SheetOption = Annotated[
    str | None,
    typer.Option(
        help="Sheet name; for a Google Sheet also a range, such as Ideas!A1:F (default: first sheet)."
    ),
]
NoHeaderOption = Annotated[
    bool,
    typer.Option("--no-header", help="Treat the first row as data; columns are named column_1, column_2, …"),
]
RenameOption = Annotated[
    list[str] | None, typer.Option("--rename", metavar="COLUMN=NAME", help="Rename a column. Repeatable.")
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link",
        metavar="public|signed|login",
        help="Who may open the links of files that are written to a Google Sheet (default: login).",
    ),
]
ParamOption = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="Parameter of the bulk type. Repeatable."),
]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="AMOUNT", help="Pause before the job costs more than this.")
]
StatesOption = Annotated[
    str | None,
    typer.Option("--state", metavar="A,B", help="Only rows in these states, for example failed,refused."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch/--no-watch", help="Watch the job until it ends, or only print its id.")
]


@dataclass(frozen=True, slots=True)
class Input:
    """The file or Google Sheet to read, and how to parse it."""

    file: str
    format: str | None
    encoding: str | None
    delimiter: str | None
    sheet: str | None
    no_header: bool
    rename: list[str] | None
    link: str | None = None

    @contextmanager
    def source(self) -> Generator[sources.Source | GoogleSheet]:
        """Open the file, or refer to the Google Sheet if `file` is a URL."""
        if self.file.startswith("https://"):
            link = cast(LinkKind | None, self.link)  # the database checks it
            yield GoogleSheet(self.file, self.sheet, pairs_of(self.rename or []), link=link)
            return
        if self.link is not None:
            raise Invalid("--link is for Google Sheets: the results of a file are exported, not written back")
        with self.opened() as file:
            yield file

    @contextmanager
    def opened(self) -> Generator[sources.Source]:
        """Open the file."""
        with sources.open(
            Path(self.file),
            format=self.format,
            encoding=self.encoding,
            delimiter=self.delimiter,
            sheet=self.sheet,
            header=not self.no_header,
            rename=pairs_of(self.rename or []) or None,
        ) as source:
            yield source
