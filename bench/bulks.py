# ruff: noqa: E501
"""Bulk jobs: a million rows of a file, and budgets under random prices, limits and kills.

Each function measures one promise and returns figures.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import LiteralString

from psycopg.types.json import Jsonb

from bench.engine import SYSTEM, Connection, database
from bench.flow import one, set_provider
from bench.measure import REPOSITORY, Figure

APP = """
import asyncio, json, os, random, resource, sys, time
from pydantic import BaseModel
from penstock import App, Context, sources
from penstock.worker import Worker

app = App(database_url=os.environ["BENCH_DSN"])

class Idea(BaseModel):
    title: str
    seconds: int = 5
    provider: str = ""
    units: int = 1

@app.task(max_attempts=20, backoff=0.1)
async def render(ctx: Context, title: str, units: int) -> str:
    dice = random.Random(f"{title} {ctx.attempt}")
    await asyncio.sleep(dice.uniform(0.01, 0.15))
    if dice.random() < 0.8:
        # Usage is never more than estimated and often less; some tasks do not report it.
        await ctx.ausage(pages=dice.randint(0, units))
    if dice.random() < 0.1:
        raise ValueError("a simulated failure")
    return title

@app.bulk(row=Idea, key=["title"])
def ideas(row: Idea):
    if not row.provider:
        return render.step(row.title, row.units)
    return render.options(provider=row.provider, units={"pages": row.units}).step(row.title, row.units)
"""
DECLARE = """
async def declare():
    async with app.connections() as where:
        await app.declare(where)
app.block(declare())
app.close()
"""
IMPORT = """
with sources.open(sys.argv[1]) as source:
    began = time.perf_counter()
    job = ideas.start(source)
    seconds = time.perf_counter() - began
app.close()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "memory": memory}))
"""
LOAD = "asyncio.run(Worker(app, kinds=['ideas.load'], drain=True).run())"
WORK = "asyncio.run(Worker(app, concurrency=8, lease_seconds=3).run())"
_WATCH = """
create table watch (what text);
create function watch() returns trigger language plpgsql as $$
begin
  if new.meter = 'cost' and new.used + new.held > (select j.budget from penstock.jobs j where j.id = new.job_id) then
    insert into watch values (format('%s: %s + %s', new.job_id, new.used, new.held));
  end if;
  return null;
