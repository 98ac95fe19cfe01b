"""The schemas of the apps: who may read, write and call what, and whether these checks would notice a hole."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock import App, testing
from penstock.apps.intake.app import app as intake
from penstock.apps.notes.app import app as notes
from penstock.apps.slides.app import app as slides
from penstock.apps.video_ideas.app import app as video_ideas
from penstock.postgres import migrate
from tests.sql.conftest import Contract, prepare
from tests.sql.test_access import (
    DENIED,
    FUNCTIONS,
    GRANTS,
    RELATIONS,
    ROLES,
    Person,
    World,
    acting,
    join,
    populate,
    privileges,
)

DOCUMENT = Path(__file__).parents[2] / "docs/apps/access.md"
APPS: dict[str, App] = {"intake": intake, "notes": notes, "slides": slides, "video_ideas": video_ideas}
OWNERS = ("tenant_id", "user_id")
COLUMNS = """
select a.attname as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as is_required,
  a.atthasdef as has_default
from pg_attribute a
where a.attrelid = %s and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity = ''
order by a.attnum"""
CHECKS = """
select format('alter table %%s drop constraint %%I', conrelid::regclass, conname) as statement
from pg_constraint where contype = 'c' and connamespace = %s::regnamespace"""
POLICIES = "select * from pg_policies where schemaname = %s order by tablename, policyname"


@dataclass
class Site:
    """The schema of an app, in which two users have a row in each table that can have one."""

    app: str
    sql: Contract
    world: World
    stranger: Person

    def rows(self, query: str, *values: Any) -> list[Any]:
        """The first column."""
        return [next(iter(row.values())) for row in self.sql.execute(query, *values)]

    def catalogue(self, query: str) -> list[dict[str, Any]]:
        """The answer of a query of test_access, for this schema."""
        return self.sql.execute(query.replace("'penstock'", f"'{self.app}'"))

    @property
    def tables(self) -> list[dict[str, Any]]:
        return [each for each in self.catalogue(RELATIONS) if not each["is_view"]]

    def relations(self, only: str | None) -> list[dict[str, Any]]:
        """All tables and views, or the one with this name."""
        return [each for each in self.catalogue(RELATIONS) if only in (None, each["name"])]

    def owner_of(self, relation: dict[str, Any]) -> str | None:
        """The column that says whose row it is: the tenant or the user."""
        found = next((name for name in OWNERS if name in relation["columns"]), None)
        return "id" if relation["is_view"] and found is None else found

    def key_of(self, owner: str) -> uuid.UUID:
        """What the column has in the rows of ann."""
        return self.world.ann.tenant if owner == "tenant_id" else self.world.ann.id


@pytest.fixture(scope="module", params=APPS)
def filled(request: pytest.FixtureRequest, server: testing.Server) -> Generator[Site]:
    with server.database(APPS[request.param].own) as db:
        connection = db.keep_connection()
        sql = prepare(Contract(connection))
        clock = testing.Clock(db)
        clock.freeze()
        site = Site(request.param, sql, World(join(sql, "ann"), join(sql, "bob")), join(sql, "cyd"))
        for person in (site.world.ann, site.world.bob):
            populate(sql, clock, person)
        fill(site)
        yield site


@pytest.fixture
def site(filled: Site) -> Generator[Site]:
    """Everything that a test does is undone."""
    with filled.sql.connection.transaction(force_rollback=True):
        yield filled


def fill(site: Site) -> None:
    """A row of each user in each table, past triggers and checks. Ids are alike, so that foreign keys hold."""
    sql = site.sql
    for statement in site.rows(CHECKS, site.app):
        sql.execute(statement)
    sql.execute("set session_replication_role = replica")
    for table in site.tables:
        columns = sql.execute(COLUMNS, table["oid"])
        for person in (site.world.ann, site.world.bob):
            row = {each["name"]: value_of(each, person) for each in columns if is_filled(each)}
            insert(sql, f"{site.app}.{table['name']}", row)
    sql.execute("set session_replication_role = origin")


def is_filled(column: dict[str, Any]) -> bool:
    return column["name"] in OWNERS or column["name"].endswith("id") or (
        column["is_required"] and not column["has_default"]
    )  # fmt: skip


def value_of(column: dict[str, Any], person: Person) -> Any:
    match column["name"], column["type"]:
        case "tenant_id", _:
            return person.tenant
        case "user_id", _:
            return person.id
        case _, "uuid":
            return id_of(person)
        case _, "text":
            return f"canary of {person.name}"
        case _, "jsonb":
            return Jsonb({})
        case _, "boolean":
            return False
        case _, "date" | "timestamp with time zone":
            return "2026-01-01"
        case _, "bytea":
            return b"canary"
        case _, type if type.endswith("[]"):
            return []
        case _:
            return 7


def id_of(person: Person) -> uuid.UUID:
    """The id of all rows of a user."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, person.name)


