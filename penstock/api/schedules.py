"""Schedules over HTTP."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Response
from pydantic import BaseModel, Field, StrictBool

from penstock import schedules
from penstock.api.fields import Asked
from penstock.api.jobs import TaskRequest
from penstock.api.pages import LimitQuery, Page, TenantQuery, UuidCursor, page
from penstock.api.routes import Held, router
from penstock.types import Missed, Schedule

routes = router("schedules")

# Not a part of the path: it may have a slash in it.
Name = Annotated[str, Query(min_length=1, max_length=200, examples=["nightly"])]


class ScheduleRequest(Asked):
    """A job that starts by the clock."""

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
    """The schedule."""

    id: UUID


@routes.get("/schedules")
async def list_schedules(
    held: Held, tenant_id: TenantQuery = None, cursor: UuidCursor = None, limit: LimitQuery = 50
) -> Page[Schedule]:
    """Schedules, oldest first."""
    found = await schedules.list(held, tenant_id=tenant_id, after=cursor, limit=limit + 1)
    return page(found, limit, lambda schedule: schedule.id)


@routes.put("/schedules")
async def set_schedule(held: Held, name: Name, schedule: ScheduleRequest) -> ScheduleMade:
    """Make the tenant's schedule of this name, or change it."""
    return ScheduleMade(id=await schedules.set(held, name=name, **schedule.model_dump()))


@routes.delete("/schedules/{schedule_id}", status_code=204)
async def remove_schedule(held: Held, schedule_id: UUID) -> Response:
    """Remove a schedule. The jobs it started stay."""
    await schedules.remove(held, schedule_id=schedule_id)
    return Response(status_code=204)
