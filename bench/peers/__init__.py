"""The other systems, each at its documented fastest settings, with no-op jobs. See `bench.measure.System`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import cast

from bench import measure, server

NAMES = ("graphile", "pgqueuer", "procrastinate", "celery")


def load(name: str) -> measure.System:
    """Imported on demand: a worker of one system must not carry another, nor must all be installed."""
    return cast(measure.System, importlib.import_module(f"bench.peers.{name}"))


def run(name: str, new_database: Callable[[], str], jobs: int, samples: int) -> list[measure.Figure]:
    """One round for one peer. ImportError or UnavailableError where it cannot run here."""
    peer = load(name)
    if peer.STORE == "postgresql":
        return measure.measure(peer, new_database, jobs, samples)
    with ExitStack() as stack:
        return measure.measure(peer, lambda: stack.enter_context(server.redis()), jobs, samples)
