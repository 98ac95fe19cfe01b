"""The app under test: handlers record their effects, and the tasks of a job follow from its parameters."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import signal
import time
from typing import Any, NoReturn
from uuid import UUID

from faults import outside, points
from faults.history import History
from penstock import App, Context
from penstock.contract import operations
from penstock.errors import LeaseLost
from penstock.sdk.operations import Operation
from penstock.sdk.webhooks import Event
from penstock.simulator.cloudconvert import SECRET
from penstock.types import WebhookOutcome

app = App(tenant="faults")
LIMITED, PRICED = "sim/limited", "sim/priced"
REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, PLACES = 3000, 400_000, 8
UNITS = {"input_tokens": 100, "output_tokens": 50}
HUNGRY_BYTES = 512 << 20

# Deaths and lost answers are frequent here: a task must not run out of attempts.
_MANY: dict[str, Any] = {"max_attempts": 50, "backoff": "50ms", "backoff_cap": "500ms"}
_history: History | None = None


def tell(history: History) -> None:
    """Set the history that this process's handlers write to."""
    global _history
    _history = history


def note(ctx: Context, event: str, **values: Any) -> None:
    if _history is not None:
        _history.note(event, task=ctx.task_id, lease=ctx.lease, kind=ctx.kind, **values)


async def pause(n: int) -> None:
    await asyncio.sleep(n % 7 * 0.003)


@app.task(**_MANY)
async def plain(ctx: Context, n: int) -> int:
    note(ctx, "began")
    await pause(n)
    note(ctx, "ended")
    return n


@app.task(transactional=True, **_MANY)
async def post(ctx: Context, n: int) -> int:
    """Its effect and its end are one commit."""
    note(ctx, "began")
    await pause(n)
    await ctx.connection.execute(EFFECT, [ctx.task_id, ctx.lease, n])
    points.reach("effect.written")
    return n


@app.task(transactional=True, **_MANY)
def post_in_thread(ctx: Context, n: int) -> int:
    note(ctx, "began")
    time.sleep(n % 7 * 0.003)
    ctx.connection.execute(EFFECT, [ctx.task_id, ctx.lease, n])
    points.reach("effect.written")
    return n


EFFECT = "insert into faults.effects (task_id, lease, n) values (%s, %s, %s)"


@app.task(transactional=True, **_MANY)
async def grow(ctx: Context, n: int, more: int) -> int:
    """Adds tasks to its job; they are there if and only if it has ended."""
    note(ctx, "began")
    specs = [{"kind": "plain", "key": f"more-{k}", "input": {"n": n + k + 1}} for k in range(more)]
    await ctx.aadd_tasks(specs)
    points.reach("effect.written")
    return n


@app.task(**_MANY)
async def join(ctx: Context, n: int, parts: list[int]) -> int:
    note(ctx, "began")
    return (n + sum(parts)) % 1_000_003


@app.task(**_MANY)
async def flaky(ctx: Context, n: int) -> int:
    note(ctx, "began")
    if ctx.attempt <= n % 3:
        raise ValueError("not yet")
    return n


@app.task(max_attempts=2, backoff=0)
async def doomed(ctx: Context, n: int) -> NoReturn:
    note(ctx, "began")
    raise ValueError("never")


@app.task(**_MANY)
async def slow(ctx: Context, n: int) -> int:
    note(ctx, "began")
    for step in range(10):
        await asyncio.sleep(n % 5 * 0.1)
        ctx.progress(step, 10)
    note(ctx, "ended")
    return n


@app.task(**_MANY)
def hungry(ctx: Context, n: int) -> int:
    """Asks for more memory than a worker with little of it has. (It does not touch it: the machine has others.)"""
    note(ctx, "began")
    if ctx.attempt < 5:
        mmap.mmap(-1, HUNGRY_BYTES).close()
    return n


@app.task(backoff=0)
def poison(ctx: Context, n: int) -> NoReturn:
    """Takes its worker down."""
    note(ctx, "began")
    note(ctx, "killed", by="poison")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@app.task(**_MANY)
async def call(ctx: Context, n: int) -> int:
    """A call of a provider with limits and prices, which reports its usage."""
    note(ctx, "began")
    await pause(n)
    try:
        # Never more than was estimated. The checker has the same in SQL.
        await ctx.ausage(input_tokens=10 + n % 90, output_tokens=n % 50)
    except LeaseLost:
        note(ctx, "refused", verb="usage", code="lease_lost")
        raise
    note(ctx, "used")
    return n


# For the worker that is idle through every restart. Few attempts: none may be charged to a stale connection.
_FEW: dict[str, Any] = {"max_attempts": 3, "backoff": "50ms", "backoff_cap": "100ms"}
WARM = ("warm_post", "warm_post_in_thread", "warm_call", "warm_cost", "warm_plain")
COST = "fixture"


@app.task(transactional=True, **_FEW)
async def warm_post(ctx: Context, n: int, seconds: float) -> int:
    note(ctx, "began")
    await ctx.connection.execute(EFFECT, [ctx.task_id, ctx.lease, n])
    await asyncio.sleep(seconds)
    return n


@app.task(transactional=True, **_FEW)
def warm_post_in_thread(ctx: Context, n: int, seconds: float) -> int:
    note(ctx, "began")
    ctx.connection.execute(EFFECT, [ctx.task_id, ctx.lease, n])
    time.sleep(seconds)
    return n


@app.task(**_FEW)
async def warm_call(ctx: Context, n: int, seconds: float) -> int:
    note(ctx, "began")
    await asyncio.sleep(seconds)
    await ctx.ausage(input_tokens=10 + n % 90, output_tokens=n % 50)
    return n


