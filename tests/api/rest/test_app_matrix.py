"""What must hold for the schema of every app: who may read and write what, over PostgREST's protocol."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, testing
from penstock.apps.intake.app import app as intake
from penstock.apps.video_ideas.app import app as video_ideas
from penstock.postgres import db as database
from penstock.postgres import migrate
from tests.api.rest.conftest import Person, Site
from tests.api.rest.test_writing import send, shelf, site
from tests.bookshelf.app import make_app

__all__ = ["shelf", "site"]

OWNERS = {"tenant_id", "user_id"}
UNIQUE_KEYS = """
select c.relname as name, array(
  select a.attname::text from unnest(i.indkey) with ordinality as k(n, place)
  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.n order by k.place) as columns
from pg_index i join pg_class c on c.oid = i.indrelid
where i.indisunique and c.relnamespace = to_regnamespace(%s)"""


@pytest.mark.every_postgres
@pytest.mark.parametrize(
    "each", [video_ideas, intake, make_app()], ids=["video_ideas", "intake", "bookshelf"]
)
def test_every_apps_schema_keeps_the_rules(db: testing.Database, each: App) -> None:
    """R2.10/apps, S11, S15, S20: policies name the owner, unique keys begin with it, writes are listed tables."""
    assert each.own
    schema = each.own.schema
    each.migrate(db.dsn)
    with database.connect(db.dsn) as connection:
        assert migrate.breaches(connection, schema) == []
    for policy in db.execute("select * from pg_policies where schemaname = %s", [schema]):
        if policy["roles"] == ["authenticated"]:
            condition = policy["qual"] or policy["with_check"]
            is_owned = any(word in condition for word in ("my_tenants()", "auth.uid()", "is_member("))
            assert is_owned, policy["policyname"]
            assert policy["cmd"] in ("SELECT", "DELETE") or policy["with_check"] == condition
    relations = {row["relname"] for row in db.execute(
        "select relname from pg_class where relnamespace = to_regnamespace(%s)", [schema])}  # fmt: skip
    assert each.writable_tables <= relations
    keys = [row for row in db.execute(UNIQUE_KEYS, [schema]) if row["name"] in each.writable_tables]
    assert [row for row in keys if row["columns"][0] not in OWNERS] == []
    functions = db.execute(
        "select proname, has_function_privilege('authenticated', oid, 'execute') as is_users from pg_proc "
        "where pronamespace = to_regnamespace(%s)", [schema])  # fmt: skip
    known = {row["proname"]: row["is_users"] for row in functions}
    assert {name: known[name] for name in each.worker_functions} == dict.fromkeys(
        each.worker_functions, False
    )


def test_nobody_reaches_another_users_rows(site: Site, ann: Person, bob: Person) -> None:
    """R0.9/own-rows, S6: every relation of the app, every verb, by another user and by nobody."""
    site.db.execute("insert into bookshelf.notes (user_id, title) values (%s, 'canary')", [ann.id])
    site.db.execute("insert into bookshelf.loans (tenant_id, book) values (%s, 'canary')", [ann.tenant])
    site.db.execute("insert into bookshelf.visits (tenant_id) values (%s)", [ann.tenant])
    site.db.execute("insert into bookshelf.jobs (tenant_id, name) values (%s, 'canary')", [ann.tenant])
    before = everything(site)
    columns = {"notes": "title", "loans": "book", "visits": "tenant_id", "jobs": "name", "loan_list": "book"}
    for table, column in columns.items():
        assert len(site.get(f"{table}?select={column}", ann.token).json()) == 1
        assert site.get(f"{table}?select={column}", bob.token).json() == []
        assert site.get(f"{table}?select={column}", site.anon_key).status_code == 401
        for method, body in (("PATCH", {column: "x"}), ("DELETE", None)):
            for by in (bob.token, site.anon_key, site.key("worker")):
                done = send(site, method, f"{table}?{column}=not.is.null", by, body)
                assert done.status_code in (204, 401, 403, 405), (table, method, done.text)
    assert everything(site) == before


def everything(site: Site) -> list[list[dict[str, Any]]]:
    tables = ("notes", "loans", "visits", "jobs")
    return [site.db.execute(f"select * from bookshelf.{table}") for table in tables]
