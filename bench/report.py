# ruff: noqa: E501
"""Writes docs/benchmarks.md with its plots, docs/scale.md and the figures in README.md from bench/results/latest.json."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from bench import measure, plots, pressure, scale
from bench.measure import Figure
from bench.peers import NAMES

ROOT = Path(__file__).parent.parent
LATEST = ROOT / "bench/results/latest.json"
IMAGES = ROOT / "docs/images"
# file, title, figures with what each is called, whether the scale is logarithmic
PLOTS = [
    (
        "drain",
        "Jobs a second: bulk enqueue, and drain by one and two processes",
        {"enqueue": "enqueue", "drain_1": "1 process", "drain_2": "2 processes"},
        False,
    ),
    (
        "latency",
        "Milliseconds from sending a job to its start (logarithmic)",
        {
            "latency_p50": "idle, p50",
            "latency_p99": "idle, p99",
            "half_p50": "half load, p50",
            "half_p99": "half load, p99",
        },
        True,
    ),
    (
        "pressure",
        "Jobs a second of one process, under pressure",
        {
            "shallow_drain": "fresh",
            "kept_drain": "1 M ended kept",
            "deep_drain": "5 M waiting",
            "held_drain": "after a held snapshot",
        },
        False,
    ),
    (
        "neighbour",
        "Seconds that one job waits beside a backlog of 1,000,000 (logarithmic)",
        {"neighbour_wait": "wait"},
        True,
    ),
    ("cost", "The database's CPU, microseconds for each job (logarithmic)", {"cpu": "CPU"}, True),
    (
        "idle",
        "200 idle workers: transactions a second (logarithmic)",
        {"idle_transactions": "transactions/s"},
        True,
    ),
]
# name, whose figure, what it says, the promise
PROMISES = [
    ("bulk_share", "1,000,000 tasks in one job, beside a bare COPY of the same rows", "≥ 0.5 ×"),
    ("depth_ratio", "claim with 5,000,000 tasks ready, beside 10,000", "≤ 1.5 ×"),
    ("history_ratio", "claim with 1,000,000 ended tasks kept, beside none", "≤ 1.2 ×"),
    (
        "fairness_ratio",
        "small tenants' median wait beside a tenant with 1,000,000 tasks, to without it",
        "≤ 2 ×",
    ),
    ("fifo_share", "the fair claim's rate, to the same claim in plain order of arrival", "≥ 0.8 ×"),
    ("pause_job", "seconds to pause a job of 1,000,000 tasks", "< 1 s"),
    ("pause_job_others", "others' claims meanwhile", "< 2 ×"),
    ("cancel_job", "seconds to cancel one", "< 1 s"),
    ("cancel_job_others", "others' claims meanwhile", "< 2 ×"),
    ("held_ratio", "claim after a snapshot was held open for 5 minutes under load, to before", "≤ 1.5 ×"),
    ("held_backlog", "tasks left behind then", "none"),
    ("limited_share", "claims from 100 lanes with limits, to 100 lanes without", "≥ 0.7 ×"),
    ("limited_share_one", "the same, to one lane without (where tasks lie side by side)", "-"),
    ("closed_lane", "what a closed lane with 1,000,000 tasks costs the others' claims", "< 1.1 ×"),
    (
        "wire_violations",
        "calls refused by a provider for rate: 8 workers, 10 minutes, kill -9 throughout",
        "0",
    ),
    ("wire_used", "of that provider's capacity used", "≥ 0.95"),
    ("wire_most", "most calls it saw in any 60 s, at a limit of 500 (see below)", "-"),
    ("wire_leaked", "places lost to the kills", "0"),
    ("quota_over", "instants over the limit: 64 callers for the last unit, again and again, kills", "0"),
    ("quota_leaked", "holds left behind", "0"),
    ("quota_drift", "units of difference between accounts and ledger", "0"),
    ("forecast_cost", "of 50 forecast jobs, cost inside the stated range", "≥ 0.9"),
    ("forecast_finish", "of 50 forecast jobs, finish within 15 %", "≥ 0.8"),
    (
        "watch_p99",
        "milliseconds from a task's end to the event, p99 of 2,000 watchers of 100 jobs",
        "< 1,000",
    ),
    ("clients_errors", "errors of 1,000 clients that start jobs at once", "0"),
    ("request_start_share", "requests/s that start a job, to a bare FastAPI with one insert", "-"),
    ("request_get_share", "requests/s for a job, to a bare FastAPI with one select", "-"),
    ("rollup_all", "milliseconds for costs by provider and day, over the lines named below", "< 50"),
]

NOTES = [
    "The limiter's promise is about what it admits: never more than the limit in any 60 s. A provider sees a call when it",
    "arrives. The run above shared its two cores with other work (a load of 8), where calls arrive up to a second late and",
    "then in bunches: hence the most that it saw. It refused none. On a quiet machine it saw 500.",
    "",
]

# Why a peer can be ahead, for each measure. A place without a reason fails the report.
_DRAIN = (
    "The difference is that of the drain itself; what the pressure changes is in the table of shares above."
)
REASONS = {
    "enqueue": "A task here is a row in `tasks` and a place in its tenant's line in `ready`, and its job has phases, an "
    "audit line and counters; the others insert one row, pgmq without so much as a type.",
    "drain_1": "graphile-worker deletes a finished job and pgmq moves it by its id. Penstock proves the lease, keeps a "
    "result for each attempt, moves the job's progress and ends the job. pgmq is a loop of two statements, without "
    "retries, timeouts or handlers.",
    "drain_2": "As with one process. Two processes, PostgreSQL and the measurement share two cores.",
    "latency_p50": "About 2 ms of Penstock's median are `start_job` (a job with its phase, an audit line, the tenant's "
    "slot in the lane, a task and its place in line: rows in seven tables, where the others insert one), about 1.5 ms the "
    "claim of one task, and the rest is NOTIFY, the event loop and two round trips. Both functions are made of statements "
    "for batches; each statement costs 20 to 60 µs even for one row (`track_functions = all` shows it). A second path for "
    "single tasks would save about half of it, and would be a second copy of every rule: not worth it for work that takes "
    "seconds.",
    "latency_p99": "As with the median. On two cores the tail is mostly whatever else ran at that moment.",
    "wal": "A result for each attempt, the job's progress and the place in line are rows of their own, with their "
    "indexes. graphile-worker keeps nothing of a finished job; pgmq keeps the message; awa writes one compact row for "
    "a batch.",
    "dead": "awa's tables are only appended to and then truncated, so next to nothing is left to vacuum. Here a task "
    "leaves its place in line and its lease behind.",
    "cpu": "More rows and more rules for each task, all of them in the database: what the others leave to the "
    "application, or leave out, is not in their figure.",
    "half_p50": "A slower system is asked for less: half of its own rate, in smaller bunches. A bunch here is a job, whose "
    "phase, audit line and counters are written before its tasks.",
    "half_p99": "As with the median.",
    "kept_drain": _DRAIN,
    "deep_drain": _DRAIN,
    "held_drain": _DRAIN,
    "neighbour_wait": "A system that takes the newest or any job first reaches it at once, for this caller by luck.",
    "idle_transactions": "Each worker here asks every few seconds for schedules, actions and upkeep that are due and whether "
    "it is to stop, says that it lives, and looks for work after 5 to 30 s without news: any one of them keeps everything "
    "going, without a leader. That is about one short transaction a second for each.",
    "idle_cpu": "As with the transactions.",
}
WORDS = {**measure.COLUMNS, **pressure.COLUMNS}


def better(name: str, unit: str, one: float, other: float) -> bool:
    return one > other if unit == "jobs/s" else one < other


def where_a_peer_wins(figures: list[Figure]) -> list[str]:
    """Every place, by measure, with the reason."""
    mine = {figure.name: figure.value for figure in figures if figure.system.startswith("penstock ")}
    ahead: dict[str, list[str]] = {}
    for figure in figures:
        own = mine.get(figure.name)
        if own is None or figure.name not in WORDS or figure.system.startswith("penstock "):
            continue
        if better(figure.name, figure.unit, figure.value, own):
            ahead.setdefault(figure.name, []).append(
                f"{figure.system} ({plots.number(figure.value)} to {plots.number(own)})"
            )
    lines = [
        "## Where a peer wins",
        "",
        "Each figure in the tables above that is better than Penstock's, even where the gap is noise.",
        "",
    ]
    for name in WORDS:
        if name in ahead:
            lines.append(f"- **{WORDS[name]}**: {', '.join(ahead[name])}. {REASONS[name]}")
    return lines


def shares(figures: list[Figure]) -> str:
    """Drains under pressure, as shares of the same system's without."""
    fresh = {figure.system: figure.value for figure in figures if figure.name == "shallow_drain"}
    names = {
        "kept_drain": "ended jobs kept, %",
        "deep_drain": "at depth, %",
        "held_drain": "after a held snapshot, %",
    }
    return measure.table(
        [
            Figure(figure.name, figure.system, 100 * figure.value / fresh[figure.system], "%")
            for figure in figures
            if figure.name in names and figure.system in fresh
        ],
        names,
    )


