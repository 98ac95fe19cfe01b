"""What is true before a tenant moves: both cells have the same schema, and know the same people."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from penstock.cells.addresses import Cell
from penstock.errors import Conflict, NotFound
from penstock.postgres import db

_FORMAT = (
    "set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres';"
    " set extra_float_digits = 1; set bytea_output = 'hex';"
    # The session of a command that was killed ends, and with it the locks that the next command waits for.
    " set client_connection_check_interval = '1s'"
)


@contextmanager
def opened(source: Cell, target: Cell) -> Generator[tuple[db.SyncConnection, db.SyncConnection]]:
    with (
        db.connect(source.database_url, name="penstock cells", wait_seconds=5) as old,
        db.connect(target.database_url, name="penstock cells", wait_seconds=5) as new,
    ):
        for connection in (old, new):
            connection.execute(_FORMAT)
        yield old, new


def check_move(source: Cell, target: Cell, tenant: UUID) -> None:
    """Reject a move that cannot succeed, before anything changes."""
    with opened(source, target) as (old, new):
        for connection, cell in ((old, source), (new, target)):
            is_owner = one_row(
                connection,
                "select pg_has_role(nspowner, 'member') as yes from pg_namespace where nspname = 'penstock'",
            )["yes"]
            if not is_owner:
                raise Conflict(f"the login of cell {cell.number} does not own the schema penstock")
            number = one_row(connection, "select value from penstock.settings where name = 'cell'")["value"]
            if number != cell.number:
                raise Conflict(
                    f"the database of cell {cell.number} says that it is cell {number}", code="invalid_cell"
                )
        require_same_schema(old, new, source, target)
        _require_same_people(old, new, tenant)


def require_same_schema(old: db.SyncConnection, new: db.SyncConnection, source: Cell, target: Cell) -> None:
    """Raise Conflict unless the new cell has all schemas of the old one, with the same migrations."""
    for row in old.execute("select * from penstock._platform_schemas()"):
        require_same_migrations(old, new, source, target, row["schema_name"])


def require_same_migrations(
    old: db.SyncConnection, new: db.SyncConnection, source: Cell, target: Cell, schema: str = "penstock"
) -> None:
    """Raise Conflict unless both cells have this schema, with the same migrations."""
    there = {row["schema_name"] for row in new.execute("select * from penstock._platform_schemas()")}
    query = f'select name from "{schema}".migrations order by name'  # noqa: S608 a name of the catalog
    if schema not in there or _names(old, query) != _names(new, query):
        raise Conflict(
            f"the schema {schema} differs between cells {source.number} and {target.number}",
            code="schema_differs",
            hint="Run penstock cells migrate first.",
        )


_OTHERS = """\
select i.user_id from penstock.identities i
join jsonb_to_recordset(%s) as r(issuer text, subject text, user_id uuid)
  on i.issuer = r.issuer and i.subject = r.subject and i.user_id <> r.user_id
union
select user_id from penstock.profiles where user_id = any (%s) and tenant_id <> %s"""


def _require_same_people(old: db.SyncConnection, new: db.SyncConnection, tenant: UUID) -> None:
    """Raise Conflict if the new cell knows a member by another account, or by one with another tenant."""
    identities = old.execute(
        "select issuer, subject, user_id::text from penstock.identities where user_id in"
        " (select user_id from penstock.members where tenant_id = %s)",
        (tenant,),
    ).fetchall()
    profiles = old.execute("select user_id from penstock.profiles where tenant_id = %s", (tenant,))
    own = [row["user_id"] for row in profiles]
    others = new.execute(_OTHERS, (Jsonb(identities), own, tenant)).fetchall()
    if others:
        raise Conflict(
            f"{len(others)} members of the tenant have another account in the new cell",
            code="accounts_differ",
            details={"users": [str(row["user_id"]) for row in others[:100]]},
            hint="Erase those accounts in the new cell (penstock members erase), then run the command again.",
        )


def cell_of(cells: dict[int, Cell], tenant: UUID) -> int:
    """The cell of a tenant that never moved: where it was made."""
    for number, cell in cells.items():
        with db.connect(cell.database_url, name="penstock cells", wait_seconds=5) as connection:
            if connection.execute("select 1 from penstock.tenants where id = %s", (tenant,)).fetchone():
                return number
    raise NotFound("there is no such tenant", code="unknown_tenant")


def _names(connection: db.SyncConnection, query: str) -> list[str]:
    return [row["name"] for row in connection.execute(query.encode())]


def one_row(connection: db.SyncConnection, query: str, arguments: Sequence[Any] = ()) -> db.Row:
    row = connection.execute(query.encode(), arguments).fetchone()
    assert row is not None
    return row
