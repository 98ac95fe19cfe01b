"""`penstock cells`: several databases, and the move of a tenant between them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from penstock.cli import output
from penstock.cli.options import TenantArgument, command, dsn, tenant_id_of
from penstock.cli.output import Column
from penstock.postgres import db
from penstock.settings import settings

if TYPE_CHECKING:
    from penstock import cells

group = typer.Typer(
    help="Manage several databases, and move tenants between them.\n\nDATABASE_URL is the database with the "
    "directory; the file PENSTOCK_CELLS has the others.",
    no_args_is_help=True,
)

CellArgument = Annotated[int, typer.Argument(metavar="CELL", min=0, max=1023, help="Number of the cell.")]


@dataclass(frozen=True, slots=True)
class Line:
    """A cell in the list."""

    number: int
    name: str
    share: float
    tenants: int | None
    moving: int
    state: str


async def _cells(pool: db.Pool) -> dict[int, cells.Cell]:
    from penstock import cells
    from penstock.contract import database_settings

    number = await database_settings.get(pool, name="cell")
    return cells.read(settings(), dsn(), int(number))


@command(group, "ls")
async def ls(pool: db.Pool) -> None:
    """List the cells with their share of provider limits and the number of their tenants."""

    known = await _cells(pool)
    rows = await db.rows(
        pool,
        "select c.number, c.name, c.share, (select count(*) from penstock.tenant_cells t"
        " where t.moving_to = c.number or t.moving_from = c.number) from penstock.cells c order by c.number",
        (),
    )
    found = [await asyncio.to_thread(_line, known, *row) for row in rows]
    columns = [
        Column("CELL", lambda line: str(line.number), is_right=True),
        Column("NAME", lambda line: line.name),
        Column("STATE", lambda line: line.state, is_status=True),
        Column("SHARE", lambda line: f"{line.share:g}", is_right=True),
        Column("TENANTS", lambda line: "" if line.tenants is None else f"{line.tenants:,}", is_right=True),
        Column("MOVING", lambda line: str(line.moving or ""), is_right=True),
    ]
    output.rows(found, columns, empty="One database, no cells. Add one: penstock cells add 1 NAME")


def _line(known: dict[int, cells.Cell], number: int, name: str, share: float, moving: int) -> Line:
    import psycopg

    from penstock.errors import PenstockError

    if number not in known:
        return Line(number, name, share, None, moving, "no address")
    try:
        with db.connect(known[number].database_url, name="penstock cells", wait_seconds=0) as connection:
            row = connection.execute(
                "select count(*) as count from penstock.tenants where suspended is distinct from 'frozen'"
            ).fetchone()
    except (PenstockError, psycopg.Error):
        return Line(number, name, share, None, moving, "away")
    return Line(number, name, share, row["count"] if row else None, moving, "ready")


@command(group, "add")
async def add(
    pool: db.Pool,
    number: CellArgument,
    name: Annotated[str, typer.Argument(show_default=False, help="Name of the cell.")],
    share: Annotated[float, typer.Option(help="Share of every provider limit, relative to other cells.")] = 1,
) -> None:
    """Add a cell, or change its name and share.

    Its database is migrated and has no tenants, or is the one in DATABASE_URL. Run `penstock cells apply`
    afterwards.
    """
    from penstock.cells.addresses import one

    known = await _cells(pool)
    cell, own = one(known, number), next(iter(known))
    async with db.pool(cell.database_url, name="penstock cells", max_size=1, wait_seconds=5) as there:
        await db.call(there, "set_cell", p_number=number)
    if number != own and not await db.rows(pool, "select from penstock.cells where number = %s", (own,)):
        await db.call(pool, "add_cell", p_number=own, p_name=f"cell-{own}", p_share=1.0)
    await db.call(pool, "add_cell", p_number=number, p_name=name, p_share=share)
    output.document({"cell": number, "name": name}, lambda: output.note(f"Added cell {number} ({name})."))


@command(group, "apply")
async def apply(pool: db.Pool) -> None:
    """Make providers, prices and plans of all cells like those of this one, and split provider limits.

    Safe to repeat. Nothing is deleted.
    """
    from penstock import cells

    _show_changes(await asyncio.to_thread(cells.apply, await _cells(pool)))


@command(group, "rebalance")
async def rebalance(
    pool: db.Pool,
    provider: Annotated[
        str | None, typer.Argument(metavar="PROVIDER", help="Change the total limits of this provider first.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Requests per minute of all cells.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Tokens per minute of all cells.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Concurrent requests of all cells.")] = None,
) -> None:
    """Split provider limits over the cells by their shares. Together they never exceed the total."""
    from penstock import cells
    from penstock.errors import Invalid

    totals = {
        name: value
        for name, value in (
            ("requests_per_minute", requests_per_minute),
            ("tokens_per_minute", tokens_per_minute),
            ("concurrency", concurrency),
        )
        if value is not None
    }
    if totals and provider is None:
        raise Invalid("limits need a provider", hint="penstock cells rebalance openai/gpt --concurrency 20")
    if provider is not None:
        await db.call(pool, "set_cell_limits", p_name=provider, p_limits=totals)
    _show_changes(await asyncio.to_thread(cells.rebalance, await _cells(pool)))


def _show_changes(changed: dict[int, int]) -> None:
    rows = [{"cell": number, "changes": count} for number, count in changed.items()]
    columns = [
        Column("CELL", lambda row: str(row["cell"]), is_right=True),
        Column("CHANGES", lambda row: str(row["changes"]), is_right=True),
    ]
    output.rows(rows, columns, empty="No cells. Add one: penstock cells add 1 NAME")


@command(group, "move")
async def move(
    pool: db.Pool,
    tenant: TenantArgument,
    to: CellArgument,
    seconds: Annotated[float, typer.Option(min=0, help="How long to wait for running tasks.")] = 3600,
    abort: Annotated[
        bool, typer.Option("--abort", help="End a move before its switch: the tenant stays where it was.")
    ] = False,
) -> None:
    """Move a tenant to another cell, or continue a move that was interrupted.

    Running tasks end in the old cell; everything else of the tenant goes along. Needs logins that own the
    schema.
    """
    from penstock import cells

    tenant_id = await _tenant(pool, tenant)
    output.confirm(f"{'End the move of' if abort else 'Move'} tenant {tenant}?")
    number = await asyncio.to_thread(
        cells.move,
        await _cells(pool),
        tenant_id,
        to,
        seconds=seconds,
        abort=abort,
        tell=lambda text: output.note(text, "dim"),
    )
    output.document(
        {"tenant": str(tenant_id), "cell": number}, lambda: output.note(f"{tenant} is in cell {number}.")
    )


async def _tenant(pool: db.Pool, text: str) -> UUID:
    """An id may be that of a tenant that this cell does not know."""
    try:
        return UUID(text)
    except ValueError:
        return await tenant_id_of(pool, text)


@command(group, "migrate")
async def migrate(pool: db.Pool) -> None:
    """Migrate all cells to this version's schema, one after the other."""
    from penstock.postgres import migrate

    rows: list[dict[str, Any]] = []
    for number, cell in (await _cells(pool)).items():
        done = await asyncio.to_thread(migrate.migrate, cell.database_url)
        rows += [{"cell": number, "migration": name} for name in done]
    columns = [
        Column("CELL", lambda row: str(row["cell"]), is_right=True),
        Column("MIGRATION", lambda row: row["migration"]),
    ]
    output.rows(rows, columns, empty="All cells are up to date.")


@command(group, "doctor")
async def doctor(pool: db.Pool) -> int:
    """Check all cells as `penstock doctor` does. Exits with 1 if a check fails."""
    from penstock import doctor

    rows = [
        {"cell": number, "check": check.name, "state": check.state, "finding": check.finding}
        for number, cell in (await _cells(pool)).items()
        for check in await doctor.examine(cell.database_url)
    ]
    columns = [
        Column("CELL", lambda row: str(row["cell"]), is_right=True),
        Column("CHECK", lambda row: row["check"]),
        Column("STATE", lambda row: row["state"], is_status=True),
        Column("FINDING", lambda row: row["finding"], is_wide=True),
    ]
    output.rows(rows, columns, empty="No cells.")
    return 1 if any(row["state"] == "fail" for row in rows) else 0
