"""Schedules: what starts by the clock, in plain words."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from penstock import jobs, schedules, tenants
from penstock.app import App
from penstock.dashboard import forms
from penstock.dashboard.pages import PER_PAGE, Held, Page, Seen, render, to
from penstock.errors import Invalid, PenstockError
from penstock.types import Schedule

router = APIRouter(route_class=Page)

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("", "January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@router.get("/schedules")
async def list_schedules(request: Request, held: Held, viewer: Seen, after: UUID | None = None) -> Response:
    """Schedules, with what comes next."""
    found = await schedules.list(held, after=after, limit=PER_PAGE + 1)
    shown = found[:PER_PAGE]
    now = request.state.now
    return render(
        request,
        "schedules.html",
        schedules=[(each, words(each.cron), *_ticks(each, now)) for each in shown],
        names=await tenants.names(held, ids=[each.tenant_id for each in shown]),
        after=after,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        live=None,
    )


@router.post("/schedules/{schedule_id}")
async def change_schedule(request: Request, held: Held, schedule_id: UUID) -> Response:
    """Pause it, take it up again, start its job now, or remove it."""
    form: forms.Form = request.state.form
    schedule = await schedules.get(held, schedule_id=schedule_id)
    match form.get("verb"):
        case "pause" | "resume" as verb:
            await schedules.enable(held, schedule=schedule, is_enabled=verb == "resume")
            return to(request, "/schedules", said=f"{schedule.name}: {verb}d.")
        case "run":
            job_id = await _start(held, request.app.state.app, schedule)
            return to(request, f"/jobs/{job_id}", said=f"Started by hand from the schedule {schedule.name}.")
        case "remove":
            await schedules.remove(held, schedule_id=schedule_id)
            return to(request, "/schedules", said=f"{schedule.name}: removed.")
        case _:
            raise Invalid("there is no such action", code="invalid_verb")


@router.get("/schedules/{schedule_id}/remove")
async def confirm_remove(request: Request, held: Held, schedule_id: UUID) -> Response:
    """What removing means."""
    return render(
        request, "schedule_remove.html", schedule=await schedules.get(held, schedule_id=schedule_id)
    )


async def _start(held: Held, app: App | None, schedule: Schedule) -> UUID:
    tasks = schedule.tasks
    if tasks is None and app is not None:
        tasks = app.draw(schedule.job_type, schedule.params)
    if tasks is None:
        raise Invalid(
            "only a worker knows the tasks of this job type",
            code="no_tasks",
            hint="Serve with the app: penstock serve module:app",
        )
    options: Any = {**schedule.options, "tenant_id": schedule.tenant_id}
    return await jobs.start(held, type=schedule.job_type, params=schedule.params, tasks=tasks, **options)


def _ticks(schedule: Schedule, now: datetime) -> tuple[list[datetime], str | None]:
    """The next ticks; or why there are none: the database takes an expression that we cannot read."""
    try:
        return schedules.ticks(schedule.cron, schedule.timezone, now, 3), None
    except PenstockError as error:
        return [], error.message


def words(cron: str) -> str:
    """The expression in words, where it is one of the usual kinds; as it is otherwise."""
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
