"""The old names of the intake: configuration, provider limits, statuses, event types, plans; over REST."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import timedelta
from typing import Any

import httpx
import pytest
from PIL import ImageFilter

from penstock import simulator, testing
from penstock.apps.intake import models, passes
from penstock.apps.intake.app import app
from tests.api.conftest import api_settings, bearer
from tests.api.rest.conftest import Node, Person, Site, node
from tests.apps import documents
from tests.apps.test_intake import PDF, ask, site, upload
from tests.apps.test_intake_queue import call, rpc

__all__ = ["api_settings", "node", "site"]

pytestmark = [pytest.mark.slow, pytest.mark.own_sql(app)]


def rows(site: Site, path: str, by: str | None = None) -> list[dict[str, Any]]:
    answer = site.http.get(f"/rest/v1/{path}", headers=bearer(by or site.service_key))
    assert answer.status_code == 200, answer.text
    return answer.json()


def change(site: Site, path: str, by: str | None = None, **values: Any) -> httpx.Response:
    headers = {**bearer(by or site.service_key), "Prefer": "return=representation"}
    return site.http.patch(f"/rest/v1/{path}", json=values, headers=headers)


def configure(site: Site, key: str, value: str) -> httpx.Response:
    return change(site, f"system_configuration?config_key=eq.{key}", config_value=value)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, json.loads(answer.json()["details"])["code"]


def enqueue(site: Site, person: Person, kind: str = "ai_queue_pass1", **more: Any) -> str:
    payload = {"tenant_id": str(person.tenant), "profile_id": str(person.id), **more.pop("payload", {})}
    return call(site, "enqueue_job_v3", job_type=kind, job_name=kind, job_payload=payload, **more)


def state(site: Site, job: str) -> dict[str, Any]:
    [row] = rows(site, f"job_queue?id=eq.{job}")
    return row


# Configuration


def test_configuration_has_its_keys_and_marks_secrets(site: Site) -> None:
    """R3.10/statuses: configuration keys by name, secrets without their value, for the service only."""
    ann = site.join("ann")
    call(site, "define_setting", p_name="intake.clamd_password", p_value="hunter2", p_comment="x")
    found = {row["config_key"]: row for row in rows(site, "system_configuration")}
    assert {key: found[key]["config_value"] for key in found if not key.startswith("intake.")} == {
        "worker.heartbeat_interval_seconds": "30",
        "worker.timeout_seconds": "300",
        "worker.reclaim_jitter_max_seconds": "0",
        "queue.backpressure_delay_seconds": "30",
        "features.usage_tracking_enabled": "true",
        "features.billing_enabled": "true",
        "features.upgrade_prompts_enabled": "false",
        "system.maintenance_mode": "false",
    }
    secret = found["intake.clamd_password"]
    assert (secret["is_sensitive"], secret["config_value"]) == (True, None)
    assert not any(row["is_sensitive"] for key, row in found.items() if key != "intake.clamd_password")
    denied = site.http.get("/rest/v1/system_configuration", headers=bearer(ann.token))
    assert denied.status_code in (401, 403, 404)
    answer = change(site, "system_configuration?config_key=eq.x", ann.token, config_value="1")
    assert answer.status_code in (401, 403, 404)


def test_configuration_takes_effect_at_once(site: Site, clock: testing.Clock) -> None:
    """R3.1/configuration: heartbeat interval, timeout, jitter and backpressure are rows in the database."""
    ann = site.join("ann")
    clock.freeze()
    for key, value in (
        ("worker.heartbeat_interval_seconds", "60"),
        ("worker.timeout_seconds", "600"),
        ("worker.reclaim_jitter_max_seconds", "40"),
        ("queue.backpressure_delay_seconds", "90"),
    ):
        answer = configure(site, key, value)
        assert answer.status_code == 200, answer.text
        [row] = answer.json()
        assert (row["config_key"], row["config_value"]) == (key, value) and row["updated_at"]
    # The timeout: of the claim, and of each heartbeat.
    job = enqueue(site, ann)
    [claimed] = call(site, "claim_next_job_v3", worker_id="w", job_types=["ai_queue_pass1"])
    assert claimed["job_id"] == job
    for _ in range(12):
        clock.advance(seconds=599)
        assert site.db.execute("select penstock.reclaim_stale_tasks() as n") == [{"n": 0}]
        assert call(site, "update_job_heartbeat", p_job_id=job, p_worker_id="w") is True
    # A dead worker's job waits for a random time below the jitter.
    clock.advance(seconds=601)
    assert site.db.execute("select penstock.reclaim_stale_tasks() as n") == [{"n": 1}]
    assert state(site, job)["status"] == "retrying"
    assert call(site, "claim_next_job_v3", worker_id="v", job_types=["ai_queue_pass1"]) == []
    clock.advance(seconds=40)
    site.db.execute("select * from penstock.upkeep()")
    [again] = call(site, "claim_next_job_v3", worker_id="v", job_types=["ai_queue_pass1"])
    assert (again["job_id"], again["retry_count"]) == (job, 1)
    # Backpressure: with its own delay for a provider, or with the default.
    limits = {"requests_per_minute": 10, "backpressure_threshold": 0.8, "backpressure_delay_seconds": None}
    call(site, "set_provider", p_name="openai/gpt-4o-mini", p_values=limits)
    for _ in range(9):
        taken = {"p_provider_name": "openai", "p_api_endpoint": "gpt-4o-mini", "p_estimated_tokens": 1}
        assert call(site, "acquire_api_capacity", **taken) is True
    for delay in (90, 20):
        jobs = [enqueue(site, ann) for _ in range(3)]
        times = site.db.execute(
            "select extract(epoch from p.until - penstock.clock()) as delay from penstock.parked p"
            " where intake._job_id(p.task_id) = any (%s::uuid[])",
            [jobs],
        )
        delays = [float(row["delay"]) for row in times]
        assert len(delays) == 3 and len(set(delays)) == 3, delays
        assert all(delay <= each <= delay + min(delay / 2, 30) + 1 for each in delays), delays
        call(site, "set_provider", p_name="openai/gpt-4o-mini", p_values={"backpressure_delay_seconds": 20})
    assert state(site, enqueue(site, ann, "fast_queue_ocr"))["status"] == "pending"


def test_configuration_rejects_unusable_values(site: Site) -> None:
    for key, value in (
        ("worker.timeout_seconds", "soon"),
        ("worker.timeout_seconds", "40"),
        ("worker.timeout_seconds", "86401"),
        ("worker.heartbeat_interval_seconds", "0"),
        ("worker.heartbeat_interval_seconds", "151"),
        ("worker.reclaim_jitter_max_seconds", "3601"),
        ("features.billing_enabled", "maybe"),
    ):
        assert code(configure(site, key, value)) == (422, "invalid_setting"), (key, value)
    answer = change(site, "system_configuration?config_key=eq.worker.timeout_seconds", description="x")
    assert code(answer) == (422, "read_only_column")
    assert configure(site, "features.billing_enabled", "false").status_code == 200
    modes = site.db.execute("select distinct mode from penstock.meters where name in ('files', 'pages')")
    assert modes == [{"mode": "observe"}]
    assert configure(site, "system.maintenance_mode", "true").status_code == 200
    assert site.db.execute("select penstock.get_setting('maintenance') as value") == [{"value": True}]


def test_rate_limits_by_name(site: Site) -> None:
    """All 23 columns; the windows are counted, and limits are changed as before."""
    path = "api_rate_limits?provider_name=eq.openai&api_endpoint=eq.gpt-4o-mini"
    [row] = rows(site, path)
    assert set(row) == {
        "id", "provider_name", "api_endpoint", "requests_per_minute", "requests_per_hour", "tokens_per_minute",
        "tokens_per_hour", "concurrent_requests", "current_requests_minute", "current_requests_hour",
        "current_tokens_minute", "current_tokens_hour", "active_requests", "minute_reset_at", "hour_reset_at",
        "backpressure_threshold", "backpressure_delay_seconds", "queue_depth_limit", "status",
        "last_rate_limit_hit", "rate_limit_violations", "created_at", "updated_at",
    }  # fmt: skip
    assert (row["requests_per_minute"], row["tokens_per_minute"], row["concurrent_requests"]) == (
        500,
        200000,
        50,
    )
    changed = change(site, path, concurrent_requests=1, requests_per_hour=100)
    assert changed.status_code == 200, changed.text
    taken = {"p_provider_name": "openai", "p_api_endpoint": "gpt-4o-mini", "p_estimated_tokens": 700}
    assert [call(site, "acquire_api_capacity", **taken) for _ in range(2)] == [True, False]
    [row] = rows(site, path)
    counted = [
        row[f"current_{what}_{span}"] for what in ("requests", "tokens") for span in ("minute", "hour")
    ]
    assert (counted, row["active_requests"]) == ([1, 1, 700, 700], 1)
    assert row["minute_reset_at"] < row["hour_reset_at"]
    call(site, "release_api_capacity", **taken, p_actual_tokens=500)
    [row] = rows(site, path)
    assert (row["current_tokens_minute"], row["active_requests"]) == (500, 0)
    assert code(change(site, path, current_requests_minute=0)) == (422, "read_only_column")
    assert code(change(site, path, status="asleep")) == (422, "invalid_provider")
    assert change(site, path, status="maintenance").status_code == 200
    assert call(site, "acquire_api_capacity", **taken) is False
    ann = site.join("ann")
    assert change(site, path, ann.token, status="active").status_code in (401, 403, 404)


# The queue


def test_queue_shows_all_seven_statuses(site: Site, clock: testing.Clock) -> None:
    """R3.10/statuses"""
    ann = site.join("ann")
    kinds = ["fast_queue_ocr", "fast_queue_spatial", "ai_queue_pass1", "ai_queue_pass2", "ai_queue_pass3"]
    running, done, failed, retrying, deferred = (enqueue(site, ann, kind) for kind in kinds)
    pending, canceled = enqueue(site, ann, "audit_cleanup"), enqueue(site, ann, "report_generation")
    later = enqueue(site, ann, "backup_operation", scheduled_at="2100-01-01T00:00:00Z")
    for kind in kinds:
        assert len(call(site, "claim_next_job_v3", worker_id="w", job_types=[kind])) == 1
    by = {"p_worker_id": "w"}
    assert call(site, "complete_job", p_job_id=done, p_job_result={"a": 1}, **by)
    assert call(site, "fail_job", p_job_id=failed, p_error={"message": "no"}, p_permanent=True, **by)
    assert call(site, "fail_job", p_job_id=retrying, p_error={"message": "later"}, **by)
    assert call(site, "reschedule_job", p_job_id=deferred, p_delay_seconds=30, p_reason="full", **by)
    site.db.execute(
        "select penstock.cancel_job(job_id) from penstock.tasks where intake._job_id(id) = %s", [canceled]
    )
    wanted = {
        pending: "pending", running: "processing", done: "completed", failed: "failed", canceled: "cancelled",
        retrying: "retrying", deferred: "deferred", later: "deferred",
    }  # fmt: skip
    found = {row["id"]: row for row in rows(site, "job_queue")}
    assert {job: found[job]["status"] for job in wanted} == wanted
    assert found[done]["job_result"] == {"a": 1} and found[running]["heartbeat_at"]
    assert found[pending]["max_retries"] == 2
    assert found[retrying]["error_details"]["message"] == "later" and found[retrying]["retry_count"] == 1
    assert found[later]["scheduled_at"].startswith("2100-01-01") and not found[running]["error_details"]
    # A task that comes after another one is pending, whatever it waits for.
    file = upload(site, ann, documents.pdf("A letter."))
    [scan] = [row for row in rows(site, "job_queue") if row["job_payload"] == {"shell_file_id": file["id"]}]
    assert (scan["job_type"], scan["status"]) == ("fast_queue_security", "pending")
    tasks = json.dumps(
        [{"kind": "fast_queue_ocr", "key": "a"}, {"kind": "fast_queue_spatial", "after": ["a"]}]
    )
    [job] = site.db.execute(
        "select penstock.start_job('intake', '{}', %s, jsonb_build_object('tenant_id', %s::text)) as id",
        [tasks, str(ann.tenant)],
    )
    [blocked] = site.db.execute(
        "select q.status from intake.job_queue q join penstock.tasks t on intake._job_id(t.id) = q.id"
        " where t.job_id = %s and t.kind = 'fast_queue_spatial'",
        [job["id"]],
    )
    assert blocked == {"status": "pending"}


def test_worker_keeps_its_job_with_heartbeats_every_60_seconds(
    site: Site, node: Node, clock: testing.Clock
) -> None:
    """R3.10/worker: supabase-js, eight heartbeats, one every 60 seconds of the clock, beyond the timeout of 300."""
    ann = site.join("ann")
    clock.freeze()
    job = enqueue(site, ann, "fast_queue_ocr", payload={"beats": 8})
    script = [*node.command("intake_worker.mjs"), site.url, site.service_key, "1"]
    with subprocess.Popen(
        script, env=node.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin and process.stdout
        for _ in range(8):
            assert process.stdout.readline().strip() == "beat true"
            left = site.db.execute("select expires_at - penstock._now() as left from penstock.leases")
            assert left == [{"left": timedelta(seconds=300)}]
            clock.advance(seconds=60)
            assert site.db.execute("select penstock.reclaim_stale_tasks() as n") == [{"n": 0}]
            assert call(site, "claim_next_job_v3", worker_id="thief", job_types=["fast_queue_ocr"]) == []
            process.stdin.write("\n")
            process.stdin.flush()
        calls = json.loads(process.stdout.readline())
    assert [call["got"] for call in calls if call["name"] == "complete_job"] == [True]
    assert [call["got"] for call in calls if call["name"] == "update_job_heartbeat"] == [True] * 9
    assert state(site, job)["status"] == "completed"


# Usage and plans


async def test_events_have_all_nine_types(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.10/event-types: from an upload that is processed, plan changes, and an upload over the limit."""
    ann = site.join("ann")
    file = upload(site, ann, documents.pdf(documents.ENGLISH))
    async with app, simulator.serve() as model:
        monkeypatch.setenv("INTAKE_URL", model.openai_url)
        await drain.arun(app, concurrency=2)
    for plan in ("premium", "free"):
        site.db.execute("select penstock.set_tenant_plan(%s, %s)", [ann.tenant, plan])
    site.db.execute("select penstock.set_limit(%s, 'files', 1)", [ann.tenant])
    for _ in range(3):
        refused = ask(site, ann, action="begin", name="a.pdf", content_type=PDF, bytes=3)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
    events = rows(site, "usage_events?order=created_at", ann.token)
    assert {event["event_type"] for event in events} == {
        "shell_file_uploaded", "shell_file_processed", "ai_processing_started", "ai_processing_completed",
        "page_extracted", "storage_used", "plan_upgraded", "plan_downgraded", "limit_hit",
    }  # fmt: skip
    assert sum(event["event_type"] == "limit_hit" for event in events) == 1
    uploaded = [event for event in events if event["event_type"] == "shell_file_uploaded"]
    assert [event["shell_file_id"] for event in uploaded] == [file["id"]]
    assert uploaded[0]["ip_address"] is None and uploaded[0]["user_agent"] is None
    passes = [event for event in events if event["event_type"].startswith("ai_processing_")]
    assert {event["job_id"] for event in passes} == {file["job_id"]}
    [month] = rows(site, "user_usage_tracking", ann.token)
    assert (month["shell_files_uploaded"], month["total_pages_processed"], month["ai_processing_jobs"]) == (
        1,
        1,
        1,
    )
    assert month["ai_processing_minutes"] > 0 and month["ai_tokens_used"] > 0 and month["updated_at"]
    [seen] = rows(site, f"usage_overview?profile_id=eq.{ann.tenant}")
    assert (seen["files_percent"], seen["is_over_limit"], seen["events"] > 8) == (100, True, True)
    assert site.http.get("/rest/v1/usage_overview", headers=bearer(ann.token)).status_code in (401, 403, 404)


