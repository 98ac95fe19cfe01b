"""`penstock workers`, `tenants` and `backlog`."""

from __future__ import annotations

from collections import Counter
from typing import Annotated
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import Output, command, current_options
from penstock.cli.output import Column
from penstock.contract import tenants, workers
from penstock.postgres import db

workers_group = typer.Typer(help="List workers, the processes that run tasks.", no_args_is_help=True)
tenants_group = typer.Typer(help="List and create tenants.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "backlog", rich_help_panel="Operate")(backlog)


@command(workers_group, "ls")
async def workers_ls(
    pool: db.Pool,
    every: Annotated[bool, typer.Option("--all", help="Include stopped workers.")] = False,
) -> None:
    """List workers that are running or not responding."""
    found = [worker for worker in await workers.list(pool) if every or worker.state != "stopped"]
    columns = [
        Column("ID", lambda worker: worker.id),
        Column("STATE", lambda worker: worker.state, is_status=True),
        Column("BUSY", lambda worker: f"{worker.running}/{worker.concurrency}", is_right=True),
        Column("UPTIME", lambda worker: output.age(worker.started_at), is_right=True, is_spare=True),
        Column("LAST SEEN", lambda worker: f"{output.age(worker.beat_at)} ago", is_right=True),
        Column("VERSION", lambda worker: worker.version, is_spare=True, style="dim"),
        Column("KINDS", lambda worker: ", ".join(worker.kinds), is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No workers. Start one: penstock worker module:app")


@command(tenants_group, "ls")
async def tenants_ls(
    pool: db.Pool,
    limit: LimitOption = 50,
    after: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Only tenants created after this one.")
    ] = None,
) -> None:
    """List tenants, oldest first."""
    found = await tenants.list(pool, after=after, limit=limit)
    columns = [
        Column("ID", lambda tenant: str(tenant.id)),
        Column("NAME", lambda tenant: tenant.name),
        Column("WEIGHT", lambda tenant: f"{tenant.weight:g}", is_right=True),
        Column("PERSONAL", lambda tenant: "yes" if tenant.is_personal else "", style="dim"),
        Column("AGE", lambda tenant: output.age(tenant.created_at), is_right=True),
    ]
    output.rows(found, columns, empty="No tenants. Create one: penstock tenants create NAME")
    if len(found) == limit and current_options().output is Output.text:
        output.note(f"{limit} shown. More: --after {found[-1].id}", "dim")


@command(tenants_group, "create")
async def tenants_create(
    pool: db.Pool,
    name: Annotated[str, typer.Argument(show_default=False, help="Tenant name.")],
    weight: Annotated[float, typer.Option(help="Share of capacity relative to other tenants.")] = 1,
    plan: Annotated[
        str | None,
        typer.Option(help="Plan, or unlimited (default: the setting tenant_plan).", show_default=False),
    ] = None,
) -> None:
    """Create a tenant. Prints its id."""
    tenant_id = await tenants.create(pool, name=name, weight=weight, plan=plan)
    output.document({"id": tenant_id}, lambda: print(tenant_id))


async def backlog(pool: db.Pool) -> None:
    """Show waiting and running tasks, wanted slots and live workers by kind and provider.

    WANTED: tasks that could run at once now, under limits, quotas and budgets.
    """
    found = await workers.backlog(pool)
    slots = {(each.kind, each.provider): each.wanted for each in await workers.wanted_slots(pool)}
    alive = [worker for worker in await workers.list(pool) if worker.is_alive]
    workers_of_kind = Counter(kind for worker in alive for kind in worker.kinds)
    if current_options().output is Output.text:
        found = [lane for lane in found if lane.waiting or lane.running]
    columns = [
        Column("KIND", lambda lane: lane.kind),
        Column("PROVIDER", lambda lane: lane.provider or "", style="dim"),
        Column("WAITING", lambda lane: f"{lane.waiting:,}", is_right=True),
        Column("RUNNING", lambda lane: f"{lane.running:,}", is_right=True),
        Column("WANTED", lambda lane: f"{slots.get((lane.kind, lane.provider), 0):,}", is_right=True),
        Column("LONGEST WAIT", lambda lane: output.duration(lane.oldest_seconds), is_right=True),
        Column("WORKERS", lambda lane: str(workers_of_kind[lane.kind] or "none"), is_right=True),
    ]
    output.rows(found, columns, empty="No waiting or running tasks.")
