"""Limits, usage, costs and signals through a real worker, the real openai client and a provider on the wire."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from openai import AsyncOpenAI
from psycopg.types.json import Jsonb

from penstock import App, Context, simulator, testing
from penstock.errors import Invalid
from tests.conftest import running

NAME = "openai/gpt-4o-mini"


@pytest.fixture(autouse=True)
def unsafe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")


@pytest.fixture
def app(db: testing.Database) -> App:
    return App(database_url=db.dsn)


def provider(db: testing.Database, **values: Any) -> None:
    plain = {
        "backpressure_threshold": None,
        "requests_per_minute": None,
        "tokens_per_minute": None,
        "concurrency": None,
        "hosts": ["127.0.0.1"],
    }
    db.execute("select penstock.set_provider(%s, %s)", (NAME, Jsonb({**plain, **values})))


def prices(db: testing.Database) -> None:
    for meter, amount in (("input_tokens", "0.15"), ("output_tokens", "0.60")):
        db.execute(
            "select penstock.set_price(%s, %s, %s, '{\"per\": 1000000}')", (NAME, meter, Decimal(amount))
        )


def openai(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=url, api_key="test", max_retries=0)


def asks(app: App, client: AsyncOpenAI) -> Any:
    @app.task(max_attempts=2)
    async def ask(ctx: Context, n: int) -> str:
        answer = await client.chat.completions.create(
            model="gpt-4o-mini", max_tokens=50, messages=[{"role": "user", "content": f"idea {n}"}]
        )
        assert answer.usage is not None and ctx.provider == NAME
        await ctx.ausage(
            input_tokens=answer.usage.prompt_tokens, output_tokens=answer.usage.completion_tokens
        )
        return answer.choices[0].message.content or ""

    @app.job
    def ideas(count: int) -> None:
        for n in range(count):
            ask.options(provider=NAME, units={"input_tokens": 20, "output_tokens": 50}).step(n)

    return ideas


async def test_a_job_stays_within_the_providers_limits_and_is_billed(app: App, db: testing.Database) -> None:
    """R3.2/windows, R3.2/concurrency: the provider rejects no call, and every token is billed."""
    async with (
        simulator.serve(limits=simulator.Limits(rpm=40, concurrency=3), latency=(0.01, 0.05)) as sim,
        openai(sim.openai_url) as client,
    ):
        provider(db, requests_per_minute=40, concurrency=3)
        prices(db)
        ideas = asks(app, client)
        async with running(app, concurrency=20):
            job = await ideas.astart(30)
            await job.aresult(timeout=30)
        stats = sim.stats()
    assert stats["violation_count"] == 0 and stats["requests"] == 30
    assert stats["accounts"][0]["max_concurrency"] <= 3
    [used] = db.execute(
        "select sum((units ->> 'tokens')::numeric) as tokens, count(*) as calls from penstock.usage_events"
    )
    [cost] = db.execute(
        "select sum(base_amount) as cost, sum(unit_count) as tokens from penstock.cost_entries"
    )
    assert used["calls"] == 30 and used["tokens"] == cost["tokens"] > 0
    assert db.execute("select cost from penstock.job_costs") == [{"cost": cost["cost"]}]
    assert db.execute("select * from penstock.check_accounts()") == []


async def test_a_rejected_call_costs_no_attempt_and_closes_the_lane(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """R3.4/no-attempt: the provider's real limit is lower than the configured one."""
    async with (
        simulator.serve(limits=simulator.Limits(rpm=3), latency=(0, 0)) as sim,
        openai(sim.openai_url) as client,
    ):
        provider(db)
        ideas = asks(app, client)
        async with running(app, concurrency=8):
            job = await ideas.astart(5)
            await eventually.aio(
                lambda: db.execute("select 1 from penstock.provider_events where event = 'refused'")
            )
            await eventually.aio(
                lambda: db.execute(
                    "select 1 from penstock.provider_list where name = %s and state = 'closed'", (NAME,)
                )
            )
            await eventually.aio(lambda: not db.execute("select 1 from penstock.leases"))
            sim.configure(limits=simulator.Limits(rpm=1000))
            sim.reset()
            db.execute("select penstock.open_provider(%s)", (NAME,))
            await job.aresult(timeout=30)
    assert db.execute("select 1 from penstock.attempts") == []


async def test_an_exhausted_account_closes_the_lane(app: App, db: testing.Database, eventually: Any) -> None:
    async with simulator.serve(quota_exhausted_after=2) as sim, openai(sim.openai_url) as client:
        provider(db)
        ideas = asks(app, client)
        async with running(app, concurrency=1):
            job = await ideas.astart(4)
            await eventually.aio(
                lambda: db.execute(
                    "select 1 from penstock.provider_list where name = %s and state = 'exhausted'", (NAME,)
                )
            )
            # One more call may already be sent.
            await eventually.aio(lambda: not db.execute("select 1 from penstock.leases"))
            tried = sim.stats()["requests"]
            await asyncio.sleep(0.3)
            assert sim.stats()["requests"] == tried <= 4, "no further call is made"
            sim.configure(quota_exhausted_after=None)
            db.execute("select penstock.open_provider(%s)", (NAME,))
            await job.aresult(timeout=30)


async def test_a_full_rate_window_reopens_without_a_notification(
    app: App, db: testing.Database, eventually: Any
) -> None:
    """A worker claims again when the window opens, not only when it polls."""
    done: list[None] = []

    @app.task
    async def call() -> None:
        done.append(None)

    @app.job
    def calls() -> None:
        for _ in range(4):
            call.options(provider=NAME).step()

    provider(db, requests_per_minute=2)
    # The calls in the window expire within a second.
    async with running(app, concurrency=4):
        job = await calls.astart()
        await eventually.aio(lambda: len(done) == 2)
        db.execute("update penstock.spent set slot = slot - 4 * 61")
        db.execute(
            "update penstock.endpoint_states set open_at = penstock._now() + interval '0.3 seconds' where open_at > penstock._now()"
        )
        db.execute("select pg_notify('penstock', 'ready:call')")
        await job.aresult(timeout=20)
    assert len(done) == 4


def test_a_handler_in_a_thread_reports_usage_and_cost(
    app: App, db: testing.Database, drain: testing.Drain
) -> None:
    @app.task
    def render(ctx: Context) -> None:
        ctx.usage(seconds=12)
        ctx.cost("render", "0.042", unit_count=12)
        with pytest.raises(Invalid):
            ctx.cost("render", 0.042)  # pyright: ignore[reportArgumentType]

    job = render.start()
    drain(app)
    assert job.get().status == "completed"
    assert db.execute("select amount, unit_count from penstock.cost_entries") == [
        {"amount": Decimal("0.042"), "unit_count": 12}
    ]
    assert db.execute("select units from penstock.usage_events") == [{"units": {"seconds": 12}}]


def test_a_budget_set_in_python_pauses_the_job(app: App, db: testing.Database, drain: testing.Drain) -> None:
    provider(db)
    db.execute("select penstock.set_price(%s, 'requests', 1)", (NAME,))

    @app.task
    def call() -> None: ...

    @app.job
    def calls() -> None:
        for _ in range(5):
            call.options(provider=NAME).step()

    job = calls.options(budget=Decimal(3)).start()
    drain(app)
    found = job.get()
    assert (found.status, found.progress.succeeded) == ("paused", 3)
    assert found.status_reason == "budget: 3 of 3 USD spent, and the next task does not fit"
