"""A database that no `penstock worker` knows: one `penstock serve`, and workers that only use its HTTP API, as workers
in other languages do. Expired leases and due retries must come back all the same."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from faults import check, history
from faults.figures import RPC_FIGURES, figures_of
from faults.history import History
from penstock.postgres import db, migrate

DATABASE = "faults_rpc"
KIND = "remote"
WORKERS = 3
BATCH = 3
JOB_SIZE = 4
LEAST_JOBS = 5
RETRY_SECONDS = 1
_PAUSE = 0.3


class Rejected(Exception):
    """The API refused a request."""


class Unanswered(Exception):
    """The run ended before there was an answer."""


class Caller:
    """Calls functions at /rest/v1/rpc, and repeats a call that got no answer."""

    def __init__(self, url: str, key: str, is_over: Callable[[], bool] = lambda: False) -> None:
        self._is_over = is_over
        self.http = httpx.Client(
            base_url=f"{url}/rest/v1/rpc/", headers={"authorization": f"Bearer {key}"}, timeout=10
        )

    def call(self, function: str, **arguments: Any) -> Any:
        """The function's answer. Every function used here may be called twice."""
        while not self._is_over():
            try:
                answer = self.http.post(function, json=arguments)
            except httpx.HTTPError:
                time.sleep(_PAUSE)
                continue
            if answer.is_success:
                return answer.json() if answer.content else None
            if answer.status_code < 500 and answer.status_code != 429:
                raise Rejected(f"{function}: {answer.status_code} {answer.text[:300]}")
            time.sleep(_PAUSE)
        raise Unanswered(function)


def worker(folder: Path, url: str, key: str, lease_seconds: int) -> None:
    """Claims, extends, completes and fails tasks over HTTP. Every fourth task fails once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = os.open(folder / f"rpc-{os.getpid()}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    told = History(folder / f"rpc-{os.getpid()}.jsonl")
    told.note("worker")
    api, me = Caller(url, key), f"rpc-{os.getpid()}-{uuid4().hex[:6]}"
    while True:
        claims = api.call(
            "claim_tasks", p_worker_id=me, p_max_tasks=BATCH, p_task_types=[KIND], p_lease_seconds=lease_seconds
        )  # fmt: skip
        for at, claim in enumerate(claims):
            left = [{"id": one["id"], "lease": one["lease"]} for one in claims[at:]]
            lost = api.call("heartbeat_tasks", p_worker_id=me, p_leases=left, p_lease_seconds=lease_seconds)
            if claim["id"] not in {one["id"] for one in lost}:
                _run(api, me, claim, told)
        if not claims:
            time.sleep(_PAUSE)


def _run(api: Caller, me: str, claim: dict[str, Any], told: History) -> None:
    task, lease, n = claim["id"], claim["lease"], claim["input"]["n"]
    told.note("began", task=task, lease=lease, kind=KIND)
    time.sleep(0.1 + n % 5 * 0.05)
    try:
        if n % 4 == 0 and claim["attempt"] == 1:
            api.call(
                "fail_task", p_task_id=task, p_worker_id=me, p_lease=lease, p_error="not yet",
                p_retry_after_seconds=RETRY_SECONDS,
            )  # fmt: skip
            return
        refused = api.call(
            "complete_tasks", p_worker_id=me, p_task_ids=[task], p_leases=[lease], p_outputs=[n]
        )
        for one in refused:
            told.note("refused", verb="complete", task=one["id"], lease=lease, code=one["code"])
    except Rejected as error:
        told.note("refused", verb="fail", task=task, lease=lease, code="lease_lost", error=str(error))


class Scene:
    """The database, and the jobs that are started in it over HTTP."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.logs = dsn, folder / "rpc"
        self.logs.mkdir()
        self.history = History(self.logs / "run.jsonl")
        migrate.migrate(dsn)
        with db.connect(dsn) as connection:
            connection.execute(check.TABLES.encode())
            connection.execute(
                "select penstock.define_kind(%s, %s)",
                [KIND, db.Json({"max_attempts": 50, "backoff_seconds": 0.05, "backoff_cap_seconds": 0.5})],
            )
            connection.execute("select penstock.define_job_type('remote')")
            self.tenant = _one(connection, "select penstock.ensure_tenant('rpc') as id")
            self.service_key = _one(
                connection, "select secret from penstock.create_key('rpc', 'service', null)"
            )
            self.worker_key = _one(
                connection, "select secret from penstock.create_key('rpc', 'worker', null)"
            )

    async def feed(
        self, url: str, is_enough: Callable[[], bool], is_over: Callable[[], bool], seed: int
    ) -> None:
        """Start a small job about once a second until it is enough, and a few in any case."""
        dice, number = random.Random(seed), 0
        api = Caller(url, self.service_key, is_over)
        with api.http:
            while not is_over() and (number < LEAST_JOBS or not is_enough()):
                number += 1
                await asyncio.to_thread(self._start, api, f"rpc-{number}", number)
                await asyncio.sleep(dice.uniform(0.5, 1.5))

    def _start(self, api: Caller, key: str, number: int) -> None:
        first = number * 10
        tasks = [{"kind": KIND, "key": str(k), "input": {"n": first + k}} for k in range(JOB_SIZE)]
        self.history.note("attempted", key=key, flavour="rpc", seed=number, size=JOB_SIZE)
        options = {"idempotency_key": key, "tenant_id": str(self.tenant)}
        try:
            job = api.call("start_job", p_type="remote", p_params={}, p_tasks=tasks, p_options=options)
        except Rejected as error:
            self.history.note("refusal", key=key, error=str(error)[:200])
        except Unanswered:
            self.history.note("unknown", key=key)
        else:
            self.history.note("acknowledged", key=key, job=job)

    def is_done(self) -> bool:
        with db.connect(self.dsn, name="faults", wait_seconds=5) as connection:
            return _one(connection, "select count(*) as n from penstock.jobs where finished_at is null") == 0

    def check(self, disturbances: Iterable[dict[str, Any]]) -> check.Found:
        """What the checker finds in this database. `disturbances`: PostgreSQL's outages and strikes."""
        with db.connect(self.dsn, name="faults check") as connection:
            check.load(connection, [*history.read(self.logs), *disturbances])
            found = check.check(connection)
            found.wrong |= check.check(connection, checks=check.RPC_CHECKS).wrong
            found.figures = figures_of(connection, RPC_FIGURES)
        return found


def _one(connection: db.SyncConnection, query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    assert row
    return next(iter(row.values()))
