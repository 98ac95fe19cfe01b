"""A sheet as the source of a bulk job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Invalid
from penstock.sources.a1 import parse

COLUMNS = ("status", "output", "cost", "error")
"""What is written back to each row."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_URL_ID = re.compile(r"/spreadsheets/(?:u/\d+/)?d/([A-Za-z0-9_-]+)")
_GID = re.compile(r"[#&?]gid=(\d+)")


def spreadsheet_id(text: str) -> tuple[str, int | None]:
    """The id of a spreadsheet from its address or id, and the sheet that the address shows, if it says so."""
    found = _URL_ID.search(text)
    if found and found[1] != "e":
        gid = _GID.search(text)
        return found[1], int(gid[1]) if gid else None
    if found is None and _ID.fullmatch(text):
        return text, None
    raise Invalid(
        f"{text[:200]!r} is not a spreadsheet",
        code="invalid_spreadsheet",
        hint="Copy its address from the browser: https://docs.google.com/spreadsheets/d/… (and not the one "
        "under which it is published).",
    )


@dataclass(frozen=True)
class GoogleSheet:
    """A sheet whose rows are the rows of a bulk job, and to which is written back what became of them.

    `spreadsheet` is its address or id; `range` a part of it, `Ideas!A1:F`, whose first row has the names.
    `rename` gives columns other names. `write` says what the columns are called that are written: found by
    their names, or added at the right; `False` writes nothing.
    """

    spreadsheet: str
    range: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    write: Mapping[str, str] | bool = True

    @property
    def description(self) -> dict[str, Any]:
        """What is kept of it."""
        id, gid = spreadsheet_id(self.spreadsheet)
        if self.range is not None:
            parse(self.range)
        found = {"gid": gid, "range": self.range, "rename": dict(self.rename), "write": self.written}
        return {"type": "google-sheets", "id": id} | {k: v for k, v in found.items() if v not in (None, {})}

    @property
    def written(self) -> dict[str, str]:
        """The name of each column that is written."""
        if self.write is False:
            return {}
        chosen = dict(self.write) if isinstance(self.write, Mapping) else {}
        names = {column: column for column in COLUMNS} | chosen
        if len(names) > len(COLUMNS) or len(set(names.values())) < len(names) or "" in names.values():
            hint = f"There are: {', '.join(COLUMNS)}."
            raise Invalid(
                "write has a column that there is not, or one name twice", code="unknown_column", hint=hint
            )
        return names
