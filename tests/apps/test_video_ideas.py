"""The application that makes films of a sheet of ideas: real films, by a real worker, from providers with prices."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import av
import psycopg
import pytest

from penstock import Worker, simulator, sources, testing
from penstock.apps.video_ideas import films, scripts
from penstock.apps.video_ideas.app import app, video_ideas
from penstock.contract import bulks, costs, providers
from penstock.postgres.db import SyncConnection
from penstock.postgres.migrate.statements import split
from penstock.settings import Settings
from penstock.sheets import GoogleSheet, Sheets
from penstock.storage.objects import Folder
from tests.api.conftest import running, settings_on
from tests.test_sheets import Hand

pytestmark = pytest.mark.own_sql(app)


IDEAS = Path(__file__).parents[2] / "examples/ideas.csv"
DENIED = "42501"
GIGABYTE = 10**9

# As existing clients know the tables: these columns come first, in this order.
TABLES = {
    "bulk_jobs": "id:uuid sheet_id:text status:text progress:integer created_at:timestamp completed_at:timestamp user_id:uuid"
    " error_message:text priority:integer idempotency_key:text",
    "video_jobs": "id:uuid bulk_job_id:uuid idea_data:jsonb status:text ai_provider:text cost:numeric output_url:text"
    " created_at:timestamp updated_at:timestamp user_id:uuid retry_count:integer last_retry_at:timestamp idempotency_key:text",
    "job_costs": "id:uuid video_job_id:uuid cost_type:text amount:numeric currency:text unit_count:numeric started_at:timestamp"
    " ended_at:timestamp user_id:uuid created_at:timestamp",
    "provider_config": "id:uuid ai_provider:text rate_model:text rate_unit:text rate_amount:numeric quota_hint:text features:jsonb"
    " user_id:uuid created_at:timestamp updated_at:timestamp",
    "profiles": "id:uuid email:text display_name:text created_at:timestamp updated_at:timestamp",
}
ROLLUPS = {"provider_costs", "bulk_job_costs", "provider_outcomes"}


@pytest.fixture
def files(
    db: testing.Database, drain: testing.Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Folder:
    """The app and its own SQL on the test's database, with a folder for its files."""
    drain.use(app)
    monkeypatch.delenv("VIDEO_IDEAS_URLS", raising=False)
    app.storage = Folder(tmp_path / "files", b"s" * 32)
    return app.storage


def write_sheet(folder: Path, *lines: str) -> Path:
    path = folder / "ideas.csv"
    path.write_text("title,idea,format,quality,seconds\n" + "".join(f"{line}\n" for line in lines))
    return path


def watch(path: Path) -> tuple[str, int, int, int, float]:
    """Codec, width, height, frames and seconds, of a film that is decoded from beginning to end."""
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        count = sum(1 for _ in film.decode(stream))
        assert film.duration is not None
        return stream.codec_context.name, stream.width, stream.height, count, film.duration / av.time_base


# A sheet, from end to end


