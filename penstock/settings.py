"""Every knob that is set from outside: one frozen object, read from the environment once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from penstock.errors import Invalid

Listen = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. Each field names its variable."""

    database_url: str | None = None
    """`DATABASE_URL`: the PostgreSQL to use. Without it an embedded server is started."""

    home: Path = Path(".penstock")
    """`PENSTOCK_HOME`: the folder for the embedded server's data and for local files."""

    listen: Listen = "auto"
    """`PENSTOCK_LISTEN`: whether workers LISTEN for new work. `off` behind a transaction pooler; `auto`
    tries, and falls back to polling."""


def read(environment: Mapping[str, str]) -> Settings:
    """Settings from a mapping such as `os.environ`. An empty value counts as none."""
    listen = environment.get("PENSTOCK_LISTEN") or "auto"
    if listen not in ("auto", "on", "off"):
        raise Invalid(f"PENSTOCK_LISTEN is {listen!r}", hint="Set it to auto, on or off.")
    return Settings(
        database_url=environment.get("DATABASE_URL") or None,
        home=Path(environment.get("PENSTOCK_HOME") or ".penstock"),
        listen=listen,
    )


@cache
def settings() -> Settings:
    """The process's settings."""
    return read(os.environ)
