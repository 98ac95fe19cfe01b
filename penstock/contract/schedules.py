"""Schedules: recurring jobs.

A cron expression has five fields (six with seconds first) and is read in the schedule's own time zone. When
clocks change, the library cronsim does what Debian's cron does. A schedule at a fixed time of day (neither
minute nor hour begins with `*`) runs once a day: a time that is skipped in spring runs at the first moment
after the gap, and a time that occurs twice in autumn runs the first time only. A schedule with a `*` there
follows elapsed time: it leaves out the skipped hour and runs in both repeated hours.
"""

from __future__ import annotations

import builtins
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, LiteralString, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.contract import filters
from penstock.errors import Invalid, Limited, NotFound, PenstockError, Unavailable
from penstock.postgres import db
from penstock.types import Missed, Schedule

logger = logging.getLogger(__name__)

_FRESH = timedelta(seconds=60)
_MAX_STARTS = 100

_SCHEDULES: LiteralString = """\
select id, tenant_id, name, cron, timezone, job_type, params, tasks, options, missed, is_enabled, next_run_at,
  last_run_at, last_job_id, failures, last_error
from penstock.schedules where """
_DUE: LiteralString = """\
select cron, timezone, job_type, params, tasks is not null, missed, next_run_at, penstock._now()
from penstock.schedules where id = %s and is_enabled and next_run_at <= penstock._now()"""
_Tasks: TypeAlias = builtins.list[dict[str, Any]] | db.Json | None
BuildTasks: TypeAlias = Callable[[str, dict[str, Any]], _Tasks | Awaitable[_Tasks]]
"""Returns the tasks of a job type for its params; None if this process does not know the type."""
_UNKNOWN_AFTER = timedelta(hours=1)
"""A due schedule whose job type no worker knows counts as failed after this time."""


async def set(
    database: db.Database,
    *,
    name: str,
    cron: str,
    job_type: str,
    tenant_id: UUID | None = None,
    timezone: str = "UTC",
    params: Mapping[str, Any] | None = None,
    tasks: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    missed: Missed | str = "once",
    is_enabled: bool = True,
) -> UUID:
    """Create or change the tenant's schedule of this name. Without `tasks`, the job type's body adds them."""
    now = await db.value(database, "_now")
    return await db.value(
        database,
        "set_schedule",
        p_name=name,
        p_cron=cron,
        p_job_type=job_type,
        p_next_run_at=next_tick(cron, timezone, now),
        p_options={
            "tenant_id": str(tenant_id) if tenant_id else None,
            "timezone": timezone,
            "params": dict(params or {}),
            "tasks": None if tasks is None else [dict(task) for task in tasks],
            "options": dict(options or {}),
            "missed": missed,
            "is_enabled": is_enabled,
        },
    )


async def list(
    database: db.Database,
    *,
    tenant_id: UUID | None = None,
    after: UUID | None = None,
    limit: int = 50,
) -> builtins.list[Schedule]:
    """Schedules, oldest first. The next page is `after` the id of the last schedule of this page."""
    statement = _SCHEDULES + (
        "(%s::uuid is null or tenant_id = %s) and (%s::uuid is null or id > %s) order by id limit %s"
    )
    rows = await db.rows(database, statement, (tenant_id, tenant_id, after, after, filters.page(limit)))
    return [Schedule(*row) for row in rows]


async def find(database: db.Database, *, name: str, tenant_id: UUID | None = None) -> builtins.list[Schedule]:
    """The schedules with this name, oldest first, at most a thousand; or the schedule with this id."""
    statement = _SCHEDULES + (
        "(name = %s or id = any (%s::uuid[])) and (%s::uuid is null or tenant_id = %s) order by id limit 1000"
    )
    rows = await db.rows(database, statement, (name, filters.uuids([name]), tenant_id, tenant_id))
    return [Schedule(*row) for row in rows]


async def get(database: db.Database, *, schedule_id: UUID) -> Schedule:
    """One schedule."""
    found = await db.rows(database, _SCHEDULES + "id = %s", (schedule_id,))
    if not found:
        raise NotFound(f"no schedule with id {schedule_id}", code="unknown_schedule")
    return Schedule(*found[0])


async def enable(database: db.Database, *, schedule: Schedule, is_enabled: bool) -> None:
    """Enable or disable a schedule."""
    await set(
        database,
        name=schedule.name,
        cron=schedule.cron,
        job_type=schedule.job_type,
        tenant_id=schedule.tenant_id,
        timezone=schedule.timezone,
        params=schedule.params,
        tasks=schedule.tasks,
        options=schedule.options,
        missed=schedule.missed,
        is_enabled=is_enabled,
    )


async def remove(database: db.Database, *, schedule_id: UUID) -> None:
    """Remove a schedule. The jobs it started stay."""
    await db.call(database, "remove_schedule", p_schedule_id=schedule_id)


