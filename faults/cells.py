"""`python -m faults.cells --moves 30`: tenants move between two databases under load, and everything dies.

The command that moves is killed at random times, run again, or told to abort. Programs start jobs with outdated
places and repeat requests whose answer they lost; workers die with their leases, fail tasks and report late. In the
end each job that was acknowledged must be in one cell, completed, and each of its tasks have succeeded once.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from penstock import testing
from penstock.cells import Cell, apply, move, moving
from penstock.errors import PenstockError
from penstock.postgres import db

TENANTS = 4
TASKS = [
    {"kind": "work", "max_attempts": 50, **more}
    for more in ({"key": "a"}, {"key": "b"}, {"key": "c", "after": ["a"]})
]
LEASE_SECONDS = 2
REFRESH_SECONDS = 0.2
"""How old a program's places may be. The old rows stay for longer than that."""


@dataclass
class Run:
    """Two cells, and what programs and workers saw."""

    cells: dict[int, Cell]
    seed: int
    tenants: list[uuid.UUID] = field(default_factory=list[uuid.UUID])
    jobs: dict[tuple[uuid.UUID, int], uuid.UUID] = field(
        default_factory=dict[tuple[uuid.UUID, int], uuid.UUID]
    )
    succeeded: Counter[int] = field(default_factory=Counter[int])
    problems: list[str] = field(default_factory=list[str])
    kills: int = 0
    aborts: int = 0
    starting: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def connect(self, cell: int) -> Any:
        return db.connect(self.cells[cell].database_url, name="faults")

    def places(self) -> dict[uuid.UUID, int]:
        with self.connect(0) as connection:
            query = "select tenant_id, cell from penstock.tenant_cells"
            return {row["tenant_id"]: row["cell"] for row in connection.execute(query)}


def value(connection: db.SyncConnection, query: str, *values: Any) -> Any:
    row = connection.execute(query.encode(), values).fetchone()
    return next(iter(row.values())) if row else None


def start_jobs(run: Run, tenant: uuid.UUID) -> None:
    """Start jobs all the time, at the place that was right a moment ago. Repeats a request until it has an answer."""
    dice = random.Random(f"{run.seed} {tenant}")
    connections = {cell: run.connect(cell) for cell in run.cells}
    opened = {cell: each.__enter__() for cell, each in connections.items()}
    places, read, number = run.places(), time.monotonic(), 0
    query = "select penstock.start_job('report', '{}', %s::jsonb, %s::jsonb)"
    while run.starting.is_set():
        if time.monotonic() - read > REFRESH_SECONDS:
            places, read = run.places(), time.monotonic()
        options = json.dumps({"tenant_id": str(tenant), "idempotency_key": f"job {number}"})
        try:
            job = value(opened[places.get(tenant, 0)], query, json.dumps(TASKS), options)
        except psycopg.Error as error:
            if error.sqlstate not in ("PT503", "PT404"):
                run.problems.append(f"a start was refused: {error}")
            time.sleep(0.05)
            continue
        if run.jobs.setdefault((tenant, number), job) != job:
            run.problems.append(f"job {number} of {tenant} was started twice")
        # One answer in five is lost: the same request again.
        number += dice.random() > 0.2
        time.sleep(0.02)
    for each in connections.values():
        each.__exit__(None, None, None)


def work(run: Run, cell: int, name: str) -> None:
    """Claim and end tasks; die with some, fail some, and report some after their lease."""
    dice = random.Random(f"{run.seed} {cell} {name}")
    with run.connect(cell) as connection:
        while not run.over.is_set():
            query = "select id, lease from penstock.claim_tasks(%s, 5, '{work}', %s)"
            tasks = connection.execute(query, (name, LEASE_SECONDS)).fetchall()
            if not tasks:
                time.sleep(0.02)
            for task in tasks:
                luck = dice.random() if run.starting.is_set() else 1.0
                if luck < 0.01:
                    continue
                if luck < 0.02:
                    time.sleep(LEASE_SECONDS * 1.2)
                try:
                    if luck < 0.15:
                        fail = "select penstock.fail_task(%s, %s, 'boom', %s, 0)"
                        value(connection, fail, task["id"], name, task["lease"])
                    elif value(connection, "select penstock.complete_task(%s, %s, '1', %s)",
                               task["id"], name, task["lease"]):  # fmt: skip
                        run.succeeded[task["id"]] += 1
                except psycopg.Error as error:
                    if error.sqlstate not in ("PT410", "PT404", "PT409"):
                        run.problems.append(f"a report was refused: {error}")


def keep_up(run: Run, cell: int) -> None:
    with run.connect(cell) as connection:
        while not run.over.is_set():
            connection.execute("select penstock.upkeep()")
            time.sleep(0.1)


