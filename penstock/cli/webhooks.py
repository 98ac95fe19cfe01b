"""`penstock webhooks`: what other systems sent."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import command
from penstock.cli.output import Column
from penstock.contract import webhooks
from penstock.postgres import db
from penstock.types import Webhook

group = typer.Typer(help="Show and replay webhooks.", no_args_is_help=True)

FilterArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILTER", help="Filter, for example: source:stripe outcome:failed age:<1d"),
]
SourceArgument = Annotated[str, typer.Argument(metavar="SOURCE", show_default=False, help="Who sent it.")]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="The event's id.")]


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: FilterArgument = None,
    limit: LimitOption = 50,
    before: Annotated[datetime | None, typer.Option(metavar="TIME", help="Only those before.")] = None,
) -> None:
    """List webhooks, newest first."""
    found = await webhooks.list(pool, filter=" ".join(filter or []), before=before, limit=limit)
    columns = [
        Column("SOURCE", lambda each: each.source),
        Column("KEY", lambda each: each.key),
        Column("TYPE", lambda each: each.type),
        Column("OUTCOME", lambda each: each.outcome or ""),
        Column("DELIVERIES", lambda each: str(each.deliveries), is_right=True),
        Column("TRIES", lambda each: str(each.attempts), is_right=True),
        Column("AGE", lambda each: output.age(each.received_at), is_right=True),
        Column("ERROR", lambda each: each.error or "", is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No webhooks." if not filter else "No matching webhooks.")


@command(group, "show")
async def show(pool: db.Pool, source: SourceArgument, key: KeyArgument) -> None:
    """Show a webhook with its payload."""
    found = await webhooks.get(pool, source=source, key=key)
    output.document(found, lambda: _show(found))


def _show(found: Webhook) -> None:
    again = found.next_try_at
    output.fields(
        [
            ("source", found.source),
            ("key", found.key),
            ("type", found.type),
            ("outcome", found.outcome or ""),
            ("error", found.error or ""),
            (
                "received",
                f"{found.received_at:%Y-%m-%d %H:%M:%S %Z}, {output.counted(found.deliveries, 'time')}",
            ),
            ("tries", str(found.attempts)),
            ("next try", f"{again:%Y-%m-%d %H:%M:%S %Z}" if again else ""),
            ("payload", json.dumps(found.payload)),
        ]
    )


@command(group, "replay")
async def replay(pool: db.Pool, source: SourceArgument, key: KeyArgument) -> None:
    """Process a webhook again, also one that was applied. A server with its handler does it."""
    await webhooks.replay(pool, source=source, key=key)
    output.document(
        {"source": source, "key": key}, lambda: output.note(f"{source} {key} is processed again.")
    )
