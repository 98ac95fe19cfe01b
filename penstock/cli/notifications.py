"""`penstock notifications`: subscriptions, messages and their delivery."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import TenantOption, command, tenant_id_of
from penstock.cli.output import Column
from penstock.contract import notifications, tenants
from penstock.postgres import db

group = typer.Typer(help="Manage notifications by e-mail and webhook.", no_args_is_help=True)

TargetArgument = Annotated[
    UUID, typer.Argument(metavar="ID", show_default=False, help="Target id; see `notifications targets`.")
]


class ChannelOption(StrEnum):
    """How a message is delivered."""

    email = "email"
    webhook = "webhook"


class EventOption(StrEnum):
    """What a target is notified of."""

    alert = "alert"
    job_completed = "job.completed"
    job_failed = "job.failed"
    bulk_completed = "bulk.completed"


@command(group, "ls")
async def ls(pool: db.Pool, tenant: TenantOption = None, limit: LimitOption = 50) -> None:
    """List messages and their delivery status, newest first."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await notifications.list(pool, tenant_id=tenant_id, limit=limit)
    columns = [
        Column("STATUS", lambda each: each.status),
        Column("EVENT", lambda each: each.event),
        Column("ADDRESS", lambda each: each.address),
        Column("SUBJECT", lambda each: each.subject),
        Column("ATTEMPTS", lambda each: str(each.attempts)),
        Column("CREATED", lambda each: output.age(each.created_at)),
        Column("ERROR", lambda each: each.last_error or "", is_spare=True, style="dim"),
    ]
    output.rows(found, columns, empty="No notifications.")


@command(group, "targets")
async def targets(pool: db.Pool, tenant: TenantOption = None, limit: LimitOption = 50) -> None:
    """List the addresses that notifications go to."""
    tenant_id = await tenant_id_of(pool, tenant) if tenant else None
    found = await notifications.list_targets(pool, tenant_id=tenant_id, limit=limit)
    names = await tenants.names(pool, ids=(each.tenant_id for each in found))
    columns = [
        Column("ID", lambda each: str(each.id), style="dim"),
        Column("TENANT", lambda each: names.get(each.tenant_id, str(each.tenant_id))),
        Column("CHANNEL", lambda each: each.channel),
        Column("ADDRESS", lambda each: each.address),
        Column("EVENTS", lambda each: ", ".join(each.events)),
        Column("STATE", lambda each: "on" if each.is_enabled else each.disabled_reason or "off"),
    ]
    output.rows(found, columns, empty="No notification targets.")


@command(group, "add")
async def add(
    pool: db.Pool,
    channel: Annotated[ChannelOption, typer.Argument(show_default=False, help="email or webhook.")],
    address: Annotated[str, typer.Argument(show_default=False, help="E-mail address or URL.")],
    event: Annotated[
        list[EventOption] | None, typer.Option(help="What to send; repeat for several (default: alert).")
    ] = None,
    tenant: TenantOption = None,
) -> None:
    """Add or change a target. The secret of a new webhook is printed once and cannot be recovered."""
    made = await notifications.set_target(
        pool,
        channel=channel.value,
        address=address,
        events=[each.value for each in event or [EventOption.alert]],
        tenant_id=await tenant_id_of(pool, tenant) if tenant else None,
    )
    output.document({"id": made.id, "secret": made.secret}, lambda: print(made.secret or made.id))


@command(group, "remove")
async def remove(pool: db.Pool, target: TargetArgument) -> None:
    """Remove a target. Its queued messages are not sent."""
    await notifications.remove_target(pool, target_id=target)
    output.document({"id": target}, lambda: output.note("Removed."))


@command(group, "test")
async def test(pool: db.Pool, target: TargetArgument) -> None:
    """Queue a test message for a target."""
    made = await notifications.send_test(pool, target_id=target)
    output.document({"id": made}, lambda: output.note("Queued. See `penstock notifications ls`."))


@command(group, "rotate")
async def rotate(pool: db.Pool, target: TargetArgument) -> None:
    """Give a webhook a new secret and print it. For a day the old one signs as well."""
    secret = await notifications.rotate_secret(pool, target_id=target)
    output.document({"id": target, "secret": secret}, lambda: print(secret))
