"""Limits of providers: windows, concurrency, responses, backpressure, routes and explanations."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock

from .conftest import Contract

NAME = "test/model"


def provider(sql: Contract, name: str = NAME, **values: Any) -> int:
    return sql.provider(name, **values)


def calls(count: int, name: str = NAME, **spec: Any) -> list[dict[str, Any]]:
    return [{"kind": "work", "provider": name, **spec} for _ in range(count)]


def listed(sql: Contract, name: str = NAME) -> dict[str, Any]:
    (row,) = sql.execute("select * from penstock.provider_list where name = %s", name)
    return row


def explain(sql: Contract, task: int) -> dict[str, Any]:
    job = sql.one("select job_id from penstock.tasks where id = %s", task)
    return sql.value("explain_task", job_id=job, task_id=task)


class Window:
    """Admitted amounts, and the largest in any window."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.most = seconds, 0.0
        self._seen: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, at: float, amount: float) -> None:
        self._seen.append((at, amount))
        self._sum += amount
        while self._seen[0][0] <= at - self.seconds:
            self._sum -= self._seen.popleft()[1]
        self.most = max(self.most, self._sum)


class TestWindows:
    """R3.2/windows, R3.2/at-claim: no window exceeds the limit, and most of it is used."""

    def test_no_more_than_the_limit_is_claimed(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=5)
        sql.start(calls(12))
        assert len(sql.claim(100)) == 5
        assert sql.claim(100) == []
        clock.advance(seconds=60)
        assert sql.claim(100) == [], "a moment more than the minute, for the way to the provider"
        clock.advance(seconds=2)
        assert len(sql.claim(100)) == 5

    @pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
    def test_any_window_holds_the_limit_and_most_of_it_is_used(
        self, sql: Contract, clock: Clock, seed: int
    ) -> None:
        """Requests and tokens of a minute, at uneven moments, with tasks of any size."""
        clock.freeze()
        dice = random.Random(seed)
        provider(sql, requests_per_minute=60, tokens_per_minute=20_000)
        sizes = [dice.choice([0, 10, 500, 1000, 3000]) for _ in range(900)]
        job = sql.start([{**calls(1)[0], "units": {"tokens": size}} for size in sizes])
        first = sql.tasks(job)[0]["id"]
        requests, tokens = Window(60), Window(60)
        now, admitted, spent = 0.0, 0, 0
        while now < 900:
            for task in sql.claim(dice.randint(1, 30)):
                size = sizes[task["id"] - first]
                requests.add(now, 1)
                tokens.add(now, size)
                admitted, spent = admitted + 1, spent + size
                sql.complete(task)
            step = dice.choice([0.05, 0.4, 1.3])
            now += step
            clock.advance(seconds=step)
        assert requests.most <= 60 and tokens.most <= 20_000
        assert admitted == 900 or max(admitted / (60 * 15), spent / (20_000 * 15)) >= 0.90

    def test_the_limit_of_an_hour_holds(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=10, requests_per_hour=25)
        sql.start(calls(60))
        taken = []
        for _ in range(10):
            taken.append(len(sql.claim(100)))
            clock.advance(seconds=62)
        assert taken == [10, 10, 5, 0, 0, 0, 0, 0, 0, 0]
        clock.advance(seconds=3660 - 10 * 62)
        assert len(sql.claim(100)) == 10

    def test_small_tasks_do_not_overtake_a_large_one_forever(self, sql: Contract, clock: Clock) -> None:
        """Otherwise it would never run."""
        clock.freeze()
        provider(sql, tokens_per_minute=100)
        sql.start(
            [{**calls(1)[0], "key": str(n), "units": {"tokens": t}} for n, t in enumerate([50, 90, 50])]
        )
        assert [t["key"] for t in sql.claim(10)] == ["0"]
        clock.advance(seconds=62)
        assert [t["key"] for t in sql.claim(10)] == ["1"]
        clock.advance(seconds=62)
        assert [t["key"] for t in sql.claim(10)] == ["2"]

    def test_actual_usage_replaces_the_estimate(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, tokens_per_minute=1000)
        sql.start(calls(4, units={"tokens": 500}))
        first, second = sql.claim(10)
        assert sql.claim(10) == []
        sql.value("record_usage", units=Jsonb({"input_tokens": 60, "output_tokens": 40}), task_id=first["id"],
                  worker_id="w1", lease=first["lease"])  # fmt: skip
        clock.advance(seconds=0.1)
        assert listed(sql)["tokens_minute"] == 600
        sql.value(
            "record_usage",
            units=Jsonb({"tokens": 1}),
            task_id=second["id"],
            worker_id="w1",
            lease=second["lease"],
        )
        assert listed(sql)["tokens_minute"] == 101
        clock.advance(seconds=62)
        assert len(sql.claim(10)) == 2

    def test_two_kinds_share_one_endpoint(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=5)
        sql.start([*calls(5), *({"kind": "other", "provider": NAME} for _ in range(5))])
        assert len(sql.claim(100)) == 5
        assert sql.claim(100) == []

    def test_a_full_lane_does_not_delay_other_lanes(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=1)
        sql.start([*calls(50), *({"kind": "work"} for _ in range(50))])
        assert len(sql.claim(100)) == 51

    def test_changed_limits_apply_at_once(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=1)
        sql.start(calls(10))
        assert len(sql.claim(10)) == 1
        provider(sql, requests_per_minute=4)
        assert len(sql.claim(10)) == 3
        provider(sql, requests_per_minute=None)
        assert len(sql.claim(10)) == 6

    def test_a_limit_of_zero_lets_nothing_through(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=None)
        sql.start(calls(3))
        provider(sql, requests_per_minute=0)
        assert sql.claim(10) == []
        assert {row["waits_for"] for row in sql.execute("select waits_for from penstock.parked")} == {"limit"}
        provider(sql, requests_per_minute=10)
        sql.upkeep()
        assert len(sql.claim(10)) == 3

    def test_a_tenants_own_limits_win(self, sql: Contract, clock: Clock) -> None:
        """R0.5/tenant-wins: a tenant's own limits have their own row, lane and windows."""
        clock.freeze()
        provider(sql, requests_per_minute=2)
        other = sql.value("create_tenant", name="other")
        sql.value("set_provider", name=NAME, values=Jsonb({"requests_per_minute": 7}), tenant_id=other)
        sql.start(calls(10))
        sql.start(calls(10), tenant_id=str(other))
        taken = sql.claim(100)
        assert sum(t["tenant_id"] == other for t in taken) == 7 and len(taken) == 9
        assert {t["provider"] for t in taken} == {NAME}


