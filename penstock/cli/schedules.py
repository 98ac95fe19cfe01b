"""`penstock schedules`: recurring jobs."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import (
    TenantOption,
    command,
    current_options,
    tenant_id_of,
)
from penstock.cli.output import Column, Output
from penstock.contract import schedules, tenants
from penstock.errors import Conflict, Invalid, NotFound
from penstock.postgres import db

group = typer.Typer(help="Manage recurring jobs.", no_args_is_help=True)


class Missed(StrEnum):
    """What to do about runs missed during an outage."""

    skip = "skip"
    once = "once"
    all = "all"


@command(group, "ls")
async def ls(
    pool: db.Pool,
    tenant: TenantOption = None,
    limit: LimitOption = 50,
    after: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Only schedules created after this one.")
    ] = None,
) -> None:
    """List schedules, oldest first."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await schedules.list(pool, tenant_id=tenant_id, after=after, limit=limit)
    names = await tenants.names(pool, ids=(schedule.tenant_id for schedule in found))
    columns = [
        Column("NAME", lambda schedule: schedule.name),
        Column("TENANT", lambda schedule: names.get(schedule.tenant_id, str(schedule.tenant_id))),
        Column("JOB TYPE", lambda schedule: schedule.job_type),
        Column("CRON", lambda schedule: schedule.cron),
        Column("TIME ZONE", lambda schedule: schedule.timezone, is_spare=True, style="dim"),
        Column("MISSED", lambda schedule: schedule.missed, is_spare=True, style="dim"),
        Column("NEXT", lambda schedule: output.age(schedule.next_run_at) if schedule.is_enabled else "off"),
        Column("ERROR", lambda schedule: schedule.last_error or "", is_wide=True, style="red"),
        Column("LAST JOB", lambda schedule: str(schedule.last_job_id or ""), is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No schedules.")
    if len(found) == limit and current_options().output is Output.text:
        output.note(f"{limit} shown. More: --after {found[-1].id}", "dim")


@command(group, "set")
async def set(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(show_default=False, help="Schedule name.")],
    cron: Annotated[
        str, typer.Option(help="Cron expression: minute hour day month weekday, such as '0 9 * * 1-5'.")
    ],
    type: Annotated[str, typer.Option(help="Type of the jobs to start.")],
    tenant: TenantOption = None,
    timezone: Annotated[str, typer.Option(help="Time zone of the cron expression.")] = "UTC",
    params: Annotated[
        str, typer.Option(metavar="JSON", help="Params of the jobs; @FILE reads a file.")
    ] = "{}",
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Tasks of the jobs, if the job type does not define them; @FILE reads a file.",
        ),
    ] = None,
    missed: Annotated[
        Missed, typer.Option(help="Runs missed during an outage: skip them, or start one job or all of them.")
    ] = Missed.once,
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Save the schedule but start no jobs.")
    ] = False,
) -> None:
    """Create or change the tenant's schedule with this name. Prints its id."""
    schedule_id = await schedules.set(
        pool,
        name=name,
        cron=cron,
        job_type=type,
        tenant_id=await tenant_id_of(pool, tenant) if tenant else await _only_tenant(pool),
        timezone=timezone,
        params=_json(params, "--params", dict),
        tasks=None if tasks is None else _json(tasks, "--tasks", list),
        missed=missed.value,
        is_enabled=not disabled,
    )
    output.document({"id": schedule_id}, lambda: print(schedule_id))


@command(group, "rm")
async def rm(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(metavar="NAME|ID", show_default=False, help="Schedule name or id.")],
    tenant: TenantOption = None,
) -> None:
    """Remove a schedule. Keeps the jobs it started. Asks for confirmation."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await schedules.find(pool, name=name, tenant_id=tenant_id)
    if not found:
        raise NotFound(f"schedule {name!r} not found", code="unknown_schedule")
    if len(found) > 1:
        raise Conflict(f"several tenants have a schedule {name!r}", hint="Choose one with --tenant.")
    output.confirm(f"Remove schedule {output.clean(found[0].name)} ({found[0].cron})?")
    await schedules.remove(pool, schedule_id=found[0].id)
    output.document({"id": found[0].id}, lambda: output.note("Removed."))


async def _only_tenant(pool: db.Pool) -> UUID:
    """The tenant of an installation that has one, as a new one has."""
    found = await tenants.list(pool, limit=2)
    if len(found) != 1:
        raise Invalid("--tenant is required", code="tenant_missing", hint="See `penstock tenants ls`.")
    return found[0].id


def _json(text: str, option: str, shape: type[Any]) -> Any:
    try:
        source = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
        value = cast("object", json.loads(source))
    except (OSError, ValueError) as error:
        raise Invalid(f"{option} must be valid JSON: {error}", code="usage") from error
    if not isinstance(value, shape):
        raise Invalid(f"{option} must be a JSON {'object' if shape is dict else 'array'}", code="usage")
    return value
