"""Who may do what: the matrix of docs/access.md against the catalogue, and attempts to get around it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.postgres import db as database
from penstock.postgres import migrate
from penstock.testing import Clock
from tests.sql.conftest import Contract, graph

DOCUMENT = Path(__file__).parents[2] / "docs/access.md"
ROLES = ("anon", "authenticated", "service_role")
DENIED = "42501"
LOGIN = "penstock_api_test"
STATES = ("queued", "running", "paused", "completed", "failed", "canceled")

FUNCTIONS = """
select p.oid, p.proname as name, p.prosecdef as is_definer, p.prorettype = 'trigger'::regtype as is_trigger,
  p.proconfig as config, array(select format_type(t, null) from unnest(p.proargtypes) as t) as arguments
from pg_proc p where p.pronamespace = 'penstock'::regnamespace order by p.proname"""
RELATIONS = """
select c.oid, c.relname as name, c.relkind = 'v' as is_view, c.relrowsecurity as has_rls,
  c.reloptions as options, array(
    select a.attname::text from pg_attribute a
    where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum) as columns
from pg_class c where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
order by c.relname"""
# Everything that anybody but its owner was given in the schema.
GRANTS = """
with given as (
  select 'schema' as sort, n.nspname as name, '' as part, n.nspowner as owner,
    coalesce(n.nspacl, acldefault('n', n.nspowner)) as acl
  from pg_namespace n where n.nspname = 'penstock'
  union all
  select case when c.relkind = 'S' then 'sequence' else 'relation' end, c.relname, '', c.relowner,
    coalesce(c.relacl, acldefault(case when c.relkind = 'S' then 's' else 'r' end::"char", c.relowner))
  from pg_class c
  where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
  union all
  select 'relation', c.relname, a.attname, c.relowner, a.attacl
  from pg_attribute a join pg_class c on c.oid = a.attrelid
  where c.relnamespace = 'penstock'::regnamespace and a.attacl is not null
  union all
  select 'function', p.proname, '', p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
  from pg_proc p where p.pronamespace = 'penstock'::regnamespace
)
select g.sort, g.name, g.part, coalesce(r.rolname, 'public') as role, lower(x.privilege_type) as privilege,
  x.is_grantable
from given g cross join lateral aclexplode(g.acl) as x left join pg_roles r on r.oid = x.grantee
where x.grantee <> g.owner"""


@contextmanager
def acting(
    sql: Contract, user: Person | uuid.UUID | None, role: str = "authenticated", forged: Any = None
) -> Generator[None]:
    """The block runs as the API would run a request of this user."""
    claims = {**({"sub": str(getattr(user, "id", user))} if user else {}), **(forged or {})}
    with sql.connection.transaction():
        sql.execute("select set_config('request.jwt.claims', %s, true)", json.dumps(claims) if claims else "")
        sql.execute(f"set local role {role}")
        yield
        sql.execute("set local role none")
        sql.execute("select set_config('request.jwt.claims', '', true)")


def answer(sql: Contract, call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a refused call reveals to its caller."""
    try:
        with sql.connection.transaction():
            call()
    except psycopg.Error as error:
        diag = error.diag
        # The lines of functions only: others depend on what the session has planned already.
        lines = re.findall(r"PL/pgSQL function .*", diag.context or "")
        return error.sqlstate, diag.message_primary, diag.message_detail, diag.message_hint, lines
    pytest.fail("it was not refused")


def state(sql: Contract, query: str) -> str | None:
    """The SQLSTATE a statement fails with, or None. It is rolled back."""
    try:
        with sql.connection.transaction(force_rollback=True):
            sql.execute(query)
    except psycopg.Error as error:
        return error.sqlstate
    return None


# The world: two users, each with a personal tenant in which everything there can be is.


@dataclass
class Person:
    id: uuid.UUID
    tenant: uuid.UUID
    name: str
    jobs: dict[str, uuid.UUID] = field(default_factory=dict[str, uuid.UUID])
    schedule: uuid.UUID | None = None
    target: uuid.UUID | None = None


@dataclass
class World:
    ann: Person
    bob: Person


def join(sql: Contract, name: str) -> Person:
    """A new user, as the authentication service makes one."""
    (row,) = sql.execute("insert into auth.users (email) values (%s) returning id", f"{name}@example.org")
    return Person(
        row["id"], sql.one("select tenant_id from penstock.profiles where user_id = %s", row["id"]), name
    )


def schedule(sql: Contract, clock: Clock, name: str = "nightly", **options: Any) -> uuid.UUID:
    return sql.value(
        "set_schedule",
        name=name,
        cron="0 3 * * *",
        job_type="report",
        next_run_at=clock.now(),
        options=Jsonb(options),
    )


def populate(sql: Contract, clock: Clock, person: Person) -> None:
    """Jobs and tasks in every state, with the owner's name in every text."""
    own = Contract(sql.connection, person.tenant)
    secret = f"canary of {person.name}"
    task = [{"kind": "work", "key": "k", "input": {"note": secret}, "idempotency_key": secret}]
    jobs = person.jobs

    jobs["completed"] = own.start(task, params={"note": secret}, idempotency_key=secret)
    own.complete(own.claim_one(), {"note": secret})
    jobs["failed"] = own.start(task, params={"note": secret})
    own.kill(own.claim_one(), secret)
    jobs["running"] = own.start(["work", *task], params={"note": secret})
    first, second = own.claim(2)
    own.fail(first, secret, retry_after_seconds=600, error_details=Jsonb({"stack": secret}))
    own.report(second, 0.5, secret)
    own.ask(second, secret, message=secret)
    line = {"job_id": str(second["job_id"]), "task_id": second["id"], "lease": second["lease"], "number": 1}
    own.value("store_task_logs", worker_id="w1", lines=Jsonb([{**line, "level": "info", "message": secret}]))
    own.value("store_task_chunks", worker_id="w1", chunks=Jsonb([{**line, "parts": [secret]}]))
    leased = {"task_id": second["id"], "worker_id": "w1", "lease": second["lease"]}
    own.value("begin_operation", **leased, object=secret, timeout_seconds=60.0)
    jobs["paused"] = own.start(task, params={"note": secret})
    own.pause(jobs["paused"], secret)
    own.do_chores()
    jobs["canceled"] = own.start(task, params={"note": secret})
    own.cancel(jobs["canceled"], secret)
    own.do_chores()
    jobs["queued"] = own.start(graph(a="", b="a"), params={"note": secret})
    own.value("define_job_type", name="report")
    person.schedule = schedule(own, clock, f"{secret} schedule", tenant_id=str(person.tenant))
    alert(own, person, secret)
    bulk(own, person, secret)
    spend(own, person, secret)
    with acting(own, person):
        own.value("start_action", verb="cancel", subjects=[str(jobs["completed"])], reason=secret)


def alert(own: Contract, person: Person, secret: str) -> None:
    """A target, a failure, its streak, and a message."""
    (made,) = own.rows(
        "set_notification_target",
        channel="webhook",
        address=f"https://example.com/{person.name}",
        options=Jsonb({"tenant_id": str(person.tenant)}),
    )
    person.target = made["id"]
    own.value(
        "record_outcome", tenant_id=person.tenant, scope="s", is_success=False, code="c", message=secret
    )
    own.value("notify", tenant_id=person.tenant, subject=secret, body=secret)


