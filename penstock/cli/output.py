"""How the command line answers: data on stdout, messages on stderr.

On a terminal data is a table with colours; elsewhere a plain one, of the same columns. With `-o json` it is
one document (a list is `[]` when empty), with `-o jsonl` a document per line; an error is then a problem
document on stderr. With `-o csv` it is a table of all fields for a spreadsheet. Decimals are texts in JSON,
so that they keep their digits. What comes from the database is never taken for markup, and its control
characters are not printed.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.options import Output, chosen
from penstock.errors import Invalid, NotMigrated, PenstockError, to_problem
from penstock.words import clean, duration
from penstock.words import money as money

_WIDE = 12  # so much of a column that may be cut is shown at least
_LOOKS = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✗", "bold red"),
    "queued": ("○", "dim"),
    "blocked": ("○", "dim"),
    "waiting": ("○", "dim"),
    "running": ("●", "cyan"),
    "paused": ("‖", "yellow"),
    "draining": ("‖", "yellow"),
    "completed": ("✓", "green"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "canceled": ("⊘", "dim"),
    "late": ("!", "yellow"),
    "gone": ("✗", "bold red"),
    "stopped": ("⊘", "dim"),
    "active": ("✓", "green"),
    "full": ("●", "cyan"),
    "closed": ("‖", "yellow"),
    "maintenance": ("‖", "yellow"),
    "exhausted": ("✗", "bold red"),
    "disabled": ("⊘", "dim"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, what it shows of a row, and how it looks on a terminal."""

    title: str
    text: Callable[[Any], str]
    is_right: bool = False
    is_status: bool = False
    is_wide: bool = False
    """It takes what room there is, and is cut where there is none. Other columns are always whole."""
    is_spare: bool = False
    """It is left out of a terminal that is too narrow."""
    share: Callable[[Any], float | None] | None = None
    """How full a bar before the text is, on a terminal; None: no bar."""
    style: str = ""


def is_terminal() -> bool:
    """Whether data goes to a terminal, for a person."""
    return sys.stdout.isatty() and chosen().output is Output.text


def console(*, stderr: bool = False) -> Console:
    """A console on one of the two streams, as they are now."""
    return Console(stderr=stderr, no_color=chosen().no_color or None, highlight=False, soft_wrap=stderr)


def note(message: str, style: str = "") -> None:
    """A message for a person."""
    console(stderr=True).print(Text(message, style=style))


def facts(found: Iterable[tuple[str, str | Text]]) -> None:
    """Print names and values, one below the other; what has no value is left out."""
    known = [(name, value) for name, value in found if value]
    width = max(len(name) for name, _ in known)
    for name, value in known:
        text = value if isinstance(value, Text) else Text(clean(value))
        if is_terminal():
            line = Text.assemble((f"{name:<{width}}", "dim"), "  ", text)
            console().print(line, no_wrap=True, overflow="ellipsis")
        else:
            print(f"{name:<{width}}  {text.plain}")


def rows(found: Sequence[Any], columns: Sequence[Column], *, empty: str) -> None:
    """Print a list."""
    match chosen().output:
        case Output.json:
            print(json.dumps([plain(row) for row in found], indent=2, ensure_ascii=False))
        case Output.jsonl:
            for row in found:
                print(json.dumps(plain(row), ensure_ascii=False))
        case Output.csv:
            _csv([plain(row) for row in found])
        case Output.text:
            if not found:
                note(empty)
            elif is_terminal():
                console().print(table(found, columns))
            else:
                print(plain_table(found, columns))


def document(value: Any, show: Callable[[], None]) -> None:
    """Print one thing: as JSON, or as `show` does it for a person."""
    match chosen().output:
        case Output.json:
            print(json.dumps(plain(value), indent=2, ensure_ascii=False))
        case Output.jsonl:
            print(json.dumps(plain(value), ensure_ascii=False), flush=True)
        case Output.csv:
            _csv([plain(value)])
        case Output.text:
            show()


def _csv(found: Sequence[Any]) -> None:
    """All fields of each row; what is a list or an object in itself stands there as JSON."""
    # Not at the top: no other output needs the formats of files.
    from penstock.sources.writers import cell

    lines: list[dict[str, Any]] = [row if isinstance(row, dict) else {"value": row} for row in found]
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows([names] if names else [])
    writer.writerows([cell(line.get(name)) for name in names] for line in lines)