async def test_poor_pages_go_to_the_vision_model(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/pipeline: a scan that OCR cannot read well; pass 1 sees its image, the other passes do not."""
    ann = site.join("ann")
    image = documents.picture(documents.pdf("Potassium 4.2 mmol/L", size="9pt"))
    blurred = documents.png(image.filter(ImageFilter.GaussianBlur(3.2)))
    asked: list[tuple[str, bool]] = []
    complete = models._complete

    async def watch(ctx: Any, wanted: Any, provider: str, url: str | None) -> str:
        asked.append((f"{wanted.schema.name} {provider}", bool(wanted.images)))
        return await complete(ctx, wanted, provider, url)

    monkeypatch.setattr(models, "_complete", watch)
    file = upload(site, ann, blurred, name="scan.png", content_type="image/png")
    async with app, simulator.serve() as model:
        monkeypatch.setenv("INTAKE_URL", model.openai_url)
        await drain.arun(app, concurrency=2)
    found = ask(site, ann, action="status", shell_file_id=file["id"]).json()
    assert found["status"] == "completed", found
    [ocr] = rows(site, f"shell_file_results?shell_file_id=eq.{file['id']}&pass=eq.ocr", ann.token)
    assert ocr["summary"]["poor_pages"] == [1], ocr
    assert asked == [
        ("Identity openai/gpt-4-vision", True),
        ("Facts openai/gpt-4o-mini", False),
        ("Summary openai/gpt-4o-mini", False),
    ]


async def test_all_pages_of_a_long_document_are_searched_for_facts(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/pipeline: pass 2 reads in parts, and the result has the facts and images of all."""
    monkeypatch.setattr(passes, "MOST_CHARACTERS", 500)
    ann, asked = site.join("ann"), list[str]()
    complete = models._complete

    async def watch(ctx: Any, wanted: Any, provider: str, url: str | None) -> str:
        if wanted.schema.name != "Facts":
            return await complete(ctx, wanted, provider, url)
        asked.append(wanted.prompt)
        number = int(re.findall(r"^\[(\d+)\]", wanted.prompt, re.MULTILINE)[-1])
        fact = {"kind": "other", "name": "n", "value": "v", "unit": None, "date": None}
        # The first line is not in the later parts.
        return json.dumps({"facts": [{**fact, "lines": [number]}, {**fact, "lines": [1]}]})

    monkeypatch.setattr(models, "_complete", watch)
    file = upload(site, ann, documents.pages(3))
    async with app, simulator.serve() as model:
        monkeypatch.setenv("INTAKE_URL", model.openai_url)
        await drain.arun(app, concurrency=2)
    found = ask(site, ann, action="status", shell_file_id=file["id"]).json()
    assert found["status"] == "completed", found
    assert sorted(re.findall(r"This is (.*) of the document", "".join(asked))) == [
        f"part {n} of {len(asked)}" for n in range(1, len(asked) + 1)
    ]
    for page in (1, 2, 3):
        assert any(f"Page {page} of the record" in text for text in asked)
    [result] = rows(site, f"shell_file_results?shell_file_id=eq.{file['id']}&pass=eq.pass2", ann.token)
    pages = {place["page"] for fact in result["summary"]["facts"] for place in fact["places"]}
    assert pages == {1, 2, 3} and set(result["summary"]["pictures"]) == {"1", "2", "3"}
    assert len(result["summary"]["facts"]) == len(asked) + 1


def test_addresses_are_kept_only_on_request_and_for_30_days(site: Site, clock: testing.Clock) -> None:
    """S3: the server stores the address that it sees; users cannot name another one."""
    ann, bob = site.join("ann"), site.join("bob")
    data = documents.pdf("A letter.")
    upload(site, ann, data)
    assert configure(site, "intake.keep_addresses", "true").status_code == 200
    file = upload(site, ann, data)
    kept = rows(site, "usage_events?user_agent=not.is.null", ann.token)
    assert [(event["shell_file_id"], event["ip_address"]) for event in kept] == [(file["id"], "127.0.0.1")]
    assert "httpx" in kept[0]["user_agent"]
    assert rows(site, "upload_addresses", bob.token) == []
    spoof = {"p_tenant_id": str(ann.tenant), "p_user_agent": "x", "p_address": "1.2.3.4"}
    begun = rpc(site, ann.token, "begin_shell_file", p_name="a", p_mime_type="application/pdf", p_bytes=9)
    assert begun.status_code == 200, begun.text
    for person in (ann, bob):
        answer = rpc(site, person.token, "note_address", p_id=begun.json()["id"], **spoof)
        assert answer.status_code == 403, answer.text
    assert rows(site, "upload_addresses?ip_address=eq.1.2.3.4", ann.token) == []
    clock.advance(days=31)
    site.db.execute("select intake.sweep_files()")
    assert rows(site, "upload_addresses", ann.token) == []


def test_plans_have_features_and_are_public(site: Site) -> None:
    """R3.10/plan-features: by name; plans with priority_processing have a larger share of the workers."""
    answer = site.http.get("/functions/v1/plans")
    assert answer.status_code == 200, answer.text
    plans = {plan["plan_type"]: plan for plan in answer.json()}
    assert list(plans) == ["free", "basic", "premium", "enterprise"]
    assert [plans[name]["features"] for name in plans] == [
        [],
        ["api_access"],
        ["advanced_ai", "api_access", "priority_processing"],
        ["advanced_ai", "api_access", "priority_processing"],
    ]
    assert [plans[name]["monthly_price_cents"] for name in plans] == [0, 999, 2999, 9999]
    weights = {
        row["name"]: row["weight"]
        for row in site.db.execute("select name, weight from penstock.plans where is_active")
    }
    fast = [weights[name] for name, plan in plans.items() if "priority_processing" in plan["features"]]
    assert min(fast) > max(weights[name] for name in ("free", "basic"))
    ann = site.join("ann")
    site.db.execute("select penstock.set_tenant_plan(%s, 'premium')", [ann.tenant])
    status = rpc(site, ann.token, "get_usage_status").json()
    assert status["features"] == ["advanced_ai", "api_access", "priority_processing"]


def test_purchased_pack_raises_the_limit_until_it_is_used_up(site: Site, clock: testing.Clock) -> None:
    """R3.7/usage: not again in the next month."""
    ann = site.join("ann")
    site.db.execute("select penstock.set_limit(%s, 'files', 1)", [ann.tenant])
    data = documents.pdf("A letter.")
    upload(site, ann, data)
    assert ask(site, ann, action="begin", name="a", content_type=PDF, bytes=3).status_code == 429
    site.db.execute("select penstock.add_allowance(%s, 'files', 2, 'purchase', p_key => 'o1')", [ann.tenant])
    upload(site, ann, data)
    for months in (1, 2):
        clock.advance(days=31)
        upload(site, ann, data)
        if months == 1:
            upload(site, ann, data)
        answer = ask(site, ann, action="begin", name="a", content_type=PDF, bytes=3)
        assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded"), months
