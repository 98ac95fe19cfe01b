# ruff: noqa: E501
"""Uploads of many concurrent users to the intake: `python -m bench --only uploads`, with kills `--only kills`.

A real `penstock serve` (or two), two `penstock worker`s, PostgreSQL and a simulated model. Each user has a
tenant and uploads 1 to 3 files of 0.1 to 2 MB: begin, PUT, finish, and then one more file than the quota allows.
One file in ten is a letter that goes through the whole pipeline; the others are rejected by the scan. With
kills, the servers, the workers and PostgreSQL are killed in turn (SIGKILL) and started again, and users repeat
what failed. `python -m bench.uploads` runs other numbers of users and files.

At the end every acknowledged file is checked: one record, one job that ended, its bytes in storage with the
same SHA-256, the quota, and the provider's count of violations.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench.measure import Figure, percentile
from bench.server import free_port
from faults.server import Postgres
from penstock import server
from penstock.apps.intake.app import app

FUNCTION = "/functions/v1/shell-file-processor-v3"
APP = "penstock.apps.intake.app:app"
_NOISE = random.Random(1).randbytes(2_000_000)


@dataclass(frozen=True)
class Load:
    """What the users do."""

    users: int = 1000
    files: int | None = None
    """Files of each user; None: 1 to 3."""
    ramp: float = 10
    kill_every: float | None = None
    seconds: float = 420
    """After this no user begins another file."""
    end_seconds: float = 150
    """How long acknowledged files may take to end after that."""
    real_share: int = 10
    """One file in this many goes through the whole pipeline."""
    largest: int = 2_000_000
    """Bytes of a file; the smallest has 100,000."""
    small_share: float = 0
    """The share of files with 2,000 to 100,000 bytes instead."""
    servers: int = 1
    """A user whose server does not listen asks the other one."""
    requests: int | None = None
    """How many requests of all users may be open at the same time; None: any number."""


@dataclass
class Seen:
    """What the users saw."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"begin": [], "PUT": [], "finish": []})
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    """SHA-256 by file."""
    responses: Counter[str] = field(default_factory=Counter[str])
    refused: int = 0
    """Files over the quota that were refused."""
    admitted: int = 0
    """Files over the quota that were not."""
    servers: list[str] = field(default_factory=list[str])
    """Their base URLs."""
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(100_000))
    """Open requests."""


