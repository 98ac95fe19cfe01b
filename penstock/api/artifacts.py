"""Artifacts over HTTP: lists with signed URLs, uploads, and files in the local folder."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import datetime
from email.utils import formatdate
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from penstock.api.callers import Caller, Callers
from penstock.api.fields import NUMERIC, RequestModel
from penstock.api.isolated import Isolated
from penstock.api.limits import Limits, arriving
from penstock.api.pages import LARGEST, LimitQuery, Page, UuidCursor, page
from penstock.api.routes import PROBLEMS, Conn, Route, StartRoute
from penstock.api.routes import router as routes_for
from penstock.api.shares import Flight
from penstock.contract import artifacts, jobs
from penstock.errors import Conflict, Gone, Invalid, LeaseLost, NotFound, TimedOut, TooLarge
from penstock.sdk.app import App
from penstock.storage import content
from penstock.storage import objects as storages
from penstock.storage.objects import File, Folder, Storage
from penstock.types import Artifact

_SERVICE = Caller("service_role", {"role": "service_role"})
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
# Stored files must not run scripts on this origin.
_SANDBOX = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
_GUARDS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, max-age=0, must-revalidate",
}

SecondsQuery = Annotated[
    float | None,
    Query(
        ge=1,
        le=7 * 86400,
        description="Seconds that the URLs are valid. Default: an hour. The server may set a lower maximum.",
    ),
]
ArtifactId = Annotated[UUID, Path(description="Artifact id.")]


class ArtifactResponse(BaseModel):
    """A file with a signed URL."""

    id: UUID
    tenant_id: UUID
    job_id: UUID | None
    task_id: int | None
    name: str = Field(examples=["report.pdf"])
    path: str
    content_type: str = Field(examples=["application/pdf"])
    bytes: int
    sha256: str
    created_at: datetime
    stored_at: datetime
    type: str = Field(description="From the task, or from the content type.", examples=["audio_mp3"])
    metadata: dict[str, Any] = Field(description="What the task says about the file.")
    pages: int | None = Field(description="`metadata.pages`.")
    duration: float | None = Field(description="`metadata.duration`, in seconds.", examples=[180.5])
    url: str = Field(description="Signed URL: anyone who has it can read the file until it expires.")


class UploadRequest(RequestModel):
    """A file to upload."""

    name: str = Field(max_length=1000, examples=["scan.pdf"])
    content_type: str = Field(max_length=200, examples=["application/pdf"])
    bytes: Annotated[
        int,
        Field(
            ge=0, le=LARGEST, examples=[48213], description="Size of the file. A larger upload is rejected."
        ),
        NUMERIC,
    ]
    tenant_id: UUID | None = None


class UploadResponse(BaseModel):
    """Where to upload the file: `PUT` it to `url`, then `POST` to `finish`."""

    id: UUID
    tenant_id: UUID
    method: str = "PUT"
    url: str
    finish: str
    expires_in: int = Field(description="Seconds until `url` expires.")


def storage_of(request: Request) -> Storage:
    """The application's storage, opened on first use."""
    state = request.app.state
    if not hasattr(state, "storage"):
        state.storage = storages.of(state.settings)
    return state.storage


async def linked(
    request: Request, found: list[Artifact], seconds: float | None = None
) -> list[ArtifactResponse]:
    """Add signed URLs to artifacts."""
    return [
        ArtifactResponse(
            **{name: getattr(artifact, name) for name in ArtifactResponse.model_fields if name != "url"},
            url=await _url(request, artifact, seconds),
        )
        for artifact in found
    ]


async def _url(request: Request, artifact: Artifact, seconds: float | None) -> str:
    return await storage_of(request).url(
        "GET",
        artifact.path,
        base=str(request.base_url),
        seconds=seconds,
        tenant=str(artifact.tenant_id),
        type=artifact.content_type,
        name=artifact.name or artifact.path.rsplit("/", 1)[-1],
    )


# Under /api

routes = routes_for("artifacts")


@routes.get("/jobs/{job_id}/artifacts")
async def list_artifacts(
    request: Request,
    conn: Conn,
    job_id: UUID,
    cursor: UuidCursor = None,
    limit: LimitQuery = 50,
    expires_in: SecondsQuery = None,
) -> Page[ArtifactResponse]:
    """List a job's files, oldest first, each with a signed URL."""
    await jobs.get(conn, job_id=job_id)
    found = await artifacts.list(conn, job_id=job_id, after=cursor, limit=limit + 1)
    return page(await linked(request, found, expires_in), limit, lambda each: each.id)


