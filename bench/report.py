# ruff: noqa: E501
"""Writes docs/benchmarks.md with its plots, docs/scale.md and the figures in README.md from bench/results/latest.json."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

from bench import cells, intake, measure, plots, pressure, routes, scale, uploads
from bench.measure import Figure
from bench.peers import NAMES

ROOT = Path(__file__).parent.parent
LATEST = ROOT / "bench/results/latest.json"
IMAGES = ROOT / "docs/images"
# file, title, figures with what each is called, whether the scale is logarithmic
PLOTS = [
    (
        "drain",
        "Jobs per second: bulk enqueue, and drain by one and two processes",
        {"enqueue": "enqueue", "drain_1": "1 process", "drain_2": "2 processes"},
        False,
    ),
    (
        "latency",
        "Milliseconds from enqueue to start (logarithmic)",
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
        "Jobs per second of one process, under pressure",
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
        "Seconds that one job waits beside another tenant's backlog of 1,000,000 (logarithmic)",
        {"neighbour_wait": "wait"},
        True,
    ),
    ("cost", "Database CPU per job, in microseconds (logarithmic)", {"cpu": "CPU"}, True),
    (
        "idle",
        "200 idle workers: transactions per second (logarithmic)",
        {"idle_transactions": "transactions/s"},
        True,
    ),
]
# name, whose figure, what it says, the promise
PROMISES = [
    ("bulk_share", "rate of 1,000,000 tasks in one job, relative to a bare COPY of the same rows", "≥ 0.5 ×"),
    ("depth_ratio", "claim time with 5,000,000 ready tasks, relative to 10,000", "≤ 1.5 ×"),
    ("history_ratio", "claim time with 1,000,000 ended tasks kept, relative to none", "≤ 1.2 ×"),
    (
        "fairness_ratio",
        "small tenants' median wait beside a tenant with 1,000,000 tasks, relative to without it",
        "≤ 2 ×",
    ),
    ("fifo_share", "rate of the fair claim, relative to the same claim in FIFO order", "≥ 0.8 ×"),
    ("pause_job", "seconds to pause a job of 1,000,000 tasks", "< 1 s"),
    ("pause_job_others", "other tenants' claim time meanwhile", "< 2 ×"),
    ("cancel_job", "seconds to cancel such a job", "< 1 s"),
    ("cancel_job_others", "other tenants' claim time meanwhile", "< 2 ×"),
    (
        "held_ratio",
        "claim time after a snapshot was held open for 5 minutes under load, relative to before",
        "≤ 1.5 ×",
    ),
    ("held_backlog", "tasks waiting at its end (see below)", "no growth"),
    ("limited_share", "claims from 100 lanes with limits, relative to 100 lanes without", "≥ 0.7 ×"),
    ("limited_share_one", "the same, relative to one lane without (its tasks are adjacent on disk)", "-"),
    ("closed_lane", "other claims' time beside a closed lane with 1,000,000 tasks", "< 1.1 ×"),
    (
        "wire_violations",
        "calls that a provider rejected with 429: 8 workers, 10 minutes, kill -9 throughout",
        "0",
    ),
    ("wire_used", "share of that provider's capacity used", "≥ 0.95"),
    ("wire_most", "maximum calls it received in any 60 s, with a limit of 500 (see below)", "-"),
    ("wire_leaked", "concurrency slots lost to the kills", "0"),
    ("quota_over", "times over the limit: 64 callers compete for the last unit repeatedly, with kills", "0"),
    ("quota_leaked", "holds left over", "0"),
    ("quota_drift", "difference between accounts and ledger, in units", "0"),
    ("forecast_cost", "share of 50 forecast jobs whose cost was inside the range", "≥ 0.9"),
    ("forecast_finish", "share of 50 forecast jobs that finished within 15 % of the forecast", "≥ 0.8"),
    (
        "watch_p99",
        "milliseconds from a task's end to the event, p99 of 2,000 watchers of 100 jobs",
        "< 1,000",
    ),
    ("clients_errors", "errors of 1,000 clients that start jobs at once", "0"),
    (
        "request_start_share",
        "requests/s that start a job, relative to a bare FastAPI app with one insert",
        "-",
    ),
    ("request_get_share", "requests/s that read a job, relative to a bare FastAPI app with one select", "-"),
    (
        "rollup_all",
        "milliseconds for costs by provider and day (number of cost entries: see All figures)",
        "< 50",
    ),
    ("route_extra_cost", "% that routes decided at the claim cost above the cheapest plan", "≤ 10"),
    ("startup_import", "milliseconds of CPU for `import penstock`", "< 150"),
    ("startup_help", "milliseconds of CPU for `penstock --help`", "< 400"),
    ("slides_reserve", "milliseconds to reserve a thumbnail, with 1,000,000 slides (median)", "< 10 ms"),
    ("slides_status", "milliseconds of the status of a slide (median)", "< 5 ms"),
    ("slides_failures", "milliseconds to record a failure and detect a streak (median)", "< 20 ms"),
    ("ocr_clean", "characters that OCR reads right, clean print at 200 dpi", "≥ 0.98"),
    ("ocr_noisy", "characters that OCR reads right, noisy scan", "≥ 0.90"),
    ("uploads_wrong", "acknowledged uploads of 1,000 users lost, changed, doubled or over a limit", "0"),
    (
        "uploads_wrong_faults",
        "acknowledged uploads of 1,000 users lost, changed, doubled or over a limit, with kills",
        "0",
    ),
    ("slides_retroactive", "milliseconds to select 500 slides of an event (median)", "< 50 ms"),
    ("waiting_ratio", "claim time with 1,000,000 waiting tasks, relative to none", "≤ 1.1 ×"),
]

NOTES = [
    "Tasks waiting at the end of the held snapshot are those that the producer had just queued when the measurement stopped.",
    "Up to 500, the size of one claim, means that no backlog grew.",
    "",
    "The limiter promises what it admits: never more than the limit in any 60 s. A provider counts a call when it arrives.",
    "The run above shared its two cores with other work (a load of 8), so calls arrived up to a second late and in bursts.",
    "That explains the maximum it received. It rejected none. On a quiet machine the maximum was 500.",
    "",
]

# Why a peer can be ahead, for each measure. A measure without a reason fails the report.
_DRAIN = (
    "The difference is that of the drain itself; the table of shares above shows the effect of the pressure."
)
REASONS = {
    "enqueue": "Penstock writes a row in `tasks` and a fair-queue slot in `ready` for each task, and phases, an audit line "
    "and counters for its job. The others insert one row; pgmq stores not even a type.",
    "drain_1": "graphile-worker deletes a finished job and pgmq moves it by its id. Penstock checks the lease, stores a "
    "result for each attempt, updates the job's progress and ends the job. The pgmq loop is two statements, without "
    "retries, timeouts or handlers.",
    "drain_2": "The same reasons as with one process. Two processes, PostgreSQL and the measurement share two cores.",
    "latency_p50": "Of Penstock's median, `start_job` takes about 1 ms: it writes rows in seven tables (the job, its phase, "
    "an audit line, the tenant's slot, the task, its queue entry and more), where the others insert one. The claim of one "
    "task takes about 0.7 ms. The rest is NOTIFY, the event loop and two round trips. Both functions use batch statements, "
    "which cost about 20 µs each even for one row (`track_functions = all` shows it). A second path for single tasks would "
    "save about half, but would duplicate every rule. It is not worth it for tasks that take seconds.",
    "latency_p99": "The same reasons as for the median. On two cores the tail is mostly other load at that moment.",
    "wal": "The result of each attempt, the job's progress and the queue entry are separate rows with indexes. Where each "
    "task is a job of its own, three audit lines and two changes of the job's status come on top. "
    "graphile-worker keeps nothing of a finished job; pgmq keeps the message; awa writes one compact row per batch.",
    "dead": "awa's tables are append-only and then truncated, so almost nothing is left to vacuum. In Penstock a task "
    "leaves a dead queue entry and a dead lease.",
    "cpu": "Penstock writes more rows and applies more rules per task, all in the database. The others leave that to the "
    "application or leave it out, so it is not in their figure. The start of a worker counts too: five sessions plan their "
    "first calls, about 60 ms, or 3 µs per job of 20,000.",
    "half_p50": "A slower system gets less load here: half of its own rate, in smaller batches. In Penstock a batch is a "
    "job, whose phase, audit line and counters are written before its tasks.",
    "half_p99": "The same reasons as for the median.",
    "kept_drain": _DRAIN,
    "deep_drain": _DRAIN,
    "held_drain": _DRAIN,
    "neighbour_wait": "A system that takes the newest or a random job first reaches this one at once, by luck.",
    "idle_transactions": "One worker does the upkeep for all. Each other one sends a heartbeat every 5 s, which also says "
    "whether it should stop or lead, and polls for tasks after 5 to 30 s without a notification, in two transactions.",
    "idle_cpu": "A heartbeat writes the row of its worker and asks who leads; a poll is a whole claim.",
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
        "Every figure in the tables above that is better than Penstock's, even if the difference is noise.",
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
        "The columns show:",
        "",
        "- latency while jobs arrive at half the rate at which the system drains;",
        f"- drain with {full.kept:,} ended jobs kept (unless the system deletes them);",
        f"- drain with {full.deep:,} jobs waiting (pg-boss and awa 2,500,000, procrastinate and DBOS 1,000,000, because filling",
        "  them takes long);",
        f"- drain after a snapshot was held open for {full.held_seconds:.0f} s of half load;",
        f"- the wait of one job beside another tenant's backlog of {full.backlog:,}. The other systems have no tenants and use",
        "  one queue for both. If the job does not start soon, its wait is computed: the rest of the backlog divided by the rate;",
        "- the load of 200 idle workers on the database, as transactions and CPU (DBOS has one worker per process: 20",
        "  processes, times ten).",
        "",
        "Celery does not store jobs in PostgreSQL.",
        "",
        measure.table(figures, pressure.COLUMNS),
        "",
        "The same drains as a share of the system's own rate without pressure:",
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
    """How each peer is run, from the docstring of its module."""
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
        "One process of `penstock serve`, one process that creates the load, and PostgreSQL share the same two cores. Each",
        "watcher has its own event stream, while 100 tasks end per second. The server's load on the database does not grow",
        "with the number of watchers.",
        "",
        "| watchers | transactions/s of the server | event after, p50 ms | p99 ms |",
        "|---|---:|---:|---:|",
    ]
    for system in watched:
        cells = [found[name, system] for name in ("watch_asked", "watch_p50", "watch_p99")]
        lines.append(f"| {system} | {cells[0]:,.1f} | {cells[1]:,.0f} | {cells[2]:,.0f} |")
    errors, rate, p50, p99 = (found[f"clients_{name}", clients] for name in ("errors", "rate", "p50", "p99"))
    lines += [
        "",
        f"{clients}, each with an API key, start one job after another on a persistent connection: {rate:,.0f} jobs/s,",
        f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, {errors:,.0f} errors. With this many clients, latency is mostly queueing.",
        "",
        "| 32 clients | bare FastAPI, requests/s | Penstock, requests/s | share |",
        "|---|---:|---:|---:|",
    ]
    for name, what in (("request_start", "start a job"), ("request_get", "read a job")):
        bare, ours = (figure.value for figure in figures if figure.name == name)
        lines.append(f"| {what} | {bare:,.0f} | {ours:,.0f} | {ours / bare:.2f} |")
    lines += [
        "",
        "The bare app has the same server, pool and payload, but no authentication, and runs one statement. A Penstock request",
        "is a transaction under the caller's role that also checks the key; starting a job writes rows in seven tables.",
        "PostgreSQL takes two thirds of the CPU of a start. Starts also wait for each other: PostgreSQL commits one transaction",
        "with a NOTIFY at a time, so starts share no flush of the log, as the bare inserts do. Without the notification that",
        "wakes workers, 1.5 times as many jobs start per second (405 and 624).",
        "",
    ]
    return lines


def beside_a_neighbour(figures: list[Figure]) -> list[str]:
    """What one tenant notices of another that attacks, or nothing if that was not measured."""
    found = {(figure.name, figure.system): figure.value for figure in figures}
    attacks = [system for name, system in found if name == "neighbour_ratio"]
    if not attacks:
        return []
    lines = [
        "## Beside a noisy neighbour",
        "",
        "One tenant attacks what all tenants share with 20 connections at full speed, while another reads lists and starts",
        "small jobs. The server, PostgreSQL and the attacker share the same two cores. The goal is a ratio below 3. The",
        "last column has the responses to the attacker: most of an attack is refused, and what is admitted is its share.",
        "",
        "| attack | p95 alone, ms | p95 beside, ms | ratio | responses to the attacker |",
        "|---|---:|---:|---:|---|",
    ]
    for attack in attacks:
        alone, beside, ratio = (
            found[name, attack] for name in ("p95_alone", "p95_beside", "neighbour_ratio")
        )
        answers = ", ".join(
            f"{value:,.0f} × {system.partition(': ')[2]}"
            for (name, system), value in found.items()
            if name == "attacker_requests" and system.partition(": ")[0] == attack
        )
        lines.append(f"| {attack} | {alone:,.1f} | {beside:,.1f} | {ratio:.1f} | {answers or 'none ended'} |")
    return [*lines, ""]


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
        f"Server time to render a page, p95 of 20 requests, with {size}, ten tasks each, and 10,000 tenants. One process runs",
        f"beside PostgreSQL. {sum(f.value < 300 for f in found)} of {len(found)} pages take less than 300 ms.",
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
        "Generated by `make bench` and `python -m bench.report`.",
        "",
        "- One 2-core machine, PostgreSQL 18 with default durability (fsync and synchronous_commit on), no-op jobs.",
        "- The server has 1 GB of WAL files to write into again, as a server has that has run for a while. A new one creates",
        "  each file when it needs it, and all commits wait meanwhile.",
        "- Each system runs with its documented fastest settings (`bench/peers`).",
        "- Compared figures come from one run; different parts (`python -m bench --only PART`) may come from different runs.",
        "- The methods are in `bench/measure.py`, `bench/pressure.py`, `bench/engine.py`, `bench/flow.py` and `bench/api.py`.",
        "- The machine is shared and noisy: ignore differences under about 20 %. Only ratios apply to other machines.",
        "",
        "## Beside its peers",
        "",
        measure.table(side),
        "",
        "Penstock relative to each peer: above 1 × means Penstock is faster (or, for latency, WAL, dead rows and CPU, needs",
        "less).",
        "",
        *ratios(figures),
        "",
        "Where a peer is ahead: Penstock writes more WAL per job, because a task is a definition, a row of the queue, a lease and a",
        "result, in a table each, and a job has lines in the audit log. It spends more CPU per job on an enqueue, because the database",
        "checks each task (kind, size, policy) before it inserts it: two fifths of the time is the parsing and checking, the rest two",
        "inserts with their indexes. With one job at a time, most of the latency and of the CPU is the start of the job, which writes to",
        "several tables in one transaction. Idle workers report every five seconds, so that a dead one is noticed, and one of them does upkeep.",
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
    lines += beside_a_neighbour(figures)
    lines += pages(figures)
    lines += intake.page(figures)
    lines += uploads.page(figures)
    lines += routes.page(figures)
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
    figures = [Figure(row["name"], row["system"], row["value"], row["unit"]) for row in rows]
    text = scale.page(figures)
    if text:
        (ROOT / "docs/scale.md").write_text("\n".join([text, *cells.lines(figures)]))
    print("wrote docs/benchmarks.md, docs/scale.md and the figures in README.md")


if __name__ == "__main__":
    main()
