"""Files of tasks over HTTP, for workers in any language that have no credentials of the storage.

A worker that holds a task announces a file, uploads it to a signed URL, and finishes it. Each step needs the
lease, so a worker that has lost it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from penstock.api.artifacts import ArtifactId, UploadResponse, storage_of
from penstock.api.callers import Caller, Callers
from penstock.api.fields import NUMERIC, RequestModel
from penstock.api.limits import Limits, read_body, read_json
from penstock.api.pages import LARGEST
from penstock.api.routes import Route, identify, router, with_body
from penstock.contract import artifacts, task_uploads
from penstock.errors import Forbidden, Unauthenticated
from penstock.postgres import db

TaskId = Annotated[int, Path(ge=1, le=LARGEST, description="Task id, from `claim_tasks`.")]


class Holder(RequestModel):
    """The worker that holds the task."""

    worker_id: str = Field(max_length=200, examples=["worker-7"])
    lease: Annotated[
        int | None,
        Field(
            None,
            ge=1,
            le=LARGEST,
            description="The lease number from `claim_tasks`. Default: the live lease.",
        ),
        NUMERIC,
    ]


class TaskUploadRequest(Holder):
    """A file that the task will upload."""

    name: str = Field("", max_length=200, examples=["chapter1.mp3"])
    content_type: str = Field(max_length=200, examples=["audio/mpeg"])
    bytes: Annotated[
        int, Field(ge=0, le=LARGEST, description="Size of the file. A larger upload is rejected."), NUMERIC
    ]


class TaskUploadFinish(Holder):
    """What the uploaded file is."""

    type: str | None = Field(
        None, max_length=63, description="Default: from the content type.", examples=["audio_mp3"]
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict[str, Any],
        description="Such as `pages`, or `duration` in seconds.",
        examples=[{"duration": 180.5}],
    )


class TaskFileResponse(BaseModel):
    """The reference of a stored file, for the output of its task."""

    artifact_id: UUID
    path: str
    name: str
    content_type: str
    bytes: int
    sha256: str


class WorkerRoute(Route):
    """A route for service credentials with the scope `work`, worker keys too. Opens its own transactions."""

    scope = "work"
    is_for_service = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = APIRoute.get_route_handler(self)

        async def answer(request: Request) -> Response:
            caller = await self._caller(request)
            callers: Callers = request.app.state.callers
            limits: Limits = request.app.state.limits
            with callers.counting(caller):
                body = await read_body(request, limits)
            again = with_body(request, body)
            # FastAPI uses the value that has already been parsed.
            again._json = read_json(body, limits)  # pyright: ignore[reportPrivateUsage]
            return await handle(again)

        return answer

    async def _caller(self, request: Request) -> Caller:
        caller = await identify(request)
        if caller.role == "anon":
            raise Unauthenticated
        if caller.role != "service_role":
            raise Forbidden("this requires a service credential or a worker key")
        caller.require(self.scope)
        return caller


routes = router("artifacts", WorkerRoute)


@routes.post("/tasks/{task_id}/artifacts", status_code=201)
async def begin_task_upload(
    request: Request, task_id: TaskId, announced: TaskUploadRequest
) -> UploadResponse:
    """Announce a file of a task that you hold, and get the URL to upload it to."""
    callers: Callers = request.app.state.callers
    async with callers.acting(request.state.caller) as conn:
        begun = await task_uploads.begin(conn, task_id=task_id, **announced.model_dump())
    storage = storage_of(request)
    url = await storage.url(
        "PUT",
        begun["incoming"],
        base=str(request.base_url),
        tenant=str(begun["tenant_id"]),
        limit=str(announced.bytes),
    )
    finish = str(request.url_for("finish_task_upload", task_id=task_id, artifact_id=str(begun["id"])))
    return UploadResponse(
        id=begun["id"],
        tenant_id=begun["tenant_id"],
        url=url,
        finish=finish,
        expires_in=int(storage.lifetime()),
    )


@routes.post("/tasks/{task_id}/artifacts/{artifact_id}/finish")
async def finish_task_upload(
    request: Request, task_id: TaskId, artifact_id: ArtifactId, sent: TaskUploadFinish
) -> TaskFileResponse:
    """Finish an upload: check the file and store it. Repeating the request changes nothing."""
    callers: Callers = request.app.state.callers
    as_worker = partial(callers.acting, request.state.caller)
    holder: dict[str, Any] = {"worker_id": sent.worker_id, "lease": sent.lease}

    async def take() -> db.Row:
        async with as_worker() as conn:
            return await task_uploads.take(conn, task_id=task_id, artifact_id=artifact_id, **holder)

    taken = await take()
    if not taken["is_stored"]:
        await artifacts.finish_upload(
            as_worker,
            storage_of(request),
            artifact_id=artifact_id,
            taken=taken,
            worker_id=sent.worker_id,
            type=sent.type,
            metadata=sent.metadata,
            # Another worker may have stored its own file at the same path while this one was copied.
            confirm=take,
        )
    async with as_worker(read_only=True) as conn:
        found = await artifacts.get(conn, artifact_id=artifact_id)
    values = {name: getattr(found, name) for name in TaskFileResponse.model_fields if name != "artifact_id"}
    return TaskFileResponse(artifact_id=artifact_id, **values)
