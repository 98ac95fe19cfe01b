"""The application that makes a book: real texts, PDFs and sounds, by a real worker, from a provider on the wire."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import av
import pypdfium2
import pytest

from penstock import Worker, simulator, testing
from penstock.apps.reading import pages, sound, speech
from penstock.apps.reading.app import app, declare, reading
from penstock.apps.reading.settings import SIMULATOR
from penstock.contract import artifacts, costs, jobs
from penstock.errors import Invalid
from penstock.providers.hosts import OWN
from penstock.storage.objects import Folder
from penstock.types import Artifact, Job

RATE = 22_050  # of espeak-ng's voices


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The app on a folder of the test's own, and nothing of the environment's."""
    for name in ("MODEL", "URL", "VOICE_MODEL", "VOICE_URL", "VOICE"):
        monkeypatch.delenv(f"READING_{name}", raising=False)
    app.storage = Folder(tmp_path / "files", b"s" * 32)
    return app.storage


@asynccontextmanager
async def provider(monkeypatch: pytest.MonkeyPatch, **how: Any) -> AsyncGenerator[simulator.Simulator]:
    """Somebody who writes."""
    async with app, simulator.serve(**how) as running:
        monkeypatch.setenv("READING_URL", running.openai_url)
        await declare()
        yield running


async def state(job_id: Any) -> tuple[Job, list[Artifact]]:
    async with app.connections() as pool:
        return (
            await jobs.get(pool, job_id=job_id),
            await artifacts.list(pool, job_id=job_id, limit=100),
        )


def text_of(pdf: bytes) -> list[str]:
    """The words of each page."""
    document = pypdfium2.PdfDocument(pdf)
    try:
        return [document[number].get_textpage().get_text_bounded() for number in range(len(document))]
    finally:
        document.close()


def is_archival(pdf: bytes) -> bool:
    """Whether it says of itself that it is PDF/A-2a."""
    return b"<pdfaid:part>2</pdfaid:part>" in pdf and b"<pdfaid:conformance>A</pdfaid:conformance>" in pdf


def length(sound: bytes) -> tuple[str, float, int]:
    """What it is, how many seconds it decodes to, and its bit rate."""
    opened: Any
    with av.open(io.BytesIO(sound)) as opened:
        stream = opened.streams.audio[0]
        samples = sum(frame.samples for frame in opened.decode(stream))
        return stream.codec_context.name, samples / stream.rate, opened.bit_rate


# A book


