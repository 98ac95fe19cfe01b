"""Memory and time limits of the subprocesses that open documents of strangers."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

MEMORY_BYTES = 2 << 30
"""The memory that a subprocess may allocate beyond its current size."""


class TooMuchWork(Exception):
    """The document needs more time than a document may."""


@contextmanager
def limited(seconds: int, memory_bytes: int = MEMORY_BYTES) -> Generator[None]:
    """Limit the address space of this process, and the CPU time of this block. For subprocesses only.

    A busy machine makes a document slow, but not too large: the time limit of the task ends such an attempt.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space() + memory_bytes
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooMuchWork(f"not finished within {seconds} seconds of CPU time")

    has_alarm = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGPROF, stop) if has_alarm else None
    if has_alarm:
        signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        if has_alarm:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _address_space() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 1 << 30
