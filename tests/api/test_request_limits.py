"""Limits of requests: body size, rate, guesses of keys, statement time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from penstock import api, testing
from penstock.api.limits import Limits, Rate
from penstock.errors import Limited
from penstock.settings import Settings
from tests.api.conftest import World, bearer


@pytest.fixture
def strict(db: testing.Database, api_settings: Settings) -> Iterator[World]:
    """The application with limits that a test can reach."""
    app = api.create(
        api_settings, limits=Limits(body_bytes=1000, burst=5, per_second=0.001, statement_seconds=1)
    )
    with TestClient(app) as client:
        yield World(db, app, client)


class TestLimits:
    def test_large_body_is_rejected(self, strict: World) -> None:
        ann = strict.join("ann")

        def parts() -> Iterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        for content in (b" " * 1001, parts()):
            answer = strict.client.post("/api/jobs/start", content=content, headers=ann.headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    def test_too_many_requests(self, strict: World) -> None:
        ann, bob = strict.join("ann"), strict.join("bob")
        answers = [strict.client.get("/api/me", headers=ann.headers) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert answers[-1].json()["code"] == "limited"
        assert strict.client.get("/api/me", headers=bob.headers).status_code == 200

    def test_key_guessing_is_rate_limited(self, strict: World) -> None:
        """S25: bad credentials count against their address; valid ones from there still work."""
        ann = strict.join("ann")
        answers = [strict.client.get("/api/me", headers=bearer("psk_" + "0" * 64)) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [401] * 5 + [429]
        assert strict.client.get("/api/me", headers=ann.headers).status_code == 200

    @pytest.mark.slow
    def test_rate_limited_guesses_do_not_reach_the_database(
        self, strict: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S25: an address that used a valid key before may still use valid keys."""
        monkeypatch.setattr("penstock.api.callers.KNOWN_SECONDS", 0)
        ann = strict.join("ann")
        good, ended = (strict.member("viewer", ann.tenant) for _ in range(2))
        for each in (good, ended):
            assert strict.client.get("/api/me", headers=each.headers).status_code == 200
        for number in range(5):
            guess = bearer(f"psk_{number:064x}")
            assert strict.client.get("/api/me", headers=guess).status_code == 401
        assert strict.client.get("/api/me", headers=good.headers).status_code == 200
        strict.db.execute("select penstock.revoke_key(%s)", [ended.id])
        assert strict.client.get("/api/me", headers=ended.headers).status_code == 429
        strict.db.execute("alter function penstock.use_api_key(bytea) rename to nobody_asks")
        for credential in (f"psk_{7:064x}", ended.headers["Authorization"].split()[1]):
            answer = strict.client.get("/api/me", headers=bearer(credential))
            assert (answer.status_code, answer.json()["code"]) == (429, "limited")

    @pytest.mark.slow
    def test_valid_new_key_does_not_count_as_a_guess(self, strict: World) -> None:
        ann = strict.join("ann")
        for _ in range(7):
            new = strict.member("viewer", ann.tenant)
            assert strict.client.get("/api/me", headers=new.headers).status_code == 200

    @pytest.mark.slow
    def test_slow_statement_is_canceled(self, strict: World) -> None:
        ann = strict.join("ann")
        strict.db.execute(
            "create or replace function penstock.my_tenants() returns setof uuid language sql stable as $$ select null::uuid from pg_sleep(60) $$"
        )
        answer = strict.client.get("/api/tenants", headers=ann.headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")

    def test_rate_limit_refills(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 100.0
        monkeypatch.setattr("penstock.api.limits.time.monotonic", lambda: now)
        rate = Rate(per_second=2, burst=3)
        for _ in range(3):
            rate.take("ann")
        with pytest.raises(Limited) as refusal:
            rate.take("ann")
        assert refusal.value.retry_after == 0.5
        now += 0.5
        rate.take("ann")
        now += 100
        for _ in range(3):
            rate.take("ann")
        with pytest.raises(Limited):
            rate.take("ann")

    def test_number_of_rate_buckets_is_limited(self) -> None:
        rate = Rate(per_second=1, burst=1)
        for number in range(Rate.MOST + 100):
            rate.take(str(number))
        assert len(rate._buckets) == Rate.MOST