def insert(sql: Contract, table: str, row: dict[str, Any]) -> None:
    names, places = ", ".join(row), ", ".join(["%s"] * len(row))
    sql.execute(f"insert into {table} ({names}) values ({places})", *row.values())


def refusal(site: Site, call: Callable[[], Any]) -> str | None:
    """The SQLSTATE that a statement fails with; None if it does not. Nothing of it stays."""
    try:
        with site.sql.connection.transaction(force_rollback=True):
            call()
    except psycopg.Error as error:
        return error.sqlstate
    return None


# What the page says


def documented(app: str, kind: str) -> dict[str, list[str]]:
    """The lines of the table of relations or functions of an app: name, cells."""
    text = DOCUMENT.read_text().split(f"\n## {app}\n")[1].split("\n## ")[0]
    table = text.split(f"\n| {kind} |")[1].split("\n\n")[0]
    lines = re.findall(r"^\| `([^`]+)` \|(.+)\|$", table, re.M)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines}


def relation_cells(site: Site) -> dict[str, list[str]]:
    grants = site.catalogue(GRANTS)
    return {
        each["name"]: [privileges(grants, "relation", each["name"], role) for role in ROLES]
        for each in site.relations(None)
    }


def function_cells(site: Site) -> dict[str, list[str]]:
    """Functions that somebody may call."""
    grants = site.catalogue(GRANTS)
    found = {
        each["name"]: [privileges(grants, "function", each["name"], role) for role in ROLES]
        for each in site.catalogue(FUNCTIONS)
    }
    return {
        name: [cell.replace("execute", "yes") for cell in cells]
        for name, cells in found.items()
        if any(cell != "–" for cell in cells)
    }


def check_page(site: Site) -> None:
    assert documented(site.app, "table or view") == relation_cells(site)
    assert documented(site.app, "function") == function_cells(site)


def check_catalogue(site: Site) -> None:
    assert migrate.breaches(site.sql.connection, site.app) == []


# Who sees and changes which rows


def check_reads(site: Site, only: str | None = None) -> None:
    """Users see their own rows and nobody else's; the service sees all."""
    for relation in site.relations(only):
        name, owner = f"{site.app}.{relation['name']}", site.owner_of(relation)
        whole = f"select x::text from {name} as x order by 1"
        roles = dict(zip(ROLES, relation_cells(site)[relation["name"]], strict=True))
        assert "select" not in roles["anon"]
        with acting(site.sql, None, "anon"):
            assert refusal(site, lambda whole=whole: site.sql.execute(whole)) == DENIED, name
        if "select" in roles["authenticated"]:
            seen: dict[str, list[str]] = {}
            for person in (site.world.ann, site.world.bob, site.stranger):
                with acting(site.sql, person):
                    seen[person.name] = site.rows(whole)
            assert not has_traces(site, [*seen["bob"], *seen["cyd"]]), name
            if owner and not relation["is_view"]:
                own = site.rows(
                    f"select x::text from {name} as x where {owner} = %s order by 1", site.key_of(owner)
                )
                assert own and seen["ann"] == own, name
        if "select" in roles["service_role"] and not relation["is_view"]:
            every = site.rows(whole)
            with service(site):
                assert site.rows(whole) == every, name


def has_traces(site: Site, found: Any) -> bool:
    """Whether there is something of ann's in it."""
    ann = site.world.ann
    return any(
        text in str(found) for text in (str(ann.tenant), str(ann.id), "canary of ann", str(id_of(ann)))
    )


@contextmanager
def service(site: Site) -> Generator[None]:
    """As a login of the service that does not bypass row-level security."""
    name = f"penstock_test_{uuid.uuid4().hex}"
    site.sql.execute(f"create role {name} in role service_role")
    with acting(site.sql, None, name):
        yield
    site.sql.execute(f"drop role {name}")


