"""The HTTP functions: `shell-file-processor-v3` takes files in, `audit-logger-v3` writes audit lines, `plans`
lists the plans."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, cast
from uuid import UUID

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from penstock import FunctionRequest, FunctionResponse
from penstock.apps.intake.app import app, finish_upload
from penstock.contract import artifacts
from penstock.errors import Conflict, Forbidden, Invalid, LeaseLost, NotFound, PenstockError, Unavailable
from penstock.postgres import db
from penstock.storage import content

_FILE = """\
select to_jsonb(f) - array['files_hold_id', 'pages_hold_id'] from intake.shell_files f where id = %s"""
_BEGUN = """\
select id, tenant_id, artifact_id, status from intake.begin_shell_file(%s, %s, %s, %s, %s, %s, %s)"""


Form = TypeVar("Form", bound=BaseModel)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Begin(_Request):
    """Announces a file."""

    action: Literal["begin"]
    name: Annotated[str, Field(min_length=1, max_length=200)]
    content_type: str
    bytes: Annotated[int, Field(ge=0)]
    patient_id: UUID | None = None
    idempotency_key: str | None = None
    estimated_pages: int = 1
    tenant_id: UUID | None = None


class Finish(_Request):
    """Says that the bytes are there."""

    action: Literal["finish"]
    shell_file_id: UUID


class Status(_Request):
    """Asks what became of a file."""

    action: Literal["status"]
    shell_file_id: UUID


class AuditEvent(_Request):
    """A line for the audit log."""

    table_name: str
    record_id: str | None = None
    operation: str
    old_values: dict[str, Any] | None = None
    new_values: dict[str, Any] | None = None
    reason: str | None = None
    category: str = "system"
    patient_id: UUID | None = None


_ACTIONS: dict[str, type[Begin] | type[Finish] | type[Status]] = {
    "begin": Begin,
    "finish": Finish,
    "status": Status,
}


@app.function("shell-file-processor-v3", methods=["GET", "POST"], max_bytes=1 << 16, timeout=120)
async def shell_file_processor_v3(request: FunctionRequest) -> FunctionResponse:
    """Take a file in: begin, PUT the bytes to the URL, finish. GET returns the state of a file."""
    wanted: Begin | Finish | Status
    if request.method == "GET":
        wanted = _parsed(Status, {"action": "status", **request.query})
    else:
        document = _object(request.json())
        action = document.get("action")
        if not isinstance(action, str) or action not in _ACTIONS:
            text = f"action must be one of {', '.join(_ACTIONS)} (got {str(action)[:100]!r})"
            raise Invalid(text, code="invalid_action", details={"field": "action"})
        wanted = _parsed(_ACTIONS[action], document)
    if isinstance(wanted, Begin):
        return await _begin(request, wanted)
    if isinstance(wanted, Finish):
        await _finish(request, wanted.shell_file_id)
    return FunctionResponse(json=await _file(request, wanted.shell_file_id))


@app.function("audit-logger-v3", max_bytes=1 << 17)
async def audit_logger_v3(request: FunctionRequest) -> FunctionResponse:
    """Write a line to the audit log. For the service only."""
    if not request.is_service:
        raise Forbidden("only the service writes audit events")
    event = _parsed(AuditEvent, request.json())
    values = [db.Json(value) if isinstance(value, dict) else value for value in dict(event).values()]
    statement = "select intake.log_audit_event(%s, %s, %s, %s, %s, %s, %s, %s::uuid)"
    async with request.service() as conn:
        [(line,)] = await db.rows(conn, statement, values)
    return FunctionResponse(201, json={"id": line})


@app.function("plans", methods=["GET"], is_open=True)
async def plans(request: FunctionRequest) -> FunctionResponse:
    """The plans that are for sale, for everyone."""
    statement = """\
select to_jsonb(p) from intake.subscription_plans p where is_active order by sort_order, plan_type"""
    async with request.service() as conn:
        rows = await db.rows(conn, statement, ())
    return FunctionResponse(json=[plan for (plan,) in rows])


async def _begin(request: FunctionRequest, wanted: Begin) -> FunctionResponse:
    try:
        return FunctionResponse(json=await _begun(request, wanted))
    except PenstockError as error:
        if error.code == "quota_exceeded":
            tenant_id = wanted.tenant_id or await request.tenant_id()
            async with request.service() as conn:
                noted = (tenant_id, error.details.get("meter", ""))
                await db.rows(conn, "select intake.note_limit_hit(%s, %s)", noted)
        raise


async def _begun(request: FunctionRequest, wanted: Begin) -> dict[str, Any]:
    # As the platform stores them, so that the same request always finds the same upload.
    name, kind = content.clean_name(wanted.name), content.known(wanted.content_type)
    if not name:
        raise Invalid("name must not be empty", code="invalid", details={"field": "name"})
    arguments = (
        name, kind, wanted.bytes, wanted.patient_id, wanted.idempotency_key,
        wanted.estimated_pages, wanted.tenant_id,
    )  # fmt: skip
    made: dict[str, Any] = {}
    async with request.acting() as conn:
        [(file_id, tenant_id, artifact_id, status)] = await db.rows(conn, _BEGUN, arguments)
        [(keeps_address,)] = await db.rows(conn, "select intake.keeps_addresses()", ())
        if status == "uploading":
            # The same key again: returns the upload that begin_shell_file began.
            upload = await artifacts.begin_upload(
                conn,
                name=name,
                content_type=kind,
                bytes=wanted.bytes,
                tenant_id=tenant_id,
                idempotency_key=f"intake:{file_id}",
            )
            limit = str(wanted.bytes)
            storage = request.storage()
            made["url"] = await storage.url(
                "PUT", upload.incoming, base=request.base_url, tenant=str(tenant_id), limit=limit
            )
            made["expires_in"] = int(storage.lifetime())
    if keeps_address:
        origin = (tenant_id, file_id, request.headers.get("user-agent"), request.address)
        async with request.service() as conn:
            await db.rows(conn, "select intake.note_address(%s, %s, %s, %s)", origin)
    made |= {"shell_file_id": file_id, "tenant_id": tenant_id, "status": status}
    return made | {"artifact_id": artifact_id}


async def _finish(request: FunctionRequest, file_id: UUID) -> None:
    async with request.acting() as conn:
        statement = "select tenant_id, artifact_id, status from intake.shell_files where id = %s"
        rows = await db.rows(conn, statement, (file_id,))
    if not rows:
        raise NotFound("there is no such file", code="unknown_file")
    [(tenant_id, artifact_id, status)] = rows
    if status != "uploading":
        return
    try:
        await request.finish_upload(artifact_id, finish_upload)
    except (Conflict, Unavailable, LeaseLost, Forbidden):
        # Not uploaded yet, the database is away, or another call finishes it: all can be repeated.
        raise
    except PenstockError as error:
        async with request.service() as conn:
            arguments = (tenant_id, file_id, error.code, error.message)
            await db.rows(conn, "select intake.reject_upload(%s, %s, %s, %s)", arguments)
        raise


async def _file(request: FunctionRequest, file_id: UUID) -> Any:
    async with request.acting() as conn:
        rows = await db.rows(conn, _FILE, (file_id,))
    if not rows:
        raise NotFound("there is no such file", code="unknown_file")
    return rows[0][0]


def _object(document: Any) -> dict[str, Any]:
    """The document if it is an object, otherwise an empty one."""
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


def _parsed(form: type[Form], document: Any) -> Form:
    try:
        return form.model_validate(document)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise Invalid(f"{field}: {first['msg']}", code="invalid", details={"field": field}) from None
