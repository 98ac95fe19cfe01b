"""The schema arrives, is checked and leaves as promised, on every PostgreSQL."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock import testing
from penstock.errors import Conflict, Invalid, NotMigrated
from penstock.postgres import db, migrate

pytestmark = pytest.mark.every_postgres

Make = Callable[[], testing.Database]


@pytest.fixture
def make(server: testing.Server) -> Iterator[Make]:
    """Makes empty databases."""
    made: list[testing.Database] = []

    def create() -> testing.Database:
        made.append(testing.Database(server, server.create()))
        return made[-1]

    yield create
    for database in made:
        database.close()
        server.drop(database.name)


@pytest.fixture
def empty(make: Make) -> testing.Database:
    return make()


@pytest.fixture(scope="module")
def migrated(server: testing.Server) -> Iterator[testing.Database]:
    """A migrated database that tests only read, or change inside a transaction that they roll back."""
    database = testing.Database(server, server.create())
    migrate.migrate(database.dsn)
    yield database
    database.close()
    server.drop(database.name)


@pytest.fixture
def live(migrated: testing.Database) -> Iterator[db.SyncConnection]:
    with db.connect(migrated.dsn) as connection, connection.transaction(force_rollback=True):
        yield connection


def picture(database: testing.Database) -> dict[str, str]:
    with db.connect(database.dsn) as connection:
        return migrate.picture(connection)


def records(database: testing.Database) -> list[tuple[str, str, object]]:
    rows = database.execute("select name, sha256, details from penstock.migrations order by name")
    return [(row["name"], row["sha256"], row["details"]) for row in rows]


# Forward


def test_schema_sql_is_the_picture_of_a_fresh_install(migrated: testing.Database) -> None:
    """R2.12/same, B4/any-postgres: one declared contract, the same on every version (this runs on each)."""
    declared = (migrate.SQL / "schema.sql").read_text()
    assert migrate.render(picture(migrated)) == declared, "run `make schema`"
    assert migrate.parse(declared) == picture(migrated)


def _earlier_versions() -> list[int]:
    """The fifteen before the last, and every eighth of those before them: all would take minutes."""
    *earlier, _ = (migration.number for migration in migrate.read().migrations)
    return [*reversed(earlier[-15:]), *earlier[-16::-8]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_upgrading_from_an_earlier_version_equals_a_fresh_install(
    make: Make, migrated: testing.Database, tmp_path: Path
) -> None:
    for number in _earlier_versions():
        database, older = make(), tmp_path / str(number)
        (older / "migrations").mkdir(parents=True)
        for file in migrate.read().migrations[:number]:
            (older / "migrations" / file.name).write_text(file.text)
        migrate.migrate(database.dsn, folder=older)
        migrate.migrate(database.dsn, contract=True)
        assert picture(database) == picture(migrated)


def test_migrating_twice_equals_once(empty: testing.Database) -> None:
    assert migrate.migrate(empty.dsn) == [file.name for file in migrate.read().migrations]
    once, recorded = picture(empty), records(empty)
    assert migrate.migrate(empty.dsn) == []
    assert (picture(empty), records(empty)) == (once, recorded)


@pytest.mark.slow
def test_several_may_migrate_at_once(make: Make, migrated: testing.Database) -> None:
    """The same database from four processes, and beside it another one of the same server, which shares its roles."""
    same, other = make(), make()
    start = threading.Barrier(6)

    def run(database: testing.Database) -> list[str]:
        start.wait()
        return migrate.migrate(database.dsn)

    with ThreadPoolExecutor(6) as threads:
        ran = list(threads.map(run, [same, same, same, same, other, other]))
    assert sorted(len(names) for names in ran[:4]) == [0, 0, 0, len(migrate.read().migrations)]
    assert picture(same) == picture(other) == picture(migrated)


def test_migrate_waits_for_a_transaction_that_holds_a_lock(empty: testing.Database) -> None:
    """It gives way after a moment, so that others do not queue up behind it, and comes back."""
    migrate.migrate(empty.dsn)
    empty.execute("drop policy members_read on penstock.jobs")
    blocker = empty.connect()
    blocker.execute("begin; lock table penstock.jobs in access share mode")
    waiting = (
        "select 1 from pg_stat_activity where datname = current_database()"
        " and application_name = 'penstock migrate' and wait_event_type = 'Lock'"
    )
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(migrate.migrate, empty.dsn)
        _until(lambda: bool(empty.execute(waiting)))
        _until(lambda: not empty.execute(waiting))
        assert not run.done()
        blocker.execute("commit")
        assert run.result(timeout=20) == []
    assert migrate.check(empty.connect()) == []


def test_a_database_without_an_encoding_is_refused(empty: testing.Database, server: testing.Server) -> None:
    name = f"{empty.name}_ascii"
    empty.execute(f"create database {name} encoding 'SQL_ASCII' template template0 locale 'C'")
    try:
        with pytest.raises(NotMigrated, match=r"must be UTF8 \(got SQL_ASCII\)"):
            migrate.migrate(make_conninfo(empty.dsn, dbname=name))
    finally:
        server.drop(name)


def test_a_changed_migration_is_refused(empty: testing.Database, tmp_path: Path) -> None:
    folder = tmp_path / "sql"
    shutil.copytree(migrate.SQL, folder)
    migrate.migrate(empty.dsn, folder=folder)
    before = picture(empty)
    first = folder / "migrations" / migrate.read().migrations[0].name
    first.write_text(first.read_text() + "\n-- an afterthought\n")
    with pytest.raises(Conflict, match=r"0001_\w+\.sql was changed after it had been applied"):
        migrate.migrate(empty.dsn, folder=folder)
    assert picture(empty) == before
    with db.connect(empty.dsn) as connection:
        assert any(
            "another version of this file" in line for line in migrate.check(connection, folder=folder)
        )
    psql = run_psql(empty, migrate.script(folder=folder))
    assert psql.returncode != 0 and "was changed after it had been applied" in psql.stderr


# Phases, with a small schema made up here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "sql"
    (folder / "migrations").mkdir(parents=True)
    (folder / "functions").mkdir()
    write = write_into(folder)
    write(
        "migrations/0001_create_things.sql",
        "-- phase: expand\ncreate table penstock.things (id int, old text);",
    )
    write("migrations/0001_create_things.down.sql", "drop table penstock.things;")
    write("migrations/0002_drop_old.sql", "-- phase: contract\nalter table penstock.things drop column old;")
    write("migrations/0002_drop_old.down.sql", "alter table penstock.things add column old text;")
    write("migrations/0003_add_new.sql", "-- phase: expand\nalter table penstock.things add column new text;")
    write("migrations/0003_add_new.down.sql", "alter table penstock.things drop column new;")
    write(
        "functions/things.sql",
        "create or replace function penstock.f() returns int language sql as 'select g()';",
    )
    return folder


def write_into(folder: Path) -> Callable[[str, str], object]:
    return lambda name, text: (folder / name).write_text(text)


def columns(database: testing.Database) -> set[str]:
    rows = database.execute(
        "select attname from pg_attribute where attrelid = 'penstock.things'::regclass and attnum > 0"
    )
    return {row["attname"] for row in rows if "pg.dropped" not in row["attname"]}


def run_psql(database: testing.Database, script: str) -> subprocess.CompletedProcess[str]:
    psql = testing.binaries(18) / "psql"
    arguments = [psql, "--no-psqlrc", "--quiet", "--dbname", database.dsn]
    return subprocess.run(arguments, input=script, capture_output=True, text=True)


@pytest.mark.parametrize("by", ["migrate", "psql"])
def test_contract_migrations_wait_until_asked_for(empty: testing.Database, folder: Path, by: str) -> None:
    def apply(contract: bool) -> None:
        if by == "migrate":
            migrate.migrate(empty.dsn, contract, folder=folder)
        else:
            done = run_psql(empty, migrate.script(contract, folder=folder))
            assert done.returncode == 0, done.stderr

    older = folder.parent / "older"
    (older / "migrations").mkdir(parents=True)
    shutil.copy(folder / "migrations/0001_create_things.sql", older / "migrations")
    migrate.migrate(empty.dsn, folder=older)

    apply(contract=False)
    assert columns(empty) == {"id", "old", "new"}
    apply(contract=True)
    assert columns(empty) == {"id", "new"}


def test_a_fresh_database_has_no_old_code_to_wait_for(make: Make, folder: Path) -> None:
    by_migrate, by_psql = make(), make()
    migrate.migrate(by_migrate.dsn, folder=folder)
    done = run_psql(by_psql, migrate.script(folder=folder))
    assert done.returncode == 0, done.stderr
    assert columns(by_migrate) == columns(by_psql) == {"id", "new"}


def test_an_index_is_built_outside_a_transaction(make: Make, folder: Path) -> None:
    write = write_into(folder)
    index = "create index concurrently if not exists things_id on penstock.things (id);"
    write("migrations/0004_index_things.sql", f"-- phase: expand\n-- no transaction\n{index}")
    write(
        "migrations/0005_add_last.sql", "-- phase: expand\nalter table penstock.things add column last text;"
    )
    by_migrate, by_psql = make(), make()
    assert len(migrate.migrate(by_migrate.dsn, folder=folder)) == 5
    done = run_psql(by_psql, migrate.script(folder=folder))
    assert done.returncode == 0, done.stderr
    assert picture(by_migrate) == picture(by_psql)
    assert "table penstock.things / index things_id" in picture(by_migrate)
    assert records(by_migrate) == records(by_psql)


def test_a_failing_file_is_named_with_its_line_and_leaves_nothing(
    empty: testing.Database, folder: Path
) -> None:
    write_into(folder)("functions/wrong.sql", "select 1;\n\nselect nothing from nowhere;")
    with pytest.raises(NotMigrated, match=r"nowhere.*\(in functions/wrong.sql, line 3\)"):
        migrate.migrate(empty.dsn, folder=folder)
    assert picture(empty) == {}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("1_short.sql", "-- phase: expand\n", "not named like"),
        ("0004_Upper.sql", "-- phase: expand\n", "not named like"),
        ("0003_twice.sql", "-- phase: expand\n", "should be number 0004"),
        ("0009_gap.sql", "-- phase: expand\n", "should be number 0004"),
        ("0004_no_phase.sql", "select 1;\n", "must begin with"),
    ],
)
def test_names_and_first_lines_follow_the_rules(folder: Path, name: str, text: str, complaint: str) -> None:
    write_into(folder)(f"migrations/{name}", text)
    with pytest.raises(Invalid, match=complaint):
        migrate.read(folder)


# Back


def test_every_migration_has_a_way_back() -> None:
    """R4.8/every"""
    source = migrate.read()
    assert set(source.downs) == {file.number for file in source.migrations}


@pytest.mark.slow
def test_down_to_nothing_and_up_again(empty: testing.Database, migrated: testing.Database) -> None:
    """R3.9/migrations, R4.8/tested"""
    migrate.migrate(empty.dsn)
    everything = [file.name for file in migrate.read().migrations]
    assert migrate.rollback(empty.dsn, 0) == everything[::-1]
    assert picture(empty) == {}
    left = "select nspname from pg_namespace where nspname in ('penstock', 'auth')"
    assert empty.execute(left) == []
    assert migrate.rollback(empty.dsn, 0) == []
    assert migrate.migrate(empty.dsn) == everything
    assert picture(empty) == picture(migrated)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_down_to_earlier_migrations_and_up_again(empty: testing.Database, migrated: testing.Database) -> None:
    """R3.9/migrations, R4.8/tested: the newest one by one, the others in strides."""
    migrate.migrate(empty.dsn)
    for number in _earlier_versions():
        migrate.rollback(empty.dsn, number)
        assert len(records(empty)) == number
        migrate.migrate(empty.dsn, contract=True)
        assert picture(empty) == picture(migrated)


def test_rollback_refuses_what_it_cannot_undo(empty: testing.Database, folder: Path) -> None:
    migrate.migrate(empty.dsn, folder=folder)
    (folder / "migrations/0003_add_new.down.sql").unlink()
    with pytest.raises(Conflict, match=r"no way back from 0003_add_new\.sql"):
        migrate.rollback(empty.dsn, 0, folder=folder)
    assert columns(empty) == {"id", "new"}


# On paper


def test_the_script_run_by_psql_equals_migrate(empty: testing.Database, migrated: testing.Database) -> None:
    for _ in range(2):
        done = run_psql(empty, migrate.script())
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert picture(empty) == picture(migrated)
        assert records(empty) == records(migrated)


# The check


def test_check_finds_nothing_in_a_fresh_install(live: db.SyncConnection) -> None:
    assert migrate.check(live) == []


def test_check_of_an_empty_database_says_what_to_do(empty: testing.Database) -> None:
    assert migrate.check(empty.connect()) == ["schema penstock: missing (run `penstock migrate`)"]


CHANGES = {
    "drop table penstock.members cascade": "table penstock.members: missing",
    "alter table penstock.jobs drop column params cascade": "table penstock.jobs, column params: missing",
    "alter table penstock.jobs add column extra int": "table penstock.jobs, column extra: not declared",
    "alter table penstock.audit_log alter column subject type varchar(9)": "audit_log, column subject: found character varying(9)",
    "alter table penstock.jobs alter column priority drop default": "jobs, column priority: found smallint not null, declared",
    "alter table penstock.jobs alter column type drop not null": "jobs, column type: found text, declared text not null",
    "alter table penstock.jobs drop constraint jobs_valid": "jobs, constraint jobs_valid: missing",
    "drop index penstock.jobs_tenant": "table penstock.jobs, index jobs_tenant: missing",
    "create index on penstock.jobs (type)": "table penstock.jobs, index jobs_type_idx: not declared",
    "drop trigger jobs_audit on penstock.jobs": "table penstock.jobs, trigger jobs_audit: missing",
    "alter table penstock.jobs disable trigger jobs_audit": "trigger jobs_audit: found CREATE TRIGGER",
    "drop trigger penstock_on_new_user on auth.users": "trigger penstock_on_new_user on auth.users: missing",
    "drop policy members_read on penstock.jobs": "table penstock.jobs, policy members_read: missing",
    "alter policy members_read on penstock.jobs using (true)": "jobs, policy members_read: found permissive",
    "alter policy members_read on penstock.jobs to public": "jobs, policy members_read: found permissive for select to public",
    "create policy open on penstock.jobs using (true)": "table penstock.jobs, policy open: not declared",
    "alter table penstock.jobs disable row level security": "jobs, row security: found disabled, declared enabled",
    "alter table penstock.jobs set (fillfactor = 33)": "table penstock.jobs, options: not declared",
    "create or replace function penstock._now() returns timestamptz language sql as 'select now()'": "function penstock._now(), body: found",
    "alter function penstock.get_job security invoker": "get_job(uuid), attributes: found plpgsql, stable, security invoker",
    "alter function penstock.get_job reset search_path": "get_job(uuid), settings: found enable_seqscan=off, jit=off, declared",
    "drop function penstock.backlog": "function penstock.backlog(): missing",
    "create function penstock.get_job(text) returns int language sql as 'select 1'": "function penstock.get_job(text): not declared",
    "grant execute on function penstock.get_job to anon": "function penstock.get_job(uuid), grant to anon: not declared",
    "grant execute on function penstock.get_job to public": "function penstock.get_job(uuid), grant to public: not declared",
    "revoke execute on function penstock.get_job from authenticated": "get_job(uuid), grant to authenticated: missing",
    "grant insert on penstock.audit_log to authenticated": "audit_log, grant to authenticated: found insert, select, declared select",
    "grant update (status) on penstock.jobs to authenticated": "jobs, grant on column status to authenticated: not declared",
    "revoke update (display_name) on penstock.profiles from authenticated": "grant on column display_name to authenticated: missing",
    "grant create on schema penstock to anon": "schema penstock, grant to anon: found create, usage, declared usage",
    "alter default privileges in schema penstock grant select on tables to anon": "schema penstock, default grant on tables to anon: not declared",
    "alter view penstock.job_list set (security_invoker = false)": "view penstock.job_list, options: found security_invoker=false",
    "drop view penstock.worker_list": "view penstock.worker_list: missing",
    "create table penstock.extra (id int)": "table penstock.extra: not declared",
    "create sequence penstock.extra": "sequence penstock.extra: not declared",
    "create type penstock.extra as enum ('a', 'b')": "type penstock.extra: not declared",
    "alter function penstock.get_job owner to anon": "get_job(uuid), owner: not declared (found: not the owner of the schema but anon)",
    "comment on table penstock.jobs is 'x'": "table penstock.jobs, comment: found x",
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_check_names_a_difference(live: db.SyncConnection, change: str) -> None:
    """R2.12/differences"""
    live.execute("grant create on schema penstock to anon" if "owner to anon" in change else "select 1")
    live.execute(change.encode())
    differences = migrate.check(live)
    assert any(CHANGES[change] in line for line in differences), differences
    assert len(differences) <= 12, "one change, few sentences"


def test_check_names_a_view_that_was_redefined(live: db.SyncConnection) -> None:
    """R2.12/differences: also where columns, types and tables stay the same."""
    definition = live.execute(
        "select pg_get_viewdef('penstock.dead_letter_list'::regclass, true) as sql"
    ).fetchone()
    assert definition
    changed = (
        definition["sql"].rstrip("; \n") + " where attempts > 1" if "WHERE" not in definition["sql"] else ""
    )
    assert changed, "choose a view without a condition"
    live.execute(
        f"create or replace view penstock.dead_letter_list with (security_invoker = true) as {changed}".encode()
    )
    assert "view penstock.dead_letter_list: changed since migrate created it" in migrate.check(live)


def test_check_names_what_is_not_applied(empty: testing.Database, folder: Path) -> None:
    older = folder.parent / "older"
    (older / "migrations").mkdir(parents=True)
    shutil.copy(folder / "migrations/0001_create_things.sql", older / "migrations")
    migrate.migrate(empty.dsn, folder=older)
    connection = empty.connect()
    (folder / "schema.sql").write_text(migrate.render(migrate.picture(connection)))
    assert migrate.check(connection, folder=folder) == [
        "0002_drop_old.sql: not applied (run `penstock migrate --contract`)",
        "0003_add_new.sql: not applied (run `penstock migrate`)",
        "functions/things.sql: not applied (run `penstock migrate`)",
    ]
    (older / "schema.sql").write_text(migrate.render(migrate.picture(connection)))
    migrate.migrate(empty.dsn, contract=True, folder=folder)
    assert "0003_add_new.sql: applied, but unknown to this version" in migrate.check(connection, folder=older)


def test_partitions_come_and_go_but_may_not_be_granted(live: db.SyncConnection) -> None:
    live.execute("create table penstock.events (id int) partition by range (id)")
    before = migrate.picture(live)
    live.execute("create table penstock.events_1 partition of penstock.events for values from (1) to (9)")
    assert migrate.picture(live) == before
    live.execute("grant select on penstock.events_1 to anon")
    assert migrate.picture(live)["partition penstock.events_1 / grant to anon"] == "select"


# Other people's databases


def test_on_supabase_what_is_there_is_used(make: Make, migrated: testing.Database) -> None:
    """B4/supabase: roles and the auth schema exist and belong to others; we are neither superuser nor their owner."""
    database = make()
    database.execute(SUPABASE.replace("DATABASE", database.name))
    dsn = database.dsn.replace("postgres@", "supabase_like_owner@")
    theirs = auth_functions(database)
    migrate.migrate(dsn)
    migrate.migrate(dsn)
    assert picture(database) == picture(migrated)
    assert auth_functions(database) == theirs
    with db.connect(dsn) as connection:
        assert migrate.check(connection) == []
    migrate.rollback(dsn, 0)
    assert picture(database) == {}
    assert auth_functions(database) == theirs


# Roles belong to the server, so they stay when the database goes.
SUPABASE = """
do $$ begin
  if to_regrole('anon') is null then create role anon nologin noinherit; end if;
  if to_regrole('authenticated') is null then create role authenticated nologin noinherit; end if;
  if to_regrole('service_role') is null then create role service_role nologin noinherit bypassrls; end if;
  if to_regrole('supabase_auth_admin') is null then create role supabase_auth_admin login noinherit createrole; end if;
  if to_regrole('supabase_like_owner') is null then create role supabase_like_owner login createrole bypassrls; end if;
  if to_regrole('authenticator') is null then
    create role authenticator login noinherit;
    grant anon, authenticated, service_role to authenticator;
  end if;