def plain(value: Any) -> Any:
    """A value of this package as JSON has it."""
    return json.loads(json.dumps(value, default=_default))


def _default(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return decimal(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON")


# Tables


def table(found: Iterable[Any], columns: Sequence[Column]) -> Table:
    """A table for a terminal, as wide as that is: first spare columns are left out, then bars."""
    given = list(found)
    lines = [[_cell(row, column) for column in columns] for row in given]
    kept, is_fitting = _fitting(lines, columns)
    if not is_fitting and any(column.share for column in columns):
        columns = [replace(column, share=None) for column in columns]
        lines = [[_cell(row, column) for column in columns] for row in given]
        kept, _ = _fitting(lines, columns)
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for i in kept:
        # Where there is too little room, rich takes it from the columns that may wrap.
        may_shrink = columns[i].is_wide
        result.add_column(
            columns[i].title, justify="right" if columns[i].is_right else "left", no_wrap=not may_shrink
        )
    for line in lines:
        result.add_row(*(line[i] for i in kept))
    return result


def _fitting(lines: Sequence[Sequence[Text]], columns: Sequence[Column]) -> tuple[list[int], bool]:
    """Which columns there is room for, and whether that is enough."""
    widths = [
        _WIDE if column.is_wide else max(len(column.title), *(line[i].cell_len for line in lines))
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for spare in [i for i in reversed(kept) if columns[i].is_spare]:
        if sum(widths[i] + 2 for i in kept) > console().width + 2:
            kept.remove(spare)
    return kept, sum(widths[i] + 2 for i in kept) <= console().width + 2


def _cell(row: Any, column: Column) -> Text:
    text = clean(column.text(row))
    cell = look(text) if column.is_status else Text(text, style=column.style)
    if column.share is not None and (share := column.share(row)) is not None:
        style = "red" if share >= 1 else "yellow" if share >= 0.8 else "green"
        cell = Text.assemble(bar(share, 8, style), " ", cell)
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def look(status: str) -> Text:
    """A state as an icon, a word and a colour: none of them is left alone with the message."""
    icon, style = _LOOKS.get(status, ("·", ""))
    return Text(f"{icon} {status}", style=style)


def plain_table(found: Iterable[Any], columns: Sequence[Column]) -> str:
    """A table for a file or a pipe: nothing is cut."""
    lines = [[column.title for column in columns]]
    lines += [[clean(column.text(row)) or "-" for column in columns] for row in found]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column.is_right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


# Words for people


def age(moment: datetime | None) -> str:
    """How long ago, or how soon."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return duration(seconds) if seconds >= 0 else f"in {duration(-seconds)}"


def counted(count: int, noun: str) -> str:
    """A number of things."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def decimal(amount: Decimal) -> str:
    """An amount with every digit it has, and none that says nothing."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(used: Decimal | int, limit: Decimal | int | None) -> float | None:
    """Which part of a limit is used; None where there is none."""
    if limit is None:
        return None
    return float(used / limit) if limit else 1.0


def bar(fraction: float, width: int = 20, style: str = "green") -> Text:
    """A bar, so far filled."""
    filled = int(max(0.0, min(1.0, fraction)) * width)
    return Text("█" * filled, style=style) + Text("░" * (width - filled), style="dim")


# Asking and failing


def confirm(question: str) -> None:
    """Ask before something that is hard to undo; without anybody to ask, --yes must have been given."""
    if chosen().yes:
        return
    if not sys.stdin.isatty():
        raise Invalid(
            f"{question} There is no terminal to ask on.",
            code="confirmation_missing",
            hint="Add --yes if this is what you want.",
        )
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)


def complain(error: PenstockError, *, is_json: bool) -> None:
    """Print an error: for a person, or as a problem document (RFC 9457)."""
    hint = error.hint or ("Run `penstock migrate`." if isinstance(error, NotMigrated) else None)
    if is_json:
        problem = to_problem(error)
        print(json.dumps({**problem, "hint": hint} if hint else problem, default=str), file=sys.stderr)
        return
    message = "\n".join(clean(line) for line in error.message.strip().splitlines())
    text = Text("Error: ", style="bold red") + Text(message, style="default not bold")
    console(stderr=True).print(text + Text(f"\n{hint}", style="dim") if hint else text)
