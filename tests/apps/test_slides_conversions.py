"""Thumbnails from end to end: a real worker, real files, and a simulated CloudConvert that misbehaves."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from penstock import Fail, simulator, testing
from penstock.apps.slides import app as slides_app
from penstock.apps.slides import cloudconvert, demo, local, samples
from penstock.apps.slides.app import app, told
from penstock.apps.slides.settings import Settings
from penstock.errors import Invalid
from penstock.postgres import db as database
from penstock.sdk import webhooks
from penstock.simulator import config
from penstock.simulator.cloudconvert import SECRET
from penstock.storage.objects import Folder
from penstock.worker.reconcile import Reconcile

pytestmark = [pytest.mark.every_postgres, pytest.mark.own_sql(app)]

KEY = {"Authorization": "Bearer simulated"}
UNFINISHED = "select 1 from penstock.jobs where type like 'thumbnail%' and finished_at is null"


@pytest.fixture
def slides(
    db: testing.Database, drain: testing.Drain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> testing.Database:
    """The app and its own SQL on the test's database, with a folder for its files."""
    drain.use(app)
    app.storage = Folder(tmp_path / "files", b"s" * 32)
    monkeypatch.setenv("CLOUDCONVERT_API_KEY", "simulated")
    monkeypatch.setenv("CLOUDCONVERT_WEBHOOK_SECRET", SECRET)
    monkeypatch.delenv("SLIDES_PUBLIC_URL", raising=False)
    return db


def width(data: bytes) -> int:
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "PNG"
        return picture.width


class Event:
    """An event of the app's tenant, with slides."""

    def __init__(
        self, db: testing.Database, drain: testing.Drain, clock: testing.Clock | None = None
    ) -> None:
        self._db, self._drain, self._clock = db, drain, clock

    async def prepare(self, count: int, quota: int = 100) -> None:
        async with app.connections() as pool:
            await app.declare(pool)
            self.tenant = await app.tenant_id(pool)
            self.id, self.speech = await demo.make_event(pool, self.tenant)
            await database.rows(pool, "select penstock.set_limit(%s, 'thumbnails', %s)", (self.tenant, quota))
            for number in range(count):
                await demo.add_sample(pool, self.tenant, self.speech, number)

    def toggle(self, enabled: bool = True) -> None:
        self._db.execute("select slides.set_thumbnail_generation(%s, %s)", [self.id, enabled])

    def rows(self) -> list[dict[str, Any]]:
        query = "select * from slides.slides where event_id = %s order by created_at"
        return [dict(row) for row in self._db.execute(query, [self.id])]

    def states(self) -> list[str]:
        return sorted(row["thumbnail_status"] for row in self.rows())

    async def run_until(self, is_done: Callable[[], bool], step: float = 31) -> None:
        """Run the worker and advance the clock until the condition holds."""
        for _ in range(60):
            await self._drain.arun(app)
            if is_done():
                return
            await asyncio.sleep(0.05)  # conversions run in this loop
            if self._clock is not None:
                self._clock.advance(seconds=step)
        pytest.fail(f"states: {self.states()}")

    def account(self) -> tuple[int, int]:
        query = "select used, held from penstock.accounts where tenant_id = %s and meter = 'thumbnails' and job_id is null"
        [row] = self._db.execute(query, [self.tenant])
        assert self._db.execute("select * from penstock.check_accounts()") == []
        return int(row["used"]), int(row["held"])


