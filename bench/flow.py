# ruff: noqa: E501
"""Flow control and money: limits under load and kills, the last unit of a quota, forecasts, rollups.

Each function measures one promise and returns figures.
"""

from __future__ import annotations

import heapq
import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from bench.engine import SYSTEM, Connection, database, tenant
from bench.measure import REPOSITORY, Figure

WORKER = """
import asyncio, os
from openai import AsyncOpenAI
from penstock import App, Context
from penstock.worker import Worker

app = App(database_url=os.environ["BENCH_DSN"])
client = AsyncOpenAI(base_url=os.environ["BENCH_URL"], api_key="bench", max_retries=0)

@app.task
async def ask(ctx: Context, n: int) -> None:
    answer = await client.chat.completions.create(
        model="gpt-4o-mini", max_tokens=150, messages=[{"role": "user", "content": "idea %d " % n * 12}])
    await ctx.ausage(input_tokens=answer.usage.prompt_tokens, output_tokens=answer.usage.completion_tokens)

asyncio.run(Worker(app, concurrency=16, lease_seconds=10).run())
"""


def set_provider(connection: Connection, name: str, **values: Any) -> None:
    connection.execute("select penstock.set_provider(%s, %s)", (name, Jsonb(values)))


def start(connection: Connection, tenant_id: str, tasks: list[dict[str, Any]], **options: Any) -> str:
    row = connection.execute(
        "select penstock.start_job('bench', '{}', %s, %s)",
        (Jsonb(tasks), Jsonb({"tenant_id": tenant_id, **options})),
    ).fetchone()
    assert row
    return str(row[0])


def one(connection: Connection, query: str, *params: Any) -> Any:
    row = connection.execute(query.encode(), params or None).fetchone()
    return row[0] if row else None


def claim_rate(
    connection: Connection, seconds: float, kinds: Sequence[str] = ("noop",), batch: int = 100
) -> float:
    """Tasks claimed per second by one caller. Their completion is not timed."""
    claimed, passed = 0, 0.0
    while passed < seconds:
        began = time.perf_counter()
        rows = connection.execute(
            "select id, lease from penstock.claim_tasks('bench', %s, %s)", (batch, list(kinds))
        ).fetchall()
        passed += time.perf_counter() - began
        if not rows:
            raise RuntimeError("the queue is empty")
        claimed += len(rows)
        connection.execute(
            "select penstock.complete_tasks('bench', %s, %s)",
            ([row[0] for row in rows], [row[1] for row in rows]),
        )
    return claimed / passed


def limited_lanes(new: Callable[[], str], n: int, lanes: int) -> list[Figure]:
    """Claims from lanes with limits that are not reached, compared with as many lanes without limits, and with one."""
    specs: dict[str, list[dict[str, Any]]] = {
        "one lane without limits": [{"kind": "noop"}],
        f"{lanes} lanes without limits": [{"kind": f"noop{lane}"} for lane in range(lanes)],
        f"{lanes} lanes with limits": [
            {"kind": "noop", "provider": f"p/{lane}", "units": {"tokens": 100}} for lane in range(lanes)
        ],
    }
    rates: dict[str, list[float]] = {name: [] for name in specs}
    for name, spec in [*specs.items()] * 3:
        with database(new()) as connection:
            me = tenant(connection, "bench")
            for lane in range(lanes):
                set_provider(
                    connection,
                    f"p/{lane}",
                    requests_per_minute=10**8,
                    tokens_per_minute=10**11,
                    concurrency=10**6,
                )
            kinds = sorted({task["kind"] for task in spec})
            for kind in kinds:
                connection.execute("select penstock.define_kind(%s)", (kind,))
            for begin in range(0, n, 50_000):
                start(connection, me, [spec[k % len(spec)] for k in range(min(50_000, n - begin))])
            connection.execute("analyze")
            # Fewer than can be claimed in that time.
            rates[name].append(claim_rate(connection, n / 80_000, kinds))
    one, free, limited = (statistics.median(found) for found in rates.values())
    return [
        *(Figure("claims", name, statistics.median(found), "tasks/s") for name, found in rates.items()),
        Figure("limited_share", SYSTEM, limited / free, "of the rate of as many lanes without (≥ 0.7)"),
        Figure("limited_share_one", SYSTEM, limited / one, "of the rate of one lane without"),
    ]


