"""Schedules: recurring jobs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock.api.callers import Caller
from penstock.api.isolated import Isolated
from penstock.contract import jobs, schedules, tenants
from penstock.dashboard import forms
from penstock.dashboard.pages import PER_PAGE, Conn, CurrentViewer, Page, redirect, render
from penstock.errors import Invalid, PenstockError
from penstock.types import Schedule

router = APIRouter(route_class=Page)

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@router.get("/schedules")
async def list_schedules(
    request: Request, conn: Conn, viewer: CurrentViewer, after: UUID | None = None
) -> Response:
    """List schedules with their next runs."""
    found = await schedules.list(conn, after=after, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    now = request.state.now
    return render(
        request,
        "schedules.html",
        schedules=[(each, describe_cron(each.cron), *_next_runs(each, now)) for each in shown],
        names=await tenants.names(conn, ids=[each.tenant_id for each in shown]),
        after=after,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        live=None,
    )


@router.post("/schedules/{schedule_id}")
async def change_schedule(request: Request, conn: Conn, schedule_id: UUID) -> Response:
    """Turn a schedule off or on, run its job now, or remove it."""
    form: forms.Form = request.state.form
    schedule = await schedules.get(conn, schedule_id=schedule_id)
    match form.get("verb"):
        case "pause" | "resume" as verb:
            await schedules.enable(conn, schedule=schedule, is_enabled=verb == "resume")
            return redirect(
                request, "/schedules", flash=f"{schedule.name} turned {'on' if verb == 'resume' else 'off'}."
            )
        case "run":
            job_id = await _start(request, schedule)
            return redirect(request, f"/jobs/{job_id}", flash=f"Started from the schedule {schedule.name}.")
        case "remove":
            await schedules.remove(conn, schedule_id=schedule_id)
            return redirect(request, "/schedules", flash=f"{schedule.name} removed.")
        case _:
            raise Invalid("unknown action", code="invalid_verb")


@router.get("/schedules/{schedule_id}/remove")
async def confirm_remove(request: Request, conn: Conn, schedule_id: UUID) -> Response:
    """Ask whether to remove a schedule."""
    return render(
        request, "schedule_remove.html", schedule=await schedules.get(conn, schedule_id=schedule_id)
    )


async def _start(request: Request, schedule: Schedule) -> UUID:
    tasks: Any = schedule.tasks
    if tasks is None:
        isolated: Isolated = request.app.state.isolated
        caller: Caller = request.state.caller
        drawn = await isolated.draw(
            schedule.job_type, schedule.params, tenant=f"tenant:{schedule.tenant_id}", caller=caller.name
        )
        tasks = drawn and drawn.tasks
    if tasks is None:
        raise Invalid(
            "this server does not know the tasks of this job type",
            code="no_tasks",
            hint="Start the server with the app: penstock serve module:app",
        )
    options: Any = {**schedule.options, "tenant_id": schedule.tenant_id}
    # The stored tasks were checked when the schedule was set.
    async with request.app.state.callers.acting_for(request.state.caller) as (service, user_id):
        return await jobs.start_drawn(
            service, user_id=user_id, type=schedule.job_type, params=schedule.params, tasks=tasks, **options
        )


def _next_runs(schedule: Schedule, now: datetime) -> tuple[list[datetime], str | None]:
    """Return the next runs, or the error if the stored cron expression is invalid."""
    try:
        return schedules.ticks(schedule.cron, schedule.timezone, now, 3), None
    except PenstockError as error:
        return [], error.message


def describe_cron(cron: str) -> str:
    """Describe a common cron expression in words; return any other unchanged."""
    fields = cron.split()
    if len(fields) != 5:
        return cron
    minute, hour, day, month, weekday = fields
    when = _time(minute, hour)
    if when is None or (month != "*" and not month.isdecimal()):
        return cron
    at = f" at {when}" if re.fullmatch(r"\d\d:\d\d(, \d\d:\d\d)*", when) else f", {when}"
    if day == "*" and weekday == "*" and month == "*":
        return f"Daily{at}" if at.startswith(" at") else when[0].upper() + when[1:]
    if day == "*" and month == "*" and (days := _weekdays(weekday)):
        return f"{days}{at}"
    if weekday == "*" and day.isdecimal():
        which = f" in {_MONTHS[int(month)]}" if month != "*" and 1 <= int(month) <= 12 else ""
        return f"Day {int(day)} of {'each month' if not which else 'the month'}{which}{at}"
    return cron


def _time(minute: str, hour: str) -> str | None:
    if minute.isdecimal() and re.fullmatch(r"\d+(,\d+)*", hour):
        return ", ".join(f"{int(each):02}:{int(minute):02}" for each in hour.split(","))
    if hour == "*" and minute == "*":
        return "every minute"
    if hour == "*" and (found := re.fullmatch(r"\*/(\d+)", minute)):
        return f"every {found[1]} minutes"
    if hour == "*" and minute.isdecimal():
        return f"every hour at minute {int(minute)}"
    if minute.isdecimal() and (found := re.fullmatch(r"\*/(\d+)", hour)):
        return f"every {found[1]} hours at minute {int(minute)}"
    return None


def _weekdays(text: str) -> str | None:
    if text == "1-5":
        return "Monday to Friday"
    if re.fullmatch(r"[0-7](,[0-7])*", text):
        names = [_DAYS[int(each)] + "s" for each in text.split(",")]
        return " and ".join(names) if len(names) < 3 else ", ".join(names)
    return None
