"""Traces with OpenTelemetry: a span where a job is started, and one per attempt that is linked to it.

Off unless `PENSTOCK_TRACES` is set: then this module imports `opentelemetry` of the extra `otel`. The SDK of
the process decides where spans go; without one they go nowhere. An attempt is linked to the span that started
its job and is not its child: it may run hours later, several times, beside many others. No input, output or
prompt becomes an attribute.
"""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock import extras
from penstock.settings import settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

T = TypeVar("T")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TOKENS = {"input_tokens": "gen_ai.usage.input_tokens", "output_tokens": "gen_ai.usage.output_tokens"}


class Attempt(Protocol):
    """What a span says about an attempt."""

    @property
    def id(self) -> int: ...
    @property
    def job_id(self) -> Any: ...
    @property
    def tenant_id(self) -> Any: ...
    @property
    def kind(self) -> str: ...
    @property
    def attempt(self) -> int: ...


@cache
def tracer() -> Tracer | None:
    """The tracer, or None if tracing is off."""
    if not settings().traces:
        return None
    with extras.required():
        from opentelemetry import trace
    return trace.get_tracer("penstock")


@contextmanager
def sending(job_type: str, given: str | None = None) -> Generator[str | None]:
    """Around the start of a job: a producer span. Yields its traceparent, to be stored with the job.

    `given` is the traceparent of a caller, such as the header of a request.
    """
    found = tracer()
    if found is None:
        yield given if given and _TRACEPARENT.fullmatch(given) else None
        return
    from opentelemetry import trace

    attributes = {
        "messaging.system": "penstock",
        "messaging.operation.type": "send",
        "messaging.operation.name": "start",
        "messaging.destination.name": job_type,
    }
    with found.start_as_current_span(
        f"send {job_type}",
        _context_of(given),
        trace.SpanKind.PRODUCER,
        attributes,
        # The text of an error may quote the caller's input.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield _traceparent(span)


@contextmanager
def processing(claim: Attempt, traceparent: str | None) -> Generator[None]:
    """Around an attempt: a consumer span, linked to the span that started the job."""
    found = tracer()
    assert found is not None, "the caller asks whether tracing is on"
    from opentelemetry import trace

    parent = trace.get_current_span(_context_of(traceparent)).get_span_context()
    with found.start_as_current_span(
        f"process {claim.kind}",
        # Its own trace: what the worker did before has nothing to do with it.
        _empty(),
        trace.SpanKind.CONSUMER,
        {
            "messaging.system": "penstock",
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": claim.kind,
            "messaging.message.id": str(claim.id),
            "penstock.job.id": str(claim.job_id),
            "penstock.tenant.id": str(claim.tenant_id),
            "penstock.attempt": claim.attempt,
        },
        [trace.Link(parent)] if parent.is_valid else [],
        record_exception=False,
        set_status_on_exception=False,
    ):
        yield


def failed(code: str) -> None:
    """Record on the current span how the attempt failed, without the message, which may hold any data."""
    if tracer() is None:
        return
    from opentelemetry import trace

    span = trace.get_current_span()
    span.set_attribute("error.type", code)
    span.set_status(trace.Status(trace.StatusCode.ERROR, code))


def used(provider: str | None, units: Mapping[str, float]) -> None:
    """Add what a call used to the current span, by the GenAI conventions where they have a name."""
    if tracer() is None:
        return
    from opentelemetry import trace

    span = trace.get_current_span()
    if not span.is_recording():
        return
    tokens = {attribute: units[unit] for unit, attribute in _TOKENS.items() if unit in units}
    if tokens and provider is not None:
        name, _, model = provider.partition("/")
        span.set_attributes({"gen_ai.provider.name": name, "gen_ai.request.model": model})
    if "output_tokens" in units:
        span.set_attribute("gen_ai.operation.name", "chat")
    known: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    for attribute, amount in tokens.items():
        span.set_attribute(attribute, known.get(attribute, 0) + int(amount))
    for unit, amount in units.items():
        if unit not in _TOKENS:
            span.set_attribute(f"penstock.usage.{unit}", known.get(f"penstock.usage.{unit}", 0) + amount)


def in_context(call: Callable[[], T]) -> Callable[[], T]:
    """The call in a copy of this context: spans and log lines of a thread belong to the attempt."""
    context = contextvars.copy_context()
    return lambda: context.run(call)


def _traceparent(span: Span) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context_of(traceparent: str | None) -> Any:
    """The remote parent that a traceparent names; None: the current context."""
    if traceparent is None or not _TRACEPARENT.fullmatch(traceparent):
        return None
    from opentelemetry import trace

    _, trace_id, span_id, flags = traceparent.split("-")
    context = trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(trace.NonRecordingSpan(context))


def _empty() -> Any:
    from opentelemetry.context import Context

    return Context()
