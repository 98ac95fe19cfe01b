"""The page of operations, and the command line for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import cli


@pytest.fixture
def operation(site: Any, sample: Any) -> Any:
    """A task of Acme that waits for an operation on an object with a hostile name."""
    db = sample.db
    db.execute("select penstock.define_kind('converting')")
    start = "select penstock.start_job('report', '{}', '[{\"kind\": \"converting\"}]', %s) as id"
    db.execute(start, [Jsonb({"tenant_id": str(sample.acme)})])
    [task] = db.execute("select * from penstock.claim_tasks('w', 1, array['converting'])")
    by = [task["id"], task["lease"]]
    begin = "select penstock.begin_operation(%s, 'w', %s, '<b>slide</b>', 300) ->> 'id' as id"
    [begun] = db.execute(begin, by)
    db.execute("select penstock.submit_operation(%s, 'w', %s, 'cc_1')", [begun["id"], task["lease"]])
    db.execute("select penstock.park_operation(%s, 'w', %s, 30)", [begun["id"], task["lease"]])
    return begun["id"]


def test_operation_is_shown_checked_and_canceled(site: Any, sample: Any, operation: str) -> None:
    owner, viewer = (site.browser(site.key(role, sample.acme)) for role in ("owner", "viewer"))
    page = owner.get("/operations").text
    assert "&lt;b&gt;slide&lt;/b&gt;" in page and "processing" in page and "Cancel<span" in page
    assert "Cancel<span" not in viewer.get("/operations").text
    stranger = site.browser(site.key("owner", sample.other))
    assert "slide" not in stranger.get("/operations").text
    assert stranger.post(f"/operations/{operation}/cancel").status_code == 404
    assert viewer.post(f"/operations/{operation}/cancel").status_code == 403
    assert owner.post(f"/operations/{operation}/explode").status_code == 404
    assert owner.post(f"/operations/{operation}/reconcile").status_code == 303
    assert owner.post(f"/operations/{operation}/cancel").status_code == 303
    assert "canceled" in owner.get("/operations?filter=status:canceled").text
    assert "No operations match" in owner.get("/operations?filter=status:completed").text
    assert "takes one of" in owner.get("/operations?filter=status:x").text


def test_command_line_shows_reconciles_and_cancels(
    site: Any, sample: Any, operation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.execute(["--database", sample.db.dsn, "operations", *arguments])
        printed = capsys.readouterr()
        return code, printed.out or printed.err

    code, text = run("ls", "status:processing")
    assert code == 0 and operation in text and "slide" in text
    assert json.loads(run("show", operation, "-o", "json")[1])["external_id"] == "cc_1"
    assert "cc_1" in run("show", operation)[1]
    assert run("reconcile", operation)[0] == 0
    assert run("reconcile")[0] == 0
    assert "Canceled" in run("cancel", operation)[1]
    assert json.loads(run("cancel", operation, "-o", "json")[1]) == {"status": "canceled"}
    assert run("show", "00000000-0000-7000-8000-000000000000")[0] == 5


def test_metrics_count_operations(site: Any, sample: Any, operation: str) -> None:
    import tests.dashboard.conftest as own

    headers = {"Authorization": f"Bearer {own.service_token()}"}
    shown = site.client.get("/metrics", headers=headers).text
    assert 'penstock_operations{provider="converting",status="processing"} 1.0' in shown
    sample.db.execute("update penstock.operations set submitted_at = penstock._now() - interval '1 minute'")
    sample.db.execute("select penstock.cancel_operation(%s)", [operation])
    labels = '{provider="converting",status="canceled"}'
    ended = dict(
        line.rsplit(" ", 1)
        for line in site.client.get("/metrics", headers=headers).text.splitlines()
        if labels in line
    )
    assert ended[f"penstock_operations_with_webhook{labels}"] == "0.0"
    assert 60 <= float(ended[f"penstock_operations_seconds{labels}"]) < 90


def test_task_shows_its_operations(site: Any, sample: Any, operation: str) -> None:
    [row] = sample.db.execute("select job_id, task_id from penstock.operations where id = %s", [operation])
    owner = site.browser(site.key("owner", sample.acme))
    page = owner.get(f"/jobs/{row['job_id']}/tasks/{row['task_id']}").text
    assert "&lt;b&gt;slide&lt;/b&gt;" in page and "cc_1" in page and "no webhook" in page