def under_pressure(figures: list[Figure]) -> list[str]:
    """Nothing if that was not measured."""
    if not any(figure.name in pressure.COLUMNS for figure in figures):
        return []
    full = pressure.FULL
    return [
        "## Under pressure",
        "",
        f"Latency while jobs come at half the rate at which the system drains; drain with {full.kept:,} ended jobs kept (not",
        f"where they are deleted); with {full.deep:,} jobs waiting (pg-boss and awa 2,500,000, procrastinate and DBOS 1,000,000: filling",
        f"them takes long); after a snapshot was held open for {full.held_seconds:.0f} s of half load. The wait",
        f"of one job beside somebody's backlog of {full.backlog:,}: the others do not know callers and have one queue for both, so where it",
        "is not reached soon it is what remains of the backlog, divided by the rate. What 200 workers without work ask of the",
        "database, and its CPU (DBOS has one worker in a process: 20 processes, times ten). Celery's store is not PostgreSQL.",
        "",
        measure.table(figures, pressure.COLUMNS),
        "",
        "What is left of a system's own rate:",
        "",
        shares(figures),
        "",
        *images("pressure", "neighbour", "idle"),
    ]


def images(*names: str) -> list[str]:
    return [
        line
        for name, title, _, _ in PLOTS
        if name in names and (IMAGES / f"bench-{name}.svg").exists()
        for line in (f"![{title}](images/bench-{name}.svg)", "")
    ]