def bulk(own: Contract, person: Person, secret: str) -> None:
    """A bulk job with rows, and an applied change of one of them."""
    own.value("define_kind", name="sheet.load")
    own.value("define_job_type", name="sheet")
    own.value("define_bulk_type", name="sheet")
    tenant = {"tenant_id": str(person.tenant)}
    (opened,) = own.rows("open_bulk", type="sheet", source=Jsonb({"name": secret}), options=Jsonb(tenant))
    own.value("add_bulk_rows", job_id=opened["job_id"], rows=Jsonb([{"number": 2, "data": {"note": secret}}]))
    (task,) = own.claim(1, kinds=["sheet.load"])
    by = {"task_id": task["id"], "worker_id": "w1", "lease": task["lease"]}
    own.value("record_changes", **by, changes=Jsonb([{"number": 2, "name": "note", "after": secret}]))


def spend(own: Contract, person: Person, secret: str) -> None:
    """Usage and costs of every sort."""
    provider = f"{person.name}/own"
    own.value("set_provider", name=provider, tenant_id=person.tenant)
    price = {"tenant_id": str(person.tenant)}
    own.value("set_price", provider=provider, meter="pages", amount=1, options=Jsonb(price))
    own.value("set_limit", tenant_id=person.tenant, meter="pages", amount=10)
    own.value(
        "add_allowance", tenant_id=person.tenant, meter="pages", amount=1, source="purchase", reason=secret
    )
    own.value("reserve_quota", tenant_id=person.tenant, amounts=Jsonb({"pages": 1}), action=secret)
    own.value("record_usage", units=Jsonb({"pages": 1}), tenant_id=person.tenant, action=secret)
    cost = {"job_id": str(person.jobs["queued"]), "provider": provider, "reason": secret}
    own.value("record_cost", cost_type="render", amount=1, tenant_id=person.tenant, options=Jsonb(cost))
    upload = {"tenant_id": str(person.tenant)}
    own.rows("begin_upload", name=secret, content_type="text/plain", bytes=1, options=Jsonb(upload))


@pytest.fixture
def world(sql: Contract, clock: Clock) -> World:
    made = World(join(sql, "ann"), join(sql, "bob"))
    sql.value("set_exchange_rate", currency="EUR", rate=2)
    # Sealing needs the end of this transaction.
    sql.execute("insert into penstock.audit_seals values (1, 1, 1, 'd', 'h', penstock._now())")
    sql.execute("insert into penstock.audit_marks values (true, 1, '1')")
    for person in (made.ann, made.bob):
        populate(sql, clock, person)
        jobs = sql.execute(
            "select id, status from penstock.jobs where tenant_id = %s and type = 'report'", person.tenant
        )
        assert {row["status"]: row["id"] for row in jobs} == person.jobs
    return made


@pytest.fixture
def me(sql: Contract) -> Contract:
    """The contract without a tenant: the caller is the acting user."""
    return Contract(sql.connection)


# What is for all, and what is a tenant's own beside what is for all.
CATALOGUE = {"meters", "plans", "exchange_rates"}
SHARED = {"endpoints", "prices", "price_list", "rate_comparison"}


# The matrix


@cache
def documented(section: str) -> dict[str, list[str]]:
    """The lines of the tables in one section of the document: name and cells. Internal names have no cells."""
    text = DOCUMENT.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    text, _, nobody = text.partition("\n### Nobody\n")
    lines = re.findall(r"^\| `(\w+)` \|(.+)\|$", text, re.M)
    lines += [(name, "–|–|–") for name in re.findall(r"`(\w+)`", nobody)]
    assert len(lines) == len({name for name, _ in lines}), "a name has two lines"
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines}


def documented_functions(sql: Contract) -> dict[str, list[str]]:
    """The documented functions, and the internal ones, which are not listed and granted to nobody."""
    listed = documented("Functions")
    names = (row["name"] for row in sql.execute(FUNCTIONS))
    return listed | {name: ["–"] * 3 for name in names if name.startswith("_") and name not in listed}


def privileges(grants: list[database.Row], sort: str, name: str, role: str) -> str:
    """A cell of the matrix: `select, update (display_name)`."""
    whole: list[str] = []
    columns: dict[str, list[str]] = {}
    for grant in grants:
        if (grant["sort"], grant["name"], grant["role"]) == (sort, name, role):
            if grant["part"]:
                columns.setdefault(grant["privilege"], []).append(grant["part"])
            else:
                whole.append(grant["privilege"])
    parts = [f"{privilege} ({', '.join(sorted(names))})" for privilege, names in sorted(columns.items())]
    return ", ".join([*sorted(whole), *parts]) or "–"


def function_cells(sql: Contract) -> dict[str, list[str]]:
    """The cells of the document for functions."""
    grants = sql.execute(GRANTS)
    return {
        name: [
            {"execute": "yes"}.get(cell, cell)
            for cell in (privileges(grants, "function", name, role) for role in ROLES)
        ]
        for name in (row["name"] for row in sql.execute(FUNCTIONS))
    }


def relation_cells(sql: Contract) -> dict[str, list[str]]:
    """The cells of the document for tables and views."""
    grants = sql.execute(GRANTS)
    policies = sql.execute("select * from pg_policies where schemaname = 'penstock'")
    rows = {
        p["tablename"]: {
            "members_read": "own tenants",
            "admins_read": "tenants in which the user is owner or admin",
            "own_profile": "own",
            "own_actions": "own",
            "all_read": "all",
        }[p["policyname"]]
        if p["tablename"] not in SHARED
        else "own tenants and those for all"
        for p in policies
        if p["cmd"] == "SELECT" and p["roles"] == ["authenticated"]
    }
    return {
        r["name"]: [
            *(privileges(grants, "relation", r["name"], role) for role in ROLES),
            "as its tables" if r["is_view"] else rows.get(r["name"], "–"),
        ]
        for r in sql.execute(RELATIONS)
    }


def check_function(sql: Contract, function: database.Row) -> None:
    """Only the documented roles can call it."""
    nothing = ", ".join(f"null::{name}" for name in function["arguments"])
    for role, cell in zip(ROLES, documented_functions(sql)[function["name"]], strict=True):
        with acting(sql, None, role):
            got = state(sql, f"select penstock.{function['name']}({nothing})")
        assert (got != DENIED) == (cell == "yes"), (function["name"], role, got)


def check_relation(sql: Contract, relation: database.Row) -> None:
    """Only the documented roles can read it, and no role can write."""
    name = f"penstock.{relation['name']}"
    writes = [
        f"insert into {name} default values",
        f"delete from {name} where false",
        f"truncate {name}",
        f"lock {name} in exclusive mode",
        *(f"update {name} set {c} = default where false" for c in relation["columns"]),
    ]
    for role, cell in zip(ROLES, documented("Tables and views")[relation["name"]][:3], strict=True):
        with acting(sql, None, role):
            assert state(sql, f"select from {name}") == (None if "select" in cell else DENIED)
            for write in [] if relation["is_view"] else writes:
                is_free = write.startswith("update penstock.profiles set display_name ")
                expected = None if is_free and role == "authenticated" else DENIED
                assert state(sql, write) == expected, (role, write)