def check_writes(site: Site, only: str | None = None) -> None:
    """Users change their own rows; strangers and viewers change none."""
    viewer = join(site.sql, f"viewer{uuid.uuid4().hex}")
    site.sql.value("set_member", tenant_id=site.world.ann.tenant, user_id=viewer.id, role="viewer")
    for relation in site.relations(only):
        if not relation["is_view"]:
            # Rules of triggers have tests of their own; here the policies decide.
            site.sql.execute(f"alter table {site.app}.{relation['name']} disable trigger user")
        for privilege, columns in writable(site, relation).items():
            for person in (site.world.ann, site.world.bob, site.stranger, viewer):
                check_write(site, relation, privilege, columns, person)
        if "insert" in relation_cells(site)[relation["name"]][2] and not relation["is_view"]:
            row = row_of(site, relation, relation["columns"])
            with service(site):
                error = refusal(
                    site, lambda name=f"{site.app}.{relation['name']}", row=row: insert(site.sql, name, row)
                )
            assert error != DENIED, relation["name"]


def writable(site: Site, relation: dict[str, Any]) -> dict[str, list[str]]:
    """What users may do, and with which columns."""
    found: dict[str, list[str]] = {}
    for grant in site.catalogue(GRANTS):
        if (grant["sort"], grant["name"], grant["role"]) == ("relation", relation["name"], "authenticated"):
            names = [grant["part"]] if grant["part"] else list(relation["columns"])
            found.setdefault(grant["privilege"], []).extend(names)
    found.pop("select", None)
    return found


def check_write(
    site: Site, relation: dict[str, Any], privilege: str, columns: list[str], person: Person
) -> None:
    owner = site.owner_of(relation)
    assert owner, f"users may {privilege} rows of {relation['name']}, which have no owner"
    name, key = f"{site.app}.{relation['name']}", site.key_of(owner)
    with acting(site.sql, person):
        if privilege == "insert":
            row = row_of(site, relation, columns)
            error = refusal(site, lambda: insert(site.sql, name, row))
            # A constraint is checked after the policy.
            may = error is None or error.startswith("23")
            assert may or error == DENIED, (name, privilege, person.name, error)
        else:
            verb = (
                f"update {name} set {columns[0]} = {columns[0]}"
                if privilege == "update"
                else f"delete from {name}"
            )
            with site.sql.connection.transaction(force_rollback=True):
                may = site.sql.connection.execute(f"{verb} where {owner} = %s".encode(), [key]).rowcount > 0
    assert may == (person is site.world.ann), (name, privilege, person.name)


