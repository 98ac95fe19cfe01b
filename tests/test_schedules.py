"""Schedules: time zones, changes of the clocks, missed runs, and one job per tick."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from penstock import App, Invalid, Worker, testing
from penstock.contract import schedules

BERLIN = "Europe/Berlin"


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    return drain.use(App(database_url=db.dsn))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(cron: str, timezone: str, start: str, count: int) -> list[str]:
    found = [utc(start)]
    for _ in range(count):
        found.append(schedules.next_tick(cron, timezone, found[-1]))
    return [tick.isoformat(sep=" ", timespec="minutes").removesuffix("+00:00") for tick in found[1:]]


def started(db: testing.Database) -> list[str]:
    """The ticks for which jobs were started, in order."""
    rows = db.execute("select params ->> 'scheduled_for' as tick from penstock.jobs order by 1")
    return [datetime.fromisoformat(row["tick"]).astimezone(UTC).strftime("%H:%M:%S") for row in rows]


def test_a_fixed_time_runs_once_a_day_when_clocks_change() -> None:
    """In Berlin 02:30 is skipped on 29 March 2026 and occurs twice on 25 October."""
    assert ticks("30 2 * * *", BERLIN, "2026-03-28 00:00", 3) == [
        "2026-03-28 01:30",
        "2026-03-29 01:00",  # the first moment after the gap
        "2026-03-30 00:30",
    ]
    assert ticks("30 2 * * *", BERLIN, "2026-10-24 00:00", 3) == [
        "2026-10-24 00:30",
        "2026-10-25 00:30",  # the first of the two
        "2026-10-26 01:30",
    ]
    assert ticks("30 2 * * *", "UTC", "2026-03-29 00:00", 2) == ["2026-03-29 02:30", "2026-03-30 02:30"]


def test_an_interval_follows_elapsed_time_when_clocks_change() -> None:
    assert ticks("*/30 * * * *", BERLIN, "2026-03-29 00:29", 4) == [
        "2026-03-29 00:30",
        "2026-03-29 01:00",
        "2026-03-29 01:30",
        "2026-03-29 02:00",
    ]
    assert ticks("0 * * * *", BERLIN, "2026-10-24 23:30", 3) == [
        "2026-10-25 00:00",
        "2026-10-25 01:00",
        "2026-10-25 02:00",
    ]


@pytest.mark.parametrize(
    ("missed", "after_outage"),
    [
        ("skip", ["02:00:00", "08:00:00"]),
        ("once", ["02:00:00", "07:00:00", "08:00:00"]),
        ("all", ["02:00:00", "03:00:00", "04:00:00", "05:00:00", "06:00:00", "07:00:00", "08:00:00"]),
    ],
)
def test_missed_runs_are_skipped_run_once_or_all_run(
    app: App,
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    missed: str,
    after_outage: list[str],
) -> None:
    """`missed` decides about runs that an outage made late, by the database's clock."""
    ran: list[int] = []

    @app.task
    async def report(size: int) -> None:
        ran.append(size)

    app.schedule(report, "0 * * * *", missed=missed, params={"size": 3})
    clock.freeze(utc("2026-03-01 01:30"))
    drain(app)
    assert started(db) == [], "nothing is due when it is declared"
    clock.advance(minutes=30, seconds=5)
    drain(app)
    drain(app)
    assert started(db) == ["02:00:00"] and ran == [3]

    clock.advance(hours=5, minutes=10)
    drain(app)
    clock.advance(minutes=50)
    drain(app)
    assert started(db) == after_outage and ran == [3] * len(after_outage)


