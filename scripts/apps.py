"""`make apps`: runs the demo of each app on one embedded server with simulated providers, with its figures.

Each demo is a process of its own, in a folder that is removed at the end. Variables that name a database or a
provider are not passed on, so nothing costs money. Prints the duration, the tasks, the stored files and the
cost of each demo, and fails if a demo fails or takes too long. `make apps ARGS=notes` runs only that one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import typst

from penstock import simulator
from penstock.postgres import db, embedded, migrate

DEMOS = {
    "reading": ["penstock", "demo"],
    "video_ideas": ["penstock.apps.video_ideas"],
    "slides": ["penstock.apps.slides", "--slides", "8"],
    "intake": ["penstock.apps.intake", "documents"],
    "notes": ["penstock.apps.notes", "two-devices"],
}
WORKERS = {"intake": "penstock.apps.intake.app:app"}
"""Apps whose demo needs a worker beside it."""
PRICES = [
    ["openai/gpt-4o-mini", "input_tokens", "0.15", "--per", "1000000"],
    ["openai/gpt-4o-mini", "output_tokens", "0.60", "--per", "1000000"],
]
"""Prices for the intake, which declares none."""
WORKER_LOG = "worker.log"
LIMIT_SECONDS = 150
_FOREIGN = re.compile(
    r"DATABASE_URL|PG[A-Z]+|(PENSTOCK|READING|VIDEO_IDEAS|SLIDES|INTAKE|NOTES|CLOUDCONVERT|OPENAI|ANTHROPIC|RUNWAY)_\w+"
    r"|https?_proxy|all_proxy",
    re.IGNORECASE,
)
_LETTER = (
    "The patient was seen on 12 March 2025. She takes lisinopril 10 mg once a day. "
    "Blood pressure was 128/82 mmHg."
)
_FIGURES = """
select (select count(*) from penstock.results where outcome = 'succeeded') as tasks,
  (select count(*) from penstock.results where outcome <> 'succeeded') as failed,
  (select count(*) from penstock.artifacts where status = 'stored') as files,
  (select coalesce(sum(base_amount), 0) from penstock.cost_entries) as cost"""


class Figures(NamedTuple):
    """What the database holds, or what a demo added to it."""

    tasks: int
    failed: int
    files: int
    cost: Decimal

    def since(self, before: Figures) -> Figures:
        return Figures(
            self.tasks - before.tasks,
            self.failed - before.failed,
            self.files - before.files,
            self.cost - before.cost,
        )


class Ended(NamedTuple):
    """How a command ended."""

    code: int | None
    """None: it took too long."""
    output: str
    seconds: float


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make apps", description=__doc__)
    parser.add_argument("app", nargs="*", help=f"run only these: {', '.join(DEMOS)}")
    chosen: list[str] = parser.parse_args(words).app or list(DEMOS)
    if unknown := set(chosen) - set(DEMOS):
        parser.error(f"unknown app {', '.join(sorted(unknown))} (known: {', '.join(DEMOS)})")
    with tempfile.TemporaryDirectory(prefix="penstock-apps-") as name:
        home = Path(name) / "home"
        dsn = embedded.dsn(home)
        try:
            migrate.migrate(dsn)
            failed = asyncio.run(run_all(chosen, dsn, Path(name)))
        finally:
            embedded.of(home).leave(discard=True)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


async def run_all(names: list[str], dsn: str, folder: Path) -> list[str]:
    """Run the demos one after the other; returns the names of those that failed."""
    make_documents(folder / "documents")
    failed: list[str] = []
    began = time.monotonic()
    print(f"{'app':<12} {'seconds':>8} {'tasks':>6} {'files':>6} {'cost (USD)':>11}  result", flush=True)
    async with simulator.serve() as model:
        environment = {key: value for key, value in os.environ.items() if not _FOREIGN.fullmatch(key)}
        environment |= {
            "PENSTOCK_HOME": str(folder / "home"),
            "INTAKE_URL": model.openai_url,
            "COLUMNS": "120",
        }
        for name in names:
            before = figures(dsn)
            async with worker(name, environment, folder):
                ended = await run(DEMOS[name], environment, folder)
            added = figures(dsn).since(before)
            wrong = problem(ended, added)
            counted = f"{added.tasks:6} {added.files:6} {added.cost:11.6f}"
            print(f"{name:<12} {ended.seconds:8.1f} {counted}  {wrong or 'passed'}", flush=True)
            if wrong:
                failed.append(name)
                print(ended.output, file=sys.stderr, flush=True)
                if name in WORKERS:
                    print((folder / WORKER_LOG).read_text(), file=sys.stderr, flush=True)
    print(f"{'together':<12} {time.monotonic() - began:8.1f}")
    return failed


def problem(ended: Ended, added: Figures) -> str | None:
    """Why a demo counts as failed, or None."""
    if ended.code is None:
        return f"took more than {LIMIT_SECONDS} s"
    if ended.code:
        return f"exit code {ended.code}"
    return f"{added.failed} tasks did not succeed" if added.failed else None


async def run(command: list[str], environment: dict[str, str], folder: Path) -> Ended:
    """Run a command until it ends or takes too long."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, cwd=folder, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    reading = asyncio.create_task(process.communicate())
    done, _ = await asyncio.wait([reading], timeout=LIMIT_SECONDS)
    if not done:
        process.kill()
    output, _ = await reading
    return Ended(
        process.returncode if done else None, output.decode(errors="replace"), time.monotonic() - began
    )


@asynccontextmanager
async def worker(name: str, environment: dict[str, str], folder: Path) -> AsyncGenerator[None]:
    """Run the worker of an app whose demo needs one, on a migrated database with prices."""
    if name not in WORKERS:
        yield
        return
    for command in (["migrate", WORKERS[name]], *(["prices", "set", *price] for price in PRICES)):
        prepared = await run(["penstock", *command], environment, folder)
        if prepared.code != 0:
            raise RuntimeError(f"penstock {' '.join(command)}: {prepared.output}")
    with (folder / WORKER_LOG).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock", "worker", WORKERS[name], cwd=folder, env=environment,
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def figures(dsn: str) -> Figures:
    """The figures of everything in the database so far."""
    with db.connect(dsn) as conn:
        [row] = conn.execute(_FIGURES).fetchall()
    return Figures(**row)


def make_documents(folder: Path) -> None:
    """Documents for the intake: a PDF with a text layer, and a scan as an image."""
    folder.mkdir()
    page = f'#set page(paper: "a5")\n#set text(size: 14pt)\n{_LETTER}'
    pages = "\n#pagebreak()\n".join([page, _LETTER, _LETTER])
    made = [typst.compile(pages.encode(), format="pdf"), typst.compile(page.encode(), format="png", ppi=200)]
    for name, data in zip(("letter.pdf", "scan.png"), made, strict=True):
        assert isinstance(data, bytes)
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
