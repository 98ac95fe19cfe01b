"""The SQL that an app brings: applied as Penstock's own is, and refused when it gives something away."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import App, cli, testing
from penstock.errors import Invalid, NotMigrated
from penstock.postgres import db, migrate
from penstock.worker import Worker

FILES = {
    "migrations/0001_create_boxes.sql": """\
-- phase: expand
create table boxes.boxes (tenant_id uuid not null, id bigint not null, primary key (tenant_id, id));
alter table boxes.boxes enable row level security;
""",
    "migrations/0001_create_boxes.down.sql": "drop table boxes.boxes;\n",
    "functions/boxes.sql": """\
create or replace function boxes.pack(p_id bigint) returns bigint language sql security definer
  set search_path = boxes, pg_temp as $$ select p_id $$;
""",
    "views.sql": "create or replace view boxes.box_list with (security_invoker = true) as select * from boxes.boxes;\n",
    "grants.sql": """\
revoke all on all tables in schema boxes from public, anon, authenticated, service_role;
revoke all on all functions in schema boxes from public, anon, authenticated, service_role;
grant usage on schema boxes to authenticated, service_role;
grant select on boxes.boxes, boxes.box_list to authenticated, service_role;
grant execute on function boxes.pack(bigint) to service_role;
drop policy if exists members_read on boxes.boxes;
create policy members_read on boxes.boxes for select to authenticated using (tenant_id in (select penstock.my_tenants()));
""",
}
# What is added to the last file, and what the refusal says of it.
BREACHES = {
    "alter table boxes.boxes disable row level security": "table boxes has no row level security",
    "create or replace view boxes.every with (security_invoker = false) as select * from boxes.boxes": "view every runs with its owner's rights",
    "create materialized view if not exists boxes.copy as select * from boxes.boxes; grant select on boxes.copy to authenticated": "copy has no row level security, and authenticated may read it",
    "create or replace function boxes.every_one() returns bigint language sql security definer as 'select 1'; revoke all on function boxes.every_one() from public": "boxes.every_one() is security definer: its search_path must be set",
    "alter function boxes.pack(bigint) set search_path = boxes": "must be set and end with pg_temp",
    "grant execute on function boxes.pack(bigint) to public": "boxes.pack(bigint): execute is granted to public",
    "grant select on boxes.box_list to anon": "box_list: select is granted to anon",
    "grant update (id) on boxes.boxes to anon": "boxes.id: update is granted to anon",
    "grant select on boxes.boxes to authenticated with grant option": "boxes: authenticated may grant select to others",
    "grant create on schema boxes to authenticated": "authenticated may create objects in it",
    "create policy open on boxes.boxes for select using (true)": "policy open of boxes applies to public or anon",
    "create policy open on boxes.boxes for insert to authenticated with check (true)": "policy open of boxes lets users write any row",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / "sql" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "sql" / name).write_text(text)
    return tmp_path / "sql"


@pytest.fixture
def app(folder: Path) -> App:
    return App(schema="boxes", sql=folder)


def check(database: testing.Database, folder: Path) -> list[str]:
    with db.connect(database.dsn) as connection:
        return migrate.check(connection, folder=folder, schema="boxes")


@pytest.mark.every_postgres
def test_it_arrives_once_is_looked_after_and_leaves(db: testing.Database, app: App, folder: Path) -> None:
    """R2.12/differences, R4.8/tested: forward, again, changed, and back, beside Penstock's own schema and without touching it."""
    # The tests have a clock of their own there.
    migrate.migrate(db.dsn)
    before = picture(db)
    assert check(db, folder) == ["schema boxes: missing (run `penstock migrate MODULE:APP`)"]
    assert app.migrate(db.dsn) == ["boxes/0001_create_boxes.sql"]
    assert (app.migrate(db.dsn), check(db, folder)) == ([], [])
    (folder / "functions/boxes.sql").write_text(
        FILES["functions/boxes.sql"].replace("p_id $$", "p_id + 1 $$")
    )
    assert check(db, folder) == ["functions/boxes.sql: another version of this file was applied"]
    app.migrate(db.dsn)
    assert db.execute("select boxes.pack(1)") == [{"pack": 2}]
    db.execute("grant select on boxes.box_list to anon")
    assert check(db, folder) == ["box_list: select is granted to anon"]
    assert migrate.rollback(db.dsn, 0, folder=folder, schema="boxes") == ["0001_create_boxes.sql"]
    assert check(db, folder)[0].startswith("schema boxes: missing")
    assert picture(db) == before