def test_a_daily_job_starts_once_a_day_when_clocks_change(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """A worker fires hour by hour through the night when 02:30 occurs twice."""

    @app.task
    async def nightly() -> None: ...

    app.schedule(nightly, "30 2 * * *", timezone=BERLIN)
    clock.freeze(utc("2026-10-24 22:00"))
    for _ in range(6):
        drain(app)
        clock.advance(hours=1)
    assert started(db) == ["00:30:00"]


async def test_two_workers_fire_a_tick_once(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock, eventually: Any
) -> None:
    """Each tick starts one job, no matter how many workers see it."""

    @app.task
    async def report() -> None: ...

    @app.job
    def reports() -> None:
        for _ in range(3):
            report.step()

    app.schedule(reports, "*/10 * * * * *", name="often", missed="all")
    clock.freeze(utc("2026-03-01 01:00:05"))
    async with app:
        await drain.arun(app)
        clock.advance(seconds=25)
        async with app.connections() as where:
            fired = await asyncio.gather(*(schedules.fire_due(where, app.draw) for _ in range(8)))
        assert sum(map(len, fired)) == 3
        clock.advance(seconds=20)
        workers = [Worker(app) for _ in range(2)]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        query = "select count(*) as n from penstock.jobs where status = 'completed'"
        await eventually.aio(lambda: db.execute(query)[0]["n"] == 5)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
    assert started(db) == ["01:00:10", "01:00:20", "01:00:30", "01:00:40", "01:00:50"]


def test_declaring_a_schedule_again_changes_it_and_skips_no_run(
    db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """A deployment must not lose a tick; a new expression counts from now."""
    clock.freeze(utc("2026-03-01 01:30"))

    def deploy(cron: str) -> None:
        app = drain.use(App(database_url=db.dsn))

        @app.task
        async def report() -> None: ...

        app.schedule(report, cron)
        drain(app)

    deploy("0 * * * *")
    clock.advance(minutes=40)
    deploy("0 * * * *")
    assert started(db) == ["02:00:00"]
    deploy("15 * * * *")
    clock.advance(minutes=10)
    deploy("15 * * * *")
    assert started(db) == ["02:00:00", "02:15:00"]
    assert len(db.execute("select 1 from penstock.schedules")) == 1


def test_a_failing_schedule_does_not_block_the_others(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    @app.task
    async def report() -> None: ...

    @app.job
    def broken() -> None:
        raise RuntimeError("the body of a job")

    app.schedule(broken, "0 * * * *")
    app.schedule(report, "0 * * * *")
    clock.freeze(utc("2026-03-01 01:30"))
    drain(app)
    db.execute("select penstock.define_job_type('elsewhere')")
    db.execute(
        "select penstock.set_schedule('foreign', '0 * * * *', 'elsewhere', now(), "
        "jsonb_build_object('tenant_id', (select tenant_id from penstock.schedules limit 1)))"
    )
    clock.advance(hours=1)
    drain(app)
    assert started(db) == ["02:00:00"]
    assert [row["type"] for row in db.execute("select type from penstock.jobs")] == ["report"]


def failing(db: testing.Database) -> list[tuple[str, int, bool]]:
    rows = db.execute("select name, failures, is_enabled from penstock.schedules order by name")
    return [(row["name"], row["failures"], row["is_enabled"]) for row in rows]


def test_a_schedule_that_fails_backs_off_and_is_turned_off(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """S73: schedules that cannot fire do not occupy the workers for ever, and people see it."""
    bodies: list[int] = []

    @app.job
    def broken() -> None:
        bodies.append(1)
        raise RuntimeError("no such\ntable")

    app.schedule(broken, "0 * * * *")
    clock.freeze(utc("2026-03-01 01:30"))
    drain(app)
    clock.advance(minutes=30)
    for minutes in (1, 2, 4, 8, 16, 32, 60):
        drain(app)
        drain(app)
        clock.advance(minutes=minutes)
    assert (len(bodies), failing(db)) == (7, [("broken", 7, True)])
    drain(app)
    clock.advance(days=1)
    drain(app)
    assert (len(bodies), failing(db)) == (8, [("broken", 8, False)])
    [row] = db.execute("select tenant_id, last_error from penstock.schedules")
    assert row["last_error"] == "no suchtable"
    [line] = db.execute("select details from penstock.audit_log where action = 'schedule.disabled'")
    assert line["details"]["failures"] == 8
    [found] = db.execute("select penstock.overview() -> 'problems' as problems")
    assert [each["text"] for each in found["problems"] if each["about"] == "schedule"] == [
        "Schedule broken was turned off: no suchtable"
    ]
    # Setting it again starts over.
    db.execute(
        "select penstock.set_schedule('broken', '0 * * * *', 'broken', now(), jsonb_build_object("
        "'tenant_id', %s::uuid))", [row["tenant_id"]],
    )  # fmt: skip
    assert failing(db) == [("broken", 0, True)]


def test_a_used_up_quota_does_not_turn_a_schedule_off(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    @app.task
    async def report() -> None: ...

    app.schedule(report, "0 * * * *")
    clock.freeze(utc("2026-03-01 01:30"))
    drain(app)
    db.execute("select penstock.set_limit(tenant_id, 'jobs', 0) from penstock.schedules")
    for _ in range(12):
        clock.advance(hours=1)
        drain(app)
    assert failing(db) == [("report", 7, True)]
    db.execute("select penstock.set_limit(tenant_id, 'jobs', null) from penstock.schedules")
    clock.advance(hours=1)
    drain(app)
    assert failing(db) == [("report", 0, True)] and len(started(db)) == 1


def test_a_type_that_no_worker_knows_fails_after_an_hour(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """A worker of another app may know it, so the first hour counts as nothing."""

    @app.task
    async def report() -> None: ...

    clock.freeze(utc("2026-03-01 01:30"))
    drain(app)
    db.execute("select penstock.define_job_type('gone')")
    db.execute(
        "select penstock.set_schedule('gone', '0 * * * *', 'gone', %s, jsonb_build_object("
        "'tenant_id', penstock.ensure_tenant('default')))", [clock.now()],
    )  # fmt: skip
    clock.advance(minutes=59)
    drain(app)
    assert failing(db) == [("gone", 0, True)]
    clock.advance(minutes=2)
    drain(app)
    assert failing(db) == [("gone", 1, True)]
    [row] = db.execute("select last_error from penstock.schedules")
    assert row["last_error"] == "no worker knows the job type 'gone'"


@pytest.mark.parametrize(
    ("name", "cron", "job_type", "code", "field"),
    [
        ("nightly", "0 3 * * *", "mistyped", "unknown_job_type", "job_type"),
        ("nightly", "0 3 * * *", "sheet", "invalid_schedule", "job_type"),
        ("nightly", "every day", "report", "invalid_cron", "cron"),
        ("nightly", "0 3 * *\n*", "report", "invalid_cron", "cron"),
        ("a\nERROR forged", "0 3 * * *", "report", "invalid_schedule", "name"),
        ("a\x1b[31m", "0 3 * * *", "report", "invalid_schedule", "name"),
        ("a\u202eb", "0 3 * * *", "report", "invalid_schedule", "name"),
        ("", "0 3 * * *", "report", "invalid_schedule", "name"),
    ],
)
def test_schedules_that_cannot_fire_are_refused(
    db: testing.Database, tenant: Any, name: str, cron: str, job_type: str, code: str, field: str
) -> None:
    """S73: for users and the service, over the API and in SQL."""
    db.execute("select penstock.define_kind('report'), penstock.define_job_type('sheet')")
    db.execute("select penstock.define_bulk_type('sheet')")
    statement = "select penstock.set_schedule(%s, %s, %s, now(), jsonb_build_object('tenant_id', %s::uuid))"
    with pytest.raises(psycopg.Error) as refused:
        db.execute(statement, [name, cron, job_type, tenant])
    details = json.loads(refused.value.diag.message_detail or "")
    assert (refused.value.sqlstate, details["code"], details["field"]) == ("PT422", code, field)
    assert "\n" not in (refused.value.diag.message_primary or "")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "topics"),
        ({"topics": 3}, "topics"),
        ({"topics": None}, "topics"),
        ({"topics": ["a"], "topic": "b"}, "topic"),
        ({"topics": ["a"], "count": ["1"]}, "count"),
        ({"topics": ["a"], "count": "1"}, None),
        ({"topics": ["a"], "note": {"any": "thing"}}, None),
    ],
)
async def test_params_of_a_schedule_are_checked_in_sql(
    app: App, db: testing.Database, tenant: Any, params: dict[str, Any], field: str | None
) -> None:
    """S73: by the declaration of the app, which need not run where the schedule is set."""

    @app.task
    async def work(topic: str) -> None: ...

    @app.job
    def publish(topics: list[str], count: int = 1, note: Any = None) -> None: ...

    async with app, app.connections() as pool:
        await app.declare(pool)
        chosen: dict[str, Any] = {
            "name": "n",
            "cron": "0 3 * * *",
            "job_type": "publish",
            "tenant_id": tenant,
        }
        if field is None:
            await schedules.set(pool, params=params, **chosen)
        else:
            with pytest.raises(Invalid) as refused:
                await schedules.set(pool, params=params, **chosen)
            assert (refused.value.code, refused.value.details["field"]) == ("bad_input", field)
            # A schedule that is off may be stored as it is.
            await schedules.set(pool, params=params, is_enabled=False, **chosen)


async def test_an_unreadable_schedule_does_not_block_the_others(
    app: App, db: testing.Database, drain: testing.Drain, clock: testing.Clock
) -> None:
    """Users cannot create one; if one exists, only that schedule does not fire."""

    @app.task
    async def report() -> None: ...

    app.schedule(report, "0 * * * *")
    clock.freeze(utc("2026-03-01 01:30"))
    async with app:
        await drain.arun(app)
        db.execute(
            "insert into penstock.schedules (tenant_id, name, cron, job_type, next_run_at, created_at) "
            "select tenant_id, 'never', cron, job_type, '-infinity', created_at from penstock.schedules"
        )
        clock.advance(hours=1)
        async with app.connections() as where:
            assert len(await schedules.fire_due(where, app.draw)) == 1
    assert started(db) == ["02:00:00"]


def test_invalid_schedules_are_rejected() -> None:
    """S41: they are rejected when declared, not when they fire."""
    app = App()

    @app.task
    async def report(size: int) -> None: ...

    for wrong, message in (
        ({"cron": "every day"}, "not a cron expression"),
        ({"cron": "0 0 30 2 *"}, "matches no date|not a cron expression"),
        ({"cron": "0 0 * * *", "timezone": "Mars/Olympus"}, "unknown time zone"),
        ({"cron": "0 0 * * *", "missed": "later"}, "skip, once or all"),
        ({"cron": "0 0 * * *", "params": {"size": "big"}}, "size: Input should be a valid integer"),
        ({"cron": "0 0 * * *", "params": {}}, "size: this param is required"),
    ):
        with pytest.raises(Invalid, match=message):
            app.schedule(report, **{"params": {"size": 1}, **wrong})  # type: ignore[arg-type]
    app.schedule(report, "0 0 * * *", params={"size": 1})
    with pytest.raises(Invalid, match="already exists"):
        app.schedule(report, "0 1 * * *", params={"size": 1})


def test_ticks_and_starts_agree_over_a_year() -> None:
    """Every tick starts once, no matter when a worker looks."""
    for cron in ("30 2 * * *", "0 */6 * * *", "15 2,3 * * 0", "0 0 1 * *"):
        now, due = utc("2026-01-01 00:00"), schedules.next_tick(cron, BERLIN, utc("2026-01-01 00:00"))
        expected, tick = [], due
        while tick < utc("2027-01-01 00:00"):
            expected.append(tick)
            tick = schedules.next_tick(cron, BERLIN, tick)
        found: list[datetime] = []
        step = timedelta(hours=7, minutes=13)
        while now < utc("2027-01-01 00:00"):
            now += step
            if due <= now:
                found += schedules.starts(cron, BERLIN, "all", due, now)
                due = schedules.next_tick(cron, BERLIN, now)
        assert [tick for tick in found if tick < utc("2027-01-01 00:00")] == expected, cron
