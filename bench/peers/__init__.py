"""The other systems, each at its documented fastest settings, with no-op jobs. See `bench.measure.System`."""

from __future__ import annotations

import importlib
from typing import cast

from bench import measure

NAMES = ("graphile", "pgmq", "pgboss", "pgqueuer", "awa", "procrastinate", "dbos", "celery")


def load(name: str) -> measure.System:
    """Imported on demand: a worker of one system must not carry another, nor must all be installed."""
    return cast(measure.System, importlib.import_module(f"bench.peers.{name}"))
