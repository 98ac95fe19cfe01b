"""The other systems, each at its documented fastest settings, with no-op jobs. See `bench.measure.System`."""

from __future__ import annotations

import importlib
from typing import cast

from bench.measure import System

NAMES = ("graphile", "pgqueuer", "procrastinate", "celery")


def load(name: str) -> System:
    """Imported on demand: a worker of one system must not carry another, nor must all be installed."""
    return cast(System, importlib.import_module(f"bench.peers.{name}"))