end $$;
create constraint trigger watch after insert or update on penstock.accounts for each row execute function watch();
"""


def run(dsn: str, code: str, *arguments: str) -> str:
    """Run a program with the app in its own process; returns the last line it prints."""
    environment = {**os.environ, "BENCH_DSN": dsn, "PENSTOCK_ALLOW_UNSAFE": "1"}
    done = subprocess.run([sys.executable, "-c", APP + code, *arguments], env=environment, cwd=REPOSITORY,
                          check=True, capture_output=True, text=True)  # fmt: skip
    return done.stdout.splitlines()[-1] if done.stdout else ""


def rows(dsn: str, n: int) -> list[Figure]:
    """Rows of a CSV file into a bulk job, compared with a plain COPY."""
    with tempfile.TemporaryDirectory() as folder, database(dsn) as connection:
        file = _file(Path(folder), n)
        found = json.loads(run(dsn, IMPORT, str(file)))
        rate = n / found["seconds"]
        count = one(connection, "select count(*) from penstock.bulk_rows")
        assert count == n, count
        bare, alike = _copies(connection, file)
    what = f"{n:,} rows of CSV"
    return [
        Figure("import_rows", what, rate, "rows/s"),
        Figure("import_ratio", f"bare COPY of the file: {n / bare:,.0f} rows/s", rate * bare / n, "of it"),
        Figure(
            "import_ratio_alike",
            f"bare COPY of the same rows into the same indexes: {n / alike:,.0f} rows/s",
            rate * alike / n,
            "of it",
        ),
        Figure("import_memory", what, found["memory"], "MB at most (< 200)"),
    ]


def loading(dsn: str, n: int) -> list[Figure]:
    """A worker validates each row, draws its graph and adds its tasks."""
    with tempfile.TemporaryDirectory() as folder, database(dsn) as connection:
        run(dsn, IMPORT, str(_file(Path(folder), n)))
        began = time.perf_counter()
        run(dsn, LOAD)
        rate = n / (time.perf_counter() - began)
        count = one(connection, "select count(*) from penstock.tasks where kind = 'render'")
    assert count == n, count
    return [Figure("load_rows", f"{n:,} rows, one worker", rate, "rows/s checked and made tasks")]


def _file(folder: Path, n: int) -> Path:
    file = folder / "ideas.csv"
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["title", "seconds", "notes"])
        writer.writerows([f"idea {i}", i % 20 + 1, "some words about it, and more of them"] for i in range(n))
    return file


def _copies(connection: Connection, file: Path) -> tuple[float, float]:
    """Seconds to COPY the file into plain columns, and its rows into a table like that of bulk rows."""
    connection.execute("create table bare (title text, seconds text, notes text)")
    bare = _copied(connection, file, "copy bare from stdin (format csv, header)")
    kept = file.with_suffix(".copy")
    with kept.open("wb") as out, connection.cursor().copy("copy penstock.bulk_rows to stdout") as copy:
        for block in copy:
            out.write(block)
    connection.execute("create table alike (like penstock.bulk_rows including all)")
    return bare, _copied(connection, kept, "copy alike from stdin")


def _copied(connection: Connection, file: Path, statement: LiteralString) -> float:
    began = time.perf_counter()
    with connection.cursor().copy(statement) as copy, file.open("rb") as content:
        while block := content.read(1 << 16):
            copy.write(block)
    return time.perf_counter() - began


def budgets(dsn: str, jobs: int, processes: int = 3) -> list[Figure]:
    """Bulk jobs with random rows, prices, limits and budgets, and kill -9 of their workers throughout."""
    dice = random.Random(11)
    with database(dsn) as connection:
        connection.execute(_WATCH.encode())
        run(dsn, DECLARE)
        prices = _providers(connection, dice)
        for number in range(jobs):
            _start(connection, dice, prices, number)
        environment = {**os.environ, "BENCH_DSN": dsn, "PENSTOCK_ALLOW_UNSAFE": "1"}

        def spawn() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", APP + WORK], env=environment, cwd=REPOSITORY,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

        workers = [spawn() for _ in range(processes)]
        killed, kill_at, deadline = 0, time.monotonic() + 4, time.monotonic() + 200
        try:
            while one(
                connection, "select exists (select from penstock.jobs where status in ('queued', 'running'))"
            ):
                assert time.monotonic() < deadline, _left(connection)
                if time.monotonic() > kill_at:
                    victim = dice.randrange(processes)
                    workers[victim].send_signal(signal.SIGKILL)
                    workers[victim].wait()
                    workers[victim] = spawn()
                    killed, kill_at = killed + 1, time.monotonic() + dice.uniform(2, 5)
                time.sleep(0.2)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        time.sleep(3.5)
        while one(connection, "select count(*) from penstock.leases"):
            connection.execute("select penstock.upkeep()")
        over = one(connection, """
            select count(*) from penstock.jobs j where j.budget < (
              select coalesce(sum(c.base_amount), 0) from penstock.cost_entries c where c.job_id = j.id)""")  # fmt: skip
        instants = one(connection, "select count(*) from watch")
        wrong = one(connection, "select count(*) from penstock.check_accounts()")
        states = dict(connection.execute("select status, count(*) from penstock.jobs group by 1").fetchall())
        lost = one(connection, "select count(*) from penstock.attempts where outcome = 'lost'")
        done = one(connection, "select count(*) from penstock.results where outcome = 'succeeded'")
        spent = one(connection, "select coalesce(sum(base_amount), 0) from penstock.cost_entries")
    what = f"{jobs} jobs ({', '.join(f'{n} {s}' for s, n in sorted(states.items()))}), {killed} kills, {lost} attempts lost"
    return [
        Figure("budget_overspent", what, over, "jobs over their budgets (0)"),
        Figure(
            "budget_instants", f"{done:,} tasks, {spent:,.2f} spent", instants, "instants over a budget (0)"
        ),
        Figure("budget_drift", SYSTEM, wrong, "accounts that are not their ledgers (0)"),
    ]


def _left(connection: Connection) -> str:
    """The jobs that have not ended, and why."""
    found = connection.execute(
        "select waiting_for, status, count(*) from penstock.task_list where status not in ('succeeded', 'failed', 'canceled')"
        " and job_id in (select id from penstock.jobs where status in ('queued', 'running')) group by 1, 2 order by 3 desc limit 5"
    ).fetchall()
    return f"the jobs do not end: {found}"


def _providers(connection: Connection, dice: random.Random) -> dict[str, float]:
    """Providers with random prices and limits."""
    prices = {
        f"sim/{name}": dice.choice([0.001, 0.013, 0.2, 1.75]) * dice.uniform(0.5, 2) for name in "abcdef"
    }
    for name, price in prices.items():
        set_provider(connection, name, concurrency=dice.choice([1, 3, 20]),
                     requests_per_minute=dice.choice([None, 2000, 6000]))  # fmt: skip
        connection.execute("select penstock.set_price(%s, 'pages', %s)", (name, f"{price:.6f}"))
    return prices


def _start(connection: Connection, dice: random.Random, prices: dict[str, float], number: int) -> None:
    """A job of random rows, with a budget for some of them or for more than all."""
    ideas = [
        {"title": f"{number} {row}", "provider": dice.choice(list(prices)), "units": dice.randint(1, 5)}
        for row in range(dice.randint(3, 25))
    ]
    most = sum(prices[str(idea["provider"])] * int(str(idea["units"])) for idea in ideas)
    options = {
        "tenant_id": str(one(connection, "select penstock.ensure_tenant(%s)", f"tenant {number % 7}")),
        "budget": f"{most * dice.uniform(0.05, 1.2):.6f}",
    }
    job = one(connection, "select job_id from penstock.open_bulk('ideas', '{}', %s)", Jsonb(options))
    rows = [{"number": place, "data": idea} for place, idea in enumerate(ideas, 2)]
    connection.execute("select penstock.add_bulk_rows(%s, %s)", (job, Jsonb(rows)))
