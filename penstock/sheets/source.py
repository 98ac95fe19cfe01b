"""A Google Sheet as the source of a bulk job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import Invalid
from penstock.sources.a1 import parse
from penstock.types import LinkKind

COLUMNS = ("status", "output", "cost", "error")
"""Columns written back to each row."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
_URL_ID = re.compile(r"/spreadsheets/(?:u/\d+/)?d/([A-Za-z0-9_-]+)")
_GID = re.compile(r"[#&?]gid=(\d+)")


def spreadsheet_id(text: str) -> tuple[str, int | None]:
    """The id of a spreadsheet from its URL or id, and the sheet id in the URL, if any."""
    found = _URL_ID.search(text)
    if found and found[1] != "e":
        gid = _GID.search(text)
        return found[1], int(gid[1]) if gid else None
    if found is None and _ID.fullmatch(text):
        return text, None
    raise Invalid(
        f"invalid spreadsheet {text[:200]!r}",
        code="invalid_spreadsheet",
        hint="Copy the URL from the browser: https://docs.google.com/spreadsheets/d/… (not a published URL).",
    )


@dataclass(frozen=True)
class GoogleSheet:
    """A sheet whose rows become a bulk job, and which receives their results.

    `spreadsheet`: its URL or id. `range`: a part of it, such as `Ideas!A1:F`, whose first row has the column
    names. `rename`: new names of columns. `write`: names of the columns to write, which are found by name or
    added at the right; `False` writes nothing. `link`: who may open the links of files that are written:
    `public`, `signed` or `login` (the default).
    """

    spreadsheet: str
    range: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict[str, str])
    write: Mapping[str, str] | bool = True
    link: LinkKind | None = None

    @property
    def description(self) -> dict[str, Any]:
        """The description stored with the job."""
        id, gid = spreadsheet_id(self.spreadsheet)
        if self.range is not None:
            parse(self.range)
        found = {"gid": gid, "range": self.range, "rename": dict(self.rename), "write": self.written}
        found["link"] = self.link
        return {"type": "google-sheets", "id": id} | {k: v for k, v in found.items() if v not in (None, {})}

    @property
    def written(self) -> dict[str, str]:
        """The names of the columns to write."""
        if self.write is False:
            return {}
        chosen = dict(self.write) if isinstance(self.write, Mapping) else {}
        names = {column: column for column in COLUMNS} | chosen
        if len(names) > len(COLUMNS) or len(set(names.values())) < len(names) or "" in names.values():
            hint = f"Columns: {', '.join(COLUMNS)}. Names must be unique."
            raise Invalid("write has an unknown column or a duplicate name", code="unknown_column", hint=hint)
        return names