class Process:
    """A process that can be killed and started again."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], port: int | None) -> None:
        self.name, self._command, self._environment, self._port = name, command, environment, port
        self.kills = 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *self._command],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while self._port and not _listens(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, also to the subprocesses."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.kills += 1

    def memory(self) -> float:
        """Resident megabytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def _listens(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", timeout=2).status_code < 600
    except httpx.HTTPError:
        return False


class Site:
    """PostgreSQL, the servers, two workers and the simulated model."""

    def __init__(self, folder: Path, servers: int) -> None:
        self.postgres = Postgres(folder / "postgres")
        self.database_kills = 0
        dsn = self.postgres.dsn
        app.migrate(dsn)
        self.model_port = free_port()
        environment = {
            **os.environ,
            "DATABASE_URL": dsn,
            "PENSTOCK_API_URL": server.ensure_login(dsn),
            "PENSTOCK_HOME": str(folder / "home"),
            "INTAKE_URL": f"http://127.0.0.1:{self.model_port}/v1",
        }
        self.home = folder / "home"
        limits = ["--rpm", "500", "--tpm", "200000", "--concurrency", "50", "--latency", "0.05..0.2"]
        simulate = ["simulate", "--port", str(self.model_port), *limits]
        self.model = Process("simulator", simulate, environment, self.model_port)
        # The check that it listens was a request too.
        httpx.post(f"http://127.0.0.1:{self.model_port}/_simulator/reset", timeout=30).raise_for_status()
        ports = [free_port() for _ in range(servers)]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.apis = [
            Process(f"server {n}", ["serve", APP, "--port", str(port)], environment, port)
            for n, port in enumerate(ports, 1)
        ]
        work = ["worker", APP, "--concurrency", "8"]
        self.workers = [Process(f"worker {n}", work, environment, None) for n in (1, 2)]

    def kill_in_turn(self) -> Iterator[str]:
        """Kill and start again, one after the other."""
        order = [self.apis[0], self.workers[0], None, *self.apis[1:], self.workers[1]]
        for victim in itertools.cycle(order):
            if victim is None:
                self.postgres.kill()
                self.database_kills += 1
                self.postgres.start()
            else:
                victim.kill()
                victim.start()
            yield victim.name if victim else "PostgreSQL"

    def violations(self) -> tuple[int, int]:
        """Requests to the model, and those over its limits."""
        stats = httpx.get(f"http://127.0.0.1:{self.model_port}/_simulator/stats", timeout=30).json()
        return stats["requests"], stats["violation_count"]

    def close(self) -> None:
        for process in (*self.apis, *self.workers, self.model):
            process.kill()
        self.postgres.close()


@contextmanager
def site(servers: int) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="penstock-uploads-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        made = Site(folder, servers)
        try:
            yield made
        finally:
            made.close()


def run(load: Load) -> list[Figure]:
    """Run the users, wait until every acknowledged file has ended, and check it."""
    with site(load.servers) as made:
        counts = [load.files or random.Random(n).randint(1, 3) for n in range(load.users)]
        with psycopg.connect(made.postgres.dsn, autocommit=True) as connection:
            keys = [
                row[0]
                for row in connection.execute(
                    """select k.secret from unnest(%s::integer[]) with ordinality as u(files, n),
                      lateral (select penstock.create_tenant('u' || n) as id offset 0) as t,
                      lateral (select penstock.set_limit(t.id, m, a) from (values ('files', u.files),
                        ('bytes', 100000000), ('jobs', 1000)) as x(m, a) offset 0) as l,
                      lateral penstock.create_key('bench', 'member', t.id) as k
                    group by n, k.secret order by n""",
                    (counts,),
                )
            ]
        seen = Seen(servers=made.urls, turns=asyncio.Semaphore(load.requests or 100_000))
        began = time.monotonic()
        asyncio.run(_run(made, keys, counts, seen, load))
        took = time.monotonic() - began
        kills = [(p.name, p.kills) for p in (*made.apis, *made.workers)] + [
            ("PostgreSQL", made.database_kills)
        ]
        print(f"  {len(seen.acknowledged):,} acknowledged in {took:.0f} s; kills: {kills}", flush=True)
        print(f"  responses: {dict(sorted(seen.responses.items()))}", flush=True)
        return _figures(made, seen, took, load, sum(count for _, count in kills))


async def _run(made: Site, keys: list[str], counts: list[int], seen: Seen, load: Load) -> None:
    limits = httpx.Limits(max_connections=len(keys), max_keepalive_connections=len(keys))
    deadline = time.monotonic() + load.seconds
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        killer = asyncio.create_task(_kill(made, load.kill_every)) if load.kill_every else None
        await asyncio.gather(
            *(
                _user(client, key, number, counts[number], seen, load, deadline)
                for number, key in enumerate(keys)
            )
        )
        if killer:
            killer.cancel()
            with suppress(asyncio.CancelledError):
                await killer


async def _kill(made: Site, every: float) -> None:
    victims = made.kill_in_turn()
    while True:
        await asyncio.sleep(every)
        # Shielded: a canceled bench must not leave a server that is half started.
        await asyncio.shield(asyncio.to_thread(next, victims))


async def _user(
    client: httpx.AsyncClient, key: str, number: int, files: int, seen: Seen, load: Load, deadline: float
) -> None:
    await asyncio.sleep(load.ramp * number / load.users)
    chance = random.Random(number)
    headers = {"Authorization": f"Bearer {key}"}
    for each in range(files):
        if time.monotonic() > deadline:
            return
        is_small = chance.random() < load.small_share
        size = chance.randint(2_000, 100_000) if is_small else chance.randint(100_000, load.largest)
        is_real = (number + each) % load.real_share == 0
        data = document(f"{number}-{each}", size, is_real=is_real)
        await _upload(client, headers, data, f"{number}-{each}", seen, deadline + 90)
    if time.monotonic() < deadline:
        await _upload_over_quota(client, headers, seen, deadline)


def document(name: str, size: int, *, is_real: bool) -> bytes:
    """A PDF of this size with some text, or an invalid file that only begins like one."""
    text = f"Letter {name}: the potassium of the patient was 4.2 mmol/L on 12 March 2025."
    if not is_real:
        return b"%PDF-1.7\n% " + text.encode() + b"\n" + _NOISE[: size - 100]
    content = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (size - 1200, _NOISE[: size - 1200]),
    ]
    made, offsets = bytearray(b"%PDF-1.7\n"), list[int]()
    for number, body in enumerate(objects, 1):
        offsets.append(len(made))
        made += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(made)
    made += b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % at for at in offsets)
    return bytes(made) + b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


