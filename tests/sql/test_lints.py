"""What Supabase's linter asks of a schema, over Penstock's own and an app's."""

from __future__ import annotations

import pytest

from penstock import testing
from penstock.apps.video_ideas.app import app
from penstock.postgres import migrate

pytestmark = pytest.mark.every_postgres

UNINDEXED_FOREIGN_KEYS = """
select format('%s (%s)', c.conrelid::regclass, string_agg(a.attname, ', ' order by k.place)) as found
from pg_constraint c
cross join unnest(c.conkey) with ordinality as k (number, place)
join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number
where c.contype = 'f' and c.connamespace in ('penstock'::regnamespace, 'video_ideas'::regnamespace)
  and not exists (
    select from pg_index i
    where i.indrelid = c.conrelid and i.indisvalid
      and (i.indkey::smallint[])[0:cardinality(c.conkey) - 1] @> c.conkey)
group by c.oid, c.conrelid
"""
# Kinds are never deleted, and every claim reads and writes lanes.
NEEDS_NO_INDEX = {"penstock.lanes (kind)"}

MUTABLE_SEARCH_PATHS = """
select p.oid::regproc::text as found from pg_proc p
where p.pronamespace in ('penstock'::regnamespace, 'video_ideas'::regnamespace)
  and not exists (select from unnest(p.proconfig) as c where c like 'search_path=%')
"""
# A function with a path is not inlined. These run with their caller's rights and name the schema of whatever they use.
INLINED = {
    "penstock._now": "part of every statement: 0.1 µs, and 1.0 µs with a path",
    "penstock._call_size": "once for each task of a claim from a limited lane: 0.1 µs, and 3.1 µs with a path",
    "penstock._slot_ends": "once for each slot of a window, up to 240 in a claim: 0.1 µs, and 1.5 µs with a path",
    "penstock._bulk_row_state": "once for each row of a bulk job's list: 20 µs, and 46 µs with a path",
    "penstock._claimed_task": "once for each claimed task; inlined into the claim's query, which fixes its plan",
    "penstock._parked_to_ready": "once for each task that moves",
    "penstock._lease_to_ready": "once for each task that moves",
    "penstock._ready_to_parked": "once for each task that moves",
    "penstock._phase_of": "once for each kind of new tasks; inlined into the queries that insert and count them",
}


@pytest.fixture
def both(db: testing.Database) -> testing.Database:
    """Penstock as it is shipped (the tests' clock is another function), and an app beside it."""
    migrate.migrate(db.dsn)
    assert app.own
    migrate.migrate(db.dsn, folder=app.own.folder, schema=app.own.schema)
    return db


def test_every_foreign_key_has_an_index(both: testing.Database) -> None:
    """`unindexed_foreign_keys`: deleting the row that others refer to reads no whole table."""
    assert {row["found"] for row in both.execute(UNINDEXED_FOREIGN_KEYS)} == NEEDS_NO_INDEX


def test_every_function_has_a_fixed_search_path(both: testing.Database) -> None:
    """`function_search_path_mutable` (R2.10)."""
    assert {row["found"] for row in both.execute(MUTABLE_SEARCH_PATHS)} == set(INLINED)
