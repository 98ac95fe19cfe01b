"""A simulated CloudConvert: jobs of tasks that import, convert and export a file, and signed webhooks.

The wire is that of API v2, as far as conversions of one file need it. Webhooks can get lost, come twice, too
early, too late, or after later ones; jobs can fail or never finish; requests get 402, 429, 500, or no answer
although the job exists.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import random
import re
import secrets
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import httpx

from penstock.errors import Invalid
from penstock.simulator import thumbnails
from penstock.simulator.cloudconvert_config import CloudConvertConfig, CloudConvertStats, Fault

API = "/v2/"
SECRET = "simulated-webhook-secret"  # noqa: S105 it signs nothing real
"""The signing secret of its webhooks."""

_IMPORTS, _EXPORT = ("import/upload", "import/url"), "export/url"
_TRIES = 3


@dataclass(slots=True)
class CloudConvertResponse:
    """A response. `is_lost`: it is never sent."""

    status: int
    document: Any = None
    body: bytes | None = None
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    is_lost: bool = False


class ApiProblem(Exception):
    """An error response."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


@dataclass(slots=True)
class _Task:
    id: str
    name: str
    operation: str
    options: dict[str, Any]
    status: str = "waiting"
    result: dict[str, Any] | None = None
    code: str | None = None
    message: str | None = None


@dataclass(slots=True)
class _Job:
    id: str
    tag: str | None
    webhook_url: str | None
    tasks: dict[str, _Task]
    created_at: float
    status: str = "waiting"
    ended_at: float | None = None
    file: bytes | None = None
    file_name: str = "file"
    made: bytes | None = None


