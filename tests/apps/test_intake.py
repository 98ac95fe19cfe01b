"""The application that takes in documents: uploads over HTTP, a real worker, real PDFs."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from penstock import Fail, simulator, testing
from penstock.apps.intake import __main__ as folder_upload
from penstock.apps.intake import app as module
from penstock.apps.intake import cutover
from penstock.apps.intake.app import app, finish_upload
from penstock.contract import artifacts
from penstock.errors import PenstockError, Unavailable
from penstock.sdk import prompts as sdk_prompts
from penstock.settings import Settings
from penstock.storage import objects as storages
from tests.api.conftest import api_settings, bearer
from tests.api.rest.conftest import Person, Site, served
from tests.apps import documents
from tests.conftest import Eventually, running

__all__ = ["api_settings"]

pytestmark = pytest.mark.own_sql(app)

PDF = "application/pdf"
FUNCTION = "/functions/v1/shell-file-processor-v3"


@pytest.fixture
def site(
    db: testing.Database, drain: testing.Drain, api_settings: Settings, eventually: Eventually
) -> Iterator[Site]:
    drain.use(app)
    app.storage = storages.of(api_settings)
    with served(db, api_settings, eventually, app) as made:
        yield made


def ask(site: Site, person: Person | str, **body: Any) -> httpx.Response:
    key = person if isinstance(person, str) else person.token
    return site.http.post(FUNCTION, json=body, headers=bearer(key))


def begin(site: Site, person: Person, data: bytes, **changes: Any) -> dict[str, Any]:
    body = {"action": "begin", "name": "letter.pdf", "content_type": PDF, "bytes": len(data), **changes}
    answer = ask(site, person, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def put(begun: dict[str, Any], data: bytes) -> None:
    answer = httpx.put(begun["url"], content=data)
    assert answer.is_success, answer.text


def upload(site: Site, person: Person, data: bytes, **changes: Any) -> dict[str, Any]:
    """Begin, PUT and finish; returns the file."""
    begun = begin(site, person, data, **changes)
    put(begun, data)
    answer = ask(site, person, action="finish", shell_file_id=begun["shell_file_id"])
    assert answer.status_code == 200, answer.text
    return answer.json()


def status(site: Site, person: Person, file_id: str) -> dict[str, Any]:
    answer = site.http.get(FUNCTION, params={"shell_file_id": file_id}, headers=bearer(person.token))
    assert answer.status_code == 200, answer.text
    return answer.json()


def used(site: Site, tenant: uuid.UUID) -> dict[str, Any]:
    rows = site.db.execute(
        "select meter, used, held from penstock.accounts where tenant_id = %s and job_id is null", [tenant]
    )
    return {row["meter"]: (row["used"], row["held"]) for row in rows}


async def work(drain: testing.Drain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all tasks, with the simulator as the model."""
    async with app, simulator.serve() as model:
        monkeypatch.setenv("INTAKE_URL", model.openai_url)
        await drain.arun(app, concurrency=2)


# From end to end


