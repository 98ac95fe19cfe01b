"""Errors are stored without credentials (S80), and stacks are for operators and the tenant's admins (S81)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.redaction import redact
from penstock.sdk.bulk_rows import RowError
from tests.sql.conftest import Contract
from tests.sql.test_bulks import by, declare, open_bulk

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
# The text of an error, and what must not be stored of it.
SECRETS: list[tuple[str, str]] = [
    ("401 for https://api.x.org/v1/chat?api-version=3&sig=abc%2Fdef#frag", "abc%2Fdef"),
    ("GET https://bucket.s3.amazonaws.com/k?X-Amz-Signature=0123abcd HTTP/1.1", "0123abcd"),
    ("connection to postgresql://app:hunter2@db:5432/app failed", "hunter2"),
    ("postgresql://app:p@ss/word@db/app", "ss/word"),
    ("redis://:hunter2@cache:6379/0", "hunter2"),
    ("could not connect: host=db user=app password=hunter2 dbname=app", "hunter2"),
    ("host=db password='hunter two' dbname=app", "hunter"),
    ("Authorization: Bearer abcdef123456", "abcdef123456"),
    ("{'Authorization': 'Basic dXNlcjpwYXNz', 'Accept': '*/*'}", "dXNlcjpwYXNz"),
    ("headers={'x-api-key': 'k-1234567', 'b': 1}", "k-1234567"),
    ("[(b'authorization', b'x'), ('Cookie', 'a=1')] Cookie: session=abc123; other=1", "abc123"),
    ("the server rejected bearer abcdef123456.", "abcdef123456"),
    ('{"api_key": "k-1234567", "n": 1}', "k-1234567"),
    ('{"tokens": 3, "access_token": ["k-1234567"]}', "k-1234567"),
    ("OPENAI_API_KEY=k-1234567 is not valid", "k-1234567"),
    ("client_secret: s3cr3t-value", "s3cr3t-value"),
    ("access_token=abcdef; refresh_token=ghijkl", "ghijkl"),
    ("Incorrect API key provided: sk-proj-abcdefghijklmnop1234", "abcdefghijklmnop"),
    ("key psk_0123456789abcdef0123456789abcdef was revoked", "0123456789abcdef"),
    ("session pss_0123456789abcdef0123456789abcdef has ended", "0123456789abcdef"),
    ("https://x.org/invite/psi_0123456789abcdef0123456789abcdef", "0123456789abcdef"),
    ("signed with whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "GKYqrTwj"),
    ("stripe refused rk_live_0123456789abcdef", "0123456789abcdef"),
    ("cannot unlock it, passphrase=hunter2", "hunter2"),
    ("aws AKIAIOSFODNN7EXAMPLE", "IOSFODNN7"),
    (f"token {JWT} has expired", "c2lnbmF0dXJl"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "klmnop"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEowIB\n-----END RSA PRIVATE KEY-----\nand more", "MIIEowIB"),
]
HARMLESS = [
    "",
    "division by zero",
    "used 12000 tokens, max_tokens=4000, token=17",
    "File \"/srv/app/keys.py\", line 3, in authorize\n    raise KeyError('password')",
    "see https://docs.x.org/errors/rate-limits for more",
    "KeyError: 'api_key'",
    "no column named author: id",
    '{"status": 429, "is_secret": true, "password": null}',
]


@pytest.mark.parametrize(("text", "secret"), SECRETS, ids=[text[:30] for text, _ in SECRETS])
def test_credentials_are_redacted_wherever_an_error_is_stored(sql: Contract, text: str, secret: str) -> None:
    """S80: in the message, in details (as text, as key and as value), in the stack, and in the dead letter."""
    sql.start([{"kind": "work"}])
    task = sql.claim_one("w1")
    details = {"stack": f"Traceback:\n  {text}\nError: {text}", "note": text, "more": [{"text": text}]}
    sql.fail(task, text, "w1", error_details=Jsonb(details), permanent=True)
    stored = [
        str(row)
        for table in ("attempts", "error_stacks", "results", "dead_letters")
        for row in sql.execute(f"select * from penstock.{table}")
    ]
    assert len(stored) == 4
    assert [row for row in stored if secret in row] == []
    assert all("[redacted]" in row for row in stored)
    # What stands around it stays.
    kept = sql.one("select error_details from penstock.attempts")
    assert set(kept) == {"note", "more"} and len(kept["note"]) > 9


TEXT, SECRET = (
    "GET https://x.org/v1?sig=0123abcd with psk_0123456789abcdef0123 failed",
    ("0123abcd", "0123456789"),
)


def leased(sql: Contract) -> dict[str, Any]:
    """The arguments of a worker's calls about a task that it runs."""
    sql.start([{"kind": "work"}])
    task = sql.claim_one("w1")
    return {"task_id": task["id"], "worker_id": "w1", "lease": task["lease"]}


