"""Telemetry: events reach the sink in batches, and a sink that hangs, fails or is down delays nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from penstock import simulator, telemetry
from penstock.errors import Invalid
from penstock.settings import read
from penstock.telemetry import ANSWER_SECONDS, MAX_EVENTS, REMOVED, Sender
from tests.conftest import Eventually

CANARY = "ann@example.com wrote: my secret note"


async def test_events_arrive_in_batches_without_texts_of_users(eventually: Eventually) -> None:
    """No note, address or payload is in a property."""
    async with simulator.serve() as running:
        sender = Sender(running.url, "key")
        for n in range(250):
            sender.send(
                "note_exported", f"user-{n}", number=n, is_new=True, share=0.5, format="json", none=None
            )
        sender.send(
            "leak", CANARY, text=CANARY, email="ann@example.com", long="x" * 101, lines="a\nb",
            payload={"note": CANARY}, items=[CANARY], raw=CANARY.encode(),
        )  # fmt: skip
        await eventually.aio(lambda: sender.counts.sent == 251)
        sender.close()
        events = running.telemetry.events
    assert running.telemetry.requests <= 5
    assert [event["distinct_id"] for event in events[:250]] == [f"user-{n}" for n in range(250)]
    assert events[0]["properties"] == {
        "number": 0,
        "is_new": True,
        "share": 0.5,
        "format": "json",
        "none": None,
    }
    assert events[250]["distinct_id"] == REMOVED
    assert set(events[250]["properties"].values()) == {REMOVED}
    assert "secret" not in str(events)


@pytest.mark.parametrize("behavior", ["hang", "fail", "slow", "away"])
async def test_a_bad_sink_delays_nobody(behavior: str) -> None:
    """R2.11/telemetry: no event waits, and the queue stays bounded."""
    async with simulator.serve() as running:
        running.telemetry.control(behavior)
        sender = Sender("http://127.0.0.1:1" if behavior == "away" else running.url)
        slowest = 0.0
        for n in range(30_000):
            before = time.perf_counter()
            sender.send("tick", "user", n=n)
            slowest = max(slowest, time.perf_counter() - before)
        # The sink shares this event loop: an event that waited for it would wait until the timeout.
        assert slowest < ANSWER_SECONDS, "an event waited"
        assert len(sender._events) <= MAX_EVENTS  # pyright: ignore[reportPrivateUsage]
        assert sender.counts.dropped + sender.counts.sent >= 30_000 - MAX_EVENTS - 100
        before = time.monotonic()
        sender.close()
        assert time.monotonic() - before < ANSWER_SECONDS


def test_without_a_server_nothing_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry.sender.cache_clear()
    monkeypatch.setattr(telemetry, "settings", lambda: read({}))
    telemetry.send("tick", "user")
    assert telemetry.counts() == telemetry.Counts()
    telemetry.sender.cache_clear()
    with pytest.raises(Invalid):
        read({"PENSTOCK_TELEMETRY_URL": "ftp://sink"})


def test_bad_events_are_dropped_and_never_raise() -> None:
    sender = Sender("http://127.0.0.1:1")

    class Hostile:
        def __str__(self) -> str:
            raise ValueError("no text")

    for event in ("", "X", "a b", "x" * 101):
        sender.send(event, "user")
    sender.send("tick", Hostile())
    assert sender.counts.dropped == 5


async def test_a_program_that_ends_sends_the_rest_and_waits_at_most_a_second() -> None:
    program = (
        "import sys, time\nfrom penstock import telemetry\nfor n in range(3): telemetry.send('tick', 'u')\n"
    )

    def end(url: str) -> float:
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-c", program], check=True, timeout=20, env={"PENSTOCK_TELEMETRY_URL": url}
        )
        return time.monotonic() - started

    async with simulator.serve() as running:
        quick = await asyncio.to_thread(end, running.url)
        assert len(running.telemetry.events) == 3
        running.telemetry.control("hang")
        assert await asyncio.to_thread(end, running.url) < quick + ANSWER_SECONDS
