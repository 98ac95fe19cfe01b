"""A child process of the API. It runs the app's own code, which may take long, outside of the API's process.

The parent sends one request at a time: its length in 4 bytes, then JSON. The response looks the same. The
process ends if a request uses more CPU time than its limit, and when the parent ends.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pydantic_core

from penstock import sources
from penstock.contract import bulks
from penstock.errors import PenstockError, TooLarge, to_problem
from penstock.sdk.app import App
from penstock.sdk.graph import DrawLimit, draw_limit
from penstock.sdk.load import load


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    requests = os.fdopen(os.dup(0), "rb")
    responses = os.fdopen(os.dup(1), "wb")
    # What the app prints must not get between the responses.
    os.dup2(2, 1)
    sys.path[:] = json.loads(_next(requests))
    path = json.loads(_next(requests))
    app = load(path) if path else None
    while message := _next(requests):
        name, cpu_seconds, arguments = json.loads(message)
        _limit_cpu(cpu_seconds)
        text = _answer(app, name, arguments)
        responses.write(len(text).to_bytes(4, "big") + text)
        responses.flush()


def _next(requests: IO[bytes]) -> bytes:
    """The next message; empty at the end of the pipe."""
    return requests.read(int.from_bytes(requests.read(4), "big"))


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process after this many more seconds of CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _answer(app: App | None, name: str, arguments: dict[str, Any]) -> bytes:
    try:
        return pydantic_core.to_json({"result": FUNCTIONS[name](app, **arguments)})
    except PenstockError as error:
        return pydantic_core.to_json({"problem": to_problem(error)})
    except Exception:
        return pydantic_core.to_json({"crash": traceback.format_exc()})


def draw(app: App, type: str, params: dict[str, Any], tasks: int, seconds: float) -> Any:
    """The tasks of a job type, as JSON text, and the job option `result`."""
    token = draw_limit.set(DrawLimit.starting_now(tasks, seconds))
    try:
        found = app.drawn(type, params)
    finally:
        draw_limit.reset(token)
    assert found is not None, f"the app lacks the type {type}"
    text = pydantic_core.to_json(found.tasks).decode()
    return {"count": len(found.tasks), "text": text, "result": found.result_option}


def problems(app: App, type: str, params: dict[str, Any]) -> dict[str, str]:
    """What is wrong with the params of a job type, by parameter."""
    taker = app.job_types.get(type) or app.tasks[type]
    return taker.signature.problems(params)


def check(app: App, type: str, path: str, table: dict[str, Any], most: int) -> Any:
    """The problems of a table, its columns, and those that the bulk type expects."""
    bulk_type = app.bulks[type]
    with sources.open(Path(path), **table) as source:
        found = bulk_type.check(source)
        columns = source.columns[:MAX_COLUMNS]
    return {
        "columns": columns,
        "expected": bulk_type.expected(),
        "rows": found.rows,
        "good": found.good,
        "problems": [asdict(problem) for problem in found.problems[:most]],
    }


def sample(app: App, type: str, path: str, table: dict[str, Any], params: dict[str, Any]) -> Any:
    """The tasks of a sample of the rows, and the factor from the sample to all rows."""
    with sources.open(Path(path), **table) as source:
        return app.bulks[type].sample(source, params)


def rows(app: App | None, path: str, table: dict[str, Any], out: str, most: int) -> Any:
    """Write the rows of a table to a file, for `bulks.PreparedRows`. Returns what the table is."""
    with sources.open(Path(path), **table) as source, Path(out).open("wb") as file:
        for text in bulks.batches(source):
            if file.tell() + len(text) > most:
                raise TooLarge(
                    f"the rows have more than {most} bytes as JSON",
                    hint="Split the file.",
                    details={"limit": most},
                )
            file.write(len(text).to_bytes(4, "big") + text)
        return bulks.describe(source)


FUNCTIONS: dict[str, Any] = {
    "draw": draw,
    "problems": problems,
    "check": check,
    "sample": sample,
    "rows": rows,
}
MAX_COLUMNS = 200
"""Columns of a table that `check` names."""
WITHOUT_APP = ("rows",)
"""Functions that need no app."""
