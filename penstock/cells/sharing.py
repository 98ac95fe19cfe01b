"""Facts that all cells share: providers, prices, plans and the like are those of the directory's cell.

Provider limits hold for all cells together. Each cell enforces its part; nothing is checked across databases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from penstock.cells.addresses import Cell, one
from penstock.cells.checks import require_same_migrations
from penstock.postgres import db

# Parents first.
_TABLES = (
    "meters", "plans", "plan_prices", "gates", "exchange_rates", "kinds", "job_types", "job_params", "prices",
    "prompts", "provider_keys", "link_secrets",
)  # fmt: skip
_PROVIDER: tuple[str, ...] = (
    "status", "default_tokens", "backpressure_threshold", "backpressure_delay_seconds", "depth_limit",
    "features", "hosts",
)  # fmt: skip
_CLOSED = dict.fromkeys(
    ("requests_per_minute", "requests_per_hour", "tokens_per_minute", "tokens_per_hour", "concurrency"), 0
)


def apply(cells: Mapping[int, Cell]) -> dict[int, int]:
    """Make providers, prices and plans of each cell like those of the directory's cell.

    Returns the number of changed rows by cell. Safe to repeat.
    """
    own = next(iter(cells.values()))
    changed: dict[int, int] = {}
    with db.connect(own.database_url, name="penstock cells", wait_seconds=5) as directory:
        shared = {name: _value(directory, "_shared_rows", name) for name in _TABLES}
        columns = ", ".join(_PROVIDER)
        query = f"select name, {columns} from penstock.endpoints where tenant_id is null order by name"  # noqa: S608 our own names
        providers = directory.execute(query.encode()).fetchall()
        listed = directory.execute("select number from penstock.cells order by number").fetchall()
        for cell in (one(dict(cells), row["number"]) for row in listed if row["number"] != own.number):
            with db.connect(cell.database_url, name="penstock cells", wait_seconds=5) as connection:
                # A column that one of them does not have would be lost or emptied.
                require_same_migrations(directory, connection, own, cell)
                with connection.transaction():
                    connection.execute("select penstock.set_cell(%s)", (cell.number,))
                    changed[cell.number] = sum(
                        _value(connection, "_apply_shared", name, Jsonb(rows))
                        for name, rows in shared.items()
                    )
                there = {row["name"]: row for row in connection.execute(query.encode())}
                for provider in providers:
                    known = there.get(provider["name"])
                    if provider != known:
                        values = {name: provider[name] for name in _PROVIDER}
                        # A new one is closed until it has its part.
                        _set_provider(
                            connection, provider["name"], values if known else {**_CLOSED, **values}
                        )
                        changed[cell.number] += 1
    for number, count in rebalance(cells).items():
        changed[number] = changed.get(number, 0) + count
    return changed


def rebalance(cells: Mapping[int, Cell]) -> dict[int, int]:
    """Give each cell its part of every provider limit, by the cells' shares. Returns the changes by cell.

    Parts that shrink are written first, so that the cells together never exceed a limit.
    """
    own = next(iter(cells.values()))
    with db.connect(own.database_url, name="penstock cells", wait_seconds=5) as directory:
        listed = directory.execute("select number, share from penstock.cells order by number").fetchall()
        shares = {row["number"]: row["share"] for row in listed}
        if not shares:
            return {}
        names = directory.execute(
            "select name, penstock.set_cell_limits(name, '{}') as limits from penstock.endpoints"
            " where tenant_id is null order by name"
        ).fetchall()
        wanted: dict[int, dict[str, dict[str, Any]]] = {number: {} for number in shares}
        for row in names:
            parts = _value(directory, "split_limits", Jsonb(row["limits"]), list(shares.values()))
            for number, part in zip(shares, parts, strict=True):
                wanted[number][row["name"]] = part
    changed = dict.fromkeys(shares, 0)
    for is_shrinking in (True, False):
        for number, limits in wanted.items():
            changed[number] += _write_parts(one(dict(cells), number), limits, is_shrinking=is_shrinking)
    return changed


def _write_parts(cell: Cell, wanted: dict[str, dict[str, Any]], *, is_shrinking: bool) -> int:
    """Write the parts of one cell that shrink, or all that are left."""
    changed = 0
    with db.connect(cell.database_url, name="penstock cells", wait_seconds=5) as connection:
        rows = connection.execute("select * from penstock.endpoints where tenant_id is null")
        there = {row["name"]: row for row in rows}
        for name, part in wanted.items():
            # A cell that has just been added gets its providers with apply.
            values = {
                limit: amount
                for limit, amount in part.items()
                if name in there
                and amount != there[name][limit]
                and (not is_shrinking or _is_less(amount, there[name][limit]))
            }
            if values:
                _set_provider(connection, name, values)
                changed += 1
    return changed


def _is_less(amount: int | None, current: int | None) -> bool:
    return amount is not None and (current is None or amount < current)


def _set_provider(connection: db.SyncConnection, name: str, values: Mapping[str, Any]) -> None:
    connection.execute("select penstock.set_provider(%s, %s)", (name, Jsonb(dict(values))))


def _value(connection: db.SyncConnection, function: str, *arguments: Any) -> Any:
    places = ", ".join(["%s"] * len(arguments))
    query = f"select penstock.{function}({places}) as value"
    row = connection.execute(query.encode(), arguments).fetchone()
    assert row is not None
    return row["value"]
