"""Artifacts: files that tasks save and clients upload.

Storing a file takes three steps: insert a pending record, write the file, mark the record as stored. A crash
in between leaves a pending record; an hour later `sweep` removes it with its file. `sweep` also removes files
without a record. So no record stays without its file, and no file without its record.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, Protocol, TypeAlias, cast
from uuid import UUID

from penstock.contract import filters
from penstock.errors import Conflict, LeaseLost, NotFound, PenstockError, Unavailable
from penstock.postgres import db
from penstock.storage import chunks, containers, content
from penstock.storage.objects import HOUR, Storage, Stored
from penstock.types import OUTPUT as OUTPUT
from penstock.types import Artifact, KeptArtifact, referred

_COLUMNS: LiteralString = """\
select id, tenant_id, job_id, task_id, name, path, content_type, bytes, sha256, created_at, stored_at,
  coalesce(type, penstock._artifact_type(content_type)), metadata
from penstock.artifacts where status = 'stored' and """
_KEPT: LiteralString = """\
select id, tenant_id, job_id, task_id, name, path, content_type, bytes, sha256, created_at, stored_at,
  coalesce(type, penstock._artifact_type(content_type)), metadata, subject, kept_until
from penstock.artifacts where status = 'stored' and subject is not null
  and (kept_until is null or kept_until >= penstock._now()) and (%s::uuid is null or job_id = %s)
  and (%s::text is null or subject = %s) and (%s::uuid is null or id > %s) order by id limit %s"""
_OF_JOB: LiteralString = """\
job_id = %s and (%s::bigint is null or task_id = %s) and (%s::uuid is null or id > %s) order by id limit %s"""
BATCH = 100
"""Files that a sweep removes in one transaction."""
Data: TypeAlias = bytes | Path | AsyncIterable[bytes]
"""The content of a file: bytes, the path of a local file, or a stream of chunks."""
MAX_OUTPUT = 64 << 20
_SETTING: LiteralString = "select value from penstock.settings where name = 'max_output_bytes'"
_AWAITED: LiteralString = """\
select from penstock.artifacts where id = %s and incoming = %s and status = 'pending'"""
_DELETED: LiteralString = """\
select from penstock.artifacts where tenant_id = %s and path = %s and status <> 'deleted'"""
_DUE: LiteralString = """\
select exists (select from penstock.artifacts where status <> 'stored'
    and (status = 'deleted' and incoming is null or begun_at < penstock._now() - interval '1 hour'))
  or exists (select from penstock.artifacts where job_id is null and status = 'stored' and subject is null
    and stored_at < penstock._now() - make_interval(
      days => (select value from penstock.settings where name = 'retention_days')::integer))
  or exists (select from penstock.artifacts where job_id is null and status = 'stored' and subject is not null
    and kept_until < penstock._now() and stored_at < penstock._now() - make_interval(
      days => (select value from penstock.settings where name = 'retention_days')::integer))"""
_KEY: LiteralString = "select idempotency_key from penstock.artifacts where id = %s"
_ABANDONED: LiteralString = """\
select id, incoming from penstock.artifacts where status = 'pending' and incoming is not null
  and starts_with(idempotency_key, %s) and begun_at < penstock._now() - make_interval(secs => %s)
order by begun_at limit 100"""
Acting = Callable[[], AbstractAsyncContextManager[db.Connection]]
"""Opens a connection for one short call, so that none is in use while bytes are copied."""
Finish = Callable[[db.Connection, Artifact], Awaitable[None]]
"""The app's own writes when an upload is stored, on the connection of that transaction."""


class Upload(NamedTuple):
    """A file that a client is about to upload."""

    id: UUID
    tenant_id: UUID
    incoming: str


class Swept(NamedTuple):
    """The number of records (with their files), and of files without a record, that a sweep removed."""

    records: int
    files: int


# Files of tasks


