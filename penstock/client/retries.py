"""Retries: how often to retry, and how long to wait in between."""

from __future__ import annotations

import random
import time

from penstock.errors import Limited, PenstockError, TimedOut, Unavailable

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_LONGEST_WAIT = 60.0
"""Longer Retry-After values are not waited for: the error is raised."""


class Retries:
    """Retries of one operation: exponential backoff with full jitter, and at least Retry-After."""

    def __init__(self, retries: int, until: float | None = None) -> None:
        self._left = retries
        self._retries = retries
        self._until = until

    def seconds(self, most: float) -> float:
        """The timeout of the next try."""
        return most if self._until is None else min(most, max(self._until - time.monotonic(), 0.05))

    def reset(self) -> None:
        """Start counting again after progress."""
        self._left = self._retries

    def pause(self, error: PenstockError) -> float:
        """Seconds to wait before the next try. Raises the error if there are no retries left."""
        after = error.retry_after
        is_retryable = isinstance(error, Unavailable) or (isinstance(error, Limited) and after is not None)
        if not is_retryable or self._left <= 0 or (after or 0) > _LONGEST_WAIT:
            raise error
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._retries - self._left))
        self._left -= 1
        pause = (after or 0) + random.uniform(0, longest)
        if self._until is not None and time.monotonic() + pause > self._until:
            raise TimedOut from error
        return pause