@pytest.mark.slow
async def test_a_film_for_each_good_row_at_the_cheapest_that_can(
    db: testing.Database, drain: testing.Drain, files: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.1/row-input, R0.1/bad-rows, R0.4/rollups, R0.4/outcome, R0.6/cheapest: rows become films that open, bad rows say why, and every cost has its line, exact."""
    sheet = write_sheet(
        tmp_path,
        "Otters,They hold hands,,,2",
        "Herons,,portrait,360p,2",
        "Locks,Two gates,square,720p,2",
        ",No title,landscape,360p,5",
        "Slow,,circle,360p,soon",
    )
    async with app, simulator.serve() as model:
        monkeypatch.setenv("VIDEO_IDEAS_URLS", f"simulator={model.openai_url}")
        with sources.open(sheet) as source:
            forecast = await video_ideas.aforecast(source)
            job = await video_ideas.options(budget=Decimal(1), idempotency_key="monday").astart(source)
            again = await video_ideas.options(budget=Decimal(1), idempotency_key="monday").astart(source)
        await drain.arun(app, concurrency=1)
        async with app.connections() as pool:
            rows = {row.number: row async for row in bulks.results(pool, job_id=job.id)}
            spent = await costs.of_job(pool, job_id=job.id)
        asked = model.stats()
    assert again.id == job.id and asked["requests"] == 3
    assert {number: row.state for number, row in rows.items()} == {
        2: "succeeded", 3: "succeeded", 4: "succeeded", 5: "refused", 6: "refused",
    }  # fmt: skip
    assert "title" in (rows[5].error_message or "") and "seconds" in (rows[6].error_message or "")

    # The films are what the rows ask for, and cost what their lines say.
    wanted = {
        2: ("studio/sketch", 640, 360, 12, 2),
        3: ("studio/print", 360, 640, 24, 2),
        4: ("studio/print", 720, 720, 24, 2),
    }
    rates = {"studio/sketch": Decimal("0.0004"), "studio/print": Decimal("0.0015")}
    shown = {
        row["row_number"]: row
        for row in db.execute("select * from video_ideas.video_jobs order by row_number")
    }
    lines = db.execute("select * from video_ideas.job_costs order by created_at, id")
    for number, (studio, width, height, rate, seconds) in wanted.items():
        output, view = rows[number].output, shown[number]
        path = files.root / output["path"]
        assert watch(path) == ("h264", width, height, seconds * rate, seconds)
        [film] = db.execute(
            "select type, metadata from penstock.artifacts where id = %s", [output["artifact_id"]]
        )
        assert film["metadata"] == {"duration": float(seconds)}
        assert path.stat().st_size == output["bytes"] < 30_000 * seconds * (width * height // 230_000)
        assert (
            (view["status"], view["ai_provider"])
            == ("succeeded", studio)
            == ("succeeded", output["provider"])
        )
        assert view["output_url"] == output["url"] == f"/api/artifacts/{output['artifact_id']}"
        own = {line["meter"]: line for line in lines if line["video_job_id"] == view["id"]}
        assert {meter: line["cost_type"] for meter, line in own.items()} == {
            "input_tokens": "inference", "output_tokens": "inference", "seconds": "render", "video_bytes": "storage",
        }  # fmt: skip
        assert own["seconds"]["amount"] == seconds * rates[studio]
        assert own["video_bytes"]["amount"] == output["bytes"] * Decimal("0.023") / GIGABYTE
        assert own["output_tokens"]["amount"] == own["output_tokens"]["unit_count"] * Decimal("0.4") / 10**6
        assert {line["ai_provider"] for line in own.values()} == {"simulator/gpt-brook", studio}
        assert view["cost"] == rows[number].cost == sum(line["amount"] for line in own.values())
    assert {number: shown[number]["status"] for number in (5, 6)} == {5: "failed", 6: "failed"}
    assert shown[2]["idea_data"] == {"title": "Otters", "idea": "They hold hands", "seconds": "2"}

    # What they add up to is the same everywhere, to the last digit.
    total = sum(line["amount"] for line in lines)
    assert total == spent.cost == sum(row["cost"] for row in shown.values()) <= forecast.cost.high
    by_type = db.execute("select cost_type, amount from video_ideas.bulk_job_costs order by 1")
    assert [row["cost_type"] for row in by_type] == ["inference", "render", "storage"]
    assert sum(row["amount"] for row in by_type) == total
    assert db.execute("select sum(amount) as sum from video_ideas.provider_costs") == [{"sum": total}]
    outcomes = db.execute(
        "select ai_provider, videos, status, cost from video_ideas.provider_outcomes where ai_provider is not null order by 1"
    )
    by_provider = {
        name: sum(line["amount"] for line in lines if line["ai_provider"] == name)
        for name in ("simulator/gpt-brook", "studio/print", "studio/sketch")
    }
    assert [tuple(row.values()) for row in outcomes] == [
        ("simulator/gpt-brook", 0, "succeeded", by_provider["simulator/gpt-brook"]),
        ("studio/print", 2, "succeeded", by_provider["studio/print"]),
        ("studio/sketch", 1, "succeeded", by_provider["studio/sketch"]),
    ]
    [bulk] = db.execute("select * from video_ideas.bulk_jobs")
    assert (bulk["id"], bulk["status"], bulk["progress"], bulk["sheet_id"]) == (
        job.id,
        "completed",
        100,
        "ideas.csv",
    )
    assert (bulk["idempotency_key"], bulk["rows"], bulk["refused"], bulk["priority"]) == ("monday", 5, 2, 5)
    assert db.execute("select * from penstock.check_accounts()") == []


async def test_another_takes_over_when_the_cheapest_is_closed(
    db: testing.Database, files: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    """R0.6/fallback: a studio under maintenance is passed over; a model that has no money left is left behind midway."""
    sheet = write_sheet(tmp_path, "Otters,,,,2", "Mills,,,,2")
    async with app, simulator.serve(quota_exhausted_after=0) as broke, simulator.serve() as rich:
        monkeypatch.setenv("VIDEO_IDEAS_URLS", f"simulator={broke.openai_url} house={rich.openai_url}")
        async with app.connections() as pool:
            await providers.set(pool, name="studio/sketch", status="maintenance")
            await providers.set(pool, name="simulator/gpt-river", status="disabled")
            await providers.set(pool, name="house/gpt-lake", features=["script"])
            await costs.set_price(
                pool, provider="house/gpt-lake", meter="tokens", amount=Decimal(9), per=10**6
            )
        worker = Worker(app, concurrency=2, kinds=["video_ideas.load", "script"])
        working = asyncio.create_task(worker.run())
        try:
            with sources.open(sheet) as source:
                await video_ideas.astart(source)
            written = "select count(*) = 2 as is_done from penstock.task_list where kind = 'script' and status = 'succeeded'"
            await eventually.aio(lambda: asyncio.to_thread(lambda: db.execute(written)[0]["is_done"]))
        finally:
            worker.stop()
            await working
        assert broke.requests >= 1 and rich.requests == 2
    routes = db.execute(
        "select kind, route -> 'chosen' as chosen from penstock.tasks where route is not null"
    )
    for route in routes:
        chosen = route["chosen"]
        if route["kind"] == "script":
            assert (chosen["provider"], chosen["instead_of"]) == ("house/gpt-lake", "simulator/gpt-brook")
            assert chosen["because"] == "closed"
        else:
            assert chosen["provider"] == "studio/print"
            assert chosen["reason"].endswith("others are closed or failing")
        assert chosen["reason"].startswith("cheapest: 0.0")
    assert len(routes) == 4
    [row] = db.execute("select distinct status, ai_provider, retry_count from video_ideas.video_jobs")
    assert row == {"status": "queued", "ai_provider": "studio/print", "retry_count": 0}


async def test_budget_holds_with_a_model_that_reasons(
    db: testing.Database, drain: testing.Drain, files: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.6/budget: a script reserves what the model may think, so the job pauses before the call, and not after."""
    sheet = write_sheet(tmp_path, "Otters,,,,2")
    kinds = ["video_ideas.load", "script"]
    async with app, simulator.serve(reasoning_tokens=20_000) as model, app.connections() as pool:
        monkeypatch.setenv("VIDEO_IDEAS_URLS", f"openai={model.openai_url} house={model.openai_url}")
        for name in ("simulator/gpt-brook", "simulator/gpt-river"):
            await providers.set(pool, name=name, status="disabled")
        for name in ("house/gpt-9", "openai/gpt-9"):
            await providers.set(pool, name=name, features=["script"], hosts=["127.0.0.1"])
            await costs.set_price(
                pool, provider=name, meter="output_tokens", amount=Decimal(10), per=10**6, currency="USD"
            )

        async def forecast() -> Decimal:
            with sources.open(sheet) as source:
                return (await video_ideas.aforecast(source)).cost.high

        await providers.set(pool, name="openai/gpt-9", status="disabled")
        plain = await forecast()
        await providers.set(pool, name="openai/gpt-9", status="active")
        assert await forecast() == plain, "a model that does not reason is cheaper"
        await providers.set(pool, name="house/gpt-9", status="disabled")
        with sources.open(sheet) as source:
            job = await video_ideas.options(budget=plain + Decimal("0.001")).astart(source)
        await drain.arun(app, concurrency=1, kinds=kinds)
        spent = (await costs.of_job(pool, job_id=job.id)).cost
        assert spent <= plain + Decimal("0.001") and model.requests == 0
        [waiting] = db.execute("select status, error_message from video_ideas.bulk_jobs")
        assert waiting["status"] == "paused" and "budget" in waiting["error_message"]

        await costs.set_budget(pool, job_id=job.id, amount=plain + Decimal("0.25"))
        await drain.arun(app, concurrency=1, kinds=kinds)
        spent = (await costs.of_job(pool, job_id=job.id)).cost
        assert Decimal("0.2") < spent <= plain + Decimal("0.25") and model.requests == 1
        assert await forecast() == plain + Decimal("0.25")
    assert db.execute("select * from penstock.check_accounts()") == []


# Who sees it


@contextmanager
def acting(conn: SyncConnection, user: uuid.UUID | None, role: str = "authenticated") -> Iterator[None]:
    """The block runs as the API would run a request."""
    claims = json.dumps({"sub": str(user)}) if user else ""
    with conn.transaction(force_rollback=True):
        conn.execute("select set_config('request.jwt.claims', %s, true)", [claims])
        conn.execute(f"set local role {role}".encode())
        yield


@pytest.fixture
def people(db: testing.Database, files: Folder) -> dict[str, tuple[uuid.UUID, uuid.UUID]]:
    """Ann, who has a job with rows and a cost, and Bob, who has nothing: user and tenant."""
    app.block(_declare())
    found: dict[str, tuple[uuid.UUID, uuid.UUID]] = {}
    for name in ("ann", "bob"):
        [row] = db.execute("insert into auth.users (email) values (%s) returning id", [f"{name}@example.org"])
        [profile] = db.execute("select tenant_id from penstock.profiles where user_id = %s", [row["id"]])
        found[name] = (row["id"], profile["tenant_id"])
    user, tenant = found["ann"]
    with db.connect() as conn, conn.transaction():
        conn.execute("select set_config('request.jwt.claims', %s, true)", [json.dumps({"sub": str(user)})])
        conn.execute("set local role authenticated")
        [opened] = conn.execute(
            """select * from penstock.open_bulk('video_ideas', '{"type": "csv", "name": "a.csv"}')"""
        )
        rows = [{"number": n, "data": {"title": f"t{n}"}} for n in (2, 3)]
        conn.execute("select penstock.add_bulk_rows(%s, %s)", [opened["job_id"], json.dumps(rows)])
        conn.execute("set local role none")
        options = json.dumps({"job_id": str(opened["job_id"]), "provider": "studio/print"})
        conn.execute(
            "select penstock.record_cost('render', 0.000001, p_tenant_id => %s, p_options => %s)",
            [tenant, options],
        )
    app.block(_set_own_price(tenant))
    return found


async def _declare() -> None:
    async with app.connections() as pool:
        await app.declare(pool)


async def _set_own_price(tenant: uuid.UUID) -> None:
    async with app.connections() as pool:
        await costs.set_price(
            pool, provider="studio/cinema", meter="images", amount=Decimal(1), tenant_id=tenant
        )


@pytest.mark.every_postgres
def test_members_see_their_own_and_nobody_writes(
    db: testing.Database, people: dict[str, tuple[uuid.UUID, uuid.UUID]]
) -> None:
    """R0.9/own-rows, R0.9/no-money-writes: through the views as without them. Costs are never a member's to write; one's own name is."""
    (ann, tenant), (bob, _) = people["ann"], people["bob"]
    conn = db.connect()
    with conn.transaction():
        found = conn.execute(
            "select table_name as name from information_schema.views where table_schema = 'video_ideas'"
        ).fetchall()
        views = {row["name"] for row in found}
    assert views == TABLES.keys() | ROLLUPS

    def count(view: str) -> int:
        return conn.execute(f"select count(*) as n from video_ideas.{view}".encode()).fetchall()[0]["n"]

    def state(statement: str) -> str | None:
        try:
            with conn.transaction(force_rollback=True):
                conn.execute(statement.encode())
        except psycopg.Error as error:
            return error.sqlstate
        return None

    with acting(conn, ann):
        assert {view: count(view) for view in views - {"provider_config"}} == {
            "bulk_jobs": 1, "video_jobs": 2, "job_costs": 1, "profiles": 1, "provider_costs": 1, "bulk_job_costs": 1, "provider_outcomes": 1,
        }  # fmt: skip
        [own] = conn.execute("select amount, user_id, ai_provider from video_ideas.job_costs").fetchall()
        assert own == {"amount": Decimal("0.000001"), "user_id": ann, "ai_provider": "studio/print"}
        prices = conn.execute(
            "select rate_unit, tenant_id from video_ideas.provider_config where ai_provider = 'studio/cinema' order by 1"
        ).fetchall()
        assert [tuple(row.values()) for row in prices] == [
            ("images", tenant),
            ("seconds", None),
            ("video_bytes", None),
        ]
    with acting(conn, bob):
        assert {count(view) for view in views - {"provider_config", "profiles"}} == {0}
        assert conn.execute("select id from video_ideas.profiles").fetchall() == [{"id": bob}]
        assert (
            conn.execute("select 1 from video_ideas.provider_config where tenant_id is not null").fetchall()
            == []
        )
    with acting(conn, None, "service_role"):
        assert (count("bulk_jobs"), count("video_jobs"), count("job_costs"), count("profiles")) == (
            1,
            2,
            1,
            2,
        )
    for role, user in (("anon", None), ("anon", ann), ("authenticated", ann), ("service_role", None)):
        with acting(conn, user, role):
            for view in views:
                if role == "anon":
                    assert state(f"select * from video_ideas.{view}") == DENIED, view
                first = "display_name" if view == "profiles" and role != "authenticated" else "id"
                column = first if view in TABLES else "tenant_id"
                for statement in (
                    f"insert into video_ideas.{view} ({column}) values (null)",
                    f"update video_ideas.{view} set {column} = null",
                    f"delete from video_ideas.{view}",
                ):
                    # What adds up or joins cannot be written at all; the rest is not granted.
                    assert state(statement) in (DENIED, "55000"), (role, statement)
    with acting(conn, ann):
        changed = conn.execute("update video_ideas.profiles set display_name = 'Ann' returning id").fetchall()
        assert changed == [{"id": ann}]
        assert state("update video_ideas.profiles set email = 'x@example.org'") == DENIED


@pytest.mark.every_postgres
def test_the_tables_have_the_columns_and_states_that_are_expected(
    db: testing.Database, people: dict[str, tuple[uuid.UUID, uuid.UUID]]
) -> None:
    """R0.5/fields: names, order and types, and what they say of a provider; a canceled job has failed, a row that waits is queued."""
    for table, columns in TABLES.items():
        found = db.execute(
            "select column_name as name, split_part(data_type, ' ', 1) as type from information_schema.columns"
            " where table_schema = 'video_ideas' and table_name = %s order by ordinal_position", [table],
        )  # fmt: skip
        named = [f"{row['name']}:{row['type']}" for row in found]
        assert named[: len(columns.split())] == columns.split(), table
    db.execute("select penstock.set_provider('studio/print', '{\"requests_per_minute\": 30}')")
    [shown] = db.execute(
        "select * from video_ideas.provider_config where ai_provider = 'studio/print' and rate_unit = 'seconds'"
    )
    assert (shown["rate_model"], shown["rate_amount"], shown["user_id"]) == (
        "per second",
        Decimal("0.0015"),
        None,
    )
    assert "30" in shown["quota_hint"] and {"video", "720p"} <= set(shown["features"])
    assert db.execute("select distinct status from video_ideas.video_jobs") == [{"status": "queued"}]
    for verb, status in (("pause_job", "paused"), ("resume_job", "queued"), ("cancel_job", "failed")):
        db.execute(f"select penstock.{verb}(id) from video_ideas.bulk_jobs")
        [bulk] = db.execute("select status, error_message from video_ideas.bulk_jobs")
        assert bulk["status"] == status
    assert bulk["error_message"]
    assert db.execute("select distinct status from video_ideas.video_jobs") == [{"status": "canceled"}]


def test_costs_of_a_pruned_job_are_kept(
    db: testing.Database, people: dict[str, tuple[uuid.UUID, uuid.UUID]], clock: testing.Clock
) -> None:
    """R0.4/append-only: the lines and their sums stay, with the user; another app's job and tenant see none of them."""
    (ann, _), (bob, _) = people["ann"], people["bob"]
    before = db.execute("select id, amount, user_id, bulk_job_id, created_at from video_ideas.job_costs")
    sums = db.execute("select * from video_ideas.bulk_job_costs")
    [(job, user)] = [(row["bulk_job_id"], row["user_id"]) for row in before]
    assert user == ann
    db.execute("select penstock.cancel_job(%s)", [job])
    clock.advance(days=400)
    for _ in range(3):
        db.execute("select * from penstock.upkeep()")
        db.execute("select penstock.prune()")
    assert db.execute("select id from penstock.jobs") == []
    columns = "id, amount, user_id, bulk_job_id, created_at"
    assert db.execute(f"select {columns} from video_ideas.job_costs") == before
    assert db.execute("select * from video_ideas.bulk_job_costs") == sums
    conn = db.connect()
    for person, expected in ((ann, 1), (bob, 0)):
        with acting(conn, person):
            [row] = conn.execute("select count(*) as n from video_ideas.job_costs").fetchall()
            assert row["n"] == expected


@pytest.mark.every_postgres
def test_users_and_ids_of_older_rows_are_filled_in(
    db: testing.Database, people: dict[str, tuple[uuid.UUID, uuid.UUID]], clock: testing.Clock
) -> None:
    """R0.8/queries: after the migration older rows are found by the same ids and users as before, also of pruned jobs."""
    (ann, tenant), _ = people["ann"], people["bob"]
    assert app.own is not None
    [(job,)] = [tuple(row.values()) for row in db.execute("select id from video_ideas.bulk_jobs")]
    db.execute("""
        insert into penstock.audit_log (at, tenant_id, actor, action, job_id, subject, details)
        values (now(), %s, 'user:' || %s, 'job.queued', %s, 'job', '{"type": "video_ideas"}')""",
        [tenant, str(ann), (gone := uuid.uuid4())],
    )  # fmt: skip
    db.execute("""
        insert into penstock.cost_entries (at, tenant_id, job_id, cost_type, amount, currency, base_amount)
        values (now(), %s, %s, 'render', 1, 'USD', 1)""", [tenant, gone])  # fmt: skip
    with db.connect() as conn:
        conn.execute("set penstock.erasing = 'on'")
        for table, column in (("jobs", "user_id"), ("bulk_rows", "id"), ("cost_entries", "user_id")):
            conn.execute(f"update penstock.{table} set {column} = null".encode())
        conn.execute("reset penstock.erasing")
        text = (app.own.folder / "migrations/0002_fill_users_and_rows.sql").read_text()
        for statement in split("0002", text):
            conn.execute(statement.text.encode())
    rows = db.execute("select id, bulk_job_id, user_id, row_number from video_ideas.video_jobs")
    assert [(row["id"], row["user_id"]) for row in rows] == [
        (uuid.UUID(bytes=hashlib.sha256(f"{job}/{row['row_number']}".encode()).digest()[:16]), ann)
        for row in rows
    ]
    costs_of_ann = db.execute("select bulk_job_id from video_ideas.job_costs where user_id = %s", [ann])
    assert {row["bulk_job_id"] for row in costs_of_ann} == {job, gone}
    with pytest.raises(psycopg.Error, match="cannot be changed"):
        db.execute("update penstock.cost_entries set user_id = null")


# R0.8: the queries that programs send to these tables, and which columns of each table are looked up in an index.
BY_USER = {"jobs": ["user_id"]}
QUERIES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "bulk jobs of a user": (
        "select * from video_ideas.bulk_jobs where user_id = {user} order by created_at desc", BY_USER,
    ),
    "active bulk jobs of a user": (
        "select * from video_ideas.bulk_jobs where user_id = {user} and status in ('queued','running','paused')"
        " order by created_at desc", BY_USER,
    ),
    "active bulk jobs of a tenant": (
        "select * from video_ideas.bulk_jobs where tenant_id = {tenant} and status in ('queued', 'running', 'paused')"
        " order by created_at desc",
        {"jobs": ["tenant_id", "status"]},
    ),
    "active bulk jobs of all": (
        "select * from video_ideas.bulk_jobs where status in ('queued','running','paused')",
        {"jobs": ["status"]},
    ),
    "a bulk job": ("select * from video_ideas.bulk_jobs where id = {job}", {"jobs": ["id"]}),
    "video jobs by bulk job and status": (
        "select * from video_ideas.video_jobs where bulk_job_id = {job} and status = 'failed'",
        {"bulk_rows": ["job_id"], "tasks": ["job_id"], "attempts": ["job_id", "task_id"]},
    ),
    "states of a bulk job": (
        "select status, count(*) from video_ideas.video_jobs where bulk_job_id = {job} group by status",
        {"bulk_rows": ["job_id"]},
    ),
    "video jobs of a user": (
        "select * from video_ideas.video_jobs where user_id = {user} order by created_at desc",
        {"jobs": ["user_id"], "bulk_rows": ["job_id"]},
    ),
    "a video job": ("select * from video_ideas.video_jobs where id = {row}", {"bulk_rows": ["id"]}),
    "costs of a video job": (
        "select * from video_ideas.job_costs where video_job_id = {row}",
        {"bulk_rows": ["id"], "cost_entries": ["job_id", "task_id"]},
    ),
    "costs of a user": (
        "select * from video_ideas.job_costs where user_id = {user} order by created_at desc",
        {"cost_entries": ["user_id"], "audit_log": ["job_id"]},
    ),
    "costs of a bulk job": (
        "select * from video_ideas.job_costs where bulk_job_id = {job}",
        {"cost_entries": ["job_id"], "bulk_rows": ["job_id"], "tasks": ["job_id"]},
    ),
    "costs of a tenant": (
        "select * from video_ideas.job_costs where tenant_id = {tenant}",
        {"cost_entries": ["tenant_id"]},
    ),
    "costs of a user by provider over time": (
        "select v.ai_provider, date_trunc('day', c.created_at) as day, sum(c.amount) from video_ideas.job_costs c"
        " join video_ideas.video_jobs v on v.id = c.video_job_id"
        " where c.user_id = {user} and c.created_at >= now() - interval '30 days' group by 1, 2",
        {"cost_entries": ["user_id"]},
    ),
    "costs by provider over time": (
        "select ai_provider, day, sum(amount) from video_ideas.provider_costs"
        " where tenant_id = {tenant} and day >= date '2026-01-01' group by 1, 2",
        {"cost_sums": ["tenant_id", "day"]},
    ),
    "the configuration of a provider": (
        "select * from video_ideas.provider_config where ai_provider = 'studio/print'",
        {"endpoints": ["name"], "prices": ["provider"]},
    ),
    "one's profile": ("select * from video_ideas.profiles where id = {user}", {"profiles": ["user_id"]}),
}  # fmt: skip


