"""Jobs: forecast, start, read, watch, wait, pause, resume, cancel, retry."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, nullcontext
from functools import partial
from typing import Any, TypeAlias, Unpack
from uuid import UUID

from penstock.client import artifacts, progress, watching
from penstock.client.core import Core, identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.errors import JobFailed, NotFound, TimedOut
from penstock.formatting import seconds
from penstock.types import (
    OUTPUT,
    Attempt,
    Explanation,
    Forecast,
    Job,
    JobChange,
    JobOptions,
    JobStatus,
    LinkedArtifact,
    LogLine,
    StartableType,
    StreamChunk,
    Task,
    TaskStatus,
    exact,
    failure,
    referred,
)

Id: TypeAlias = UUID | str
TaskSpec: TypeAlias = Mapping[str, Any]


class StartedJob(Resource[IO]):
    """A handle to a started job."""

    def __init__(self, core: Core[IO], id: UUID) -> None:
        super().__init__(core)
        self.id = id

    def __repr__(self) -> str:
        return f"<started job {self.id}>"

    @call
    async def get(self) -> Job:
        """The job's current state."""
        return await _get(self._core, self.id)

    @listing
    def watch(self) -> AsyncGenerator[Job]:
        """Yield the job now and whenever it changes, until it ends."""
        return _watch(self._core, self.id)

    @call
    async def wait(self, timeout: float | str | None = None, *, progress: bool = False) -> Job:  # noqa: ASYNC109
        """Wait until the job ends. Raises JobFailed if it did not complete, TimedOut after `timeout`.

        With `progress`, shows the job's progress on stderr, if that is a terminal.
        """
        return await _wait(self._core, self.id, timeout, progress)

    @call
    async def outputs(self) -> dict[str, Any]:
        """The outputs of the job's tasks in order, by task key, or by id where a task has no key."""
        return await _outputs(self._core, self.id)

    @call
    async def result(self) -> Any:
        """The result of the completed job, as its body returned it; None before that. See `wait`."""
        return await _result(self._core, self.id)

    @call
    async def forecast(self) -> Forecast:
        """Forecast cost, usage and duration of the job's remaining tasks."""
        return await self._core.get(Forecast, path("/api/jobs/{}/forecast", self.id))


