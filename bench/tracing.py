"""What traces cost: `python -m bench.tracing` prints what they add to a start and an attempt, off and on."""

from __future__ import annotations

import timeit
from types import SimpleNamespace
from typing import Any

from opentelemetry.sdk.trace import TracerProvider

from penstock import tracing

CLAIM: Any = SimpleNamespace(id=1, job_id="j", tenant_id="t", kind="work", attempt=1)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def attempt_off() -> None:
    """What `Execute` asks for each attempt."""
    if tracing.tracer() is not None:
        raise AssertionError


def attempt_on() -> None:
    with tracing.processing(CLAIM, PARENT):
        pass


def start() -> None:
    with tracing.sending("work"):
        pass


def microseconds(act: Any, number: int = 20_000) -> float:
    """Per call, the best of five runs."""
    return min(timeit.repeat(act, number=number, repeat=5)) / number * 1e6


def main() -> None:
    rows = [("off", microseconds(attempt_off), microseconds(start))]
    provider = TracerProvider()
    tracing.tracer = lambda: provider.get_tracer("penstock")  # pyright: ignore[reportAttributeAccessIssue]
    rows.append(("on, without an exporter", microseconds(attempt_on), microseconds(start)))
    print("| traces | µs per attempt | µs per start |\n|---|---|---|")
    for name, each, begun in rows:
        print(f"| {name} | {each:.2f} | {begun:.2f} |")


if __name__ == "__main__":
    main()
