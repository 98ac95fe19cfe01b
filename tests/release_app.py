"""The app that workers of two releases run side by side in the rehearsal of an upgrade (test_upgrade.py).

It uses only what the oldest release has. Each task returns the release of the worker that ran it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from penstock import App, Retry, worker

app = App()
RELEASE = os.environ.get("RELEASE", "")


@app.task(backoff="0s")
async def ask(n: int) -> str:
    await asyncio.sleep(0.001 * (n % 20))
    return RELEASE


@app.task(backoff="0s")
def render(n: int) -> str:
    """Runs in a thread."""
    time.sleep(0.001 * (n % 20))
    return RELEASE


@app.task(backoff="0s", max_attempts=100)
async def busy(n: int) -> str:
    """Fails now and then, so that both releases also report failures and retry."""
    if (n + time.time_ns() // 1_000_000) % 5 == 0:
        raise Retry(code="busy")
    return RELEASE


if __name__ == "__main__":
    sys.exit(worker.run(app, concurrency=5, lease_seconds=30, grace_seconds=20))
