"""`python -m penstock.apps.reading [TITLE CHAPTER…]`: start a book and wait for it.

Needs a worker (`penstock worker penstock.apps.reading.app:app`) and a language model: the simulator
(`penstock simulate --port 8090`) or the provider in `READING_MODEL`.
"""

from __future__ import annotations

import sys
from typing import Any

from penstock.apps.reading.app import app, declare, reading
from penstock.apps.reading.books import RUNNING_WATER


def main(words: list[str]) -> None:
    """Start the job and wait for it."""
    with app:
        app.block(declare())
        wanted: dict[str, Any] = {"title": words[0], "chapters": words[1:]} if words else RUNNING_WATER
        job = reading.start(**wanted)
        print(f"Started {job.id}. Watch it: penstock jobs watch {job.id}")
        book = job.result()
        print(f"Made {book['documents']} documents. List the files: penstock artifacts ls {job.id}")


if __name__ == "__main__":
    main(sys.argv[1:])