async def _upload(
    client: httpx.AsyncClient, headers: dict[str, str], data: bytes, key: str, seen: Seen, give_up: float
) -> None:
    """Repeat each of the three requests until it succeeds. A URL that is no longer good is asked for again."""
    body = {"action": "begin", "name": f"{key}.pdf", "content_type": "application/pdf", "bytes": len(data),
            "idempotency_key": key}  # fmt: skip
    while time.monotonic() < give_up:
        begun = await _timed(
            seen, "begin", give_up, FUNCTION, partial(client.post, json=body, headers=headers)
        )
        if not begun or (
            "url" in begun
            and not await _timed(
                seen,
                "PUT",
                give_up,
                httpx.URL(begun["url"]).raw_path.decode(),
                partial(client.put, content=data),
            )
        ):
            await asyncio.sleep(random.uniform(0.1, 1))
            continue
        finish = {"action": "finish", "shell_file_id": begun["shell_file_id"]}
        if await _timed(
            seen, "finish", give_up, FUNCTION, partial(client.post, json=finish, headers=headers)
        ):
            seen.acknowledged[begun["shell_file_id"]] = hashlib.sha256(data).hexdigest()
            return


async def _upload_over_quota(
    client: httpx.AsyncClient, headers: dict[str, str], seen: Seen, give_up: float
) -> None:
    body = {"action": "begin", "name": "over.pdf", "content_type": "application/pdf", "bytes": 100}
    while time.monotonic() < give_up:
        try:
            async with seen.turns:
                url = random.choice(seen.servers) + FUNCTION
                answer = await client.post(url, json=body, headers=headers)
        except httpx.HTTPError:
            await asyncio.sleep(random.uniform(0.1, 1))
            continue
        if answer.status_code == 429 and answer.json()["code"] == "quota_exceeded":
            seen.refused += 1
            return
        if answer.is_success:
            seen.admitted += 1
            return
        await asyncio.sleep(random.uniform(0.1, 1))


async def _timed(
    seen: Seen, name: str, give_up: float, path: str, request: Callable[[str], Awaitable[httpx.Response]]
) -> dict[str, Any]:
    """Repeat a request until it succeeds; its answer. Nothing if it is refused, or the time is over."""
    while time.monotonic() < give_up:
        async with seen.turns:
            answer, seconds = await _answer(seen, name, give_up, path, request)
        if answer is not None:
            seen.responses[f"{name} {answer.status_code}"] += 1
            if answer.is_success:
                seen.seconds[name].append(seconds)
                return {"is_done": True, **(answer.json() if answer.content else {})}
            if answer.status_code < 500 and answer.status_code != 429:
                return {}
        await asyncio.sleep(random.uniform(0.1, 1))
    return {}


