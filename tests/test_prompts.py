"""Prompts of an app: cached versions, the constant without the database, pins of bulk jobs, usage events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from penstock import App, Context, Invalid, Prompt, testing
from penstock.contract import jobs, prompts, usage
from penstock.sdk.prompts import ANSWER_SECONDS, FRESH_SECONDS, RETRY_SECONDS, DeclaredPrompt


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    app = drain.use(App(database_url=db.dsn))
    app.prompts.clock = Time()
    return app


@pytest.fixture
def greet(app: App) -> DeclaredPrompt:
    return app.prompt("greet", "Hi {{who}}", model="small", max_tokens=10)


async def add(app: App, body: str = "Hello {{who}}", **options: Any) -> int:
    async with app.connections() as pool:
        await app.declare(pool)
        return await prompts.add(pool, name="greet", body=body, **{"activate": True, **options})


def advance(app: App, seconds: float) -> None:
    assert isinstance(app.prompts.clock, Time)
    app.prompts.clock.seconds += seconds


@pytest.fixture
def locked(db: testing.Database) -> Iterator[Any]:
    """A session that can lock the table of prompts, so that the database does not answer."""
    with db.connect() as session:
        session.autocommit = False
        yield session
        session.rollback()


class TestRender:
    def test_values_replace_variables_in_one_pass(self) -> None:
        """A value that contains braces is not expanded again."""
        prompt = Prompt("p", 1, "{{a}} {{ b }} {{a}} {{1}} {c} }}")
        assert prompt.render(a="{{b}}", b=r"\1 {{a}}") == r"{{b}} \1 {{a}} {{b}} {{1}} {c} }}"

    @pytest.mark.parametrize("values", [{}, {"a": 1, "c": 2}, {"A": 1}])
    def test_missing_and_unknown_variables_are_rejected(self, values: dict[str, Any]) -> None:
        with pytest.raises(Invalid) as refused:
            Prompt("p", 1, "{{a}}").render(**values)
        assert refused.value.code == "invalid_variables"

    def test_a_version_may_use_fewer_variables_than_the_constant(self) -> None:
        prompt = Prompt("p", 2, "{{a}}", variables=frozenset({"a", "b"}))
        assert prompt.render(a="x", b="y") == "x"
        with pytest.raises(Invalid):
            prompt.render(a="x")


class TestCache:
    async def test_the_constant_is_used_until_a_version_is_activated(
        self, app: App, greet: DeclaredPrompt
    ) -> None:
        first = await greet.aget()
        assert (first.version, first.is_fallback, first.render(who="Ann")) == (0, True, "Hi Ann")
        assert app.prompts.fallbacks == {}, "a prompt without versions is no outage"
        await add(app, model="large")
        advance(app, FRESH_SECONDS * 1.1 + 1)
        found = await greet.aget()
        assert (found.version, found.is_fallback, found.model, found.max_tokens) == (1, False, "large", 10)
        await app.aclose()

    async def test_versions_are_cached_for_five_minutes(self, app: App, greet: DeclaredPrompt) -> None:
        """R2.6/cache: a new version is seen after about 5 minutes, without a query in between."""
        await add(app)
        assert (await greet.aget()).version == 1
        await add(app)
        advance(app, FRESH_SECONDS * 0.9 - 1)
        assert (await greet.aget()).version == 1
        advance(app, FRESH_SECONDS * 0.2 + 2)
        assert (await greet.aget()).version == 2
        await app.aclose()

    async def test_one_caller_reads_and_the_others_use_the_old_version(
        self, app: App, greet: DeclaredPrompt, locked: Any
    ) -> None:
        await add(app)
        await greet.aget()
        await add(app)
        advance(app, FRESH_SECONDS * 2)
        locked.execute("lock table penstock.prompts")
        reader = asyncio.create_task(greet.aget())
        await asyncio.sleep(0.05)
        assert [(await greet.aget()).version for _ in range(3)] == [1, 1, 1]
        locked.rollback()
        assert (await reader).version == 2
        await app.aclose()

    async def test_twenty_first_callers_read_once(self, app: App, greet: DeclaredPrompt) -> None:
        await add(app)
        assert {each.version for each in await asyncio.gather(*(greet.aget() for _ in range(20)))} == {1}
        await app.aclose()

    async def test_versions_of_another_database_are_not_used(
        self, app: App, server: testing.Server, db: testing.Database, greet: DeclaredPrompt
    ) -> None:
        """An app that is told to use another database does not use the versions of the first."""
        await add(app)
        assert (await greet.aget()).version == 1
        await app.aclose()
        with server.database() as other:
            app.use(other.dsn)
            assert (await greet.aget()).version == 0
            await app.aclose()
        app.use(db.dsn)
        assert (await greet.aget()).version == 1
        await app.aclose()


class TestOutage:
    """R2.6/fallback: without an answer of the database the constant is used: version 0, flagged."""

    async def test_a_database_that_hangs(self, app: App, greet: DeclaredPrompt, locked: Any) -> None:
        """R2.6/fallback: within 2 seconds; asked again after 15 seconds."""
        await add(app)
        locked.execute("lock table penstock.prompts")
        started = time.monotonic()
        found = await asyncio.gather(*(greet.aget() for _ in range(5)))
        assert time.monotonic() - started < 3 * ANSWER_SECONDS
        assert ANSWER_SECONDS < 2
        assert {(each.version, each.is_fallback, each.body) for each in found} == {(0, True, "Hi {{who}}")}
        assert app.prompts.fallbacks == {"greet": 5}
        locked.rollback()
        advance(app, RETRY_SECONDS - 1)
        assert (await greet.aget()).version == 0
        advance(app, 1)
        assert (await greet.aget()).version == 1
        await app.aclose()

    async def test_a_database_that_loses_its_table(
        self, app: App, db: testing.Database, greet: DeclaredPrompt
    ) -> None:
        await add(app)
        assert (await greet.aget()).version == 1
        db.execute("alter table penstock.prompts rename to hidden")
        advance(app, FRESH_SECONDS * 2)
        found = await greet.aget()
        assert (found.version, found.is_fallback) == (0, True)
        await app.aclose()

    async def test_a_database_that_is_away(self) -> None:
        app = App(database_url="postgresql://nobody@127.0.0.1:1/none")
        greet = app.prompt("greet", "Hi")
        started = time.monotonic()
        assert await greet.aget() == Prompt("greet", 0, "Hi", None, None, True, frozenset())
        assert time.monotonic() - started < 3 * ANSWER_SECONDS
        await app.aclose()

    def test_sync_code_gets_the_constant_too(self) -> None:
        with App(database_url="postgresql://nobody@127.0.0.1:1/none") as app:
            assert app.prompt("greet", "Hi").get().is_fallback

    async def test_a_version_that_the_code_cannot_render(
        self, app: App, db: testing.Database, greet: DeclaredPrompt
    ) -> None:
        async with app.connections() as pool:
            await prompts.add(pool, name="greet", body="Hello {{whom}}", activate=True)
        found = await greet.aget()
        assert (found.version, found.is_fallback) == (0, True)
        assert app.prompts.fallbacks == {"greet": 1}
        await app.aclose()


class Person(pydantic.BaseModel):
    name: str


class TestTasks:
    def test_a_usage_event_carries_name_and_version(
        self, app: App, db: testing.Database, drain: testing.Drain, greet: DeclaredPrompt
    ) -> None:
        """R2.6/events: every call's event has the prompt's name and version; failed attempts are counted."""

        @app.task(max_attempts=2, backoff=0)
        async def ask(ctx: Context, who: str) -> str:
            prompt = await ctx.aprompt(greet)
            await ctx.ausage(input_tokens=3)
            if ctx.attempt == 1:
                raise ValueError("no answer")
            return prompt.render(who=who)

        @app.task
        def ask_sync(ctx: Context, who: str) -> str:
            prompt = ctx.prompt(greet)
            ctx.usage(input_tokens=3)
            return prompt.render(who=who)

        app.block(add(app))
        one, other = ask.start("Ann"), ask_sync.start("Bob")
        drain(app)
        assert (one.result(), other.result()) == ("Hello Ann", "Hello Bob")
        details = db.execute("select details from penstock.usage_events order by id")
        expected = {"prompt_name": "greet", "prompt_version": 1, "prompt_fallback": False}
        assert [row["details"] for row in details] == [expected] * 3
        uses = db.execute("select action, version, is_failed, seconds > 0 as took from penstock.prompt_uses")
        assert sorted(map(str, (tuple(row.values()) for row in uses))) == [
            "('ask', 1, False, True)", "('ask', 1, True, True)", "('ask_sync', 1, False, True)",
        ]  # fmt: skip

    def test_a_bulk_job_keeps_the_version_that_was_active_when_it_was_loaded(
        self, app: App, db: testing.Database, drain: testing.Drain, greet: DeclaredPrompt
    ) -> None:
        """R2.6/events: preview, remaining rows and retries use one version, which their events carry."""

        @app.task(max_attempts=2, backoff=0)
        async def ask(ctx: Context, who: str) -> str:
            prompt = await ctx.aprompt(greet)
            await ctx.ausage(input_tokens=3)
            return prompt.render(who=who)

        @app.bulk(row=Person)
        def people(row: Person) -> Any:
            return ask.step(row.name)

        app.block(add(app, "First {{who}}"))
        job = people.options(preview=True).start([{"name": f"p{n}"} for n in range(12)])
        drain(app)
        app.block(add(app, "Second {{who}}"))
        advance(app, FRESH_SECONDS * 2)

        async def confirm() -> None:
            async with app.connections() as pool:
                await jobs.confirm(pool, job_id=job.id)

        app.block(confirm())
        drain(app)
        rows = db.execute("select output #>> '{}' as text from penstock.results where output is not null")
        texts = [row["text"] for row in rows if str(row["text"]).endswith(tuple("0123456789"))]
        assert len(texts) == 12
        assert {text.split()[0] for text in texts} == {"First"}
        versions = db.execute("select distinct details ->> 'prompt_version' as v from penstock.usage_events")
        assert [row["v"] for row in versions] == ["1"]

    def test_a_fake_context_gives_the_constant(self, greet: DeclaredPrompt) -> None:
        assert Context.fake().prompt(greet).version == 0

    async def test_usage_outside_of_tasks_takes_the_details_of_a_prompt(
        self, app: App, db: testing.Database, greet: DeclaredPrompt
    ) -> None:
        async with app.connections() as pool:
            tenant_id = await app.tenant_id(pool)
            prompt = await greet.aget()
            await usage.record(
                pool, tenant_id=tenant_id, units={"requests": 1}, action="ask", details=prompt.details
            )
        [row] = db.execute("select name, version, is_fallback from penstock.prompt_uses")
        assert tuple(row.values()) == ("greet", 0, True)
        await app.aclose()
