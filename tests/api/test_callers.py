"""The API's database login, and the token settings that apply to every caller."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient

from penstock import api, server, testing
from penstock.api import callers
from penstock.errors import PenstockError
from penstock.postgres import db
from penstock.settings import Settings
from tests.api.conftest import World, bearer, token
from tests.api.forging import ANN


@pytest.mark.shared_world
class TestLogin:
    @pytest.mark.parametrize(
        "change",
        [
            "grant service_role to {role}",
            "alter role {role} bypassrls",
            "alter role {role} superuser",
            "alter role {role} createrole",
            "grant postgres to {role}",
            "revoke anon from {role}",
        ],
    )
    def test_unsafe_api_logins_are_rejected(
        self, db: testing.Database, api_settings: Settings, change: str
    ) -> None:
        """S13: whoever got hold of the API's login would have no more than users have."""
        role = f"penstock_login_{uuid.uuid4().hex[:8]}"
        db.execute(f"create role {role} login noinherit in role anon, authenticated")
        try:
            db.execute(change.format(role=role))
            assert api_settings.api_url
            found = replace(api_settings, api_url=api_settings.api_url.replace(server.LOGIN, role))
            with pytest.raises(PenstockError) as refusal, TestClient(api.create(found)):
                pass
            assert refusal.value.code == "unsafe_login"
        finally:
            db.execute(f"drop role {role}")

    def test_database_owner_is_rejected_as_api_login(
        self, db: testing.Database, api_settings: Settings
    ) -> None:
        found = replace(api_settings, api_url=db.dsn)
        with pytest.raises(PenstockError) as refusal, TestClient(api.create(found)):
            pass
        assert refusal.value.code == "unsafe_login"

    async def test_api_login_cannot_switch_to_service_role(self, api_settings: Settings) -> None:
        assert api_settings.api_url
        async with db.pool(api_settings.api_url, max_size=1) as pool:
            for role in ("service_role", "postgres"):
                with pytest.raises(PenstockError):
                    await db.rows(pool, "select set_config('role', %s, false)", (role,))

    def test_connection_keeps_no_caller_state(self, world: World) -> None:
        """S19: after a request the pooled connection is nobody's."""
        ann = world.join("ann")
        assert world.client.get("/api/jobs", headers=ann.headers).status_code == 200
        callers = world.app.state.callers

        async def look() -> list[Any]:
            return [
                await db.rows(
                    pool,
                    "select current_setting('role'), current_setting('request.jwt.claims', true), current_setting('statement_timeout')",
                    (),
                )
                for pool in (callers._pools.users, callers._pools.service)
            ]

        portal: Callable[..., Any] = world.client.portal.call  # pyright: ignore[reportOptionalMemberAccess]
        for [(role, found, timeout)] in portal(look):
            assert (role, found or "", timeout) == ("none", "", "0")

    def test_requests_have_timeouts(self, world: World) -> None:
        """One whose server vanished in the middle of it holds nobody up for long."""
        anybody = callers.Caller("anon", {"role": "anon"})

        async def look() -> Any:
            async with world.app.state.callers.acting(anybody) as held:
                names = ("statement_timeout", "idle_in_transaction_session_timeout")
                return await db.rows(held, "select current_setting(%s), current_setting(%s)", names)

        portal: Callable[..., Any] = world.client.portal.call  # pyright: ignore[reportOptionalMemberAccess]
        assert portal(look) == [("10s", "1min")]


def test_issuer_and_audience_come_from_settings(db: testing.Database, api_settings: Settings) -> None:
    found = replace(api_settings, jwt_audience="ours")
    with TestClient(api.create(found)) as client:
        assert client.get("/api/me", headers=bearer(token(ANN, aud="ours"))).status_code == 200
        assert client.get("/api/me", headers=bearer(token(ANN))).status_code == 401


def test_starting_and_reading_a_job_are_single_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller, the check of the key, the statement and its commit are one message to PostgreSQL."""
    ann = world.join("ann")
    key = bearer(world.key("member", ann.tenant))
    world.db.execute("select penstock.define_kind('noop', '{\"raw_tasks\": true}')")
    world.client.get("/api/me", headers=key)
    messages: list[bytes] = []
    execute = psycopg.AsyncCursor[Any].execute

    async def recorded(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        messages.append(query if isinstance(query, bytes) else str(query).encode())
        return await execute(cursor, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", recorded)
    job = {"type": "report", "tasks": [{"kind": "noop"}]}
    started = world.client.post("/api/jobs/start", headers=key, json=job)
    assert started.status_code == 201, started.text
    [start] = [message for message in messages if b"start_job" in message]
    assert messages == [start] and b"check_key()" in start and b"'role'" in start
    messages.clear()
    assert world.client.get(f"/api/jobs/{started.json()['id']}", headers=key).status_code == 200
    [read] = messages
    assert b"set transaction read only" in read and b"check_key()" in read
