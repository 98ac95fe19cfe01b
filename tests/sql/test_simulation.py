"""The scheduler under a deterministic simulation: virtual workers, tenants and time, drawn from a seed.

The same seed gives the same history, so that a failure can be repeated step by step.
"""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.postgres import db
from penstock.testing import Clock
from tests.sql.conftest import Contract

pytestmark = pytest.mark.every_postgres

STEPS = 150
WORKERS = ("w1", "w2", "w3")
_HISTORY = """
select dense_rank() over (order by j.id) as job, j.status as job_status,
  row_number() over (partition by j.id order by t.id) as task, t.status, t.attempt
from penstock.job_list j join penstock.task_list t on t.job_id = j.id order by 1, 3"""


class Simulation:
    """Draws the next event; the database decides its outcome."""

    def __init__(self, sql: Contract, clock: Clock, seed: int) -> None:
        self._sql, self._clock, self._chance = sql, clock, random.Random(seed)
        self._held: dict[str, list[db.Row]] = {worker: [] for worker in WORKERS}
        self._jobs: list[Any] = []
        self.events: list[str] = []
        # Jitter and places among equals come from PostgreSQL's generator.
        sql.execute("select setseed(%s)", seed / 1000)
        sql.provider("api/one", requests_per_minute=30, concurrency=4)
        sql.value("define_kind", name="work", options=Jsonb({"backoff_seconds": 2, "max_attempts": 3}))
        self._tenants: list[Any] = []
        for number in range(3):
            # Ids of the same millisecond have no order.
            clock.advance(milliseconds=1)
            self._tenants.append(sql.value("create_tenant", name=f"t{number}", weight=number + 1))
            sql.value("set_tenant_plan", tenant_id=self._tenants[-1], plan="unlimited")

    def step(self) -> None:
        self._clock.advance(milliseconds=1)
        verb = self._chance.choice(
            ["start", "claim", "claim", "finish", "finish", "pass", "die", "upkeep", "pause", "cancel"]
        )
        self.events.append(f"{verb}: {getattr(self, f'_{verb}')()}")

    def _start(self) -> int:
        provider = self._chance.choice([None, "api/one"])
        count = self._chance.randint(1, 6)
        tasks = [{"kind": "work", **({"provider": provider} if provider else {})} for _ in range(count)]
        tenant = self._chance.choice(self._tenants)
        self._jobs.append(self._sql.start(tasks, tenant_id=str(tenant)))
        return count

    def _claim(self) -> int:
        worker = self._chance.choice(WORKERS)
        taken = self._sql.claim(self._chance.randint(1, 5), worker, seconds=30)
        self._held[worker] += taken
        return len(taken)

    def _finish(self) -> str:
        worker = self._chance.choice(WORKERS)
        if not self._held[worker]:
            return "nothing"
        task = self._held[worker].pop(self._chance.randrange(len(self._held[worker])))
        if self._chance.random() < 0.7:
            refused = self._sql.complete_all([task], worker)
            return f"completed, refused: {[row['code'] for row in refused]}"
        try:
            with self._sql.connection.transaction():
                return f"failed {self._sql.fail(task, worker=worker)}"
        except psycopg.Error as error:
            return f"refused {error.sqlstate}"

    def _pass(self) -> float:
        seconds = self._chance.choice([0.5, 3, 20])
        self._clock.advance(seconds=seconds)
        return seconds

    def _die(self) -> str:
        """The worker never reports again: its leases run out."""
        worker = self._chance.choice(WORKERS)
        self._held[worker] = []
        return worker

    def _upkeep(self) -> int:
        return self._sql.reclaim() + len(self._sql.rows("upkeep"))

    def _pause(self) -> str:
        if not self._jobs:
            return "nothing"
        job = self._chance.choice(self._jobs)
        status = self._sql.job(job)["status"]
        if status not in ("queued", "running", "paused"):
            return status
        self._sql.resume(job) if status == "paused" else self._sql.pause(job)
        self._sql.do_chores()
        return status

    def _cancel(self) -> str:
        if self._chance.random() < 0.8 or not self._jobs:
            return "nothing"
        job = self._chance.choice(self._jobs)
        if (status := self._sql.job(job)["status"]) in ("queued", "running", "paused"):
            self._sql.cancel(job)
            self._sql.do_chores()
        return status


def history(sql: Contract, clock: Clock, seed: int) -> list[str]:
    """Run a simulation, check the invariants after each step, and return the history."""
    with sql.connection.transaction(force_rollback=True):
        simulation = Simulation(sql, clock, seed)
        for _ in range(STEPS):
            simulation.step()
            sql.check()
        ends = [str(tuple(row.values())) for row in sql.execute(_HISTORY)]
    return [*simulation.events, *ends]


@pytest.mark.slow
def test_same_seed_gives_the_same_history(sql: Contract, clock: Clock) -> None:
    """B7/simulation"""
    histories = [history(sql, clock, seed) for seed in (1, 2, 3, 1, 2, 3)]
    assert histories[:3] == histories[3:]
    assert len({str(each) for each in histories}) == 3
    text = str(histories)
    assert all(word in text for word in ("completed", "failed", "canceled", "paused", "running"))
