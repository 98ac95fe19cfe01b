"""The app that the tests' workers run, also in other processes. Its handlers record what they do in the table
`effects`, and wait for names in the table `gates`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from typing import Any, NoReturn

import psycopg

from penstock import App, Context, Fail, Reschedule

app = App()

TABLES = """
create table effects (task_id bigint, lease bigint, pid int, word text);
create table gates (name text primary key);
"""


def note(ctx: Context, word: str, connection: Any = None) -> None:
    values = [ctx.task_id, ctx.lease, os.getpid(), word]
    statement = "insert into effects (task_id, lease, pid, word) values (%s, %s, %s, %s)"
    if connection is not None:
        connection.execute(statement, values)
        return
    with psycopg.connect(app.dsn(), autocommit=True) as own:
        own.execute(statement, values)


def is_open(gate: str) -> bool:
    with psycopg.connect(app.dsn(), autocommit=True) as connection:
        return connection.execute("select 1 from gates where name = %s", [gate]).fetchone() is not None


@app.task
async def quick(n: int = 0) -> int:
    return n


@app.task
async def hold(ctx: Context, gate: str | None = None) -> str:
    """Returns at once without a gate, otherwise waits until the gate is open."""
    if gate is None:
        return "quick"
    note(ctx, "begun")
    while not is_open(gate):  # noqa: ASYNC110 the gate is opened in another process
        await asyncio.sleep(0.02)
    note(ctx, "ended")
    return f"{os.getpid()}"


@app.task
def hold_thread(ctx: Context, gate: str) -> str:
    note(ctx, "begun")
    while not is_open(gate):
        time.sleep(0.02)
    note(ctx, "ended")
    return f"{os.getpid()}"


@app.task(transactional=True)
def post(ctx: Context, gate: str | None = None) -> None:
    """Writes into effects in the task's own transaction."""
    note(ctx, "begun")
    note(ctx, "posted", ctx.connection)
    while gate is not None and not is_open(gate):
        time.sleep(0.02)


@app.task(backoff=0)
def poison(ctx: Context) -> NoReturn:
    note(ctx, "begun")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


# --- in a process ---


@app.task(cpu_bound=True)
def crunch(numbers: list[int]) -> dict[str, int]:
    return {"sum": sum(numbers), "pid": os.getpid()}


@app.task(cpu_bound=True, max_attempts=1)
def crash(how: str) -> Any:
    """Ends its process, or returns a value that cannot be sent."""
    match how:
        case "exit":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "error":
            raise Odd("left", "right")
        case "fail":
            raise Fail("no", code="refused", details={"a": 1})
        case "lambda":
            return lambda: None
        case _:
            raise AssertionError(how)


@app.task(cpu_bound=True)
def later(done: bool = False) -> str:
    raise Reschedule("1h", "not now")


@app.task(cpu_bound=True, max_attempts=1, timeout="500ms")
def sleep(path: str, seconds: float) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(seconds)


@app.task(max_attempts=1)
async def compute(ctx: Context, how: str) -> dict[str, int]:
    """The same in a plain function: the handler continues with its result."""
    pid = await ctx.acompute(ended, how) if how else await ctx.acompute(os.getpid)
    return {"pid": pid, "own": os.getpid()}


def ended(how: str) -> Any:
    return crash.function(how)


class Odd(Exception):
    """An exception that pickle cannot restore."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")
