"""Artifacts: files that tasks make and clients upload. The record comes first, then the file, then that it is
whole.

Whatever dies in between leaves a record that is pending; `sweep` removes it with its file an hour later, and
files that have no record. So there is neither a record without its file nor a file without a record for long.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, LiteralString, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from penstock import content, db, filters
from penstock.errors import Conflict, LeaseLost, NotFound
from penstock.storage import HOUR, Storage, Stored
from penstock.types import OUTPUT as OUTPUT
from penstock.types import Artifact, referred

_COLUMNS: LiteralString = """\
select id, tenant_id, job_id, task_id, name, path, content_type, bytes, sha256, created_at, stored_at
from penstock.artifacts where status = 'stored' and """
_OF_JOB: LiteralString = """\
job_id = %s and (%s::bigint is null or task_id = %s) and (%s::uuid is null or id > %s) order by id limit %s"""
BATCH = 100
"""So many files are removed in one transaction."""
Data: TypeAlias = bytes | Path | AsyncIterable[bytes]
"""What a file is made of: bytes, a local file, or pieces as they come."""
MAX_OUTPUT = 64 << 20
_SETTING: LiteralString = "select value from penstock.settings where name = 'max_output_bytes'"
_AWAITED: LiteralString = """\
select from penstock.artifacts where id = %s and incoming = %s and status = 'pending'"""
_DUE: LiteralString = """\
select exists (select from penstock.artifacts where status <> 'stored'
    and (status = 'deleted' and incoming is null or begun_at < penstock._now() - interval '1 hour'))
  or exists (select from penstock.artifacts where job_id is null and status = 'stored'
    and stored_at < penstock._now() - make_interval(
      days => (select value from penstock.settings where name = 'retention_days')::integer))"""
Acting = Callable[[], AbstractAsyncContextManager[db.Connection]]
"""Gives a connection for one short call: none is held while bytes move."""


class Upload(NamedTuple):
    """A file that a client is about to upload."""

    id: UUID
    tenant_id: UUID
    incoming: str


class Swept(NamedTuple):
    """What a sweep removed: records with their files, and files without a record."""

    records: int
    files: int


# What a task saves


async def save(
    where: db.Pool,
    storage: Storage,
    *,
    task_id: int,
    worker_id: str,
    lease: int,
    name: str,
    data: Data,
    content_type: str = content.ANY,
) -> dict[str, Any]:
    """Keep a file of a running task; returns what to put into its output. The same name is the same file.

    Raises LeaseLost when the task is another worker's by now, Limited when the tenant's quota has no room.
    """
    head, data = await _beginning(_pieces(data) if isinstance(data, Path) else data)
    kind = content.check(content_type, head)
    name = content.clean_name(name)
    [begun] = await db.call(
        where,
        "begin_artifact",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_name=name,
        p_content_type=kind,
        p_bytes=len(data) if isinstance(data, bytes) else None,
    )
    holder = {"p_artifact_id": begun["id"], "p_worker_id": worker_id, "p_lease": lease}
    async with _given_up_on_error(partial(db.connection, where), holder):
        stored = await storage.put(
            begun["path"], data, limit=begun["max_bytes"], headers=content.headers(kind, name)
        )
        await _finish(partial(db.connection, where), holder, stored)
    return {
        "artifact_id": str(begun["id"]),
        "path": begun["path"],
        "name": name,
        "content_type": kind,
        "bytes": stored.bytes,
        "sha256": stored.sha256,
    }


async def _pieces(file: Path) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(file.open, "rb") as opened:
        while piece := await asyncio.to_thread(opened.read, 1 << 20):
            yield piece


async def _finish(acting: Acting, holder: dict[str, Any], stored: Stored) -> None:
    async with acting() as held:
        await db.call(held, "finish_artifact", **holder, p_bytes=stored.bytes, p_sha256=stored.sha256)


@asynccontextmanager
async def _given_up_on_error(acting: Acting, holder: dict[str, Any]) -> AsyncGenerator[None]:
    try:
        yield
    except LeaseLost:
        # The path is another's by now: hands off.
        raise
    except Exception:
        # Only to be quick about it: the sweep would find it.
        with suppress(Exception):
            async with acting() as held:
                await db.call(held, "drop_artifact", **holder)
        raise


async def _beginning(data: bytes | AsyncIterable[bytes]) -> tuple[bytes, bytes | AsyncIterable[bytes]]:
    """The first bytes, and all of it."""
    if isinstance(data, bytes):
        return data[: content.HEAD_BYTES], data
    chunks, head = aiter(data), b""
    while len(head) < content.HEAD_BYTES and (chunk := await anext(chunks, None)) is not None:
        head += chunk

    async def whole() -> AsyncGenerator[bytes]:
        yield head
        async for chunk in chunks:
            yield chunk

    return head[: content.HEAD_BYTES], whole()


# Outputs that are too large for the database


class HasStorage(Protocol):
    """An app: its storage is opened when it is needed."""

    @property
    def storage(self) -> Storage: ...


async def max_output_bytes(where: db.Pool) -> int:
    """The largest output that the database keeps itself."""
    [(limit,)] = await db.rows(where, _SETTING, ())
    return int(limit)


def reference(saved: dict[str, Any]) -> str:
    """What stands for an output that was saved as a file."""
    return json.dumps({"$artifact": saved})


def is_any_reference(outputs: Mapping[str, Any]) -> bool:
    """Whether one of these outputs is in a file."""
    return any(referred(output) is not None for output in outputs.values())


async def expanded(
    where: db.Pool, app: HasStorage, *, job_id: UUID, outputs: dict[str, Any]
) -> dict[str, Any]:
    """Outputs, with those read back that are in files of the same job. (A handler can return anything, also
    what looks like another job's: that stays what it is.)"""
    wanted = {key: found for key, output in outputs.items() if (found := referred(output)) is not None}
    if not wanted:
        return outputs
    statement = _COLUMNS + "job_id = %s and name = %s and id = any (%s)"
    rows = await db.rows(where, statement, (job_id, OUTPUT, builtins.list(wanted.values())))
    files = {artifact.id: artifact for artifact in (Artifact(*row) for row in rows)}
    whole = dict(outputs)
    for key, artifact_id in wanted.items():
        if (artifact := files.get(artifact_id)) is not None:
            whole[key] = json.loads(await app.storage.read(artifact.path, limit=MAX_OUTPUT))
    return whole


# What a client uploads


async def begin_upload(
    where: db.Pool | db.Connection,
    *,
    name: str,
    content_type: str,
    bytes: int,
    tenant_id: UUID | None = None,
    idempotency_key: str | None = None,
) -> Upload:
    """Make the record of a file that a client is about to upload. The same key gives the same one."""
    given = {"tenant_id": tenant_id and str(tenant_id), "idempotency_key": idempotency_key}
    [row] = await db.call(
        where,
        "begin_upload",
        p_name=content.clean_name(name),
        p_content_type=content.known(content_type),
        p_bytes=bytes,
        p_options={name: value for name, value in given.items() if value is not None},
    )
    return Upload(row["id"], row["tenant_id"], row["incoming"])


async def take_upload(where: db.Pool | db.Connection, *, artifact_id: UUID) -> db.Row:
    """Take an upload up to finish it: where it is, what it is said to be, and where its copy goes."""
    [row] = await db.call(where, "take_upload", p_artifact_id=artifact_id)
    return row


async def finish_upload(service: Acting, storage: Storage, *, artifact_id: UUID, taken: db.Row) -> None:
    """Check what was uploaded, and copy it to its place. Only the service may say that a file is whole.

    The client can write to the first place for as long as its URL is valid. What is checked here is what is
    kept, whatever happens there.
    """
    try:
        part = await storage.get(taken["incoming"])
    except NotFound:
        raise Conflict("nothing has been uploaded yet", code="not_uploaded") from None
    holder = {"p_artifact_id": artifact_id, "p_worker_id": None, "p_lease": taken["lease"]}
    async with _given_up_on_error(service, holder):
        head, data = await _beginning(part.chunks)
        headers = content.headers(content.check(taken["content_type"], head), taken["name"])
        stored = await storage.put(taken["path"], data, limit=taken["bytes"], headers=headers)
        await _finish(service, holder, stored)
    # What stays there after a crash has no record any more, and is swept.
    await storage.delete([taken["incoming"]])


# What there is


async def get(where: db.Pool | db.Connection, *, artifact_id: UUID) -> Artifact:
    """One artifact. Raises NotFound."""
    rows = await db.rows(where, _COLUMNS + "id = %s", (artifact_id,))
    if not rows:
        raise NotFound("there is no such artifact", code="unknown_artifact")
    return Artifact(*rows[0])


async def list(
    where: db.Pool | db.Connection,
    *,
    job_id: UUID,
    task_id: int | None = None,
    after: UUID | None = None,
    limit: int = 100,
) -> builtins.list[Artifact]:
    """A job's artifacts, or one task's, oldest first. The next page comes `after` the last id of this one."""
    statement = _COLUMNS + _OF_JOB
    rows = await db.rows(where, statement, (job_id, task_id, task_id, after, after, filters.page(limit)))
    return [Artifact(*row) for row in rows]


async def delete(where: db.Pool | db.Connection, *, artifact_id: UUID) -> bool:
    """Delete a file: for readers and the quota at once, from storage by the next sweep."""
    return await db.value(where, "delete_artifact", p_artifact_id=artifact_id)


# What is left over


async def is_awaited(where: db.Pool | db.Connection, *, path: str) -> bool:
    """Whether a file may still arrive here: not once it has been taken, or its upload was given up."""
    return bool(await db.rows(where, _AWAITED, (path.rpartition("/")[2], path)))


async def is_any_due(where: db.Pool) -> bool:
    """Whether there is a record to sweep."""
    [(found,)] = await db.rows(where, _DUE, ())
    return found


async def sweep(where: db.Pool, storage: Storage, *, orphans: bool = True, older_than: float = HOUR) -> Swept:
    """Remove what is deleted, given up or beyond its time; with `orphans`, also files without a record.

    Looking for those reads the whole list of files. Only files that are older than so many seconds count.
    """
    records = 0
    while count := await sweep_batch(where, storage):
        records += count
    files = 0
    if orphans:
        files += await storage.clear_partial(older_than)
        async for page in storage.list():
            old = [file.path for file in page if file.modified_at <= time.time() - older_than]
            files += await _sweep_files(where, storage, old)
    return Swept(records, files)


async def sweep_batch(where: db.Pool, storage: Storage) -> int:
    """Remove at most `BATCH` of what is deleted, given up or beyond its time. Returns how many that were."""
    # The rows stay locked until the files are gone: nobody begins to write there meanwhile.
    async with db.transaction(where) as held:
        due = await db.call(held, "due_artifacts", p_limit=BATCH)
        if due:
            await storage.delete(path for row in due for path in row["paths"])
            await db.call(held, "forget_artifacts", p_ids=[row["id"] for row in due])
    return len(due)


async def _sweep_files(where: db.Pool, storage: Storage, paths: builtins.list[str]) -> int:
    async with db.transaction(where) as held:
        rows = await db.call(held, "orphaned_artifacts", p_paths=paths)
        orphans = [row["orphaned_artifacts"] for row in rows]
        await storage.delete(orphans)
    return len(orphans)


async def missing(where: db.Pool, storage: Storage) -> AsyncGenerator[Artifact]:
    """Artifacts whose file is not there, or not of their size. There are none, unless files were touched."""
    after = UUID(int=0)
    while rows := await db.rows(where, _COLUMNS + "id > %s order by id limit 500", (after,)):
        for artifact in (Artifact(*row) for row in rows):
            after = artifact.id
            try:
                size = (await storage.head(artifact.path)).bytes
            except NotFound:
                size = None
            if size != artifact.bytes:
                yield artifact