class TestMatrix:
    """R2.10/by-name, S15: everything is revoked, then granted by name, as the document lists."""

    def test_the_document_has_every_function(self, sql: Contract) -> None:
        names = [row["name"] for row in sql.execute(FUNCTIONS)]
        assert len(names) == len(set(names)), "a name with several signatures needs a line for each"
        assert documented_functions(sql) == function_cells(sql)

    def test_the_document_has_every_table_and_view(self, sql: Contract) -> None:
        assert documented("Tables and views") == relation_cells(sql)

    def test_nobody_else_was_given_anything(self, sql: Contract) -> None:
        """R0.9/no-money-writes, R2.10/by-name: PUBLIC has no rights, no right can be passed on, and anon may only use the schema."""
        grants = sql.execute(GRANTS)
        assert {g["role"] for g in grants} == set(ROLES)
        assert [g for g in grants if g["is_grantable"]] == []
        assert [(g["sort"], g["privilege"]) for g in grants if g["role"] == "anon"] == [("schema", "usage")]
        assert {g["privilege"] for g in grants if g["sort"] == "schema"} == {"usage"}
        assert [g for g in grants if g["sort"] == "sequence"] == []
        written = {(g["name"], g["part"], g["role"]) for g in grants if g["sort"] == "relation"} - {
            (g["name"], g["part"], g["role"]) for g in grants if g["privilege"] == "select"
        }
        assert written == {("profiles", "display_name", "authenticated")}

    @pytest.mark.slow
    def test_the_server_enforces_the_functions(self, sql: Contract) -> None:
        """R1.9/users, R2.10/by-name, S15: each function called as each role: allowed if the document says so, else 42501."""
        functions = [f for f in sql.execute(FUNCTIONS) if not f["is_trigger"]]
        assert len(functions) > 100
        for function in functions:
            check_function(sql, function)

    def test_the_server_enforces_the_tables(self, sql: Contract) -> None:
        """R1.9/users, R2.10/service-tables, S16: users do not read leases, ready and parked; nobody writes, not even the service."""
        cells = documented("Tables and views")
        assert cells["leases"][1] == cells["ready"][1] == cells["parked"][1] == "–"
        for relation in sql.execute(RELATIONS):
            check_relation(sql, relation)

    def test_new_functions_are_granted_to_nobody(self, sql: Contract) -> None:
        """PostgreSQL grants new functions to PUBLIC; applying the grants revokes that, as each migrate does."""
        sql.execute("create function penstock.oops() returns integer language sql as 'select 1'")
        sql.execute("create table penstock.oops ()")
        sql.execute("grant all on penstock.oops to public, authenticated")
        assert {g["role"] for g in sql.execute(GRANTS) if g["name"] == "oops"} == {"public", "authenticated"}
        (grants,) = (file for file in migrate.read().code if file.name == "grants.sql")
        sql.connection.execute(grants.text.encode())
        assert [(g["sort"], g["role"]) for g in sql.execute(GRANTS) if g["name"] == "oops"] == [
            ("relation", "service_role")
        ]


INLINED = (
    "_now",
    "_call_size",
    "_slot_ends",
    "_bulk_row_state",
    "_parked_to_ready",
    "_lease_to_ready",
    "_ready_to_parked",
    "_claimed_task",
    "_phase_of",
)


class TestCatalogue:
    """S11, S14, S16: rules for all objects of the catalogue."""

    def test_every_path_is_fixed_and_ends_with_the_temporary_schema(self, sql: Contract) -> None:
        """R2.10/definers: PostgreSQL searches pg_temp first unless the path names it, also for types."""
        for function in sql.execute(FUNCTIONS):
            paths = [c for c in function["config"] or [] if c.startswith("search_path=")]
            if function["is_definer"]:
                assert paths == ["search_path=penstock, pg_temp"], function["name"]
            for path in paths:
                assert path.endswith(", pg_temp"), function["name"]
            # These name everything they use, run with their caller's rights, and are inlined.
            assert paths or function["name"] in INLINED, function["name"]

    def test_every_table_has_row_security(self, sql: Contract) -> None:
        relations = sql.execute(RELATIONS)
        assert len(relations) > 20
        assert [r["name"] for r in relations if not r["is_view"] and not r["has_rls"]] == []

    def test_every_view_checks_the_rights_of_its_reader(self, sql: Contract) -> None:
        views = [r for r in sql.execute(RELATIONS) if r["is_view"]]
        assert len(views) >= 4
        assert [v["name"] for v in views if v["options"] != ["security_invoker=true"]] == []

    def test_every_policy_has_a_role_and_a_condition(self, sql: Contract) -> None:
        policies = sql.execute("select * from pg_policies where schemaname = 'penstock'")
        for policy in policies:
            name = (policy["tablename"], policy["policyname"])
            assert policy["roles"] in (["authenticated"], ["service_role"]), name
            assert policy["permissive"] == "PERMISSIVE", name
            if policy["roles"] == ["authenticated"]:
                is_catalogue = policy["tablename"] in CATALOGUE and policy["qual"] == "true"
                known = ("my_tenants()", "my_admin_tenants()", "auth.uid()", "is_admin()")
                assert is_catalogue or any(word in policy["qual"] for word in known), name
            assert policy["cmd"] == "SELECT" or policy["with_check"] == policy["qual"], name
        tables = {r["name"] for r in sql.execute(RELATIONS) if not r["is_view"]}
        assert {p["tablename"] for p in policies if p["roles"] == ["service_role"]} == tables - {*SECRETS}

    def test_users_have_policies_where_they_have_grants_and_nowhere_else(self, sql: Contract) -> None:
        """R2.10/service-tables: service-only tables have no policy and no grant."""
        views = {r["name"] for r in sql.execute(RELATIONS) if r["is_view"]}
        granted = {
            (g["name"], g["privilege"].upper())
            for g in sql.execute(GRANTS)
            if g["sort"] == "relation" and g["role"] == "authenticated" and g["name"] not in views
        }
        policies = sql.execute("select * from pg_policies where schemaname = 'penstock'")
        assert {(p["tablename"], p["cmd"]) for p in policies if p["roles"] == ["authenticated"]} == granted
        assert not {name for name, _ in granted} & {
            "leases",
            "ready",
            "parked",
            "lanes",
            "shares",
            "mixed",
            "settings",
            "chores",
            "workers",
        }

    def test_request_roles_cannot_log_in_and_belong_to_no_role(self, sql: Contract) -> None:
        rows = sql.execute("select * from pg_roles where rolname = any (%s)", list(ROLES))
        assert len(rows) == 3
        for role in rows:
            assert not role["rolsuper"] and not role["rolcanlogin"] and not role["rolcreaterole"]
            assert role["rolbypassrls"] == (role["rolname"] == "service_role")
        assert (
            sql.execute("select * from pg_auth_members where member::regrole::text = any (%s)", list(ROLES))
            == []
        )

    def test_unique_text_keys_begin_with_their_tenant(self, sql: Contract) -> None:
        """R0.9/no-existence: a key that is unique across tenants would reveal the keys of other tenants."""
        rows = sql.execute("""
            select i.indexrelid::regclass::text as name, array(
              select a.attname::text from unnest(i.indkey) with ordinality as k(n, place)
              join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.n order by k.place) as columns,
              (select count(*) from pg_attribute a where a.attrelid = i.indrelid and a.attnum = any (i.indkey)
                and a.atttypid in ('text'::regtype, 'jsonb'::regtype)) as words
            from pg_index i join pg_class c on c.oid = i.indrelid
            where c.relnamespace = 'penstock'::regnamespace and i.indisunique and exists (
              select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id')""")
        assert {"penstock.jobs_idempotency", "penstock.tasks_key"} <= {row["name"] for row in rows}
        for row in rows:
            # A sender's event has its id before anybody knows whose it is, and only the service sees the inbox.
            # Alerts are for operators, and their subjects name the tenant. Stripe chooses the ids of customers and
            # subscriptions, and only the service writes them. A sheet is Google's and serves one tenant.
            if row["name"] not in (
                "penstock.webhooks_pkey",
                "penstock.operator_alerts_pkey",
                "penstock.billing_accounts_customer_id_key",
                "penstock.subscriptions_pkey",
                "penstock.sheet_bindings_kind_name_key",
            ):
                assert not row["words"] or row["columns"][0] in ("tenant_id", "job_id"), row


