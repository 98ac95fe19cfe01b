"""`python -m penstock.apps.intake FOLDER`: upload the documents of a folder and wait for their end.

Needs a worker (`penstock worker penstock.apps.intake.app:app`) and a model: the simulator
(`penstock simulate --port 8090`, `INTAKE_URL=http://127.0.0.1:8090/v1`) or the provider of `INTAKE_MODEL`.
A file that was uploaded before, by its content, is not uploaded again.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
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
select id, status, coalesce(pages, 0), coalesce(processing_error ->> 'code', '') from intake.shell_files
where tenant_id = %s and id = any (%s)"""
_PROGRESS = """\
select f.id, coalesce(j.phase, 'waiting'), coalesce(j.percent, 0),
  exists (select from penstock.worker_list where state in ('running', 'late'))
from intake.shell_files f left join penstock.job_list j on j.id = f.job_id
where f.tenant_id = %s and f.id = any (%s) order by j.percent desc nulls last, f.created_at limit 1"""
_ENDED = ("completed", "failed", "rejected")


def main(words: list[str]) -> int:
    """Upload and wait. Returns the number of files that were not completed, at most 1."""
    folder = Path(words[0]) if words else None
    if folder is None or not folder.is_dir():
        print("usage: python -m penstock.apps.intake FOLDER", file=sys.stderr)
        return 2
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in TYPES and path.is_file())
    if not files:
        print(f"{folder} has no documents ({', '.join(TYPES)})", file=sys.stderr)
        return 2
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
        print(f"Uploaded {len(names)} of {len(files)} files.")
        return int(await _wait(pool, tenant_id, names) or is_any_refused)


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
        await artifacts.finish_upload(
            service, app.storage, artifact_id=artifact_id, taken=taken, finish=finish_upload
        )
    return file_id


async def _wait(pool: db.Pool, tenant_id: UUID, names: dict[UUID, str]) -> bool:
    """Print each file that ends, and how far the others are. Returns whether one was not completed."""
    open_files, is_any_bad, shown = set(names), False, ""
    while open_files:
        for file_id, status, pages, code in await db.rows(pool, _STATES, (tenant_id, list(open_files))):
            if status in _ENDED:
                open_files.discard(file_id)
                is_any_bad |= status != "completed"
                print(f"{names[file_id]}: {status}, {pages} pages{', ' + code if code else ''}", flush=True)
        if open_files:
            [(file_id, phase, percent, has_worker)] = await db.rows(
                pool, _PROGRESS, (tenant_id, list(open_files))
            )
            now = f"{len(names) - len(open_files)} of {len(names)} files ended; "
            now += f"{names[file_id]}: {phase}, {percent} %" if has_worker else "no worker is running"
            if now != shown:
                print(now, flush=True)
                shown = now
            await asyncio.sleep(1)
    return is_any_bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
