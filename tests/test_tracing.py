"""Traces: a producer span where a job starts, a consumer span per attempt, linked; nothing when off."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import App, Context, Retry, settings, testing, tracing
from penstock.contract import jobs
from penstock.postgres import db as database
from tests import workload
from tests.conftest import Command

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Tracing is on, and ended spans are kept."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setenv("PENSTOCK_TRACES", "1")
    settings.settings.cache_clear()
    monkeypatch.setattr(tracing, "tracer", lambda: provider.get_tracer("penstock"))
    yield exporter
    settings.settings.cache_clear()


def by_name(spans: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def span_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def test_attempts_are_linked_to_the_start(
    app: App, drain: testing.Drain, spans: InMemorySpanExporter, db: testing.Database
) -> None:
    """B11/traces: a retried task has two consumer spans, both linked to the producer span of its job."""

    @app.task(max_attempts=3, backoff="0s")
    async def ask(ctx: Context, word: str) -> str:
        with tracing.tracer().start_as_current_span("inner"):  # pyright: ignore[reportOptionalMemberAccess]
            await asyncio.sleep(0)
        if ctx.attempt == 1:
            raise Retry(code="busy")
        return word

    job = ask.start("secret-word")
    drain(app)
    assert job.result(timeout=5) == "secret-word"
    found = by_name(spans)
    (send,) = found["send ask"]
    assert send.kind is trace.SpanKind.PRODUCER
    stored = db.execute("select traceparent from penstock.jobs")[0]["traceparent"]
    assert stored == tracing._traceparent(send)  # pyright: ignore[reportArgumentType]
    first, second = found["process ask"]
    for number, attempt in enumerate((first, second), 1):
        assert attempt.kind is trace.SpanKind.CONSUMER and attempt.parent is None
        assert [link.context.span_id for link in attempt.links] == [span_id(send)]
        assert attempt.attributes is not None and attempt.attributes["penstock.attempt"] == number
        assert attempt.attributes["messaging.system"] == "penstock"
        assert "secret-word" not in str(attempt.attributes), "no input becomes an attribute"
    assert first.attributes is not None and first.attributes["error.type"] == "busy"
    assert first.status.status_code is trace.StatusCode.ERROR
    assert second.status.status_code is not trace.StatusCode.ERROR
    parents = {span.parent.span_id for span in found["inner"] if span.parent}
    assert parents == {span_id(first), span_id(second)}


def test_spans_of_a_thread_are_children_of_the_attempt(
    app: App, drain: testing.Drain, spans: InMemorySpanExporter
) -> None:
    @app.task
    def ask() -> None:
        with tracing.tracer().start_as_current_span("inner"):  # pyright: ignore[reportOptionalMemberAccess]
            pass

    ask.start()
    drain(app)
    (inner,), (attempt,) = by_name(spans)["inner"], by_name(spans)["process ask"]
    assert inner.parent is not None and inner.parent.span_id == span_id(attempt)


def test_usage_becomes_attributes_of_the_genai_conventions(
    app: App, drain: testing.Drain, spans: InMemorySpanExporter, db: testing.Database
) -> None:
    db.execute("select penstock.set_provider('openai/gpt-5', '{}')")

    @app.task
    async def ask(ctx: Context) -> None:
        await ctx.ausage(input_tokens=100, output_tokens=20)
        await ctx.ausage(input_tokens=10, output_tokens=2)

    ask.options(provider="openai/gpt-5").start()
    drain(app)
    (attempt,) = by_name(spans)["process ask"]
    assert attempt.attributes is not None
    assert {name: value for name, value in attempt.attributes.items() if name.startswith("gen_ai.")} == {
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 110,
        "gen_ai.usage.output_tokens": 22,
    }


def test_nothing_is_traced_when_it_is_off(app: App, drain: testing.Drain, db: testing.Database) -> None:
    settings.settings.cache_clear()
    tracing.tracer.cache_clear()
    assert tracing.tracer() is None

    @app.task
    async def ask() -> str:
        return type(trace.get_current_span()).__name__

    job = ask.start()
    drain(app)
    assert job.result(timeout=5) == "NonRecordingSpan"
    assert db.execute("select traceparent from penstock.jobs") == [{"traceparent": None}]


async def test_a_traceparent_is_no_part_of_the_idempotency_key(db: testing.Database, tenant: Any) -> None:
    """Each retry of a request has a new span; the job is the same."""
    db.execute("select penstock.define_kind('work')")
    async with database.pool(db.dsn, name="test", max_size=1) as pool:
        arguments: dict[str, Any] = {"type": "j", "tasks": [{"kind": "work"}], "tenant_id": tenant}
        one = await jobs.start(pool, **arguments, idempotency_key="k", traceparent=PARENT)
        two = await jobs.start(pool, **arguments, idempotency_key="k", traceparent=PARENT.replace("b7", "c8"))
    assert one == two
    assert db.execute("select traceparent from penstock.jobs") == [{"traceparent": PARENT}]


@pytest.mark.parametrize("given", ["", "00-xyz", PARENT.upper(), PARENT + "-more"])
def test_a_malformed_traceparent_is_dropped(given: str) -> None:
    with tracing.sending("j", given) as stored:
        assert stored is None


def test_a_callers_traceparent_is_stored_also_when_tracing_is_off() -> None:
    """Workers with tracing link to it."""
    with tracing.sending("j", PARENT) as stored:
        assert stored == PARENT


def test_a_callers_trace_is_continued(spans: InMemorySpanExporter) -> None:
    with tracing.sending("j", PARENT) as stored:
        assert stored is not None and stored.split("-")[1] == PARENT.split("-")[1]
    (send,) = spans.get_finished_spans()
    assert send.parent is not None and f"{send.parent.span_id:016x}" == PARENT.split("-")[2]


def test_a_start_from_the_command_line_is_traced(
    penstock: Command, drain: testing.Drain, spans: InMemorySpanExporter
) -> None:
    drain.use(workload.app)
    assert penstock("jobs", "start", "quick", "--app", "tests.workload:app").code == 0
    drain(workload.app)
    found = by_name(spans)
    (sent,), (attempt,) = found["send quick"], found["process quick"]
    assert [link.context.span_id for link in attempt.links] == [span_id(sent)]
