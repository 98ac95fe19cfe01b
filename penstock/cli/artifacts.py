"""`penstock artifacts`: files of jobs, and what is left over in storage."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from penstock import artifacts, db, storage
from penstock.cli import output
from penstock.cli.options import command
from penstock.cli.output import Column
from penstock.settings import settings

group = typer.Typer(help="Files of jobs.", no_args_is_help=True)

_COLUMNS = [
    Column("NAME", lambda artifact: artifact.name),
    Column("TYPE", lambda artifact: artifact.content_type),
    Column("BYTES", lambda artifact: str(artifact.bytes), is_right=True),
    Column("STORED", lambda artifact: output.age(artifact.stored_at)),
    Column("PATH", lambda artifact: artifact.path, is_wide=True, style="dim"),
]


@command(group, "ls")
async def ls(
    pool: db.Pool,
    job: Annotated[UUID, typer.Argument(show_default=False, help="The job's id.")],
    limit: Annotated[int, typer.Option(help="How many at most.")] = 100,
) -> None:
    """List a job's files, oldest first."""
    output.rows(await artifacts.list(pool, job_id=job, limit=limit), _COLUMNS, empty="No files.")


@command(group, "sweep")
async def sweep(pool: db.Pool) -> None:
    """Remove what is deleted or given up, and files without a record. Reads the list of all files."""
    swept = await artifacts.sweep(pool, storage.of(settings()))
    output.document(
        swept._asdict(),
        lambda: output.note(
            f"Removed {output.counted(swept.records, 'record')} with their files, "
            f"and {output.counted(swept.files, 'file')} without a record."
        ),
    )


@command(group, "check")
async def check(pool: db.Pool) -> int:
    """List files that are not in storage, or not of their size. Exit code 1 if there are any."""
    found = [each async for each in artifacts.missing(pool, storage.of(settings()))]
    output.rows(found, _COLUMNS, empty="All files are there.")
    return 1 if found else 0