class Jobs(Resource[IO]):
    """Jobs, with their tasks."""

    # Starting

    @call
    async def start(
        self,
        type: str,
        params: Mapping[str, Any] | None = None,
        tasks: Iterable[TaskSpec] | None = None,
        **options: Unpack[JobOptions],
    ) -> StartedJob[IO]:
        """Start a job. Default for `tasks`: those that the server's app defines for this type.

        The same `idempotency_key` returns the same job. Without one, each call starts exactly one job, even
        if the response is lost and the request is retried.
        """
        key = options.pop("idempotency_key", None)
        body = self._body(type, params, tasks, options)
        answer = await self._core.request("POST", "/api/jobs/start", body=body, key=key)
        return StartedJob(self._core, answer.field(UUID, "id"))

    @call
    async def forecast(
        self,
        type: str,
        params: Mapping[str, Any] | None = None,
        tasks: Iterable[TaskSpec] | None = None,
        **options: Unpack[JobOptions],
    ) -> Forecast:
        """Forecast cost, usage and duration of a job with these arguments, without starting it."""
        options.pop("idempotency_key", None)
        body = self._body(type, params, tasks, options)
        return read(Forecast, (await self._core.request("POST", "/api/jobs/forecast", body=body)).json())

    @call
    async def add_tasks(self, job_id: Id, tasks: Iterable[TaskSpec]) -> builtins.list[int]:
        """Add tasks to a job that has not ended. Returns their ids."""
        answer = await self._core.request(
            "POST", _path("/api/jobs/{}/tasks", job_id), body={"tasks": builtins.list(tasks)}
        )
        return answer.field(builtins.list[int], "ids")

    # Reading

    @call
    async def types(self) -> builtins.list[StartableType]:
        """The types of jobs that the server's app knows, with the JSON schema of their params."""
        return await self._core.get(builtins.list[StartableType], "/api/job-types")

    @listing
    def list(
        self, filter: str = "", *, tenant_id: Id | None = None, limit: int | None = None
    ) -> AsyncGenerator[Job]:
        """Iterate over jobs, newest first, loading pages as needed. `filter`: such as `status:failed`."""
        query = {"filter": filter or None, "tenant_id": self._core.tenant_or_none(tenant_id)}
        return self._core.pages(watching.job_of, "/api/jobs", query, limit)

    @call
    async def get(self, job_id: Id) -> Job:
        """A job with its progress."""
        return await _get(self._core, identifier(job_id, "job_id"))

    @listing
    def tasks(
        self,
        job_id: Id,
        *,
        status: TaskStatus | None = None,
        kind: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Task]:
        """Iterate over a job's tasks in the order of creation."""
        return _tasks(self._core, identifier(job_id, "job_id"), status, kind, limit)

    @call
    async def task(self, job_id: Id, task_id: int) -> Task:
        """A task with its input and output."""
        return await self._core.get(Task, _path("/api/jobs/{}/tasks/{}", job_id, int(task_id)))

    @call
    async def explain(self, job_id: Id, task_id: int) -> Explanation:
        """Explain why a task is not running: what it waits for, how long, and its queue position."""
        return await self._core.get(Explanation, _path("/api/jobs/{}/tasks/{}/why", job_id, int(task_id)))

    @listing
    def attempts(
        self, job_id: Id, *, task_id: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[Attempt]:
        """Iterate over the failed attempts of a job's tasks, or of one task."""
        url_path = _path("/api/jobs/{}/attempts", job_id)
        return self._core.pages(partial(read, Attempt), url_path, {"task_id": task_id}, limit)

    @listing
    def logs(
        self, job_id: Id, *, task_id: int | None = None, limit: int | None = None
    ) -> AsyncGenerator[LogLine]:
        """Iterate over what the handlers of a job's tasks logged, or of one task, oldest first."""
        url_path = _path("/api/jobs/{}/logs", job_id)
        return self._core.pages(partial(read, LogLine), url_path, {"task_id": task_id}, limit)

    @listing
    def stream(self, job_id: Id, task_id: int) -> AsyncGenerator[StreamChunk]:
        """Iterate over what a task's handler streams, until the task ends. Broken streams are resumed.

        A chunk with another `lease` begins a new stream: the task was retried.
        """
        return watching.of_task(self._core, _path("/api/jobs/{}/tasks/{}/stream", job_id, int(task_id)))

    @call
    async def outputs(self, job_id: Id) -> dict[str, Any]:
        """The outputs of the job's tasks in order, by task key, or by id where a task has no key."""
        return await _outputs(self._core, identifier(job_id, "job_id"))

    @call
    async def result(self, job_id: Id) -> Any:
        """The result of a completed job, as its body returned it; None before that."""
        return await _result(self._core, identifier(job_id, "job_id"))

    @listing
    def artifacts(
        self, job_id: Id, *, expires_in: float | None = None, limit: int | None = None
    ) -> AsyncGenerator[LinkedArtifact]:
        """Iterate over a job's files, oldest first. `expires_in`: lifetime of URLs in seconds (an hour)."""
        return artifacts.of_job(self._core, identifier(job_id, "job_id"), expires_in, limit)

    @call
    async def forecast_rest(self, job_id: Id) -> Forecast:
        """Forecast cost, usage and duration of a job's remaining tasks."""
        return await self._core.get(Forecast, _path("/api/jobs/{}/forecast", job_id))

    # Waiting

    @listing
    def watch(self, job_id: Id) -> AsyncGenerator[Job]:
        """Yield the job now and whenever it changes, until it ends."""
        return _watch(self._core, identifier(job_id, "job_id"))

    @call
    async def wait(
        self,
        job_id: Id,
        timeout: float | str | None = None,  # noqa: ASYNC109 for the whole wait
        *,
        progress: bool = False,
    ) -> Job:
        """Wait until a job ends. Raises JobFailed if it did not complete, TimedOut after `timeout`.

        With `progress`, shows the job's progress on stderr, if that is a terminal.
        """
        return await _wait(self._core, identifier(job_id, "job_id"), timeout, progress)

    @listing
    async def changes(self, *, tenant_id: Id | None = None) -> AsyncGenerator[JobChange]:
        """Yield changes of a tenant's jobs as they happen. Ends only when the credential expires."""
        tenant = await self._core.tenant(tenant_id)
        async with aclosing(watching.of_tenant(self._core, tenant)) as changes:
            async for change in changes:
                yield change

    # Acting

    @call
    async def pause(self, job_id: Id, reason: str | None = None) -> JobStatus:
        """Pause a job: start no more of its tasks. Running tasks finish."""
        return await self._act(job_id, "pause", {"reason": reason})

    @call
    async def resume(self, job_id: Id) -> JobStatus:
        """Resume a paused job."""
        return await self._act(job_id, "resume", None)

    @call
    async def cancel(self, job_id: Id, reason: str | None = None) -> JobStatus:
        """Cancel a job. Running handlers are told to stop."""
        return await self._act(job_id, "cancel", {"reason": reason})

    @call
    async def retry(self, job_id: Id) -> int:
        """Retry failed tasks, and the tasks canceled because of them. Returns the number of failed tasks."""
        answer = await self._core.request("POST", _path("/api/jobs/{}/retry", job_id))
        return answer.field(int, "count")

    @call
    async def confirm(self, job_id: Id) -> int:
        """Release the tasks that wait for confirmation. Returns their number."""
        answer = await self._core.request("POST", _path("/api/jobs/{}/confirm", job_id))
        return answer.field(int, "count")

    async def _act(self, job_id: Id, verb: str, body: Any) -> JobStatus:
        answer = await self._core.request("POST", _path("/api/jobs/{}/" + verb, job_id), body=body)
        status: Any = answer.field(str, "status")
        return status

    def _body(
        self,
        type: str,
        params: Mapping[str, Any] | None,
        tasks: Iterable[TaskSpec] | None,
        options: JobOptions,
    ) -> dict[str, Any]:
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if "budget" in chosen:
            chosen["budget"] = format(exact(chosen["budget"], "budget"), "f")
        if "stop_after" in chosen:
            chosen["stop_after"] = str(chosen["stop_after"])
        chosen["tenant_id"] = self._core.tenant_or_none(chosen.get("tenant_id"))
        if tasks is not None:
            chosen["tasks"] = builtins.list(tasks)
        return {"type": type, "params": dict(params or {}), **chosen}


# Shared by Jobs and StartedJob


async def _get(core: Core[IO], job_id: UUID) -> Job:
    return watching.job_of((await core.request("GET", path("/api/jobs/{}", job_id))).json())


async def _watch(core: Core[IO], job_id: UUID) -> AsyncGenerator[Job]:
    last: Job | None = None
    async with aclosing(watching.states(core, job_id, None, at_each_change=True)) as jobs:
        async for job in jobs:
            if job != last:
                yield job
            last = job


async def _wait(core: Core[IO], job_id: UUID, timeout: float | str | None, shown: bool) -> Job:  # noqa: ASYNC109
    until = watching.deadline(timeout)
    display = progress.on_terminal() if shown else None
    last: Job | None = None
    try:
        with display or nullcontext():
            states = watching.states(core, job_id, until, at_each_change=display is not None)
            async with aclosing(states) as jobs:
                async for last in jobs:
                    if display is not None:
                        await display.show(core, last)
    except TimedOut as error:
        if timeout is None:
            raise
        raise TimedOut(f"job {job_id} did not end within {seconds(timeout):g} s") from error
    assert last is not None
    if last.status != "completed":
        raise await _failure(core, last)
    return last


async def _failure(core: Core[IO], job: Job) -> JobFailed:
    failed = [task async for task in _tasks(core, job.id, "failed", None, 1)]
    return failure(job, failed[0] if failed else None)


async def _result(core: Core[Any], job_id: UUID) -> Any:
    return (await core.request("GET", path("/api/jobs/{}/result", job_id))).json()["result"]


async def _outputs(core: Core[IO], job_id: UUID) -> dict[str, Any]:
    tasks = _tasks(core, job_id, "succeeded", None, None)
    found = {task.key or str(task.id): task.output async for task in tasks}
    for key, output in found.items():
        if (artifact_id := referred(output)) is not None:
            found[key] = await _read_back(core, job_id, artifact_id, output)
    return found


async def _read_back(core: Core[IO], job_id: UUID, artifact_id: UUID, output: Any) -> Any:
    """Load an output that is stored in a file of the same job. Any other value is returned unchanged."""
    try:
        file = await artifacts.get_linked(core, artifact_id)
    except NotFound:
        return output
    if file.job_id != job_id or file.name != OUTPUT:
        return output
    return json.loads(await artifacts.content(core, file))


def _tasks(
    core: Core[IO], job_id: UUID, status: TaskStatus | None, kind: str | None, limit: int | None
) -> AsyncGenerator[Task]:
    query = {"status": status, "kind": kind}
    return core.pages(partial(read, Task), path("/api/jobs/{}/tasks", job_id), query, limit)


def _path(template: str, job_id: Id, *others: int) -> str:
    return path(template, identifier(job_id, "job_id"), *others)