# A year of fifty tenants: so much that reading a table whole is not worth it.
MUCH = """
insert into penstock.tenants (name, plan) select 'tenant ' || n, 'unlimited' from generate_series(1, 50) as n;
insert into penstock.jobs (tenant_id, type, status, created_by, user_id, created_at, finished_at)
  select t.id, 'video_ideas', case when n % 50 = 0 then 'running' else 'completed' end, 'service:test', t.id, now(),
    case when n % 50 <> 0 then now() end
  from penstock.tenants t, generate_series(1, 50) as n;
insert into penstock.bulks (job_id, tenant_id, type) select id, tenant_id, type from penstock.jobs on conflict do nothing;
insert into penstock.tasks (job_id, id, tenant_id, created_at, lane_id, phase, priority, kind, key, input)
  select j.id, nextval('penstock.task_ids'), j.tenant_id, now(), 1, 1, 5, 'render', n || '/render', '{}'
  from (select * from penstock.jobs limit 500) as j, generate_series(11, 20) as n;
insert into penstock.bulk_rows (job_id, number, tenant_id, data, first_id, result_id, last_id)
  select job_id, split_part(key, '/', 1)::bigint, tenant_id, '{}', id, id, id from penstock.tasks where kind = 'render';
insert into penstock.attempts (job_id, task_id, lease, tenant_id, attempt, worker_id, started_at, ended_at, outcome, error_code)
  select job_id, id, id, tenant_id, 1, 'w', now(), now(), 'failed', 'x' from penstock.tasks;
insert into penstock.cost_entries (at, tenant_id, user_id, job_id, task_id, provider, cost_type, amount, currency, base_amount)
  select now() - make_interval(days => (id % 365)::integer), tenant_id, tenant_id, job_id, id, 'studio/print', 'render', 1, 'USD', 1
  from penstock.tasks;
insert into penstock.audit_log (at, tenant_id, actor, action, job_id, subject, details)
  select now(), tenant_id, created_by, 'job.queued', id, 'job:' || id, '{"type": "video_ideas"}' from penstock.jobs where user_id = tenant_id;
insert into penstock.endpoints (provider, endpoint, changed_at) select 'many', 'p' || n, now() from generate_series(1, 1000) as n;
insert into penstock.prices (provider, meter, amount, currency, valid_from, created_at)
  select name, 'seconds', 1, 'USD', now(), now() from penstock.endpoints where provider = 'many';
insert into penstock.profiles (user_id, tenant_id) select gen_random_uuid(), t.id from penstock.tenants t, generate_series(1, 20);
analyze;
"""


