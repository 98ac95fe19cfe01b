"""The contract against a small model of it: any sequence of calls, on the test's clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.postgres import db
from tests.sql.conftest import Contract

ENDED = {"succeeded", "failed", "canceled"}
MAX_ATTEMPTS = 3
MAX_DEATHS = 3
LEASE_SECONDS = 30


@dataclass
class Task:
    key: str
    after: set[str]
    runs_after_failure: bool
    state: str = (
        "blocked"  # blocked, queued, waiting (for its time), asking, running, succeeded, failed, canceled
    )
    wait: str = ""
    failures: int = 0
    deaths: int = 0
    due: float = 0
    expires: float = 0
    lease: db.Row | None = None
    is_stopped: bool = False


@dataclass
class Job:
    """The expected job, by the rules of the documentation."""

    id: Any
    stops: bool
    status: str = "queued"
    has_begun: bool = False
    tasks: dict[str, Task] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.status in ("queued", "running", "paused")

    def add(self, task: Task) -> None:
        self.tasks[task.key] = task
        self.release(task)

    def release(self, task: Task) -> None:
        """A blocked task whose parents have ended is queued, or canceled when one did not succeed."""
        parents = [self.tasks[key].state for key in task.after]
        if not task.runs_after_failure and any(state in ("failed", "canceled") for state in parents):
            task.state = "canceled"
            self.settle(task)
        elif all(state in ENDED for state in parents):
            task.state = "queued"

    def settle(self, ended: Task) -> None:
        for task in self.tasks.values():
            if ended.key in task.after and task.state == "blocked":
                self.release(task)

    def end(self, task: Task, state: str) -> None:
        task.state, task.lease = state, None
        self.settle(task)
        if all(each.state in ENDED for each in self.tasks.values()):
            failed = any(each.state == "failed" for each in self.tasks.values())
            self.status = "failed" if failed else "completed"
        elif state == "failed" and self.stops and self.is_open:
            self.stop("failed")

    def stop(self, status: str) -> None:
        self.status = status
        for task in self.tasks.values():
            task.is_stopped = task.state == "running"
            if status == "canceled" and task.state not in ENDED:
                task.state = "canceled"

    def retry(self) -> int:
        failed = [task for task in self.tasks.values() if task.state == "failed"]
        for task in failed:
            task.state, task.failures, task.deaths = "queued", 0, 0
        if failed:
            revived = {task.key for task in failed}
            while True:
                for task in self.tasks.values():
                    parents = [self.tasks[key] for key in task.after]
                    is_hopeful = all(p.state not in ("failed", "canceled") for p in parents)
                    if task.state == "canceled" and is_hopeful and any(p.key in revived for p in parents):
                        task.state, task.failures, task.deaths = "blocked", 0, 0
                        revived.add(task.key)
                        break
                else:
                    break
            if self.status == "failed":
                self.status = "running"
        return len(failed)


class Model(RuleBasedStateMachine):
    """Rules call the contract and the model alike; the invariant compares them."""

    server: ClassVar[testing.Server]

    def __init__(self) -> None:
        super().__init__()
        self.database = testing.Database(self.server, _database(self.server))
        self.connection = self.database.connect()
        self.sql = Contract(self.connection)
        self.sql.execute("update penstock.settings set value = '30' where name = 'lease_seconds'")
        self.transaction = self.connection.transaction(force_rollback=True)
        self.transaction.__enter__()
        self.sql.tenant = self.sql.value("create_tenant", name="model")
        kind = [{"name": "work", "backoff_seconds": 0, "max_attempts": MAX_ATTEMPTS}]
        self.sql.value("define_kinds", kinds=Jsonb(kind))
        self.clock = testing.Clock(self.sql.connection)
        self.clock.freeze()
        self.now = 0.0
        self.jobs: list[Job] = []
        self.late: list[db.Row] = []
        self.steps = 0

    def teardown(self) -> None:
        self.transaction.__exit__(None, None, None)
        self.connection.close()

    # What can be picked from

    def pick(self, data: st.DataObject, *statuses: str) -> Job | None:
        found = [job for job in self.jobs if not statuses or job.status in statuses]
        return data.draw(st.sampled_from(found)) if found else None

    @property
    def running(self) -> list[tuple[Job, Task]]:
        return [(job, t) for job in self.jobs for t in job.tasks.values() if t.lease and t.state == "running"]

    def parents(self, data: st.DataObject, keys: list[str]) -> set[str]:
        return set(data.draw(st.lists(st.sampled_from(keys), max_size=3, unique=True))) if keys else set()

    # Jobs

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(data=st.data(), size=st.integers(1, 5), stops=st.booleans(), paused=st.booleans())
    def start(self, data: st.DataObject, size: int, stops: bool, paused: bool) -> None:
        specs: list[dict[str, Any]] = []
        tasks: list[Task] = []
        for n in range(size):
            parents = self.parents(data, [task.key for task in tasks])
            task = Task(f"t{n}", parents, bool(parents) and data.draw(st.booleans()))
            tasks.append(task)
            specs.append(spec(task))
        policy = "stop" if stops else "continue"
        job = Job(
            self.sql.start(specs, on_failure=policy, paused=paused), stops, "paused" if paused else "queued"
        )
        for task in tasks:
            job.add(task)
        self.jobs.append(job)

    @precondition(lambda self: any(job.is_open for job in self.jobs))
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        job = self.pick(data, "queued", "running", "paused")
        assert job
        if len(job.tasks) >= 8:
            return
        parents = self.parents(data, list(job.tasks))
        task = Task(f"t{len(job.tasks)}", parents, bool(parents) and data.draw(st.booleans()))
        self.sql.add(job.id, [spec(task)])
        job.add(task)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), verb=st.sampled_from(["pause", "resume", "cancel", "retry"]))
    def act(self, data: st.DataObject, verb: str) -> None:
        job = self.pick(data)
        assert job
        legal = {
            "pause": ("queued", "running", "paused"),
            "resume": ("queued", "running", "paused"),
            "cancel": ("queued", "running", "paused", "canceled"),
            "retry": ("running", "paused", "failed"),
        }[verb]
        if job.status not in legal:
            with self.sql.refused(409):
                getattr(self.sql, verb)(job.id)
            return
        answer = getattr(self.sql, verb)(job.id)
        if verb == "pause":
            job.status = "paused"
        elif verb == "resume" and job.status == "paused":
            job.status = "running" if job.has_begun else "queued"
        elif verb == "cancel" and job.is_open:
            job.stop("canceled")
        elif verb == "retry":
            assert answer == job.retry()

    # Tasks

    @rule(count=st.integers(1, 4))
    def claim(self, count: int) -> None:
        self.sql.do_chores()
        open_jobs = [job for job in self.jobs if job.status in ("queued", "running")]
        ready = [task for job in open_jobs for task in job.tasks.values() if task.state == "queued"]
        expected = min(count, len(ready))
        claimed = self.sql.claim(count, seconds=LEASE_SECONDS)
        for _ in range(10):  # a claim that had to set stopped jobs' tasks aside may come back with less
            if len(claimed) < expected:
                claimed += self.sql.claim(count - len(claimed), seconds=LEASE_SECONDS)
        assert len(claimed) == expected
        for row in claimed:
            job = next(job for job in self.jobs if job.id == row["job_id"])
            task = job.tasks[row["key"]]
            assert task.state == "queued", f"{task} was claimed"
            assert row["attempt"] == task.failures + task.deaths + 1
            outputs = {
                key: {"by": key} if job.tasks[key].state == "succeeded" else None for key in task.after
            }
            assert row["input"].get("after", {}) == outputs
            task.state, task.lease, task.expires = "running", row, self.now + LEASE_SECONDS
            task.is_stopped = False
            job.status, job.has_begun = "running", True

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        how=st.sampled_from(["complete", "complete", "fail", "kill", "reschedule", "later", "beat", "wait"]),
    )
    def report(self, data: st.DataObject, how: str) -> None:
        job, task = data.draw(st.sampled_from(self.running))
        lease = task.lease
        assert lease
        call = {
            "complete": lambda: self.sql.complete(lease, {"by": task.key}),
            "fail": lambda: self.sql.fail(lease),
            "kill": lambda: self.sql.kill(lease),
            "reschedule": lambda: self.sql.reschedule(lease),
            "later": lambda: self.sql.reschedule(lease, 20),
            "beat": lambda: self.sql.beat(lease),
            "wait": lambda: self.sql.park(lease, f"wait {self.steps}") == "parked",
        }[how]
        if task.is_stopped:
            with self.sql.refused(410):
                call()
            return
        assert call() is True
        if how == "beat":
            task.expires = self.now + LEASE_SECONDS
            return
        self.late.append(lease)
        task.lease = None
        if how == "complete":
            job.end(task, "succeeded")
        elif how == "kill" or (how == "fail" and task.failures + 1 >= MAX_ATTEMPTS):
            job.end(task, "failed")
        elif how == "later":
            task.state, task.due = "waiting", self.now + 20
        elif how == "wait":
            task.state, task.wait = "asking", f"wait {self.steps}"
        else:
            task.failures += how == "fail"
            task.state = "queued"

    @property
    def asking(self) -> list[tuple[Job, Task, db.Row]]:
        ids = {
            (row["job_id"], row["key"]): row
            for row in self.sql.execute("select job_id, key, id from penstock.tasks")
        }
        return [
            (job, task, ids[job.id, task.key])
            for job in self.jobs
            for task in job.tasks.values()
            if task.state == "asking"
        ]

    @precondition(lambda self: self.asking)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        job, task, row = data.draw(st.sampled_from(self.asking))
        if job.is_open:
            assert self.sql.answer(row, name=task.wait) is True
            task.state = "queued"
        else:
            with self.sql.refused(409, "job_ended"):
                self.sql.answer(row, name=task.wait)

    @precondition(lambda self: self.late)
    @rule(data=st.data(), how=st.sampled_from(["reschedule", "beat"]))
    def come_late(self, data: st.DataObject, how: str) -> None:
        lease = data.draw(st.sampled_from(self.late))
        with self.sql.refused(410):
            getattr(self.sql, how)(lease)

    # Time

    @rule(seconds=st.sampled_from([1, 10, 21, 31]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.clock.advance(seconds=seconds)
        while self.sql.upkeep()["reclaimed"]:
            pass
        for job in self.jobs:
            dead: list[Task] = []
            for task in job.tasks.values():
                if task.state == "waiting" and task.due <= self.now:
                    task.state = "queued"
                if task.lease and task.expires < self.now:
                    self.late.append(task.lease)
                    task.lease = None
                    if task.is_stopped and task.state == "running":
                        task.state, task.is_stopped = "queued", False
                    elif task.state == "running" and task.deaths + 1 >= MAX_DEATHS:
                        dead.append(task)
                    elif task.state == "running":
                        task.state, task.deaths = "queued", task.deaths + 1
            # Those that died together end together, before the job looks at what to do about it.
            for task in dead:
                task.state = "failed"
            for task in dead:
                job.end(task, "failed")

    # What must hold

    @invariant()
    def agree(self) -> None:
        rows = self.sql.execute("select job_id, key, status from penstock.task_list")
        states = {(row["job_id"], row["key"]): row["status"] for row in rows}
        # A task that waits for its time, or for its job to go on, is shown as queued.
        assert states == {
            (job.id, task.key): {"waiting": "queued", "asking": "waiting"}.get(task.state, task.state)
            for job in self.jobs
            for task in job.tasks.values()
        }
        for row in self.sql.execute(
            "select id, status, total, succeeded, failed, canceled from penstock.job_list"
        ):
            job = next(job for job in self.jobs if job.id == row["id"])
            assert row["status"] == job.status
            assert row["total"] == len(job.tasks)
            for state in ENDED:
                assert row[state] == sum(task.state == state for task in job.tasks.values())
        self.steps += 1
        if self.steps % 5 == 0:
            self.sql.check()


def spec(task: Task) -> dict[str, Any]:
    policy = {"after_failure": "run"} if task.runs_after_failure else {}
    return {"kind": "work", "key": task.key, "after": sorted(task.after), **policy}


_made: dict[int, str] = {}


def _database(server: testing.Server) -> str:
    if server.major not in _made:
        _made[server.major] = server.create(server.template())
    return _made[server.major]


@pytest.fixture
def model(penstock_server: testing.Server) -> Iterator[type[Model]]:
    Model.server = penstock_server
    yield Model
    with suppress(psycopg.Error):
        penstock_server.drop(_made.pop(penstock_server.major))


def run(model: type[Model], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=int(os.environ.get("PENSTOCK_TEST_EXAMPLES", examples)),
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            phases=[Phase.generate, Phase.shrink],
            verbosity=Verbosity.normal,
            database=None,
        ),
    )


@pytest.mark.timeout(180)
def test_any_sequence_of_calls_ends_where_the_model_does(model: type[Model]) -> None:
    """R0.2/job-states, R0.2/task-states, R1.2/fence, R1.3/order, R1.6/stale-leases: states of jobs and tasks, leases, graphs, retries, deaths, replays."""
    run(model, examples=15, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_long_sequences_end_where_the_model_does(model: type[Model]) -> None:
    """The same, with more and longer sequences."""
    run(model, examples=40, steps=40)