async def fire_due(
    database: db.Database,
    build_tasks: BuildTasks,
    *,
    on_unknown: Callable[[], None] = lambda: None,
) -> builtins.list[UUID]:
    """Start the jobs that are due and return their ids. Any number of workers may do this at once.

    For a schedule that stores no tasks, `build_tasks` returns the tasks of its job type for its params. None
    leaves the schedule to a worker that knows the type, after a call of `on_unknown`. A schedule that fails
    is logged and tried again later, a few times: see `fail_schedule`.
    """
    started: builtins.list[UUID] = []
    # As text: a time that Python cannot represent must not block the others.
    due = await db.rows(database, "select id, name, due_at::text from penstock.due_schedules()", ())
    for schedule_id, name, due_at in due:
        try:
            started += await _fire(database, schedule_id, build_tasks, on_unknown)
        except Unavailable:
            raise
        except Exception as error:
            # An invalid schedule or a job body that fails must not block other schedules.
            expected = isinstance(error, PenstockError)
            logger.error(
                "schedule %r (%s) was not fired: %s", name, schedule_id, error, exc_info=not expected
            )
            await _fail(database, schedule_id, name, due_at, error)
    return started


async def _fail(database: db.Database, schedule_id: UUID, name: str, due_at: str, error: Exception) -> None:
    is_off = await db.value(
        database,
        "fail_schedule",
        p_schedule_id=schedule_id,
        p_due_at=due_at,
        p_error="".join(filter(str.isprintable, str(error)))[:1000] or type(error).__name__,
        p_is_temporary=isinstance(error, Limited),
    )
    if is_off:
        logger.error("schedule %r (%s) is turned off after too many failures", name, schedule_id)


async def _fire(
    database: db.Database,
    schedule_id: UUID,
    build_tasks: BuildTasks,
    on_unknown: Callable[[], None],
) -> builtins.list[UUID]:
    # Each schedule is read separately, so that one that cannot be read does not block the others.
    found = await db.rows(database, _DUE, (schedule_id,))
    if not found:
        return []
    [(cron, timezone, job_type, params, has_tasks, missed, due_at, now)] = found
    tasks = None if has_tasks else build_tasks(job_type, params)
    if inspect.isawaitable(tasks):
        tasks = await tasks
    if tasks is None and not has_tasks:
        if now - due_at < _UNKNOWN_AFTER:
            on_unknown()
            return []
        raise Invalid(f"no worker knows the job type {job_type!r}", code="unknown_job_type")
    return await db.value(
        database,
        "fire_schedule",
        p_schedule_id=schedule_id,
        p_due_at=due_at,
        p_next_run_at=next_tick(cron, timezone, now),
        p_starts=starts(cron, timezone, missed, due_at, now),
        p_tasks=tasks if tasks is None or isinstance(tasks, db.Json) else db.Json(tasks),
    )


def next_tick(cron: str, timezone: str, now: datetime) -> datetime:
    """The first tick after now."""
    ticks = (tick.astimezone(UTC) for tick in _simulation(cron, timezone, now))
    # In the repeated hour of autumn, cronsim begins with a tick of the first of both hours.
    found = next((tick for tick in ticks if tick > now), None)
    if found is None:
        raise Invalid(
            f"the cron expression {cron!r} matches no date", code="invalid_cron", details={"field": "cron"}
        )
    return found


def ticks(cron: str, timezone: str, now: datetime, count: int) -> builtins.list[datetime]:
    """The next ticks after now."""
    coming = (tick.astimezone(UTC) for tick in _simulation(cron, timezone, now))
    return builtins.list(islice((tick for tick in coming if tick > now), count))


def starts(cron: str, timezone: str, missed: str, due_at: datetime, now: datetime) -> builtins.list[datetime]:
    """The ticks between `due_at` and now to run, oldest first.

    `once`: the latest. `skip`: the latest, if it is less than a minute old. `all`: each, but at most the
    latest hundred. `due_at` counts as a tick even if the expression was changed since.
    """
    later = takewhile(lambda tick: tick > due_at, _ticks_before(cron, timezone, now))
    ticks = [*islice(later, _MAX_STARTS if missed == "all" else 1), due_at.astimezone(UTC)]
    if missed == "all":
        return ticks[:_MAX_STARTS][::-1]
    return ticks[:1] if missed == "once" or now - ticks[0] < _FRESH else []


def _ticks_before(cron: str, timezone: str, now: datetime) -> Iterator[datetime]:
    """The ticks up to now, newest first."""
    # Starts some hours later, because inside the repeated hour of autumn cronsim leaves out its first ticks.
    for tick in _simulation(cron, timezone, now + timedelta(hours=3), is_backward=True):
        if (instant := tick.astimezone(UTC)) <= now:
            yield instant


def _simulation(cron: str, timezone: str, start: datetime, *, is_backward: bool = False) -> CronSim:
    # Callers compare ticks in UTC, because Python compares two times of one zone by their wall-clock time.
    try:
        return CronSim(cron, start.astimezone(_zone(timezone)), reverse=is_backward)
    except CronSimError as error:
        message = f"{cron!r} is not a cron expression: {error}"
        hint = "Write minute, hour, day, month and weekday, such as 0 9 * * 1-5."
        raise Invalid(message, code="invalid_cron", hint=hint, details={"field": "cron"}) from error


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(
            f"unknown time zone {name!r}",
            code="invalid_timezone",
            hint="Use a name such as Europe/Berlin.",
            details={"field": "timezone"},
        ) from error
