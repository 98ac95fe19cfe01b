"""The apps on real providers: the same code with a key in the environment, and on simulators without one."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock import settings, simulator, sources, testing
from penstock.apps.reading.app import app as reading_app
from penstock.apps.reading.app import declare, reading
from penstock.apps.video_ideas.app import app, video_ideas
from penstock.contract import bulks, costs, providers, webhooks
from penstock.postgres import db as database
from penstock.postgres import migrate
from penstock.providers import catalogue
from penstock.sdk import webhooks as inbox
from penstock.signing import verify
from penstock.storage.objects import Folder
from tests.providers.conftest import Wire, recording

SECRET = "sk-very-secret-key-0123456789"  # noqa: S105 it opens nothing


async def test_book_is_written_by_the_provider_whose_key_is_in_the_environment(
    db: testing.Database, drain: testing.Drain, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but two variables, and the text is in the language of the book."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("READING_MODEL", "openai/gpt-5.4-mini")
    for name in ("URL", "VOICE_MODEL", "VOICE_URL", "VOICE"):
        monkeypatch.delenv(f"READING_{name}", raising=False)
    found = recording("responses_completed")
    wire.respond = lambda request: (200, found["headers"], json.dumps(found["body"]).encode())
    drain.use(reading_app)
    reading_app.storage = Folder(tmp_path / "files", b"s" * 32)
    async with reading_app:
        await declare()
        started = await reading.astart("Moinhos", ["Moinhos"], language="pt-BR", words=50, audio=[])
        await drain.arun(reading_app, concurrency=1)
        book = await started.aresult(timeout="5s")
    assert book["documents"] == 1
    [request] = wire.requests
    assert str(request.url) == "https://api.openai.com/v1/responses"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert "pt-BR" in wire.sent()["instructions"]
    used = db.execute("select meter, sum(amount) as amount from penstock.usage_days group by meter")
    assert {row["meter"]: int(row["amount"]) for row in used if row["meter"].endswith("_tokens")} == {
        "input_tokens": 36,
        "output_tokens": 87,
    }


@pytest.mark.parametrize("name", ["responses_cut", "responses_thought_only"])
async def test_unusable_answers_are_paid_twice_at_most(
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    wire: Wire,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """R0.10/bad-answers: a task with five attempts asks a model that always runs out of tokens two times."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("READING_MODEL", "openai/gpt-5.4-mini")
    monkeypatch.delenv("READING_URL", raising=False)
    found = recording(name)
    wire.respond = lambda request: (200, found["headers"], json.dumps(found["body"]).encode())
    drain.use(reading_app)
    reading_app.storage = Folder(tmp_path / "files", b"s" * 32)
    async with reading_app:
        await declare()
        started = await reading.astart("Mills", ["Mills"], words=50, audio=[])
        for _ in range(6):
            await drain.arun(reading_app, concurrency=1)
            clock.advance(minutes=30)
        assert (await started.aget()).status == "failed"
    assert len(wire.requests) == 2
    [row] = db.execute("select error_code from penstock.results where outcome = 'failed'")
    assert row["error_code"] == "answer_truncated"
    # The attempts may be of two days.
    [used] = db.execute("select sum(amount) as amount from penstock.usage_days where meter = 'output_tokens'")
    assert used["amount"] == 2 * found["body"]["usage"]["output_tokens"]


@pytest.fixture
def films(db: testing.Database, drain: testing.Drain, tmp_path: Path) -> Path:
    """The app video_ideas on the test's database."""
    assert app.own is not None
    migrate.migrate(db.dsn, folder=app.own.folder, schema=app.own.schema)
    drain.use(app)
    app.storage = Folder(tmp_path / "files", b"s" * 32)
    sheet = tmp_path / "ideas.csv"
    sheet.write_text("title,idea,format,quality,seconds\nOtters,They hold hands,landscape,360p,5\n")
    return sheet