@app.task(**_FEW)
async def warm_cost(ctx: Context, n: int, seconds: float) -> int:
    note(ctx, "began")
    await asyncio.sleep(seconds)
    await ctx.acost(COST, "0.01")
    return n


@app.task(**_FEW)
async def warm_plain(ctx: Context, n: int, seconds: float) -> int:
    note(ctx, "began")
    await asyncio.sleep(seconds)
    return n


@app.task(**_MANY)
async def page(ctx: Context, n: int) -> int:
    """Uses its estimate of a quota."""
    note(ctx, "began")
    await pause(n)
    return n


@app.task(**_MANY)
async def convert(ctx: Context, n: int) -> int:
    """A conversion outside, which takes a while."""
    note(ctx, "began")

    async def submit(operation: Operation) -> str:
        points.reach("operation.intended")
        external_id = await outside.submit(operation)
        points.reach("operation.submitted")
        return external_id

    await ctx.operation(
        f"object:{ctx.task_id}", submit=submit, find=outside.find, check=outside.check, cancel=outside.cancel,
        timeout=outside.TIMEOUT, checks=outside.CHECKS_AT,
    )  # fmt: skip
    return n


app.operations.add(outside.CONVERTER, check=outside.check, find=outside.find, cancel=outside.cancel)


@app.webhooks.add("converter", scheme="cloudconvert", secrets=[SECRET])
async def told(event: Event) -> WebhookOutcome | None:
    """Wakes the task of a conversion."""
    if event.type == "job.created":
        return "ignored"
    tag = UUID(event.payload["job"]["tag"])
    outcome = await operations.tell(event.connection, provider=outside.CONVERTER, operation_id=tag)
    points.reach("webhook.taken")
    return {"late": "applied", "applied": "applied", "stale": "stale"}.get(outcome, "unmatched")  # type: ignore[return-value]


@app.task(**_MANY)
async def ask(ctx: Context, n: int) -> int:
    """Waits for an answer between a step that is made once and a sleep."""
    note(ctx, "began")

    async def step() -> int:
        note(ctx, "stepped")
        return ctx.lease

    first = await ctx.step("first", step)
    answer = await ctx.wait_for(
        "approval", options=["yes", "no"], timeout=outside.ANSWER_SECONDS, default="no"
    )
    await ctx.sleep(0.1 + n % 3)
    note(ctx, "answered", option=answer.option, step=first)
    return n


@app.task(transactional=True, **_MANY)
async def judge(ctx: Context, n: int) -> int:
    """Records a success or a failure; three failures in a row alert once."""
    note(ctx, "began")
    scope, is_success = f"scope:{n % 3}", n % 7 == 0
    [row] = await (
        await ctx.connection.execute(RECORD, [ctx.tenant_id, scope, is_success, str(ctx.task_id)])
    ).fetchall()
    await ctx.connection.execute(OUTCOME, [ctx.task_id, scope, is_success, row["alerted"]])
    points.reach("effect.written")
    return n


RECORD = """
select (penstock.record_outcome(%s, %s, %s, %s, 'planned', 'planned') ->> 'alerted')::boolean as alerted"""
OUTCOME = "insert into faults.outcomes (task_id, scope, is_success, is_alert) values (%s, %s, %s, %s)"

MIX = {"plain": 70, "post": 18, "post_in_thread": 3, "flaky": 6, "slow": 1, "doomed": 0.5, "hungry": 0.5}
FLAVOURS = ("mix", "tree", "grow", "calls", "budget", "pages", "outside", "poison", "warm", "warm up")
KINDS = [kind for kind in app.tasks if kind not in WARM]
"""What every worker but the idle one runs."""


def warm_step(kind: str, n: int, seconds: float) -> None:
    task = app.tasks[kind]
    if kind == "warm_call":
        task = task.options(provider=PRICED, units=UNITS)
    task.step(n, seconds)


@app.job
def work(flavour: str, seed: int, size: int) -> None:
    """A job of `size` tasks. Equal parameters draw equal jobs."""
    dice = random.Random(seed)
    n = seed * 1000
    match flavour:
        case "mix":
            for k, kind in enumerate(dice.choices(list(MIX), list(MIX.values()), k=size)):
                app.tasks[kind].step(n + k)
        case "tree":
            steps: list[Any] = [plain.step(n)]
            for k in range(1, size):
                steps.append(join.step(n + k, dice.sample(steps[-6:], min(len(steps), dice.randint(1, 3)))))
        case "grow" if size > 1:
            grow.step(n, size - 1)
        case "calls":
            for k in range(size):
                call.options(provider=LIMITED, units=UNITS).step(n + k)
        case "budget":
            for k in range(size):
                call.options(provider=PRICED, units=UNITS).step(n + k)
        case "pages":
            for k in range(size):
                page.options(units={"pages": 1 + k % 3}).step(n + k)
        case "outside":
            to_convert = convert.options(provider=outside.CONVERTER, units=outside.UNITS)
            for k in range(size):
                (to_convert, ask, judge)[k % 3].step(n + k)
        case "poison":
            for k in range(size):
                poison.step(n + k)
        case "warm":
            for k in range(size):
                warm_step(WARM[k % len(WARM)], n + k, 0.01)
        case "warm up":
            # As many at once as the worker runs, so that its pools open all their connections.
            for k in range(size):
                warm_step("warm_call" if k % 4 == 3 else "warm_post", n + k, 0.3)
        case _:
            for k in range(size):
                plain.step(n + k)
