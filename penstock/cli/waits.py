"""`penstock waits`: what tasks ask people, and the answers."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.jobs import LimitOption
from penstock.cli.options import command
from penstock.cli.output import Column
from penstock.contract import tenants, waits
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import TaskWait

group = typer.Typer(help="Show and answer what tasks ask people.", no_args_is_help=True)

FilterArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILTER", help="Filter, for example: status:open name:approval age:<1d"),
]
WaitArgument = Annotated[UUID, typer.Argument(metavar="ID", show_default=False, help="Wait id.")]


@command(group, "ls")
async def ls(
    pool: db.Pool,
    filter: FilterArgument = None,
    limit: LimitOption = 50,
    before: Annotated[UUID | None, typer.Option(metavar="ID", help="Only waits older than this one.")] = None,
) -> None:
    """List what tasks ask, newest first."""
    found = await waits.list(pool, filter=" ".join(filter or []), before=before, limit=limit)
    names = await tenants.names(pool, ids=(wait.tenant_id for wait in found))
    columns = [
        Column("ID", lambda wait: str(wait.id)),
        Column("STATUS", lambda wait: wait.status),
        Column("NAME", lambda wait: wait.name),
        Column("TASK", lambda wait: f"{wait.task_kind} {wait.task_id}", is_spare=True),
        Column("TENANT", lambda wait: names.get(wait.tenant_id, str(wait.tenant_id)), is_spare=True),
        Column("AGE", lambda wait: output.age(wait.asked_at), is_right=True),
        Column("OPTIONS", lambda wait: ", ".join(wait.options)),
        Column("MESSAGE", lambda wait: wait.message or "", is_wide=True, style="dim"),
    ]
    output.rows(found, columns, empty="No waits." if not filter else "No matching waits.")


@command(group, "show")
async def show(pool: db.Pool, wait_id: WaitArgument) -> None:
    """Show what a task asks, and the answer."""
    wait = await waits.get(pool, wait_id=wait_id)
    output.document(wait, lambda: _show(wait))


def _show(wait: TaskWait) -> None:
    fields = ", ".join(f"{name}: {kind}" for name, kind in wait.fields.items())
    answer = " ".join(part for part in (wait.option, json.dumps(wait.payload)) if part)
    output.fields(
        [
            ("wait", str(wait.id)),
            ("name", wait.name),
            ("status", wait.status),
            ("message", wait.message or ""),
            ("options", ", ".join(wait.options)),
            ("fields", fields),
            ("may answer", ", ".join(wait.roles)),
            ("times out", "never" if wait.until is None else f"{wait.until:%Y-%m-%d %H:%M:%S %Z}"),
            ("default", wait.default_option or ""),
            ("task", f"{wait.task_id} ({wait.task_kind})"),
            ("job", str(wait.job_id)),
            ("answer", f"{answer} by {wait.ended_by}" if wait.status == "answered" else ""),
        ]
    )


@command(group, "answer")
async def answer(
    pool: db.Pool,
    wait_id: WaitArgument,
    option: Annotated[str | None, typer.Argument(show_default=False, help="One of the options.")] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A field of the payload; JSON, or else text."),
    ] = None,
) -> None:
    """Answer: the task runs on. The first answer counts."""
    wait = await waits.get(pool, wait_id=wait_id)
    is_new = await waits.answer(pool, wait_id=wait_id, option=option, payload=_payload(wait, values or []))
    text = f"Answered {wait.name}." if is_new else f"{wait.name} had this answer before."
    output.document({"is_new": is_new}, lambda: output.note(text))


def _payload(wait: TaskWait, values: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in values:
        name, is_pair, text = each.partition("=")
        if not is_pair:
            raise Invalid(f"--set must be NAME=VALUE (got {each!r})")
        found[name] = _value(text, wait.fields.get(name, "any"))
    return found


def _value(text: str, kind: str) -> Any:
    """The value with the type that the field has: a text stays a text, even if it looks like a number."""
    if kind.startswith("text"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