class TestConcurrency:
    """B3/limits, R3.2/concurrency, R3.2/slot-returns: the count is that of live leases, so a death loses no slot."""

    def test_every_end_of_an_attempt_frees_its_slot(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, concurrency=2)
        job = sql.start(calls(20, max_attempts=1))
        for end in ("complete", "fail", "reschedule", "lost"):
            tasks = sql.claim(10)
            assert len(tasks) == 2, end
            assert sql.claim(10) == []
            for task in tasks:
                match end:
                    case "complete":
                        sql.complete(task)
                    case "fail":
                        sql.kill(task)
                    case "reschedule":
                        sql.reschedule(task)
                    case _:
                        pass
            if end == "lost":
                clock.advance(seconds=31)
                assert sql.reclaim() == 2
        assert len(sql.claim(10)) == 2
        sql.cancel(job)
        sql.do_chores()
        clock.advance(seconds=31)
        sql.reclaim()
        sql.start(calls(5))
        assert len(sql.claim(10)) == 2

    def test_calls_outside_a_claim_count_too(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, concurrency=2)
        sql.start(calls(5))
        assert acquire(sql)
        assert len(sql.claim(10)) == 1
        assert not acquire(sql)
        release(sql)
        assert len(sql.claim(10)) == 1


def acquire(sql: Contract, tokens: int = 1000, **how: Any) -> bool:
    return sql.value(
        "acquire_api_capacity", provider_name="test", api_endpoint="model", estimated_tokens=tokens, **how
    )


def release(sql: Contract, tokens: int = 1000, actual: int | None = None, **how: Any) -> None:
    sql.value("release_api_capacity", provider_name="test", api_endpoint="model", estimated_tokens=tokens,
              actual_tokens=actual, **how)  # fmt: skip