@routes.get("/artifacts/{artifact_id}", status_code=307, response_description="Redirect to a signed URL.")
async def get_artifact(
    request: Request, response: Response, conn: Conn, artifact_id: ArtifactId, expires_in: SecondsQuery = None
) -> ArtifactResponse:
    """Redirect to a signed URL of the file. The body describes the file."""
    artifact = await artifacts.get(conn, artifact_id=artifact_id)
    [answer] = await linked(request, [artifact], expires_in)
    response.headers["Location"] = answer.url
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return answer


@routes.delete("/artifacts/{artifact_id}", status_code=204)
async def delete_artifact(conn: Conn, artifact_id: ArtifactId) -> None:
    """Delete a file. It disappears from lists immediately and from storage soon after."""
    await artifacts.delete(conn, artifact_id=artifact_id)


# The SQL function stores the idempotency key, because the response has a signed URL, which is never stored.
begin_routes = routes_for("artifacts", StartRoute)


@begin_routes.post("/uploads", status_code=201)
async def begin_upload(
    request: Request,
    conn: Conn,
    announced: UploadRequest,
    idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
) -> UploadResponse:
    """Begin an upload and get its URL. The same idempotency key returns the same upload, with a new URL."""
    kind = content.known(announced.content_type)
    if kind not in content.UPLOADS:
        raise Invalid(
            f"content type {kind} is not accepted",
            code="wrong_type",
            hint=f"Accepted types: {', '.join(sorted(content.UPLOADS))}.",
            details={"field": "content_type"},
        )
    upload = await artifacts.begin_upload(
        conn,
        name=announced.name,
        content_type=kind,
        bytes=announced.bytes,
        tenant_id=announced.tenant_id,
        idempotency_key=idempotency_key,
    )
    storage = storage_of(request)
    url = await storage.url(
        "PUT",
        upload.incoming,
        base=str(request.base_url),
        tenant=str(upload.tenant_id),
        limit=str(announced.bytes),
    )
    finish = str(request.url_for("finish_upload", artifact_id=str(upload.id)))
    return UploadResponse(
        id=upload.id,
        tenant_id=upload.tenant_id,
        url=url,
        finish=finish,
        expires_in=int(storage.lifetime()),
    )


class MovingRoute(Route):
    """A route that moves files. Opens short transactions instead of one for the whole request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = APIRoute.get_route_handler(self)

        async def answer(request: Request) -> Response:
            await self._caller(request)
            # The operation is idempotent, so the key is not stored, but it is validated like everywhere else.
            if not 1 <= len(request.headers.get("idempotency-key", "-")) <= 255:
                raise Invalid("Idempotency-Key must have 1 to 255 characters", code="invalid_key")
            return await handle(request)

        return answer


moving_routes = routes_for("artifacts", MovingRoute)


@moving_routes.post("/uploads/{artifact_id}/finish")
async def finish_upload(request: Request, artifact_id: ArtifactId) -> ArtifactResponse:
    """Finish an upload: check the file and store it. Repeating the request changes nothing."""
    callers: Callers = request.app.state.callers
    as_caller = partial(callers.acting, request.state.caller)
    try:
        async with as_caller() as conn:
            taken = await artifacts.take_upload(conn, artifact_id=artifact_id)
    except Conflict as error:
        if error.details.get("status") != "stored":
            raise
    else:
        service = partial(callers.acting, _SERVICE)
        try:
            finish = await _app_finish(request, service, artifact_id)
            await artifacts.finish_upload(
                service, storage_of(request), artifact_id=artifact_id, taken=taken, finish=finish
            )
        except LeaseLost as error:
            raise Conflict("another request is finishing this upload", hint="Try again.") from error
    async with as_caller(read_only=True) as conn:
        artifact = await artifacts.get(conn, artifact_id=artifact_id)
    [answer] = await linked(request, [artifact])
    return answer


async def _app_finish(
    request: Request, service: artifacts.Acting, artifact_id: UUID
) -> artifacts.Finish | None:
    """The app's own writes for this upload, which belong into the transaction that stores the file."""
    app: App | None = request.app.state.app
    if app is None or not app.uploads:
        return None
    async with service() as conn:
        return app.finish_of(await artifacts.upload_key(conn, artifact_id=artifact_id))


# Signed URLs of the local folder. Each needs no other credential and allows one operation on one file.

files = APIRouter(tags=["artifacts"], responses={status: PROBLEMS[status] for status in (403, 404, 422, 503)})
_OPEN: dict[str, Any] = {"security": []}
_PARTS: dict[int | str, dict[str, Any]] = {
    206: {"description": "The requested range."},
    304: {"description": "Not changed since the given `ETag`."},
    409: PROBLEMS[409],
    410: PROBLEMS[410],
    416: {"description": "The requested range is outside the file."},
}


