"""Migrating a database that is in use: what is unchanged is not touched, and nobody else fails (R2.12, R3.9)."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock import testing
from penstock.errors import NotMigrated
from penstock.postgres import db, migrate
from penstock.postgres.migrate import connection as patience

pytestmark = [pytest.mark.every_postgres, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
RELEASE = "00d4aa7"
"""The commit of the last version before `migrate` recorded statements and objects."""


@pytest.fixture
def live(server: testing.Server) -> Iterator[testing.Database]:
    """A migrated database of the test's own, with the real clock."""
    database = testing.Database(server, server.create())
    migrate.migrate(database.dsn)
    yield database
    database.close()
    server.drop(database.name)


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    """A copy of penstock/sql to change."""
    return Path(shutil.copytree(migrate.SQL, tmp_path / "sql"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def check(database: testing.Database, folder: Path = migrate.SQL) -> list[str]:
    with db.connect(database.dsn) as connection:
        return migrate.check(connection, folder=folder)


# Nothing to do


def test_noop_migrate_takes_no_lock_stronger_than_access_share(live: testing.Database) -> None:
    """EXCLUSIVE lets ACCESS SHARE through and nothing else: with that on every relation, nothing has to wait."""
    relations = live.execute(
        "select string_agg(oid::regclass::text, ', ') as names from pg_class"
        " where relnamespace = 'penstock'::regnamespace and relkind in ('r', 'p', 'v')"
    )
    blocker = live.connect()
    blocker.execute(f"begin; lock table {relations[0]['names']} in exclusive mode".encode())
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(migrate.migrate, live.dsn)
        try:
            assert run.result(timeout=5) == []
        finally:
            blocker.execute("rollback")


def test_noop_migrate_writes_nothing_and_is_quick(live: testing.Database) -> None:
    before, written = catalogue(live), live.execute("select * from penstock.migrations order by name")
    seconds: list[float] = []
    for _ in range(5):
        started = time.monotonic()
        assert migrate.migrate(live.dsn) == []
        seconds.append(time.monotonic() - started)
    assert catalogue(live) == before
    assert live.execute("select * from penstock.migrations order by name") == written
    assert min(seconds) < 0.5


def catalogue(database: testing.Database) -> dict[str, str]:
    """Every row of the catalogue about our objects, with the transaction that wrote it."""
    found = database.execute("""
        select 'function ' || oid::regprocedure as object, xmin::text from pg_proc where pronamespace = 'penstock'::regnamespace
        union all
        select 'relation ' || oid::regclass, xmin::text from pg_class where relnamespace = 'penstock'::regnamespace
        union all
        select format('policy %s on %s', polname, polrelid::regclass), xmin::text from pg_policy
        union all
        select format('trigger %s on %s', tgname, tgrelid::regclass), xmin::text from pg_trigger where not tgisinternal""")
    return {row["object"]: row["xmin"] for row in found}


# Only what differs


def test_a_changed_function_and_policy_touch_nothing_else(live: testing.Database, sql: Path) -> None:
    """What is written anew loses its plans in every session."""
    edit(sql / "functions/workers.sql", "-- ", "-- Another comment. ")
    edit(sql / "functions/clock.sql", "$$", "$$ -- a comment in the body\n")
    edit(sql / "policies.sql", "all_read on penstock.plans for select to authenticated using (true)",
         "all_read on penstock.plans for select to authenticated using (price >= 0)")  # fmt: skip
    edit(sql / "grants.sql", "penstock.get_job(uuid),\n", "\n")
    before = catalogue(live)
    migrate.migrate(live.dsn, folder=sql)
    changed = {key for key, xmin in catalogue(live).items() if before.get(key) != xmin}
    assert changed == {
        "function penstock._now()", "function penstock.get_job(uuid)", "policy all_read on penstock.plans",
    }  # fmt: skip
    differences = check(live, sql)
    assert len(differences) == 4, differences
    migrate.migrate(live.dsn)
    assert check(live) == []


DRIFT = {
    "functions and triggers": [
        "create or replace function penstock._now() returns timestamptz language sql as 'select now()'",
        "alter function penstock.get_job security invoker",
        "alter function penstock.open_job reset search_path",
        "alter function penstock._uuid7() reset search_path",
        "drop function penstock.backlog",
        "comment on function penstock.pulse() is 'x'",
        "drop trigger operations_transitions on penstock.operations",
        "alter table penstock.jobs disable trigger jobs_audit",
        "drop trigger penstock_on_new_user on auth.users",
    ],
    "grants": [
        "grant execute on function penstock.get_job to anon",
        "grant execute on function penstock.open_job to public",
        "revoke execute on function penstock.forecast from authenticated",
        "grant insert on penstock.audit_log to authenticated",
        "grant select on penstock.jobs to service_role with grant option",
        "revoke select on penstock.tasks from authenticated",
        "grant update (status) on penstock.jobs to authenticated",
        "revoke update (display_name) on penstock.profiles from authenticated",
        "grant create on schema penstock to anon",
    ],
    "policies and views": [
        "drop policy members_read on penstock.jobs",
        "alter policy members_read on penstock.tasks using (true)",
        "alter policy members_read on penstock.phases to public",
        "drop view penstock.worker_list",
        "drop view penstock.price_list cascade",
        "alter view penstock.job_list set (security_invoker = false)",
        "comment on view penstock.task_list is 'x'",
        "create or replace view penstock.dead_letter_list with (security_invoker = true) as select id, tenant_id, job_id,"
        " task_id, kind, reason, error_code, error_message, attempts, died_at from penstock.dead_letters where id > 7",
    ],
    "what others depend on": ["drop function penstock.my_tenants cascade"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRIFT)
def test_migrate_repairs_what_was_changed_by_hand(live: testing.Database, kind: str) -> None:
    for change in DRIFT[kind]:
        live.execute(change)
    assert len(check(live)) >= len(DRIFT[kind])
    assert migrate.migrate(live.dsn) == []
    assert check(live) == []
    before = catalogue(live)
    migrate.migrate(live.dsn)
    assert catalogue(live) == before


def test_a_view_that_reads_all_columns_follows_its_table(live: testing.Database, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "migrations").mkdir(parents=True)
    (folder / "migrations/0001_create_t.sql").write_text(
        "-- phase: expand\ncreate table own.t (a int); alter table own.t enable row level security;"
    )
    (folder / "views.sql").write_text(
        "create or replace view own.v with (security_invoker = true) as select * from own.t;"
    )
    migrate.migrate(live.dsn, folder=folder, schema="own")
    (folder / "migrations/0002_add_b.sql").write_text("-- phase: expand\nalter table own.t add column b int;")
    migrate.migrate(live.dsn, folder=folder, schema="own")
    assert live.execute("select b from own.v") == []


def test_statements_that_name_no_object_repair_what_they_made(live: testing.Database, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "migrations").mkdir(parents=True)
    (folder / "migrations/0001_create_t.sql").write_text("-- phase: expand\ncreate table own.t (a int);")
    (folder / "grants.sql").write_text("""
        alter table own.t enable row level security;
        do $$ begin
          drop policy if exists everyone on own.t;
          create policy everyone on own.t for select to authenticated using (a > 1);
        end $$;""")

    def run() -> list[str]:
        return migrate.migrate(live.dsn, folder=folder, schema="own")

    run()
    for change in ("drop policy everyone on own.t", "alter table own.t disable row level security"):
        live.execute(change)
        run()
        [found] = live.execute(
            "select relrowsecurity as is_on, (select count(*) from pg_policy where polrelid = c.oid) as policies"
            " from pg_class c where oid = 'own.t'::regclass"
        )
        assert found == {"is_on": True, "policies": 1}


# Failing and repeating


def test_functions_change_together_or_not_at_all(live: testing.Database, sql: Path) -> None:
    edit(sql / "functions/clock.sql", "$$", "$$ -- changed\n")
    (sql / "functions/zzz.sql").write_text("select 1;\nselect nothing from nowhere;")
    before = catalogue(live)
    with pytest.raises(NotMigrated, match=r"\(in functions/zzz.sql, line 2\)"):
        migrate.migrate(live.dsn, folder=sql)
    assert catalogue(live) == before


@pytest.mark.slow
def test_a_migrate_that_was_stopped_between_policies_is_finished_by_the_next(
    live: testing.Database, sql: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("meters", "plans"):
        edit(sql / "policies.sql", f"all_read on penstock.{table} for select to authenticated using (true)",
             f"all_read on penstock.{table} for select to authenticated using (name <> '')")  # fmt: skip
    blocker = live.connect()
    blocker.execute("begin; lock table penstock.plans in access share mode")
    monkeypatch.setattr(patience, "_PATIENCE_SECONDS", 0.5)
    with pytest.raises(NotMigrated, match="lock timeout"):
        migrate.migrate(live.dsn, folder=sql)
    assert policy(live, "meters") == "(name <> ''::text)"
    assert policy(live, "plans") == "true"
    assert any("policies.sql: another version" in line for line in check(live, sql))
    blocker.execute("rollback")
    migrate.migrate(live.dsn, folder=sql)
    assert policy(live, "plans") == "(name <> ''::text)"
    assert not any("policies.sql" in line for line in check(live, sql))


def policy(database: testing.Database, table: str) -> str:
    query = "select qual from pg_policies where schemaname = 'penstock' and tablename = %s and policyname = 'all_read'"
    return database.execute(query, [table])[0]["qual"]


# Beside traffic


STARTS = 200
MIGRATES = 6


@contextmanager
def traffic(database: testing.Database, sessions: int = 3) -> Iterator[Callable[[], int]]:
    """Jobs are started, tasks claimed and completed, and views read, all the time. Yields a count of starts.

    A statement that fails for anybody fails the test.
    """
    database.execute("select penstock.define_kind('audio')")
    [tenant] = database.execute("select penstock.create_tenant('t') as id")
    options = json.dumps({"tenant_id": str(tenant["id"])})
    tasks = json.dumps([{"kind": "audio", "key": str(n)} for n in range(3)])
    stop, starts, errors = threading.Event(), [0] * sessions, list[str]()

    def start(number: int) -> None:
        def once(connection: psycopg.Connection[db.Row]) -> None:
            connection.execute("select penstock.start_job('t', '{}', %s, %s)", [tasks, options])
            starts[number] += 1

        forever(once)

    def work() -> None:
        def once(connection: psycopg.Connection[db.Row]) -> None:
            claimed = connection.execute(
                "select * from penstock.claim_tasks('w', 10, '{audio}', 30)"
            ).fetchall()
            for task in claimed:
                connection.execute(
                    "select penstock.complete_task(%s, 'w', '{}', %s)", [task["id"], task["lease"]]
                )

        forever(once)

    def look() -> None:
        def once(connection: psycopg.Connection[db.Row]) -> None:
            connection.execute("select * from penstock.job_list limit 3").fetchall()
            connection.execute("select * from penstock.task_list limit 3").fetchall()

        forever(once)

    def forever(once: Callable[[psycopg.Connection[db.Row]], None]) -> None:
        with db.connect(database.dsn) as connection:
            while not stop.is_set() and not errors:
                try:
                    once(connection)
                except psycopg.Error as error:
                    errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=start, args=[number]) for number in range(sessions)]
    threads += [threading.Thread(target=work), threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sum(starts)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


def wait_for_starts(count: Callable[[], int], wanted: int) -> None:
    deadline = time.monotonic() + 120
    while count() < wanted and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.mark.slow
def test_starts_beside_migrates_see_no_error(live: testing.Database, sql: Path) -> None:
    edit(sql / "functions/jobs.sql", "$$", "$$ -- a comment in the body\n")
    edit(sql / "functions/jobs.sql", "after update of status on", "after update of status, type on")
    edit(sql / "policies.sql", "service_reads on penstock.jobs for select to service_role using (true)",
         "service_reads on penstock.jobs for select to service_role using (id is not null)")  # fmt: skip
    edit(sql / "views.sql", "then 'queued'", "then 'waiting'")
    with traffic(live) as count:
        for number in range(MIGRATES):
            # Two of three change something: there, and back again.
            migrate.migrate(live.dsn, folder=sql if number % 3 == 1 else migrate.SQL)
            wait_for_starts(count, STARTS * (number + 1) // MIGRATES)
    assert count() >= STARTS
    migrate.migrate(live.dsn)
    assert check(live) == []


def release(folder: Path) -> Path:
    """The sql folder of the last release, from the repository's history."""
    found = subprocess.run(["git", "-C", str(ROOT), "archive", RELEASE, "penstock/sql"], capture_output=True)
    if found.returncode:
        pytest.skip("the history of the repository is not here")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "penstock/sql"


@pytest.mark.slow
def test_upgrading_the_last_release_beside_traffic(
    server: testing.Server, live: testing.Database, tmp_path: Path
) -> None:
    database = testing.Database(server, server.create())
    try:
        migrate.migrate(database.dsn, folder=release(tmp_path))
        # It recorded files, and neither statements nor objects.
        database.execute("update penstock.migrations set details = '{}'")
        with traffic(database) as count:
            wait_for_starts(count, STARTS // 4)
            migrate.migrate(database.dsn)
            wait_for_starts(count, STARTS // 2)
            migrate.migrate(database.dsn, contract=True)
            wait_for_starts(count, STARTS * 3 // 4)
        assert check(database) == []
        with db.connect(database.dsn) as upgraded, db.connect(live.dsn) as fresh:
            assert migrate.picture(upgraded) == migrate.picture(fresh)
    finally:
        database.close()
        server.drop(database.name)


# Dumped and restored


def test_a_restored_dump_is_as_declared(server: testing.Server, live: testing.Database) -> None:
    """PostgreSQL reads (a AND b) AND c back as a AND b AND c."""
    restored = testing.Database(server, server.create())
    binaries = testing.binaries(live.connect().info.server_version // 10_000)
    try:
        dump = subprocess.run(
            [binaries / "pg_dump", "--dbname", live.dsn], capture_output=True, text=True, check=True
        )
        psql = [
            binaries / "psql",
            "--no-psqlrc",
            "--quiet",
            "--set",
            "ON_ERROR_STOP=1",
            "--dbname",
            restored.dsn,
        ]
        subprocess.run(psql, input=dump.stdout, capture_output=True, text=True, check=True)
        assert check(restored) == []
        before = catalogue(restored)
        migrate.migrate(restored.dsn)
        assert catalogue(restored) == before
    finally:
        restored.close()
        server.drop(restored.name)