def row_of(site: Site, relation: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    """A new row of ann."""
    types = {each["name"]: each for each in site.sql.execute(COLUMNS, relation["oid"])}
    row = {each: value_of(types[each], site.world.ann) for each in columns if is_filled(types[each])}
    return {**row, **({"id": str(uuid.uuid4())} if "id" in row else {})}


# Functions


ARGUMENTS = """
select a.name, format_type(a.type, null) as type
from pg_proc p, unnest(p.proargnames[:p.pronargs], p.proargtypes::oid[]) as a(name, type) where p.oid = %s"""


def outcome(site: Site, function: dict[str, Any], person: Person, whose: Person) -> str:
    """The answer or the error of a call with the ids and texts of somebody's rows."""
    columns = site.sql.execute(ARGUMENTS, function["oid"])
    values = [value_of({**each, "name": each["name"].removeprefix("p_")}, whose) for each in columns]
    places = ", ".join(f"%s::{each['type']}" for each in columns)
    call = f"select to_jsonb(x)::text as line from {site.app}.{function['name']}({places}) as x"
    try:
        with site.sql.connection.transaction(force_rollback=True), acting(site.sql, person):
            before = everything(site)
            found = str(site.sql.execute(call, *values))
            assert whose is person or everything(site) == before, (
                f"{function['name']} changed rows of another user"
            )
    except psycopg.Error as error:
        found = f"{error.sqlstate} {error.diag.message_primary} {error.diag.message_detail}"
    found = re.sub(r'"server_ms": \d+', "MS", found.replace(whose.name, "NAME"))
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", found)


def everything(site: Site) -> dict[str, list[str]]:
    """The rows of ann in all tables."""
    with site.sql.connection.transaction(force_rollback=True):
        site.sql.execute("set local role none")
        return {
            table["name"]: site.rows(
                f"select x::text from {site.app}.{table['name']} as x where {owner} = %s order by 1",
                site.key_of(owner),
            )
            for table in site.tables
            if (owner := site.owner_of(table))
        }


def check_functions(site: Site) -> None:
    """What a stranger learns from a call with ann's ids is what the stranger learns from invented ids."""
    nobody = Person(uuid.uuid4(), uuid.uuid4(), "dan")
    same: set[str] = set()
    for function in site.catalogue(FUNCTIONS):
        if function_cells(site).get(function["name"], ROLES)[1] == "yes":
            ann = outcome(site, function, site.world.ann, site.world.ann)
            found = outcome(site, function, site.world.bob, site.world.ann)
            assert found == outcome(site, function, site.world.bob, nobody), function["name"]
            if ann == found:
                same.add(function["name"])
    assert same == ALIKE[site.app]


ALIKE: dict[str, set[str]] = {
    "intake": {"ai_jobs", "keeps_addresses", "shows_upgrades"},
    "notes": {"find_image", "idea_pairs", "lens_notes", "my_entitlements", "start_sync"},
    "slides": {"current_price"},
    "video_ideas": {"_uuid"},
}
"""Functions that answer the owner like a stranger: without ids, or refused for another reason."""

CHECKED = (check_page, check_catalogue, check_reads, check_writes, check_functions)


@pytest.mark.every_postgres
@pytest.mark.parametrize("check", CHECKED, ids=lambda check: check.__name__)
def test_schema_of_an_app_keeps_the_rules(site: Site, check: Callable[[Site], None]) -> None:
    """R0.9/own-rows, S1, S2, S11: rights by name, every row of its owner, every write by a role."""
    check(site)


# Whether the checks would notice


def is_noticed(site: Site, statement: str, check: Callable[..., None], *what: Any) -> bool:
    """Whether the check fails after this statement."""
    try:
        with site.sql.connection.transaction(force_rollback=True):
            site.sql.execute(statement)
            check(site, *what)
    except (AssertionError, psycopg.Error):
        return True
    return False


def check_rows(site: Site, relation: str) -> None:
    check_reads(site, relation)
    check_writes(site, relation)


@pytest.mark.slow
def test_removed_and_widened_policies_are_noticed(site: Site) -> None:
    """S20: one after the other, by what users see and may change, and by what the service reads and adds."""
    for policy in site.sql.execute(POLICIES, site.app):
        table, name = policy["tablename"], policy["policyname"]
        target = f"{name} on {site.app}.{table}"
        assert is_noticed(site, f"drop policy {target}", check_rows, table), target
        if "true" in (policy["qual"], policy["with_check"]):
            continue
        using = " using (true)" if policy["qual"] else ""
        checked = " with check (true)" if policy["with_check"] else ""
        assert is_noticed(site, f"alter policy {target}{using}{checked}", check_rows, table), target


def test_weakened_tables_views_and_functions_are_noticed(site: Site) -> None:
    """S11, S14, S16, S20: row-level security, rights of the reader, search paths."""
    for relation in site.relations(None):
        name = f"{site.app}.{relation['name']}"
        weakened = (
            f"alter view {name} reset (security_invoker)"
            if relation["is_view"]
            else f"alter table {name} disable row level security"
        )
        assert is_noticed(site, weakened, check_catalogue), name
    for function in site.catalogue(FUNCTIONS):
        if function["is_definer"]:
            name = f"{site.app}.{function['name']}({', '.join(function['arguments'])})"
            assert is_noticed(site, f"alter function {name} reset all", check_catalogue), name


@pytest.mark.slow
def test_changed_rights_are_noticed(site: Site) -> None:
    """S15, S16, S20: each right that is granted is revoked, and each that is not is granted."""
    for relation, cells in relation_cells(site).items():
        for role, cell in zip(ROLES, cells, strict=True):
            for privilege in ("select", "insert", "update", "delete", "truncate"):
                verb, to = (
                    ("revoke", "from") if privilege in cell.replace("(", ",").split(", ") else ("grant", "to")
                )
                statement = f"{verb} {privilege} on {site.app}.{relation} {to} {role}"
                assert is_noticed(site, statement, check_page), statement
    for function in site.catalogue(FUNCTIONS):
        name = f"{site.app}.{function['name']}({', '.join(function['arguments'])})"
        for role, cell in zip(ROLES, function_cells(site).get(function["name"], ["–"] * 3), strict=True):
            verb, to = ("revoke", "from") if cell == "yes" else ("grant", "to")
            statement = f"{verb} execute on function {name} {to} {role}"
            assert is_noticed(site, statement, check_page), statement