# What members see


def visible(sql: Contract) -> list[str]:
    grants = sql.execute(GRANTS)
    return [
        r["name"]
        for r in sql.execute(RELATIONS)
        if "select" in privileges(grants, "relation", r["name"], "authenticated")
    ]


def texts(sql: Contract, relation: str, condition: str = "true", *params: Any) -> list[str]:
    query = f"select x::text as line from penstock.{relation} as x where {condition} order by 1"
    return [row["line"] for row in sql.execute(query, *params)]


def check_members(sql: Contract, world: World, relation: str) -> None:
    """Members see all rows of their tenant and all shared rows, and no others."""
    column = {"tenants": "id", "profiles": "user_id", "actions": "user_id"}.get(relation, "tenant_id")
    condition = "true" if relation in CATALOGUE else f"{column} = %s"
    condition += " or tenant_id is null" if relation in SHARED else ""
    for person in (world.ann, world.bob):
        own = person.id if column == "user_id" else person.tenant
        everything = texts(sql, relation, condition, *([] if relation in CATALOGUE else [own]))
        assert everything, f"there is nothing of {person.name} in {relation}"
        with acting(sql, person):
            assert texts(sql, relation) == everything, relation


SECRETS = ("notification_secrets", "wait_links", "provider_keys", "link_secrets")
"""Only functions read these: see test_secrets."""


def check_service(sql: Contract, relations: Iterable[str]) -> None:
    """The service reads everything through policies, also on servers that do not allow BYPASSRLS."""
    name = f"penstock_test_{uuid.uuid4().hex}"
    with sql.connection.transaction(force_rollback=True):
        sql.execute(f"create role {name} in role service_role")
        for relation in relations:
            if relation in SECRETS:
                continue
            everything = texts(sql, relation)
            with acting(sql, None, name):
                assert texts(sql, relation) == everything, relation


def check_profiles(sql: Contract, world: World) -> None:
    """Users change only their own display name."""
    others = "select user_id, display_name from penstock.profiles where user_id <> %s order by 1"
    with sql.connection.transaction(force_rollback=True):
        before = sql.execute(others, world.ann.id)
        with acting(sql, world.ann):
            sql.execute("update penstock.profiles set display_name = 'Ann'")
            assert [row["display_name"] for row in sql.execute("select * from penstock.profiles")] == ["Ann"]
        assert sql.execute(others, world.ann.id) == before


class TestRows:
    """R0.9/own-rows, R0.9/no-existence, S17: a tenant's members see their own rows."""

    def test_members_see_exactly_the_rows_of_their_tenant_in_every_table(
        self, sql: Contract, world: World
    ) -> None:
        relations = visible(sql)
        assert {"jobs", "task_list", "results", "attempts", "dead_letters", "audit_log", "schedules"} <= set(
            relations
        )
        for relation in relations:
            check_members(sql, world, relation)

    def test_no_text_of_another_tenant_is_readable(self, sql: Contract, world: World) -> None:
        bobs = [str(world.bob.id), str(world.bob.tenant), "canary of bob", *map(str, world.bob.jobs.values())]
        everything = "\n".join(line for relation in visible(sql) for line in texts(sql, relation))
        assert all(word in everything for word in bobs)
        with acting(sql, world.ann):
            seen = "\n".join(line for relation in visible(sql) for line in texts(sql, relation))
        assert "canary of ann" in seen
        assert [word for word in bobs if word in seen] == []

    def test_task_positions_are_visible_to_members_only(
        self, sql: Contract, me: Contract, world: World
    ) -> None:
        query = "select * from penstock._task_state(%s, %s)"
        for table, shown in (("leases", "running"), ("parked", "queued")):
            job = world.bob.jobs["running"]
            task = sql.one(f"select task_id from penstock.{table} where job_id = %s", job)
            with acting(sql, world.bob):
                assert [row["state"] for row in me.execute(query, job, task)] == [shown]
            with acting(sql, world.ann):
                assert me.execute(query, job, task) == []
                # Nor with a job of one's own in front of another's task.
                assert me.execute(query, world.ann.jobs["running"], task) == []

    def test_tasks_show_their_states_to_members(self, sql: Contract, world: World) -> None:
        """The state comes from tables that users cannot read."""
        with acting(sql, world.ann):
            seen = {name: list(sql.states(job).values()) for name, job in world.ann.jobs.items()}
        assert seen == {
            "queued": ["queued", "blocked"],
            "running": ["queued", "running"],
            "paused": ["queued"],
            "completed": ["succeeded"],
            "failed": ["failed"],
            "canceled": ["canceled"],
        }

    def test_a_job_of_another_tenant_answers_like_a_missing_one(
        self, sql: Contract, me: Contract, world: World
    ) -> None:
        verbs: dict[str, Callable[[uuid.UUID], Any]] = {
            "get": me.job,
            "pause": me.pause,
            "resume": me.resume,
            "cancel": me.cancel,
            "retry": me.retry,
            "add_tasks": lambda job: me.add(job, 1),
            "add_tasks with a lease": lambda job: me.add(job, 1, task_id=1, worker_id="w1", lease=1),
            "add_tasks that are not well formed": lambda job: me.add(job, [{"kind": "nothing"}]),
            "remove_schedule": lambda schedule: me.value("remove_schedule", schedule_id=schedule),
            "remove_target": lambda target: me.value("remove_notification_target", target_id=target),
            "rotate_secret": lambda target: me.value("rotate_notification_secret", target_id=target),
            "send_test": lambda target: me.value("send_test_notification", target_id=target),
            "set_budget": lambda job: me.value("set_budget", job_id=job, amount=1),
            "explain_task": lambda job: me.value("explain_task", job_id=job, task_id=1),
            "forecast": lambda job: me.value("forecast", job_id=job),
        }
        before = sql.snapshot()
        with acting(sql, world.ann):
            for name, verb in verbs.items():
                missing = answer(sql, lambda verb=verb: verb(uuid.uuid4()))
                assert missing[0] == "PT404", name
                assert world.bob.schedule is not None
                assert world.bob.target is not None
                for other in (*world.bob.jobs.values(), world.bob.schedule, world.bob.target):
                    assert answer(sql, lambda verb=verb, other=other: verb(other)) == missing, name
        assert sql.snapshot() == before

    def test_nothing_is_started_in_another_tenant(
        self, sql: Contract, me: Contract, clock: Clock, world: World
    ) -> None:
        starts: dict[str, Callable[[str], Any]] = {
            "start_job": lambda tenant: me.start(1, tenant_id=tenant),
            "start_job with a key": lambda tenant: me.start(
                1, tenant_id=tenant, idempotency_key="canary of bob"
            ),
            "open_job": lambda tenant: me.value("open_job", type="x", options=Jsonb({"tenant_id": tenant})),
            "set_schedule": lambda tenant: schedule(me, clock, "canary of bob schedule", tenant_id=tenant),
            "set_member": lambda tenant: me.value(
                "set_member", tenant_id=tenant, user_id=world.ann.id, role="member"
            ),
            "set_member to leave": lambda tenant: me.value(
                "set_member", tenant_id=tenant, user_id=world.bob.id, role=None
            ),
            "forecast_job": lambda tenant: me.value(
                "forecast_job",
                type="x",
                tasks=Jsonb([{"kind": "work"}]),
                options=Jsonb({"tenant_id": tenant}),
            ),
            "get_usage_status": lambda tenant: me.value("get_usage_status", tenant_id=uuid.UUID(tenant)),
            "resolve_limits": lambda tenant: me.rows("resolve_limits", tenant_id=uuid.UUID(tenant)),
        }
        with acting(sql, world.ann):
            for name, start in starts.items():
                missing = answer(sql, lambda start=start: start(str(uuid.uuid4())))
                assert missing[0] == "PT403", name
                assert answer(sql, lambda start=start: start(str(world.bob.tenant))) == missing, name

    def test_dead_letters_of_others_are_neither_replayed_nor_discarded(
        self, sql: Contract, me: Contract, world: World
    ) -> None:
        """R3.1/replay: no filter reaches those of other tenants."""
        letters = {row["tenant_id"]: row["id"] for row in sql.execute("select * from penstock.dead_letters")}
        bob = letters[world.bob.tenant]
        before = sql.snapshot()
        filters: list[dict[str, Any]] = [
            {"ids": [bob]},
            {"job_id": str(world.bob.jobs["failed"])},
            {"tenant_id": str(world.bob.tenant)},
            {"tenant_id": str(world.bob.tenant), "all": True},
            {"ids": list(range(bob + 10)), "job_id": str(world.bob.jobs["failed"])},
        ]
        with acting(sql, world.ann):
            for function in ("replay_dead_letters", "discard_dead_letters"):
                for chosen in filters:
                    assert me.value(function, filter=Jsonb(chosen)) == 0, (function, chosen)
        assert sql.snapshot() == before
        with acting(sql, world.ann):
            assert me.value("discard_dead_letters", filter=Jsonb({"all": True})) == 1
        assert [row["id"] for row in sql.execute("select * from penstock.dead_letters")] == [bob]
        with acting(sql, world.ann):
            assert me.value("replay_dead_letters", filter=Jsonb({"all": True})) == 0
        with acting(sql, world.bob):
            assert me.value("replay_dead_letters", filter=Jsonb({"all": True})) == 1

    def test_an_idempotency_key_reveals_nothing_of_another_tenant(
        self, sql: Contract, me: Contract, clock: Clock, world: World
    ) -> None:
        """R0.9/no-existence, S4: the same key in another tenant makes another job."""
        with acting(sql, world.ann):
            mine = me.start(1, idempotency_key="canary of bob")
            assert me.start(1, idempotency_key="canary of bob") == mine
            tasks = me.add(mine, [{"kind": "work", "key": "k", "idempotency_key": "canary of bob"}])
            assert len(tasks) == 1
            assert schedule(me, clock, "canary of bob schedule") != world.bob.schedule
        assert mine not in world.bob.jobs.values()
        assert sql.one("select count(*) from penstock.schedules where tenant_id = %s", world.bob.tenant) == 1

    def test_a_failing_schedule_does_not_block_those_of_other_tenants(
        self, sql: Contract, me: Contract, clock: Clock, world: World
    ) -> None:
        with acting(sql, world.ann):
            me.value("set_schedule", name="x", cron="0 3 * * *", job_type="report", next_run_at="2000-01-01")
        sql.execute("update penstock.schedules set cron = 'not a cron' where name = 'x'")
        sql.execute("""
            insert into penstock.schedules (tenant_id, name, cron, job_type, next_run_at, created_at)
            select tenant_id, name || n, cron, job_type, next_run_at, created_at
            from penstock.schedules, generate_series(1, 150) as n where name = 'x'""")
        clock.advance(seconds=1)
        due = sql.rows("due_schedules")
        assert len(due) == 100
        assert world.bob.schedule in [row["id"] for row in due]

    def test_the_service_reads_everything_also_without_bypassrls(self, sql: Contract, world: World) -> None:
        """B4/supabase: policies replace BYPASSRLS on servers that do not allow it."""
        check_service(sql, [relation["name"] for relation in sql.execute(RELATIONS)])


