"""Waits: tasks that wait for an answer or a time, and the stored steps of handlers."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString
from uuid import UUID

from penstock.contract import filters
from penstock.errors import NotFound
from penstock.postgres import db
from penstock.types import TaskWait

FIELDS: Mapping[str, filters.Field] = {
    "id": filters.ids("id"),
    "job": filters.ids("job_id"),
    "task": filters.numbers("task_id"),
    "name": filters.words("name"),
    "status": filters.words("status", ("open", "answered", "timeout", "canceled")),
    "tenant": filters.tenant("tenant_id"),
    "age": filters.age("asked_at"),
}

_WAITS: LiteralString = """\
select id, tenant_id, job_id, task_id, task_kind, task_key, name, message, options, fields, roles,
  default_option, asked_at, nullif(until, 'infinity'), status, option, payload, ended_at, ended_by
from penstock.wait_list where """


# For people and other systems


async def list(
    database: db.Database,
    *,
    filter: str = "",
    tenant_ids: Sequence[UUID] | None = None,
    before: UUID | None = None,
    limit: int = 50,
) -> builtins.list[TaskWait]:
    """Waits for an answer, newest first. The next page is `before` the id of the last one of this page."""
    chosen = [*await filters.conditions(database, filter, FIELDS)]
    if tenant_ids is not None:
        chosen.append(("tenant_id = any (%s)", [builtins.list(tenant_ids)]))
    if before is not None:
        chosen.append(("id < %s", [before]))
    condition, values = filters.every(chosen)
    statement = _WAITS + condition + " order by id desc limit %s"
    rows = await db.rows(database, statement, [*values, filters.page(limit)])
    return [TaskWait(*row) for row in rows]


async def get(database: db.Database, *, wait_id: UUID) -> TaskWait:
    """One wait for an answer."""
    rows = await db.rows(database, _WAITS + "id = %s", (wait_id,))
    if not rows:
        raise NotFound("there is no such wait", code="unknown_wait")
    return TaskWait(*rows[0])


async def answer(
    database: db.Database,
    *,
    wait_id: UUID,
    option: str | None = None,
    payload: Mapping[str, Any] | None = None,
) -> bool:
    """Answer a wait. Returns False if the caller has given the same answer before."""
    return await db.value(
        database, "answer_wait", p_wait_id=wait_id, p_option=option, p_payload=dict(payload or {})
    )


async def linked(database: db.Database, *, token: str) -> dict[str, Any]:
    """What a link asks: name, message, options, fields, status, option, until."""
    return await db.value(database, "get_wait_link", p_token=token)


async def answer_link(
    database: db.Database, *, token: str, option: str | None, payload: Mapping[str, Any]
) -> bool:
    """Answer the wait of a link."""
    return await db.value(database, "answer_link", p_token=token, p_option=option, p_payload=dict(payload))


# For workers


async def open(
    database: db.Database, *, task_id: int, worker_id: str, lease: int, name: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Open a wait of a running task, or find the one with this name. `outcome` is None while it is open."""
    return await db.value(
        database,
        "open_wait",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_name=name,
        p_options=dict(options),
    )


async def park(database: db.Database, *, task_id: int, worker_id: str, lease: int, wait_id: UUID) -> str:
    """End the lease of a task that waits. Returns parked, queued (it is over), lease_lost or canceled."""
    return await db.value(
        database, "park_task", p_task_id=task_id, p_worker_id=worker_id, p_lease=lease, p_wait_id=wait_id
    )


async def steps(database: db.Database, *, job_id: UUID, task_id: int) -> dict[str, Any]:
    """The results of the finished steps of a task, by name."""
    rows = await db.call(database, "get_steps", p_job_id=job_id, p_task_id=task_id)
    return {row["name"]: row["output"] for row in rows}


async def store_step(
    database: db.Database, *, task_id: int, worker_id: str, lease: int, name: str, output: Any
) -> Any:
    """Store the result of a step; returns the stored one, which may be an earlier result of this name."""
    [row] = await db.call(
        database,
        "store_step",
        p_task_id=task_id,
        p_worker_id=worker_id,
        p_lease=lease,
        p_name=name,
        p_output=db.Json(output),
    )
    return row["store_step"]
