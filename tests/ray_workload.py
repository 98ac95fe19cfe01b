"""The app that the tests run on a Ray cluster. Its handlers record each execution in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

from penstock import App, Context

app = App()


@app.task(engine="ray", resources={"resources": {"spot": 1}}, backoff=0, max_attempts=5)
def square(folder: str, n: int, waits: bool) -> int:
    """Records the process of its node. If told to wait, returns once the test has made the file `go`."""
    Path(folder, f"{n}.{uuid4().hex}").write_text(str(os.getppid()))
    while waits and not Path(folder, "go").exists():
        time.sleep(0.05)
    return n * n


@app.task(engine="ray", timeout="500ms", max_attempts=1)
def too_long(folder: str, seconds: float) -> None:
    Path(folder, "pid").write_text(str(os.getpid()))
    time.sleep(seconds)


@app.task(engine="ray", max_attempts=1)
def crash() -> None:
    os._exit(3)


def crush(n: int) -> int:
    """A plain function: no task has this name."""
    return n * n


@app.task(max_attempts=1)
async def compute(ctx: Context) -> dict[str, int]:
    return {"pid": await ctx.acompute(os.getpid, on="ray"), "own": os.getpid()}