class TestMembers:
    def test_a_viewer_reads_and_does_nothing(
        self, sql: Contract, me: Contract, clock: Clock, world: World
    ) -> None:
        """R0.9/roles: a viewer reads everything of bob's tenant; each verb is refused and changes nothing."""
        sql.value("set_member", tenant_id=world.bob.tenant, user_id=world.ann.id, role="viewer")
        bobs = texts(sql, "task_list", "tenant_id = %s", world.bob.tenant)
        before = sql.snapshot()
        jobs = world.bob.jobs
        with acting(sql, world.ann):
            assert texts(sql, "task_list", "tenant_id = %s", world.bob.tenant) == bobs
            assert {me.status(job) for job in jobs.values()} == set(STATES)
            tenant = str(world.bob.tenant)
            acts: list[Callable[[], Any]] = [
                lambda: me.start(1, tenant_id=tenant),
                lambda: me.pause(jobs["queued"]),
                lambda: me.resume(jobs["paused"]),
                lambda: me.cancel(jobs["running"]),
                lambda: me.retry(jobs["failed"]),
                lambda: me.add(jobs["running"], 1),
                lambda: schedule(me, clock, tenant_id=tenant),
                lambda: me.value("remove_schedule", schedule_id=world.bob.schedule),
                lambda: me.value("set_member", tenant_id=tenant, user_id=world.ann.id, role="owner"),
            ]
            for act in acts:
                with sql.refused(403, "forbidden"):
                    act()
            for function in ("replay_dead_letters", "discard_dead_letters"):
                assert me.value(function, filter=Jsonb({"tenant_id": tenant})) == 0
        assert sql.snapshot() == before

    def test_job_keeps_the_user_who_started_it(self, sql: Contract, me: Contract, world: World) -> None:
        with acting(sql, world.ann):
            job = me.start(1)
        stored = "select user_id, created_by from penstock.jobs where id = %s"
        assert sql.execute(stored, job) == [{"user_id": world.ann.id, "created_by": f"user:{world.ann.id}"}]
        (row,) = sql.execute(stored, sql.start(1))
        assert row["user_id"] is None

    @pytest.mark.parametrize("role", ["owner", "admin", "member"])
    def test_members_above_viewer_may_act(
        self, sql: Contract, me: Contract, clock: Clock, world: World, role: str
    ) -> None:
        sql.value("set_member", tenant_id=world.bob.tenant, user_id=world.ann.id, role=role)
        jobs, tenant = world.bob.jobs, str(world.bob.tenant)
        with acting(sql, world.ann):
            assert me.status(me.start(1, tenant_id=tenant)) == "queued"
            assert me.pause(jobs["queued"]) == "paused"
            assert me.resume(jobs["paused"]) == "queued"
            assert me.retry(jobs["failed"]) == 1
            assert me.cancel(jobs["running"]) == "canceled"
            assert me.value("remove_schedule", schedule_id=world.bob.schedule) is True
            assert schedule(me, clock, tenant_id=tenant)

    def test_a_member_of_two_tenants_sees_both_and_names_the_other(
        self, sql: Contract, me: Contract, world: World
    ) -> None:
        sql.value("set_member", tenant_id=world.bob.tenant, user_id=world.ann.id, role="member")
        with acting(sql, world.ann):
            assert {
                row["id"] for row in sql.execute("select id from penstock.jobs where type = 'report'")
            } == {
                *world.ann.jobs.values(),
                *world.bob.jobs.values(),
            }
            assert me.job(me.start(1))["tenant_id"] == str(world.ann.tenant)
            assert me.job(me.start(1, tenant_id=str(world.bob.tenant)))["tenant_id"] == str(world.bob.tenant)
            assert me.value("discard_dead_letters", filter=Jsonb({"all": True})) == 2
        with acting(sql, world.bob):
            assert {row["tenant_id"] for row in sql.execute("select tenant_id from penstock.jobs")} == {
                world.bob.tenant
            }

    def test_a_member_added_without_consent_loses_nothing_and_can_leave(
        self, sql: Contract, me: Contract, world: World
    ) -> None:
        """R0.9/own-rows: the service may add any user. Calls of the new member that name no tenant still use the old tenant."""
        bob = world.bob.tenant
        for role in ("owner", "admin", "member", "viewer"):
            sql.value("set_member", tenant_id=bob, user_id=world.ann.id, role=role)
            with acting(sql, world.bob):
                assert (
                    sql.one("select count(*) from penstock.jobs where tenant_id = %s", world.ann.tenant) == 0
                )
            with acting(sql, world.ann):
                assert me.job(me.start(1))["tenant_id"] == str(world.ann.tenant)
                me.value("set_member", tenant_id=bob, user_id=world.ann.id, role=None)
                assert sql.execute("select * from penstock.jobs where tenant_id = %s", bob) == []

    def test_a_read_only_key_starts_nothing_in_a_tenant_where_it_is_a_member(
        self, sql: Contract, me: Contract, world: World
    ) -> None:
        """Another tenant that knows the id of a read-only key adds it as a member."""
        (key,) = sql.execute("select id from penstock.create_key('k', 'viewer', %s)", world.ann.tenant)
        with acting(sql, key["id"]), sql.refused(403, "no_tenant"):
            me.start(1)
        sql.value("set_member", tenant_id=world.bob.tenant, user_id=key["id"], role="member")
        with acting(sql, key["id"]):
            with sql.refused(422, "tenant_missing"):
                me.start(1)
            assert me.job(me.start(1, tenant_id=str(world.bob.tenant)))["tenant_id"] == str(world.bob.tenant)

    def test_a_removed_member_loses_access_at_once(self, sql: Contract, me: Contract, world: World) -> None:
        for role in ("member", None):
            sql.value("set_member", tenant_id=world.bob.tenant, user_id=world.ann.id, role=role)
        with acting(sql, world.ann), sql.refused(404, "unknown_job"):
            me.job(world.bob.jobs["queued"])

    def test_a_user_without_a_tenant_sees_and_starts_nothing(
        self, sql: Contract, me: Contract, clock: Clock, world: World
    ) -> None:
        relations = visible(sql)
        for nobody in (uuid.uuid4(), None):
            with acting(sql, nobody):
                assert {name for name in relations if texts(sql, name)} <= CATALOGUE | SHARED
                with sql.refused(404, "unknown_job"):
                    me.job(world.ann.jobs["queued"])
                for start in (lambda: me.start(1), lambda: schedule(me, clock)):
                    with sql.refused(403 if nobody else 422, "no_tenant" if nobody else "tenant_missing"):
                        start()
                assert me.value("replay_dead_letters", filter=Jsonb({"all": True})) == 0

    def test_owners_and_admins_change_members(self, sql: Contract, me: Contract, world: World) -> None:
        """Owners change all members, admins all but owners, others none; the last owner stays."""
        other = uuid.uuid4()

        def change(user: uuid.UUID, role: str | None) -> None:
            me.value("set_member", tenant_id=world.bob.tenant, user_id=user, role=role)

        sql.value("set_member", tenant_id=world.bob.tenant, user_id=world.ann.id, role="admin")
        sql.value("set_member", tenant_id=world.bob.tenant, user_id=other, role="member")
        with acting(sql, world.ann):
            for role in ("viewer", "member", "admin", None):
                change(other, role)
            for user, role in (
                (other, "owner"),
                (world.ann.id, "owner"),
                (world.bob.id, "viewer"),
                (world.bob.id, None),
            ):
                with sql.refused(403, "forbidden"):
                    change(user, role)
        with acting(sql, world.bob):
            change(world.ann.id, "member")
            with sql.refused(409, "last_owner"):
                change(world.bob.id, "admin")
            with sql.refused(422, "invalid_role"):
                change(other, "god")
        with acting(sql, world.ann), sql.refused(403, "forbidden"):
            change(world.ann.id, "admin")