class TestCapacity:
    """R3.2/capacity: the same limits for code outside of a claim, as older clients call it."""

    def test_capacity_is_acquired_and_released(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=3, tokens_per_minute=5000, concurrency=2)
        assert acquire(sql) and acquire(sql)
        assert not acquire(sql), "two at once"
        release(sql, actual=10)
        assert listed(sql)["tokens_minute"] == 1010
        assert not acquire(sql, tokens=4500)
        assert acquire(sql)
        release(sql)
        release(sql)
        assert not acquire(sql), "three a minute"
        clock.advance(seconds=62)
        assert acquire(sql)

    def test_unreleased_capacity_expires(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, concurrency=1)
        assert acquire(sql, ttl_seconds=10.0)
        clock.advance(seconds=9)
        assert not acquire(sql)
        clock.advance(seconds=2)
        assert acquire(sql)

    def test_a_key_takes_and_releases_once(self, sql: Contract) -> None:
        provider(sql, requests_per_minute=5, tokens_per_minute=5000)
        assert acquire(sql, key="a") and acquire(sql, key="a")
        assert listed(sql)["requests_minute"] == 1
        release(sql, actual=0, key="a")
        release(sql, actual=5000, key="a")
        assert listed(sql)["tokens_minute"] == 0

    def test_bad_input(self, sql: Contract) -> None:
        provider(sql, tokens_per_minute=100)
        for tokens in (-1, 10**10, None):
            with sql.refused(422, "invalid_units"):
                acquire(sql, tokens=tokens)  # pyright: ignore[reportArgumentType]
        with sql.refused(422, "over_limit"):
            acquire(sql, tokens=101)
        with sql.refused(422, "invalid_ttl"):
            acquire(sql, tokens=1, ttl_seconds=0.0)
        with sql.refused(422, "unknown_provider"):
            sql.value("acquire_api_capacity", provider_name="no", api_endpoint="such")

    def test_a_disabled_provider_gives_no_capacity(self, sql: Contract) -> None:
        provider(sql, status="disabled")
        assert not acquire(sql)


def tell(sql: Contract, name: str = NAME, **signal: Any) -> None:
    sql.value("report_provider", name=name, signal=Jsonb(signal))


