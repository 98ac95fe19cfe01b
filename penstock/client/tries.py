"""How often something is tried, and how long to wait in between."""

from __future__ import annotations

import random
import time

from penstock.errors import Limited, PenstockError, TimedOut, Unavailable

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_LONGEST_WAIT = 60.0
"""Who is told to come back later than this is told so."""


class Tries:
    """The tries of one thing: full jitter, doubling; longer where the server says so."""

    def __init__(self, retries: int, until: float | None = None) -> None:
        self._left = retries
        self._retries = retries
        self._until = until

    def seconds(self, most: float) -> float:
        """How long to wait for an answer."""
        return most if self._until is None else min(most, max(self._until - time.monotonic(), 0.05))

    def reset(self) -> None:
        """There was some progress: it may fail as often again."""
        self._left = self._retries

    def pause(self, error: PenstockError) -> float:
        """How long to wait before the next try. Raises the error if there is to be none."""
        after = error.retry_after
        is_worth_it = isinstance(error, Unavailable) or (isinstance(error, Limited) and after is not None)
        if not is_worth_it or self._left <= 0 or (after or 0) > _LONGEST_WAIT:
            raise error
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._retries - self._left))
        self._left -= 1
        pause = (after or 0) + random.uniform(0, longest)
        if self._until is not None and time.monotonic() + pause > self._until:
            raise TimedOut from error
        return pause
