"""The pytest plugin that ships with the package, as its users see it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from penstock import testing


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TEST_PG", raising=False)


@pytest.mark.slow
def test_plugin_provides_a_database_and_a_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from datetime import timedelta

        def test_own_database(penstock_db, penstock_clock, penstock_tenant):
            before = penstock_clock.now()
            penstock_clock.advance(days=2, seconds=1)
            elsewhere = penstock_db.connect().execute("select penstock._now() as now").fetchone()["now"]
            assert elsewhere - before > timedelta(days=2)
            assert penstock_db.execute("select id from penstock.tenants") == [{"id": penstock_tenant}]

        def test_rolled_back(penstock_conn, penstock_clock, penstock_tenant):
            penstock_clock.freeze()
            now = penstock_clock.now()
            penstock_clock.advance(hours=1)
            assert penstock_clock.now() - now == timedelta(hours=1)
            penstock_conn.execute("set role authenticated")
            assert penstock_conn.execute("select penstock._now() as now").fetchone()["now"] > now

        def test_nothing_is_left_of_it(penstock_conn):
            assert penstock_conn.execute("select id from penstock.tenants").fetchall() == []
            shift = penstock_conn.execute("select shift, frozen_at from penstock_test.clock").fetchone()
            assert shift == {"shift": timedelta(), "frozen_at": None}
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=3)


@pytest.mark.slow
def test_open_connection_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from penstock.postgres import db

        left = []

        def test_leaves(penstock_db):
            left.append(db.connect(penstock_db.dsn, name="forgotten"))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*connections left open: forgotten (idle)*"])


PID = "select pg_backend_pid() as pid"


def test_statements_share_a_connection_that_is_replaced_when_it_is_lost(db: testing.Database) -> None:
    [first] = db.execute(PID)
    assert db.execute(PID) == [first]
    db.server._admin(f"select pg_terminate_backend({first['pid']}, 5000)")
    assert db.execute(PID) != [first]


def test_a_statement_that_changes_its_session_has_one_of_its_own(db: testing.Database) -> None:
    before = db.execute("select current_setting('search_path') as path, current_user as name")
    for change in ("set search_path = penstock", "create table t (n int); SET role anon"):
        db.execute(change)
        assert db.execute("select current_setting('search_path') as path, current_user as name") == before


def test_a_statement_does_not_wait_for_another_thread(db: testing.Database) -> None:
    [first] = db.execute(PID)
    with db._using_kept:
        assert db.execute(PID) != [first]


def test_environments_with_other_programs_have_servers_of_their_own(
    server: testing.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the tests of one checkout fail once the checkout that started the server is removed."""
    assert testing.Server(server.major).folder == server.folder
    copy = tmp_path / "bin"
    copy.symlink_to(testing.binaries(server.major))
    monkeypatch.setattr(testing, "binaries", lambda _: copy)
    assert testing.Server(server.major).folder != server.folder


def test_ctrl_c_interrupts_tests_that_a_shell_started_in_the_background() -> None:
    """Such a shell ignores SIGINT, and so would every program that a test starts."""
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
