"""Reads and writes Google Sheets through its API v4.

    sheets = Sheets("service-account.json")
    async for number, cells in sheets.rows("https://docs.google.com/spreadsheets/d/…", "Ideas!A1:F"):
        ...
    await sheets.write(spreadsheet, blocks("Ideas", left=7, rows={2: ["done", "https://…"]}))

Values are written RAW, so that no text becomes a formula, and to explicit ranges, so that writes are
idempotent. This package does not retry: it raises Google's errors with status and headers, and the caller,
which knows the rate limits, backs off. Tokens are sent only to Google (or the configured URL) and never
appear in messages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock import extras
from penstock.sheets.cells import LARGEST_REQUEST, LONGEST_CELL, Block, Part, blocks, cell, table_rows
from penstock.sheets.source import COLUMNS, GoogleSheet, spreadsheet_id

if TYPE_CHECKING:
    from penstock.sheets.client import Sheets, Spreadsheet, Tab

# Imported on first use, because few apps use sheets.
_OF_CLIENT = ("Sheets", "Spreadsheet", "Tab")

__all__ = [
    "COLUMNS",
    "LARGEST_REQUEST",
    "LONGEST_CELL",
    "Block",
    "GoogleSheet",
    "Part",
    "Sheets",
    "Spreadsheet",
    "Tab",
    "blocks",
    "cell",
    "spreadsheet_id",
    "table_rows",
]


def __getattr__(name: str) -> Any:
    if name in _OF_CLIENT:
        with extras.required():
            return getattr(importlib.import_module("penstock.sheets.client"), name)
    raise AttributeError(f"module 'penstock.sheets' has no attribute {name!r}")
