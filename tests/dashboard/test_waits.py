"""The page of questions: answered with a button by those who may."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb


def test_question_is_answered_with_a_button(site: Any, sample: Any) -> None:
    db = sample.db
    db.execute("select penstock.define_kind('asking')")
    start = "select penstock.start_job('report', '{}', '[{\"kind\": \"asking\"}]', %s) as id"
    [job] = db.execute(start, [Jsonb({"tenant_id": str(sample.acme)})])
    [task] = db.execute("select * from penstock.claim_tasks('w', 1, array['asking'])")
    options = {
        "options": ["approve", "reject"], "fields": {"note": "text"}, "message": "Publish <b>?", "seconds": 3600,
    }  # fmt: skip
    opened = "select penstock.open_wait(%s, 'w', %s, 'approval', %s) ->> 'id' as id"
    [wait] = db.execute(opened, [task["id"], task["lease"], Jsonb(options)])
    db.execute("select penstock.park_task(%s, 'w', %s, %s)", [task["id"], task["lease"], wait["id"]])

    viewer, owner = (site.browser(site.key(role, sample.acme)) for role in ("viewer", "owner"))
    page = owner.get("/waits").text
    assert "Publish &lt;b&gt;?" in page and 'value="approve"' in page
    assert 'value="approve"' not in viewer.get("/waits").text
    assert "Publish" not in site.browser(site.key("owner", sample.other)).get("/waits").text
    shown = owner.get(f"/jobs/{job['id']}/tasks/{task['id']}").text
    assert "an answer to approval (approve, reject), times out in" in shown.lower() or "An answer to" in shown
    form = {"option": "approve", "field.note": "fine", "next": f"/jobs/{job['id']}/tasks/{task['id']}"}
    assert viewer.post(f"/waits/{wait['id']}", form).status_code == 403
    assert owner.post(f"/waits/{wait['id']}", {**form, "field.note": ""}).status_code == 422
    answer = owner.post(f"/waits/{wait['id']}", form)
    assert answer.headers["location"].endswith(f"/tasks/{task['id']}")
    [row] = db.execute("select option, payload from penstock.waits where id = %s", [wait["id"]])
    assert row == {"option": "approve", "payload": {"note": "fine"}}
    assert "approve" in owner.get("/waits?filter=status:answered").text
    assert owner.post(f"/waits/{wait['id']}", {**form, "option": "reject"}).status_code == 409