@pytest.mark.every_postgres
def test_each_listed_query_is_served_by_an_index(
    db: testing.Database, people: dict[str, tuple[uuid.UUID, uuid.UUID]]
) -> None:
    """R0.8/queries, R0.8/row-security: as a member asks it, with row security in force, and as the service does."""
    user, tenant = people["ann"]
    [job] = db.execute("select id from video_ideas.bulk_jobs")
    row, *_ = db.execute("select id from video_ideas.video_jobs")
    conn = db.connect()
    conn.execute(MUCH.encode())
    for name, (query, indexes) in QUERIES.items():
        text = query.format(
            tenant=f"'{tenant}'", job=f"'{job['id']}'", row=f"'{row['id']}'", user=f"'{user}'"
        )
        for role, asking in (("authenticated", user), ("service_role", None)):
            with acting(conn, asking, role):
                [plan] = conn.execute(f"explain (format json) {text}".encode()).fetchall()
            scans = list(_scans(plan["QUERY PLAN"][0]["Plan"]))
            for table, columns in indexes.items():
                found = [
                    node.get("Index Cond") or node.get("Recheck Cond") or ""
                    for node in scans
                    if node["Relation Name"] == table
                ]
                used = [set(re.findall(r"\w+", condition)) for condition in found]
                assert all(used) and any(set(columns) <= words for words in used), (name, role, table, found)