def draw(figures: list[Figure]) -> None:
    """The plots for which there are figures."""
    IMAGES.mkdir(exist_ok=True)
    values = {(figure.system, figure.name): figure.value for figure in figures}
    for name, title, series, logarithmic in PLOTS:
        systems = dict.fromkeys(figure.system for figure in figures if figure.name in series)
        rows = [(system, [values.get((system, key)) for key in series]) for system in systems]
        if rows:
            drawing = plots.bars(title, list(series.values()), rows, logarithmic)
            (IMAGES / f"bench-{name}.svg").write_text(drawing)


def settings() -> list[str]:
    """How each peer is run, in the words of its module."""
    lines = ["## How the peers are run", ""]
    for name in NAMES:
        tree = ast.parse((ROOT / f"bench/peers/{name}.py").read_text())
        lines.append(f"- {' '.join((ast.get_docstring(tree) or '').split())}")
    return [*lines, ""]


def over_http(figures: list[Figure]) -> list[str]:
    """What the API does under load, or nothing if that was not measured."""
    found = {(figure.name, figure.system): figure.value for figure in figures}
    watched = [system for name, system in found if name == "watch_asked"]
    if not watched:
        return []
    [clients] = [system for name, system in found if name == "clients_rate"]
    lines = [
        "## Over HTTP",
        "",
        "One process of `penstock serve`, the load from another, PostgreSQL beside them on the same two cores. Watchers",
        "have a stream each, while 100 tasks end in a second; what the server asks of the database does not grow with",
        "them.",
        "",
        "| | transactions/s of the server | told after, p50 ms | p99 ms |",
        "|---|---:|---:|---:|",
    ]
    for system in watched:
        cells = [found[name, system] for name in ("watch_asked", "watch_p50", "watch_p99")]
        lines.append(f"| {system} | {cells[0]:,.1f} | {cells[1]:,.0f} | {cells[2]:,.0f} |")
    errors, rate, p50, p99 = (found[f"clients_{name}", clients] for name in ("errors", "rate", "p50", "p99"))
    lines += [
        "",
        f"{clients}, each with an API key and one job after the other on a connection that is kept: {rate:,.0f} jobs/s,",
        f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, {errors:,.0f} errors. With so many at once a job's time is its place in the line.",
        "",
        "| 32 clients | bare FastAPI, requests/s | Penstock, requests/s | share |",
        "|---|---:|---:|---:|",
    ]
    for name, what in (("request_start", "start a job"), ("request_get", "look at one")):
        bare, ours = (figure.value for figure in figures if figure.name == name)
        lines.append(f"| {what} | {bare:,.0f} | {ours:,.0f} | {ours / bare:.2f} |")
    lines += [
        "",
        "The bare one has the same server, pool and payload, knows no callers, and does one statement. A request here is a",
        "transaction under the caller's role, whose key is looked at in it; a job that starts is rows in seven tables. Of",
        "the time of a start more than half is PostgreSQL's.",
        "",
    ]
    return lines