def closed_lane(dsn: str, n: int) -> list[Figure]:
    """The effect of a closed lane with a long queue on other lanes."""
    with database(dsn) as connection:
        me = tenant(connection, "bench")
        free = [{"kind": "noop"}] * 50_000
        for _ in range(8):
            start(connection, me, free)
        connection.execute("analyze")
        before = claim_rate(connection, 4)
        set_provider(connection, "p/closed", requests_per_minute=1)
        for _ in range(n // 50_000):
            start(connection, me, [{"kind": "noop", "provider": "p/closed"}] * 50_000)
        for _ in range(8):
            start(connection, me, free)
        connection.execute(
            """select penstock.report_provider('p/closed', '{"status": 429, "exhausted": true}')"""
        )
        connection.execute("vacuum analyze")
        after = claim_rate(connection, 4)
    return [Figure("closed_lane", f"{n:,} tasks behind it", before / after, "× others' claim (< 1.1)")]


# --- a provider on the wire ---------------------------------------------------------------------------------


@contextmanager
def simulator(*options: str) -> Any:
    command = [sys.executable, "-m", "penstock", "-o", "jsonl", "simulate", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        try:
            assert process.stdout
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def control(url: str, body: bytes | None = None) -> Any:
    """A connection to the simulator on loopback."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 our own address
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 our own address
        return json.load(answer)


def wire(dsn: str, seconds: int, processes: int = 8) -> list[Figure]:
    """Workers call a provider that counts, with five times as much work as it allows, and are killed with -9."""
    rpm, tpm, concurrency = 500, 100_000, 120
    dice = random.Random(7)
    with (
        database(dsn) as connection,
        simulator(
            "--rpm", str(rpm), "--tpm", str(tpm), "--concurrency", str(concurrency), "--latency", "0.3..1.5"
        ) as urls,
    ):
        connection.execute("select penstock.define_kind('ask', '{\"max_attempts\": 100}')")
        me = tenant(connection, "bench")
        set_provider(connection, "openai/gpt-4o-mini", requests_per_minute=rpm, tokens_per_minute=tpm, concurrency=concurrency,
                     backpressure_threshold=None, depth_limit=None)  # fmt: skip
        units = {"input_tokens": 50, "output_tokens": 150}
        tasks = [
            {"kind": "ask", "provider": "openai/gpt-4o-mini", "units": units, "input": {"n": n}}
            for n in range(rpm * seconds // 12)
        ]
        start(connection, me, tasks)
        environment = {
            **os.environ,
            "BENCH_DSN": dsn,
            "BENCH_URL": urls["openai_url"],
            "PENSTOCK_ALLOW_UNSAFE": "1",
        }

        def spawn() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", WORKER], env=environment, cwd=REPOSITORY,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

        workers = [spawn() for _ in range(processes)]
        killed = 0
        try:
            while not one(connection, "select count(*) from penstock.results"):
                time.sleep(0.2)
            control(urls["control_url"] + "/reset", b"{}")
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                time.sleep(dice.uniform(5, 12))
                victim = dice.randrange(processes)
                workers[victim].send_signal(signal.SIGKILL)
                workers[victim].wait()
                workers[victim] = spawn()
                killed += 1
            stats = control(f"{urls['control_url']}/stats?seconds={seconds}")
            running = one(connection, "select count(*) from penstock.leases")
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        time.sleep(11)
        connection.execute("select penstock.reclaim_stale_tasks()")
        left = one(connection, "select running from penstock.provider_list where name = 'openai/gpt-4o-mini'")
        done = one(connection, "select count(*) from penstock.results")
        lost = one(connection, "select count(*) from penstock.attempts where outcome = 'lost'")
    account = (
        next(a for a in stats["accounts"] if a["requests"] > 0)
        if stats["accounts"] and "requests" in stats["accounts"][0]
        else stats["accounts"][0]
    )
    used = max(account["used"].values())
    return [
        Figure(
            "wire_violations",
            f"{processes} workers, {killed} killed, {seconds} s",
            stats["violation_count"],
            "refused by the provider (0)",
        ),
        Figure("wire_used", f"{account['used']}", used, "of its capacity (≥ 0.95)"),
        Figure(
            "wire_most",
            f"limit {rpm} requests, {tpm:,} tokens",
            account["max_requests_60s"],
            "requests in any 60 s",
        ),
        Figure(
            "wire_leaked",
            f"{running} running at the end, {lost} attempts lost to kills",
            left,
            "places not given back (0)",
        ),
        Figure("wire_done", SYSTEM, done, "tasks done"),
    ]


# --- the last unit --------------------------------------------------------------------------------------------

_WATCH = """
create table watch (what text);
create function watch() returns trigger language plpgsql as $$
begin
  if new.meter = 'pages' and new.job_id is null and new.used + new.held > (
      select amount from penstock.tenant_limits l where l.tenant_id = new.tenant_id and l.meter = 'pages') then
    insert into watch values (format('%s + %s', new.used, new.held));
  end if;
  return null;
end $$;
create constraint trigger watch after insert or update on penstock.accounts for each row execute function watch();
"""


def caller(dsn: str, tenant_id: str, threads: int, seed: int) -> None:
    """Callers in one process: each reserves one unit and commits it, releases it, or lets it expire."""

    def work(number: int) -> None:
        dice = random.Random(seed * 1000 + number)
        with psycopg.connect(dsn, autocommit=True) as connection:
            while True:
                try:
                    row = connection.execute(
                        "select penstock.reserve_quota(%s, '{\"pages\": 1}', p_ttl_seconds => 1)",
                        (tenant_id,),
                    ).fetchone()
                except psycopg.errors.RaiseException:
                    raise
                except psycopg.Error as error:
                    if error.sqlstate != "PT429":
                        raise
                    time.sleep(dice.uniform(0, 0.1))
                    continue
                assert row
                match dice.randrange(200):
                    case n if n < 20:
                        connection.execute("select penstock.release_hold(%s)", (row[0],))
                    case 20:
                        pass  # not ended: it expires after a second, and until then the unit is not available
                    case _:
                        connection.execute("select penstock.commit_hold(%s)", (row[0],))

    for number in range(threads):
        threading.Thread(target=work, args=[number], daemon=True).start()
    threading.Event().wait()


def last_unit(dsn: str, rounds: int, processes: int = 8, threads: int = 8) -> list[Figure]:
    """Many callers compete for the last unit of a quota, which grows by one whenever it is used, with kills."""
    dice = random.Random(5)
    context = multiprocessing.get_context("spawn")
    with database(dsn) as connection:
        me = tenant(connection, "bench")
        connection.execute("select penstock.set_limit(%s, 'pages', 1)", (me,))
        connection.execute(_WATCH.encode())

        def spawn(seed: int) -> Any:
            process = context.Process(target=caller, args=(dsn, me, threads, seed), daemon=True)
            process.start()
            return process

        callers = [spawn(n) for n in range(processes)]
        killed, used, kill_at, upkeep_at = 0, 0, time.monotonic() + 3, 0.0
        try:
            while used < rounds:
                used = int(
                    one(
                        connection,
                        "select coalesce((select used from penstock.accounts where meter = 'pages'), 0)",
                    )
                )
                connection.execute("select penstock.set_limit(%s, 'pages', %s)", (me, used + 1))
                if time.monotonic() > kill_at:
                    victim = dice.randrange(processes)
                    callers[victim].kill()
                    callers[victim].join()
                    callers[victim] = spawn(100 + killed)
                    killed, kill_at = killed + 1, time.monotonic() + dice.uniform(3, 6)
                if time.monotonic() > upkeep_at:
                    connection.execute("select penstock.upkeep()")
                    upkeep_at = time.monotonic() + 0.2
                time.sleep(0.001)
        finally:
            for process in callers:
                process.kill()
                process.join()
        time.sleep(1.5)
        connection.execute("select penstock.upkeep()")
        leaked = one(connection, "select count(*) from penstock.holds where status = 'held'")
        held = one(connection, "select coalesce(sum(held), 0) from penstock.accounts")
        truth = one(
            connection,
            "select coalesce(sum((spent ->> 'pages')::numeric), 0) from penstock.holds where status = 'committed'",
        )
        used = one(connection, "select used from penstock.accounts where meter = 'pages'")
        wrong = one(connection, "select count(*) from penstock.check_accounts()")
        over = one(connection, "select count(*) from watch")
    what = f"{processes * threads} callers, {killed} processes killed, {used:,} units"
    return [
        Figure("quota_over", what, over, "instants over the limit (0)"),
        Figure("quota_leaked", what, float(leaked + held), "holds or amounts left (0)"),
        Figure(
            "quota_drift", what, float(abs(used - truth) + wrong), "units of difference to the ledger (0)"
        ),
    ]


# --- forecasts --------------------------------------------------------------------------------------------------

_CLOCK = """
create table bench_clock (at timestamptz); insert into bench_clock values ('2026-06-01 00:00:00Z');
create or replace function penstock._now() returns timestamptz language sql volatile as $$ select at from public.bench_clock $$;
"""


def forecasts(dsn: str, jobs: int) -> list[Figure]:
    """Forecasts of jobs of many shapes, compared with runs by simulated workers on a simulated clock."""
    dice = random.Random(11)
    inside, close, errors, etas = 0, 0, [], []
    with database(dsn) as connection:
        connection.execute(_CLOCK.encode())
        connection.execute("alter table penstock.jobs set (autovacuum_enabled = off)")
        clock = 0.0

        def at(moment: float) -> None:
            connection.execute(
                "update bench_clock set at = timestamptz '2026-06-01 00:00:00Z' + make_interval(secs => %s)",
                (moment,),
            )

        me = tenant(connection, "bench")
        shapes = {
            "draft": ("a/text", 2.0, {"input_tokens": 600, "output_tokens": 900}),
            "paint": ("b/image", 9.0, {"images": 1}),
            "speak": ("c/voice", 4.0, {"characters": 3000}),
            "plain": (None, 3.0, None),
        }
        for kind in shapes:
            connection.execute("select penstock.define_kind(%s, '{}')", (kind,))
        set_provider(connection, "a/text", requests_per_minute=60, tokens_per_minute=60_000, concurrency=20)
        set_provider(connection, "b/image", requests_per_minute=40, concurrency=6)
        set_provider(connection, "c/voice", requests_per_minute=100)
        for name, meter, price in (("a/text", "input_tokens", "0.000002"), ("a/text", "output_tokens", "0.000008"),
                                   ("b/image", "images", "0.04"), ("c/voice", "characters", "0.000015")):  # fmt: skip
            connection.execute("select penstock.set_price(%s, %s, %s)", (name, meter, price))
        connection.execute(
            "select penstock.report_worker('sim', %s)", (Jsonb({"kinds": list(shapes), "concurrency": 16}),)
        )

        def spec(kind: str, **more: Any) -> dict[str, Any]:
            provider, _, units = shapes[kind]
            return {
                "kind": kind,
                **({"provider": provider} if provider else {}),
                **({"units": units} if units else {}),
                **more,
            }

        def shape() -> list[dict[str, Any]]:
            size = dice.randint(20, 150)
            match dice.randrange(4):
                case 0:
                    kind = dice.choice(list(shapes))
                    return [spec(kind) for _ in range(size)]
                case 1:
                    return [spec(dice.choice(["draft", "speak"])) for _ in range(size)]
                case 2:
                    return [
                        s
                        for n in range(size // 2)
                        for s in (spec("draft", key=f"d{n}"), spec("paint", after=[f"d{n}"]))
                    ]
                case _:
                    return [s for n in range(size // 3) for s in (
                        spec("draft", key=f"d{n}"), spec("speak", key=f"s{n}", after=[f"d{n}"]), spec("plain", after=[f"s{n}"]))]  # fmt: skip

        def run(tasks: list[dict[str, Any]]) -> tuple[float, float, float | None]:
            """Run all tasks: returns the seconds, the cost, and the total that a forecast at half time predicted."""
            nonlocal clock
            began, ended, half = clock, 0, None
            job = start(connection, me, tasks)
            running: list[tuple[float, int, int, str]] = []
            while ended < len(tasks):
                free = 16 - len(running)
                rows = (
                    connection.execute(
                        "select id, lease, kind from penstock.claim_tasks('sim', %s, null, 86400)", (free,)
                    ).fetchall()
                    if free
                    else []
                )
                for task_id, lease, kind in rows:
                    heapq.heappush(
                        running, (clock + shapes[kind][1] * dice.uniform(0.5, 1.5), task_id, lease, kind)
                    )
                opening = one(connection, "select penstock.next_opening()") if len(running) < 16 else None
                if running and (opening is None or running[0][0] <= clock + opening):
                    clock, task_id, lease, kind = heapq.heappop(running)
                    at(clock)
                    units = shapes[kind][2]
                    if units:
                        actual = {
                            m: round(a * dice.uniform(0.3, 0.9)) if m != "images" else a
                            for m, a in units.items()
                        }
                        connection.execute(
                            "select penstock.record_usage(%s, %s, 'sim', %s)", (Jsonb(actual), task_id, lease)
                        )
                    connection.execute(
                        "select * from penstock.complete_tasks('sim', %s, %s)", ([task_id], [lease])
                    )
                    ended += 1
                    if half is None and ended == len(tasks) // 2:
                        found = one(connection, "select penstock.forecast(%s)", job)
                        half = clock - began + float(found["finish"]["seconds"] or 0)
                else:
                    clock += max(0.05, float(opening or 1))
                    at(clock)
                connection.execute("update penstock.workers set beat_at = penstock._now()")
            cost = float(
                one(
                    connection,
                    "select coalesce((select cost from penstock.job_costs where job_id = %s), 0)",
                    job,
                )
            )
            return clock - began, cost, half

        for kind in shapes:
            run([spec(kind) for _ in range(30)])
        for _ in range(jobs):
            clock += dice.choice([5.0, 70.0, 300.0])
            at(clock)
            connection.execute("update penstock.workers set beat_at = penstock._now()")
            tasks = shape()
            found = one(
                connection,
                "select penstock.forecast_job('bench', %s, %s)",
                Jsonb(tasks),
                Jsonb({"tenant_id": me}),
            )
            took, cost, half = run(tasks)
            inside += found["cost"]["low"] - 1e-9 <= cost <= found["cost"]["high"] + 1e-9
            errors.append(abs(float(found["finish"]["seconds"]) - took) / took)
            close += errors[-1] <= 0.15
            if half is not None:
                etas.append(abs(half - took) / took)
    return [
        Figure("forecast_cost", f"{jobs} simulated jobs", inside / jobs, "inside the stated range (≥ 0.9)"),
        Figure("forecast_finish", f"{jobs} simulated jobs", close / jobs, "within 15 % (≥ 0.8)"),
        Figure("forecast_error", "median of the finish time", statistics.median(errors), "of the time taken"),
        Figure("eta_error", "at half time, median", statistics.median(etas), "of the time taken"),
    ]


# --- rollups ----------------------------------------------------------------------------------------------------


def rollup(dsn: str, lines: int) -> list[Figure]:
    """Costs by provider and day over a long ledger."""
    with database(dsn) as connection:
        connection.execute("select penstock.create_tenant('t' || n) from generate_series(1, 200) as n")
        began = time.perf_counter()
        parts = lines // 500_000
        for part in range(parts):
            # In order of time, a few days at once, as in production.
            connection.execute(
                """
                insert into penstock.cost_entries (at, tenant_id, provider, cost_type, unit_count, amount, currency, base_amount)
                select clock_timestamp() - (%s + random()) / %s * interval '90 days', t.ids[1 + floor(random() * 200)::integer],
                  'p/' || floor(random() * 12), (array['inference', 'render', 'storage'])[1 + floor(random() * 3)::integer],
                  100, 0.0015, 'USD', 0.0015
                from generate_series(1, 500000), (select array_agg(id) as ids from penstock.tenants) as t""",
                (part, parts),
            )
            while one(connection, "select exists (select from penstock.cost_sums where is_fresh)"):
                connection.execute("select penstock._compact()")
        rate = lines / (time.perf_counter() - began)
        connection.execute("vacuum analyze penstock.cost_sums")
        me = one(connection, "select id from penstock.tenants limit 1")

        def p50(query: str, *params: Any) -> float:
            times = []
            for _ in range(21):
                began = time.perf_counter()
                connection.execute(query.encode(), params or None).fetchall()
                times.append((time.perf_counter() - began) * 1000)
            return statistics.median(times)

        whole = p50("select day, provider, sum(amount) from penstock.cost_totals group by 1, 2 order by 1, 2")
        mine = p50(
            "select day, provider, sum(amount) from penstock.cost_days where tenant_id = %s group by 1, 2 order by 1, 2",
            me,
        )
        is_right = one(
            connection,
            "select (select sum(amount) from penstock.cost_totals) = (select sum(base_amount) from penstock.cost_entries)",
        )
        assert is_right, "the rollup is not the ledger's sum"
    return [
        Figure("rollup_all", f"{lines:,} lines, by provider and day", whole, "ms, median (< 50)"),
        Figure("rollup_tenant", f"{lines:,} lines, one tenant", mine, "ms, median"),
        Figure("ledger_rate", SYSTEM, rate, "lines/s written and added up"),
    ]