def _scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if node.get("One-Time Filter") == "false":
        return  # never run
    if "Relation Name" in node:
        yield node
    for below in node.get("Plans", []):
        yield from _scans(below)


# Its parts


def test_the_example_has_twenty_good_ideas_and_two_bad_ones() -> None:
    """R0.1/bad-rows: each bad row with its line, column and reason."""
    with sources.open(IDEAS) as source:
        found = video_ideas.check(source)
    assert (found.rows, found.good) == (22, 20)
    assert {(problem.line, problem.column) for problem in found.problems} == {
        (22, "title"), (23, "format"), (23, "seconds"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "## One\nIt rains. It pours. It stops.\n\n## Two\n\nSun.",
            [("One", "It rains. It pours."), ("Two", "Sun.")],
        ),
        ("No headings here. Two sentences! A third?", [("No headings here.", ""), ("Two sentences!", "")]),
        ("## \n\n### **Bold**\n`code`", [("Bold", "code")]),
        ("\n \n", []),
        ("# " * 50_000, []),
    ],
)
def test_any_model_answer_becomes_scenes(text: str, found: list[tuple[str, str]]) -> None:
    assert scripts.scenes(text, 2) == found


@pytest.mark.parametrize(
    "words",
    ["Plain", "x" * 120, "שלום עולם 漢字 🎉\u202e", "\0\x1b[31m\ud800", " ", "word " * 400],
    ids=["plain", "one word", "other scripts", "no characters", "nothing", "much"],
)
def test_any_text_is_rendered(words: str, tmp_path: Path) -> None:
    film = films.Film(width=96, height=54, seconds=2, rate=5, crf=40)
    scenes = [films.Scene(words, words)]
    made = films.render(words, scenes, str(tmp_path / "film.mp4"), film)
    assert (made.frames, made.seconds) == (10, 2)
    assert watch(tmp_path / "film.mp4") == ("h264", 96, 54, 10, 2)
    first, second = (list(films.frames(words, scenes, film)) for _ in range(2))
    assert first == second


