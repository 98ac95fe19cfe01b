"""The tools: thin calls of the Python client, under the caller's own key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Annotated, Any, TypeAlias, cast

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from penstock.client import AsyncClient
from penstock.errors import PenstockError
from penstock.mcp.answers import bounded
from penstock.types import JobStatus, TaskStatus

MAX_ITEMS = 50
MAX_WATCH_SECONDS = 600

Opening: TypeAlias = Callable[[Context[Any, Any]], AbstractAsyncContextManager[AsyncClient]]
"""Opens a client with the key of the request's caller."""
Asking: TypeAlias = Context[Any, Any]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ITEMS, description="Maximum number of items.")]
JobId: TypeAlias = Annotated[str, Field(description="The id of a job, a UUID.")]
TaskId: TypeAlias = Annotated[int, Field(ge=1, description="The id of a task of the job.")]
Params: TypeAlias = Annotated[dict[str, Any], Field(description="By name: see list_job_types.")]
Answer: TypeAlias = dict[str, Any]

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def add_to(server: MCPServer[Any], opening: Opening, allowed: frozenset[str]) -> None:
    """Add the tools that read, and those that change if they are allowed."""
    tools = Tools(opening)
    for read in (
        tools.list_job_types, tools.list_jobs, tools.get_job, tools.watch_job, tools.list_tasks,
        tools.get_task, tools.explain_task, tools.list_failed_attempts, tools.read_log, tools.read_stream,
        tools.forecast_job, tools.get_job_cost, tools.get_costs, tools.get_usage, tools.get_bulk,
    ):  # fmt: skip
        server.add_tool(read, annotations=_READS, structured_output=True)
    changes: dict[str, tuple[Any, ToolAnnotations]] = {
        "start": (tools.start_job, _CHANGES),
        "retry": (tools.retry_job, _CHANGES),
        "pause": (tools.pause_job, _CHANGES),
        "resume": (tools.resume_job, _CHANGES),
        "cancel": (tools.cancel_job, _ENDS),
    }
    for verb, (tool, hints) in changes.items():
        if verb in allowed:
            server.add_tool(tool, annotations=hints, structured_output=True)