@pytest.mark.slow
async def test_upload_is_processed_from_end_to_end(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/pipeline: an acknowledged file is stored, kept, scanned, read, understood, and every write has its line."""
    # On a busy machine the database may take longer than the two seconds after which the constant is used.
    monkeypatch.setattr(sdk_prompts, "ANSWER_SECONDS", 60)
    ann = site.join("ann")
    site.db.execute("select penstock.add_prompt('intake.pass3', 'Summarize it.', '{\"activate\": true}')")
    data = documents.pages(10)
    file = upload(site, ann, data, estimated_pages=2, idempotency_key="one")
    assert (file["status"], file["patient_id"]) == ("uploaded", str(ann.id)) and file["job_id"]
    assert used(site, ann.tenant)["files"] == (1, 0) and used(site, ann.tenant)["pages"] == (0, 2)
    await work(drain, monkeypatch)
    file = status(site, ann, file["id"])
    assert (file["status"], file["pages"], file["processing_error"]) == ("completed", 10, None), file

    [kept] = site.db.execute(
        "select sha256, path, subject from penstock.artifacts where id = %s", [file["artifact_id"]]
    )
    stored = await app.storage.read(kept["path"], limit=1 << 30)
    assert hashlib.sha256(stored).hexdigest() == kept["sha256"] == hashlib.sha256(data).hexdigest()
    assert kept["subject"] == f"intake.shell_file:{file['id']}"
    results = site.http.get(
        f"/rest/v1/shell_file_results?shell_file_id=eq.{file['id']}&select=pass,model,summary,prompt_name,prompt_version",
        headers=bearer(ann.token),
    ).json()
    assert {row["pass"] for row in results} == {"ocr", "spatial", "pass1", "pass2", "pass3"}
    prompts = {row["prompt_name"]: row["prompt_version"] for row in results if row["prompt_name"]}
    assert prompts == {"intake.pass1": 0, "intake.pass2": 0, "intake.pass3": 1}
    facts = {row["pass"]: row["summary"] for row in results}["pass2"]["facts"]
    assert facts and all(place["page"] <= 10 for fact in facts for place in fact["places"])
    _check_pictures(site, ann, file)
    # Pages as they are, instead of the estimate; the minutes of the passes.
    counted = used(site, ann.tenant)
    assert (counted["pages"], counted["files"]) == ((10, 0), (1, 0)) and counted["minutes"][0] > 0
    assert counted["tokens"][0] > 0
    [job] = site.db.execute("select status from penstock.jobs where id = %s", [file["job_id"]])
    assert job["status"] == "completed"
    assert site.db.execute("select * from penstock.check_accounts()") == []
    _check_audit(site, ann, file)
    _check_no_write_without_line(site)


def _check_pictures(site: Site, ann: Person, file: dict[str, Any]) -> None:
    """Every fact has the image of its page, which is kept, and the members of the tenant see it."""
    facts = site.http.get("/rest/v1/fact_list", headers=bearer(ann.token)).json()
    assert facts and all(fact["picture"] and fact["file"] == "letter.pdf" for fact in facts)
    kept = site.db.execute(
        "select content_type, subject from penstock.artifacts where id = any (%s::uuid[])",
        [[fact["picture"] for fact in facts]],
    )
    assert {(row["content_type"], row["subject"]) for row in kept} == {
        ("image/png", f"intake.shell_file:{file['id']}")
    }
    trail = site.http.get("/rest/v1/patient_trail", headers=bearer(ann.token)).json()
    assert {line["patient_id"] for line in trail} == {str(ann.id)} and len(trail) > 7
    [row] = site.http.get("/rest/v1/file_list", headers=bearer(ann.token)).json()
    assert (row["status"], row["reason"]) == ("completed", None)


WITHOUT_LINE = """\
select r.what from (
    select 'patients' as what, id as patient_id, tenant_id, xmin as transaction from intake.patients
    union all select 'shell_files', patient_id, tenant_id, xmin from intake.shell_files
    union all select 'shell_file_results', patient_id, tenant_id, xmin from intake.shell_file_results) as r
where not exists (select from penstock.audit_log a where a.xmin = r.transaction
  and a.subject = 'patient:' || r.patient_id and a.tenant_id = r.tenant_id and a.details ->> 'table' = r.what)"""


def _check_no_write_without_line(site: Site) -> None:
    """R3.5/subject-data: the transaction that wrote a row of patient data wrote a line about it."""
    assert site.db.execute(WITHOUT_LINE) == []
    # The query finds a write without a line.
    site.db.execute("alter table intake.patients disable trigger audit_patient_data")
    site.db.execute("update intake.patients set name = 'x'")
    assert site.db.execute(WITHOUT_LINE) == [{"what": "patients"}]
    site.db.execute("alter table intake.patients enable trigger audit_patient_data")


def _check_audit(site: Site, ann: Person, file: dict[str, Any]) -> None:
    """R3.5/subject-data: job, actor and patient of every write, visible to the tenant."""
    lines = site.db.execute(
        "select action, actor, job_id, details from penstock.audit_log"
        " where subject = %s and tenant_id = %s order by id",
        [f"patient:{ann.id}", ann.tenant],
    )
    written = [(line["action"], line["details"]["table"], line["details"].get("pass")) for line in lines]
    assert written[:2] == [("intake.insert", "patients", None), ("intake.insert", "shell_files", None)]
    for name in ("ocr", "spatial", "pass1", "pass2", "pass3"):
        assert ("intake.insert", "shell_file_results", name) in written
    assert lines[1]["actor"] == f"user:{ann.id}"
    results = [line for line in lines if line["details"]["table"] == "shell_file_results"]
    assert {str(line["job_id"]) for line in results} == {file["job_id"]}


@pytest.mark.slow
async def test_folder_is_uploaded_by_one_command(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice: the second run uploads nothing and reports the same ends."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "letter.pdf").write_bytes(documents.pdf(documents.ENGLISH))
    (folder / "locked.pdf").write_bytes(documents.encrypted())
    (folder / "program.pdf").write_bytes(b"MZ\x90 a program")
    (folder / "notes.txt").write_text("not a document")
    async with app, simulator.serve() as model:
        monkeypatch.setenv("INTAKE_URL", model.openai_url)
        async with running(app, concurrency=2):
            for _ in range(2):
                files = sorted(path for path in folder.iterdir() if path.suffix == ".pdf")
                assert await folder_upload._run(files) == 1
    printed = capsys.readouterr().out
    assert len(re.findall(r"letter\.pdf: completed, 1 page, \d+ facts?\n", printed)) == 2, printed
    assert printed.count("locked.pdf: rejected, encrypted_pdf: the PDF is encrypted") == 2
    # Refused at the upload; the second run finds it rejected.
    assert (
        printed.count("program.pdf: wrong_type: the file is not application/pdf\nUploaded 2 of 3 files.") == 1
    )
    assert printed.count("program.pdf: rejected, wrong_type: the file is not application/pdf") == 1
    assert "\n1 completed, 1 rejected\n" in printed and "\n1 completed, 2 rejected\n" in printed
    assert site.db.execute("select count(*) as count from intake.shell_files") == [{"count": 3}]


# The guarantee


def test_finish_is_one_transaction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3.6/guarantee: a crash in the last step leaves nothing behind, and the next finish does it all."""
    ann = site.join("ann")
    data = documents.pdf("A letter.")
    begun = begin(site, ann, data)
    put(begun, data)

    async def crash(conn: Any, stored: Any) -> None:
        await finish_upload(conn, stored)
        raise Unavailable("the server dies here")

    monkeypatch.setattr("penstock.apps.intake.uploads.finish_upload", crash)
    answer = ask(site, ann, action="finish", shell_file_id=begun["shell_file_id"])
    assert answer.status_code == 503
    assert status(site, ann, begun["shell_file_id"])["status"] == "uploading"
    jobs = "select count(*) as count from penstock.jobs where type = 'intake' and tenant_id = %s"
    assert site.db.execute(jobs, [ann.tenant]) == [{"count": 0}]
    assert used(site, ann.tenant)["files"] == (0, 1)
    monkeypatch.undo()
    for _ in range(2):
        answer = ask(site, ann, action="finish", shell_file_id=begun["shell_file_id"])
        assert (answer.status_code, answer.json()["status"]) == (200, "uploaded")
    assert site.db.execute(jobs, [ann.tenant]) == [{"count": 1}]
    assert used(site, ann.tenant)["files"] == (1, 0)
    [kept] = site.db.execute("select subject from penstock.artifacts where id = %s", [begun["artifact_id"]])
    assert kept["subject"] == f"intake.shell_file:{begun['shell_file_id']}"


async def test_upload_of_a_dead_client_is_adopted(site: Site, clock: testing.Clock) -> None:
    """R3.6/guarantee: the bytes are there, and nobody says finish."""
    ann = site.join("ann")
    data = documents.pdf("A letter.")
    begun = begin(site, ann, data)
    waiting = begin(site, ann, data)
    put(begun, data)
    clock.advance(minutes=2)
    async with app, app.connections() as pool:
        for wanted in (1, 0):
            adopted = await artifacts.adopt_uploads(pool, app.storage, finish_upload, key_prefix="intake:")
            assert adopted == wanted
    file = status(site, ann, begun["shell_file_id"])
    assert file["status"] == "uploaded" and file["job_id"]
    assert status(site, ann, waiting["shell_file_id"])["status"] == "uploading"


@pytest.mark.slow
def test_same_key_is_the_same_file_and_other_tenants_have_their_own_keys(site: Site) -> None:
    ann, bob = site.join("ann"), site.join("bob")
    data = documents.pdf("A letter.")
    first = upload(site, ann, data, idempotency_key="k")
    again = begin(site, ann, data, idempotency_key="k")
    assert (again["shell_file_id"], again["status"]) == (first["id"], "uploaded") and "url" not in again
    other = begin(site, bob, data, idempotency_key="k")
    assert other["shell_file_id"] != first["id"]
    changed = ask(site, ann, action="begin", name="other.pdf", content_type=PDF, bytes=3, idempotency_key="k")
    assert (changed.status_code, changed.json()["code"]) == (409, "idempotency_key_reused")
    assert used(site, ann.tenant)["files"] == (1, 0)


@pytest.mark.slow
def test_content_that_is_not_what_it_says_is_rejected_with_a_reason(site: Site) -> None:
    ann = site.join("ann")
    data = b"not a PDF at all, but long enough to be one"
    begun = begin(site, ann, data)
    put(begun, data)
    answer = ask(site, ann, action="finish", shell_file_id=begun["shell_file_id"])
    assert 400 <= answer.status_code < 500, answer.text
    file = status(site, ann, begun["shell_file_id"])
    assert file["status"] == "rejected" and file["processing_error"]["code"] == answer.json()["code"]
    assert used(site, ann.tenant)["files"] == (0, 0)
    assert used(site, ann.tenant)["bytes"] == (0, 0)


@pytest.mark.slow
async def test_files_that_the_scan_rejects_end_with_the_reason(
    site: Site, drain: testing.Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6/guarantee: also a canceled job, and a file whose model refuses, end with a code."""
    ann = site.join("ann")
    bad = upload(site, ann, documents.encrypted(), idempotency_key="bad")
    canceled = upload(site, ann, documents.pdf("A letter."), idempotency_key="canceled")
    site.db.execute("select penstock.cancel_job(%s)", [canceled["job_id"]])
    failing = upload(site, ann, documents.pdf(documents.ENGLISH), idempotency_key="failing")

    async def refuse(*_: object, **__: object) -> Any:
        raise Fail("the model refused", code="model_refused")

    ask_model = module.models.ask
    monkeypatch.setattr(module.models, "ask", refuse)
    await work(drain, monkeypatch)
    site.db.execute("select intake.sweep_files()")
    ends = {
        name: (file["status"], file["processing_error"]["code"], file["processing_error"]["step"])
        for name, given in (("bad", bad), ("canceled", canceled), ("failing", failing))
        for file in [status(site, ann, given["id"])]
    }
    assert ends == {
        "bad": ("rejected", "encrypted_pdf", "fast_queue_security"),
        "canceled": ("failed", "canceled", None),
        "failing": ("failed", "model_refused", "ai_queue_pass1"),
    }
    assert used(site, ann.tenant)["pages"][1] == 0
    assert site.db.execute("select * from penstock.check_accounts()") == []
    # Retried once the model answers again, the failed file is completed, and its minutes are those of all passes.
    monkeypatch.setattr(module.models, "ask", ask_model)
    before = used(site, ann.tenant)["minutes"][0]
    site.db.execute("select penstock.retry_job(%s)", [failing["job_id"]])
    await work(drain, monkeypatch)
    site.db.execute("select intake.sweep_files()")
    file = status(site, ann, failing["id"])
    assert (file["status"], file["processing_error"]) == ("completed", None), file
    assert used(site, ann.tenant)["minutes"][0] > before
    assert site.db.execute("select intake.sweep_files() as count") == [{"count": 0}]


@pytest.mark.slow
def test_upload_that_never_comes_ends(site: Site, clock: testing.Clock) -> None:
    ann = site.join("ann")
    begun = begin(site, ann, b"x" * 100)
    site.db.execute("select penstock.delete_artifact(%s)", [begun["artifact_id"]])
    assert site.db.execute("select intake.sweep_files() as count") == [{"count": 1}]
    file = status(site, ann, begun["shell_file_id"])
    assert (file["status"], file["processing_error"]["code"]) == ("rejected", "upload_expired")
    assert used(site, ann.tenant)["pages"] == (0, 0)


@pytest.mark.slow
def test_waiting_files_of_one_tenant_do_not_hold_up_others(site: Site) -> None:
    """R3.6/guarantee: a tenant without a quota of jobs has more waiting files than one run tries."""
    ann, bob = site.join("ann"), site.join("bob")
    for person, files in ((ann, 5), (bob, 1)):
        site.db.execute("select penstock.set_limit(%s, 'jobs', 0)", [person.tenant])
        for _ in range(files):
            assert upload(site, person, documents.pdf("A letter."))["job_id"] is None
    found = site.db.execute("select tenant_id from intake.waiting_files(2)")
    assert {row["tenant_id"] for row in found} == {ann.tenant, bob.tenant}
    assert len(site.db.execute("select * from intake.waiting_files()")) == 6


PATIENT_DATA = ("patients", "shell_files", "shell_file_results", "upload_addresses", "usage_warnings")


def test_erasing_a_user_erases_the_patient_data(site: Site) -> None:
    """The maintenance task deletes it after erase_user; data of teams and of other users stays."""
    site.db.execute("select penstock.set_setting('intake.keep_addresses', 'true')")
    ann, bob = site.join("ann"), site.join("bob")
    for person in (ann, bob):
        site.db.execute("update penstock.tenants set is_personal = true where id = %s", [person.tenant])
        site.db.execute("select penstock.set_limit(%s, 'files', 1)", [person.tenant])
        file = upload(site, person, documents.pdf("A letter."))
        site.db.execute("select intake.store_result(%s, %s, 'ocr', null, '{}')", [person.tenant, file["id"]])
    # A name alone erases nothing.
    site.db.execute("update penstock.tenants set name = 'erased' where id = %s", [bob.tenant])
    site.db.execute("select penstock.erase_user(%s)", [ann.id])
    site.db.execute("select intake.sweep_files()")
    for table in PATIENT_DATA:
        rows = site.db.execute(f"select distinct tenant_id from intake.{table}")
        assert rows == [{"tenant_id": bob.tenant}], table


@pytest.mark.slow
async def test_file_waits_for_the_quota_of_jobs(site: Site) -> None:
    """The file is acknowledged and stored; its job starts when the quota allows it."""
    ann = site.join("ann")
    data = documents.pdf("A letter.")
    begun = begin(site, ann, data)
    put(begun, data)
    site.db.execute("select penstock.set_limit(%s, 'jobs', 0)", [ann.tenant])
    answer = ask(site, ann, action="finish", shell_file_id=begun["shell_file_id"])
    assert (answer.status_code, answer.json()["status"]) == (200, "uploaded"), answer.text
    assert answer.json()["processing_error"]["code"] == "waits_for_quota"
    site.db.execute("select penstock.set_limit(%s, 'jobs', 5)", [ann.tenant])
    tasks, options = module._first_tasks(uuid.UUID(begun["shell_file_id"]))
    [row] = site.db.execute(
        "select intake.start_waiting_file(tenant_id, id, %s, %s) as started from intake.waiting_files()",
        [tasks, options],
    )
    assert row["started"] is True
    file = status(site, ann, begun["shell_file_id"])
    assert file["job_id"] and file["processing_error"] is None


# Access


def test_files_and_patients_of_others_are_invisible(site: Site) -> None:
    """R3.10/profile-access"""
    ann, bob = site.join("ann"), site.join("bob")
    data = documents.pdf("A letter.")
    begun = begin(site, ann, data)
    for body in (
        {"action": "status", "shell_file_id": begun["shell_file_id"]},
        {"action": "finish", "shell_file_id": begun["shell_file_id"]},
        {"action": "begin", "name": "a", "content_type": PDF, "bytes": 1, "patient_id": str(ann.id)},
    ):
        answer = ask(site, bob, **body)
        assert answer.status_code == 404, answer.text
    for view in ("file_list", "fact_list", "patient_list", "patient_trail"):
        assert site.http.get(f"/rest/v1/{view}", headers=bearer(bob.token)).json() == []
    for table in ("patients", "shell_files", "shell_file_results"):
        assert site.http.get(f"/rest/v1/{table}", headers=bearer(bob.token)).json() == []
        denied = site.http.post(
            f"/rest/v1/{table}", json={"tenant_id": str(bob.tenant)}, headers=bearer(bob.token)
        )
        assert denied.status_code in (403, 404, 405), denied.text
    access = "/rest/v1/rpc/has_profile_access"
    body = {"p_profile_id": str(ann.id)}
    assert site.http.post(access, json=body, headers=bearer(ann.token)).json() is True
    assert site.http.post(access, json=body, headers=bearer(bob.token)).json() is False
    settle = site.http.post(
        "/rest/v1/rpc/settle_file",
        json={"p_tenant_id": str(ann.tenant), "p_id": begun["shell_file_id"]},
        headers=bearer(ann.token),
    )
    assert settle.status_code in (403, 404)


@pytest.mark.slow
def test_users_cannot_start_the_tasks_of_the_pipeline(site: Site) -> None:
    """A task takes the file from its input: only the service may start one."""
    ann = site.join("ann")
    for kind in ("fast_queue_security", "intake_store", "intake_settle", "system_maintenance"):
        body = {"type": kind, "params": {"shell_file_id": str(uuid.uuid4())}}
        answer = site.http.post("/api/jobs/start", json=body, headers=bearer(ann.token))
        assert answer.status_code in (403, 422), answer.text


BAD_REQUESTS: list[tuple[dict[str, Any], int, str]] = [
        ({"action": "erase"}, 422, "invalid_action"),
        ({"action": "begin", "name": "a", "content_type": "text/html", "bytes": 3}, 422, "content_type_not_allowed"),
        ({"action": "begin", "name": "a", "content_type": PDF, "bytes": -3}, 422, "invalid"),
        ({"action": "begin", "name": "a", "content_type": PDF, "bytes": 0}, 422, "empty_file"),
        ({"action": "begin", "name": "a", "content_type": PDF, "bytes": 3, "estimated_pages": 0}, 422, "invalid"),
        ({"action": "begin", "name": "a", "content_type": PDF, "bytes": 1 << 40}, 413, "too_large"),
        ({"action": "finish", "shell_file_id": "7"}, 422, "invalid"),
        ({"action": "begin", "name": "a", "content_type": PDF, "bytes": 3, "tenant": 1}, 422, "invalid"),
]  # fmt: skip


def test_bad_requests_get_their_code(site: Site) -> None:
    ann = site.join("ann")
    for body, status, code in BAD_REQUESTS:
        answer = ask(site, ann, **body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.slow
def test_uploads_can_be_refused_during_maintenance(site: Site) -> None:
    """Uploads go on unless the setting refuses them."""
    ann = site.join("ann")
    site.db.execute("select penstock.set_setting('maintenance', 'true')")
    begin(site, ann, b"x")
    site.db.execute("select penstock.set_setting('intake.refuse_uploads', 'true')")
    answer = ask(site, ann, action="begin", name="a", content_type=PDF, bytes=3)
    assert (answer.status_code, answer.json()["code"]) == (503, "uploads_refused")


# Cutover


@pytest.mark.slow
async def test_cutover_and_rollback_are_rehearsed_on_legacy_rows(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """R3.9/legacy-errors, R3.11/cutover, R3.11/rollback, R3.11/rehearsed, R3.9/runbook: as commands, repeatable."""
    ann = site.join("ann")
    file = upload(site, ann, documents.pdf("A letter."))
    for number, text in enumerate(["OCR crashed", "", "timeout"]):
        site.db.execute(
            "insert into intake.shell_files (tenant_id, patient_id, name, mime_type, file_size_bytes, status, processing_error)"
            " values (%s, %s, %s, %s, 1, 'failed', to_jsonb(%s::text))",
            [ann.tenant, ann.id, f"old {number}", PDF, text],
        )
    errors = "select processing_error as error from intake.shell_files where name like 'old %%' order by name"
    setting = "select value from penstock.settings where name = 'maintenance'"
    async with app:
        for _ in range(2):
            await cutover.run(cutover.FORWARD)
            [first, empty, third] = [row["error"] for row in site.db.execute(errors)]
            assert (first["legacy_error"], empty, third["legacy_error"]) == ("OCR crashed", None, "timeout")
            assert site.db.execute(setting) == [{"value": False}]
        again = [row["error"] for row in site.db.execute(errors)]
        assert again == [first, empty, third]
        await cutover.run(cutover.BACK)
        assert site.db.execute(setting) == [{"value": True}]
        refused = ask(site, ann, action="begin", name="a", content_type=PDF, bytes=3)
        assert (refused.status_code, refused.json()["code"]) == (503, "uploads_refused")
        assert status(site, ann, file["id"])["status"] == "uploaded"
        # A file without a job stops the cutover, and maintenance stays on.
        site.db.execute("update intake.shell_files set job_id = null where id = %s", [file["id"]])
        with pytest.raises(PenstockError, match="1 files have neither"):
            await cutover.run(cutover.FORWARD)
        assert site.db.execute(setting) == [{"value": True}]
    assert "Adopt legacy errors: 3 text errors" in capsys.readouterr().out


# Audit


def test_every_table_of_patient_data_writes_its_audit_line(site: Site) -> None:
    """R3.5/subject-data: a table with patients has the trigger, and nobody but the app's functions can write."""
    tables = {
        row["name"]
        for row in site.db.execute(
            "select c.relname::text as name from pg_class c where c.relnamespace = 'intake'::regnamespace"
            " and c.relkind = 'r' and (c.relname = 'patients' or exists (select from pg_attribute a"
            " where a.attrelid = c.oid and a.attname = 'patient_id'))"
        )
    }
    guarded = site.db.execute(
        "select tgrelid::regclass::text as name from pg_trigger where tgname = 'audit_patient_data'"
        " and tgenabled = 'O' and tgtype & 28 = 28"
    )
    assert tables == {row["name"].removeprefix("intake.") for row in guarded} and len(tables) == 3
    for role in ("authenticated", "service_role"):
        [row] = site.db.execute(
            "select bool_or(has_table_privilege(%s, c.oid, 'insert, update, delete, truncate')) as any"
            " from pg_class c where relnamespace = 'intake'::regnamespace and relkind in ('r', 'v')"
            # Views of settings and providers: their triggers check the caller.
            " and relname not in ('system_configuration', 'api_rate_limits')",
            [role],
        )
        assert row["any"] is False


def test_audit_logger_writes_for_the_service_only(site: Site) -> None:
    """R3.10/http-functions"""
    ann = site.join("ann")
    begin(site, ann, b"x")
    job = str(uuid.uuid4())
    body = {"table_name": "clinical", "record_id": "7", "operation": "UPDATE", "new_values": {"job_id": job},
            "reason": "corrected", "patient_id": str(ann.id)}  # fmt: skip
    path = "/functions/v1/audit-logger-v3"
    assert site.http.post(path, json=body, headers=bearer(ann.token)).status_code == 403
    answer = site.http.post(path, json=body, headers=bearer(site.service_key))
    assert answer.status_code == 201, answer.text
    [line] = site.db.execute("select * from penstock.audit_log where id = %s", [answer.json()["id"]])
    assert (line["action"], line["subject"], str(line["job_id"])) == (
        "intake.update",
        f"patient:{ann.id}",
        job,
    )
    assert line["tenant_id"] == ann.tenant and line["details"]["reason"] == "corrected"
    wrong = site.http.post(path, json=body | {"operation": "no way"}, headers=bearer(site.service_key))
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_operation")


@pytest.mark.slow
def test_file_states_only_move_forward(site: Site) -> None:
    ann = site.join("ann")
    begun = begin(site, ann, b"x")
    with pytest.raises(psycopg.Error, match="cannot change from uploading to completed"):
        site.db.execute(
            "update intake.shell_files set status = 'completed' where id = %s", [begun["shell_file_id"]]
        )
