"""The log on the page of a task."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb


def test_task_page_shows_its_log(site: Any, sample: Any) -> None:
    db = sample.db
    db.execute("select penstock.define_kind('logging')")
    start = (
        'select penstock.start_job(\'report\', \'{}\', \'[{"kind": "logging"}, {"kind": "logging"}]\', %s)'
    )
    db.execute(start, [Jsonb({"tenant_id": str(sample.acme)})])
    task, silent = db.execute("select * from penstock.claim_tasks('w', 2, array['logging'])")
    line = {"job_id": str(task["job_id"]), "task_id": task["id"], "lease": task["lease"], "level": "warning"}
    lines = [
        {**line, "number": 1, "message": "<b>slow</b>", "fields": {"size": 3, "<i>": "<u>"}},
        {**line, "number": 2, "message": "password=hunter22 was wrong"},
    ]
    db.execute("select penstock.store_task_logs('w', %s)", [Jsonb(lines)])
    path = f"/jobs/{task['job_id']}/tasks/"
    viewer = site.browser(site.key("viewer", sample.acme))
    page = viewer.get(f"{path}{task['id']}").text
    assert "<h2>Log</h2>" in page and "warning</span> &lt;b&gt;slow&lt;/b&gt;" in page
    assert "size=3" in page and "&lt;i&gt;=&lt;u&gt;" in page
    assert "password=[redacted] was wrong" in page and "hunter22" not in page
    assert page.index("slow") < page.index("was wrong")
    assert "<h2>Log</h2>" not in viewer.get(f"{path}{silent['id']}").text
    stranger = site.browser(site.key("owner", sample.other)).get(f"{path}{task['id']}")
    assert stranger.status_code == 404 and "slow" not in stranger.text
    # The job's page shows the lines of all its tasks, each with a link to its task.
    page = viewer.get(f"/jobs/{task['job_id']}?view=logs").text
    assert f'{path}{task["id"]}">{task["id"]}</a>' in page and "hunter22" not in page
    assert "warning</span> &lt;b&gt;slow&lt;/b&gt;" in page