async def save(
    pool: db.Pool,
    storage: Storage,
    *,
    task_id: int,
    worker_id: str,
    lease: int,
    name: str,
    data: Data,
    content_type: str = content.ANY,
    type: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Store a file of a running task; returns a reference to put into its output.

    A file of the same name is replaced. Raises LeaseLost if the lease is lost, Limited if the tenant's quota
    is used up.
    """
    head, data = await chunks.peek(_chunks(data) if isinstance(data, Path) else data)
    kind = content.check(content_type, head)
    name = content.clean_name(name)
    [begun] = await db.call(
        pool,
        "begin_artifact",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_name=name,
        p_content_type=kind,
        p_bytes=len(data) if isinstance(data, bytes) else None,
    )
    holder = {"p_artifact_id": begun["id"], "p_worker_id": worker_id, "p_lease": lease}
    async with _dropped_on_error(partial(db.connection, pool), holder):
        stored = await storage.put(
            begun["path"], data, limit=begun["max_bytes"], headers=content.headers(kind, name)
        )
        await _check_container(storage, begun["path"], kind, stored.bytes)
        await _finish(partial(db.connection, pool), holder, stored, type=type, metadata=metadata)
    return {
        "artifact_id": str(begun["id"]),
        "path": begun["path"],
        "name": name,
        "content_type": kind,
        "bytes": stored.bytes,
        "sha256": stored.sha256,
    }


async def _chunks(file: Path) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(file.open, "rb") as opened:
        while chunk := await asyncio.to_thread(opened.read, 1 << 20):
            yield chunk


async def _check_container(storage: Storage, path: str, content_type: str, size: int) -> None:
    """Check the directory of a stored Office file. Nobody but the caller can write to this path."""

    async def read(start: int, end: int) -> bytes:
        if start >= end:
            return b""
        part = await storage.get(path, start, end)
        return b"".join([chunk async for chunk in part.chunks])

    await containers.check(content_type, size, read)


async def _finish(
    acting: Acting, holder: dict[str, Any], stored: Stored, finish: Finish | None = None,
    type: str | None = None, metadata: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    is_single = finish is None and type is None and not metadata
    async with acting() as conn, nullcontext() if is_single else db.transaction(conn):
        if metadata or type is not None:
            said = db.Json(dict(metadata or {}))
            await db.call(conn, "describe_artifact", **holder, p_type=type, p_metadata=said)
        await db.call(conn, "finish_artifact", **holder, p_bytes=stored.bytes, p_sha256=stored.sha256)
        if finish is not None:
            await finish(conn, await get(conn, artifact_id=holder["p_artifact_id"]))


@asynccontextmanager
async def _dropped_on_error(acting: Acting, holder: dict[str, Any]) -> AsyncGenerator[None]:
    """Drop the pending record if writing the file fails."""
    try:
        yield
    except (LeaseLost, Unavailable):
        # Another worker has the lease and writes to the same path; or the database is away: a retry, or
        # adopt_uploads, finishes what is pending.
        raise
    except Exception:
        # If this fails too, the sweep removes the record later.
        with suppress(Exception):
            async with acting() as conn:
                await db.call(conn, "drop_artifact", **holder)
        raise


# Outputs that are too large for the database


class HasStorage(Protocol):
    """An app, which opens its storage on first use."""

    @property
    def storage(self) -> Storage: ...


async def max_output_bytes(pool: db.Pool) -> int:
    """The largest output that is stored in the database; larger ones are stored as files."""
    [(limit,)] = await db.rows(pool, _SETTING, ())
    return int(limit)


def reference(saved: dict[str, Any]) -> str:
    """The output of a task whose real output was saved as a file."""
    return json.dumps({"$artifact": saved})


def is_any_reference(outputs: Mapping[str, Any]) -> bool:
    """Whether one of these outputs is stored as a file."""
    return any(referred(output) is not None for output in outputs.values())


async def expanded(
    database: db.Database, app: HasStorage, *, job_id: UUID, outputs: dict[str, Any]
) -> dict[str, Any]:
    """Outputs, with references to files of the same job replaced by the files' contents.

    A reference to another job's file stays as it is: a handler may return anything.
    """
    wanted = {key: found for key, output in outputs.items() if (found := referred(output)) is not None}
    if not wanted:
        return outputs
    statement = _COLUMNS + "job_id = %s and name = %s and id = any (%s)"
    rows = await db.rows(database, statement, (job_id, OUTPUT, builtins.list(wanted.values())))
    files = {artifact.id: artifact for artifact in (Artifact(*row) for row in rows)}
    whole = dict(outputs)
    for key, artifact_id in wanted.items():
        if (artifact := files.get(artifact_id)) is not None:
            whole[key] = json.loads(await app.storage.read(artifact.path, limit=MAX_OUTPUT))
    return whole


async def expanded_result(database: db.Database, app: HasStorage, *, job_id: UUID, result: Any) -> Any:
    """A job's result, with each output that is stored as a file replaced by the file's content."""
    found: dict[str, Any] = {}

    def collect(value: Any) -> None:
        if (artifact_id := referred(value)) is not None:
            found[str(artifact_id)] = value
        elif isinstance(value, dict):
            for item in cast("dict[str, Any]", value).values():
                collect(item)
        elif isinstance(value, builtins.list):
            for item in cast("builtins.list[Any]", value):
                collect(item)

    collect(result)
    outputs = await expanded(database, app, job_id=job_id, outputs=found)

    def filled(value: Any) -> Any:
        if (artifact_id := referred(value)) is not None:
            return outputs[str(artifact_id)]
        if isinstance(value, dict):
            return {name: filled(item) for name, item in cast("dict[str, Any]", value).items()}
        if isinstance(value, builtins.list):
            return [filled(item) for item in cast("builtins.list[Any]", value)]
        return value

    return filled(result) if found else result


# Uploads of clients


async def begin_upload(
    database: db.Database,
    *,
    name: str,
    content_type: str,
    bytes: int,
    tenant_id: UUID | None = None,
    idempotency_key: str | None = None,
) -> Upload:
    """Insert the record of a file that a client is about to upload. The same key returns the same record."""
    given = {"tenant_id": tenant_id and str(tenant_id), "idempotency_key": idempotency_key}
    [row] = await db.call(
        database,
        "begin_upload",
        p_name=content.clean_name(name),
        p_content_type=content.known(content_type),
        p_bytes=bytes,
        p_options={name: value for name, value in given.items() if value is not None},
    )
    return Upload(row["id"], row["tenant_id"], row["incoming"])


async def take_upload(database: db.Database, *, artifact_id: UUID) -> db.Row:
    """Begin to finish an upload: returns its path, its declared name, type and size, and its final path."""
    [row] = await db.call(database, "take_upload", p_artifact_id=artifact_id)
    return row


async def upload_key(database: db.Database, *, artifact_id: UUID) -> str | None:
    """The idempotency key that an upload began with."""
    rows = await db.rows(database, _KEY, (artifact_id,))
    return rows[0][0] if rows else None


async def finish_upload(
    service: Acting, storage: Storage, *, artifact_id: UUID, taken: db.Row, finish: Finish | None = None,
    worker_id: str | None = None, type: str | None = None, metadata: Mapping[str, Any] | None = None,
    confirm: Callable[[], Awaitable[object]] | None = None,
) -> Stored:  # fmt: skip
    """Check an uploaded file and copy it to its final path. Only the service may mark a file as stored.

    The client can write to the upload path for as long as its URL is valid. So the checked bytes are copied
    to a path that the client cannot write to. `finish` makes the app's own writes in the transaction that
    marks the file as stored: either both are committed, or neither. A task's file names its `worker_id`;
    `confirm` raises if the worker has lost its lease meanwhile, before the copy replaces anything.
    """
    try:
        uploaded = await storage.get(taken["incoming"])
    except NotFound:
        raise Conflict(
            "the file has not been uploaded yet: PUT it to the upload URL first", code="not_uploaded"
        ) from None
    holder = {"p_artifact_id": artifact_id, "p_worker_id": worker_id, "p_lease": taken["lease"]}
    async with _dropped_on_error(service, holder):
        head, data = await chunks.peek(
            uploaded.chunks if confirm is None else chunks.confirmed(uploaded.chunks, confirm)
        )
        kind = content.check(taken["content_type"], head)
        headers = content.headers(kind, taken["name"])
        stored = await storage.put(taken["path"], data, limit=taken["bytes"], headers=headers)
        await _check_container(storage, taken["path"], kind, stored.bytes)
        await _finish(service, holder, stored, finish, type, metadata)
    # After a crash here the uploaded file has no record, so the sweep removes it.
    await storage.delete([taken["incoming"]])
    return stored


async def adopt_uploads(
    pool: db.Pool, storage: Storage, finish: Finish, *, key_prefix: str, older_than: float = 60
) -> int:
    """Finish uploads whose client sent the bytes and died before it could say so. Returns their number.

    Takes uploads whose idempotency key begins with `key_prefix`, so that an app finds its own. Call it every
    minute or so: an hour after it began, a pending upload is removed.
    """
    count = 0
    for artifact_id, incoming in await db.rows(pool, _ABANDONED, (key_prefix, older_than)):
        try:
            await storage.head(incoming)
        except NotFound:
            continue
        try:
            taken = await take_upload(pool, artifact_id=artifact_id)
            await finish_upload(
                partial(db.connection, pool), storage, artifact_id=artifact_id, taken=taken, finish=finish
            )
        except Unavailable:
            raise
        except PenstockError:
            # Another process adopted it, or the file is invalid and is dropped: the others still count.
            continue
        count += 1
    return count


# Reading


async def get(database: db.Database, *, artifact_id: UUID) -> Artifact:
    """One artifact. Raises NotFound."""
    rows = await db.rows(database, _COLUMNS + "id = %s", (artifact_id,))
    if not rows:
        raise NotFound(f"no artifact with id {artifact_id}", code="unknown_artifact")
    return Artifact(*rows[0])


async def some(database: db.Database, *, artifact_ids: builtins.list[UUID]) -> builtins.list[Artifact]:
    """The artifacts among these ids that exist and that the caller may see."""
    rows = await db.rows(database, _COLUMNS + "id = any (%s)", (artifact_ids,))
    return [Artifact(*row) for row in rows]


async def list(
    database: db.Database,
    *,
    job_id: UUID,
    task_id: int | None = None,
    after: UUID | None = None,
    limit: int = 100,
) -> builtins.list[Artifact]:
    """Artifacts of a job or of one of its tasks, oldest first. The next page is `after` the last id."""
    statement = _COLUMNS + _OF_JOB
    rows = await db.rows(database, statement, (job_id, task_id, task_id, after, after, filters.page(limit)))
    return [Artifact(*row) for row in rows]


async def list_kept(
    database: db.Database,
    *,
    job_id: UUID | None = None,
    subject: str | None = None,
    after: UUID | None = None,
    limit: int = 100,
) -> builtins.list[KeptArtifact]:
    """Files that apps keep, oldest first: all, those of a job, or those for a subject."""
    arguments = (job_id, job_id, subject, subject, after, after, filters.page(limit))
    return [KeptArtifact(*row) for row in await db.rows(database, _KEPT, arguments)]


async def keep(
    database: db.Database, *, artifact_id: UUID, subject: str, until: datetime | None = None
) -> None:
    """Keep a file beyond `retention_days` and beyond its job: until a time, or without end."""
    await db.call(database, "keep_artifact", p_artifact_id=artifact_id, p_subject=subject, p_until=until)


async def unkeep(database: db.Database, *, artifact_id: UUID) -> bool:
    """End the keeping of a file. False if no app keeps it."""
    return await db.value(database, "unkeep_artifact", p_artifact_id=artifact_id)


async def delete(database: db.Database, *, artifact_id: UUID) -> bool:
    """Delete an artifact: hides it and frees the quota at once; the next sweep removes the file."""
    return await db.value(database, "delete_artifact", p_artifact_id=artifact_id)


# Sweeping


async def is_awaited(database: db.Database, *, path: str) -> bool:
    """Whether a client may still upload to this path: its upload is neither finished nor dropped."""
    return bool(await db.rows(database, _AWAITED, (path.rpartition("/")[2], path)))


async def is_deleted(database: db.Database, *, tenant_id: UUID, path: str) -> bool:
    """Whether the file of a signed URL was deleted: URLs are made for stored files only."""
    return not await db.rows(database, _DELETED, (tenant_id, path))


async def is_any_due(pool: db.Pool) -> bool:
    """Whether a sweep has a record to remove."""
    [(found,)] = await db.rows(pool, _DUE, ())
    return found


async def sweep(pool: db.Pool, storage: Storage, *, orphans: bool = True, older_than: float = HOUR) -> Swept:
    """Remove artifacts that are deleted, abandoned or expired; with `orphans`, also files without a record.

    Looking for orphans lists all files in storage. Only those older than `older_than` seconds are removed.
    """
    records = 0
    while count := await sweep_batch(pool, storage):
        records += count
    files = 0
    if orphans:
        files += await storage.clear_partial(older_than)
        async for page in storage.list():
            old = [file.path for file in page if file.modified_at <= time.time() - older_than]
            files += await _sweep_orphans(pool, storage, old)
    return Swept(records, files)


async def sweep_batch(pool: db.Pool, storage: Storage) -> int:
    """Remove at most `BATCH` artifacts that are deleted, abandoned or expired. Returns their number."""
    # The rows stay locked until the files are removed, so that no task begins to write to these paths.
    async with db.transaction(pool) as conn:
        due = await db.call(conn, "due_artifacts", p_limit=BATCH)
        if due:
            await storage.delete(path for row in due for path in row["paths"])
            await db.call(conn, "forget_artifacts", p_ids=[row["id"] for row in due])
    return len(due)


async def _sweep_orphans(pool: db.Pool, storage: Storage, paths: builtins.list[str]) -> int:
    async with db.transaction(pool) as conn:
        rows = await db.call(conn, "orphaned_artifacts", p_paths=paths)
        orphans = [row["orphaned_artifacts"] for row in rows]
        await storage.delete(orphans)
    return len(orphans)


async def missing(pool: db.Pool, storage: Storage) -> AsyncGenerator[Artifact]:
    """Artifacts whose file is missing or has another size, because it was changed from outside."""
    after = UUID(int=0)
    while rows := await db.rows(pool, _COLUMNS + "id > %s order by id limit 500", (after,)):
        for artifact in (Artifact(*row) for row in rows):
            after = artifact.id
            try:
                size = (await storage.head(artifact.path)).bytes
            except NotFound:
                size = None
            if size != artifact.bytes:
                yield artifact