async def _answer(
    seen: Seen, name: str, give_up: float, path: str, request: Callable[[str], Awaitable[httpx.Response]]
) -> tuple[httpx.Response | None, float]:
    """The response and its time. Tries again while the server does not listen."""
    while time.monotonic() < give_up:
        began = time.monotonic()
        try:
            answer = await request(random.choice(seen.servers) + path)
        except httpx.HTTPError as error:
            seen.responses[f"{name} {type(error).__name__}"] += 1
            if not isinstance(error, httpx.ConnectError):
                break
            await asyncio.sleep(random.uniform(0.1, 1))
        else:
            return answer, time.monotonic() - began
    return None, 0


# The check


_OPEN = "select count(*) from intake.shell_files where status in ('uploaded', 'processing')"
_ENDED = """\
select f.id::text, a.path, a.sha256, f.status, f.processing_error ->> 'code',
  a.subject is not null and j.id is not null as is_kept
from intake.shell_files f
left join penstock.artifacts a on a.id = f.artifact_id and a.status = 'stored'
left join penstock.jobs j on j.id = f.job_id"""
_DOUBLED = """\
select (select count(*) from (select 1 from penstock.jobs where type = 'intake'
    group by tenant_id, params ->> 'shell_file_id' having count(*) > 1) as j)
  + (select count(*) from (select 1 from intake.shell_files
    group by tenant_id, idempotency_key having count(*) > 1) as f)"""
_OVER = """\
select count(*) from penstock.accounts a join penstock.tenant_limits l
  on l.tenant_id = a.tenant_id and l.meter = a.meter
where a.job_id is null and a.used + a.held > l.amount"""


def _figures(made: Site, seen: Seen, took: float, load: Load, kills: int) -> list[Figure]:
    name = "quiet" if load.kill_every is None else f"SIGKILL every {load.kill_every:g} s"
    who = f"{load.users:,} users, {name}"
    with psycopg.connect(made.postgres.dsn, autocommit=True) as connection:
        _wait_for_the_end(connection, load.end_seconds)
        values = _check(connection, seen, made.home)
    requests, violations = made.violations()
    values |= {
        "acknowledged": len(seen.acknowledged),
        "kills": kills,
        "per_second": len(seen.acknowledged) / took,
        "over_quota_admitted": seen.admitted,
        "over_quota_refused": seen.refused,
        "provider_requests": requests,
        "violations": violations,
        "server_mb": made.apis[0].memory(),
        "load": os.getloadavg()[2],
    }
    units = {"per_second": "files/s", "server_mb": "MB"}
    figures = [Figure(f"upload_{key}", who, value, units.get(key, "")) for key, value in values.items()]
    for step, seconds in seen.seconds.items():
        for share in (50, 95, 99):
            value = 1000 * percentile(seconds, share / 100)
            figures.append(Figure(f"upload_{step.lower()}_p{share}", who, value, "ms"))
    wrong = sum(values[key] for key in ("lost", "differing", "doubled", "over_quota", "violations"))
    summary = "uploads_wrong" if load.kill_every is None else "uploads_wrong_faults"
    return [*figures, Figure(summary, who, wrong, "files")]


