"""`python -m penstock.apps.intake.cutover forward|back`: switch to this version, or back, step by step.

Each step prints what it did. Both directions can be repeated, and none deletes a file or a row.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable

from penstock.apps.intake.app import app
from penstock.errors import PenstockError
from penstock.postgres import db

Step = tuple[str, Callable[[db.Pool], Awaitable[str]]]


async def _maintenance_on(pool: db.Pool) -> str:
    await db.call(pool, "set_setting", p_name="maintenance", p_value=db.Json(True))
    return "nothing new is claimed; uploads go on"


async def _maintenance_off(pool: db.Pool) -> str:
    await db.call(pool, "set_setting", p_name="maintenance", p_value=db.Json(False))
    return "workers claim again"


async def _uploads_on(pool: db.Pool) -> str:
    await db.call(pool, "set_setting", p_name="intake.refuse_uploads", p_value=db.Json(False))
    return "new uploads are accepted"


async def _uploads_off(pool: db.Pool) -> str:
    await db.call(pool, "set_setting", p_name="intake.refuse_uploads", p_value=db.Json(True))
    return "new uploads get 503; uploads that began can finish"


async def _adopt_errors(pool: db.Pool) -> str:
    count = 0
    while adopted := (await db.rows(pool, "select intake.adopt_processing_errors()", ()))[0][0]:
        count += adopted
    return f"{count} text errors are structured now"


async def _declare(pool: db.Pool) -> str:
    await app.declare(pool)
    return f"{len(app.tasks)} kinds and {len(app.functions)} functions"


async def _check(pool: db.Pool) -> str:
    """The accounts equal the sums of their events, and every acknowledged file has a job or a reason."""
    if wrong := await db.call(pool, "check_accounts"):
        raise PenstockError(f"{len(wrong)} accounts do not agree with their entries", code="accounts_differ")
    statement = """\
select count(*) from intake.shell_files f where f.status in ('uploaded', 'processing') and f.job_id is null
  and f.processing_error is null"""
    [(lost,)] = await db.rows(pool, statement, ())
    if lost:
        raise PenstockError(f"{lost} files have neither a job nor a reason", code="files_without_job")
    return "accounts agree, every file has a job or a reason"


FORWARD: list[Step] = [
    ("Turn maintenance on", _maintenance_on),
    ("Declare the app", _declare),
    ("Adopt legacy errors", _adopt_errors),
    ("Check", _check),
    ("Accept uploads", _uploads_on),
    ("Turn maintenance off", _maintenance_off),
]
BACK: list[Step] = [
    ("Refuse new uploads", _uploads_off),
    ("Turn maintenance on", _maintenance_on),
    ("Check", _check),
]


async def run(steps: list[Step]) -> None:
    """Run the steps in order. A step that fails stops the rest: maintenance stays on."""
    began = time.monotonic()
    async with app.connections() as pool:
        for name, step in steps:
            print(f"T+{time.monotonic() - began:5.1f} s  {name}: {await step(pool)}", flush=True)


def main(words: list[str]) -> int:
    """Run a direction. Returns the exit code."""
    if words not in (["forward"], ["back"]):
        print("usage: python -m penstock.apps.intake.cutover forward|back", file=sys.stderr)
        return 2
    with app:
        try:
            app.block(run(FORWARD if words == ["forward"] else BACK))
        except PenstockError as error:
            print(f"stopped: {error.message}. Maintenance stays on.", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