@files.put(
    "/storage/{path:path}",
    status_code=204,
    responses={status: PROBLEMS[status] for status in (408, 413, 429)},
    openapi_extra=_OPEN,
)
async def put_file(request: Request, path: str) -> None:
    """Upload a file with a signed URL."""
    folder, grant = _granted(request)
    limit = int(grant.fields["limit"])
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        # Reject before reading the body.
        raise TooLarge(f"the file is larger than {limit} bytes", details={"limit": limit})
    callers: Callers = request.app.state.callers
    async with callers.acting(_SERVICE, read_only=True) as conn:
        if not await artifacts.is_awaited(conn, path=grant.path):
            raise Conflict("this upload has been finished or abandoned", code="not_pending")
    isolated: Isolated = request.app.state.isolated
    tenant = f"tenant:{grant.fields['tenant']}"
    # The URL is the only credential, so the tenant is the caller.
    async with isolated.puts.take(tenant, tenant):
        with isolated.flights.open(tenant, f"put:{tenant}") as flight:
            await folder.put(grant.path, _counted(request, flight), limit=limit)


async def _counted(request: Request, flight: Flight) -> AsyncGenerator[bytes]:
    """The uploaded file. Raises Limited if the tenant has too many bytes in flight, or TimedOut."""
    limits: Limits = request.app.state.limits
    end = time.monotonic() + limits.file_seconds
    async for chunk in arriving(request):
        if time.monotonic() > end:
            raise TimedOut(f"the file did not arrive within {limits.file_seconds:g} seconds")
        flight.add(len(chunk))
        yield chunk


@files.get("/storage/{path:path}", response_class=Response, responses=_PARTS, openapi_extra=_OPEN)
@files.head("/storage/{path:path}", response_class=Response, responses=_PARTS, openapi_extra=_OPEN)
async def get_file(request: Request, path: str) -> Response:
    """Download a file or a range of it with a signed URL."""
    folder, grant = _granted(request)
    callers: Callers = request.app.state.callers
    async with callers.acting(_SERVICE, read_only=True) as conn:
        if await artifacts.is_deleted(conn, tenant_id=UUID(grant.fields["tenant"]), path=grant.path):
            raise Gone("the file was deleted")
    file = await folder.head(grant.path)
    headers = {
        **_GUARDS,
        # Browsers do not show PDFs in a sandbox; their viewer is one.
        **({} if grant.fields["type"] == "application/pdf" else _SANDBOX),
        **content.headers(grant.fields["type"], grant.fields["name"]),
        "ETag": file.etag,
        "Last-Modified": formatdate(file.modified_at, usegmt=True),
        "Accept-Ranges": "bytes",
    }
    if file.etag in _tags(request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    wanted = _wanted(request, file)
    if wanted is None:
        start, end, status = 0, file.bytes, 200
    elif wanted[0] >= wanted[1]:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{file.bytes}"})
    else:
        (start, end), status = wanted, 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    headers["Content-Length"] = str(end - start)
    if request.method == "HEAD" or start == end:
        return Response(status_code=status, headers=headers)
    part = await folder.get(grant.path, start, end)
    if part.file.etag != file.etag:
        # The file was replaced after its headers were read.
        raise Conflict("the file changed during the download", hint="Try again.")
    return StreamingResponse(part.chunks, status, headers)


def _granted(request: Request) -> tuple[Folder, storages.Grant]:
    folder = storage_of(request)
    if not isinstance(folder, Folder):
        raise NotFound("this server does not serve files")
    # The signature covers the raw URL, so decode and reorder nothing.
    sent = bytes(request.scope["raw_path"]) + b"?" + bytes(request.scope["query_string"])
    target = sent.partition(b"/storage/")[2].decode("ascii", "replace")
    return folder, folder.verify(request.method, target)


def _tags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",") if tag.strip()]


def _wanted(request: Request, file: File) -> tuple[int, int] | None:
    """The requested byte range; None for the whole file. An invalid range is ignored."""
    requested = _RANGE.fullmatch(request.headers.get("range", "").strip().replace(" ", ""))
    condition = request.headers.get("if-range")
    if requested is None or requested.group(1) == requested.group(2) == "":
        return None
    if condition is not None and condition not in (file.etag, formatdate(file.modified_at, usegmt=True)):
        return None
    first, last = requested.groups()
    if first == "":
        return max(0, file.bytes - int(last)), file.bytes if int(last) else 0
    if last != "" and int(last) < int(first):
        return None
    return int(first), min(file.bytes, int(last) + 1) if last else file.bytes


router = APIRouter()
router.include_router(moving_routes)
router.include_router(begin_routes)
router.include_router(routes)
router.include_router(files)
