"""The contract, called as SQL: a thin caller, refusals, concurrent sessions, and the invariants."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from faults.invariants import INVARIANTS
from penstock import testing
from penstock.postgres import db
from tests.sql.lock_order import LockWatch

KINDS = ["work", "other"]


@dataclass
class Refusal:
    """The error of a refused call."""

    sqlstate: str = ""
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str | None:
        return self.details.get("code")


class Contract:
    """The SQL functions, on one connection. Documents go in as Python values; a claimed row is a task."""

    def __init__(self, connection: db.SyncConnection, tenant: uuid.UUID | None = None) -> None:
        self.connection = connection
        self.tenant = tenant

    # Calls

    def execute(self, query: str, *params: Any) -> list[db.Row]:
        cursor = self.connection.execute(query.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: str, *params: Any) -> Any:
        """The single value of a query, or None."""
        rows = self.execute(query, *params)
        assert len(rows) <= 1
        return next(iter(rows[0].values())) if rows else None

    def rows(self, function: str, **arguments: Any) -> list[db.Row]:
        # A Python float is a double precision, which does not become a real by itself.
        names = ", ".join(
            f"p_{name} => %({name})s" + ("::real" if name in ("fraction", "weight") else "")
            for name in arguments
        )
        cursor = self.connection.execute(f"select * from penstock.{function}({names})".encode(), arguments)
        return cursor.fetchall()

    def value(self, function: str, **arguments: Any) -> Any:
        rows = self.rows(function, **arguments)
        return next(iter(rows[0].values())) if rows else None

    @contextmanager
    def refused(
        self, status: int | str, code: str | None = None, *, field: str | None = None
    ) -> Generator[Refusal]:
        """The block must be refused, with this HTTP status (or SQLSTATE), code and field."""
        seen = Refusal()
        try:
            with self.connection.transaction():
                yield seen
        except psycopg.Error as error:
            seen.sqlstate = error.sqlstate or ""
            seen.message = error.diag.message_primary or str(error)
            assert seen.sqlstate == (f"PT{status}" if isinstance(status, int) else status), seen.message
            if isinstance(status, int):
                seen.details = json.loads(error.diag.message_detail or "{}")
            if code is not None:
                assert seen.code == code, seen
            if field is not None:
                assert seen.details.get("field") == field, seen
            assert len(seen.message) < 1000, "a refusal is a sentence"
            return
        pytest.fail("it was not refused")

    # Jobs

    def start(
        self,
        tasks: Iterable[Any] | int | Any = 1,
        *,
        type: str = "report",
        params: Any = None,
        **options: Any,
    ) -> uuid.UUID:
        """Start a job. A number means this many equal tasks; a string is a kind."""
        if self.tenant is not None:
            options = {"tenant_id": str(self.tenant), **options}
        return self.value(
            "start_job",
            type=type,
            params=Jsonb({} if params is None else params),
            tasks=Jsonb(specs(tasks)),
            options=Jsonb(options),
        )

    def add(self, job: uuid.UUID, tasks: Any, **by: Any) -> list[int | None]:
        return self.value("add_tasks", job_id=job, tasks=Jsonb(specs(tasks)), **by)

    def job(self, job: uuid.UUID) -> dict[str, Any]:
        return self.value("get_job", job_id=job)

    def status(self, job: uuid.UUID) -> str:
        return self.job(job)["status"]

    def progress(self, job: uuid.UUID) -> dict[str, Any]:
        return self.job(job)["progress"]

    def pause(self, job: uuid.UUID, reason: str | None = None) -> str:
        return self.value("pause_job", job_id=job, reason=reason)

    def resume(self, job: uuid.UUID) -> str:
        return self.value("resume_job", job_id=job)

    def cancel(self, job: uuid.UUID, reason: str | None = None) -> str:
        return self.value("cancel_job", job_id=job, reason=reason)

    def retry(self, job: uuid.UUID) -> int:
        return self.value("retry_job", job_id=job)

    def replay(self, **filter: Any) -> int:
        return self.value("replay_dead_letters", filter=Jsonb(filter))

    def audit(self, job: uuid.UUID) -> list[db.Row]:
        return self.execute("select * from penstock.audit_log where job_id = %s order by id", job)

    # Tasks

    def tasks(self, job: uuid.UUID) -> list[db.Row]:
        return self.execute("select * from penstock.task_list where job_id = %s order by id", job)

    def task(self, task: db.Row | int) -> db.Row:
        task_id = task if isinstance(task, int) else task["id"]
        (row,) = self.execute("select * from penstock.task_list where id = %s", task_id)
        return row

    def states(self, job: uuid.UUID) -> dict[str | int, str]:
        """The status of each task, by its key, or by its id where it has none."""
        return {row["key"] or row["id"]: row["status"] for row in self.tasks(job)}

    def claim(
        self,
        count: int = 1,
        worker: str = "w1",
        kinds: list[str] | None = None,
        seconds: int | None = None,
    ) -> list[db.Row]:
        return self.rows(
            "claim_tasks", worker_id=worker, max_tasks=count, task_types=kinds, lease_seconds=seconds
        )

    def claim_one(self, worker: str = "w1", **how: Any) -> db.Row:
        (task,) = self.claim(1, worker, **how)
        return task

    def complete(self, task: db.Row, output: Any = None, worker: str = "w1") -> bool:
        return self.value(
            "complete_task",
            task_id=task["id"],
            worker_id=worker,
            output=None if output is None else Jsonb(output),
            lease=task["lease"],
        )

    def complete_all(self, tasks: list[db.Row], worker: str = "w1") -> list[db.Row]:
        return self.rows(
            "complete_tasks",
            worker_id=worker,
            task_ids=[task["id"] for task in tasks],
            leases=[task["lease"] for task in tasks],
        )

    def fail(self, task: db.Row, error: str = "boom", worker: str = "w1", **how: Any) -> bool:
        return self.value(
            "fail_task", task_id=task["id"], worker_id=worker, error=error, lease=task["lease"], **how
        )

    def kill(self, task: db.Row, error: str = "boom", worker: str = "w1") -> bool:
        """Fail the task permanently."""
        return self.fail(task, error, worker, permanent=True)

    def beat(self, task: db.Row, worker: str = "w1") -> bool:
        return self.value("heartbeat_task", task_id=task["id"], worker_id=worker, lease=task["lease"])

    def reschedule(self, task: db.Row, delay: float = 0, worker: str | None = "w1") -> bool:
        return self.value(
            "reschedule_task",
            task_id=task["id"],
            delay_seconds=delay,
            lease=task["lease"],
            worker_id=worker,
        )

    def ask(self, task: db.Row, name: str = "approval", worker: str = "w1", **options: Any) -> dict[str, Any]:
        """Open a wait of a running task, or look at it again."""
        return self.value(
            "open_wait",
            task_id=task["id"],
            worker_id=worker,
            lease=task["lease"],
            name=name,
            options=Jsonb(options),
        )

    def park(self, task: db.Row, name: str = "approval", worker: str = "w1", **options: Any) -> str:
        """Let a running task wait: what the worker does when a handler waits."""
        wait = self.ask(task, name, worker, **options)
        return self.value(
            "park_task", task_id=task["id"], worker_id=worker, lease=task["lease"], wait_id=wait["id"]
        )

    def wait_id(self, task: db.Row, name: str = "approval") -> uuid.UUID:
        return self.one("select id from penstock.waits where task_id = %s and name = %s", task["id"], name)

    def answer(self, task: db.Row, option: str | None = None, name: str = "approval", **payload: Any) -> bool:
        return self.value(
            "answer_wait", wait_id=self.wait_id(task, name), option=option, payload=Jsonb(payload)
        )

    def operation_id(self, task: db.Row, number: int | None = None) -> uuid.UUID:
        """The newest operation of the task, or the one with this number."""
        return self.one(
            "select id from penstock.operations where job_id = %s and task_id = %s and number = coalesce(%s, number)"
            " order by number desc limit 1",
            task["job_id"], task["id"], number,
        )  # fmt: skip

    def park_operation(self, task: db.Row, worker: str = "w1") -> str:
        """Submit an operation and wait for it."""
        by = {"worker_id": worker, "lease": task["lease"]}
        begun = self.value(
            "begin_operation", task_id=task["id"], **by, object=f"object:{task['id']}", timeout_seconds=300.0
        )
        if begun["status"] == "pending":
            self.value("submit_operation", operation_id=begun["id"], **by, external_id=f"cc_{begun['id']}")
        return self.value("park_operation", operation_id=begun["id"], **by, seconds=30.0)

    def tell_operation(self, task: db.Row, number: int | None = None) -> str:
        """The webhook of the task's operation."""
        return self.value("tell_operation", provider="cc", operation_id=self.operation_id(task, number))

    def settle_operation(self, task: db.Row, worker: str = "w1", outcome: str = "completed") -> str:
        """End the task's operation."""
        return self.value(
            "settle_operation", operation_id=self.operation_id(task), worker_id=worker, lease=task["lease"],
            outcome=outcome,
        )  # fmt: skip

    def reconcile_operation(self, task: db.Row, number: int | None = None) -> str:
        """The provider says that the task's operation is completed."""
        operation_id = self.operation_id(task, number)
        return self.value("reconcile_operation", operation_id=operation_id, outcome="completed")

    def store_step(self, task: db.Row, name: str, output: Any, worker: str = "w1") -> Any:
        """Store the result of a step of a running task."""
        return self.value(
            "store_step", task_id=task["id"], worker_id=worker, lease=task["lease"], name=name,
            output=Jsonb(output),
        )  # fmt: skip

    def cancel_operation(self, task: db.Row) -> str:
        """Cancel the task's operation."""
        return self.value("cancel_operation", operation_id=self.operation_id(task))

    def report(self, task: db.Row, fraction: float | None = None, message: str | None = None) -> None:
        self.value(
            "report_progress",
            task_id=task["id"],
            worker_id="w1",
            lease=task["lease"],
            fraction=fraction,
            message=message,
        )

    def reclaim(self) -> int:
        """Reclaim all expired leases."""
        found = 0
        while some := self.value("reclaim_stale_tasks"):
            found += some
        return found

    def upkeep(self) -> db.Row:
        (row,) = self.rows("upkeep")
        return row

    def do_chores(self) -> None:
        """Finish what pause, resume and cancel left to upkeep."""
        for _ in range(1000):
            if not self.one("select exists (select from penstock.chores)"):
                return
            self.upkeep()
        pytest.fail("a chore is never done")

    def provider(self, name: str, **values: Any) -> int:
        return self.value("set_provider", name=name, values=Jsonb(values))

    def drain(self, worker: str = "w1", batch: int = 100) -> int:
        """Run all tasks that can run now; returns their number."""
        done = 0
        while tasks := self.claim(batch, worker):
            assert self.complete_all(tasks, worker) == []
            done += len(tasks)
        return done

    # What holds

    def where(self, task: db.Row | int) -> list[str]:
        """The tables that hold a task's state."""
        task_id = task if isinstance(task, int) else task["id"]
        return [
            table
            for table in ("ready", "parked", "leases", "results")
            if self.one(f"select count(*) from penstock.{table} where task_id = %s", task_id)
        ]

    def snapshot(self) -> dict[str, list[db.Row]]:
        """All stored rows, to compare before and after a refused call."""
        tables = "jobs phases tasks edges ready parked leases results attempts dead_letters chores audit_log"
        return {
            table: self.execute(f"select x::text from penstock.{table} as x order by 1")
            for table in tables.split()
        }

    def check(self) -> None:
        """Check the invariants between two transactions."""
        assert {text: rows for text, query in INVARIANTS.items() if (rows := self.execute(query))} == {}


