"""Sessions of the dashboard: they live on the server, end there, and act as who signed in."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import jwt
import pytest
from fastapi.testclient import TestClient

from penstock.testing import Clock
from tests.sql.conftest import Contract
from tests.sql.test_access import acting, join

COOKIE = "penstock_dashboard"
SECRET = "a secret of the tests, of more than 32 bytes"  # noqa: S105 it opens a test database


def is_in(browser: Any) -> bool:
    return browser.get("/jobs").status_code == 200


def replay(site: Any, value: str) -> bool:
    """Whether a cookie that was copied still works."""
    client = TestClient(site.app, follow_redirects=False, headers={"Cookie": f"{COOKIE}={value}"})
    client.portal = site.client.portal
    return client.get("/dashboard/jobs").status_code == 200


def test_sign_out_ends_the_session_on_the_server(site: Any, sample: Any) -> None:
    """S24: a cookie that was copied before does not work any more."""
    key = site.key("viewer", sample.acme)
    browser, other = site.browser(key), site.browser(key)
    value = browser.client.cookies[COOKIE]
    assert replay(site, value) and value != key
    assert browser.post("/sign-out").status_code == 303
    assert not replay(site, value) and not is_in(browser)
    assert is_in(other), "another session of the same key goes on"


def test_only_the_digest_of_a_session_is_stored(site: Any, sample: Any) -> None:
    browser = site.browser(site.key("viewer", sample.acme))
    for table in ("sessions", "audit_log"):
        rows = site.db.execute(f"select t::text as line from penstock.{table} t")
        assert rows and not [row for row in rows if browser.client.cookies[COOKIE] in row["line"]]


def test_idle_and_old_sessions_end(site: Any, sample: Any, clock: Clock) -> None:
    clock.freeze()
    browser = site.browser(site.key("viewer", sample.acme))
    for _ in range(5):
        clock.advance(minutes=50)
        assert is_in(browser), "each request extends the idle time"
    clock.advance(minutes=50)
    assert browser.get("/jobs", headers={"HX-Request": "true"}).status_code == 200
    clock.advance(minutes=11)
    assert not is_in(browser), "a page that refreshes itself does not"
    site.db.execute("select penstock.set_setting('session_idle_minutes', '100000')")
    browser = site.browser(site.key("viewer", sample.acme))
    clock.advance(hours=23)
    assert is_in(browser)
    clock.advance(hours=2)
    assert not is_in(browser)


def test_session_lasts_no_longer_than_its_token(site: Any, sample: Any, clock: Clock) -> None:
    now = int(time.time())
    token = jwt.encode({"role": "service_role", "iat": now, "exp": now + 600}, SECRET, "HS256")
    browser = site.browser(token)
    assert is_in(browser)
    clock.advance(minutes=11)
    assert not is_in(browser)


def test_sessions_are_listed_and_ended(site: Any, sample: Any) -> None:
    key, foreign = site.key("viewer", sample.acme), site.key("viewer", sample.other)
    browser, second, third, stranger = (site.browser(each) for each in (key, key, key, foreign))
    assert browser.get("/sessions").text.count("/sessions/end") == 4
    ids = {
        row["id"]
        for row in site.db.execute(
            "select s.id from penstock.sessions s join penstock.api_keys k on k.id = s.key_id"
        )
    }
    assert len(ids) == 4
    query = "select id from penstock.sessions where subject <> %s"
    [row] = site.db.execute(query, [browser.caller.claims["sub"]])
    assert browser.post("/sessions/end", {"id": str(row["id"])}).status_code == 404
    assert is_in(stranger)
    assert browser.post("/sessions/end", {"others": "1"}).status_code == 303
    assert [is_in(each) for each in (browser, second, third, stranger)] == [True, False, False, True]
    operator = site.browser(site.key("service"))
    assert str(row["id"]) in operator.get("/sessions").text
    assert operator.post("/sessions/end", {"id": str(row["id"])}).status_code == 303
    assert not is_in(stranger)


def test_cookie_has_the_host_prefix_behind_tls(site: Any, sample: Any) -> None:
    client = TestClient(site.app, base_url="https://testserver", follow_redirects=False)
    client.portal = site.client.portal
    browser = type(site.browser(None))(client)
    headers = {"Origin": "https://testserver"}
    form = {"credential": site.key("viewer", sample.acme)}
    answer = browser.post("/sign-in", form, headers=headers)
    [cookie] = [value for value in answer.headers.get_list("set-cookie") if "pss_" in value]
    assert cookie.startswith("__Host-penstock_dashboard=pss_")
    assert "; Secure" in cookie and "; HttpOnly" in cookie and "Path=/;" in cookie and "Domain" not in cookie
    assert is_in(browser)


def test_sign_in_ends_the_previous_session(site: Any, sample: Any) -> None:
    """A token from before the sign-in is worth nothing after it (session fixation)."""
    browser = site.browser(site.key("viewer", sample.acme))
    before = browser.client.cookies[COOKIE]
    browser.post("/sign-in", {"credential": site.key("viewer", sample.acme)})
    assert browser.client.cookies[COOKIE] != before and not replay(site, before)


class TestSql:
    @pytest.fixture
    def sql(self, conn: Any, tenant: Any, clock: Clock) -> Contract:
        clock.freeze()
        return Contract(conn, tenant)

    def test_users_see_and_end_their_own_sessions_only(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        made = {
            person.name: sql.rows("open_session", role="authenticated", subject=person.id)[0]
            for person in (ann, bob)
        }
        with acting(sql, ann):
            assert [row["id"] for row in sql.rows("list_sessions", subject=bob.id)] == [made["ann"]["id"]]
            with sql.refused(404, "unknown_session"):
                sql.value("end_session", session_id=made["bob"]["id"])
            sql.value("end_session", session_id=made["ann"]["id"])
            assert sql.rows("list_sessions") == []
        assert len(sql.rows("list_sessions")) == 1

    def test_session_of_another_subject_is_rejected(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        made = sql.rows("open_session", role="authenticated", subject=ann.id)[0]
        with acting(sql, ann, forged={"penstock_session": str(made["id"])}):
            sql.value("check_session")
        with acting(sql, bob, forged={"penstock_session": str(made["id"])}), sql.refused(401):
            sql.value("check_session")
        with acting(sql, ann), sql.refused(401):
            sql.value("check_session")

    def test_expired_sessions_are_deleted_and_a_subject_has_at_most_50(
        self, sql: Contract, clock: Clock
    ) -> None:
        ann = join(sql, "ann")
        for _ in range(52):
            clock.advance(seconds=1)
            sql.rows("open_session", role="authenticated", subject=ann.id)
        assert sql.one("select count(*) from penstock.sessions") == 50
        clock.advance(days=2)
        for _ in range(7):
            sql.rows("open_session", role="authenticated", subject=ann.id)
        live = sql.rows("list_sessions", subject=ann.id)
        assert len(live) == 7 and sql.one("select count(*) from penstock.sessions") == 7
        assert all(row["expires_at"] == clock.now() + timedelta(days=1) for row in live)
