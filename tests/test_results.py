"""The result of a job: in Python, SQL, over HTTP and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from penstock import App, JobFailed, api, cli, server, testing
from penstock.settings import Settings


@pytest.fixture
def app(db: testing.Database, drain: testing.Drain) -> App:
    app = App(database_url=db.dsn, tenant="acme")

    @app.task
    def write(topic: str) -> str:
        if topic == "eels":
            raise ValueError("no eels")
        return f"All about {topic}."

    @app.task
    def count(texts: list[str]) -> dict[str, Any]:
        return {"words": sum(len(text.split()) for text in texts), "text": "\0"}

    @app.job
    def book(topics: list[str]) -> dict[str, Any]:
        texts = [write.step(topic) for topic in topics]
        return {"words": count.step(texts), "texts": texts, "edition": 2, "empty": {}, "none": []}

    @app.job
    def plain(topics: list[str]) -> None:
        for topic in topics:
            write.step(topic)

    return drain.use(app)


def result(db: testing.Database, job_id: UUID, most: int | None = None) -> Any:
    [row] = db.execute("select penstock.job_result(%s, %s) as value", [job_id, most])
    return row["value"]


def test_result_is_what_the_body_returned(db: testing.Database, app: App, drain: testing.Drain) -> None:
    job = app.job_types["book"].start(["otters", "herons"])
    assert result(db, job.id) is None, "it has not completed"
    drain(app)
    found = job.result(timeout=60)
    assert found["texts"] == ["All about otters.", "All about herons."] and found["words"]["words"] == 6
    assert result(db, job.id) == found
    assert app.started(job.id).result(timeout=60) == found
    assert result(db, job.id, 10) is None, "it is larger than that"
    # By default, the output of the last task: no template is stored.
    for started in (app.job_types["plain"].start(["otters", "swans"]), app.tasks["write"].start("swans")):
        drain(app)
        assert result(db, started.id) == started.result(timeout=60) == "All about swans."
    assert db.execute("select count(result) as n from penstock.jobs") == [{"n": 1}]


def test_failed_job_has_no_result(db: testing.Database, app: App, drain: testing.Drain) -> None:
    job = app.tasks["write"].options(max_attempts=1).start("eels")
    drain(app)
    assert result(db, job.id) is None
    with pytest.raises(JobFailed):
        app.started(job.id).result(timeout=60)


def test_idempotency_key_of_an_older_client_finds_its_job(db: testing.Database, app: App) -> None:
    """A client that does not send the result and one that does mean the same job."""
    job = app.job_types["book"].options(idempotency_key="k").start(["otters"])
    [row] = db.execute("select result from penstock.jobs where id = %s", [job.id])
    assert row["result"] is not None
    arguments = """select penstock.start_job('t', '{}', '[{"kind": "write"}]',
      jsonb_build_object('tenant_id', (select tenant_id from penstock.jobs limit 1), 'idempotency_key', 'x')
      || %s::jsonb) as id"""
    [old], [new] = db.execute(arguments, ["{}"]), db.execute(arguments, ['{"result": {"$from": "a"}}'])
    assert old["id"] == new["id"]


def test_result_is_at_the_api_on_the_page_and_in_jobs_show(
    db: testing.Database, app: App, drain: testing.Drain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = app.job_types["book"].start(["otters"])
    small = app.tasks["write"].start("swans")
    large = app.tasks["write"].start("swans " * 20_000)
    settings = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), home=tmp_path)
    [tenant] = db.execute("select id from penstock.tenants where name = 'acme'")
    [key] = db.execute("select secret from penstock.create_key('k', 'viewer', %s)", [tenant["id"]])
    headers = {"Authorization": f"Bearer {key['secret']}"}
    with TestClient(server.application(settings, app)) as client:
        before = client.get(f"/api/jobs/{job.id}", headers=headers).json()
        assert (before["result"], before["result_url"]) == (None, None)
        drain(app)
        found = client.get(f"/api/jobs/{job.id}", headers=headers).json()
        assert found["result"]["texts"] == ["All about otters."]
        whole = client.get(found["result_url"], headers=headers).json()
        assert whole == {"status": "completed", "result": found["result"]}
        found = client.get(f"/api/jobs/{large.id}", headers=headers).json()
        assert found["result"] is None
        assert len(client.get(found["result_url"], headers=headers).json()["result"]) > 100_000
        page = client.get(f"/dashboard/jobs/{job.id}", headers=headers).text
        assert "<h2>Result</h2>" in page and "All about otters." in page
    assert cli.execute(["jobs", "show", str(small.id), "--database", db.dsn]) == 0
    assert 'result   "All about swans."' in capsys.readouterr().out
    assert cli.execute(["jobs", "show", str(large.id), "--database", db.dsn]) == 0
    assert "characters; -o json prints all)" in capsys.readouterr().out


def test_started_over_http_the_job_has_its_bodys_result(
    db: testing.Database, app: App, drain: testing.Drain, tmp_path: Path
) -> None:
    settings = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), home=tmp_path)
    with TestClient(api.create(settings, app)) as client:
        [tenant] = db.execute("select penstock.ensure_tenant('acme') as id")
        [key] = db.execute("select secret from penstock.create_key('k', 'member', %s)", [tenant["id"]])
        headers = {"Authorization": f"Bearer {key['secret']}"}
        body = {"type": "book", "params": {"topics": ["otters"]}}
        job_id = client.post("/api/jobs/start", json=body, headers=headers).json()["id"]
        drain(app)
        assert client.get(f"/api/jobs/{job_id}/result", headers=headers).json()["result"]["edition"] == 2