def pages(figures: list[Figure]) -> list[str]:
    """What the dashboard's pages take, or nothing if that was not measured."""
    found = sorted((f for f in figures if f.name == "page_p95"), key=lambda f: -f.value)
    if not found:
        return []
    # "operator: /jobs (1,000,000 jobs)"
    size = found[0].system.rpartition(" (")[2].removesuffix(")")
    lines = [
        "## Pages of the dashboard",
        "",
        f"{size}, ten tasks each, 10,000 tenants: the server's time for a page, 95th percentile of 20, rendered, in one",
        f"process beside PostgreSQL. {sum(f.value < 300 for f in found)} of {len(found)} are below 300 ms.",
        "",
        "| page | by | p95 ms |",
        "|---|---|---:|",
    ]
    for figure in found:
        who, _, path = figure.system.rpartition(" (")[0].partition(": ")
        lines.append(f"| `{unquote_plus(path)}` | {who} | {figure.value:,.0f} |")
    return [*lines, ""]


def page(rows: list[dict[str, Any]]) -> str:
    figures = [Figure(row["name"], row["system"], row["value"], row["unit"]) for row in rows]
    side = [figure for figure in figures if figure.name in measure.COLUMNS]
    draw(figures)
    limits = {figure.name: figure.value for figure in figures if figure.name.startswith("limit_")}
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench` on one 2-core machine, PostgreSQL 18 with default durability (fsync and",
        "synchronous_commit on), no-op jobs, each system at its documented fastest settings (`bench/peers`).",
        "What is compared was measured in one run; the parts (`python -m bench --only PART`) may be of several.",
        "What is measured, and how, is in `bench/measure.py`, `bench/pressure.py`, `bench/engine.py`, `bench/flow.py` and",
        "`bench/api.py`.",
        "The machine is shared and noisy: gaps under about 20 % mean nothing, and only ratios carry over.",
        "",
        "## Beside its peers",
        "",
        measure.table(side),
        "",
        "How many times as fast as each (latency, WAL, dead rows and CPU: how many times as little):",
        "",
        *ratios(figures),
        "",
        *images("drain", "latency", "cost"),
        *under_pressure(figures),
        *settings(),
    ]
    if limits:
        lines += ["## Beside PostgreSQL itself", ""]
        for processes in (1, 2):
            mine = next(
                (f.value for f in side if f.name == f"drain_{processes}" and f.system.startswith("penstock")),
                None,
            )
            bound = limits.get(f"limit_{processes}")
            if bound:
                share = f"; the worker reaches {mine / bound:.0%} of it" if mine else ""
                statement = f"pgbench with the same statements in batches of 500, {processes} client(s)"
                lines.append(f"- {statement}: {bound:,.0f} tasks/s{share}.")
        lines.append("")
    lines += over_http(figures)
    lines += pages(figures)
    lines += ["## Promises", "", "| what | promised | measured |", "|---|---|---:|"]
    values = {figure.name: figure.value for figure in figures}
    lines += [
        f"| {what} | {bound} | {values[name]:,.2f} |" for name, what, bound in PROMISES if name in values
    ]
    lines += ["", *NOTES, *where_a_peer_wins(figures)]
    lines += ["", "## All figures", "", "| name | system | value | unit |", "|---|---|---:|---|"]
    lines += [
        f"| {f.name} | {f.system} | {f.value:,.2f} | {f.unit} |" for f in figures if f.name != "page_p95"
    ]
    return "\n".join(lines) + "\n"


def ratios(figures: list[Figure]) -> list[str]:
    found: dict[str, list[str]] = {}
    for figure in figures:
        if figure.name.endswith("_ratio") and figure.system.startswith("penstock : "):
            word = figure.name.removesuffix("_ratio").replace("_", " ")
            found.setdefault(figure.system.removeprefix("penstock : "), []).append(
                f"{word} {figure.value:.1f} ×"
            )
    return [f"- {peer}: {', '.join(words)}" for peer, words in found.items()]


def readme(rows: list[dict[str, Any]]) -> str:
    figures = [Figure(row["name"], row["system"], row["value"], row["unit"]) for row in rows]
    text = (ROOT / "README.md").read_text()
    head, _, rest = text.partition("<!-- figures -->\n")
    tail = rest.partition("<!-- end figures -->")[2]
    table = measure.table([figure for figure in figures if figure.name in measure.COLUMNS])
    return f"{head}<!-- figures -->\n{table}\n<!-- end figures -->{tail}"


def main() -> None:
    rows = json.loads(LATEST.read_text())
    (ROOT / "docs/benchmarks.md").write_text(page(rows))
    (ROOT / "README.md").write_text(readme(rows))
    text = scale.page([Figure(row["name"], row["system"], row["value"], row["unit"]) for row in rows])
    if text:
        (ROOT / "docs/scale.md").write_text(text)
    print("wrote docs/benchmarks.md, docs/scale.md and the figures in README.md")


if __name__ == "__main__":
    main()
