"""The database calls of a handler's operation, made again while the database is down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.contract import operations
from penstock.postgres import db

if TYPE_CHECKING:
    from penstock.sdk.context import Context

Retry = Callable[..., Awaitable[Any]]


class Operations:
    """Each call is idempotent, because it may be made twice."""

    def __init__(self, pool: db.Pool, retry: Retry) -> None:
        self._pool, self._retry = pool, retry

    async def unfinished(self, ctx: Context) -> list[dict[str, Any]]:
        call = partial(operations.unfinished, self._pool, job_id=ctx.job_id, task_id=ctx.task_id)
        return await self._retry(ctx, call)

    async def provider(self, ctx: Context) -> str | None:
        call = partial(operations.provider_of, self._pool, job_id=ctx.job_id, task_id=ctx.task_id)
        return await self._retry(ctx, call)

    async def begin(self, ctx: Context, object: str, seconds: float) -> dict[str, Any]:
        by = {"task_id": ctx.task_id, "worker_id": ctx.worker_id, "lease": ctx.lease}
        return await self._retry(
            ctx, partial(operations.begin, self._pool, object=object, seconds=seconds, **by)
        )

    async def submit(self, ctx: Context, operation_id: str, external_id: str) -> None:
        await self._call(ctx, operations.submit, operation_id, external_id=external_id)

    async def note_check(self, ctx: Context, operation_id: str) -> None:
        await self._call(ctx, operations.note_check, operation_id)

    async def settle(self, ctx: Context, operation_id: str, outcome: str, values: dict[str, Any]) -> str:
        return await self._call(ctx, operations.settle, operation_id, outcome=outcome, values=values)

    async def _call(self, ctx: Context, call: Any, operation_id: str, **values: Any) -> Any:
        by = {"operation_id": operation_id, "worker_id": ctx.worker_id, "lease": ctx.lease}
        return await self._retry(ctx, partial(call, self._pool, **by, **values))
