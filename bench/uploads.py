"""Uploads of many concurrent users to the intake app: `python -m bench.uploads [--kill-every 5]`.

Each user has a tenant and uploads 1 to 3 files of 0.1 to 2 MB: begin, PUT, finish. With `--kill-every` the
server is killed (SIGKILL) and started again all the time, and users repeat what failed. At the end every
acknowledged file is checked: one record, one job, its bytes in storage with the same SHA-256, and the quota.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench.api import answers
from bench.server import free_port, postgres
from penstock import server
from penstock.apps.intake.app import app

FUNCTION = "/functions/v1/shell-file-processor-v3"
MOST_TRIES = 200


@dataclass
class Figures:
    """What the users saw."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"begin": [], "put": [], "finish": []})
    acknowledged: dict[str, str] = field(default_factory=dict)
    """SHA-256 by file."""
    statuses: Counter[str] = field(default_factory=Counter)


class Server:
    """A server process that can be killed and started again on the same port."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.port, self._environment, self.kills = free_port(), environment, 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "penstock",
            "serve",
            "penstock.apps.intake.app:app",
            "--port",
            str(self.port),
        ]
        made = subprocess.Popen(
            command, env=self._environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while not answers(self.port):
            if made.poll() is not None:
                raise RuntimeError("the server does not start")
            time.sleep(0.05)
        return made

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.kills += 1
        self._process = self._start()

    def memory(self) -> int:
        """Resident megabytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) // 1024

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


async def main(users: int, files: int | None, kill_every: float | None, ramp: float) -> dict[str, Any]:
    """Run the users and check what they were told."""
    with postgres() as pg, pg.database() as dsn, tempfile.TemporaryDirectory(prefix="penstock-") as home:
        app.migrate(dsn)
        environment = {
            **os.environ,
            "DATABASE_URL": dsn,
            "PENSTOCK_API_URL": server.ensure_login(dsn),
            "PENSTOCK_HOME": home,
        }
        with psycopg.connect(dsn, autocommit=True) as connection:
            keys = [
                row[0]
                for row in connection.execute(
                    """select k.secret from generate_series(1, %s) as n,
                      lateral (select penstock.create_tenant('u' || n) as id offset 0) as t,
                      lateral penstock.create_key('bench', 'member', t.id) as k""",
                    (users,),
                )
            ]
            served, figures = Server(environment), Figures()
            try:
                began = time.monotonic()
                await _run(served, keys, figures, files, kill_every, ramp)
                took = time.monotonic() - began
                return _report(figures, served, took) | _check(connection, figures, Path(home))
            finally:
                served.close()


async def _run(
    served: Server,
    keys: list[str],
    figures: Figures,
    files: int | None,
    kill_every: float | None,
    ramp: float,
) -> None:
    limits = httpx.Limits(max_connections=len(keys), max_keepalive_connections=200)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{served.port}", timeout=120, limits=limits
    ) as client:
        killer = asyncio.create_task(_kill(served, kill_every)) if kill_every else None
        await asyncio.gather(
            *(
                _user(client, key, number, figures, files, ramp * number / len(keys))
                for number, key in enumerate(keys)
            )
        )
        if killer:
            killer.cancel()
            with suppress(asyncio.CancelledError):
                await killer


async def _kill(served: Server, every: float) -> None:
    while True:
        await asyncio.sleep(every)
        await asyncio.to_thread(served.kill)


async def _user(
    client: httpx.AsyncClient, key: str, number: int, figures: Figures, files: int | None, delay: float
) -> None:
    await asyncio.sleep(delay)
    chance = random.Random(number)
    for each in range(files or chance.randint(1, 3)):
        data = b"%PDF-1.7\n" + chance.randbytes(chance.randint(100_000, 2_000_000))
        await _upload(client, {"Authorization": f"Bearer {key}"}, data, f"{number}-{each}", figures)


async def _upload(
    client: httpx.AsyncClient, headers: dict[str, str], data: bytes, key: str, figures: Figures
) -> None:
    """Repeat the three requests until finish is acknowledged."""
    body = {"action": "begin", "name": f"{key}.pdf", "content_type": "application/pdf", "bytes": len(data),
            "idempotency_key": key}  # fmt: skip
    for _ in range(MOST_TRIES):
        begun = await _timed(figures, "begin", client.post(FUNCTION, json=body, headers=headers))
        if begun is None:
            continue
        if "url" in begun and await _timed(figures, "put", client.put(begun["url"], content=data)) is None:
            continue
        finish = {"action": "finish", "shell_file_id": begun["shell_file_id"]}
        if await _timed(figures, "finish", client.post(FUNCTION, json=finish, headers=headers)) is not None:
            figures.acknowledged[begun["shell_file_id"]] = hashlib.sha256(data).hexdigest()
            return
    raise RuntimeError(f"{key} was not acknowledged")


async def _timed(figures: Figures, name: str, request: Any) -> dict[str, Any] | None:
    """The answer, or None if the request has to be repeated."""
    began = time.monotonic()
    try:
        answer = await request
    except httpx.HTTPError as error:
        figures.statuses[f"{name} {type(error).__name__}"] += 1
        await asyncio.sleep(random.uniform(0.1, 1))
        return None
    figures.statuses[f"{name} {answer.status_code}"] += 1
    if not answer.is_success:
        await asyncio.sleep(random.uniform(0.1, 1))
        return None
    figures.seconds[name].append(time.monotonic() - began)
    return answer.json() if answer.content else {}


def _report(figures: Figures, served: Server, took: float) -> dict[str, Any]:
    def quantiles(values: list[float]) -> dict[str, float]:
        cuts = statistics.quantiles(values, n=100)
        return {"p50": round(cuts[49], 3), "p95": round(cuts[94], 3), "p99": round(cuts[98], 3)}

    return {
        "seconds": round(took, 1),
        "acknowledged": len(figures.acknowledged),
        "kills": served.kills,
        "server_mb": served.memory(),
        "responses": dict(sorted(figures.statuses.items())),
        **{name: quantiles(values) for name, values in figures.seconds.items()},
    }


def _check(connection: psycopg.Connection, figures: Figures, home: Path) -> dict[str, Any]:
    """Compare what was acknowledged with the records, the storage and the accounts."""
    rows = connection.execute(
        """select f.id::text, a.path, a.sha256, f.job_id is not null and a.subject is not null
        from intake.shell_files f join penstock.artifacts a on a.id = f.artifact_id and a.status = 'stored'"""
    ).fetchall()
    found = {row[0]: row for row in rows}
    lost = [
        file for file in figures.acknowledged if file not in found or not (found[file][3] and found[file][4])
    ]
    differing = 0
    for file, digest in figures.acknowledged.items():
        if file in found:
            data = (home / "artifacts" / found[file][1]).read_bytes()
            differing += found[file][2] != digest or hashlib.sha256(data).hexdigest() != digest
    jobs = connection.execute("select count(*) from penstock.jobs where type = 'intake'").fetchone()
    wrong = connection.execute("select count(*) from penstock.check_accounts()").fetchone()
    assert jobs and wrong
    return {
        "lost": len(lost),
        "differing": differing,
        "files": len(rows),
        "jobs": jobs[0],
        "wrong_accounts": wrong[0],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--files", type=int, help="files of each user; default: 1 to 3")
    parser.add_argument("--kill-every", type=float, help="seconds between kills of the server")
    parser.add_argument("--ramp", type=float, default=10, help="seconds in which the users begin")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(main(given.users, given.files, given.kill_every, given.ramp)), indent=2))
