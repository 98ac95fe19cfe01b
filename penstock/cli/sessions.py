"""`penstock sessions`: dashboard sessions."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.options import command
from penstock.cli.output import Column
from penstock.contract import sessions
from penstock.errors import Invalid
from penstock.postgres import db

group = typer.Typer(help="Manage dashboard sessions.", no_args_is_help=True)

_ID = typer.Argument(metavar="ID", show_default=False, help="Session id.")


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Invalid(f"invalid id {text!r}", code="usage", hint="See `penstock sessions ls`.") from None


@command(group, "ls")
async def ls(
    pool: db.Pool,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Only of this user or key.")] = None,
) -> None:
    """List live dashboard sessions."""
    found = await sessions.list(pool, subject=_id(user) if user else None)
    columns = [
        Column("ID", lambda session: str(session.id), style="dim"),
        Column("WHO", lambda session: str(session.subject or "service token")),
        Column("ROLE", lambda session: session.role, is_spare=True),
        Column("LAST USED", lambda session: output.age(session.last_seen_at)),
        Column("BROWSER", lambda session: session.user_agent or "unknown", is_spare=True),
    ]
    output.rows(found, columns, empty="No sessions.")


@command(group, "end")
async def end(pool: db.Pool, session: Annotated[str, _ID]) -> None:
    """End a dashboard session at once. Asks for confirmation."""
    session_id = _id(session)
    output.confirm(f"End session {session_id}?")
    await sessions.end(pool, session_id=session_id)
    output.document({"id": session_id}, lambda: output.note("Ended."))