def picture(database: testing.Database) -> dict[str, str]:
    with db.connect(database.dsn) as connection:
        return migrate.picture(connection)


@pytest.mark.every_postgres
def test_what_gives_something_away_is_refused_whole(db: testing.Database, folder: Path) -> None:
    """R2.10/apps: row security, rights of views and functions, grants and policies of an app's schema."""
    grants = folder / "grants.sql"
    for statement, said in BREACHES.items():
        grants.write_text(f"{FILES['grants.sql']}{statement};\n")
        with pytest.raises(NotMigrated) as refused:
            migrate.migrate(db.dsn, folder=folder, schema="boxes")
        assert said in str(refused.value) and refused.value.code == "unsafe_schema", statement
        assert db.execute("select to_regnamespace('boxes') as found") == [{"found": None}]
    grants.write_text(FILES["grants.sql"])
    migrate.migrate(db.dsn, folder=folder, schema="boxes")


@pytest.mark.every_postgres
def test_a_later_version_that_gives_something_away_is_refused_whole(
    db: testing.Database, folder: Path
) -> None:
    migrate.migrate(db.dsn, folder=folder, schema="boxes")
    for name, old, new in (
        ("functions/boxes.sql", "p_id $$", "p_id + 1 $$"),
        ("grants.sql", "for select to authenticated using", "for select using"),
    ):
        (folder / name).write_text(FILES[name].replace(old, new))
    with pytest.raises(NotMigrated, match="policy members_read of boxes applies to public or anon"):
        migrate.migrate(db.dsn, folder=folder, schema="boxes")
    assert db.execute("select boxes.pack(1)") == [{"pack": 1}]
    (folder / "grants.sql").write_text(FILES["grants.sql"])
    migrate.migrate(db.dsn, folder=folder, schema="boxes")
    assert db.execute("select boxes.pack(1)") == [{"pack": 2}]
    # What somebody changed by hand is named, and repaired.
    db.execute("drop policy members_read on boxes.boxes")
    assert check(db, folder) == ["policy members_read on boxes.boxes: missing"]
    db.execute("alter function boxes.pack(bigint) cost 7")
    assert "function boxes.pack: changed since migrate created it" in check(db, folder)
    migrate.migrate(db.dsn, folder=folder, schema="boxes")
    assert check(db, folder) == []


def test_penstocks_own_schema_has_no_breach(conn: db.SyncConnection) -> None:
    """R2.10/definers, R2.10/by-name: the same questions, of schema penstock."""
    assert migrate.breaches(conn) == []


async def test_a_worker_does_not_run_without_it(
    db: testing.Database, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    with pytest.raises(NotMigrated, match="lacks the app's schema boxes"):
        await Worker(app, dsn=db.dsn, drain=True).run()


def test_the_command_line_applies_checks_and_prints_it(
    db: testing.Database, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder.parent / "boxes_app.py").write_text(
        "from pathlib import Path\nfrom penstock import App\n"
        "app = App(schema='boxes', sql=Path(__file__).parent / 'sql')\n"
    )
    monkeypatch.syspath_prepend(folder.parent)

    def run(*words: str) -> tuple[int, str]:
        code = cli.execute(["migrate", "boxes_app", *words, "--database", db.dsn])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, said = run("--check")
    assert code == 1 and "schema boxes: missing" in said
    assert run("-o", "json")[0] == 0
    code, said = run("--check")
    assert (code, "matches this version" in said) == (0, True), said
    assert "create table boxes.boxes" in run("--sql")[1]
    code, said = run("--rollback-to", "0", "--yes")
    assert (code, "0001_create_boxes.sql" in said) == (0, True), said
    assert db.execute("select to_regnamespace('penstock') is not null as here") == [{"here": True}]


@pytest.mark.parametrize("schema", ["public", "pg_mine", "Boxes", "auth", "a;b", ""])
def test_a_schema_is_a_plain_name_of_its_own(folder: Path, schema: str) -> None:
    with pytest.raises(Invalid):
        migrate.read(folder, schema)
    with pytest.raises(Invalid, match="both `sql` and `schema`"):
        App(sql=folder)
