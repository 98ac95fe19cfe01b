"""Each pair of verbs in two sessions on one job: the second starts before the first has committed.

The outcome must be that of the two verbs one after the other, in either order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions

LEASE_SECONDS = 30


@dataclass(frozen=True)
class Scene:
    """A job with a claimed task, its child, and an unclaimed task."""

    kind: str
    job: uuid.UUID
    task: db.Row


VERBS: dict[str, Callable[[Contract, Scene], Any]] = {
    "complete": lambda sql, at: sql.complete(at.task, {"n": 1}),
    "fail": lambda sql, at: sql.fail(at.task),
    "kill": lambda sql, at: sql.kill(at.task),
    "reschedule": lambda sql, at: sql.reschedule(at.task),
    "beat": lambda sql, at: sql.beat(at.task),
    "wait": lambda sql, at: sql.park(at.task),
    "answer": lambda sql, at: sql.answer(at.task),
    "submit": lambda sql, at: sql.park_operation(at.task),
    "tell": lambda sql, at: sql.tell_operation(at.task),
    "settle": lambda sql, at: sql.settle_operation(at.task),
    "cancel operation": lambda sql, at: sql.cancel_operation(at.task),
    "tell late": lambda sql, at: sql.tell_operation(at.task, 1),
    "reconcile": lambda sql, at: sql.reconcile_operation(at.task, 1),
    "store step": lambda sql, at: sql.store_step(at.task, "step", 1),
    "claim": lambda sql, at: sql.claim(5, "w2", [at.kind], LEASE_SECONDS),
    "reclaim": lambda sql, at: sql.reclaim(),
    "upkeep": lambda sql, at: sql.upkeep(),
    "add": lambda sql, at: sql.add(at.job, [{"kind": at.kind, "key": "new", "after": ["a"]}]),
    "pause": lambda sql, at: sql.pause(at.job),
    "resume": lambda sql, at: sql.resume(at.job),
    "cancel": lambda sql, at: sql.cancel(at.job),
    "retry": lambda sql, at: sql.retry(at.job),
    "replay": lambda sql, at: sql.replay(job_id=str(at.job)),
}
# They pass over what somebody else has in hand, and come again.
PASSING = {"beat", "claim", "reclaim", "upkeep"}
# What moves tasks between lanes, or ends them.
ROUTED = {"complete", "fail", "kill", "claim", "reclaim", "upkeep", "add", "pause", "cancel", "retry"}
# What meets the late success of an operation that timed out, while the task runs again or after it failed.
LATE = {"tell late", "reconcile", "submit", "settle", "complete", "fail", "kill", "upkeep", "pause", "cancel", "retry",
        "replay"}  # fmt: skip
ONLY_LATE = {"tell late", "reconcile"}

_numbers = count(1)


def scene(sql: Contract, clock: Clock, what: str) -> Scene:
    """A kind of its own keeps the tasks of other scenes out of its claims."""
    kind = f"pair{next(_numbers)}"
    sql.value("define_kind", name=kind, options=Jsonb({"backoff_seconds": 0}))
    route: dict[str, Any] = {}
    if what == "routed":
        # Task a takes the only place of the first provider, so c can only run at the second one.
        sql.provider(f"{kind}/one", concurrency=1, features=[kind])
        sql.provider(f"{kind}/two", features=[kind])
        route = {"route": {"providers": [f"{kind}/one", f"{kind}/two"], "prefer": "listed"}}
    job = sql.start(
        [
            {"kind": kind, "key": "a", "priority": 1, **route},
            {"kind": kind, "key": "b", "after": ["a"], **route},
            {"kind": kind, "key": "c", **route},
        ]
    )
    task = sql.claim_one(kinds=[kind], seconds=LEASE_SECONDS)
    assert task["key"] == "a"
    if what == "late":
        clock.advance(seconds=LEASE_SECONDS + 1)
    elif what == "paused":
        sql.pause(job)
    elif what == "waiting":
        sql.park(task)
    elif what == "outside":
        sql.park_operation(task)
    elif what == "timed out":
        sql.park_operation(task)
        sql.tell_operation(task)
        again = sql.claim_one(kinds=[kind], seconds=LEASE_SECONDS)
        sql.settle_operation(again, outcome="timeout")
        sql.fail(again)
        task = sql.claim_one(kinds=[kind], seconds=LEASE_SECONDS)
        assert task["key"] == "a"
    elif what == "failed":
        sql.kill(task)
        sql.do_chores()
    return Scene(kind, job, task)


def say(verb: str, sql: Contract, at: Scene) -> None:
    """A refused verb changes nothing, and the verb refuses, not the state guard behind it."""
    try:
        VERBS[verb](sql, at)
    except psycopg.Error as error:
        assert (error.sqlstate or "").startswith("PT"), error
        assert "illegal_transition" not in str(error.diag.message_detail), error


def seen(sql: Contract, at: Scene) -> list[db.Row]:
    """The visible state of the job, and the tables of its tasks, after upkeep."""
    sql.do_chores()
    return sql.execute(
        """select j.status as job, j.total, j.succeeded, j.failed, j.canceled, t.key, t.status, t.attempt, array(
             select 'ready' from penstock.ready where job_id = j.id and task_id = t.id
             union all select 'parked' from penstock.parked where job_id = j.id and task_id = t.id
             union all select 'leases' from penstock.leases where job_id = j.id and task_id = t.id
             union all select 'results' from penstock.results where job_id = j.id and task_id = t.id
             union all select 'letter' from penstock.dead_letters where job_id = j.id and task_id = t.id) as places
           from penstock.job_list j join penstock.task_list t on t.job_id = j.id where j.id = %s order by t.id""",
        at.job,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "what", ["running", "late", "paused", "waiting", "outside", "timed out", "failed", "routed"]
)
def test_two_concurrent_verbs_end_like_some_order_of_them(
    sessions: Sessions, clock: Clock, what: str
) -> None:
    """R1.2/fence, R0.2/task-states: all pairs, the first committed or rolled back while the second is under way."""
    clock.freeze()
    one, two = sessions.open(), sessions.open()
    # Upkeep counts as done, however slow the machine is: otherwise a claim that finds nothing does some of it.
    one.execute(
        """insert into penstock.upkeep_runs (ran_at, done_at) values (clock_timestamp(), 'infinity')
           on conflict (id) do update set done_at = excluded.done_at"""
    )
    wrong: list[str] = []
    outcomes: set[str] = set()

    @cache
    def alone(*verbs: str) -> list[db.Row]:
        at = scene(one, clock, what)
        for verb in verbs:
            say(verb, one, at)
        return seen(one, at)

    # A route changes where a task is claimed from, not how it waits.
    wanted = {"routed": ROUTED, "timed out": LATE}.get(what, VERBS.keys() - ONLY_LATE)
    verbs = [verb for verb in VERBS if verb in wanted]
    for first, second, does_commit in product(verbs, verbs, (True, False)):
        at = scene(one, clock, what)
        with one.connection.transaction(force_rollback=not does_commit):
            with suppress(psycopg.Error), one.connection.transaction():
                VERBS[first](one, at)
            call = Call(lambda at=at, second=second: say(second, two, at))
            sessions.wait_until_blocked_or_done(two, call)
        call.result()
        found = seen(one, at)
        expected = [alone(second)]
        if does_commit:
            expected = [alone(first, second), alone(second, first)]
        if second in PASSING:
            expected.append(alone(*[first] * does_commit))
        if found not in expected:
            ends = "committed" if does_commit else "rolled back"
            wrong.append(f"{first} ({ends}) and {second}:\n  {found}\n  instead of\n  {expected}")
        outcomes.add(str(found))
    one.check()
    assert not wrong, "\n\n".join(wrong)
    # They do get in each other's way.
    assert len(outcomes) > len(verbs) / 2
