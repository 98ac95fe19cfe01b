"""The pages of the intake: what a member sees of files, facts, patients, usage, and what only operators see."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from psycopg.types.json import Jsonb

from penstock import api, dashboard
from penstock.apps.intake.app import app

pytestmark = pytest.mark.own_sql(app)


FACT = {"kind": "measurement", "name": "Potassium", "value": "4.2", "unit": "mmol/L", "date": None,
        "is_verified": True, "places": [{"page": 1, "box": [0.1, 0.2, 0.5, 0.22], "line": 1}]}  # fmt: skip
FILES = {
    "scanned.pdf": ("completed", None),
    "locked.pdf": (
        "rejected",
        {"code": "encrypted_pdf", "message": "the PDF is encrypted", "is_final": True},
    ),
    "later.pdf": ("uploaded", {"code": "waits_for_quota", "message": "the quota of jobs is used up"}),
    "old.pdf": ("failed", {"legacy_error": "broken pipe"}),
    "begun.pdf": ("uploading", None),
}


@pytest.fixture
def intake(db: Any, dashboard_settings: Any, beside: Any) -> Iterator[Any]:
    """The dashboard of the intake, and a tenant with a file in each state."""
    made = api.create(dashboard_settings, app)
    dashboard.mount(made)
    with TestClient(made) as client:
        import tests.dashboard.conftest as own

        site: Any = own.Site(db, made, client)
        site.acme, site.other = site.tenant("Acme"), site.tenant("Other")
        fill(site, site.acme)
        yield site


def fill(site: Any, tenant: uuid.UUID) -> None:
    one = lambda statement, *values: next(iter(site.db.execute(statement, list(values))[0].values()))  # noqa: E731
    patient = one(
        "insert into intake.patients (tenant_id, name) values (%s, 'Ann Weber') returning id", tenant
    )
    picture = one(
        """insert into penstock.artifacts (tenant_id, name, path, content_type, bytes, sha256, status, created_by,
        created_at, begun_at, stored_at) values (%s, 'page-1.png', %s, 'image/png', 5, repeat('0', 64), 'stored',
        'x', now(), now(), now()) returning id""",
        tenant,
        f"{tenant}/page-1.png",
    )
    for name, (status, error) in FILES.items():
        file = one(
            "insert into intake.shell_files (tenant_id, patient_id, name, mime_type, file_size_bytes, status,"
            " processing_error) values (%s, %s, %s, 'application/pdf', 3, %s, %s) returning id",
            tenant, patient, name, status, Jsonb(error) if error else None,
        )  # fmt: skip
        if status == "completed":
            summary = Jsonb({"facts": [FACT], "pictures": {"1": str(picture)}})
            site.db.execute("select intake.store_result(%s, %s, 'pass2', null, %s)", [tenant, file, summary])
    site.picture, site.patient = picture, patient
    site.db.execute("select penstock.define_kind('fast_queue_ocr')")
    payload = Jsonb({"tenant_id": str(tenant)})
    site.db.execute("select intake.enqueue_job_v3('fast_queue_ocr', 'Read it', %s)", [payload])
    site.db.execute(
        "select penstock.record_usage('{\"files\": 7}', p_tenant_id => %s, p_action => 'shell_file_uploaded',"
        ' p_options => \'{"key": "u"}\')',
        [tenant],
    )


def text_of(browser: Any, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.text


def test_member_sees_files_facts_patients_and_usage_of_the_own_tenant(intake: Any) -> None:
    """Files with their state and why they wait or ended so; facts with the image of their page."""
    member = intake.browser(intake.key("viewer", intake.acme))
    stranger = intake.browser(intake.key("owner", intake.other))
    image = f'src="/dashboard/artifacts/{intake.picture}"'
    wanted = {
        "files": [*FILES, "encrypted_pdf: the PDF is encrypted", "waits_for_quota", "broken pipe",
                  "the content has not been uploaded", image],
        "facts": ["Potassium", "4.2 mmol/L", "scanned.pdf", image],
        "patients": ["Ann Weber", f'href="/dashboard/app/trail?patient_id={intake.patient}"'],
        "trail": ["intake.insert", "shell_file_results", "Ann Weber", "scanned.pdf",
                  "postgres (database login)"],
        "usage": ["7"],
    }  # fmt: skip
    for page, words in wanted.items():
        shown, other = text_of(member, f"/app/{page}"), text_of(stranger, f"/app/{page}")
        assert [word for word in words if word not in shown] == [], page
        assert [word for word in words if len(word) > 1 and word in other] == [], page
    filtered = text_of(member, f"/app/trail?patient_id={intake.patient}")
    assert "intake.insert" in filtered
    for page in ("queue", "overview"):
        assert member.get(f"/app/{page}").status_code == 404


def test_original_is_linked_only_after_the_scan_has_admitted_it(intake: Any) -> None:
    """S32: a browser must open neither a virus nor a bomb, not even as a thumbnail."""
    member = intake.browser(intake.key("viewer", intake.acme))
    link = f'/dashboard/artifacts/{intake.picture}"'
    for status, pages, is_linked in (
        ("rejected", None, False),
        ("uploaded", None, False),
        ("failed", 3, True),
    ):
        intake.db.execute("delete from intake.shell_file_results")
        intake.db.execute("delete from intake.shell_files")
        intake.db.execute(
            "insert into intake.shell_files (tenant_id, patient_id, artifact_id, name, mime_type, file_size_bytes,"
            " status, pages) values (%s, %s, %s, 'x.png', 'image/png', 5, %s, %s)",
            [intake.acme, intake.patient, intake.picture, status, pages],
        )
        assert (link in text_of(member, "/app/files")) == is_linked, status


def test_operator_sees_the_queue_and_the_usage_of_all_tenants(intake: Any) -> None:
    operator = intake.browser(intake.key("service"))
    assert "fast_queue_ocr" in text_of(operator, "/app/queue") and "pending" in text_of(
        operator, "/app/queue"
    )
    assert "Acme" in text_of(operator, "/app/overview")
    assert "Ann Weber" in text_of(operator, "/app/patients")