class TestProfiles:
    """R2.10/columns: members update only the columns they may."""

    def test_the_own_name_may_be_changed(self, sql: Contract, world: World) -> None:
        check_profiles(sql, world)
        with acting(sql, world.ann):
            sql.execute("update penstock.profiles set display_name = 'Ann'")
        assert sql.execute(
            "select user_id, display_name from penstock.profiles order by display_name nulls last"
        ) == [
            {"user_id": world.ann.id, "display_name": "Ann"},
            {"user_id": world.bob.id, "display_name": "bob"},
        ]

    def test_only_the_own_name_may_be_changed(self, sql: Contract, world: World) -> None:
        sql.value("set_member", tenant_id=world.bob.tenant, user_id=world.ann.id, role="owner")
        before = texts(sql, "profiles")
        with acting(sql, world.ann):
            assert len(texts(sql, "profiles")) == 1, "a colleague's address is not shown"
            for change in (
                "email = 'bob@example.org'",
                f"tenant_id = '{world.bob.tenant}'",
                f"user_id = '{world.bob.id}'",
                "created_at = now()",
                "display_name = 'x', email = 'x'",
            ):
                assert state(sql, f"update penstock.profiles set {change}") == DENIED
            assert state(sql, f"update penstock.profiles set display_name = '{'x' * 201}'") == "23514"
            sql.execute("update penstock.profiles set display_name = 'x' where user_id = %s", world.bob.id)
        assert texts(sql, "profiles") == before

    def test_a_new_user_has_a_profile_and_a_tenant_at_once(self, sql: Contract, me: Contract) -> None:
        """R2.10/new-user: by trigger, in the same transaction; a failed sign-up leaves no rows."""
        before = texts(sql, "tenants")
        with sql.connection.transaction(force_rollback=True):
            join(sql, "zoe")
            assert len(texts(sql, "tenants")) == len(before) + 1
        assert texts(sql, "tenants") == before
        zoe = join(sql, "zoe")
        (profile,) = sql.execute("select * from penstock.profiles where user_id = %s", zoe.id)
        assert (profile["email"], profile["display_name"]) == ("zoe@example.org", "zoe")
        (tenant,) = sql.execute("select * from penstock.tenants where id = %s", zoe.tenant)
        assert (tenant["name"], tenant["is_personal"], tenant["weight"]) == ("zoe", True, 1)
        assert [
            (row["user_id"], row["role"])
            for row in sql.execute("select * from penstock.members where tenant_id = %s", zoe.tenant)
        ] == [(zoe.id, "owner")]
        (line,) = sql.execute("select * from penstock.audit_log where tenant_id = %s", zoe.tenant)
        assert (line["action"], line["actor"], line["subject"]) == (
            "user.created",
            f"user:{zoe.id}",
            f"user:{zoe.id}",
        )
        with acting(sql, zoe):
            assert me.job(me.start(1))["tenant_id"] == str(zoe.tenant)

    @pytest.mark.parametrize("email", [None, "", "@", "x" * 300 + "@example.org"])
    def test_any_email_address_makes_a_profile(self, sql: Contract, email: str | None) -> None:
        (row,) = sql.execute("insert into auth.users (email) values (%s) returning id", email)
        assert sql.one("select email from penstock.profiles where user_id = %s", row["id"]) == email


