"""What resolving entitlements costs beside reading the tenant by its key. `python -m bench.entitlements`

Also a claim without gates and with 20 gates, of which none concerns its tasks.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import psycopg
from psycopg.rows import dict_row

from bench import server
from penstock.postgres import migrate

_FILL = """
insert into penstock.tenants (name, plan)
select 'tenant ' || n, (array['free', 'basic', 'premium', 'enterprise'])[1 + n %% 4]
from generate_series(1, %s) as n"""
_USE = """
insert into penstock.accounts (tenant_id, meter, period, used, held)
select t.id, m.name, (penstock._period(m.name, penstock._now())).starts, 5, 0
from penstock.tenants t cross join (values ('tokens'), ('pages'), ('bytes')) as m(name)"""
_RESOLVE = "select penstock.resolve_entitlements(%s)"
_BARE = "select plan from penstock.tenants where id = %s"


def percentiles(times: list[float]) -> str:
    """Median and p99 in milliseconds."""
    ordered = sorted(times)
    high = ordered[len(ordered) * 99 // 100]
    return f"p50 {statistics.median(ordered) * 1000:.3f} ms, p99 {high * 1000:.3f} ms"


def timed(connection: psycopg.Connection[dict[str, Any]], query: Any, *values: Any) -> float:
    """Seconds of one query."""
    begin = time.perf_counter()
    connection.execute(query, values).fetchall()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=2000)
    arguments = parser.parse_args()
    with server.postgres() as running:
        dsn = running.create_database("entitlements")
        migrate.migrate(dsn)
        connection = psycopg.Connection[dict[str, Any]].connect(dsn, autocommit=True, row_factory=dict_row)
        connection.execute(_FILL, [arguments.tenants])
        connection.execute(_USE)
        for n in range(20):
            connection.execute(
                "select penstock.set_gate(%s, jsonb_build_object('feature', 'f' || %s, 'mode', 'enforce'))",
                [f"gate_{n}", n],
            )
        connection.execute("analyze")
        ids = [row["id"] for row in connection.execute("select id from penstock.tenants").fetchall()]
        resolve, bare = list[float](), list[float]()
        for n in range(arguments.calls + 100):
            id = random.choice(ids)
            some = timed(connection, _BARE, id), timed(connection, _RESOLVE, id)
            if n >= 100:
                bare.append(some[0])
                resolve.append(some[1])
        print(f"{arguments.tenants:,} tenants, 20 gates, {arguments.calls:,} calls")
        print(f"resolve_entitlements: {percentiles(resolve)}")
        print(f"select by primary key: {percentiles(bare)}")
        connection.close()


if __name__ == "__main__":
    main()
