"""`python -m penstock.apps.reading [TITLE CHAPTER…]`: start a book, wait for it, and say where it is.

A worker makes it (`penstock worker penstock.apps.reading.app:app`), and somebody has to write it
(`penstock simulate --port 8090`, or what `READING_MODEL` names).
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.apps.reading.app import app, declare, reading
from penstock.apps.reading.books import RUNNING_WATER


def main(words: list[str]) -> None:
    """Start it and wait."""
    with app:
        app.block(declare())
        wanted: dict[str, Any] = {"title": words[0], "chapters": words[1:]} if words else RUNNING_WATER
        job = reading.start(**wanted)
        print(f"job {job.id}: penstock jobs watch {job.id}")
        book = job.result()
        print(f"{book['documents']} documents, {book['pages']} pages: penstock artifacts ls {job.id}")


if __name__ == "__main__":
    main(sys.argv[1:])