class TestAudit:
    """R3.5/job-states, R3.5/fields, R3.5/append-only, R2.10/audit: an append-only line for every change, in the same transaction, with its actor."""

    def test_every_verb_of_a_user_leaves_a_line(
        self, sql: Contract, me: Contract, clock: Clock, world: World
    ) -> None:
        jobs, ann = world.ann.jobs, f"user:{world.ann.id}"
        acts: list[tuple[str, str | None, Callable[[], Any]]] = [
            ("job.paused", "queued", lambda: me.pause(jobs["queued"])),
            ("job.queued", "paused", lambda: me.resume(jobs["paused"])),
            ("job.canceled", "running", lambda: me.cancel(jobs["running"])),
            ("job.running job.retried", "failed", lambda: me.retry(jobs["failed"])),
            ("schedule.set", None, lambda: schedule(me, clock)),
            ("schedule.removed", None, lambda: me.value("remove_schedule", schedule_id=world.ann.schedule)),
            (
                "member.set",
                None,
                lambda: me.value(
                    "set_member", tenant_id=world.ann.tenant, user_id=world.ann.id, role="owner"
                ),
            ),
        ]
        for actions, job, act in acts:
            before = sql.one("select coalesce(max(id), 0) from penstock.audit_log")
            with acting(sql, world.ann):
                act()
            lines = sql.execute("select * from penstock.audit_log where id > %s order by id", before)
            assert [line["action"] for line in lines] == actions.split()
            for line in lines:
                assert (line["actor"], line["tenant_id"]) == (ann, world.ann.tenant)
                assert line["job_id"] == (jobs[job] if job else None)
                assert line["at"] == clock.now()
                assert re.fullmatch(r"(job|schedule|user):[0-9a-f-]{36}", line["subject"])

    def test_starts_and_discards_leave_a_line(self, sql: Contract, me: Contract, world: World) -> None:
        with acting(sql, world.ann):
            job = me.start(1)
            me.value("discard_dead_letters", filter=Jsonb({"all": True}))
            assert me.job(job)["created_by"] == f"user:{world.ann.id}"
        (line,) = sql.audit(job)
        assert (line["action"], line["actor"]) == ("job.queued", f"user:{world.ann.id}")
        line = sql.audit(world.ann.jobs["failed"])[-1]
        assert (line["action"], line["actor"]) == ("dead_letter.discarded", f"user:{world.ann.id}")

    def test_changes_by_workers_name_the_service_as_actor(self, sql: Contract, world: World) -> None:
        lines = sql.audit(world.ann.jobs["completed"])
        assert [(line["action"], line["actor"]) for line in lines] == [
            ("job.queued", "service:postgres"),
            ("job.running", "service:postgres"),
            ("job.completed", "service:postgres"),
        ]

    def test_only_the_service_names_another_actor(self, sql: Contract, me: Contract, world: World) -> None:
        sql.execute("select set_config('penstock.actor', 'operator:eve', true)")
        sql.pause(world.ann.jobs["queued"])
        assert sql.audit(world.ann.jobs["queued"])[-1]["actor"] == "operator:eve"
        with acting(sql, world.ann):
            sql.execute("select set_config('penstock.actor', 'operator:eve', true)")
            me.resume(world.ann.jobs["queued"])
        assert sql.audit(world.ann.jobs["queued"])[-1]["actor"] == f"user:{world.ann.id}"

    def test_a_rolled_back_call_leaves_no_line(self, sql: Contract, me: Contract, world: World) -> None:
        before = texts(sql, "audit_log")
        with acting(sql, world.ann), sql.connection.transaction(force_rollback=True):
            me.pause(world.ann.jobs["queued"])
        assert texts(sql, "audit_log") == before

    def test_no_role_inserts_updates_or_deletes_lines(self, sql: Contract, world: World) -> None:
        """Append-only by grant: only the functions' owner writes."""
        line = "(at, actor, action) values (now(), 'service:postgres', 'job.completed')"
        for role, user in (("anon", None), ("authenticated", world.ann), ("service_role", None)):
            with acting(sql, user, role):
                for write in (
                    f"insert into penstock.audit_log {line}",
                    "update penstock.audit_log set actor = 'x'",
                    "delete from penstock.audit_log",
                    "truncate penstock.audit_log",
                    "select setval('penstock.audit_log_id_seq', 1)",
                ):
                    assert state(sql, write) == DENIED, (role, write)

    def test_lines_without_a_tenant_are_visible_to_the_service_only(
        self, sql: Contract, world: World
    ) -> None:
        sql.value("set_setting", name="max_deaths", value=Jsonb(5))
        query = "select count(*) from penstock.audit_log where action = 'setting.changed'"
        with acting(sql, world.ann):
            assert sql.one(query) == 0
        with acting(sql, None, "service_role"):
            assert sql.one(query) == 1


# A login of its own, as the API has one: a member of anon and authenticated, and of nothing else


@pytest.fixture
def api(db: testing.Database) -> Generator[Contract]:
    db.execute(f"""
        do $$ begin
          create role {LOGIN} login noinherit in role anon, authenticated;
        exception when duplicate_object or unique_violation then
          null;  -- another process of the tests was first
        end $$""")
    connection: psycopg.Connection[Any] = psycopg.connect(
        db.dsn, user=LOGIN, autocommit=True, application_name="test"
    )
    connection.row_factory = dict_row
    with connection:
        yield Contract(connection)


@pytest.fixture
def committed(db: testing.Database, clock: Clock) -> World:
    sql = Contract(db.connect())
    sql.value("define_kinds", kinds=Jsonb([{"name": "work", "backoff_seconds": 0, "raw_tasks": True}]))
    made = World(join(sql, "ann"), join(sql, "bob"))
    for person in (made.ann, made.bob):
        populate(sql, clock, person)
    return made


ATTEMPTS = [
    "set role service_role",
    "set local role service_role",
    "select set_config('role', 'service_role', true)",
    "set role postgres",
    "set session authorization postgres",
    "set session authorization service_role",
    "set session_replication_role = replica",
    f"grant service_role to {LOGIN}",
    f"alter role {LOGIN} bypassrls",
    "create role mallory in role service_role",
    "alter table penstock.jobs disable row level security",
    "drop policy members_read on penstock.jobs",
    "create policy mine on penstock.jobs using (true)",
    "create or replace function penstock._is_service() returns boolean language sql as 'select true'",
    "create or replace function auth.uid() returns uuid language sql as 'select null::uuid'",
    "create table penstock.mine ()",
    "create schema mine",
    "insert into auth.users default values",
    "select * from auth.users",
    "select penstock._is_service()",
    "select penstock.claim_tasks('w')",
    "set row_security = off; select * from penstock.jobs",
    "set role authenticated; set role service_role",
    "reset role; set role service_role",
]


