"""Answers over HTTP and by link: who may answer, and what the page of a link shows and accepts."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.api.conftest import Person, World

QUESTION: dict[str, Any] = {
    "options": ["approve", "<b>reject"],
    "fields": {"note": "text", "pages": "number?", "final": "boolean?"},
    "message": "Publish <script>alert(1)</script>?",
    "link": True,
}


def ask(world: World, person: Person, **options: Any) -> dict[str, Any]:
    """A task of this person's tenant that waits for an answer."""
    world.kind("asking")
    start = "select penstock.start_job('report', '{}', '[{\"kind\": \"asking\"}]', %s)"
    world.db.execute(start, [Jsonb({"tenant_id": str(person.tenant)})])
    [task] = world.db.execute("select * from penstock.claim_tasks('w', 1, array['asking'])")
    opened = "select penstock.open_wait(%s, 'w', %s, 'approval', %s) as wait"
    [row] = world.db.execute(opened, [task["id"], task["lease"], Jsonb({**QUESTION, **options})])
    parked = "select penstock.park_task(%s, 'w', %s, %s)"
    world.db.execute(parked, [task["id"], task["lease"], row["wait"]["id"]])
    return row["wait"]


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("member", 403), ("admin", 200)])
def test_only_the_named_roles_may_answer(world: World, role: str, status: int) -> None:
    ann = world.join("ann")
    wait = ask(world, ann, roles=["owner", "admin"])
    body = {"option": "approve", "payload": {"note": "fine"}}
    member = world.member(role, ann.tenant)
    answer = world.client.post(f"/api/waits/{wait['id']}/answer", json=body, headers=member.headers)
    assert answer.status_code == status


def test_answer_over_http(world: World) -> None:
    ann, bob = world.join("ann"), world.join("bob")
    wait = ask(world, ann)
    url = f"/api/waits/{wait['id']}"
    [listed] = world.client.get("/api/waits?filter=status:open", headers=ann.headers).json()["items"]
    assert listed["id"] == wait["id"] and "token" not in listed
    assert world.client.get("/api/waits", headers=bob.headers).json()["items"] == []
    body = {"option": "approve", "payload": {"note": "fine", "pages": 3}}
    assert world.client.post(f"{url}/answer", json=body, headers=bob.headers).status_code == 404
    bad = world.client.post(f"{url}/answer", json={"option": "approve"}, headers=ann.headers)
    assert (bad.status_code, bad.json()["code"], bad.json()["field"]) == (
        422, "invalid_answer", "payload.note",
    )  # fmt: skip
    assert world.client.post(f"{url}/answer", json=body, headers=ann.headers).json() == {"is_new": True}
    assert world.client.post(f"{url}/answer", json=body, headers=ann.headers).json() == {"is_new": False}
    late = world.client.post(f"{url}/answer", json={**body, "option": "<b>reject"}, headers=ann.headers)
    assert (late.status_code, late.json()["code"]) == (409, "already_answered")
    assert world.client.get(url, headers=ann.headers).json()["ended_by"] == f"user:{ann.id}"


def test_link_shows_the_question_and_takes_one_answer(world: World) -> None:
    """S32: a GET changes nothing, because mail servers follow links."""
    ann = world.join("ann")
    wait = ask(world, ann)
    url = f"/answers/{wait['token']}"
    page = world.client.get(url)
    assert page.status_code == 200 and page.headers["referrer-policy"] == "no-referrer"
    assert "&lt;script&gt;" in page.text and "<script>" not in page.text and "<b>reject" not in page.text
    assert world.client.get(url).text == page.text
    form = {"option": "approve", "field.note": "ok", "field.pages": "2.5", "field.final": "true"}
    assert world.client.post(url, data={**form, "field.note": ""}).status_code == 422
    assert world.client.post(url, data={**form, "field.pages": "many"}).status_code == 422
    assert world.client.post(url, data=form).status_code == 200
    [row] = world.db.execute(
        "select option, payload, ended_by from penstock.waits where id = %s", [wait["id"]]
    )
    assert row == {
        "option": "approve", "payload": {"note": "ok", "pages": 2.5, "final": True}, "ended_by": "link",
    }  # fmt: skip
    assert world.client.post(url, data={**form, "option": "<b>reject"}).status_code == 409
    assert "was answered" in world.client.get(url).text


@pytest.mark.parametrize("token", ["0" * 64, "1" * 63, "x" * 64, str(uuid.UUID(int=7))])
def test_wrong_link_is_rejected(world: World, token: str) -> None:
    """S94"""
    ask(world, world.join("ann"))
    assert world.client.get(f"/answers/{token}").status_code in (404, 422)
    assert world.client.post(f"/answers/{token}", data={"option": "approve"}).status_code in (404, 422)


def test_link_with_a_broken_form_is_rejected(world: World) -> None:
    wait = ask(world, world.join("ann"))
    url = f"/answers/{wait['token']}"
    for content in (b"\xff\xfe", b"option", b"option=approve&field.note=%00"):
        assert world.client.post(url, content=content).status_code == 422
    assert world.client.post(url, content=b"x" * (9 << 20)).status_code == 413
