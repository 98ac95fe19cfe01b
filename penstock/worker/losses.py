"""Attempts that ended because the worker lost its connection to the database."""

from __future__ import annotations

from penstock.postgres import db

# How often a task may lose its database connection in one worker before the attempt counts as failed, and for
# how many tasks the worker keeps this count.
MAX_LOSSES = 5
REMEMBERED = 10_000
MAX_CAUSES = 10


class Losses:
    """Counts them for each task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def delay(self, task_id: int) -> float | None:
        """Count a loss; the seconds until the task should run again, or None if the attempt has failed.

        Without a limit, a statement that crashes the server, or a transaction that idles until the server
        ends it, would be retried for ever.
        """
        count = self._counts[task_id] = self._counts.pop(task_id, 0) + 1
        while len(self._counts) > REMEMBERED:
            self._counts.pop(next(iter(self._counts)))
        if count > MAX_LOSSES:
            return None
        return 0.0 if count == 1 else 2.0 ** (count - 2)


def is_caused_by_loss(error: BaseException) -> bool:
    """Whether a lost connection caused this error."""
    cause: BaseException | None = error
    # Libraries raise an error from itself, so the chain may have no end.
    for _ in range(MAX_CAUSES):
        if cause is None or isinstance(cause, db.ConnectionLost):
            break
        cause = cause.__cause__
    return isinstance(cause, db.ConnectionLost)