class TestForgery:
    """R1.9/users, S12, S13, S19: claims name the user and never add rights to the login."""

    def test_the_login_does_not_become_the_service(self, api: Contract, committed: World) -> None:
        for statement in ATTEMPTS:
            for role in ("authenticated", "none"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), api.connection.transaction():
                    api.execute("select set_config('request.jwt.claims', %s, true)", claims(committed.ann))
                    api.execute(f"set local role {role}")
                    for part in statement.split("; "):
                        api.execute(part)
                    pytest.fail(f"{role} was let: {statement}")
            assert api.one("select current_user") == LOGIN

    def test_a_role_claim_gives_a_user_no_rights(self, api: Contract, committed: World) -> None:
        forgeries: list[dict[str, Any]] = [
            {"role": "service_role"},
            {"role": "postgres", "app_metadata": {"role": "service_role"}},
            {"role": "service_role", "is_service": True, "aud": "service_role"},
        ]
        for forged in forgeries:
            self.stay_ann(api, committed, forged)

    def stay_ann(self, api: Contract, committed: World, forged: dict[str, Any]) -> None:
        ann, bob = committed.ann, committed.bob
        with api.connection.transaction(force_rollback=True), acting(api, ann, forged=forged):
            api.execute("select set_config('request.jwt.claim.role', 'service_role', true)")
            api.execute("select set_config('penstock.actor', 'service:boss', true)")
            assert {row["tenant_id"] for row in api.execute("select * from penstock.job_list")} == {
                ann.tenant
            }
            with api.refused(DENIED):
                api.claim()
            with api.refused(404):
                api.cancel(bob.jobs["queued"])
            with api.refused(403):
                api.start(1, tenant_id=str(bob.tenant))
            assert api.job(api.start(1))["created_by"] == f"user:{ann.id}"
            assert api.value("discard_dead_letters", filter=Jsonb({"all": True})) == 1

    def test_a_role_claim_without_a_user_gives_no_rights(self, api: Contract, committed: World) -> None:
        with (
            api.connection.transaction(force_rollback=True),
            acting(api, None, forged={"role": "service_role"}),
        ):
            assert api.execute("select * from penstock.job_list") == []
            with api.refused(404):
                api.job(committed.ann.jobs["queued"])
            with api.refused(422, "tenant_missing"):
                api.start(1)

    def test_the_login_has_no_rights_without_a_role(self, api: Contract, committed: World) -> None:
        """It does not inherit: it has no rights between two requests."""
        for query in (
            "select * from penstock.jobs",
            f"select penstock.get_job('{committed.ann.jobs['queued']}')",
        ):
            assert state(api, query) == DENIED

    def test_claims_end_with_their_transaction(self, api: Contract, committed: World) -> None:
        for person in (committed.ann, committed.bob):
            with acting(api, person):
                assert api.one("select count(distinct tenant_id) from penstock.jobs") == 1
                assert api.one("select min(tenant_id::text) from penstock.jobs") == str(person.tenant)
            assert api.one("select coalesce(current_setting('request.jwt.claims', true), '')") == ""
            assert api.one("select current_user") == LOGIN


def claims(person: Person) -> str:
    return json.dumps({"sub": str(person.id)})


# Every name that a function could look up by a path: the schema's relations, and types.
TYPES = """
    bool bytea float4 float8 int2 int4 int8 interval json jsonb name numeric text tid timestamptz uuid
"""


def shadow(sql: Contract, api: Contract, world: World) -> None:
    """Create a temporary object with the name of each object of the schema; using one raises or leaves a trace."""
    api.execute("""
        create function pg_temp.evil(x anyelement) returns boolean language plpgsql as $$ begin
          if current_user <> 'authenticated' then
            raise exception 'hijacked: % runs my code', current_user;
          end if;
          return true;
        end $$""")
    for relation in sql.execute(RELATIONS):
        columns = sql.execute(
            "select attname as name, format_type(atttypid, atttypmod) as type from pg_attribute"
            " where attrelid = %s and attnum > 0",
            relation["oid"],
        )
        listed = ", ".join(f"{c['name']} {c['type']}" for c in columns)
        api.execute(f"create temp table {relation['name']} ({listed})")
        api.execute(f"alter table pg_temp.{relation['name']} add check (pg_temp.evil({columns[0]['name']}))")
    # In these tables ann owns bob's tenant, and everything is allowed.
    api.execute(
        "insert into pg_temp.members (tenant_id, user_id, role) values (%s, %s, 'owner')",
        world.bob.tenant,
        world.ann.id,
    )
    api.execute("insert into pg_temp.tenants (id, name, weight) values (%s, 'mine', 1000)", world.bob.tenant)
    for name in TYPES.split():
        api.execute(f"create domain pg_temp.{name} as pg_catalog.{name} check (pg_temp.evil(value))")
    api.execute("set local search_path = pg_temp, penstock, pg_catalog")


class TestShadows:
    """R2.10/definers, S14: a caller's temporary objects and search_path do not affect functions with the owner's rights."""

    def use_everything(self, api: Caller, clock: Clock, world: World) -> None:
        jobs, ann = world.ann.jobs, world.ann
        assert api.rows("my_tenants") == [{"my_tenants": ann.tenant}]
        job = api.start(graph(a="", b="a"), idempotency_key="x", delay_seconds=5)
        assert api.start(graph(a="", b="a"), idempotency_key="x", delay_seconds=5) == job
        assert api.rows("open_job", type="report")[0]["is_new"]
        assert len(api.add(job, [{"kind": "work", "after": ["b"], "run_at": "2100-01-01"}])) == 1
        assert (api.job(job)["tenant_id"], api.progress(job)["total"]) == (str(ann.tenant), 3)
        assert api.pause(job, "why") == "paused"
        assert api.resume(job) == "queued"
        assert api.cancel(job, "why") == "canceled"
        assert api.retry(jobs["failed"]) == 1
        for function in ("replay_dead_letters", "discard_dead_letters"):
            assert api.value(function, filter=Jsonb({"all": True, "tenant_id": str(ann.tenant)})) == 0
        api.value("set_member", tenant_id=ann.tenant, user_id=ann.id, role="owner")
        made = schedule(api, clock, timezone="Europe/Berlin", tasks=[{"kind": "work"}])
        assert api.value("remove_schedule", schedule_id=made)
        assert (
            len(api.rows("_task_state", job_id=jobs["paused"], task_id=api.tasks_of(jobs["paused"])[0])) == 1
        )
        for relation in ("job_list", "task_list", "dead_letter_list", "audit_log"):
            rows = api.execute(f"select tenant_id from penstock.{relation}")
            assert {row["tenant_id"] for row in rows} <= {ann.tenant}
        api.execute("update penstock.profiles set display_name = 'x'")
        for other in world.bob.jobs.values():
            with api.refused(404):
                api.job(other)
            with api.refused(404):
                api.cancel(other)
        with api.refused(403):
            api.start(1, tenant_id=str(world.bob.tenant))

    @contextmanager
    def attack(self, db: testing.Database, api: Contract, world: World) -> Generator[None]:
        sql = Contract(db.connect())
        with api.connection.transaction(force_rollback=True), acting(api, world.ann):
            shadow(sql, api, world)
            yield

    def test_shadowing_objects_are_never_used(
        self, db: testing.Database, api: Contract, clock: Clock, committed: World
    ) -> None:
        user = Caller(api.connection)
        with self.attack(db, api, committed):
            self.use_everything(user, clock, committed)
            for relation in (
                "jobs",
                "tasks",
                "ready",
                "parked",
                "audit_log",
                "schedules",
                "chores",
                "phases",
            ):
                assert api.execute(f"select * from pg_temp.{relation}") == [], relation

    @pytest.mark.parametrize(
        ("function", "path"),
        [("_uuid7()", "pg_catalog"), ("my_tenants()", "penstock"), ("get_job(uuid)", "pg_temp, penstock")],
    )
    def test_the_attack_is_a_real_one(
        self,
        db: testing.Database,
        api: Contract,
        clock: Clock,
        committed: World,
        function: str,
        path: str,
    ) -> None:
        """The attack succeeds on one function whose path does not end with pg_temp."""
        db.execute(f"alter function penstock.{function} set search_path = {path}")
        with pytest.raises((psycopg.Error, AssertionError)), self.attack(db, api, committed):
            self.use_everything(Caller(api.connection), clock, committed)


class Caller(Contract):
    def tasks_of(self, job: uuid.UUID) -> list[int]:
        return [
            row["id"]
            for row in self.execute("select id from penstock.tasks where job_id = %s order by id", job)
        ]
