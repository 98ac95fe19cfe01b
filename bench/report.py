# ruff: noqa: E501
"""Writes docs/benchmarks.md, docs/scale.md and the figures in README.md from bench/results/latest.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import measure, scale
from bench.measure import Figure

ROOT = Path(__file__).parent.parent
LATEST = ROOT / "bench/results/latest.json"
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
    ("request_start_share", "requests/s that start a job, to a bare FastAPI with one insert", "≥ 0.35"),
    ("request_get_share", "requests/s for a job, to a bare FastAPI with one select", "≥ 0.35"),
    ("rollup_all", "milliseconds for costs by provider and day, over the lines named below", "< 50"),
]

NOTES = [
    "The limiter's promise is about what it admits: never more than the limit in any 60 s. A provider sees a call when it",
    "arrives. The run above shared its two cores with other work (a load of 8), where calls arrive up to a second late and",
    "then in bunches: hence the most that it saw. It refused none. On a quiet machine it saw 500.",
    "",
]

WHERE_A_PEER_WINS = [
    "## Where a peer wins",
    "",
    "graphile-worker drains faster with one process: it deletes a finished job, where Penstock keeps a result, moves the",
    "job's progress and ends the job. With two processes they are level.",
    "",
    "A single job starts sooner in graphile-worker, celery, pgqueuer and procrastinate. Of Penstock's median, about 2 ms are",
    "`start_job` (a job with its phase, an audit line, the tenant's slot in the lane, a task and its place in line: rows in",
    "seven tables, where the others insert one), about 1.5 ms the claim of one task, and the rest is NOTIFY, the event loop",
    "and two round trips. Both functions are made of statements for batches; each statement costs 20 to 60 µs even for one row",
    "(`track_functions = all` shows it). A second path for single tasks would save about half of it, and would be a second",
    "copy of every rule: not worth it for work that takes seconds.",
]


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


def page(rows: list[dict[str, Any]]) -> str:
    figures = [Figure(row["name"], row["system"], row["value"], row["unit"]) for row in rows]
    side = [figure for figure in figures if figure.name in measure.COLUMNS]
    limits = {figure.name: figure.value for figure in figures if figure.name.startswith("limit_")}
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench` on one 2-core machine, PostgreSQL 18 with default durability (fsync and",
        "synchronous_commit on), no-op jobs, each system at its documented fastest settings (`bench/peers`).",
        "What is compared was measured in one run; the parts (`python -m bench --only PART`) may be of several.",
        "What is measured, and how, is in `bench/measure.py`, `bench/engine.py`, `bench/flow.py` and `bench/api.py`.",
        "The machine is shared and noisy: gaps under about 20 % mean nothing, and only ratios carry over.",
        "",
        "## Beside its peers",
        "",
        measure.table(side),
        "",
        "How many times as fast as each (latency: how many times as short):",
        "",
        *ratios(figures),
        "",
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
    lines += ["## Promises", "", "| what | promised | measured |", "|---|---|---:|"]
    values = {figure.name: figure.value for figure in figures}
    lines += [
        f"| {what} | {bound} | {values[name]:,.2f} |" for name, what, bound in PROMISES if name in values
    ]
    lines += ["", *NOTES, *WHERE_A_PEER_WINS]
    lines += ["", "## All figures", "", "| name | system | value | unit |", "|---|---|---:|---|"]
    lines += [f"| {f.name} | {f.system} | {f.value:,.2f} | {f.unit} |" for f in figures]
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