class Tools:
    """Each public method is a tool; its docstring and types are what a model reads."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening

    # Reading

    async def list_job_types(self, ctx: Asking) -> Answer:
        """List the types of jobs that can be started, each with the JSON schema of its params."""
        return await self._ask(ctx, lambda client: client.jobs.types())

    async def list_jobs(self, ctx: Asking, filter: str = "", limit: Limit = 20) -> Answer:
        """List jobs, newest first. Filter: such as `status:failed`, `type:report`, `age:<1h`."""
        return await self._ask(ctx, lambda client: _listed(client.jobs.list(filter, limit=limit)))

    async def get_job(self, ctx: Asking, job_id: JobId) -> Answer:
        """Get a job with its status, progress and result."""

        async def get(client: AsyncClient) -> Any:
            job = await client.jobs.get(job_id)
            result = await client.jobs.result(job_id) if job.status == "completed" else None
            return {"job": job, "result": result}

        return await self._ask(ctx, get)

    async def watch_job(
        self, ctx: Asking, job_id: JobId,
        seconds: Annotated[int, Field(ge=1, le=MAX_WATCH_SECONDS, description="How long to wait.")] = 60,
    ) -> Answer:  # fmt: skip
        """Wait until a job ends, up to the given number of seconds, and report its progress."""

        async def watch(client: AsyncClient) -> Any:
            job = await client.jobs.get(job_id)
            try:
                async with asyncio.timeout(seconds), aclosing(_generator(client.jobs.watch(job_id))) as jobs:
                    async for job in jobs:
                        await ctx.report_progress(job.progress.percent, 100, f"{job.status}")
            except TimeoutError:
                pass
            return {"job": job, "has_ended": job.is_ended}

        return await self._ask(ctx, watch)

    async def list_tasks(
        self, ctx: Asking, job_id: JobId, status: TaskStatus | None = None, limit: Limit = 20
    ) -> Answer:
        """List the tasks of a job with their state, in the order of creation."""
        return await self._ask(
            ctx, lambda client: _listed(client.jobs.tasks(job_id, status=status, limit=limit))
        )

    async def get_task(self, ctx: Asking, job_id: JobId, task_id: TaskId) -> Answer:
        """Get a task with its input, output and error."""
        return await self._ask(ctx, lambda client: client.jobs.task(job_id, task_id))

    async def explain_task(self, ctx: Asking, job_id: JobId, task_id: TaskId) -> Answer:
        """Explain why a task does not run: what it waits for, how long, and its place in the queue."""
        return await self._ask(ctx, lambda client: client.jobs.explain(job_id, task_id))

    async def list_failed_attempts(
        self, ctx: Asking, job_id: JobId, task_id: TaskId | None = None, limit: Limit = 20
    ) -> Answer:
        """List the failed attempts of a job, or of one task, with their errors."""
        return await self._ask(
            ctx, lambda client: _listed(client.jobs.attempts(job_id, task_id=task_id, limit=limit))
        )

    async def read_log(
        self, ctx: Asking, job_id: JobId, task_id: TaskId | None = None, limit: Limit = 50
    ) -> Answer:
        """Read what the handlers of a job logged, oldest first."""
        return await self._ask(
            ctx, lambda client: _listed(client.jobs.logs(job_id, task_id=task_id, limit=limit))
        )

    async def read_stream(
        self, ctx: Asking, job_id: JobId, task_id: TaskId,
        seconds: Annotated[int, Field(ge=1, le=60, description="How long to follow.")] = 2,
    ) -> Answer:  # fmt: skip
        """Read what a task's handler streams, such as the tokens of a model."""

        async def follow(client: AsyncClient) -> Any:
            parts: list[Any] = []
            try:
                chunks = _generator(client.jobs.stream(job_id, task_id))
                async with asyncio.timeout(seconds), aclosing(chunks):
                    async for chunk in chunks:
                        parts += chunk.parts
            except TimeoutError:
                pass
            texts = "".join(part for part in parts if isinstance(part, str))
            return {"parts": {"text": texts, "events": [part for part in parts if not isinstance(part, str)]}}

        return await self._ask(ctx, follow)

    async def forecast_job(self, ctx: Asking, type: str, params: Params | None = None) -> Answer:
        """Forecast cost, usage and duration of a job, without starting it."""
        return await self._ask(ctx, lambda client: client.jobs.forecast(type, params))

    async def get_job_cost(self, ctx: Asking, job_id: JobId) -> Answer:
        """Get what a job cost so far, its budget, and a forecast of the rest while it runs."""

        async def cost(client: AsyncClient) -> Any:
            found = await client.costs.of_job(job_id)
            is_ended = (await client.jobs.get(job_id)).is_ended
            return {"cost": found, "rest": None if is_ended else await client.jobs.forecast_rest(job_id)}

        return await self._ask(ctx, cost)

    async def get_costs(self, ctx: Asking) -> Answer:
        """Get the tenant's costs of the last days, by day and provider."""
        return await self._ask(ctx, lambda client: client.costs.sums())

    async def get_usage(self, ctx: Asking) -> Answer:
        """Get the tenant's plan, and what it has used and has left of each meter."""
        return await self._ask(ctx, lambda client: client.usage.status())

    async def get_bulk(self, ctx: Asking, job_id: JobId) -> Answer:
        """Get the status of a bulk job: its rows by state, its cost, and why it paused."""
        return await self._ask(ctx, lambda client: client.bulks.get(job_id))

    # Changing

    async def start_job(
        self, ctx: Asking, type: str, params: Params | None = None,
        idempotency_key: Annotated[
            str | None, Field(description="Repeat a call with the same key: it starts no second job.")
        ] = None,
    ) -> Answer:  # fmt: skip
        """Start a job. Then call watch_job with its id."""

        async def start(client: AsyncClient) -> Any:
            job = await client.jobs.start(type, params, idempotency_key=idempotency_key)
            return {"job_id": job.id}

        return await self._ask(ctx, start)

    async def retry_job(self, ctx: Asking, job_id: JobId) -> Answer:
        """Retry the failed tasks of a job."""

        async def retry(client: AsyncClient) -> Any:
            return {"failed_tasks": await client.jobs.retry(job_id)}

        return await self._ask(ctx, retry)

    async def pause_job(self, ctx: Asking, job_id: JobId, reason: str | None = None) -> Answer:
        """Pause a job: start no more of its tasks. Running tasks finish."""
        return await self._act(ctx, lambda client: client.jobs.pause(job_id, reason))

    async def resume_job(self, ctx: Asking, job_id: JobId) -> Answer:
        """Resume a paused job."""
        return await self._act(ctx, lambda client: client.jobs.resume(job_id))

    async def cancel_job(self, ctx: Asking, job_id: JobId, reason: str | None = None) -> Answer:
        """Cancel a job permanently. Running handlers are told to stop."""
        return await self._act(ctx, lambda client: client.jobs.cancel(job_id, reason))

    async def _act(
        self, ctx: Asking, call: Callable[[AsyncClient], Coroutine[Any, Any, JobStatus]]
    ) -> Answer:
        async def act(client: AsyncClient) -> Any:
            return {"status": await call(client)}

        return await self._ask(ctx, act)

    async def _ask(self, ctx: Asking, call: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Answer:
        """Make the call as the caller. Errors carry the API's code."""
        try:
            async with self._opening(ctx) as client:
                return bounded(await call(client))
        except PenstockError as error:
            hint = f". {error.hint}" if error.hint else ""
            raise ToolError(f"{error.code}: {error.message[:1000]}{hint[:500]}") from None


async def _listed(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


@asynccontextmanager
async def shared(client: AsyncClient) -> AsyncGenerator[AsyncClient]:
    """A client that stays open after the call."""
    yield client


def _generator(items: AsyncIterator[Any]) -> AsyncGenerator[Any]:
    """The client's listings are generators, which have to be closed."""
    return cast("AsyncGenerator[Any]", items)
