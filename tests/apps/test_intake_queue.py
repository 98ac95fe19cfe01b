"""Usage, plans and the queue of the intake, by the names that its clients know."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import testing
from penstock.apps.intake import duties
from penstock.apps.intake.app import app
from tests.api.conftest import api_settings, bearer
from tests.api.rest.conftest import Node, Person, Site, node
from tests.apps import documents
from tests.apps.test_intake import PDF, ask, begin, site, upload, used

__all__ = ["api_settings", "node", "site"]

pytestmark = [pytest.mark.slow, pytest.mark.own_sql(app)]

TYPES = [
    "fast_queue_security",
    "fast_queue_ocr",
    "fast_queue_spatial",
    "ai_queue_pass1",
    "ai_queue_pass2",
    "ai_queue_pass3",
    "audit_cleanup",
    "notification_delivery",
    "report_generation",
    "backup_operation",
    "system_maintenance",
    "consent_verification",
]


def rpc(site: Site, by: str, name: str, **arguments: Any) -> httpx.Response:
    return site.http.post(f"/rest/v1/rpc/{name}", json=arguments, headers=bearer(by))


def call(site: Site, name: str, **arguments: Any) -> Any:
    """Call a function as the service."""
    answer = rpc(site, site.service_key, name, **arguments)
    assert answer.is_success, answer.text
    return answer.json() if answer.content else None


def usage(site: Site, person: Person) -> dict[str, Any]:
    answer = rpc(site, person.token, "get_user_usage_status", p_profile_id=str(person.id))
    assert answer.status_code == 200, answer.text
    return answer.json()


# Usage


def test_uploads_count_and_the_limit_holds(site: Site) -> None:
    """R3.7/usage: ten files of a free plan, and the eleventh is refused before a byte is sent."""
    ann = site.join("ann")
    site.db.execute("select penstock.set_tenant_plan(%s, 'free')", [ann.tenant])
    data = documents.pdf("A letter.")
    for number in range(10):
        upload(site, ann, data, idempotency_key=str(number))
    found = usage(site, ann)
    assert found["usage"]["shell_files"] == {"used": 10, "limit": 10, "percentage": 100.0}
    assert found["usage"]["storage"]["used_mb"] == round(10 * len(data) / 1048576, 2)
    assert found["status"] == {"plan_type": "free", "over_limit": True, "upgrade_required": False}
    answer = ask(site, ann, action="begin", name="a.pdf", content_type=PDF, bytes=3)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    # A plan counts at once.
    site.db.execute("select penstock.set_tenant_plan(%s, 'basic')", [ann.tenant])
    assert usage(site, ann)["usage"]["shell_files"]["limit"] == 100
    begin(site, ann, data)
    rows = site.http.get("/rest/v1/user_usage_tracking", headers=bearer(ann.token)).json()
    [row] = rows
    assert (row["shell_files_uploaded"], row["shell_files_limit"], row["warnings_sent"]) == (10, 100, 2)
    assert site.db.execute("select * from penstock.check_accounts()") == []


def test_warnings_are_sent_at_80_and_100_percent_once(site: Site) -> None:
    """R3.10/warnings"""
    ann = site.join("ann")
    site.db.execute(
        "select penstock.set_limit(%s, m, 5) from unnest(array['files', 'tokens']) as m", [ann.tenant]
    )
    call(site, "set_notification_target", p_channel="email", p_address="ann@example.com",
         p_options={"tenant_id": str(ann.tenant)})  # fmt: skip

    def sent(meter: str) -> list[str]:
        query = "select subject from penstock.notifications where tenant_id = %s and subject like %s order by subject"
        return [row["subject"] for row in site.db.execute(query, [ann.tenant, f"%limit of {meter} %"])]

    data = documents.pdf("A letter.")
    last: dict[str, Any] = {}
    counts: list[int] = []
    for number in range(5):
        last = upload(site, ann, data, idempotency_key=str(number))
        counts.append(len(sent("files")))
    assert counts == [0, 0, 0, 1, 2]
    assert sent("files") == ["100 % of your limit of files is used", "80 % of your limit of files is used"]
    site.db.execute("select intake._warn_limits(%s)", [ann.tenant])
    assert len(sent("files")) == 2
    # What the passes of a file used counts when it ends, not at the next upload.
    site.db.execute(
        "select penstock.record_usage('{\"tokens\": 4}', p_tenant_id => %s, p_action => 'x')", [ann.tenant]
    )
    site.db.execute("select penstock.cancel_job(%s)", [last["job_id"]])
    site.db.execute("select intake.sweep_files()")
    assert sent("tokens") == ["80 % of your limit of tokens is used"]


def test_usage_of_others_is_forbidden(site: Site) -> None:
    """R3.7/own-status"""
    ann, bob = site.join("ann"), site.join("bob")
    file = upload(site, ann, documents.pdf("A letter."))
    for name, arguments in (
        ("get_user_usage_status", {"p_profile_id": str(ann.id)}),
        ("track_shell_file_upload_usage", {"p_profile_id": str(ann.id), "p_shell_file_id": file["id"]}),
    ):
        assert rpc(site, bob.token, name, **arguments).status_code == 403
        assert rpc(site, site.service_key, name, **arguments).status_code == 200
    own = rpc(
        site, bob.token, "track_shell_file_upload_usage", p_profile_id=str(bob.id), p_shell_file_id=file["id"]
    )
    assert own.status_code == 404
    tokens = {"p_profile_id": str(ann.id), "p_job_id": str(uuid.uuid4()), "p_tokens_used": 5}
    assert rpc(site, ann.token, "track_ai_processing_usage", **tokens).status_code in (403, 404)
    assert site.http.get("/rest/v1/user_usage_tracking", headers=bearer(bob.token)).json() == []
    assert site.http.get("/rest/v1/usage_events", headers=bearer(bob.token)).json() == []


def test_tracking_twice_counts_once(site: Site) -> None:
    ann = site.join("ann")
    file = upload(site, ann, documents.pdf("A letter."))
    for _ in range(2):
        found = call(
            site, "track_shell_file_upload_usage", p_profile_id=str(ann.id), p_shell_file_id=file["id"]
        )
    assert (found["shell_files_used"], found["over_limit"]) == (1, False)
    job = str(uuid.uuid4())
    for _ in range(2):
        counted = call(site, "track_ai_processing_usage", p_profile_id=str(ann.id), p_job_id=job,
                       p_tokens_used=700, p_processing_seconds=90)  # fmt: skip
    assert (counted["ai_tokens_used"], counted["ai_processing_jobs"]) == (700, 1)
    assert used(site, ann.tenant)["minutes"][0] == 1.5


def test_features_are_switched(site: Site) -> None:
    """R3.7/flags"""
    ann = site.join("ann")
    site.db.execute("select penstock.set_limit(%s, 'files', 1)", [ann.tenant])
    data = documents.pdf("A letter.")
    upload(site, ann, data)
    call(site, "set_feature", p_name="upgrade_prompts", p_is_on=True)
    assert usage(site, ann)["status"]["upgrade_required"] is True
    assert ask(site, ann, action="begin", name="a", content_type=PDF, bytes=3).status_code == 429
    call(site, "set_feature", p_name="billing", p_is_on=False)
    upload(site, ann, data)
    assert used(site, ann.tenant)["files"] == (2, 0)
    call(site, "set_feature", p_name="usage_tracking", p_is_on=False)
    upload(site, ann, data)
    assert usage(site, ann) == {"tracking_disabled": True}
    assert used(site, ann.tenant)["files"] == (2, 0)
    wrong = rpc(site, site.service_key, "set_feature", p_name="magic", p_is_on=True)
    assert (wrong.status_code, json.loads(wrong.json()["details"])["code"]) == (422, "unknown_feature")
    assert rpc(site, ann.token, "set_feature", p_name="billing", p_is_on=True).status_code in (403, 404)


def test_events_have_the_types_of_the_seed(site: Site) -> None:
    """R3.7/events: uploads, storage, limits and plan changes; the other types are in the test of the pipeline."""
    ann = site.join("ann")
    site.db.execute("select penstock.set_limit(%s, 'files', 1)", [ann.tenant])
    call(site, "set_feature", p_name="billing", p_is_on=False)
    data = documents.pdf("A letter.")
    first = upload(site, ann, data)
    upload(site, ann, data)
    for plan in ("premium", "basic"):
        site.db.execute("select penstock.set_tenant_plan(%s, %s)", [ann.tenant, plan])
    events = site.http.get("/rest/v1/usage_events?order=created_at", headers=bearer(ann.token)).json()
    assert {event["event_type"] for event in events} == {
        "shell_file_uploaded", "storage_used", "limit_hit", "plan_upgraded", "plan_downgraded",
    }  # fmt: skip
    uploads = [event for event in events if event["event_type"] == "shell_file_uploaded"]
    assert first["id"] in {event["shell_file_id"] for event in uploads} and len(uploads) == 2


def test_plans_are_listed(site: Site) -> None:
    ann = site.join("ann")
    plans = site.http.get("/rest/v1/subscription_plans?order=sort_order", headers=bearer(ann.token)).json()
    limits = {
        plan["plan_type"]: (plan["shell_files_limit"], plan["pages_limit"], plan["storage_limit_mb"])
        for plan in plans
    }
    assert limits["free"] == (10, 100, 100) and limits["enterprise"] == (None, None, None)


# The queue


def test_queue_functions_by_name(site: Site) -> None:
    """R3.10/queue-functions, R3.10/job-types: twelve types, highest priority first, lost jobs answer false."""
    ann = site.join("ann")
    payload = {"tenant_id": str(ann.tenant), "n": 1}
    for kind in TYPES:
        assert call(site, "enqueue_job_v3", job_type=kind, job_name=kind, job_payload=payload)
    urgent = call(
        site, "enqueue_job_v3", job_type="fast_queue_ocr", job_name="urgent", job_payload=payload, priority=9
    )
    [job] = call(site, "claim_next_job_v3", worker_id="w", job_types=["fast_queue_ocr"])
    assert (job["job_id"], job["job_type"], job["retry_count"]) == (urgent, "fast_queue_ocr", 0)
    assert job["job_payload"] == {**payload, "estimated_tokens": 1000}
    beat = {"p_job_id": urgent, "p_worker_id": "w"}
    assert call(site, "update_job_heartbeat", **beat) is True
    assert call(site, "update_job_heartbeat", **beat | {"p_worker_id": "v"}) is False
    assert call(site, "complete_job", p_job_id=urgent, p_worker_id="v") is False
    assert (
        call(site, "reschedule_job", p_job_id=urgent, p_delay_seconds=30, p_reason="later", p_worker_id="v")
        is False
    )
    assert call(site, "reschedule_job", p_job_id=urgent, p_delay_seconds=30, p_reason="later") is True
    assert call(site, "complete_job", p_job_id=urgent, p_worker_id="w") is False
    [other] = call(site, "claim_next_job_v3", worker_id="w", job_types=["fast_queue_ocr"])
    assert (
        call(site, "complete_job", p_job_id=other["job_id"], p_worker_id="w", p_job_result={"a": 1}) is True
    )
    [bad] = call(site, "claim_next_job_v3", worker_id="w", job_types=["ai_queue_pass1"])
    error = {"code": "bad_page", "message": "no"}
    assert (
        call(site, "fail_job", p_job_id=bad["job_id"], p_worker_id="w", p_error=error, p_permanent=True)
        is True
    )
    assert call(site, "fail_job", p_job_id=bad["job_id"], p_worker_id="v", p_error=error) is False
    rows = site.http.get("/rest/v1/job_queue", headers=bearer(site.service_key)).json()
    states = {row["id"]: (row["status"], row["priority"]) for row in rows}
    assert len(rows) == 13
    assert states[urgent] == ("deferred", 9) and states[other["job_id"]] == ("completed", 5)
    assert states[bad["job_id"]] == ("failed", 5)
    [dead] = [row for row in rows if row["id"] == bad["job_id"]]
    assert dead["dead_letter_at"] and dead["error_details"] == error
    assert rpc(site, ann.token, "claim_next_job_v3", worker_id="w").status_code in (403, 404)
    assert site.http.get("/rest/v1/job_queue", headers=bearer(ann.token)).status_code in (403, 404)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"job_type": "mining"}, "invalid_job_type"),
        ({"job_payload": {}}, "invalid_payload"),
        ({"job_payload": {"n": 1}}, "invalid_payload"),
        ({"job_payload": {"tenant_id": "x"}}, "invalid_payload"),
        ({"priority": 11}, "invalid"),
        ({"job_payload": {"tenant_id": str(uuid.UUID(int=1)), "estimated_tokens": "many"}}, "invalid"),
    ],
)
def test_bad_jobs_are_refused(site: Site, changes: dict[str, Any], code: str) -> None:
    body = {"job_type": "fast_queue_ocr", "job_name": "x", "job_payload": {"tenant_id": str(uuid.uuid4())}}
    answer = rpc(site, site.service_key, "enqueue_job_v3", **body | changes)
    assert (answer.status_code, json.loads(answer.json()["details"])["code"]) == (422, code), answer.text


# The class as its authors wrote it.
ORIGINAL_WORKER = "3e0a10a240722957210d354c02a5f02d8a69a1a62a1c26d04745ee5272626bb8"


def work_as_original(site: Site, node: Node, rounds: int) -> list[tuple[str, Any]]:
    """Run the original worker; what it asked over the wire, and what it was told."""
    calls = json.loads(node("intake_worker.mjs", site.url, site.service_key, str(rounds)))
    assert all(call.get("status", 200) in (200, 204) for call in calls), calls
    return [(call["name"], call.get("got")) for call in calls if call["name"] != "log"]


def test_original_worker_runs_unchanged_with_supabase_js(site: Site, node: Node) -> None:
    """R3.10/worker: its TypeScript class: heartbeat, capacity, complete, usage, reschedule, failure, release."""
    source = (Path(__file__).parents[1] / "api/rest/supabase_js/guardian_worker.ts").read_bytes()
    assert hashlib.sha256(source).hexdigest() == ORIGINAL_WORKER
    ann = site.join("ann")
    payload = {"tenant_id": str(ann.tenant), "profile_id": str(ann.id)}

    def enqueue(kind: str, **more: Any) -> str:
        return call(site, "enqueue_job_v3", job_type=kind, job_name="a", job_payload=payload | more)

    def state(job: str) -> dict[str, Any]:
        rows = site.http.get(f"/rest/v1/job_queue?id=eq.{job}", headers=bearer(site.service_key)).json()
        return rows[0]

    done = enqueue("ai_queue_pass1")
    [claim, *asked] = work_as_original(site, node, 1)
    assert claim[1][0]["job_id"] == done
    [usage] = [got for name, got in asked if name == "track_ai_processing_usage"]
    assert asked == [
        ("update_job_heartbeat", True), ("acquire_api_capacity", True), ("complete_job", True),
        ("track_ai_processing_usage", usage), ("release_api_capacity", None),
    ]  # fmt: skip
    assert (usage["ai_tokens_used"], usage["ai_processing_jobs"]) == (700, 1)
    assert (state(done)["status"], state(done)["job_result"]) == ("completed", {"tokens_used": 700})
    assert used(site, ann.tenant)["minutes"][0] == 1.5

    failed = enqueue("fast_queue_ocr", fails=True)
    [_, *asked] = work_as_original(site, node, 2)
    assert asked == [("update_job_heartbeat", True), ("fail_job", True), ("claim_next_job_v3", [])]
    assert (state(failed)["status"], state(failed)["error_details"]["message"]) == ("failed", "broken page")

    # A failure gives its capacity back, too.
    enqueue("ai_queue_pass1", fails=True)
    assert [name for name, _ in work_as_original(site, node, 1)][-2:] == ["fail_job", "release_api_capacity"]
    limits = "/rest/v1/api_rate_limits?provider_name=eq.openai&api_endpoint=eq.gpt-4o-mini"
    [row] = site.http.get(limits, headers=bearer(site.service_key)).json()
    assert row["active_requests"] == 0

    # The provider has no room: the job goes back for 30 to 45 seconds.
    call(site, "set_provider", p_name="openai/gpt-4o-mini", p_values={"concurrency": 0, "status": "active"})
    moved = enqueue("ai_queue_pass1")
    [_, *asked] = work_as_original(site, node, 1)
    assert asked == [
        ("update_job_heartbeat", True), ("acquire_api_capacity", False), ("reschedule_job", True),
    ]  # fmt: skip
    assert state(moved)["status"] == "deferred"


async def test_duties_do_their_work(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies have every line, however many there are."""
    monkeypatch.setattr(duties, "_BATCH", 2)
    ann = site.join("ann")
    upload(site, ann, documents.encrypted())
    payload = {"tenant_id": str(ann.tenant), "patient_id": str(ann.id), "subject": "Hello", "days": 0}
    ids = {
        kind: call(site, "enqueue_job_v3", job_type=kind, job_name=kind, job_payload=payload)
        for kind in (
            "audit_cleanup",
            "notification_delivery",
            "report_generation",
            "backup_operation",
            "consent_verification",
        )
    }
    async with app:
        await drain.arun(app, concurrency=2)
    rows = site.http.get("/rest/v1/job_queue", headers=bearer(site.service_key)).json()
    ends = {row["job_type"]: row for row in rows if row["id"] in ids.values()}
    assert ends["consent_verification"]["error_details"]["code"] == "no_consent"
    assert {kind for kind, row in ends.items() if row["status"] == "completed"} == set(ids) - {
        "consent_verification"
    }
    assert ends["backup_operation"]["job_result"]["files"] == 1
    copied = ends["audit_cleanup"]["job_result"]
    text = await app.storage.read(copied["path"], limit=1 << 20)
    lines = [json.loads(line)["id"] for line in text.splitlines()]
    assert len(set(lines)) == len(lines) == copied["lines"] > 3 and lines == sorted(lines)
    assert copied["digest"] == hashlib.sha256(text).hexdigest()
    kept = "select count(*) as count from penstock.artifacts where subject like 'intake.task:%%'"
    assert site.db.execute(kept) == [{"count": 4}]


async def test_documents_of_patients_without_consent_reach_no_model(site: Site, drain: testing.Drain) -> None:
    """R3.10/consent"""
    ann = site.join("ann")
    site.db.execute("select penstock.set_setting('intake.consent_required', 'true')")
    file = upload(site, ann, documents.pdf(documents.ENGLISH))
    async with app:
        await drain.arun(app, concurrency=2)
    answer = ask(site, ann, action="status", shell_file_id=file["id"]).json()
    assert (answer["status"], answer["processing_error"]["code"]) == ("failed", "no_consent")
    assert rpc(site, ann.token, "record_consent", p_patient_id=str(ann.id)).is_success
    [row] = site.db.execute("select intake.may_process(tenant_id, id) as may from intake.shell_files")
    assert row["may"] is True