end $$;
alter database DATABASE owner to supabase_like_owner;
create schema auth authorization supabase_auth_admin;
grant usage on schema auth to anon, authenticated, service_role, supabase_like_owner;
set role supabase_auth_admin;
create table auth.users (id uuid primary key, email text, raw_user_meta_data jsonb);
create function auth.uid() returns uuid language sql stable as
  $$ select coalesce(nullif(current_setting('request.jwt.claim.sub', true), ''),
       nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'sub')::uuid $$;
create function auth.role() returns text language sql stable as
  $$ select coalesce(nullif(current_setting('request.jwt.claim.role', true), ''),
       nullif(current_setting('request.jwt.claims', true), '')::jsonb ->> 'role')::text $$;
create function auth.jwt() returns jsonb language sql stable as
  $$ select nullif(current_setting('request.jwt.claims', true), '')::jsonb $$;
grant all on auth.users to supabase_like_owner;
reset role;
"""


def auth_functions(database: testing.Database) -> list[db.Row]:
    return database.execute(
        "select proname, prosrc, proowner::regrole::text, proacl from pg_proc"
        " where pronamespace = 'auth'::regnamespace order by proname"
    )


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


@pytest.mark.slow
def test_the_plain_script_equals_migrate_and_may_run_again(
    empty: testing.Database, migrated: testing.Database
) -> None:
    """For SQL editors, which know no commands of psql."""
    text = migrate.script(is_plain=True)
    assert not re.search(r"(?m)^\\|\\gset", text)
    with psycopg.connect(empty.dsn, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(text.encode())
    assert picture(empty) == picture(migrated)
    assert records(empty) == records(migrated)