# From a Google Sheet, over the wire


@pytest.mark.slow
async def test_films_of_a_google_sheet_are_written_back_as_links(
    db: testing.Database,
    drain: testing.Drain,
    files: Folder,
    clock: testing.Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R0.12/opens, R0.1/sheet: status, link, cost and error are beside each idea, and each link opens a film."""
    base = "https://films.example.org"
    monkeypatch.setattr("penstock.sdk.sheet_results.settings", lambda: Settings(public_url=base))
    hand = Hand()
    async with app, simulator.serve() as model, simulator.serve(clock=hand) as google:
        monkeypatch.setenv("VIDEO_IDEAS_URLS", f"simulator={model.openai_url}")
        credentials = google.sheets.service_account()
        monkeypatch.setattr(
            app, "sheets", Sheets(credentials, base_url=google.sheets_url, token_url=google.token_url)
        )
        google.sheets.add("ideas", {"Ideas": [
            ["title", "idea", "format", "seconds"],
            ["Otters", "They hold hands", "", 2],
            ["Slow", "", "circle", "soon"],
            ["Locks", "Two gates", "portrait", 2],
        ]})  # fmt: skip
        job = await video_ideas.options(budget=Decimal(1)).astart(GoogleSheet("ideas", link="public"))
        for _ in range(30):
            await drain.arun(app, concurrency=1)
            if (ended := await job.aget()).finished_at is not None:
                break
            clock.advance(seconds=11)
            hand.now += 11
        assert (ended.status, ended.status_reason) == ("completed", "1 of 3 rows refused")
        table: list[list[Any]] = google.sheets.values("ideas", "Ideas")
        names, *rows = table
        assert names[4:] == ["status", "output", "cost", "error"]
        assert [row[4] for row in rows] == ["succeeded", "refused", "succeeded"]
        assert "seconds" in rows[1][7] and rows[1][5:7] == ["", 0]
        assert google.stats()["sheets"]["violation_count"] == 0
    costs_of_rows = {
        row["row_number"]: float(row["cost"]) for row in db.execute("select * from video_ideas.video_jobs")
    }
    with running(db, settings_on(db, tmp_path)) as world:
        world.app.state.storage = files
        for number, row in ((2, rows[0]), (4, rows[2])):
            assert row[6] == pytest.approx(costs_of_rows[number]) and row[6] > 0
            assert row[5].startswith(f"{base}/links/")
            film = world.client.get(row[5].removeprefix(base))
            assert (film.status_code, film.headers["content-type"]) == (200, "video/mp4")
            path = tmp_path / f"{number}.mp4"
            path.write_bytes(film.content)
            assert watch(path)[0] == "h264"
