"""Uploads that end in the app's own transaction.

@app.upload("slides:")
async def add_slide(conn: db.Connection, file: Artifact) -> None:
    await artifacts.keep(conn, artifact_id=file.id, subject="slides.slide")
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.contract.artifacts import Finish
from penstock.errors import Invalid


class Uploads:
    """The part of an app that declares what happens when an upload is stored."""

    def __init__(self) -> None:
        self.uploads: dict[str, Finish] = {}
        """The app's own writes, by the prefix of the upload's idempotency key."""

    def upload(self, key_prefix: str) -> Callable[[Finish], Finish]:
        """Declare the app's own writes for uploads whose idempotency key begins with this prefix.

        They are made in the transaction that marks the file as stored: when the client finishes the upload,
        or a minute after it sent the bytes and died.
        """
        if not 2 <= len(key_prefix) <= 100:
            text = f"the prefix of an upload must have 2 to 100 characters (got {key_prefix!r})"
            raise Invalid(text, details={"field": "key_prefix"})
        for other in self.uploads:
            if other.startswith(key_prefix) or key_prefix.startswith(other):
                text = f"the prefixes {other!r} and {key_prefix!r} overlap"
                raise Invalid(text, details={"field": "key_prefix"})

        def add(finish: Finish) -> Finish:
            self.uploads[key_prefix] = finish
            return finish

        return add

    def finish_of(self, idempotency_key: str | None) -> Finish | None:
        """The app's own writes for the upload with this key, if it is one of the app's."""
        key = idempotency_key or ""
        return next((finish for prefix, finish in self.uploads.items() if key.startswith(prefix)), None)
