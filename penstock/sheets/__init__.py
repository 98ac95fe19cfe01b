"""Google Sheets, through its API v4: what a sheet holds, and cells written to it.

    sheets = Sheets("service-account.json")
    async for number, cells in sheets.rows("https://docs.google.com/spreadsheets/d/…", "Ideas!A1:F"):
        ...
    await sheets.write(spreadsheet, blocks("Ideas", left=7, rows={2: ["done", "https://…"]}))

Values are written RAW, so that no text becomes a formula, and to ranges that are said, so that a write that
is repeated is the same write. Nothing is tried again here: what Google refuses is raised, with its status and
headers, and whoever keeps the budgets waits. A token is sent to Google only (or to the address that was
configured), and is in no message.
"""

from __future__ import annotations

from penstock.sheets.account import TOKEN_URL
from penstock.sheets.cells import (
    LARGEST_REQUEST,
    LONGEST_CELL,
    Block,
    Part,
    blocks,
    cell,
    request,
    table_rows,
)
from penstock.sheets.client import BASE_URL, Sheets, Spreadsheet, Tab, spreadsheet_id

__all__ = [
    "BASE_URL",
    "LARGEST_REQUEST",
    "LONGEST_CELL",
    "TOKEN_URL",
    "Block",
    "Part",
    "Sheets",
    "Spreadsheet",
    "Tab",
    "blocks",
    "cell",
    "request",
    "spreadsheet_id",
    "table_rows",
]
