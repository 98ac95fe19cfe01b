"""A small app of the tests that extends every layer: its tables, functions and pages."""

from __future__ import annotations

from pathlib import Path

from penstock import App


def make_app() -> App:
    """The app, with nothing declared in the database yet."""
    return App(
        schema="bookshelf",
        sql=Path(__file__).parent / "sql",
        writable_tables=["notes", "loans"],
        worker_functions={"next_page": None, "finish_page": "p_lease"},
    )