@pytest.mark.slow
async def test_each_chapter_is_written_typeset_and_read_aloud_then_all_are_bound(
    db: testing.Database, drain: testing.Drain, files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1.10/pdf, R1.10/audio, R1.10/book: the documents, one PDF of all, and its metadata. R1.5/phases: the phases' share of the whole. R1.4/path: paths."""
    drain.use(app)
    titles = ["Springs", "Otters", "Harbours"]
    async with provider(monkeypatch) as writer:
        async with app.connections() as pool:
            await costs.set_price(
                pool, provider=SIMULATOR, meter="output_tokens", amount=Decimal(10), per=1000
            )
        started = await reading.options(budget=Decimal(50)).astart(
            "Running Water", titles, "From the spring to the sea", words=150, audio=["mp3", "m4a"]
        )
        seen = [(await started.aget()).progress]
        for kind in ("plan", "text", "pdf", "audio", "book"):
            await drain.arun(app, kinds=[kind], concurrency=2)
            # A task that is retried later would keep the book from starting.
            assert db.execute("select error_code, error_message from penstock.attempts") == []
            seen.append((await started.aget()).progress)
        book = await started.aresult(timeout="5s")
        job, found = await state(started.id)
        async with app.connections() as pool:
            spent = await costs.of_job(pool, job_id=started.id)
        calls = writer.stats()

    assert [(progress.percent, progress.phase) for progress in seen] == [
        (0, "queued"),
        (10, "text"),
        (50, "pdf"),
        (70, "audio"),
        (95, "finalizing"),
        (100, "complete"),
    ]
    # R1.1: documents are counted, and not what is done for them.
    assert [(p.docs_complete, p.docs_total) for p in seen] == [(0, 3)] * 4 + [(3, 3)] * 2
    assert [(p.name, p.weight, p.done, p.total) for p in job.progress.phases] == [
        ("calculating", 10, 1, 1),
        ("text", 40, 3, 3),
        ("pdf", 20, 3, 3),
        ("audio", 25, 3, 3),
        ("finalizing", 5, 1, 1),
    ]
    made = sum(account["output_tokens"] for account in calls["accounts"])
    assert calls["requests"] == 3 and made > 500 and spent.cost == Decimal(made) / 100

    for file in found:
        folder = file.content_type.partition("/")[2].replace("mpeg", "mp3").replace("mp4", "m4a")
        path = rf"{job.tenant_id}/{job.id}/(text|pdf|audio|book)/{file.task_id}-[a-z0-9-]+\.{folder}"
        assert re.fullmatch(path, file.path), file.path
        data = (files.root / file.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.bytes, file.sha256)
    names = sorted(file.name for file in found)
    stems = ["01-springs", "02-otters", "03-harbours"]
    ends = [f"{stem}.{end}" for stem in stems for end in ("json", "m4a", "mp3", "pdf")]
    assert names == [*ends, "running-water.json", "running-water.pdf"]
    said = {file.name: (file.type, file.pages, file.duration) for file in found}

    record = json.loads((files.root / book["metadata"]["path"]).read_bytes())
    assert [chapter["title"] for chapter in record["chapters"]] == titles
    assert record["words"] == book["words"] > 350 and record["documents"] == book["documents"] == 3
    for chapter in record["chapters"]:
        pdf = (files.root / chapter["pdf"]["path"]).read_bytes()
        pages = text_of(pdf)
        assert len(pages) == chapter["pdf"]["pages"] and chapter["title"] in pages[0] and is_archival(pdf)
        mp3, m4a = ((file, length((files.root / file["path"]).read_bytes())) for file in chapter["audio"])
        assert mp3[0]["seconds"] == m4a[0]["seconds"] > 30
        assert said[mp3[0]["name"]] == ("audio_mp3", None, mp3[0]["seconds"])
        assert said[chapter["pdf"]["name"]] == ("pdf", len(pages), None)
        # A codec works in frames: what it adds at both ends is less than a tenth of a second.
        assert mp3[1][0].startswith("mp3") and abs(mp3[1][1] - mp3[0]["seconds"]) < 0.1
        assert abs(mp3[1][2] - 128_000) < 500
        assert m4a[1][0] == "aac" and abs(m4a[1][1] - m4a[0]["seconds"]) < 0.1
    assert record["seconds"] == pytest.approx(sum(c["audio"][0]["seconds"] for c in record["chapters"]))

    whole = (files.root / book["pdf"]["path"]).read_bytes()
    pages = text_of(whole)
    assert is_archival(whole) and len(pages) == book["pages"] == book["pdf"]["pages"]
    assert "Running Water" in pages[0] and "From the spring to the sea" in pages[0]
    assert "Contents" in pages[1] and all(title in pages[1] for title in titles)
    assert "An otter has no blubber" in " ".join(pages[2:]).replace("\r\n", " ")


@pytest.mark.slow
async def test_a_worker_killed_midway_loses_nothing_and_leaves_no_second_record(
    db: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    files: Folder,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    """R1.4/overwrite: an upload repeated by a retry overwrites itself. The worker dies after it, before it could say so."""
    drain.use(app)
    async with provider(monkeypatch):
        started = await reading.astart("Locks", ["Locks", "Weirs"], words=40)
        await drain.arun(app, kinds=["plan", "text"], concurrency=2)
        with db.connect() as holder, holder.transaction():
            # Whoever completes a task counts it here, and now has to wait.
            holder.execute("select 1 from penstock.phases where job_id = %s for update", [started.id])
            command = [
                sys.executable,
                "-m",
                "penstock",
                "worker",
                "penstock.apps.reading.app:app",
                "--concurrency=2",
            ]
            environment = os.environ | {"DATABASE_URL": db.dsn, "PENSTOCK_STORAGE": files.root.as_uri()}
            worker = await asyncio.create_subprocess_exec(
                *command, env=environment, stderr=subprocess.DEVNULL
            )
            query = "select id, path, sha256 from penstock.artifacts where status = 'stored' and path ~ '/(pdf|audio)/'"
            try:
                await eventually.aio(lambda: asyncio.to_thread(lambda: len(db.execute(query)) == 4))
                before = {row["path"]: row for row in db.execute(query)}
            finally:
                worker.kill()
                await worker.wait()
            # What it had sent may still wait for its turn; so it would have been completed after all.
            db.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where wait_event_type = 'Lock'"
                " and datname = current_database()"
            )
        assert (await started.aget()).progress.phase == "pdf"
        clock.advance(minutes=2)
        await drain.arun(app, concurrency=2)
        book = await started.aresult(timeout="5s")
        _, found = await state(started.id)
    assert book["documents"] == 2 and len(found) == 8
    after = {file.path: file for file in found if re.search("/(pdf|audio)/", file.path)}
    assert after.keys() == before.keys()
    for path, row in before.items():
        assert after[path].id == row["id"]
        assert hashlib.sha256((files.root / path).read_bytes()).hexdigest() == after[path].sha256
        # A page is the same to the byte. (The voice is not: how it breathes depends on what it said before.)
        assert after[path].sha256 == row["sha256"] or path.endswith(".mp3")
    lost = db.execute("select distinct outcome, error_code from penstock.attempts")
    assert lost == [{"outcome": "lost", "error_code": "worker_lost"}]
    assert db.execute("select 1 from penstock.artifacts where status <> 'stored'") == []
    assert db.execute("select * from penstock.check_accounts()") == []


@pytest.mark.slow
def test_command_makes_a_book_with_a_worker_and_a_model_of_its_own(
    db: testing.Database, tmp_path: Path
) -> None:
    """Nothing else has to run, and no key is needed; a real model without a key fails with the reason."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("READING_")}
    environment |= {"DATABASE_URL": db.dsn, "PENSTOCK_STORAGE": (tmp_path / "files").as_uri()}
    environment["PENSTOCK_ALLOW_UNSAFE"] = "1"
    for known in OWN.values():
        environment.pop(known.variable, None)

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "penstock.apps.reading", *words],
            env=environment | more, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip

    made = run("Water", "Otters")
    assert made.returncode == 0, made.stdout + made.stderr
    assert f"written by {SIMULATOR}" in made.stdout and "1 chapter, " in made.stdout
    kept = [path.suffix for path in (tmp_path / "files").rglob("*.*") if path.is_file()]
    assert sorted(kept) == [".json", ".json", ".mp3", ".pdf", ".pdf"]
    refused = run("Water", "Otters", READING_MODEL="openai/gpt-5.4-mini")
    assert refused.returncode == 1 and "no_key: there is no key of openai" in refused.stderr
    assert run("Water").returncode == 2
    stopped = run("Water", "Otters", PENSTOCK_ALLOW_UNSAFE="")
    assert stopped.returncode == 1 and "unsafe" in stopped.stderr, (
        "a worker that cannot run is no reason to wait"
    )


HOSTILE = [
    '#import "@preview/cetz:0.3.0"',
    '#read("/etc/passwd")',
    "$ \\ unbalanced [ { ( <label> @ref `raw",
    "\u202egnirts שלום עולם",
    "🎉 漢字 \ue000",
    "{{ title }} %s ../../etc",
]


@pytest.mark.slow
async def test_title_is_never_markup_and_audio_is_optional(
    db: testing.Database, drain: testing.Drain, files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a title or a text is run, included or fetched; files have plain names; no audio, no audio phase."""
    drain.use(app)
    async with provider(monkeypatch):
        started = await reading.astart('"Book" #sys.inputs', HOSTILE, words=30, audio=[])
        await drain.arun(app, concurrency=2)
        book = await started.aresult(timeout="5s")
        job, found = await state(started.id)
    assert {p.name: p.total for p in job.progress.phases}["audio"] == 0
    assert (job.progress.percent, book["seconds"], len(found)) == (100, 0, 2 * len(HOSTILE) + 2)
    pages = " ".join(text_of((files.root / book["pdf"]["path"]).read_bytes()))
    assert '#import "@preview/cetz:0.3.0"' in pages and '#read("/etc/passwd")' in pages
    assert "root:" not in pages and "[ { ( <label> @ref" in pages
    emoji = [file for file in found if file.path.endswith("05-chapter.pdf")]
    assert len(emoji) == 1, [file.path for file in found]
    assert db.execute("select 1 from penstock.attempts") == []


TEXTS: dict[str, Callable[[], str]] = {
    "markup": lambda: '#read("/etc/passwd") $x [ { ( #import "x" \\ <a> @b `c` // /* */',
    "right to left": lambda: "هذا نص عربي طويل " * 50 + "\u202e" + "עברית",
    "no font": lambda: "🎉🇩🇪👨‍👩‍👧 漢字かな交じり文 ",
    "controls": lambda: "a\x01\x07\x1b[31m\ufffe\ue000\u200b\ufeffb",
    "accents": lambda: "a" + "\u0301" * 60_000,
    "100 kB": lambda: "The river runs under the bridge, and nobody asks it why. " * 1800,
    "100 kB without a blank": lambda: "x" * 100_000,
    "empty lines": lambda: "\n" * 50_000,
    "headings": lambda: "## a\n\n" * 300,
    "ssml": lambda: "<speak><break time='60s'/></speak> [[h@loU]] &lt; &#0;",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_hostile_text_is_typeset_and_spoken_literally(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]()
    chapter = {"number": 1, "title": "T", "text": text}
    request = {"title": "B", "date": "2026-03-01", "language": "en", "whole": False, "chapters": [chapter]}
    made = pages.make(request, tmp_path)
    pdf = (tmp_path / made["file"]).read_bytes()
    shown = text_of(pdf)
    assert is_archival(pdf) and len(shown) == made["pages"]
    assert "root:" not in "".join(shown)
    assert (made["replaced"] > 0) == (name == "no font")
    if name == "markup":
        assert '#read("/etc/passwd") $x [ { ( #import "x"' in shown[0]
    if name == "100 kB":
        return  # its sound lasts for an hour and a half, and takes a while
    spoken = sound.make({"paragraphs": ["T", text[:20_000]], "language": "en", "formats": ["mp3"]}, tmp_path)
    _, seconds, _ = length((tmp_path / spoken["files"]["mp3"]).read_bytes())
    assert abs(seconds - spoken["samples"] / RATE) < 0.1
    if name == "ssml":
        assert seconds < 30, "a pause is asked for, and read aloud instead"


# Other providers


@pytest.mark.slow
async def test_other_providers_write_and_speak(
    db: testing.Database, drain: testing.Drain, files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anthropic writes, and what speaks as OpenAI does reads aloud; both are metered as they report."""
    drain.use(app)
    async with provider(monkeypatch) as both:
        monkeypatch.setenv("READING_MODEL", "anthropic/claude-haiku-4-5")
        monkeypatch.setenv("READING_URL", both.anthropic_url)
        monkeypatch.setenv("READING_VOICE_MODEL", "openai/gpt-4o-mini-tts")
        monkeypatch.setenv("READING_VOICE_URL", both.openai_url)
        await declare()
        started = await reading.astart("Mills", ["Mills"], words=50)
        await drain.arun(app, concurrency=2)
        await started.aresult(timeout="5s")
        _, found = await state(started.id)
        accounts = {account["model"]: account for account in both.stats()["accounts"]}
    assert accounts["claude-haiku-4-5"]["requests"] == accounts["gpt-4o-mini-tts"]["requests"] == 1
    [text] = [json.loads((files.root / f.path).read_bytes()) for f in found if "/text/" in f.path]
    [sound] = [(files.root / file.path).read_bytes() for file in found if "/audio/" in file.path]
    used = db.execute(
        "select meter, sum(amount)::int as amount from penstock.usage_days group by meter order by meter"
    )
    amounts = {row["meter"]: row["amount"] for row in used}
    assert amounts["output_tokens"] == accounts["claude-haiku-4-5"]["output_tokens"] == text["output_tokens"]
    # The simulator hums for as long as fifteen characters take a second to say.
    codec, seconds, bit_rate = length(sound)
    assert codec.startswith("mp3") and abs(seconds - amounts["characters"] / 15) < 0.3
    assert abs(bit_rate - 128_000) < 500


async def test_unknown_model_fails_permanently(
    db: testing.Database, drain: testing.Drain, files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain.use(app)
    async with provider(monkeypatch):
        monkeypatch.setenv("READING_MODEL", "house/none-such")
        await declare()
        started = await reading.astart("Mills", ["Mills"], words=50, audio=[])
        await drain.arun(app, concurrency=2)
        job = await started.aget()
    assert job.status == "failed"
    [attempt] = db.execute("select error_code, error_message from penstock.attempts")
    assert attempt["error_code"] == "provider_refused" and "none-such" in attempt["error_message"]


def test_paragraphs_are_split_for_the_speech_api() -> None:
    paragraphs = ["a" * 1500, "b" * 1500, "c" * 1500, "d" * 9000, "e"]
    pieces = speech.pieces(paragraphs)
    assert all(len(piece) <= speech.MOST_CHARACTERS for piece in pieces)
    assert "".join(pieces).replace("\n", "") == "".join(paragraphs)
    assert len(pieces) == 5


# What comes to grief


@pytest.mark.slow
async def test_crash_fails_only_its_task(
    db: testing.Database,
    drain: testing.Drain,
    files: Folder,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Any,
) -> None:
    """A crash of foreign code costs an attempt; the worker goes on, and the next attempt succeeds."""
    drain.use(app)
    async with provider(monkeypatch):
        started = await reading.astart("Mills", ["Mills"], words=30, audio=[])
        worker = Worker(app, concurrency=2)
        working = asyncio.create_task(worker.run())
        [process] = await eventually.aio(multiprocessing.active_children)
        process.kill()
        book = await started.aresult(timeout="30s")
        worker.stop()
        await working
    assert book["pages"] == 3
    [attempt] = db.execute("select error_code, error_message from penstock.attempts")
    assert attempt == {
        "error_code": "process_died",
        "error_message": "the handler's process died with exit code -9",
    }


@pytest.mark.slow
async def test_permanent_errors_are_not_retried(
    db: testing.Database, drain: testing.Drain, files: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain.use(app)
    async with provider(monkeypatch):
        started = await reading.astart("Mills", ["Mills"], words=30, language="xx")
        await drain.arun(app, concurrency=2)
        job = await started.aget()
    assert (job.status, job.progress.succeeded, job.progress.failed) == ("failed", 3, 1)
    [attempt] = db.execute("select error_code, error_message from penstock.attempts")
    assert attempt == {"error_code": "unknown_voice", "error_message": "espeak-ng has no voice for 'xx'"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"chapters": []},
        {"chapters": [""]},
        {"chapters": ["x" * 201]},
        {"title": ""},
        {"language": "../en"},
        {"words": 0},
        {"words": 10_000},
        {"audio": ["wav"]},
    ],
)
def test_invalid_book_is_rejected_before_the_start(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        reading.start(**{"title": "T", "chapters": ["a"], **wrong})