class TestFeedback:
    """R3.4/slows, R3.4/recovers, R3.2/violations: a provider's response slows its lane for all tasks, and the lane recovers."""

    def test_retry_after_closes_the_lane_for_all(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=1000)
        sql.start(calls(10))
        sql.claim(1)
        tell(sql, status=429, retry_after_seconds=7.5)
        assert sql.claim(10) == []
        assert listed(sql)["state"] == "closed"
        assert sql.value("next_opening") == pytest.approx(7.5)
        clock.advance(seconds=7)
        assert sql.claim(10) == []
        clock.advance(seconds=1)
        assert len(sql.claim(10)) == 9

    def test_a_rejection_slows_the_lane_for_a_while(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=100)
        for _ in range(20):
            tell(sql, status=429, retry_after_seconds=1)
        assert float(listed(sql)["pace"]) == pytest.approx(0.8), "one wave of refusals is one"
        clock.advance(seconds=5)
        sql.start(calls(300))
        assert len(sql.claim(300)) == 80
        clock.advance(seconds=130)
        assert len(sql.claim(300)) == 100, "and recovers"

    def test_a_rejection_without_retry_after_backs_off(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql)
        sql.start(calls(1))
        waits = []
        for _ in range(8):
            tell(sql, status=429)
            waits.append(sql.value("next_opening"))
            clock.advance(seconds=waits[-1] + 1)
        assert 0.3 < waits[0] < 3 and waits[-1] > 2 * waits[0]
        assert max(waits) < 200

    def test_an_exhausted_account_stops_it_for_a_while(self, sql: Contract, clock: Clock) -> None:
        """S72: for 15 minutes at a time, or until it is opened; the provider's text is for operators."""
        clock.freeze()
        provider(sql)
        job = sql.start(calls(2))
        tell(sql, status=402, exhausted=True)
        clock.advance(minutes=16)
        sql.complete(sql.claim_one())
        tell(sql, status=429, exhausted=True, message="You exceeded your current quota")
        tell(sql, status=429)
        clock.advance(minutes=14)
        assert sql.claim(10) == []
        assert listed(sql)["state"] == "exhausted"
        task = sql.tasks(job)[1]["id"]
        assert explain(sql, task)["text"].startswith("waiting: test/model: quota exhausted, about 60 s")
        assert 55 < sql.value("next_opening") < 61
        sql.value("open_provider", name=NAME)
        assert len(sql.claim(10)) == 1

    def test_only_answers_of_its_own_hosts_count(self, sql: Contract) -> None:
        """B9/lanes, S72: a response from a tenant's own address closes no shared lane."""
        provider(sql, hosts=["api.example.com"])
        provider(sql, "openai/gpt")
        sql.start([*calls(4), *calls(4, "openai/gpt")])
        limited = {"status": 429, "retry_after_seconds": 600}
        for name, host, is_own in (
            (NAME, "evil.example", False), (NAME, "api.example.com.evil.example", False),
            (NAME, "evilapi.example.com", False), (NAME, "", False), (NAME, "eu.API.example.com", True),
            ("openai/gpt", "127.0.0.1", False), ("openai/gpt", "api.openai.com", True),
        ):  # fmt: skip
            for signal in (limited, {"status": 402, "exhausted": True, "message": "pay bob"}):
                with sql.connection.transaction(force_rollback=True):
                    [task] = [each for each in sql.claim(8) if each["provider"] == name][:1]
                    self.limited(sql, task, {**signal, "host": host})
                    state = listed(sql, name)
                    assert (state["state"] != "active") is is_own, (name, host)
                    assert "bob" not in str(state["reason"])
                    found = sql.task(task)
                    is_failed = not is_own and signal["status"] == 402
                    assert found["retry_count"] == is_failed
                    if not is_own and not is_failed:
                        assert found["waiting_until"] is not None

    def test_a_signal_without_a_host_is_trusted(self, sql: Contract) -> None:
        provider(sql, hosts=["api.example.com"])
        sql.start(calls(1))
        self.limited(sql, sql.claim_one(), {"status": 429})
        assert listed(sql)["state"] == "closed"

    def test_a_tenants_own_account_closes_for_this_tenant_only(self, sql: Contract) -> None:
        """B9/lanes, S72"""
        provider(sql)
        other = sql.value("create_tenant", name="other")
        sql.value("set_provider", name=NAME, values=Jsonb({}), tenant_id=sql.tenant)
        sql.start(calls(1))
        Contract(sql.connection, other).start(calls(1))
        tasks = {task["tenant_id"]: task for task in sql.claim(2)}
        assert sql.tenant is not None
        self.limited(sql, tasks[sql.tenant], {"status": 402, "exhausted": True})
        states = sql.execute("select tenant_id, state from penstock.provider_list where name = %s", NAME)
        assert {row["tenant_id"]: row["state"] for row in states} == {None: "active", sql.tenant: "exhausted"}

    def limited(self, sql: Contract, task: Any, signal: dict[str, Any]) -> None:
        sql.value("report_limited", task_id=task["id"], worker_id="w1", lease=task["lease"],
                  signal=Jsonb(signal))  # fmt: skip

    def test_a_lower_limit_and_others_use_count(self, sql: Contract, clock: Clock) -> None:
        """The headers show that another program uses the same key."""
        clock.freeze()
        provider(sql, requests_per_minute=100, tokens_per_minute=100_000)
        sql.start(calls(200, units={"tokens": 10}))
        assert len(sql.claim(10)) == 10
        tell(
            sql,
            status=200,
            requests={"limit": 100, "remaining": 30},
            tokens={"limit": 100_000, "remaining": 99_000},
        )
        assert len(sql.claim(200)) == 30
        clock.advance(seconds=62)
        tell(sql, status=200, requests={"limit": 50, "remaining": 50})
        assert len(sql.claim(200)) == 50
        clock.advance(seconds=62)
        tell(sql, status=200, requests={"limit": 100, "remaining": 100})
        assert len(sql.claim(200)) == 100

    def test_refusals_are_kept(self, sql: Contract) -> None:
        provider(sql)
        tell(sql, status=429, retry_after_seconds=1, message="slow down")
        tell(sql, status=500)
        assert listed(sql)["refusals"] == 1
        events = sql.execute("select event, details from penstock.provider_events where event = 'refused'")
        assert [e["details"]["message"] for e in events] == ["slow down"]

    def test_bad_input(self, sql: Contract) -> None:
        provider(sql)
        with sql.refused(422, "unknown_provider"):
            tell(sql, name="no/such", status=429)
        with sql.refused(422, "invalid_signal"):
            tell(sql, status="many")
        with sql.refused(422, "unknown_provider"):
            sql.value("open_provider", name="no/such")


