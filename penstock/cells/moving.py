"""Moves a tenant to another cell: pause, drain, copy, verify, switch, activate, remove.

The directory records each step after it is done, so a move that was interrupted continues where it was. Until
the switch the tenant belongs to the old cell, and is frozen there before the first row is copied; from the
switch on it belongs to the new one. It is never active in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from psycopg.types.json import Jsonb

from penstock.cells.addresses import Cell, one
from penstock.cells.checks import cell_of, check_move, one_row, opened, require_same_schema
from penstock.errors import Conflict, TimedOut
from penstock.postgres import db

GRACE_SECONDS = 60
"""How long the old rows stay after the switch: API processes that have not noticed it still read them."""
_BEFORE_SWITCH = ("drain", "copy", "verify", "switch")
_COPIES = 3
_BATCH = 20_000
_WAIT_SECONDS = 0.2
_FIRST = ("penstock.tenants", "penstock.endpoints", "penstock.prices")
_MAPPED = {"lane_id": "lane", "gated_lane_id": "lane", "endpoint_id": "endpoint", "price_id": "price"}
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with rows of the tenant."""

    name: str
    columns: list[str]
    condition: str
    is_merged: bool


@dataclass(slots=True)
class Move:
    """A move under way: connections to the directory, the old and the new cell."""

    tenant: UUID
    directory: db.SyncConnection
    source: db.SyncConnection
    target: db.SyncConnection
    deadline: float
    tell: Tell

    def record(self, step: str | None, counts: dict[str, int] | None = None) -> str | None:
        """Record the next step in the directory."""
        row = one_row(
            self.directory,
            "select (penstock.record_move(%s, %s, %s)).step",
            (self.tenant, step, Jsonb(counts) if counts else None),
        )
        return row["step"]

    def wait(self, what: str) -> None:
        """Wait a moment for `what`, up to the deadline of the move."""
        if time.monotonic() > self.deadline:
            raise TimedOut(
                f"the move has waited too long for {what}",
                hint="Run the command again to continue, or end the move with --abort.",
            )
        time.sleep(_WAIT_SECONDS)


def move(
    cells: dict[int, Cell],
    tenant: UUID,
    to: int,
    *,
    seconds: float = 3600,
    abort: bool = False,
    tell: Tell = lambda _: None,
) -> int:
    """Move a tenant to another cell, or continue a move. Returns the number of its cell afterwards."""
    own = next(iter(cells.values()))
    with opened(own, own) as (directory, _), _only_mover(own, tenant):
        placed = directory.execute(
            "select cell, moving_to from penstock.tenant_cells where tenant_id = %s", (tenant,)
        ).fetchone()
        home = placed["cell"] if placed else cell_of(cells, tenant)
        one(cells, to)
        if placed is None or placed["moving_to"] is None:
            if home == to or abort:
                return home
            check_move(one(cells, home), cells[to], tenant)
        begun = one_row(directory, "select * from penstock.begin_move(%s, %s, %s)", (tenant, home, to))
        # After the switch, `cell` is already the new one.
        source = one(cells, home if begun["moving_from"] is None else begun["moving_from"])
        with opened(source, cells[to]) as (old, new):
            moving = Move(tenant, directory, old, new, time.monotonic() + seconds, tell)
            if abort:
                _abort(moving, begun["step"])
                return begun["cell"]
            step: str | None = begun["step"]
            if step in _BEFORE_SWITCH:
                # Perhaps hours after the move began: one of the cells may have been migrated since.
                require_same_schema(old, new, source, cells[to])
            while step is not None:
                tell(step)
                step = _STEPS[step](moving)
    return to


@contextmanager
def _only_mover(own: Cell, tenant: UUID) -> Generator[None]:
    """Keep a second command from moving the same tenant. The lock ends with this process."""
    with db.connect(own.database_url, name="penstock cells") as guard, guard.transaction():
        guard.execute(
            "select set_config(name, '0', true) from pg_settings"
            " where name in ('idle_in_transaction_session_timeout', 'transaction_timeout')"
        )
        key = f"penstock.move:{tenant}"
        got = one_row(guard, "select pg_try_advisory_xact_lock(hashtextextended(%s, 0)) as got", (key,))[
            "got"
        ]
        if not got:
            raise Conflict("another command is moving this tenant", code="move_in_progress")
        yield


