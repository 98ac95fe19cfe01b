"""The size of a run, its findings, and the promises that it checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from faults import check, points
from faults.schedule import FAULTS

DEFAULT_LEASE = 10


@dataclass(frozen=True)
class Plan:
    """How large a run is."""

    server: int = 18
    tasks: int = 100_000
    seed: int = 7
    seconds: float = 900
    """How long faults happen, and how long work comes."""
    every: float = 2.5
    """Seconds between two faults, on average."""
    workers: int = 4
    producers: int = 2
    lease_seconds: int | None = None
    """None: the worker's own default."""
    poison: int = 10
    has_api: bool = True
    has_warm: bool = True
    """Whether a worker is warm and idle through each restart of PostgreSQL."""
    has_rpc: bool = True
    """Whether there is a second database, for workers that only use the HTTP API."""
    migrate_every: float | None = 5
    """Seconds between two starts of `migrate`."""
    faults: tuple[str, ...] = tuple(FAULTS)
    """The faults that happen."""
    is_disk_wanted: bool = True
    drain_seconds: float = 600
    """How long the rest of the work may take after the last fault."""


@dataclass
class Result:
    """The findings of a run."""

    plan: Plan
    version: str
    found: check.Found
    faults: Counter[str]
    skipped: dict[str, str]
    armed: Counter[str]
    fired: Counter[str]
    lost_answers: Counter[str]
    ended_by_themselves: list[str]
    seconds: float
    drained_in: float
    promises: list[tuple[str, str, bool]] = field(default_factory=list[tuple[str, str, bool]])

    @property
    def is_good(self) -> bool:
        return all(holds for _, _, holds in self.promises)


def promises(result: Result) -> list[tuple[str, str, bool]]:
    """Each promise, the finding, and whether the promise holds."""
    found, figures = result.found, result.found.figures
    made: list[tuple[str, str, bool]] = []
    for group, text in {
        "lost": "acknowledged work lost, or with a wrong outcome",
        "unexpected": "work that was never requested, or is left over",
        "duplicated": "duplicated work",
        "effects": "effects in the database, duplicated or missing",
        "leases": "two leases at once",
        "stale": "stale writes accepted",
        "transitions": "illegal transitions",
        "counters": "wrong counters and sums",
        "ledger": "wrong accounts, holds, usage and costs",
        "limits": "limits, quotas and budgets exceeded",
        "operations": "operations lost, doubled, left live or charged wrongly, unprocessed webhooks",
        "waits": "steps repeated, answers lost or changed",
        "mails": "failures lost, streaks that alerted twice, mails lost",
        "drains": "tasks left behind by drained workers",
        "trouble": "attempts charged to database trouble",
        "warm": "tasks charged, lost or dead-lettered by the worker that was idle through a restart",
        "migrates": "job starts that met a deadlock or lock timeout, and failed migrates",
        "rpc": "wrong with HTTP-only workers: any of the above, late reclaims, late retries, tasks left behind",
    }.items():
        if group in found.wrong:
            n = found.count(group)
            made.append((text, str(n), n == 0))
    n = len(result.ended_by_themselves)
    made.append(("processes that ended unexpectedly", str(n), n == 0))
    if result.faults["worker.paused"] >= 3:
        n = figures["stale writes rejected"] + figures["stale heartbeats rejected"]
        made.append(("stale writes and heartbeats rejected (more than 0)", str(n), n > 0))
    if result.plan.lease_seconds is None:
        for name, most in (
            ("killed → begun again, p99 (s)", 12),
            ("stopped → begun again, p99 (s)", 12),
            ("killed → begun again with PostgreSQL restarted in between, p99 less the outage (s)", 12),
            ("stopped → begun again with PostgreSQL restarted in between, p99 less the outage (s)", 12),
            ("PostgreSQL back → first completion, most (s)", 5),
        ):
            value = figures[name]
            made.append((f"{name}, at most {most}", f"{value}", value is None or value <= most))
    return made


def as_dict(result: Result) -> dict[str, Any]:
    return {
        "server": result.version,
        "plan": asdict(result.plan),
        "is_good": result.is_good,
        "seconds": round(result.seconds, 1),
        "drained_in": round(result.drained_in, 1),
        "promises": [
            {"what": what, "found": value, "holds": holds} for what, value, holds in result.promises
        ],
        "figures": result.found.figures,
        "faults": dict(sorted(result.faults.items())),
        "skipped": result.skipped,
        "points": {name: {"armed": result.armed[name], "fired": result.fired[name]} for name in points.ALL},
        "lost_answers": dict(sorted(result.lost_answers.items())),
    }
