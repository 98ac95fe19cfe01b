"""`penstock operations`: work of tasks at outside systems."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import command
from penstock.cli.output import Column
from penstock.contract import operations, tenants
from penstock.postgres import db
from penstock.types import TaskOperation

group = typer.Typer(help="Show, reconcile and cancel work at providers.", no_args_is_help=True)

FilterArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILTER", help="Filter, for example: status:processing provider:cloudconvert/jobs age:>5m"
    ),
]
OperationArgument = Annotated[UUID, typer.Argument(metavar="ID", show_default=False, help="Operation id.")]


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: FilterArgument = None,
    limit: LimitOption = 50,
    before: Annotated[UUID | None, typer.Option(metavar="ID", help="Only those older than this one.")] = None,
) -> None:
    """List operations, newest first."""
    found = await operations.list(pool, filter=" ".join(filter or []), before=before, limit=limit)
    names = await tenants.names(pool, ids=(each.tenant_id for each in found))
    columns = [
        Column("ID", lambda each: str(each.id)),
        Column("STATUS", _status),
        Column("PROVIDER", lambda each: each.provider),
        Column("OBJECT", lambda each: each.object),
        Column("TENANT", lambda each: names.get(each.tenant_id, str(each.tenant_id)), is_spare=True),
        Column("TASK", lambda each: str(each.task_id), is_right=True, is_spare=True),
        Column("AGE", lambda each: output.age(each.started_at), is_right=True),
        Column("WEBHOOK", lambda each: "yes" if each.webhook_received_at else "no"),
        Column("ERROR", lambda each: each.error_message or "", is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No operations." if not filter else "No matching operations.")


@command(group, "show")
async def show(pool: db.Pool, operation_id: OperationArgument) -> None:
    """Show an operation."""
    found = await operations.get(pool, operation_id=operation_id)
    output.document(found, lambda: _show(found))


def _status(found: TaskOperation) -> str:
    return f"{found.status} (late)" if found.is_late else found.status


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S %Z}"


def _show(found: TaskOperation) -> None:
    output.fields(
        [
            ("operation", str(found.id)),
            ("status", _status(found)),
            ("provider", found.provider),
            ("id at provider", found.external_id or ""),
            ("object", found.object),
            ("number", str(found.number)),
            ("job", str(found.job_id)),
            ("task", str(found.task_id)),
            ("began", _time(found.started_at)),
            ("submitted", _time(found.submitted_at)),
            ("last check", _time(found.checked_at)),
            ("last webhook", _time(found.webhook_received_at)),
            ("deadline", _time(found.deadline_at)),
            ("ended", _time(found.completed_at)),
            ("error", ": ".join(part for part in (found.error_code, found.error_message) if part)),
            ("result", "" if found.result is None else json.dumps(found.result)),
        ]
    )


@command(group, "reconcile")
async def reconcile(
    pool: db.Pool,
    operation_id: Annotated[
        UUID | None, typer.Argument(metavar="[ID]", show_default=False, help="Operation id.")
    ] = None,
) -> None:
    """Let a worker ask the provider soon: about one operation, or about all timeouts of the last 24 hours."""
    count = await operations.reconcile(pool, operation_id=operation_id)
    text = f"A worker asks the provider about {output.counted(count, 'operation')}."
    output.document({"count": count}, lambda: output.note(text))


@command(group, "cancel")
async def cancel(pool: db.Pool, operation_id: OperationArgument) -> None:
    """Cancel a live operation, here at once and at the provider soon. The attempt of its task fails."""
    status = await operations.cancel(pool, operation_id=operation_id)
    text = "Canceled." if status == "canceled" else f"The operation has ended: {status}."
    output.document({"status": status}, lambda: output.note(text))
