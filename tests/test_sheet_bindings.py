"""Google Sheets and accounts serve the tenant that used them first."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import psycopg
import pytest

from penstock import cli, testing
from penstock.contract import jobs, sheets
from penstock.postgres import db as database
from penstock.sheets import GoogleSheet
from tests.test_sheets import Desk, client, desk


def _bind(conn: Any, tenant: UUID, account: str, **options: Any) -> None:
    conn.execute("select penstock.bind_sheet(%s, %s, %s)", [tenant, account, database.Json(options)])


def _tenant(conn: Any, name: str) -> UUID:
    return conn.execute("select penstock.create_tenant(%s) as id", [name]).fetchone()["id"]


def _refused(conn: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(psycopg.Error) as refused, conn.transaction():
        _bind(conn, *arguments, **options)
    assert refused.value.sqlstate == "PT403"
    return str(refused.value.diag.message_primary)


def test_account_and_sheet_serve_one_tenant(conn: Any, tenant: UUID) -> None:
    other = _tenant(conn, "other")
    for _ in range(2):
        _bind(conn, tenant, "a1", sheet="book", label="robot@example.org")
    assert "account 'robot@example.org' is bound" in _refused(conn, other, "a1", label="robot@example.org")
    assert "Sheet 'book' is bound" in _refused(conn, other, "b2", sheet="book")
    # A check leaves a free sheet free.
    _bind(conn, other, "b2", sheet="new", is_new=False)
    _bind(conn, tenant, "a1", sheet="new")
    assert "Sheet 'new' is bound" in _refused(conn, other, "b2", sheet="new", is_new=False)


@pytest.mark.parametrize("shared", ["a1", "robot@example.org"])
def test_shared_account_serves_all_tenants(conn: Any, tenant: UUID, shared: str) -> None:
    other = _tenant(conn, "other")
    conn.execute("select penstock.set_setting('shared_sheet_accounts', %s)", [database.Json([shared])])
    _bind(conn, tenant, "a1", sheet="mine", label="robot@example.org")
    _bind(conn, other, "a1", sheet="theirs", label="robot@example.org")
    # Sheets are still one tenant's.
    assert "Sheet 'mine' is bound" in _refused(conn, other, "a1", sheet="mine", label="robot@example.org")


def test_released_sheet_goes_to_the_next_tenant(conn: Any, tenant: UUID) -> None:
    other = _tenant(conn, "other")
    _bind(conn, tenant, "a1", sheet="book")
    conn.execute("select penstock.release_sheet('sheet', 'book')")
    _bind(conn, other, "b2", sheet="book")
    assert "Sheet 'book' is bound" in _refused(conn, tenant, "a1", sheet="book")
    with pytest.raises(psycopg.Error, match="no tenant is bound"), conn.transaction():
        conn.execute("select penstock.release_sheet('sheet', 'nothing')")


async def _failure(at: Desk, tenant_id: UUID, sheet: str) -> str | None:
    """The error code of a job of this tenant over a sheet."""
    job = await at.ideas.options(tenant_id=tenant_id).astart(GoogleSheet(sheet))
    await at.finish(job)
    async with at.app.connections() as pool:
        failed = await jobs.tasks(pool, job_id=job.id, status="failed")
    return failed[0].error_code if failed else None


@pytest.mark.slow
async def test_tenant_can_neither_read_nor_overwrite_anothers_sheet(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """S90: two tenants, one Google account that both shared their sheets with."""
    one, two = (db.execute("select penstock.create_tenant(%s) as id", [name])[0]["id"] for name in "ab")
    async with desk(drain, clock) as at:
        for name in ("ones", "twos"):
            at.sim.sheets.add(name, {"Ideas": [["title"], ["otters"]]})
        assert await _failure(at, one, "ones") is None
        before = at.sim.sheets.values("ones", "Ideas")
        calls = dict(at.sim.stats()["sheets"]["calls"])
        assert await _failure(at, two, "twos") == "account_bound"
        db.execute(
            "select penstock.set_setting('shared_sheet_accounts', %s)",
            [database.Json([at.app.sheets_of(one).id])],
        )
        assert await _failure(at, two, "ones") == "sheet_bound"
        assert at.sim.sheets.values("ones", "Ideas") == before
        assert at.sim.stats()["sheets"]["calls"] == calls
        # A check of the sheet reads it as well.
        with pytest.raises(Exception, match="bound to another tenant"):
            await at.ideas.options(tenant_id=two).fetched(GoogleSheet("ones"))
        assert await _failure(at, two, "twos") is None


@pytest.mark.slow
async def test_results_are_not_written_to_a_sheet_that_another_tenant_got(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    one, two = (db.execute("select penstock.create_tenant(%s) as id", [name])[0]["id"] for name in "ab")
    async with desk(drain, clock) as at:
        at.sim.sheets.add("book", {"Ideas": [["title"], ["otters"]]})
        job = await at.ideas.options(tenant_id=one).astart(GoogleSheet("book"))
        await drain.arun(at.app)
        async with at.app.connections() as pool:
            assert await sheets.release(pool, kind="sheet", name="book") == one
            other = client(at.sim, at.sim.sheets.service_account())
            await sheets.bind(pool, tenant_id=two, account=f"{other.id}x", sheet="book")
        await at.finish(job)
        assert at.sim.sheets.values("book", "Ideas") == [["title"], ["otters"]]
        async with at.app.connections() as pool:
            [failed] = await jobs.tasks(pool, job_id=job.id, status="failed")
            bound = {(each.kind, each.name): each.tenant_id for each in await sheets.list(pool)}
        assert failed.error_code == "sheet_bound"
        assert bound["sheet", "book"] == two and len(bound) == 3


def test_commands_list_and_release_bindings(
    db: testing.Database, tenant: UUID, capsys: pytest.CaptureFixture[str]
) -> None:
    db.execute(
        "select penstock.bind_sheet(%s, 'a1', %s)",
        [tenant, database.Json({"sheet": "book", "label": "robot@example.org"})],
    )

    def run(*arguments: str) -> Any:
        code = cli.execute(["--database", db.dsn, *arguments, "-o", "json"])
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else json.loads(err)["code"]

    found = {(each["kind"], each["name"], each["label"]) for each in run("sheets", "ls", "--tenant", "test")}
    assert found == {("account", "a1", "robot@example.org"), ("sheet", "book", None)}
    assert run("sheets", "release", "book", "--yes") == {"tenant_id": str(tenant)}
    assert run("sheets", "release", "a1", "--account", "--yes") == {"tenant_id": str(tenant)}
    assert run("sheets", "release", "book", "--yes") == "unknown_binding"
    assert run("sheets", "ls") == []
