"""Fair shares: one tenant at full speed leaves connections, slots and requests for the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from penstock import api, testing
from penstock.api.limits import Limits
from penstock.api.shares import Share, Shares
from penstock.errors import Limited, Unavailable
from penstock.settings import Settings
from tests.api.conftest import Person, Served, World, serving
from tests.conftest import Eventually


class TestShares:
    """S64"""

    async def test_a_tenant_at_its_share_leaves_slots_for_others(self, eventually: Eventually) -> None:
        shares = Shares("slots", Share(slots=3, per_tenant=2, per_caller=3, waiting=10, seconds=60))
        end = asyncio.Event()

        async def hold(tenant: str) -> None:
            async with shares.take(tenant, f"caller of {tenant}"):
                await end.wait()

        many = [asyncio.create_task(hold("ann")) for _ in range(5)]
        await eventually.aio(lambda: shares.waiting("ann") >= 3)
        assert shares.held("ann") == 2
        async with shares.take("bob", "bob"):
            assert shares.held("bob") == 1
        end.set()
        await asyncio.gather(*many)
        assert (shares.held("ann"), shares.waiting("ann")) == (0, 0)

    async def test_a_free_slot_goes_to_the_tenant_that_holds_the_fewest(self, eventually: Eventually) -> None:
        shares = Shares("slots", Share(slots=2, per_tenant=2, per_caller=2, waiting=10, seconds=60))
        order: list[str] = []
        gates = [asyncio.Event() for _ in range(5)]

        async def hold(tenant: str, gate: asyncio.Event) -> None:
            async with shares.take(tenant, tenant):
                order.append(tenant)
                await gate.wait()

        names = ("ann", "ann", "ann", "ann", "bob")
        tasks = [asyncio.create_task(hold(name, gate)) for name, gate in zip(names, gates, strict=True)]
        await eventually.aio(lambda: shares.waiting("bob") >= 1)
        gates[0].set()
        await tasks[0]
        await eventually.aio(lambda: len(order) >= 3)
        assert order == ["ann", "ann", "bob"]
        for gate in gates:
            gate.set()
        await asyncio.gather(*tasks)

    async def test_a_caller_at_its_share_does_not_block_others_of_its_tenant(
        self, eventually: Eventually
    ) -> None:
        shares = Shares("slots", Share(slots=4, per_tenant=3, per_caller=1, waiting=10, seconds=60))
        end = asyncio.Event()

        async def hold(caller: str) -> None:
            async with shares.take("ann", caller):
                await end.wait()

        many = [asyncio.create_task(hold("key 1")) for _ in range(3)]
        await eventually.aio(lambda: shares.waiting("ann") >= 2)
        async with shares.take("ann", "key 2"):
            assert shares.held("ann") == 2
        end.set()
        await asyncio.gather(*many)

    async def test_a_full_queue_is_refused(self) -> None:
        shares = Shares("slots", Share(slots=1, per_tenant=1, per_caller=1, waiting=0, seconds=60))
        async with shares.take("ann", "ann"):
            with pytest.raises(Limited) as refusal:
                async with shares.take("ann", "ann"):
                    pytest.fail("it got a slot")
        assert (refusal.value.code, refusal.value.retry_after) == ("share_used_up", 1)

    async def test_a_wait_ends_with_the_reason(self) -> None:
        shares = Shares("slots", Share(slots=1, per_tenant=1, per_caller=1, waiting=5, seconds=0))
        async with shares.take("ann", "ann"):
            with pytest.raises(Limited):
                async with shares.take("ann", "ann"):
                    pytest.fail("it got a slot")
            with pytest.raises(Unavailable):
                async with shares.take("bob", "bob"):
                    pytest.fail("it got a slot")
        async with shares.take("bob", "bob"):
            assert shares.waiting("bob") == 0

    async def test_a_canceled_wait_leaves_no_slot_behind(self, eventually: Eventually) -> None:
        shares = Shares("slots", Share(slots=1, per_tenant=1, per_caller=1, waiting=5, seconds=60))
        held = shares.take("ann", "ann")
        await held.__aenter__()

        async def hold() -> None:
            async with shares.take("bob", "bob"):
                pytest.fail("it got a slot")

        waits = [asyncio.create_task(hold()) for _ in range(2)]
        await eventually.aio(lambda: shares.waiting("bob") >= 2)
        waits[0].cancel()
        # The second one has been granted the slot when it is canceled.
        await asyncio.sleep(0)
        await held.__aexit__(None, None, None)
        waits[1].cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        async with shares.take("ann", "ann"):
            assert shares.held("bob") == 0


# Over a real socket

WAITING = """
select count(*) as n from pg_stat_activity where datname = current_database()
  and application_name = 'penstock api' and wait_event_type = 'Lock'"""


@contextmanager
def held(served: Served, person: Person, path: str, count: int) -> Generator[list[int]]:
    """Requests that are sent at once; yields their statuses so far."""
    statuses: list[int] = []

    def ask() -> None:
        answer = httpx.get(f"{served.url}{path}", headers=person.headers, timeout=120)
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        for thread in threads:
            thread.join()


def test_slow_reads_of_one_tenant_leave_connections_for_others(
    db: testing.Database, api_settings: Settings, eventually: Eventually
) -> None:
    """S64, B9/shared: more slow reads than there are connections, with two keys of one tenant."""
    share = Share(slots=4, per_tenant=2, per_caller=2, waiting=50, seconds=120)
    app = api.create(api_settings, limits=Limits(connections=share, read_seconds=120))
    with serving(app) as served, db.connect() as blocker, db.connect() as looking:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann, bob = world.join("ann"), world.join("bob")
        other = world.member("viewer", ann.tenant)
        # Both have been there before: the API knows their tenants.
        for person in (ann, other, bob):
            assert httpx.get(f"{served.url}/rest/v1/tenants", headers=person.headers).status_code == 200
        with blocker.transaction():
            blocker.execute("lock table penstock.dead_letters in access exclusive mode")
            path = "/rest/v1/dead_letters"
            with held(served, ann, path, 4) as first, held(served, other, path, 4) as second:
                eventually(lambda: looking.execute(WAITING).fetchone() == {"n": 2}, "slow reads")
                eventually(lambda: app.state.callers.connections.waiting(f"tenant:{ann.tenant}") == 6)
                answer = httpx.get(f"{served.url}/rest/v1/jobs", headers=bob.headers, timeout=60)
                assert answer.status_code == 200
                assert looking.execute(WAITING).fetchone() == {"n": 2}
                assert (first, second) == ([], [])
                # Ends the wait of all.
                blocker.execute("rollback")
        assert first + second == [200] * 8


def test_exports_use_no_connection_of_the_pool(
    db: testing.Database, api_settings: Settings, eventually: Eventually
) -> None:
    """S64, B9/shared: exports of one tenant wait for each other, and other requests of that tenant continue."""
    share = Share(slots=1, per_tenant=1, per_caller=1, waiting=50, seconds=120)
    app = api.create(api_settings, limits=Limits(connections=share, read_seconds=120))
    with serving(app) as served, db.connect() as blocker:
        world = World(db, app, None)  # pyright: ignore[reportArgumentType]
        ann = world.join("ann")
        path = "/api/bulks/00000000-0000-7000-8000-000000000000/export"
        with blocker.transaction():
            blocker.execute("lock table penstock.bulks in access exclusive mode")
            with held(served, ann, path, 3) as statuses:
                exports = app.state.callers.exports
                eventually(lambda: exports.waiting(f"tenant:{ann.tenant}") == 2, "waiting exports")
                assert exports.held(f"tenant:{ann.tenant}") == 1
                assert httpx.get(f"{served.url}/api/me", headers=ann.headers, timeout=60).status_code == 200
                assert statuses == []
                blocker.execute("rollback")
        assert statuses == [404] * 3


@contextmanager
def running(api_settings: Settings, db: testing.Database, limits: Limits) -> Generator[World]:
    app = api.create(api_settings, limits=limits)
    with TestClient(app) as client:
        yield World(db, app, client)


def test_reads_have_a_shorter_limit_than_writes(db: testing.Database, api_settings: Settings) -> None:
    """S64: a canceled read counts as several requests."""
    limits = Limits(read_seconds=0.05, statement_seconds=600, per_second=0.001, burst=25)
    db.execute(
        "create function penstock.slow() returns void stable language sql as 'select pg_sleep(600)';"
        "grant execute on function penstock.slow() to authenticated"
    )
    with running(api_settings, db, limits) as world:
        ann = world.join("ann")
        answers = [world.client.get("/rest/v1/rpc/slow", headers=ann.headers) for _ in range(3)]
        assert [answer.json()["code"] for answer in answers] == ["57014", "57014", "PT429"]


def test_a_refused_share_counts_as_several_requests(db: testing.Database, api_settings: Settings) -> None:
    """S64: a loop of refusals ends at the rate limit, before it reaches the database."""
    share = Share(slots=1, per_tenant=0, per_caller=0, waiting=0, seconds=0)
    limits = Limits(connections=share, per_second=0.001, burst=30)
    with running(api_settings, db, limits) as world:
        ann = world.join("ann")
        answers = [world.client.get("/api/me", headers=ann.headers) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [429] * 4
        codes = [answer.json()["code"] for answer in answers]
        assert codes == ["share_used_up", "share_used_up", "limited", "limited"]


@pytest.mark.parametrize(
    ("query", "preference"),
    [
        ("&".join(f"type=ilike.*{n}*" for n in range(60)), ""),
        ("or=(" + ",".join(f"type.not.like.*{n}*" for n in range(60)) + ")", ""),
        ("&".join(f"type=ilike.*{n}*" for n in range(28)), "count=exact"),
    ],
)
def test_patterns_count_as_several_requests(
    db: testing.Database, api_settings: Settings, query: str, preference: str
) -> None:
    """S64: filters that are compared with every row use up the rate limit sooner."""
    with running(api_settings, db, Limits(per_second=0.001, burst=100)) as world:
        ann, bob = world.join("ann"), world.join("bob")
        headers: dict[str, Any] = {**ann.headers, **({"Prefer": preference} if preference else {})}
        codes = [world.client.get(f"/rest/v1/jobs?{query}", headers=headers).status_code for _ in range(2)]
        assert codes == [200, 429]
        plain = [world.client.get("/rest/v1/jobs?type=eq.a", headers=bob.headers) for _ in range(50)]
        assert {answer.status_code for answer in plain} == {200}


def test_requests_are_limited_per_tenant_across_keys(db: testing.Database, api_settings: Settings) -> None:
    """S64: more keys are no more requests, and another tenant does not notice."""
    with running(api_settings, db, Limits(tenant_per_second=0.001, tenant_burst=4)) as world:
        ann, bob = world.join("ann"), world.join("bob")
        keys = [world.member("viewer", ann.tenant) for _ in range(3)]
        codes = [
            world.client.get("/api/me", headers=each.headers).status_code for each in (ann, *keys, ann, *keys)
        ]
        assert codes == [200] * 4 + [429] * 4
        assert world.client.get("/api/me", headers=bob.headers).status_code == 200
