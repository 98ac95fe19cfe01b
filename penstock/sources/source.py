"""The base class of sources: a file with a description, columns and rows."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO

from penstock.sources.rows import Row


class Source(ABC):
    """A table to read. Supports one iteration at a time."""

    columns: list[str]
    """Column names in order. For JSONL, those seen so far."""

    def __init__(self, file: BinaryIO, name: str, format: str, is_own: bool) -> None:
        self._file, self._is_own = file, is_own
        file.seek(0)
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        self.description: dict[str, Any] = {
            "type": format,
            "name": name,
            "size": file.tell(),
            "digest": f"sha256:{digest.hexdigest()}",
        }
        """Type, name, size, digest and parse options, as JSON."""

    @abstractmethod
    def __iter__(self) -> Iterator[Row]: ...

    def close(self) -> None:
        """Close the file, unless the caller opened it."""
        if self._is_own:
            self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
