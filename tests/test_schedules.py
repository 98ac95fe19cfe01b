"""Schedules: which ticks there are, also where the clocks change, and which of them start jobs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import db as database
from penstock import kinds, schedules, testing
from penstock.errors import Invalid

BERLIN = ZoneInfo("Europe/Berlin")


def build(job_type: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
    return [{"kind": "step", "input": params}] if job_type == "report" else None


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def ticks(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """Every tick after start, until end, one after the other."""
    found: list[datetime] = []
    while (start := schedules.next_tick(cron, zone, start)) <= end:
        found.append(start)
    return found


# Ticks


def test_a_fixed_time_that_spring_skips_comes_right_after_the_gap() -> None:
    # On 2026-03-29 Berlin goes from 02:00 to 03:00, which is 01:00 UTC.
    found = ticks("30 2 * * *", "Europe/Berlin", at("2026-03-28T00:00Z"), at("2026-03-30T12:00Z"))
    assert found == [at("2026-03-28T01:30Z"), at("2026-03-29T01:00Z"), at("2026-03-30T00:30Z")]


def test_a_fixed_time_that_comes_twice_in_autumn_runs_once() -> None:
    # On 2026-10-25 Berlin goes from 03:00 back to 02:00, which is 01:00 UTC.
    found = ticks("30 2 * * *", "Europe/Berlin", at("2026-10-24T12:00Z"), at("2026-10-26T12:00Z"))
    assert found == [at("2026-10-25T00:30Z"), at("2026-10-26T01:30Z")]
    inside = at("2026-10-25T01:10Z")  # 02:10, the second time
    assert schedules.next_tick("30 2 * * *", "Europe/Berlin", inside) == at("2026-10-26T01:30Z")
    assert schedules.starts("30 2 * * *", "Europe/Berlin", "once", at("2026-10-24T00:30Z"), inside) == [
        at("2026-10-25T00:30Z")
    ]


def test_a_repeating_time_follows_the_time_that_passes() -> None:
    found = ticks("*/30 * * * *", "Europe/Berlin", at("2026-10-25T00:00Z"), at("2026-10-25T02:00Z"))
    assert found == [at("2026-10-25T00:00Z") + timedelta(minutes=30 * n) for n in range(1, 5)]


@settings(max_examples=150, deadline=None)
@given(
    cron=st.sampled_from(
        [
            "30 2 * * *",
            "0,30 1,2,3 * * *",
            "*/20 * * * *",
            "15 */2 * * *",
            "0 3 * * 0",
            "5 4 1 * *",
            "0 2 L * *",
        ]
    ),
    zone=st.sampled_from(
        [
            "UTC",
            "Europe/Berlin",
            "America/New_York",
            "Africa/Casablanca",
            "Asia/Kathmandu",
            "America/St_Johns",
        ]
    ),
    hours=st.integers(0, 24 * 400),
    length=st.integers(1, 24 * 9),
)
def test_ticks_seen_from_both_ends_are_the_same(cron: str, zone: str, hours: int, length: int) -> None:
    due = schedules.next_tick(cron, zone, at("2026-01-01T00:10:03.5Z") + timedelta(hours=hours))
    now = due + timedelta(hours=length, minutes=7)
    expected = [due, *ticks(cron, zone, due, now)]
    assert schedules.starts(cron, zone, "all", due, now) == expected[-100:]
    assert schedules.starts(cron, zone, "once", due, now) == expected[-1:]
    assert all(earlier < later for earlier, later in pairwise(expected))


def test_what_was_missed() -> None:
    due = at("2026-06-01T10:00Z")

    def starts(missed: str, **later: float) -> list[datetime]:
        return schedules.starts("0 * * * *", "UTC", missed, due, due + timedelta(**later))

    assert starts("skip", seconds=59) == [due]
    assert starts("skip", seconds=61) == []
    assert starts("skip", hours=2, seconds=10) == [at("2026-06-01T12:00Z")]
    assert starts("once", minutes=20) == [due]
    assert starts("once", hours=2, minutes=20) == [at("2026-06-01T12:00Z")]
    assert starts("all", hours=2) == [due, at("2026-06-01T11:00Z"), at("2026-06-01T12:00Z")]
    many = starts("all", days=365)
    assert len(many) == 100
    assert many[-1] == due + timedelta(days=365)


def test_what_was_due_counts_even_if_the_expression_has_no_such_tick() -> None:
    due, now = at("2026-06-01T10:13Z"), at("2026-06-01T10:14Z")
    assert schedules.starts("0 * * * *", "UTC", "once", due, now) == [due]


def test_a_year_of_missed_minutes_is_soon_counted() -> None:
    due = at("2025-01-01T00:00Z")
    assert len(schedules.starts("* * * * *", "Europe/Berlin", "all", due, at("2026-01-01T00:00Z"))) == 100


@pytest.mark.parametrize(
    "cron", ["", "x", "* * * *", "60 * * * *", "* * * * * * *", "0 0 31 2 *", "0 0 * 2 MON#6"]
)
def test_an_expression_that_makes_no_sense_is_refused(cron: str) -> None:
    with pytest.raises(Invalid) as refused:
        schedules.next_tick(cron, "UTC", at("2026-01-01T00:00Z"))
    assert refused.value.code == "invalid_cron"


@pytest.mark.parametrize("zone", ["", "Nowhere", "../../etc/passwd", "/etc/localtime", "Europe", "a\0b"])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(Invalid) as refused:
        schedules.next_tick("* * * * *", zone, at("2026-01-01T00:00Z"))
    assert refused.value.code == "invalid_timezone"


# Firing


async def test_a_due_schedule_starts_a_job_once(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    clock.freeze(at("2026-06-01T08:59:30Z"))
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "step"}])
        await schedules.set(
            pool, name="r", cron="0 11 * * *", job_type="report", tenant_id=tenant, timezone="Europe/Berlin",
            params={"pages": 3},
        )  # fmt: skip
        assert await schedules.fire_due(pool, build) == []
        clock.advance(seconds=40)
        fired = await asyncio.gather(*(schedules.fire_due(pool, build) for _ in range(5)))
        [job_id] = [job_id for jobs in fired for job_id in jobs]
        [schedule] = await schedules.list(pool)
    assert schedule.last_job_id == job_id
    assert schedule.next_run_at == datetime(2026, 6, 2, 11, tzinfo=BERLIN)
    [job] = db.execute("select * from penstock.jobs")
    assert datetime.fromisoformat(job["params"].pop("scheduled_for")) == at("2026-06-01T09:00Z")
    assert job["params"] == {"pages": 3}


async def test_an_outage_runs_every_tick_once_if_asked(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    clock.freeze(at("2026-06-01T08:30Z"))
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "step"}])
        for missed in ("skip", "once", "all"):
            await schedules.set(
                pool, name=missed, cron="0 * * * *", job_type=missed, tenant_id=tenant, missed=missed,
                tasks=[{"kind": "step"}],
            )  # fmt: skip
        clock.advance(hours=3)
        assert len(await schedules.fire_due(pool, build)) == 4
        assert await schedules.fire_due(pool, build) == []
    rows = db.execute("select type, params ->> 'scheduled_for' as tick from penstock.jobs order by type, 2")
    assert [(row["type"], row["tick"][11:16]) for row in rows] == [
        ("all", "09:00"), ("all", "10:00"), ("all", "11:00"), ("once", "11:00"),
    ]  # fmt: skip


async def test_one_that_cannot_be_fired_does_not_stop_the_others(
    db: testing.Database, tenant: UUID, clock: testing.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "step"}])
        for name, job_type in (("a", "report"), ("b", "of another app"), ("c", "report"), ("d", "report")):
            await schedules.set(pool, name=name, cron="* * * * *", job_type=job_type, tenant_id=tenant)
        db.execute("update penstock.schedules set cron = 'broken' where name = 'a'")
        db.execute("update penstock.schedules set params = '{\"bad\": true}' where name = 'c'")
        clock.advance(minutes=2)

        def sometimes(job_type: str, params: dict[str, Any]) -> list[dict[str, Any]] | None:
            if params:
                raise ZeroDivisionError
            return build(job_type, params)

        assert len(await schedules.fire_due(pool, sometimes)) == 1
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["schedule a", "schedule c"]


async def test_declaring_a_schedule_again_skips_no_tick(
    db: testing.Database, tenant: UUID, clock: testing.Clock
) -> None:
    clock.freeze(at("2026-06-01T08:59Z"))
    async with database.pool(db.dsn) as pool:
        await kinds.define(pool, kinds=[{"name": "step"}])
        first = await schedules.set(pool, name="r", cron="0 9 * * *", job_type="report", tenant_id=tenant)
        clock.advance(minutes=2)
        again = await schedules.set(pool, name="r", cron="0 9 * * *", job_type="report", tenant_id=tenant)
        assert first == again
        assert len(await schedules.fire_due(pool, build)) == 1
        await schedules.remove(pool, schedule_id=first)
        assert await schedules.list(pool, tenant_id=tenant) == []