# The steps. Each may run again after a crash.


def _drain(move: Move) -> str | None:
    _suspend(move.source, move.tenant, "draining")
    _wait_for_older(move)
    while True:
        left = one_row(move.source, "select * from penstock._drain_tenant(%s)", (move.tenant,))
        if not any(left.values()):
            break
        if left["leases"]:
            # Workers of this cell do this, too; there may be none.
            move.source.execute("select penstock.reclaim_stale_tasks()")
        if not left["jobs"] or left["leases"]:
            move.wait(f"{left['leases']} running tasks" if left["leases"] else "messages that are being sent")
    # A handler may have started a job as its last act.
    _suspend(move.source, move.tenant, "frozen")
    _wait_for_older(move)
    left = one_row(move.source, "select * from penstock._drain_tenant(%s)", (move.tenant,))
    while any(left.values()):
        move.wait("tasks that started before the tenant was frozen")
        left = one_row(move.source, "select * from penstock._drain_tenant(%s)", (move.tenant,))
    return move.record("copy")


def _suspend(connection: db.SyncConnection, tenant: UUID, level: str | None) -> None:
    connection.execute("select penstock._suspend_tenant(%s, %s)", (tenant, level))


def _gate_holders(move: Move) -> set[str]:
    """Transactions that may have read whether the tenant is suspended: each holds a lock until it ends."""
    query = (
        "select virtualtransaction as id from pg_locks"
        " where relation = 'penstock.tenants'::regclass and pid <> pg_backend_pid()"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    return {row["id"] for row in move.source.execute(query)}


def _wait_for_older(move: Move) -> None:
    """Wait for the transactions that may not have seen the suspension."""
    older = _gate_holders(move)
    while older & _gate_holders(move):
        move.wait("older transactions")


def _copy(move: Move) -> str | None:
    _copy_once(move)
    return move.record("verify")


def _copy_once(move: Move) -> None:
    """Copy all rows from one snapshot, in one transaction of the new cell."""
    with move.target.transaction():
        _clear_target(move)
        with move.source.transaction():
            move.source.execute("set transaction isolation level repeatable read")
            _copy_tables(move)


def _clear_target(move: Move) -> None:
    """Remove what an earlier copy, or an earlier stay of the tenant, has left in the new cell."""
    found = move.target.execute("select from penstock.tenants where id = %s", (move.tenant,)).fetchone()
    while (
        found is not None
        and one_row(
            move.target,
            "select penstock._delete_tenant_rows(%s, %s, false) as name",
            (move.tenant, _BATCH),
        )["name"]
    ):
        if (
            move.target.execute("select from penstock.tenants where id = %s", (move.tenant,)).fetchone()
            is None
        ):
            break


def _copy_tables(move: Move) -> None:
    tables = [
        Table(row["name"], row["columns"], row["condition"], row["is_merged"])
        for row in move.source.execute("select * from penstock._tenant_tables(%s)", (move.tenant,))
    ]
    move.target.execute("select set_config('penstock.moving', 'on', true)")
    numbers = one_row(
        move.source,
        "select (select last_value from penstock.lease_numbers) as leases,"
        " (select last_value from penstock.change_seqs) as changes",
    )
    move.target.execute("select penstock._exceed_sequences(%(leases)s, %(changes)s)", numbers)
    move.source.execute(
        "create temp table moved_ids (what text, old bigint, new bigint, primary key (what, old))"
        " on commit drop"
    )
    # Parents come first. The tenant's own endpoints and prices exist before any row that names one.
    tables.sort(key=lambda table: _FIRST.index(table.name) if table.name in _FIRST else len(_FIRST))
    for number, table in enumerate(tables):
        if number == len(_FIRST):
            _map_ids(move)
        _copy_table(move, table)
    _copy_rows(
        move,
        "penstock.parked",
        ["task_id", *_PARKED],
        f"select task_id, {', '.join(_PARKED)} from ("  # noqa: S608 our own names
        f"select (penstock._ready_to_parked(r, 'infinity', 'paused')).* from penstock.ready r where tenant_id = '{move.tenant}') as t",  # noqa: E501
    )


_PARKED = (
    "job_id", "tenant_id", "lane_id", "priority", "phase", "failures", "deaths", "has_parents", "has_children",  # noqa: E501
    "pending", "until", "reason",
)  # fmt: skip


def _map_ids(move: Move) -> None:
    """Lanes, endpoints and prices have numbers of their own in each cell."""
    used = " union ".join(
        f"select {column} from penstock.{table} where tenant_id = %(tenant)s"  # noqa: S608
        for table, column in (
            ("tasks", "lane_id"), ("parked", "lane_id"), ("ready", "lane_id"), ("operations", "gated_lane_id")
        )
    )  # fmt: skip
    lanes = move.source.execute(
        f"select id, kind, provider, is_gated from penstock.lanes where id in ({used})".encode(),  # noqa: S608 our own names
        {"tenant": move.tenant},
    ).fetchall()
    found = [
        (r["what"], r["old"], r["new"])
        for r in move.target.execute(
            "select * from penstock._begin_arrival(%s, %s)", (move.tenant, Jsonb(lanes))
        )
    ]
    for what, key in (
        ("endpoint", "tenant_id, provider, endpoint"),
        ("price", "tenant_id, provider, meter, variant, valid_from"),
    ):
        query = (
            f"select id, array[{', '.join(f'({k.strip()})::text' for k in key.split(','))}] as key"  # noqa: S608 our own names
            f" from penstock.{what}s where tenant_id is null or tenant_id = %s"
        ).encode()
        there = {tuple(r["key"]): r["id"] for r in move.target.execute(query, (move.tenant,))}
        here = {r["id"]: tuple(r["key"]) for r in move.source.execute(query, (move.tenant,))}
        found += [(what, old, there[key]) for old, key in here.items() if key in there]
    with move.source.cursor() as cursor:
        cursor.executemany("insert into moved_ids values (%s, %s, %s)", found)


def _copy_table(move: Move, table: Table) -> None:
    if table.name == "penstock.usage_sums":
        return _copy_rows(
            move,
            table.name,
            ["tenant_id", "action", "day", "meter", "amount", "is_fresh"],
            "select tenant_id, action, day, meter, sum(amount) as amount, false as is_fresh from penstock.usage_sums"  # noqa: E501, S608
            f" where {table.condition} group by 1, 2, 3, 4",
        )
    columns = ", ".join(f'"{c}"' for c in table.columns)
    query = f"select {columns} from {table.name} where {table.condition}"  # noqa: S608 names of the catalog
    if table.name == "penstock.audit_log":
        query += " order by id"
    return _copy_rows(move, table.name, table.columns, query, is_merged=table.is_merged)


def _copy_rows(move: Move, name: str, columns: Sequence[str], query: str, *, is_merged: bool = False) -> None:
    shown = ", ".join(
        f"(select m.new from moved_ids m where m.what = '{_MAPPED[c]}' and m.old = t.\"{c}\")"  # noqa: S608
        if c in _MAPPED and name.startswith("penstock.")
        else f't."{c}"'
        for c in columns
    )
    quoted = ", ".join(f'"{c}"' for c in columns)
    into = name
    if is_merged:
        into = "arriving"
        move.target.execute(
            f"create temp table arriving on commit drop as select {quoted} from {name} limit 0".encode()  # noqa: S608
        )
    with (
        move.source.cursor().copy(f"copy (select {shown} from ({query}) as t) to stdout".encode()) as out,  # noqa: S608
        move.target.cursor().copy(f"copy {into} ({quoted}) from stdin".encode()) as incoming,
    ):
        for block in out:
            incoming.write(block)
    if is_merged:
        missing, conflict = f"select {quoted} from arriving", "do nothing"  # noqa: S608 names of the catalog
        if name == "penstock.webhooks":
            # Each cell gets every event, and ignores those of tenants that it does not have.
            values = ", ".join(f'"{c}" = excluded."{c}"' for c in columns)
            conflict = f"(source, key) do update set {values} where {name}.outcome = 'ignored'"
        if name == "penstock.audit_log":
            # Lines have no key. An equality of whole rows is hashed; a condition for each column is not.
            there = f"select {quoted} from {name} where tenant_id = '{move.tenant}'"  # noqa: S608
            missing += f" except all {there} order by at"
        move.target.execute(f"insert into {name} ({quoted}) {missing} on conflict {conflict}".encode())
        move.target.execute("drop table arriving")


def _verify(move: Move) -> str | None:
    differing: list[str] = []
    for _ in range(_COPIES):
        differing, counts = _differences(move)
        if not differing:
            return move.record("switch", counts)
        # Upkeep of the old cell changed a row, such as a hold that expired: copy again.
        move.tell(f"copied again, because of {', '.join(differing)}")
        _copy_once(move)
    raise Conflict(
        f"the copy differs from the tenant's rows in {', '.join(differing)}",
        code="copy_differs",
        hint="Run the command again, or end the move with --abort.",
    )


def _differences(move: Move) -> tuple[list[str], dict[str, int]]:
    here, there = _fingerprint(move.source, move.tenant), _fingerprint(move.target, move.tenant)
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return differing, {name: rows for name, (rows, _) in here.items()}


def _fingerprint(connection: db.SyncConnection, tenant: UUID) -> dict[str, tuple[int, str]]:
    rows = connection.execute("select * from penstock._tenant_fingerprint(%s)", (tenant,))
    return {row["name"]: (row["rows"], row["digest"]) for row in rows}


def _switch(move: Move) -> str | None:
    # The tenant is frozen in both cells. This one statement decides where it belongs.
    return move.record("activate")


def _activate(move: Move) -> str | None:
    _copy_webhooks(move)
    _suspend(move.target, move.tenant, None)
    while one_row(move.target, "select penstock._resume_moved(%s) as count", (move.tenant,))["count"]:
        pass
    return move.record("remove")


def _copy_webhooks(move: Move) -> None:
    """Bring over the events that reached the old cell after the copy, and the new one before it."""
    query = "select * from penstock._tenant_tables(%s) where name = 'penstock.webhooks'"
    table = one_row(move.source, query, (move.tenant,))
    with move.target.transaction():
        _copy_table(move, Table(table["name"], table["columns"], table["condition"], is_merged=True))


def _remove(move: Move) -> str | None:
    query = (
        "select penstock._now() > switched_at + make_interval(secs => %s) as over, counts"
        " from penstock.tenant_cells where tenant_id = %s"
    )
    while not (state := one_row(move.directory, query, (GRACE_SECONDS, move.tenant)))["over"]:
        move.wait("processes that have not noticed the move")
    _refuse_late_rows(move, state["counts"])
    while one_row(
        move.source, "select penstock._delete_tenant_rows(%s, %s, true) as name", (move.tenant, _BATCH)
    )["name"]:
        pass
    return move.record(None)


def _refuse_late_rows(move: Move, counts: dict[str, int]) -> None:
    """Keep the old rows if something was added to them after the copy: it would be lost."""
    now = _fingerprint(move.source, move.tenant)
    late = sorted(name for name, (rows, _) in now.items() if rows > counts.get(name, 0))
    if late:
        raise Conflict(
            f"the old cell got rows after the copy, in {', '.join(late)}",
            code="late_rows",
            details={"tables": late},
            hint="Bring them over by hand: the old rows stay until then.",
        )


def _abort(move: Move, step: str) -> None:
    """End a move before the switch: the tenant goes on in its old cell."""
    if step in ("activate", "remove"):
        raise Conflict(
            "the tenant has already switched", code="already_switched", hint="Move it back instead."
        )
    # First, so that a command that lost its lock and still runs cannot switch to rows that are gone.
    if step != "drain":
        move.record("drain")
    with move.target.transaction():
        _clear_target(move)
    _suspend(move.source, move.tenant, None)
    while one_row(move.source, "select penstock._resume_moved(%s) as count", (move.tenant,))["count"]:
        pass
    move.record(None)


_STEPS: dict[str, Callable[[Move], str | None]] = {
    "drain": _drain,
    "copy": _copy,
    "verify": _verify,
    "switch": _switch,
    "activate": _activate,
    "remove": _remove,
}
