"""Schedules (recurring jobs) over HTTP."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field, StrictBool

from penstock.api.fields import RequestModel
from penstock.api.jobs import TaskRequest
from penstock.api.pages import LimitQuery, Page, TenantQuery, UuidCursor, page
from penstock.api.routes import Conn, router
from penstock.contract import schedules
from penstock.sdk.app import App
from penstock.types import Missed, Schedule

routes = router("schedules")

# A query parameter, because names may contain a slash.
Name = Annotated[str, Query(min_length=1, max_length=200, examples=["nightly"])]


class ScheduleRequest(RequestModel):
    """A recurring job."""

    cron: str = Field(max_length=200, examples=["0 9 * * 1-5"])
    timezone: str = Field("UTC", max_length=100)
    job_type: str
    tenant_id: UUID | None = None
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    tasks: list[TaskRequest] | None = None
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    missed: Missed = "once"
    is_enabled: StrictBool = True


class ScheduleMade(BaseModel):
    """Id of the schedule."""

    id: UUID


@routes.get("/schedules")
async def list_schedules(
    conn: Conn, tenant_id: TenantQuery = None, cursor: UuidCursor = None, limit: LimitQuery = 50
) -> Page[Schedule]:
    """List schedules, oldest first."""
    found = await schedules.list(conn, tenant_id=tenant_id, after=cursor, limit=limit + 1)
    return page(found, limit, lambda schedule: schedule.id)


@routes.put("/schedules")
async def set_schedule(request: Request, conn: Conn, name: Name, schedule: ScheduleRequest) -> ScheduleMade:
    """Create or change the tenant's schedule with this name. The app, if there is one, checks the params."""
    app: App | None = request.app.state.app
    if schedule.tasks is None and schedule.is_enabled and app is not None:
        app.check_params(schedule.job_type, schedule.params)
    return ScheduleMade(id=await schedules.set(conn, name=name, **schedule.model_dump()))


@routes.delete("/schedules/{schedule_id}", status_code=204)
async def remove_schedule(conn: Conn, schedule_id: UUID) -> Response:
    """Remove a schedule. Keeps the jobs it started."""
    await schedules.remove(conn, schedule_id=schedule_id)
    return Response(status_code=204)