class TestCatalogue:
    def test_a_provider_is_one_row_per_tenant_and_one_for_all(self, sql: Contract) -> None:
        """R0.5/unique: a second row is refused, also where the tenant is null."""
        name = "acme/once"
        for tenant in (None, sql.tenant):
            sql.value("set_provider", name=name, values=Jsonb({}), tenant_id=tenant)
            with sql.refused("23505"):
                sql.execute(
                    "insert into penstock.endpoints (tenant_id, provider, endpoint, changed_at) "
                    "values (%s, 'acme', 'once', now())",
                    tenant,
                )

    def test_default_providers_exist(self, sql: Contract) -> None:
        rows = sql.execute(
            "select name, requests_per_minute, tokens_per_minute, concurrency from penstock.endpoints order by name"
        )
        assert [tuple(row.values()) for row in rows] == [
            ("anthropic/claude-3", 400, 100_000, 25),
            ("google/vision-api", 1800, None, 100),
            ("openai/gpt-4-vision", 100, 20_000, 20),
            ("openai/gpt-4o-mini", 500, 200_000, 50),
        ]

    @pytest.mark.parametrize(
        ("values", "code"),
        [
            ({"requests_per_minute": -1}, "invalid_provider"),
            ({"requests_per_minute": "many"}, "invalid_provider"),
            ({"tokens_per_minute": 10**18}, "invalid_provider"),
            ({"concurrency": -3}, "invalid_provider"),
            ({"status": "sleepy"}, "invalid_provider"),
            ({"backpressure_threshold": 1.5}, "invalid_provider"),
            ({"depth_limit": -1}, "invalid_provider"),
            ({"speed": 3}, "unknown_field"),
        ],
    )
    def test_bad_values_are_refused(self, sql: Contract, values: dict[str, Any], code: str) -> None:
        with sql.refused(422, code):
            provider(sql, **values)
        assert sql.one("select count(*) from penstock.endpoints where name = %s", NAME) == 0

    @pytest.mark.parametrize("name", ["", "openai", "/x", "x/", "Open AI/x", "a/b c", "a" * 101 + "/b", None])
    def test_bad_names_are_refused(self, sql: Contract, name: Any) -> None:
        with sql.refused(422, "invalid_provider"):
            provider(sql, name=name)

    def test_a_change_keeps_what_it_does_not_name_and_is_audited(self, sql: Contract) -> None:
        provider(sql, requests_per_minute=5, features=["chat"])
        provider(sql, concurrency=3)
        row = listed(sql)
        assert (row["requests_per_minute"], row["concurrency"], row["features"]) == (5, 3, ["chat"])
        assert sql.one("select count(*) from penstock.audit_log where action = 'provider.changed'") == 2

    def test_maintenance_and_disabled_stop_the_lane(self, sql: Contract) -> None:
        """R3.2/status"""
        provider(sql)
        job = sql.start(calls(2))
        for status, words in (("maintenance", "under maintenance"), ("disabled", "disabled")):
            provider(sql, status=status)
            assert sql.claim(10) == []
            assert (
                explain(sql, sql.tasks(job)[0]["id"])["text"]
                == f"waiting: test/model is {words}, 1st in line"
            )
        provider(sql, status="active")
        assert len(sql.claim(10)) == 2


class TestBadTasks:
    @pytest.mark.parametrize(
        ("spec", "code", "field"),
        [
            ({"provider": "no/such"}, "unknown_provider", "tasks[0].provider"),
            ({"units": {"bananas": 3}}, "unknown_meter", "tasks[0].units.bananas"),
            ({"units": {"cost": 3}}, "unknown_meter", "tasks[0].units.cost"),
            ({"units": {"tokens": -1}}, "invalid_units", "tasks[0].units.tokens"),
            ({"units": {"tokens": "many"}}, "invalid_units", "tasks[0].units.tokens"),
            ({"units": {"tokens": 10**13}}, "invalid_units", "tasks[0].units.tokens"),
            ({"units": {"tokens": None}}, "invalid_units", "tasks[0].units.tokens"),
            ({"units": [1]}, "invalid_units", "tasks[0].units"),
            ({"provider": NAME, "units": {"tokens": 1001}}, "over_limit", "tasks.units"),
            ({"provider": NAME, "units": {"requests": 11}}, "over_limit", "tasks.units"),
        ],
    )
    def test_is_refused(self, sql: Contract, spec: dict[str, Any], code: str, field: str) -> None:
        provider(sql, requests_per_minute=10, tokens_per_minute=1000)
        with sql.refused(422, code, field=field):
            sql.start([{"kind": "work", **spec}])
        assert sql.one("select count(*) from penstock.jobs") == 0


