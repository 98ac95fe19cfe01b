"""A worker that is warm and idle through each restart of PostgreSQL, and the few tasks that it gets afterwards."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import psycopg

import penstock
from faults import app as work
from faults.history import History
from faults.server import Postgres
from penstock.postgres import db

SIZES = {"warm": len(work.WARM), "warm up": 12}
"""Tasks of a job, by flavour: after a restart, and to open all connections of the worker's pools."""
_WAIT_SECONDS = 30


class IdleWorker:
    """Starts the jobs of the idle worker, and waits for their ends."""

    def __init__(self, postgres: Postgres, history: History, tenant: str) -> None:
        self._postgres, self._history, self._tenant = postgres, history, tenant
        self._count = 0

    def feed(self, flavour: str) -> None:
        """Start a job and wait until it has ended."""
        self._count += 1
        key = f"warm-{self._count}"
        params = {"flavour": flavour, "seed": 900_000_000 + self._count, "size": SIZES[flavour]}
        self._history.note("attempted", key=key, **params)
        job_id = self._start(key, params)
        if job_id is None:
            self._history.note("unknown", key=key)
            return
        self._history.note("acknowledged", key=key, job=job_id)
        self._wait(job_id)

    def _start(self, key: str, params: dict[str, Any]) -> str | None:
        """The job's id, or None if PostgreSQL was away for too long."""
        drawn = work.work.draw(params)
        options = {"idempotency_key": key, "tenant_id": self._tenant}
        for _ in range(50):
            try:
                [row] = self._postgres.execute(
                    "select penstock.start_job('work', %s, %s, %s)::text as id",
                    [db.Json(drawn.params), db.Json(drawn.tasks), db.Json(options)],
                )
                return row["id"]
            except (psycopg.Error, penstock.PenstockError) as error:
                self._history.note("unknown", key=key, error=str(error)[:200])
                time.sleep(0.2)
        return None

    def _wait(self, job_id: str) -> None:
        query = "select id from penstock.jobs where id = %s and finished_at is not null"
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            with suppress(psycopg.Error, penstock.PenstockError):
                if self._postgres.execute(query, [job_id]):
                    return
            time.sleep(0.1)