def specs(tasks: Any) -> Any:
    if isinstance(tasks, int):
        return [{"kind": "work"} for _ in range(tasks)]
    if isinstance(tasks, list):
        return [{"kind": task} if isinstance(task, str) else task for task in tasks]
    return tasks


def graph(**after: str) -> list[dict[str, Any]]:
    """Tasks by key: `graph(a="", b="a", c="a b")`."""
    return [{"kind": "work", "key": key, "after": parents.split()} for key, parents in after.items()]


class Call:
    """A call in its own thread and session, so that a test can see it wait."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=[work], daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error:
            raise self._error
        return self._result


@dataclass
class Sessions:
    """Several sessions in one database."""

    database: testing.Database
    tenant: uuid.UUID
    locks: LockWatch = field(default_factory=LockWatch)

    def open(self) -> Contract:
        return Contract(self.database.connect(), self.tenant)

    def wait_until_blocked(self, contract: Contract, call: Call) -> None:
        """Return when that session waits for a lock."""
        if not self.wait_until_blocked_or_done(contract, call):
            call.result()
            pytest.fail("the call did not wait")

    def wait_until_wait_is_seen(self, contract: Contract, call: Call) -> None:
        """Return when that session waits for a lock and the watch has recorded it."""
        self.wait_until_blocked(contract, call)
        deadline = time.monotonic() + 10
        with db.connect(self.database.dsn, name="test") as watcher:
            # The first reading may be of the moment at which the session begins to wait.
            while not self.locks.seen and time.monotonic() < deadline:
                self.locks.look(watcher)

    def wait_until_blocked_or_done(self, contract: Contract, call: Call) -> bool:
        """Return whether the session waits for a lock, as soon as it does or the call has ended."""
        pid = contract.connection.info.backend_pid
        query = "select wait_event_type = 'Lock' as waits from pg_stat_activity where pid = %s"
        deadline = time.monotonic() + 10
        with db.connect(self.database.dsn, name="test") as watcher:
            while call.is_running and time.monotonic() < deadline:
                if watcher.execute(query, [pid]).fetchall()[0]["waits"]:
                    self.locks.look(watcher)
                    return True
        if call.is_running:
            pytest.fail("the call neither waits nor ends")
        return False

    def watch_locks(self, stop: threading.Event) -> None:
        """Look at what sessions wait for, every few milliseconds."""
        with db.connect(self.database.dsn, name="test") as watcher:
            while not stop.wait(0.003):
                self.locks.look(watcher)


def prepare(contract: Contract) -> Contract:
    # Many tests write tasks as a user; test_policies tests that kinds do not allow it by default.
    kinds = [{"name": name, "backoff_seconds": 0, "raw_tasks": True} for name in KINDS]
    contract.value("define_kinds", kinds=Jsonb(kinds))
    contract.value("define_job_type", name="report")
    # Shorter than the default, so that a lease expires before 31 seconds have passed.
    contract.execute("update penstock.settings set value = '30' where name = 'lease_seconds'")
    # On a slow machine a test may go seconds without upkeep, which the database takes for an outage.
    contract.execute(
        "insert into penstock.upkeep_runs (ran_at) values (now() + interval '1 hour') on conflict do nothing"
    )
    return contract


@pytest.fixture
def sql(conn: db.SyncConnection, tenant: uuid.UUID, clock: testing.Clock) -> Contract:
    """The contract in a transaction that is rolled back, with two kinds that retry at once, and time stopped."""
    clock.freeze()
    return prepare(Contract(conn, tenant))


@pytest.fixture
def sessions(db: testing.Database, tenant: uuid.UUID) -> Generator[Sessions]:
    """The contract in several sessions, in a database of the test's own. They must wait in the lock order."""
    made = Sessions(db, tenant)
    prepare(made.open())
    yield made
    made.locks.check()
