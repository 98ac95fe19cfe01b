"""Named points at which a worker or a producer kills itself: between doing something and reporting it.

The processes of the fault runs wrap the product's calls; the product does not know the points. A process is
started with one point armed, and dies when it reaches that point for the nth time.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

from faults.history import History
from penstock.contract import jobs, notifications, tasks
from penstock.postgres import db

OF_WORKERS = {
    "claim.sent": "a claim is under way",
    "claim.answered": "tasks are claimed, none has begun",
    "effect.written": "the handler has written, nothing is committed",
    "complete.committing": "the end of a task and of its handler's transaction is under way",
    "complete.sent": "a report of ends is under way",
    "complete.answered": "ends are committed, the worker does not know yet",
    "fail.sent": "a report of failures is under way",
    "return.sent": "tasks are being handed back",
    "usage.sent": "a report of usage is under way",
    "beat.sent": "a heartbeat is under way",
    "upkeep.sent": "what others lost is being taken back",
    "operation.intended": "an operation is recorded, the provider has no request yet",
    "operation.submitted": "the provider has begun, its id is not noted",
    "notify.sent": "a message is sent, the database has no record of it",
}
OF_API = {"webhook.taken": "a webhook has woken its task, nothing is committed"}
OF_PRODUCERS = {
    "start.sent": "a job is being started",
    "start.answered": "a job is started, the caller has no response",
}

ALL = OF_WORKERS | OF_API | OF_PRODUCERS

_armed: tuple[str, int] | None = None
_history: History | None = None


def arm(history: History, armed: tuple[str, int] | None) -> None:
    """Die when this point is reached for the given number of times."""
    global _armed, _history
    _armed, _history = armed, history


def reach(name: str) -> None:
    """Die here, if it is time."""
    if _is_due(name):
        _die(name)


def pass_by(name: str) -> None:
    """Die a moment from now, if it is time: what is sent next is under way then."""
    if _is_due(name):
        threading.Timer(random.uniform(0, 0.003), _die, [name]).start()


def _is_due(name: str) -> bool:
    global _armed
    if _armed is None or _armed[0] != name:
        return False
    _armed = (name, _armed[1] - 1)
    return _armed[1] == 0


def _die(name: str) -> None:
    assert _history is not None
    _history.note("killed", by=name)
    os.kill(os.getpid(), signal.SIGKILL)


def _noted_report(history: History, verb: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A report of a batch with its point, which notes the tasks that the database refuses."""

    async def report(where: Any, worker_id: str, batch: Any, **how: Any) -> Any:
        pass_by(f"{verb}.sent")
        answer = await original(where, worker_id, batch, **how)
        # A worker that was away may report a task twice in a batch, of the lease it lost and of the one it got
        # since. The answer names the task: it is the older one that is refused.
        leases = {one[0]: one[1] for one in sorted(batch, key=lambda one: -one[1])}
        for one in answer:
            history.note("refused", verb=verb, task=one.id, lease=leases.get(one.id), code=one.code)
        if verb == "complete":
            reach("complete.answered")
        return answer

    return report


def install(history: History) -> None:
    """Put the points around the calls of the product, and note what the database refuses."""
    claim, heartbeat = tasks.claim, tasks.heartbeat_sync
    complete_last, complete_last_sync = tasks.complete_last, tasks.complete_last_sync
    call, start, end_notification = db.call, jobs.start, notifications.end

    async def noted_claim(*args: Any, **how: Any) -> Any:
        pass_by("claim.sent")
        claims = await claim(*args, **how)
        if claims:
            reach("claim.answered")
        return claims

    async def noted_complete_last(*args: Any) -> None:
        pass_by("complete.committing")
        await complete_last(*args)

    def noted_complete_last_sync(*args: Any) -> None:
        pass_by("complete.committing")
        complete_last_sync(*args)

    def noted_heartbeat(held: Any, worker_id: str, leases: Any, lease_seconds: int) -> Any:
        pass_by("beat.sent")
        lost = heartbeat(held, worker_id, leases, lease_seconds)
        for task_id, lease, code in lost:
            history.note("refused", verb="beat", task=task_id, lease=lease, code=code)
        return lost

    async def noted_call(where: Any, function: str, **arguments: Any) -> Any:
        if function in ("upkeep", "record_usage"):
            pass_by({"upkeep": "upkeep.sent", "record_usage": "usage.sent"}[function])
        return await call(where, function, **arguments)

    async def noted_start(*args: Any, **how: Any) -> Any:
        pass_by("start.sent")
        started = await start(*args, **how)
        reach("start.answered")
        return started

    async def noted_end_notification(*args: Any, **how: Any) -> Any:
        reach("notify.sent")
        return await end_notification(*args, **how)

    notifications.end = noted_end_notification
    tasks.claim, tasks.heartbeat_sync = noted_claim, noted_heartbeat
    tasks.complete_last, tasks.complete_last_sync = noted_complete_last, noted_complete_last_sync
    tasks.complete = _noted_report(history, "complete", tasks.complete)
    tasks.fail = _noted_report(history, "fail", tasks.fail)
    tasks.reschedule = _noted_report(history, "return", tasks.reschedule)
    tasks.hand_back = _noted_report(history, "return", tasks.hand_back)
    db.call, jobs.start = noted_call, noted_start


def shim_clock() -> None:
    """On SIGUSR1 this process's wall clock jumps by up to a day, either way."""
    import time

    real, shift = time.time, 0.0

    def jump(*_: object) -> None:
        nonlocal shift
        shift = random.uniform(-86_400, 86_400)

    time.time = lambda: real() + shift
    time.time_ns = lambda: int((real() + shift) * 1e9)
    signal.signal(signal.SIGUSR1, jump)