def _wait_for_the_end(connection: psycopg.Connection, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        row = connection.execute(_OPEN).fetchone()
        if row is not None and row[0] == 0:
            return
        time.sleep(1)


def _check(connection: psycopg.Connection, seen: Seen, home: Path) -> dict[str, float]:
    """Compare acknowledged uploads with the records, the storage and the accounts."""
    found = {row[0]: row for row in connection.execute(_ENDED).fetchall()}
    lost = [file for file in seen.acknowledged if file not in found or not found[file][5]]
    differing = 0
    for file, digest in seen.acknowledged.items():
        if file in found and found[file][1]:
            data = (home / "artifacts" / found[file][1]).read_bytes()
            differing += found[file][2] != digest or hashlib.sha256(data).hexdigest() != digest
    ends = Counter(found[file][3] for file in seen.acknowledged if file in found)
    codes = Counter(str(found[file][4]) for file in seen.acknowledged if file in found)
    print(f"  ends: {dict(ends)}; codes: {dict(codes)}", flush=True)
    [doubled, over, wrong] = (
        connection.execute(query).fetchone()
        for query in (_DOUBLED, _OVER, "select count(*) from penstock.check_accounts()")
    )
    assert doubled and over and wrong
    return {
        "lost": len(lost),
        "differing": differing,
        "doubled": doubled[0],
        "over_quota": over[0] + seen.admitted,
        "wrong_accounts": wrong[0],
        "open": ends["uploaded"] + ends["processing"],
        "completed": ends["completed"],
        "rejected": ends["rejected"],
        "failed": ends["failed"],
    }


QUIET = Load()
FAULTY = Load(
    files=10,
    kill_every=5,
    seconds=1500,
    end_seconds=300,
    real_share=40,
    small_share=0.9,
    servers=2,
    requests=64,
)


# The report


def page(figures: list[Figure]) -> list[str]:
    """The section of docs/benchmarks.md, or nothing if that was not measured."""
    found = {(figure.name, figure.system): figure.value for figure in figures}
    runs = [system for name, system in found if name == "upload_acknowledged"]
    if not runs:
        return []
    lines = [
        "## Uploads",
        "",
        "Users of the intake, each with a tenant, upload 1 to 3 files of 0.1 to 2 MB. In the run with kills they upload",
        "10 files each, nine in ten of them of 2 to 100 kB, with 64 requests at a time, to two servers, and kills hit the",
        "servers, the workers and PostgreSQL in turn: five seconds after a victim runs again, the next one is killed.",
        "Servers, two workers, PostgreSQL, the simulated model and the users share the same two cores, so latency is mostly",
        "queueing, and under a load average far above 2 it says nothing. Every acknowledged file is compared with its",
        "record, its job and its bytes in storage (SHA-256). One file in ten, in forty with kills, is a letter that goes",
        "through the whole pipeline; the others are random bytes, which the scan rejects. OCR of a letter takes 1.4 s of a",
        "core, so that in the quiet run the letters alone keep both cores busy while the uploads wait for their turn.",
        "",
        f"| | {' | '.join(runs)} |",
        f"|---|{'---:|' * len(runs)}",
    ]
    rows = {
        "acknowledged": "files acknowledged", "kills": "kills", "lost": "lost", "differing": "with other bytes",
        "doubled": "twice", "over_quota": "over quota", "over_quota_refused": "refused over the quota",
        "violations": "violations at the provider", "open": "not ended", "completed": "completed",
        "rejected": "rejected by the scan", "failed": "failed", "per_second": "files per second",
        "load": "load average of the machine (15 minutes)",
    }  # fmt: skip
    for key, words in rows.items():
        values = [found.get((f"upload_{key}", run), 0) for run in runs]
        cells = [f"{value:,.1f}" if key == "per_second" else f"{value:,.0f}" for value in values]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    for step in ("begin", "PUT", "finish"):
        for share in (50, 95, 99):
            name = f"upload_{step.lower()}_p{share}"
            cells = [f"{found[name, run]:,.0f} ms" for run in runs]
            lines.append(f"| {step}, p{share} | {' | '.join(cells)} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.uploads", description=__doc__)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--files", type=int, help="files of each user; default: 1 to 3")
    parser.add_argument("--kill-every", type=float, help="seconds between kills")
    parser.add_argument("--ramp", type=float, default=10, help="seconds in which the users begin")
    parser.add_argument("--seconds", type=float, default=420, help="no user begins a file after this")
    parser.add_argument("--real-share", type=int, default=10, help="one file in this many is a letter")
    parser.add_argument("--end-seconds", type=float, default=150, help="time for files to end after that")
    given = parser.parse_args()
    load = Load(
        given.users,
        given.files,
        given.ramp,
        given.kill_every,
        given.seconds,
        given.end_seconds,
        given.real_share,
    )
    found = run(load)
    print(json.dumps({figure.name: round(figure.value, 3) for figure in found}, indent=2))


if __name__ == "__main__":
    main()