class CloudConvertServer:
    """Jobs, files, webhooks and statistics."""

    def __init__(
        self,
        config: Callable[[], CloudConvertConfig],
        clock: Callable[[], float],
        *,
        seed: int = 0,
        speed: float = 1,
    ) -> None:
        self._config, self._clock, self._seed, self._speed = config, clock, seed, speed
        self.url = ""
        self.secret = SECRET
        self._running: set[asyncio.Task[None]] = set()
        self.reset()

    def reset(self) -> None:
        """Forget jobs, files and statistics."""
        self.jobs: dict[str, _Job] = {}
        self._files: dict[str, tuple[str, bytes, float]] = {}
        self._requests: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._webhooks: Counter[str] = Counter()
        self._tags: Counter[str] = Counter()
        self._disabled: set[str] = set()
        self._minute: tuple[int, int] = (0, 0)
        self.conversions = self.canceled = self.violations = 0
        self._chance, self._webhook_chance = random.Random(self._seed), random.Random(self._seed + 1)
        for task in list(self._running):
            task.cancel()

    async def aclose(self) -> None:
        """End running conversions and webhooks."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def stats(self) -> CloudConvertStats:
        """The statistics."""
        return {
            "requests": dict(self._requests),
            "statuses": dict(self._statuses),
            "jobs": len(self.jobs),
            "conversions": self.conversions,
            "canceled": self.canceled,
            "most_jobs_per_tag": max(self._tags.values(), default=0),
            "webhooks": dict(self._webhooks),
            "violations": self.violations,
        }

    # Requests

    async def respond(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> CloudConvertResponse:
        """Answer a request. `path` begins with /v2/."""
        parts = path.removeprefix(API).split("/")
        self._requests[f"{method} {parts[0]}"] += 1
        try:
            if body is None:
                raise ApiProblem(413, "PAYLOAD_TOO_LARGE", "The request is too large.")
            answer = await self._respond(method, parts, dict(query), headers, body)
        except ApiProblem as problem:
            answer = CloudConvertResponse(
                problem.status,
                {"message": problem.message, "code": problem.code},
                headers=problem.headers,
            )
        self._statuses["lost" if answer.is_lost else str(answer.status)] += 1
        return answer

    async def _respond(
        self, method: str, parts: list[str], query: dict[str, str], headers: Mapping[str, str], body: bytes
    ) -> CloudConvertResponse:
        match method, *parts:
            case "POST", "import", "upload", task_id:
                return self._upload(task_id, headers, body)
            case "GET", "files", token, _:
                return self._download(token)
            case _:
                pass
        if not headers.get("authorization", "").startswith("Bearer "):
            raise ApiProblem(401, "UNAUTHENTICATED", "Unauthenticated.")
        self._limit()
        fault = self._pick(self._chance, self._config().faults)
        if fault in ("402", "429", "500"):
            raise _FAULTS[cast("Fault", fault)]()
        match method, *parts:
            case "GET", "users", "me":
                left = max(0, self._config().credits - self.conversions)
                return CloudConvertResponse(
                    200, {"data": {"id": 1, "username": "simulated", "credits": left}}
                )
            case "POST", "jobs":
                job = self._create(_parsed(body))
                return CloudConvertResponse(201, {"data": self._document(job)}, is_lost=fault == "timeout")
            case "GET", "jobs":
                wanted = query.get("filter[tag]")
                found = [job for job in self.jobs.values() if wanted is None or job.tag == wanted]
                return CloudConvertResponse(200, {"data": [self._document(job) for job in found[-100:]]})
            case "GET", "jobs", job_id:
                return CloudConvertResponse(200, {"data": self._document(self._job(job_id))})
            case "DELETE", "jobs", job_id:
                self._delete(self._job(job_id))
                return CloudConvertResponse(204, body=b"")
            case _:
                raise ApiProblem(404, "NOT_FOUND", f"{method} /{'/'.join(parts)} not found")

    def _limit(self) -> None:
        most = self._config().requests_per_minute
        if most is None:
            return
        now = self._clock()
        minute, count = self._minute
        count = count + 1 if minute == int(now // 60) else 1
        self._minute = (int(now // 60), count)
        if count > most:
            self.violations += 1
            raise ApiProblem(
                429, "TOO_MANY_REQUESTS", "Too Many Attempts.", **{"Retry-After": str(60 - int(now % 60))}
            )

    def _job(self, job_id: str) -> _Job:
        if (job := self.jobs.get(job_id)) is None:
            raise ApiProblem(404, "NOT_FOUND", "No job with this id.")
        return job

    def _create(self, fields: dict[str, Any]) -> _Job:
        tasks = _checked(fields)
        if self._config().credits <= self.conversions:
            raise _FAULTS["402"]()
        job = _Job(str(uuid.uuid4()), fields.get("tag"), fields.get("webhook_url"), tasks, self._clock())
        self.jobs[job.id] = job
        if job.tag is not None:
            self._tags[job.tag] += 1
        for task in tasks.values():
            if task.operation == "import/upload":
                form = {
                    "url": f"{self.url}{API}import/upload/{task.id}",
                    "parameters": {"signature": task.id},
                }
                task.result = {"form": form}
            elif task.operation == "import/url":
                self._run(self._import(job, task))
        return job

    def _delete(self, job: _Job) -> None:
        if job.ended_at is None:
            self.canceled += 1
        del self.jobs[job.id]

    # Conversion

    def _upload(self, task_id: str, headers: Mapping[str, str], body: bytes) -> CloudConvertResponse:
        for job in self.jobs.values():
            for task in job.tasks.values():
                if task.id == task_id:
                    if task.status != "waiting":
                        raise ApiProblem(422, "INVALID_TASK_STATE", "The file was uploaded before.")
                    job.file_name, job.file = _uploaded(headers.get("content-type", ""), body)
                    self._imported(job, task)
                    return CloudConvertResponse(201, body=b"", media_type="text/plain")
        raise ApiProblem(404, "NOT_FOUND", "No task with this id.")

    async def _import(self, job: _Job, task: _Task) -> None:
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
                response = await client.get(str(task.options.get("url")))
                response.raise_for_status()
            job.file, job.file_name = response.content, str(task.options.get("filename") or "file")
            self._imported(job, task)
        except httpx.HTTPError as error:
            self._end(job, "DOWNLOAD_FAILED", f"Download failed: {error}"[:200])

    def _imported(self, job: _Job, task: _Task) -> None:
        task.status, task.result = "finished", {"files": [{"filename": job.file_name}]}
        job.status = "processing"
        for other in job.tasks.values():
            if other.operation in ("thumbnail", "convert"):
                other.status = "processing"
        self._run(self._convert(job))

    async def _convert(self, job: _Job) -> None:
        config = self._config()
        fault = self._pick(self._chance, config.job_faults)
        plan = self._pick(self._webhook_chance, config.webhook_faults)
        seconds = self._chance.uniform(*config.latency)
        if plan != "reordered":
            self._run(self._tell(job, "job.created"))
        if plan == "early":
            self._webhooks["early"] += 1
            self._run(self._tell(job, "job.finished"))
        if fault == "stuck":
            return
        await self._sleep(seconds)
        if job.id not in self.jobs:
            return
        if fault == "error":
            self._end(job, "INVALID_FILE", "The input file could not be read.", plan)
            return
        task = next(task for task in job.tasks.values() if task.operation in ("thumbnail", "convert"))
        options = task.options
        try:
            job.made = await asyncio.to_thread(
                thumbnails.render, job.file or b"", job.file_name,
                width=int(options.get("width") or 480),
                image_format=str(options.get("output_format") or "png"),
            )  # fmt: skip
        except Invalid as error:
            self._end(job, "INVALID_FILE", error.message, plan)
            return
        self.conversions += 1
        task.status, task.result = "finished", {"files": [{"filename": self._made_name(job)}]}
        self._end(job, None, None, plan)

    def _made_name(self, job: _Job) -> str:
        formats = [
            str(t.options["output_format"]) for t in job.tasks.values() if "output_format" in t.options
        ]
        return f"{job.file_name.rpartition('.')[0] or job.file_name}.{formats[0] if formats else 'png'}"

    def _end(self, job: _Job, code: str | None, message: str | None, plan: str | None = None) -> None:
        job.status, job.ended_at = "finished" if code is None else "error", self._clock()
        for task in job.tasks.values():
            if code is None:
                task.status = "finished"
            elif task.status != "finished":
                task.status, task.code, task.message = "error", code, message
        if plan != "early":
            self._run(self._tell_end(job, "job.finished" if code is None else "job.failed", plan))

    def _download(self, token: str) -> CloudConvertResponse:
        name, body, until = self._files.get(token, ("", b"", 0.0))
        if self._clock() > until:
            raise ApiProblem(403, "EXPIRED", "The URL has expired.")
        media = "image/jpeg" if name.endswith(("jpg", "jpeg")) else "image/png"
        return CloudConvertResponse(200, body=body, media_type=media)

    def _document(self, job: _Job) -> dict[str, Any]:
        if job.made is not None:
            for task in job.tasks.values():
                if task.operation == _EXPORT:
                    # A new URL for each answer, as theirs expire.
                    token = secrets.token_urlsafe(16)
                    name = self._made_name(job)
                    self._files[token] = (name, job.made, self._clock() + self._config().url_seconds)
                    file = {
                        "filename": name,
                        "size": len(job.made),
                        "url": f"{self.url}{API}files/{token}/{name}",
                    }
                    task.result = {"files": [file]}
        return {
            "id": job.id,
            "tag": job.tag,
            "status": job.status,
            "created_at": _time(job.created_at),
            "ended_at": None if job.ended_at is None else _time(job.ended_at),
            "tasks": [
                {
                    "id": task.id, "name": task.name, "operation": task.operation, "status": task.status,
                    "code": task.code, "message": task.message, "result": task.result,
                }
                for task in job.tasks.values()
            ],
        }  # fmt: skip

    # Webhooks

    async def _tell_end(self, job: _Job, event: str, plan: str | None) -> None:
        if plan in ("lost", "doubled", "late", "reordered"):
            self._webhooks[plan] += 1
        if plan == "lost":
            return
        if plan == "late":
            await self._sleep(self._config().late_seconds)
        await asyncio.gather(*[self._tell(job, event) for _ in range(2 if plan == "doubled" else 1)])
        if plan == "reordered":
            await self._tell(job, "job.created")

    async def _tell(self, job: _Job, event: str) -> None:
        if job.webhook_url is None or job.webhook_url in self._disabled:
            return
        # Their payload has no status for the job: the receiver has to ask.
        document = {**self._document(job), "status": None}
        body = json.dumps({"event": event, "job": document}).encode()
        signature = hmac.new(self.secret.encode(), body, "sha256").hexdigest()
        headers = {"CloudConvert-Signature": signature, "Content-Type": "application/json"}
        for number in range(_TRIES):
            with suppress(httpx.HTTPError):
                async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
                    status = (await client.post(job.webhook_url, content=body, headers=headers)).status_code
                if status == 410:
                    self._disabled.add(job.webhook_url)
                if status < 500:
                    self._webhooks["sent" if status < 300 else "refused"] += 1
                    return
            await self._sleep(2**number)

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    def _pick(self, chance: random.Random, shares: Mapping[Any, float]) -> str | None:
        drawn = chance.random()
        for name, share in shares.items():
            drawn -= share
            if drawn < 0:
                return name
        return None


_FAULTS: dict[Fault, Callable[[], ApiProblem]] = {
    "402": lambda: ApiProblem(402, "CREDITS_EXCEEDED", "You have no credits left."),
    "429": lambda: ApiProblem(429, "TOO_MANY_REQUESTS", "Too Many Attempts.", **{"Retry-After": "1"}),
    "500": lambda: ApiProblem(500, "SERVER_ERROR", "Server error."),
}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise ApiProblem(422, "INVALID_DATA", "The body must be a JSON object.")
    return cast("dict[str, Any]", fields)


def _checked(fields: dict[str, Any]) -> dict[str, _Task]:
    """The tasks of a new job: an import, a conversion of it, and an export of that."""
    given = fields.get("tasks")
    if not isinstance(given, dict) or not given:
        raise ApiProblem(422, "INVALID_DATA", "The tasks field is required.")
    tasks: dict[str, _Task] = {}
    for name, value in cast("dict[str, Any]", given).items():
        options = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        operation = options.get("operation")
        if operation not in (*_IMPORTS, "thumbnail", "convert", _EXPORT):
            raise ApiProblem(422, "INVALID_DATA", f"The operation of {name} is unknown.")
        if operation not in _IMPORTS and options.get("input") not in cast("dict[str, Any]", given):
            raise ApiProblem(422, "INVALID_DATA", f"The input of {name} is not a task of this job.")
        tasks[name] = _Task(str(uuid.uuid4()), name, str(operation), options)
    kinds = Counter(task.operation for task in tasks.values())
    if sum(kinds[each] for each in _IMPORTS) != 1 or kinds["thumbnail"] + kinds["convert"] != 1:
        raise ApiProblem(422, "INVALID_DATA", "The simulator needs one import and one conversion in a job.")
    for name in ("tag", "webhook_url"):
        if not isinstance(fields.get(name), str | None):
            raise ApiProblem(422, "INVALID_DATA", f"The {name} field must be a string.")
    return tasks


def _uploaded(content_type: str, body: bytes) -> tuple[str, bytes]:
    """The name and the bytes of the field `file` of a form."""
    boundary = re.search(r'boundary="?([^";]+)', content_type)
    for part in body.split(b"--" + boundary[1].encode()) if boundary else ():
        head, _, data = part.partition(b"\r\n\r\n")
        if b'name="file"' in head:
            name = re.search(rb'filename="([^"]*)"', head)
            return name[1].decode("utf-8", "replace") if name else "file", data.removesuffix(b"\r\n")
    raise ApiProblem(422, "INVALID_DATA", "The form has no field named file.")
