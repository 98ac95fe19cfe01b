"""The stream on the page of a task."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb


def test_task_page_shows_its_stream(site: Any, sample: Any) -> None:
    """S91: as text, to the tenant only."""
    db = sample.db
    db.execute("select penstock.define_kind('streaming')")
    start = "select penstock.start_job('report', '{}', '[{\"kind\": \"streaming\"}]', %s)"
    db.execute(start, [Jsonb({"tenant_id": str(sample.acme)})])
    [task] = db.execute("select * from penstock.claim_tasks('w', 1, array['streaming'])")
    path = f"/jobs/{task['job_id']}/tasks/{task['id']}"
    viewer = site.browser(site.key("viewer", sample.acme))
    assert 'id="stream" data-keep hidden' in viewer.get(path).text
    chunk = {"job_id": str(task["job_id"]), "task_id": task["id"], "lease": task["lease"], "number": 1,
             "parts": ["<b>Hel", "lo", {"<i>": "<u>"}]}  # fmt: skip
    db.execute("select penstock.store_task_chunks('w', %s)", [Jsonb([chunk])])
    page = viewer.get(path).text
    assert "&lt;b&gt;Hello" in page and "<i>" not in page
    assert f'data-after="{task["lease"]}-1"' in page and f'data-stream="/dashboard{path}/stream"' in page
    owner = site.browser(site.key("owner", sample.other))
    for stranger in (owner.get(path), owner.get(f"{path}/stream")):
        assert stranger.status_code == 404 and "Hello" not in stranger.text
    db.execute("select penstock.complete_task(%s, 'w', null, %s)", [task["id"], task["lease"]])
    ended = viewer.get(path).text
    assert "&lt;b&gt;Hello" in ended and "data-stream" not in ended
    told = viewer.get(f"{path}/stream").text
    assert "event: chunk" in told and 'event: end\ndata: {"status": "succeeded"}' in told
    assert "event: chunk" not in viewer.get(f"{path}/stream?after={task['lease']}-1").text
