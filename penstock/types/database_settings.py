"""Types of database settings, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that all processes share."""

    name: str
    value: Any
    comment: str