async def test_event_gets_real_thumbnails_by_polling(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.3/polling, R4.4/states, R4.6/content: four types of files, and no webhook ever comes."""
    async with simulator.serve() as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(4)
        event.toggle()
        await event.run_until(lambda: event.states() == ["completed"] * 4)
        for row in event.rows():
            assert width(await app.storage.read(row["thumbnail_r2_key"], limit=1 << 20)) == 480
            subject = slides.execute(
                "select subject from penstock.artifacts where id = %s", [row["thumbnail_artifact_id"]]
            )
            assert subject[0]["subject"] == f"slides.slide:{row['id']}", "the thumbnail is kept"
        assert sim.cloudconvert.stats()["conversions"] == sim.cloudconvert.stats()["jobs"] == 4
        assert event.account() == (4, 0)
        [cost] = slides.execute("select sum(amount) as amount, count(*) as lines from penstock.cost_entries")
        assert (float(cost["amount"]), cost["lines"]) == (0.08, 4)
        seen = slides.execute("select distinct status from slides.cloudconvert_jobs")
        assert [row["status"] for row in seen] == ["completed"]


@pytest.mark.slow
async def test_quota_is_never_exceeded_and_failures_alert_once(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.9/free, R4.5/alert, R4.5/one-per-streak: twenty slides, five in quota."""
    async with simulator.serve() as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(20, quota=5)
        slides.execute(
            "select penstock.set_notification_target('email', 'ops@tests.example', array['alert'], jsonb_build_object('tenant_id', %s::text))",
            [event.tenant],
        )  # fmt: skip
        event.toggle()
        await event.run_until(lambda: event.states() == ["completed"] * 5 + ["failed"] * 15)
        assert sim.cloudconvert.stats()["jobs"] == 5
        assert event.account() == (5, 0)
        types = slides.execute("select distinct error_type from slides.thumbnail_failure_log")
        assert [row["error_type"] for row in types] == ["quota_exceeded"]
        mails = slides.execute("select 1 from penstock.notifications where event = 'alert'")
        assert 1 <= len(mails) <= 6, "at most one per streak: a success ends one"
        # A pack: the others follow.
        slides.execute("select slides.purchase_thumbnail_quota(%s, 15, 'pack')", [event.tenant])
        assert slides.execute("select slides.retry_event(%s) as n", [event.id])[0]["n"] == 15
        await event.run_until(lambda: event.states() == ["completed"] * 20)
        assert event.account() == (20, 0)


@pytest.mark.parametrize("provider", ["cloudconvert/jobs", local.PROVIDER])
async def test_thumbnail_of_a_run_that_ended_too_early_is_counted_once(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:  # fmt: skip
    """R4.1/reserve: the slide has its thumbnail, its task has not ended; the next run makes no other."""
    done: list[str] = []
    call = slides_app._call

    async def break_off(function: str, *values: Any) -> Any:
        found = await call(function, *values)
        done.append(function)
        if function == "finish_thumbnail" and done.count(function) == 1:
            raise ConnectionError("the worker dies")
        return found

    monkeypatch.setattr(slides_app, "_call", break_off)
    async with simulator.serve() as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(0, quota=5)
        async with app.connections() as pool:
            await demo.add_sample(pool, event.tenant, event.speech, 2)
        slides.execute("select penstock.set_setting('slides.provider', to_jsonb(%s::text))", [provider])
        event.toggle()
        await event.run_until(lambda: slides.execute(UNFINISHED) == [] and event.states() == ["completed"])
        assert done.count("finish_thumbnail") == 1, done
        assert event.account() == (1, 0)
        [output] = slides.execute(
            "select r.output from penstock.results r join penstock.tasks t on t.job_id = r.job_id and t.id = r.task_id"
            " where t.kind = 'thumbnail'"
        )
        assert output["output"]["artifact_id"] == str(event.rows()[0]["thumbnail_artifact_id"])


async def test_failed_conversion_gives_its_quota_back(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.9/refund."""
    async with simulator.serve(cloudconvert={"job_faults": {"error": 1}}) as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(1, quota=5)
        event.toggle()
        await event.run_until(lambda: event.states() == ["failed"])
        assert event.account() == (0, 0)
        [row] = slides.execute("select * from slides.thumbnail_failure_log")
        assert (row["error_type"], row["error_message"]) == (
            "invalid_format",
            "The input file could not be read.",
        )
        sim.configure(cloudconvert={})
        slides.execute("select slides.retry_thumbnail(%s)", [event.rows()[0]["id"]])
        await event.run_until(lambda: event.states() == ["completed"])
        assert event.account() == (1, 0)


@pytest.mark.slow
async def test_stuck_conversion_times_out_and_is_tried_again(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.3/timeout, R4.9/error-types."""
    clock.freeze()
    async with simulator.serve(cloudconvert={"job_faults": {"stuck": 1}}) as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        await event.run_until(lambda: event.states() == ["failed"], step=61)
        assert sim.cloudconvert.stats()["jobs"] + sim.cloudconvert.stats()["canceled"] == 3
        [row] = slides.execute("select error_type from slides.thumbnail_failure_log")
        assert row["error_type"] == "webhook_timeout"
        assert event.account() == (0, 0)


@pytest.mark.parametrize("fault", ["402", "429", "500"])
async def test_refused_submission_is_retried_without_a_charge(
    slides: testing.Database,
    drain: testing.Drain,
    clock: testing.Clock,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """R4.3/idempotent: no job exists, and the slide gets its thumbnail when the provider answers again."""
    async with simulator.serve(cloudconvert={"faults": {fault: 1}}) as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        await event.run_until(lambda: sum(sim.cloudconvert.stats()["statuses"].values()) >= 1)
        assert sim.cloudconvert.stats()["jobs"] == 0
        sim.configure(cloudconvert={})
        slides.execute("select penstock.open_provider('cloudconvert/jobs')")
        await event.run_until(lambda: event.states() == ["completed"])
        assert sim.cloudconvert.stats()["jobs"] == 1
        assert event.account() == (1, 0)


async def test_rejected_submission_leaves_no_live_operation(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.3/one-live: the operation of a task that failed permanently ends with it, so the slide can be retried."""
    async with simulator.serve() as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url + "/nothing")
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        await event.run_until(lambda: event.states() == ["failed"])
        [row] = slides.execute("select error_type from slides.thumbnail_failure_log")
        assert row["error_type"] == "cloudconvert_api_error"
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        slides.execute("select slides.retry_thumbnail(%s)", [event.rows()[0]["id"]])
        await event.run_until(lambda: event.states() == ["completed"])
        assert event.account() == (1, 0)


@pytest.mark.slow
async def test_lost_answer_makes_no_second_job(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.3/idempotent: the job exists, its id is lost, and its file was never sent."""
    monkeypatch.setenv("SLIDES_ANSWER_SECONDS", "0.5")
    async with simulator.serve(cloudconvert={"faults": {"timeout": 1}}) as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        await event.run_until(lambda: sim.cloudconvert.stats()["jobs"] == 1, step=0)
        sim.configure(cloudconvert={})
        await event.run_until(lambda: event.states() == ["completed"])
        assert sim.cloudconvert.stats()["jobs"] == sim.cloudconvert.stats()["conversions"] == 1


@pytest.mark.slow
async def test_toggle_off_skips_queued_slides_without_a_charge(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.9/toggle-off."""
    async with simulator.serve() as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(0)
        event.toggle()
        async with app.connections() as pool:
            await demo.add_sample(pool, event.tenant, event.speech, 2)
        assert event.states() == ["pending"]
        event.toggle(False)
        await event.run_until(lambda: event.states() == ["none"])
        assert sim.cloudconvert.stats()["jobs"] == 0
        assert event.account() == (0, 0)


async def test_slide_deleted_in_flight_is_charged_and_nothing_else(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conversion ends normally, and its thumbnail is not kept."""
    async with simulator.serve() as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        in_flight = "select 1 from penstock.operations where status = 'processing'"
        await event.run_until(lambda: bool(slides.execute(in_flight)), step=0)
        slides.execute("select slides.delete_slide(id) from slides.slides")
        await event.run_until(lambda: not slides.execute(in_flight))
        await event.run_until(lambda: not slides.execute(UNFINISHED))
        [ended] = slides.execute("select status from penstock.operations")
        assert (ended["status"], event.rows(), event.account()) == ("completed", [], (1, 0))
        [cost] = slides.execute("select sum(amount) as amount from penstock.cost_entries")
        assert float(cost["amount"]) == 0.02
        assert slides.execute("select 1 from penstock.artifacts where kept_until is not null") == []
        assert sim.cloudconvert.stats()["conversions"] == 1


@pytest.mark.slow
async def test_success_after_all_attempts_is_found_without_a_webhook(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.3/late-success: reconciliation asks CloudConvert, and the slide that failed gets its thumbnail."""
    clock.freeze()
    async with simulator.serve(cloudconvert={"job_faults": {"stuck": 1}}) as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        # CloudConvert does not take the cancellation either.
        monkeypatch.setattr(cloudconvert.Client, "cancel", lambda *_: asyncio.sleep(0))
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        await event.run_until(lambda: event.states() == ["failed"], step=61)
        assert event.account() == (0, 0)
        sim.configure(cloudconvert={})
        await sim.cloudconvert._convert(list(sim.cloudconvert.jobs.values())[1])
        clock.advance(minutes=11)
        async with app.connections() as pool:
            assert await Reconcile(pool, app).once() == 3
        await event.run_until(lambda: event.states() == ["completed"])
        assert event.account() == (1, 0)
        found = slides.execute("select status, is_late from penstock.operations order by number")
        assert [tuple(row.values()) for row in found] == [
            ("timeout", False), ("completed", True), ("timeout", False),
        ]  # fmt: skip


async def test_conversion_of_a_canceled_job_is_canceled_at_cloudconvert(
    slides: testing.Database, drain: testing.Drain, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with simulator.serve(cloudconvert={"job_faults": {"stuck": 1}}) as sim, app:
        monkeypatch.setenv("CLOUDCONVERT_URL", sim.cloudconvert_url)
        event = Event(slides, drain, clock)
        await event.prepare(1)
        event.toggle()
        in_flight = "select job_id from penstock.operations where status = 'processing'"
        await event.run_until(lambda: bool(slides.execute(in_flight)), step=0)
        slides.execute("select penstock.cancel_job(%s)", [slides.execute(in_flight)[0]["job_id"]])
        await event.run_until(lambda: not slides.execute(in_flight))
        async with app.connections() as pool:
            assert await Reconcile(pool, app).once() == 1
        assert sim.cloudconvert.stats()["canceled"] == 1
        assert event.account() == (0, 0)


@pytest.mark.skipif(
    local.soffice() is None, reason="LibreOffice is not installed: apt install libreoffice-impress"
)
@pytest.mark.slow
def test_libreoffice_converts_a_presentation(tmp_path: Path) -> None:
    """R4.6/content."""
    source, target = tmp_path / "a.pptx", tmp_path / "a.png"
    source.write_bytes(samples.presentation("Rivers", "from the spring to the sea"))
    local.convert(str(source), samples.PPTX, str(target))
    assert width(target.read_bytes()) == 480


@pytest.mark.parametrize(("number", "kind"), [(1, "application/pdf"), (2, "image/png"), (3, "image/jpeg")])
def test_local_converter_renders_pictures_and_pdf(tmp_path: Path, number: int, kind: str) -> None:
    """R4.6/content."""
    source, target = tmp_path / "slide", tmp_path / "a.png"
    source.write_bytes(samples.make(number)[2])
    local.convert(str(source), kind, str(target))
    assert width(target.read_bytes()) == 480
    source.write_bytes(source.read_bytes()[:60])
    with pytest.raises(local.Damaged):
        local.convert(str(source), kind, str(target))


def test_local_converter_says_that_libreoffice_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "soffice", lambda: None)
    with pytest.raises(local.Missing, match="apt install libreoffice-impress"):
        local.convert(str(tmp_path / "a.pptx"), samples.PPTX, str(tmp_path / "a.png"))


async def test_webhook_of_an_unknown_job_is_kept_as_unmatched(slides: testing.Database) -> None:
    """R4.3/deliveries: nothing is charged, and the inbox tries it again."""
    async with app, app.connections() as pool, database.transaction(pool) as conn:
        for tag in ("not a uuid", None, "018f0000-0000-7000-8000-000000000000"):
            payload = {"event": "job.finished", "job": {"id": "x", "tag": tag, "status": None}}
            assert (
                await told(webhooks.Event("cloudconvert", "x", "job.finished", payload, conn)) == "unmatched"
            )
            assert await told(webhooks.Event("cloudconvert", "x", "job.created", payload, conn)) == "ignored"


# The wire


async def test_wire_refuses_what_cloudconvert_refuses() -> None:
    async with (
        simulator.serve() as sim,
        httpx.AsyncClient(base_url=sim.cloudconvert_url, trust_env=False) as http,
    ):
        assert (await http.get("/jobs")).status_code == 401
        assert (await http.get("/nothing", headers=KEY)).status_code == 404
        assert (await http.get("/jobs/unknown", headers=KEY)).status_code == 404
        for body in ("", "[]", '{"tasks": {}}', '{"tasks": {"a": {"operation": "import/upload"}}}',
                     '{"tasks": {"a": {"operation": "thumbnail", "input": "b"}}}'):  # fmt: skip
            answer = await http.post("/jobs", headers=KEY, content=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_DATA")
        sim.configure(cloudconvert={"credits": 0, "requests_per_minute": 1000})
        tasks = {"a": {"operation": "import/upload"}, "b": {"operation": "thumbnail", "input": "a"}}
        answer = await http.post("/jobs", headers=KEY, json={"tasks": tasks})
        assert (answer.status_code, answer.json()["code"]) == (402, "CREDITS_EXCEEDED")
        sim.configure(cloudconvert={"requests_per_minute": 1})
        statuses = [(await http.get("/users/me", headers=KEY)).status_code for _ in range(5)]
        assert 429 in statuses and sim.cloudconvert.stats()["violations"] > 0


async def test_file_at_an_address_without_https_is_refused() -> None:
    """A slide is neither sent nor fetched in clear text, nor from this machine."""
    chosen = Settings(
        url="https://api.cloudconvert.com/v2",
        key="k",
        webhook_url=None,
        timeout=300,
        checks=(),
        answer_timeout=5,
    )
    form = {"form": {"url": "http://127.0.0.1:1/up", "parameters": {}}}
    job: dict[str, Any] = {
        "tasks": [
            {"name": "import", "status": "waiting", "result": form},
            {"name": "export", "result": {"files": [{"url": "http://169.254.169.254/x"}]}},
        ]
    }
    async with cloudconvert.connect(chosen) as client:
        for call in (client.upload(job, "a", b"a"), client.download(job)):
            with pytest.raises(Fail) as refused:
                await call
            assert refused.value.code == "cloudconvert_api_error"


async def test_wire_exports_a_file_for_a_time_only() -> None:
    moment = [1000.0]
    async with simulator.serve(clock=lambda: moment[0]) as sim, httpx.AsyncClient(trust_env=False) as http:
        url = sim.cloudconvert_url
        tasks = {
            "import": {"operation": "import/upload"},
            "thumb": {"operation": "thumbnail", "input": "import", "output_format": "png", "width": 64},
            "export": {"operation": "export/url", "input": "thumb"},
        }
        job = (await http.post(f"{url}/jobs", headers=KEY, json={"tag": "t", "tasks": tasks})).json()["data"]
        form = job["tasks"][0]["result"]["form"]
        data = samples.picture("a", "PNG")
        sent = await http.post(form["url"], data=form["parameters"], files={"file": ("a.png", data)})
        assert sent.status_code == 201
        for _ in range(200):
            job = (await http.get(f"{url}/jobs/{job['id']}", headers=KEY)).json()["data"]
            if job["status"] == "finished":
                break
            await asyncio.sleep(0.05)
        file = job["tasks"][2]["result"]["files"][0]
        assert width((await http.get(file["url"])).content) == 64
        moment[0] += 3601
        assert (await http.get(file["url"])).status_code == 403
        found = (await http.get(f"{url}/jobs", headers=KEY, params={"filter[tag]": "t"})).json()["data"]
        assert [each["id"] for each in found] == [job["id"]]
        assert (await http.delete(f"{url}/jobs/{job['id']}", headers=KEY)).status_code == 204


def test_shares_of_faults_must_not_exceed_one() -> None:
    with pytest.raises(Invalid, match="more than 1"):
        simulator.Simulator(config.read({"cloudconvert": {"webhook_faults": {"lost": 0.7, "late": 0.4}}}))
