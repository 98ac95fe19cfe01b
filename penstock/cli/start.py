"""`penstock jobs start` and `jobs rerun`: start a job of an app's type, or run a job again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Unpack
from uuid import UUID

import typer

from penstock import tracing
from penstock.cli import logs as logs  # adds `jobs logs`
from penstock.cli import output
from penstock.cli.bulk_options import WatchOption
from penstock.cli.jobs import IdArgument, group, watch
from penstock.cli.options import TenantOption, command, dsn, tenant_id_of
from penstock.cli.parsing import pairs_of
from penstock.contract import jobs
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import Job, JobOptions

if TYPE_CHECKING:
    from penstock.sdk.app import App
    from penstock.sdk.signature import Signature

AppOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:APP", envvar="PENSTOCK_APP", show_default=False, help="App that defines the job type."
    ),
]
ParamsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        show_default=False,
        help="Params of the job. Values are JSON where the type needs it: topics='[\"otters\"]'.",
    ),
]


@command(group, "start")
async def start(
    pool: db.Pool,
    type: Annotated[str, typer.Argument(metavar="TYPE", show_default=False, help="Job type or task kind.")],
    params: ParamsArgument = None,
    app: AppOption = None,
    tenant: TenantOption = None,
    is_watched: WatchOption = False,
    **options: Unpack[JobOptions],
) -> None:
    """Start a job of a type that your app defines. Prints its id."""
    found = _load(app)
    values = _signature(found, type).parse(pairs_of(params or []))
    options["tenant_id"] = await tenant_id_of(pool, tenant) if tenant else await found.tenant_id(pool)
    await _show(pool, await _start(pool, found, type, values, options), is_watched)


@command(group, "rerun")
async def rerun(
    pool: db.Pool,
    job_id: IdArgument,
    params: ParamsArgument = None,
    app: AppOption = None,
    is_watched: WatchOption = False,
) -> None:
    """Start a new job with the params of another job, or with some of them changed. Prints its id."""
    found = _load(app)
    job = await jobs.get(pool, job_id=job_id)
    changes = _signature(found, job.type).parse(pairs_of(params or []))
    await _show(pool, await start_again(pool, found, job, changes), is_watched)


async def start_again(pool: db.Pool, app: App, job: Job, changes: dict[str, Any]) -> UUID:
    """Start a job with the type, tenant, priority and params of another one, some of them changed."""
    values = job.params
    if job.type not in app.job_types:
        # A job of one task has its arguments in the task's input.
        [task] = await jobs.tasks(pool, job_id=job.id, limit=1)
        values = task.input
    options: JobOptions = {"tenant_id": job.tenant_id, "priority": job.priority}
    return await _start(pool, app, job.type, {**values, **changes}, options)


async def _start(pool: db.Pool, app: App, type: str, values: dict[str, Any], options: JobOptions) -> UUID:
    await app.declare(pool)
    drawn = app.drawn(type, values)
    if drawn is None:
        raise app.unknown_type(type)
    options["result"] = drawn.result_option
    with tracing.sending(type, options.get("traceparent")) as traceparent:
        if traceparent is not None:
            options["traceparent"] = traceparent
        return await jobs.start(pool, type=type, params=drawn.params, tasks=drawn.tasks, **options)


async def _show(pool: db.Pool, job_id: UUID, is_watched: bool) -> None:
    if not is_watched:
        output.document({"id": str(job_id)}, lambda: print(job_id))
        return
    output.note(f"Started {job_id}.", "dim")
    await watch(pool, job_id)


def _load(path: str | None) -> App:
    # Imported here so that other commands work without the app's own packages.
    from penstock.sdk.load import load

    if path is None:
        raise Invalid(
            "--app is required: the app defines which tasks a job has",
            code="usage",
            hint="Add --app MODULE:APP, or set PENSTOCK_APP.",
        )
    found = load(path)
    found.use(dsn())
    return found


def _signature(app: App, type: str) -> Signature:
    found = app.job_types.get(type) or app.tasks.get(type)
    if found is None:
        raise app.unknown_type(type)
    return found.signature
