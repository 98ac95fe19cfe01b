"""`python -m penstock.apps.intake FOLDER`: upload the documents of a folder and wait for their end.

Needs a worker (`penstock worker penstock.apps.intake.app:app`) and a model: the simulator
(`penstock simulate --port 8090`, `INTAKE_URL=http://127.0.0.1:8090/v1`) or the provider of `INTAKE_MODEL`.
A file that was uploaded before, by its content, is not uploaded again.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from uuid import UUID

from penstock.apps.intake.app import app, finish_upload
from penstock.contract import artifacts
from penstock.errors import PenstockError
from penstock.postgres import db

TYPES = {
    ".pdf": "application/pdf",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".webp": "image/webp",
}
_BEGIN = """\
select id, artifact_id, status from intake.begin_shell_file(%s, %s, %s, %s, %s, 1, %s)"""
_PATIENT = (
    "select id from intake.patients where tenant_id = %s and name = 'Folder' order by created_at limit 1"
)
_STATES = """\
select f.id, f.status, coalesce(f.pages, 0), concat_ws(': ', f.processing_error ->> 'code',
    left(f.processing_error ->> 'message', 200)), jsonb_array_length(r.summary -> 'facts')
from intake.shell_files f left join intake.shell_file_results r on r.tenant_id = f.tenant_id
  and r.shell_file_id = f.id and r.pass = 'pass2'
where f.tenant_id = %s and f.id = any (%s) order by f.completed_at, f.created_at"""
_PROGRESS = """\
select f.id, coalesce(j.phase, 'waiting'), coalesce(j.percent, 0),
  exists (select from penstock.worker_list where state in ('running', 'late')),
  coalesce(f.processing_error ->> 'message', '')
from intake.shell_files f left join penstock.job_list j on j.id = f.job_id
where f.tenant_id = %s and f.id = any (%s) order by j.percent desc nulls last, f.created_at limit 1"""
_ENDED = ("completed", "failed", "rejected")


def main(words: list[str]) -> int:
    """Upload and wait. Returns 0 if all files were completed, else 1."""
    folder = Path(words[0]) if words else None
    if folder is None or not folder.is_dir():
        print("usage: python -m penstock.apps.intake FOLDER", file=sys.stderr)
        return 2
    everything = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in everything if path.suffix.lower() in TYPES]
    if not files:
        print(f"{folder} has no documents ({', '.join(TYPES)})", file=sys.stderr)
        return 2
    if others := len(everything) - len(files):
        print(f"Skipping {count(others, 'file')} of other types (documents are {', '.join(TYPES)}).")
    with app:
        return app.block(_run(files))


async def _run(files: list[Path]) -> int:
    async with app.connections() as pool:
        await app.declare(pool)
        tenant_id = await app.tenant_id(pool)
        rows = await db.rows(pool, _PATIENT, (tenant_id,))
        if not rows:
            rows = await db.rows(pool, "select intake.add_patient('Folder', %s)", (tenant_id,))
        names: dict[UUID, str] = {}
        is_any_refused = False
        for path in files:
            try:
                names[await _upload(pool, tenant_id, rows[0][0], path)] = path.name
            except PenstockError as error:
                is_any_refused = True
                print(f"{path.name}: {error.code}: {error.message}")
        print(f"Uploaded {len(names)} of {count(len(files), 'file')}.")
        ends = await _wait(pool, tenant_id, names)
    print(
        ", ".join(f"{number} {status}" for status, number in sorted(ends.items())) or "Nothing to wait for."
    )
    return int(is_any_refused or ends.total() != ends["completed"])


async def _upload(pool: db.Pool, tenant_id: UUID, patient_id: UUID, path: Path) -> UUID:
    data = await asyncio.to_thread(path.read_bytes)
    kind = TYPES[path.suffix.lower()]
    key = f"folder:{hashlib.sha256(data + path.name.encode()).hexdigest()}"
    arguments = (path.name[-200:], kind, len(data), patient_id, key, tenant_id)
    [(file_id, artifact_id, status)] = await db.rows(pool, _BEGIN, arguments)
    if status == "uploading":
        taken = await artifacts.take_upload(pool, artifact_id=artifact_id)
        await app.storage.put(taken["incoming"], data, limit=len(data))
        service = partial(db.connection, pool)
        try:
            await artifacts.finish_upload(
                service, app.storage, artifact_id=artifact_id, taken=taken, finish=finish_upload
            )
        except PenstockError as error:
            # Only if the upload was dropped; otherwise the next run repeats it.
            refused = (tenant_id, file_id, error.code, error.message)
            await db.rows(pool, "select intake.reject_upload(%s, %s, %s, %s)", refused)
            raise
    return file_id


async def _wait(pool: db.Pool, tenant_id: UUID, names: dict[UUID, str]) -> Counter[str]:
    """Print each file that ends, and how far the others are. Returns how many ended how."""
    open_files, ends, shown = set(names), Counter[str](), ""
    while open_files:
        for file_id, status, pages, reason, facts in await db.rows(
            pool, _STATES, (tenant_id, list(open_files))
        ):
            if status in _ENDED:
                open_files.discard(file_id)
                ends[status] += 1
                what = f"{count(pages, 'page')}, {count(facts or 0, 'fact')}"
                print(f"{names[file_id]}: {status}, {what if status == 'completed' else reason}", flush=True)
        if open_files:
            now = await _progress(pool, tenant_id, open_files, names)
            if now != shown:
                print(now, flush=True)
                shown = now
            await asyncio.sleep(1)
    return ends


async def _progress(pool: db.Pool, tenant_id: UUID, open_files: set[UUID], names: dict[UUID, str]) -> str:
    """How many files have ended, and how far the one is that is next to end."""
    arguments = (tenant_id, list(open_files))
    [(file_id, phase, percent, has_worker, waits)] = await db.rows(pool, _PROGRESS, arguments)
    begin = f"{len(names) - len(open_files)} of {count(len(names), 'file')} ended; "
    if not has_worker:
        return f"{begin}no worker is running"
    return f"{begin}{names[file_id]}: {waits or f'{phase}, {percent} %'}"


def count(number: int, noun: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
