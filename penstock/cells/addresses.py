"""The addresses of the cells: `DATABASE_URL` is the cell with the directory, a file names the others."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from penstock.errors import Invalid, NotFound
from penstock.settings import Settings

HINT = 'Each cell is a table: [1] with database_url = "postgresql://…", and api_url for the API.'


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell and how to connect to it."""

    number: int
    database_url: str
    api_url: str | None = None


def read(settings: Settings, directory: str, number: int) -> dict[int, Cell]:
    """All cells by number, that of the directory first: its database URL and number are given.

    The file `PENSTOCK_CELLS` has the others, one table per number. Addresses hold passwords, so they are not
    in the database.
    """
    cells = {number: Cell(number, directory, settings.api_url)}
    if settings.cells_file is None:
        return cells
    try:
        found: dict[str, Any] = tomllib.loads(settings.cells_file.read_text())
    except (OSError, ValueError) as error:
        raise Invalid(
            f"cannot read PENSTOCK_CELLS {str(settings.cells_file)!r}: {error}", hint=HINT
        ) from error
    for name, values in found.items():
        cell = _cell(name, values)
        if cell.number == number:
            raise Invalid(f"PENSTOCK_CELLS names cell {number}, which is the database in DATABASE_URL")
        cells[cell.number] = cell
    return dict(sorted(cells.items(), key=lambda item: (item[0] != number, item[0])))


def _cell(name: str, values: Any) -> Cell:
    if not re.fullmatch(r"0|[1-9][0-9]{0,3}", name) or int(name) > 1023:
        raise Invalid(f"the number of a cell must be between 0 and 1023 (got {name!r})", code="invalid_cell")
    known = {"database_url", "api_url"}
    if not isinstance(values, dict) or not isinstance(values.get("database_url"), str) or set(values) - known:  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        raise Invalid(f"cell {name} in PENSTOCK_CELLS is not valid", code="invalid_cell", hint=HINT)
    return Cell(int(name), values["database_url"], values.get("api_url"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def one(cells: dict[int, Cell], number: int) -> Cell:
    """The cell with this number."""
    if number not in cells:
        raise NotFound(
            f"PENSTOCK_CELLS has no cell {number}", code="unknown_cell", hint="Add its address to the file."
        )
    return cells[number]
