"""An app with bodies that take long, for tests of the API that loads it."""

from __future__ import annotations

import time
from pathlib import Path

import pydantic

from penstock import App

app = App()


@app.task
def note(n: int) -> int:
    return n


@app.job
def many(count: int) -> None:
    """Add many tasks."""
    for n in range(count):
        note.step(n)


@app.job
def hold(folder: str) -> None:
    """Wait until the test lets it continue."""
    (Path(folder) / "started").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    note.step(1)


@app.job
def spin() -> None:
    """Never end, and never add a step."""
    while True:
        pass


class SlowRow(pydantic.BaseModel):
    """A row whose check never ends."""

    n: int

    @pydantic.field_validator("n")
    @classmethod
    def spin(cls, value: int) -> int:
        """Use CPU time until the process is killed."""
        while True:
            pass


@app.bulk(row=SlowRow)
def slow_rows(row: SlowRow) -> None:
    """Add a task for a row."""
    note.step(row.n)