def report_progress(sql: Contract) -> str:
    sql.value("report_progress", **leased(sql), message=TEXT)
    return "leases"


def reschedule(sql: Contract) -> str:
    sql.value("reschedule_task", **leased(sql), delay_seconds=60, reason=TEXT)
    return "parked"


def fail_operation(sql: Contract) -> str:
    task = leased(sql)
    begun = sql.value("begin_operation", **task, object="o", timeout_seconds=60)
    of_worker = {"operation_id": begun["id"], "worker_id": "w1", "lease": task["lease"]}
    sql.value("settle_operation", **of_worker, outcome="failed", values=Jsonb({"message": TEXT}))
    return "operations"


def fail_webhook(sql: Contract) -> str:
    sql.rows("take_webhook", source="github", key="1", type="t", payload=Jsonb({}))
    sql.value("end_webhook", source="github", key="1", outcome="failed", error=TEXT)
    return "webhooks"


def _target(sql: Contract, *events: str) -> None:
    options = Jsonb({"tenant_id": str(sql.tenant)})
    address = "https://hooks.example.com/x"
    sql.rows(
        "set_notification_target", channel="webhook", address=address, events=list(events), options=options
    )


def fail_delivery(sql: Contract) -> str:
    _target(sql, "alert")
    sql.value("notify", tenant_id=sql.tenant, subject="s", body="b")
    [taken] = sql.rows("take_notifications")
    sql.value("end_notification", id=taken["id"], attempt=taken["attempt"], outcome="gone", error=TEXT)
    assert SECRET[0] not in sql.one("select disabled_reason from penstock.notification_targets")
    return "notifications"


def record_failure(sql: Contract) -> str:
    about = {"tenant_id": sql.tenant, "scope": "s", "is_success": False, "code": "c", "message": TEXT}
    sql.value("record_outcome", **about, options=Jsonb({"details": {"url": TEXT}}))
    return "failures"


def alert_about_failures(sql: Contract) -> str:
    _target(sql, "alert")
    for _ in range(3):
        record_failure(sql)
    return "notifications"


def notify_about_a_job(sql: Contract) -> str:
    _target(sql, "job.failed")
    job = sql.start([{"kind": "work"}])
    sql.execute(
        "select penstock._notify_job(jsonb_populate_record(j, %s)) from penstock.jobs j where id = %s",
        Jsonb({"status": "failed", "status_reason": TEXT, "finished_at": "2026-01-01T00:00:00Z"}),
        job,
    )
    return "notifications"


def report_provider(sql: Contract) -> str:
    sql.execute("select penstock.set_provider('openai/gpt', '{}')")
    for signal in ({"status": 429, "message": TEXT}, {"status": 402, "exhausted": True, "message": TEXT}):
        sql.value("report_provider", name="openai/gpt", signal=Jsonb(signal))
    return "provider_events where event in ('refused', 'exhausted')"


def refuse_a_bulk_row(sql: Contract) -> str:
    declare(sql)
    open_bulk(sql, "a row")
    [task] = sql.claim(1, kinds=["sheet.load"])
    sql.rows("take_bulk_rows", **by(task))
    problem = {"number": 2, "problem": {"code": "invalid", "message": TEXT}}
    sql.value("mark_bulk_rows", **by(task), rows=Jsonb([problem]))
    return "bulk_rows"


def fail_schedule(sql: Contract) -> str:
    options = Jsonb({"tenant_id": str(sql.tenant)})
    sql.execute("select penstock.define_job_type('report')")
    made = sql.one("select penstock.set_schedule('n', '0 3 * * *', 'report', penstock._now(), %s)", options)
    due = sql.one("select next_run_at from penstock.schedules")
    sql.value("fail_schedule", schedule_id=made, due_at=due, error=TEXT)
    return "schedules"


