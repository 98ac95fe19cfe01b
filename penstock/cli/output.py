"""What the command line prints: data on stdout, messages on stderr.

On a terminal, data is a table with colors; in a file or pipe, a plain table with the same columns. `-o json`
prints one document (an empty list is `[]`), `-o jsonl` one document per line; errors are then problem
documents (RFC 9457) on stderr. `-o csv` prints all fields, for a spreadsheet. Decimals are strings in JSON,
which keeps all digits. Text from the database is never read as markup; its control characters are removed.
"""

from __future__ import annotations

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

from penstock.cli.options import Output, current_options
from penstock.errors import Invalid, NotMigrated, PenstockError, to_problem
from penstock.formatting import clean, duration
from penstock.formatting import counted as counted
from penstock.formatting import money as money

_MIN_WIDTH = 12  # of a column that may be truncated
_LOOKS = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✗", "bold red"),
    "queued": ("○", "dim"),
    "blocked": ("○", "dim"),
    "waiting": ("○", "dim"),
    "running": ("●", "cyan"),
    "open": ("○", "yellow"),
    "answered": ("✓", "green"),
    "timeout": ("✗", "bold red"),
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
    """A column of a table: its title, its text for a row, and its style on a terminal."""

    title: str
    text: Callable[[Any], str]
    is_right: bool = False
    is_status: bool = False
    is_wide: bool = False
    """Truncated where the terminal is too narrow. Other columns are always printed in full."""
    is_spare: bool = False
    """Omitted where the terminal is too narrow."""
    share: Callable[[Any], float | None] | None = None
    """On a terminal, the filled fraction of a bar before the text; None for no bar."""
    style: str = ""


def is_terminal() -> bool:
    """Whether data is printed as text on a terminal."""
    return sys.stdout.isatty() and current_options().output is Output.text


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr."""
    return Console(
        stderr=stderr, no_color=current_options().no_color or None, highlight=False, soft_wrap=stderr
    )


def note(message: str, style: str = "") -> None:
    """Print a message to stderr."""
    console(stderr=True).print(Text(message, style=style))


def fields(found: Iterable[tuple[str, str | Text]]) -> None:
    """Print one name and value per line. Names without a value are omitted."""
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
    match current_options().output:
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
    """Print one object: as JSON or CSV, or as text by calling `show`."""
    match current_options().output:
        case Output.json:
            print(json.dumps(plain(value), indent=2, ensure_ascii=False))
        case Output.jsonl:
            print(json.dumps(plain(value), ensure_ascii=False), flush=True)
        case Output.csv:
            _csv([plain(value)])
        case Output.text:
            show()


def _csv(found: Sequence[Any]) -> None:
    """Print all fields of each row. Lists and objects become JSON."""
    # Imported here because no other output format needs the file writers.
    from penstock.sources.writers import cell, csv_writer

    lines: list[dict[str, Any]] = [row if isinstance(row, dict) else {"value": row} for row in found]
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv_writer(sys.stdout, "\n")
    writer.writerows([[cell(name) for name in names]] if names else [])
    writer.writerows([cell(line.get(name)) for name in names] for line in lines)


def plain(value: Any) -> Any:
    """The value as plain JSON types."""
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
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


# Tables


def table(found: Iterable[Any], columns: Sequence[Column]) -> Table:
    """A table that fits the terminal: drops spare columns first, then bars."""
    given = list(found)
    lines = [[_cell(row, column) for column in columns] for row in given]
    kept, is_fitting = _fitting(lines, columns)
    if not is_fitting and any(column.share for column in columns):
        columns = [replace(column, share=None) for column in columns]
        lines = [[_cell(row, column) for column in columns] for row in given]
        kept, _ = _fitting(lines, columns)
    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for i in kept:
        # rich shrinks the columns that may wrap.
        may_shrink = columns[i].is_wide
        result.add_column(
            columns[i].title, justify="right" if columns[i].is_right else "left", no_wrap=not may_shrink
        )
    for line in lines:
        result.add_row(*(line[i] for i in kept))
    return result


def _fitting(lines: Sequence[Sequence[Text]], columns: Sequence[Column]) -> tuple[list[int], bool]:
    """The indexes of the columns to show, and whether they fit."""
    widths = [
        _MIN_WIDTH if column.is_wide else max(len(column.title), *(line[i].cell_len for line in lines))
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for spare in [i for i in reversed(kept) if columns[i].is_spare]:
        if sum(widths[i] + 2 for i in kept) > console().width + 2:
            kept.remove(spare)
    return kept, sum(widths[i] + 2 for i in kept) <= console().width + 2


def _cell(row: Any, column: Column) -> Text:
    text = clean(column.text(row))
    cell = status_text(text) if column.is_status else Text(text, style=column.style)
    if column.share is not None and (share := column.share(row)) is not None:
        style = "red" if share >= 1 else "yellow" if share >= 0.8 else "green"
        cell = Text.assemble(bar(share, 8, style), " ", cell)
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell


def status_text(status: str) -> Text:
    """A status as icon, text and color, so that no meaning depends on color alone."""
    icon, style = _LOOKS.get(status, ("·", ""))
    return Text(f"{icon} {status}", style=style)


def plain_table(found: Iterable[Any], columns: Sequence[Column]) -> str:
    """A table for a file or a pipe. Nothing is truncated."""
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


# Formatting


def age(moment: datetime | None) -> str:
    """Time since the moment, or until it: "3m", "in 3m"."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return duration(seconds) if seconds >= 0 else f"in {duration(-seconds)}"


def when(moment: datetime | None) -> str:
    """A time, and how long ago or how soon it is."""
    if moment is None:
        return ""
    distance = age(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S %Z} ({distance if distance.startswith('in ') else distance + ' ago'})"


def decimal(amount: Decimal) -> str:
    """An amount with all significant digits and no trailing zeros."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def share(used: Decimal | int, limit: Decimal | int | None) -> float | None:
    """The used fraction of a limit; None if there is no limit."""
    if limit is None:
        return None
    return float(used / limit) if limit else 1.0


def bar(fraction: float, width: int = 20, style: str = "green") -> Text:
    """A progress bar."""
    filled = int(max(0.0, min(1.0, fraction)) * width)
    return Text("█" * filled, style=style) + Text("░" * (width - filled), style="dim")


# Confirmations and errors


def confirm(question: str) -> None:
    """Ask before an action that is hard to undo. Without a terminal, require --yes."""
    if current_options().yes:
        return
    if not sys.stdin.isatty():
        raise Invalid(
            f"{question} Confirmation needs a terminal.",
            code="confirmation_missing",
            hint="Add --yes to proceed without asking.",
        )
    if not typer.confirm(question, err=True):
        note("Nothing was changed.")
        raise typer.Exit(1)


def print_error(error: PenstockError, *, is_json: bool) -> None:
    """Print an error as text or as a problem document (RFC 9457)."""
    hint = error.hint or ("Run `penstock migrate`." if isinstance(error, NotMigrated) else None)
    if is_json:
        problem = to_problem(error)
        print(json.dumps({**problem, "hint": hint} if hint else problem, default=str), file=sys.stderr)
        return
    message = "\n".join(clean(line) for line in error.message.strip().splitlines())
    text = Text("Error: ", style="bold red") + Text(message, style="default not bold")
    console(stderr=True).print(text + Text(f"\n{hint}", style="dim") if hint else text)