class TestBackpressure:
    """R3.3/delay, R3.3/refuse: starts are delayed above the threshold and refused above the depth limit."""

    def test_delays_with_jitter_past_the_threshold(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, requests_per_minute=10, backpressure_threshold=0.8, backpressure_delay_seconds=20)
        sql.start(calls(9))
        assert sql.one("select count(*) from penstock.parked") == 0
        sql.claim(9)
        sql.start(calls(50))
        waits = [
            row["s"]
            for row in sql.execute(
                "select extract(epoch from until - penstock._now()) as s from penstock.parked"
            )
        ]
        assert len(waits) == 50 and all(10 <= wait <= 30 for wait in waits) and len(set(waits)) > 25

    def test_apps_read_the_delay(self, sql: Contract, clock: Clock) -> None:
        """A provider without a delay of its own has the caller's default."""
        clock.freeze()
        provider(sql, requests_per_minute=10, backpressure_threshold=0.8, backpressure_delay_seconds=None)
        read = f"select penstock.backpressure_delay('{NAME}', null, %s)"
        sql.start(calls(9))
        assert sql.one(read, 7) == 0
        sql.claim(9)
        assert (sql.one(read, 7), sql.one(read, None)) == (7, 0)
        provider(sql, backpressure_delay_seconds=20)
        assert sql.one(read, 7) == 20
        with sql.refused(422, "unknown_provider"):
            sql.value("backpressure_delay", provider="x/nowhere")

    def test_refuses_past_the_depth_limit(self, sql: Contract) -> None:
        provider(sql, depth_limit=10)
        sql.start(calls(8))
        with sql.refused(429, "queue_full") as refusal:
            sql.start(calls(3))
        assert refusal.details["waiting"] == 8

    def test_each_tenant_has_a_share_of_the_queue(self, sql: Contract) -> None:
        """B9/shared, S74: one tenant cannot fill the queue for all, and the error reveals nothing of others."""
        provider(sql, depth_limit=10)
        ann, bob, eve = (
            Contract(sql.connection, sql.value("create_tenant", name=n)) for n in ("a", "b", "e")
        )
        ann.start(calls(10))
        bob.start(calls(5))
        eve.start(calls(3))
        for own, waiting in ((ann, 10), (bob, 5), (eve, 3)):
            with sql.refused(429, "queue_full") as refusal:
                own.start(calls(1))
            assert refusal.details == {"code": "queue_full", "provider": NAME, "waiting": waiting}
            assert refusal.message == (
                f"{waiting} tasks of this tenant wait for {NAME}: 1 more would exceed its share of the queue"
            )
        sql.start(calls(2))
        sql.drain()
        sql.start(calls(10))


