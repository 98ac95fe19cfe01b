"""`penstock artifacts`: the files of jobs, and cleaning up storage."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.options import command
from penstock.cli.output import Column
from penstock.contract import artifacts
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.settings import settings
from penstock.storage import objects as storage
from penstock.types import KeptArtifact

group = typer.Typer(help="List and check files that jobs stored.", no_args_is_help=True)

_COLUMNS = [
    Column("NAME", lambda artifact: artifact.name),
    Column("TYPE", lambda artifact: artifact.type),
    Column("CONTENT TYPE", lambda artifact: artifact.content_type, is_spare=True),
    Column("BYTES", lambda artifact: str(artifact.bytes), is_right=True),
    Column("AGE", lambda artifact: output.age(artifact.stored_at)),
    Column("PATH", lambda artifact: artifact.path, is_wide=True, style="dim"),
]


def _kept_until(artifact: KeptArtifact) -> str:
    return f"{artifact.kept_until:%Y-%m-%d %H:%M}" if artifact.kept_until else "forever"


_KEPT_COLUMNS = [
    *_COLUMNS,
    Column("SUBJECT", lambda artifact: artifact.subject),
    Column("KEPT UNTIL", _kept_until),
]


@command(group, "ls")
async def ls(
    pool: db.Pool,
    job: Annotated[UUID | None, typer.Argument(show_default=False, help="Job id.")] = None,
    kept: Annotated[
        bool, typer.Option("--kept", help="Files that apps keep beyond retention_days, of all jobs.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of files.")] = 100,
) -> None:
    """List the files of a job, or the files that apps keep, oldest first."""
    if kept:
        found = await artifacts.list_kept(pool, job_id=job, limit=limit)
        output.rows(found, _KEPT_COLUMNS, empty="No kept files.")
    elif job is None:
        raise Invalid("name a job, or list the files that apps keep with --kept")
    else:
        output.rows(await artifacts.list(pool, job_id=job, limit=limit), _COLUMNS, empty="No files.")


@command(group, "sweep")
async def sweep(pool: db.Pool) -> None:
    """Delete files of deleted records, abandoned uploads and files without a record. Lists all of storage."""
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
    """List files that are missing from storage or have the wrong size. Exits with 1 if there are any."""
    found = [each async for each in artifacts.missing(pool, storage.of(settings()))]
    output.rows(found, _COLUMNS, empty="All files are present.")
    return 1 if found else 0