async def test_script_is_written_by_the_provider_whose_key_is_in_the_environment(
    db: testing.Database, drain: testing.Drain, films: Path, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.10/text: a key, prices of the catalogue and a feature; the row's language is in the prompt."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.delenv("VIDEO_IDEAS_URLS", raising=False)
    found = recording("responses_completed")
    wire.respond = lambda request: (200, found["headers"], json.dumps(found["body"]).encode())
    async with app, app.connections() as pool:
        await catalogue.apply(pool, catalogue.shipped(), ["openai/gpt-5.4-mini"])
        await providers.set(pool, name="openai/gpt-5.4-mini", features=["script"])
        for name in ("simulator/gpt-brook", "simulator/gpt-river"):
            await providers.set(pool, name=name, status="maintenance")
        rows = [{"title": "Lontras", "language": "pt-BR", "seconds": "5"}]
        await video_ideas.options(budget=Decimal(1)).astart(rows)
        await drain.arun(app, concurrency=1, kinds=["video_ideas.load", "script"])
    [request] = wire.requests
    assert str(request.url) == "https://api.openai.com/v1/responses"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert "pt-BR" in wire.sent()["instructions"]
    lines = db.execute("select provider, sum(amount) as amount from penstock.cost_entries group by provider")
    assert lines == [
        {"provider": "openai/gpt-5.4-mini", "amount": (36 * Decimal("0.75") + 87 * Decimal("4.5")) / 10**6}
    ]


async def start(pool: Any, provider: str, sheet: Path) -> Any:
    """Start a bulk job whose films only this provider can make, at 0.10 USD per second."""
    for studio in ("studio/sketch", "studio/print", "studio/cinema"):
        await providers.set(pool, name=studio, status="disabled")
    features = ["video", "360p", "landscape"]
    await providers.set(pool, name=provider, features=features, hosts=["127.0.0.1"], concurrency=2)
    await costs.set_price(
        pool, provider=provider, meter="seconds", amount=Decimal("0.10"), cost_type="render"
    )
    with sources.open(sheet) as source:
        return await video_ideas.options(budget=Decimal(5)).astart(source)


async def result(pool: Any, job: Any) -> tuple[Any, list[dict[str, Any]]]:
    [row] = [row async for row in bulks.results(pool, job_id=job.id)]
    operations = await database.rows(
        pool, "select status, external_id from penstock.operations order by id", ()
    )
    return row, [dict(zip(("status", "external_id"), each, strict=True)) for each in operations]


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["replicate/minimax/video-01", "runway/gen4.5"])
async def test_sheet_becomes_films_at_a_provider_by_polling(
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    films: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
) -> None:
    """R0.10/video: submitted once, polled, downloaded, and charged by the second of film."""
    async with app, simulator.serve() as running:
        name = provider.partition("/")[0]
        monkeypatch.setenv("VIDEO_IDEAS_URLS", f"simulator={running.openai_url} {name}={running.media_url}")
        async with app.connections() as pool:
            job = await start(pool, provider, films)
            await drain.arun(app, concurrency=1)
            row, [operation] = await result(pool, job)
            assert (row.state, operation["status"]) == ("queued", "processing"), "it waits without a worker"
            clock.advance(seconds=25)
            await drain.arun(app, concurrency=1)
            row, [operation] = await result(pool, job)
    assert (row.state, operation["status"]) == ("succeeded", "completed")
    assert (row.output["provider"], row.output["seconds"], row.output["width"]) == (provider, 5.0, 128)
    assert len(running.media.videos) == 1
    [line] = db.execute("select amount, unit_count from penstock.cost_entries where meter = 'seconds'")
    assert (line["amount"], line["unit_count"]) == (Decimal("0.5"), 5)


@pytest.mark.slow
async def test_signed_webhook_of_replicate_wakes_the_task(
    db: testing.Database, drain: testing.Drain, films: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R0.10/video: without any clock: the webhook comes, is checked, and the film is fetched at once."""
    provider = "replicate/minimax/video-01"
    monkeypatch.setattr(
        "penstock.providers.operating.settings", lambda: settings.Settings(public_url="http://127.0.0.1:1")
    )
    async with app, simulator.serve() as running:
        monkeypatch.setenv("REPLICATE_WEBHOOK_SECRET", running.media.secret)
        monkeypatch.setenv(
            "VIDEO_IDEAS_URLS", f"simulator={running.openai_url} replicate={running.media_url}"
        )
        async with app.connections() as pool:
            job = await start(pool, provider, films)
            await drain.arun(app, concurrency=1)
            [video] = running.media.videos.values()
            assert (video.webhook or "").startswith("http://127.0.0.1:1/webhooks/replicate?operation=")
            headers, body = running.media.signed(video)
            source = app.webhooks["replicate"]
            many = {name: [value] for name, value in headers.items()}
            verify(source.scheme, many, body, list(source.secrets()))
            payload = json.loads(body)
            key, kind = source.identify(payload, many)
            async with database.transaction(pool) as conn:
                delivery = webhooks.Delivery("replicate", key, kind, payload)
                assert not await webhooks.take(conn, delivery)
                assert await inbox.process(conn, source, delivery)
            await drain.arun(app, concurrency=1)
            row, [operation] = await result(pool, job)
    assert (row.state, operation["status"]) == ("succeeded", "completed")
    [line] = db.execute("select outcome from penstock.webhooks")
    assert line["outcome"] == "applied"


@pytest.mark.slow
async def test_filtered_film_fails_once_and_is_not_paid_again(
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    films: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R0.10/bad-answers: a refusal of the provider is a failure with its code, without another attempt."""
    async with app, simulator.serve() as running:
        monkeypatch.setenv("VIDEO_IDEAS_URLS", f"simulator={running.openai_url} runway={running.media_url}")
        async with app.connections() as pool:
            job = await start(pool, "runway/gen4.5", films)
            await drain.arun(app, concurrency=1, kinds=["video_ideas.load", "script"])
            running.configure(answers={"refusal": 1})
            await drain.arun(app, concurrency=1)
            clock.advance(seconds=25)
            await drain.arun(app, concurrency=1)
            row, [operation] = await result(pool, job)
    assert (row.state, row.error_code, operation["status"]) == ("failed", "content_filtered", "failed")
    assert db.execute("select 1 from penstock.cost_entries where meter = 'seconds'") == []