PLACES = [
    report_progress, reschedule, fail_operation, fail_webhook, fail_delivery, record_failure,
    alert_about_failures, notify_about_a_job, report_provider, refuse_a_bulk_row, fail_schedule,
]  # fmt: skip


@pytest.mark.parametrize("store", PLACES, ids=lambda store: store.__name__)
def test_every_function_that_stores_an_error_redacts_it(
    sql: Contract, store: Callable[[Contract], str]
) -> None:
    """S80: reports of workers, providers, webhooks, operations, deliveries, schedules and rows."""
    rows = [str(row) for row in sql.execute(f"select * from penstock.{store(sql)}")]
    assert rows and all("[redacted]" in row for row in rows)
    assert [row for row in rows if any(secret in row for secret in SECRET)] == []


def test_error_is_redacted_before_it_is_cut(sql: Contract) -> None:
    """S80: a secret at the end of the stored text leaves no partial secret."""
    text = "x" * 80 + " psk_0123456789abcdef0123456789abcdef"
    for limit in (90, 95, 100):
        assert "_01" not in sql.one("select penstock._error_text(%s, %s)", text, limit)


def test_row_error_of_a_batch_is_redacted() -> None:
    """S80: it is stored in an output."""
    assert SECRET[0] not in str(RowError(message=TEXT).model_dump())


@pytest.mark.parametrize("text", HARMLESS)
def test_errors_without_credentials_stay_unchanged(sql: Contract, text: str) -> None:
    assert sql.one("select penstock._redact(%s)", text) == text


@pytest.mark.parametrize("text", [text for text, _ in SECRETS] + HARMLESS + [TEXT])
def test_logs_and_database_redact_alike(sql: Contract, text: str) -> None:
    """S80: Python has the same rule for texts that the database never sees."""
    assert redact(text) == sql.one("select penstock._redact(%s)", text)


def test_redacted_url_keeps_host_and_path(sql: Contract) -> None:
    text = "PUT https://u:p@x.org:8080/a/b.pdf?sig=1 returned 403"
    assert sql.one("select penstock._redact(%s)", text) == (
        "PUT https://[redacted]@x.org:8080/a/b.pdf?[redacted] returned 403"
    )


@pytest.mark.parametrize(
    "document",
    [
        {"password": 'a"b\\c', "next": 'x "token": "y" z'},
        {"Authorization": 'Bearer \u00e9\n\t"quoted" \\', "n": [1, None, True]},
        {"token": 5, "secret": None, "api_key": ["k1", {"password": 1.5}]},
        {"url": 'https://x/?a="b"', "password=": "\\", "token:": "\\\\"},
    ],
)
def test_redacted_document_is_still_json(sql: Contract, document: Any) -> None:
    found = sql.one("select penstock._redact_document(%s)", Jsonb(document))
    assert set(found) == set(document) and json.dumps(found)


def test_stack_is_visible_to_operators_owners_and_admins_only(sql: Contract) -> None:
    """S81: a viewer and a member see the error without its stack."""
    sql.start([{"kind": "work"}])
    sql.fail(sql.claim_one("w1"), "boom", "w1", error_details=Jsonb({"type": "Boom", "stack": "line 1"}))
    tenant = sql.one("select tenant_id from penstock.error_stacks")
    assert sql.one("select error_details from penstock.attempts") == {"type": "Boom"}
    seen: dict[str, int] = {}
    for role in ("viewer", "member", "admin", "owner"):
        key = sql.one("select id from penstock.create_key(%s, %s, %s)", role, role, tenant)
        with sql.connection.transaction(force_rollback=True):
            sql.execute("select set_config('request.jwt.claims', %s, true)", json.dumps({"sub": str(key)}))
            sql.execute("set local role authenticated")
            assert len(sql.execute("select * from penstock.attempts")) == 1
            seen[role] = len(sql.execute("select * from penstock.error_stacks"))
    assert seen == {"viewer": 0, "member": 0, "admin": 1, "owner": 1}
    with sql.connection.transaction(force_rollback=True):
        sql.execute("set local role service_role")
        assert sql.execute("select stack from penstock.error_stacks") == [{"stack": "line 1"}]
