"""Uploads of workers without credentials of the storage: where the file of a running task goes."""

from __future__ import annotations

from uuid import UUID

from penstock.postgres import db
from penstock.storage import content


async def begin(
    database: db.Database,
    *,
    task_id: int,
    worker_id: str,
    lease: int | None,
    name: str,
    content_type: str,
    bytes: int,
) -> db.Row:
    """Insert the record of a file that a worker will upload: its `id`, `tenant_id` and `incoming` path."""
    [row] = await db.call(
        database,
        "begin_task_upload",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_name=content.clean_name(name),
        p_content_type=content.known(content_type),
        p_bytes=bytes,
    )
    return row


async def take(
    database: db.Database, *, task_id: int, artifact_id: UUID, worker_id: str, lease: int | None
) -> db.Row:
    """Begin to finish an upload, as the worker that holds the task. Raises LeaseLost for any other."""
    [row] = await db.call(
        database,
        "take_task_upload",
        p_task_id=task_id,
        p_artifact_id=artifact_id,
        p_worker_id=worker_id,
        p_lease=lease,
    )
    return row