def move_tenant(run: Run, dice: random.Random, tenant: uuid.UUID) -> None:
    """Move a tenant to the other cell, over several commands that are killed."""
    to = 1 - run.places().get(tenant, 0)
    for turn in range(100):
        is_abort = turn > 0 and dice.random() < 0.1
        given = [*(cell.database_url for cell in run.cells.values()), str(tenant), str(to)]
        command = [sys.executable, "-m", "faults.cells", "--move", *given, *(["--abort"] if is_abort else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            printed, _ = process.communicate(timeout=dice.uniform(0.3, 10.0) if dice.random() < 0.6 else 120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            run.kills += 1
            continue
        if process.returncode == 0:
            run.aborts += is_abort
            return
        if not is_abort or "already switched" not in printed:
            run.problems.append(f"a move failed: {printed[-500:]}")
            return
    run.problems.append(f"the move of {tenant} never ended")


def check(run: Run) -> None:
    """What must be true once everything has ended."""
    places = run.places()
    found: dict[uuid.UUID, list[tuple[int, str]]] = {}
    results: Counter[int] = Counter()
    for cell in run.cells:
        with run.connect(cell) as connection:
            for row in connection.execute("select id, tenant_id, status from penstock.jobs"):
                found.setdefault(row["id"], []).append((cell, row["status"]))
                if places.get(row["tenant_id"], 0) != cell:
                    run.problems.append(f"a job of {row['tenant_id']} is in cell {cell}, its tenant is not")
            query = "select task_id from penstock.results where outcome = 'succeeded'"
            results.update(row["task_id"] for row in connection.execute(query))
    if set(found) != set(run.jobs.values()):
        run.problems.append(
            f"{len(set(run.jobs.values()) - set(found))} acknowledged jobs are lost,"
            f" {len(set(found) - set(run.jobs.values()))} were never acknowledged"
        )
    for job, places_of_job in found.items():
        if [status for _, status in places_of_job] != ["completed"]:
            run.problems.append(f"job {job}: {places_of_job}")
    if set(results.values()) - {1} or len(results) != len(TASKS) * len(run.jobs):
        run.problems.append(f"{len(results)} tasks succeeded, of {len(TASKS) * len(run.jobs)}")
    if twice := [task for task, count in run.succeeded.items() if count > 1]:
        run.problems.append(f"{len(twice)} tasks were completed twice")
    if run.succeeded.keys() != results.keys():
        run.problems.append("a completion was acknowledged and is lost")


def wait_for_the_rest(run: Run, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = 0
        for cell in run.cells:
            with run.connect(cell) as connection:
                # Three deaths of its workers are the end of a task; here it must go on.
                value(connection, "select penstock.replay_dead_letters('{\"all\": true}')")
                left += value(connection, "select count(*) from penstock.jobs where finished_at is null")
        if not left:
            return
        time.sleep(0.2)
    run.problems.append(f"{left} jobs are unfinished")


@contextmanager
def installation(server: testing.Server, seed: int) -> Generator[Run]:
    with server.database() as first, server.database() as second:
        run = Run({0: Cell(0, first.dsn), 1: Cell(1, second.dsn)}, seed)
        for cell in run.cells:
            with run.connect(cell) as connection:
                connection.execute(
                    'select penstock.define_kinds(\'[{"name": "work", "backoff_seconds": 0}]\')'
                )
                connection.execute("select penstock.set_cell(%s)", (cell,))
        with run.connect(0) as connection:
            for number, name in enumerate(("main", "second")):
                connection.execute("select penstock.add_cell(%s, %s)", (number, name))
            for number in range(TENANTS):
                run.tenants.append(value(connection, "select penstock.create_tenant(%s)", f"tenant {number}"))
        apply(run.cells)
        yield run


def perform(server: testing.Server, moves: int, seed: int, tell: Callable[[str], None] = print) -> Run:
    """One run with this many moves."""
    dice = random.Random(seed)
    with installation(server, seed) as run:
        run.starting.set()
        starters = [threading.Thread(target=start_jobs, args=(run, tenant)) for tenant in run.tenants]
        others = [threading.Thread(target=keep_up, args=(run, cell)) for cell in run.cells]
        others += [
            threading.Thread(target=work, args=(run, cell, f"w{cell}{n}"))
            for cell in run.cells
            for n in range(2)
        ]
        for thread in (*starters, *others):
            thread.start()
        try:
            for number in range(moves):
                move_tenant(run, dice, dice.choice(run.tenants))
                tell(
                    f"move {number + 1}: {run.kills} kills, {len(run.jobs)} jobs, {len(run.problems)} problems"
                )
                if run.problems:
                    break
        finally:
            run.starting.clear()
            for thread in starters:
                thread.join()
            wait_for_the_rest(run, 120)
            run.over.set()
            for thread in others:
                thread.join()
        check(run)
        return run


def main() -> int:
    """Run, and print what was found."""
    if sys.argv[1:2] == ["--move"]:
        return _move(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m faults.cells", description=__doc__)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--server", type=int, default=18, help="which PostgreSQL: 15 or 18")
    given = parser.parse_args()
    begun = time.monotonic()
    run = perform(testing.server(given.server), given.moves, given.seed)
    testing.close_servers()
    print(f"seed {given.seed}: {given.moves} moves on PostgreSQL {given.server} with {run.kills} kills and {run.aborts} "
          f"aborts, {len(run.jobs)} jobs, {sum(run.succeeded.values())} completions, {len(run.problems)} problems "
          f"({time.monotonic() - begun:.0f} s)", *run.problems[:20], sep="\n")  # fmt: skip
    return 1 if run.problems else 0


def _move(given: list[str]) -> int:
    first, second, tenant, to = given[:4]
    # Longer than a program's places are old.
    moving.GRACE_SECONDS = 1
    cells = {0: Cell(0, first), 1: Cell(1, second)}
    try:
        move(cells, uuid.UUID(tenant), int(to), seconds=100, abort="--abort" in given)
    except PenstockError as error:
        # The killed command's session may hold the lock for a moment.
        if error.code == "move_in_progress":
            time.sleep(0.2)
            return _move(given)
        print(repr(error), error)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