class TestWhy:
    """One function explains every task that does not run."""

    def test_tokens(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, tokens_per_minute=3000)
        job = sql.start(calls(20, units={"tokens": 1000}))
        sql.claim(10)
        last = sql.tasks(job)[-1]["id"]
        assert explain(sql, last)["text"] == "waiting: test/model tokens, about 340 s, 17th in line".replace(
            "340 s", "6 min"
        )
        assert explain(sql, sql.tasks(job)[3]["id"])["waits_for"] == "tokens"
        # In the same session, as on a connection of a pool.
        assert explain(sql, sql.tasks(sql.start(1))[0]["id"])["waits_for"] == "worker"
        assert explain(sql, last)["waits_for"] == "tokens"

    def test_others(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        provider(sql, concurrency=1)
        job = sql.start([
            {"kind": "work", "key": "a"},
            {"kind": "work", "key": "b", "after": ["a"]},
            *calls(2),
            {"kind": "other", "run_at": "2099-01-01T00:00:00Z"},
        ])  # fmt: skip
        sql.claim(1, kinds=["work"])
        sql.claim(1, kinds=["work"])
        texts = [explain(sql, task["id"])["text"] for task in sql.tasks(job)]
        assert texts[0].startswith("running on w1") and texts[1] == "waiting: 1 parent task"
        assert sorted(texts[2:4])[1] == "waiting: test/model concurrency, 1 running, 1st in line"
        assert texts[4].startswith("waiting: its start time, about ")
        sql.pause(job, "lunch")
        assert explain(sql, sql.tasks(job)[1]["id"])["text"] == "waiting: 1 parent task"
        sql.start(1)
        free = sql.one("select max(id) from penstock.tasks")
        assert explain(sql, free)["text"] == "waiting: no worker handles work, 1st in line"
        with sql.refused(404, "unknown_task"):
            sql.value("explain_task", job_id=job, task_id=999_999)


class TestRoutes:
    """R0.6/cheapest, R0.6/fallback: a task names what it needs instead of a provider."""

    @pytest.fixture(autouse=True)
    def shops(self, sql: Contract) -> None:
        for name, features, price in (
            ("a/one", ["video", "hd"], 3), ("b/two", ["video"], 1), ("c/three", ["video", "hd"], 2), ("d/four", ["video"], None),
        ):  # fmt: skip
            provider(sql, name, features=features)
            if price is not None:
                sql.value("set_price", provider=name, meter="seconds", amount=price)

    def chosen(self, sql: Contract, **route: Any) -> dict[str, Any]:
        job = sql.start([{"kind": "work", "route": route, "units": {"seconds": 10}}])
        return sql.one("select route -> 'chosen' from penstock.tasks where job_id = %s", job)

    def test_the_cheapest_with_the_features(self, sql: Contract) -> None:
        assert self.chosen(sql, features=["video"]) == {"provider": "b/two", "reason": "cheapest: 10"}
        assert self.chosen(sql, features=["video", "hd"])["provider"] == "c/three"
        assert {t["provider"] for t in sql.claim(10)} == {"b/two", "c/three"}

    def test_listed_order_and_fallback(self, sql: Contract) -> None:
        route = {"providers": ["a/one", "b/two"], "prefer": "listed"}
        assert self.chosen(sql, **route) == {"provider": "a/one", "reason": "number 1 of the list"}
        tell(sql, "a/one", status=429, exhausted=True)
        assert self.chosen(sql, **route)["provider"] == "b/two"
        tell(sql, "b/two", status=429, exhausted=True)
        assert "although it is closed now" in self.chosen(sql, **route)["reason"]

    def test_the_fastest(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        for name, seconds in (("a/one", 5), ("b/two", 2), ("c/three", 9)):
            sql.start(calls(1, name))
            task = sql.claim_one()
            clock.advance(seconds=seconds)
            sql.complete(task)
        assert self.chosen(sql, features=["video"], prefer="fastest") == {
            "provider": "b/two",
            "reason": "fastest: 2.00 s on average",
        }

    def test_tasks_of_a_closed_lane_move_to_another_provider(self, sql: Contract) -> None:
        self.chosen(sql, features=["video"])
        tell(sql, "b/two", status=429, exhausted=True)
        task = sql.claim_one()
        assert task["provider"] == "c/three"
        route = sql.one("select route -> 'chosen' from penstock.tasks")
        assert (route["instead_of"], route["because"], route["reason"]) == ("b/two", "closed", "cheapest: 20")
        sql.complete(task)

    @pytest.mark.parametrize(
        "route",
        [
            [],
            "a",
            {},
            {"features": "video"},
            {"prefer": "listed", "features": []},
            {"prefer": "best", "features": []},
            {"features": [], "x": 1},
        ],
    )
    def test_bad_routes(self, sql: Contract, route: Any) -> None:
        with sql.refused(422, "invalid_route", field="tasks[0].route"):
            sql.start([{"kind": "work", "route": route}])

    def test_a_route_without_a_matching_provider_is_refused(self, sql: Contract) -> None:
        with sql.refused(422, "no_provider", field="tasks[0].route"):
            self.chosen(sql, features=["smell"])
        with sql.refused(422, "invalid_route"):
            sql.start([{"kind": "work", "provider": "a/one", "route": {"features": ["video"]}}])
