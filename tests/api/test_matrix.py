"""Every route, as every role, and as somebody from another tenant. A new route without a line here fails."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, fields
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import api
from penstock.settings import Settings
from tests.api.conftest import Person, World, bearer

pytestmark = pytest.mark.every_postgres

CANARY = "canary of ann"
ROLES = ("anon", "worker", "viewer", "member", "admin", "owner", "service")


@dataclass(frozen=True)
class Things:
    """What there is of a tenant, by the names that routes have for them."""

    tenant_id: uuid.UUID
    job_id: uuid.UUID
    failed_job: uuid.UUID
    paused_job: uuid.UUID
    task_id: int
    letter_id: int
    schedule_id: uuid.UUID
    user_id: uuid.UUID
    key_id: uuid.UUID
    provider: str


@dataclass(frozen=True)
class Row:
    """A line of the matrix: which member may, what a stranger hears, and what is sent."""

    least: str
    stranger: int
    query: str = ""
    body: Any = None
    job: str = "job_id"
    """Which of the jobs it is about."""
    good: tuple[int, ...] = (200, 201, 204)


OF_TENANT = "?tenant_id={tenant_id}"
TASKS = [{"kind": "work", "input": {"note": CANARY}}]
START = {"type": "report", "tasks": TASKS, "tenant_id": "{tenant_id}"}
SCHEDULE = {"cron": "0 3 * * *", "job_type": "report", "tasks": TASKS, "tenant_id": "{tenant_id}"}
UPLOAD = {"name": "a.pdf", "content_type": "application/pdf", "bytes": 10, "tenant_id": "{tenant_id}"}
LETTERS = {"ids": ["{letter_id}"]}

# fmt: off
ROWS: dict[str, Row] = {
    "POST /api/jobs/start": Row("member", 403, body=START),
    "POST /api/jobs/forecast": Row("member", 403, body=START),
    "GET /api/jobs": Row("viewer", 200, OF_TENANT),
    "GET /api/jobs/{job_id}": Row("viewer", 404),
    "POST /api/jobs/{job_id}/pause": Row("member", 404, body={"reason": CANARY}),
    "POST /api/jobs/{job_id}/resume": Row("member", 404, job="paused_job"),
    "POST /api/jobs/{job_id}/cancel": Row("member", 404),
    "POST /api/jobs/{job_id}/retry": Row("member", 404, job="failed_job"),
    "GET /api/jobs/{job_id}/forecast": Row("viewer", 404),
    "GET /api/jobs/{job_id}/costs": Row("viewer", 404),
    "PUT /api/jobs/{job_id}/budget": Row("member", 404, body={"amount": "5"}),
    "GET /api/jobs/{job_id}/tasks": Row("viewer", 404),
    "POST /api/jobs/{job_id}/tasks": Row("member", 404, body={"tasks": TASKS}),
    "GET /api/jobs/{job_id}/tasks/{task_id}": Row("viewer", 404),
    "GET /api/jobs/{job_id}/tasks/{task_id}/why": Row("viewer", 404),
    "GET /api/jobs/{job_id}/attempts": Row("viewer", 404, job="failed_job"),
    "GET /api/jobs/{job_id}/artifacts": Row("viewer", 404),
    "POST /api/uploads": Row("member", 403, body=UPLOAD),
    "GET /api/dead-letters": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/dead-letters/{letter_id}": Row("viewer", 404),
    "POST /api/dead-letters/replay": Row("viewer", 200, body=LETTERS),
    "POST /api/dead-letters/discard": Row("viewer", 200, body=LETTERS),
    "GET /api/schedules": Row("viewer", 200, OF_TENANT),
    "PUT /api/schedules": Row("member", 403, "?name=nightly", body=SCHEDULE),
    "DELETE /api/schedules/{schedule_id}": Row("member", 404),
    "GET /api/usage": Row("viewer", 403, OF_TENANT),
    "GET /api/usage/days": Row("viewer", 200, OF_TENANT),
    "GET /api/usage/limits": Row("viewer", 403, OF_TENANT),
    "GET /api/plans": Row("viewer", 200),
    "GET /api/costs": Row("viewer", 200, OF_TENANT + "&by=job"),
    "GET /api/costs/entries": Row("viewer", 200, OF_TENANT),
    "GET /api/prices": Row("viewer", 200, "?provider={provider}"),
    "GET /api/providers": Row("service", 403),
    "GET /api/providers/events": Row("service", 403, "?name={name}"),
    "POST /api/providers/open": Row("service", 403, "?name={name}"),
    "PUT /api/providers": Row("service", 403, "?name={name}", body={"concurrency": 3}),
    "GET /api/workers": Row("service", 403),
    "GET /api/backlog": Row("service", 403),
    "GET /api/me": Row("viewer", 200),
    "GET /api/tenants": Row("viewer", 200),
    "GET /api/tenants/{tenant_id}/members": Row("viewer", 200),
    "PUT /api/tenants/{tenant_id}/members/{user_id}": Row("admin", 403, body={"role": "viewer"}),
    "DELETE /api/tenants/{tenant_id}/members/{user_id}": Row("admin", 403),
    "POST /api/keys": Row("admin", 403, body={"name": CANARY, "role": "viewer", "tenant_id": "{tenant_id}"}),
    "GET /api/keys": Row("admin", 403, OF_TENANT),
    "DELETE /api/keys/{key_id}": Row("admin", 404),
}
# fmt: on

# What anybody may look at, and what needs a file or a stream: those have tests of their own.
ELSEWHERE = {
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /api/jobs/{job_id}/events",
    "GET /api/events",
    "GET /api/artifacts/{artifact_id}",
    "DELETE /api/artifacts/{artifact_id}",
    "POST /api/uploads/{artifact_id}/finish",
    "PUT /storage/{path}",
    "GET /storage/{path}",
    "HEAD /storage/{path}",
}


def operations(document: dict[str, Any]) -> set[str]:
    return {f"{method.upper()} {path}" for path, item in document["paths"].items() for method in item}


def test_every_route_has_a_line() -> None:
    assert operations(api.create(Settings()).openapi()) - ELSEWHERE == set(ROWS)


def make(world: World, ann: Person) -> Things:
    """One of everything, all of it ann's and with her canary in it."""
    connection = world.db.connect()

    def one(query: str, *values: Any) -> Any:
        row = connection.execute(query.encode(), values).fetchone()
        return next(iter(row.values())) if row else None

    def start(kind: str, **options: Any) -> uuid.UUID:
        tasks = [{"kind": kind, "input": {"note": CANARY}}]
        chosen = {"tenant_id": str(ann.tenant), **options}
        return one(
            "select penstock.start_job('report', %s, %s, %s)",
            Jsonb({"note": CANARY}),
            Jsonb(tasks),
            Jsonb(chosen),
        )

    for kind in ("work", "doomed"):
        one("select penstock.define_kind(%s)", kind)
    job = start("work")
    failed = start("doomed")
    # What an earlier retry left is claimed as well.
    for claimed in connection.execute(
        "select * from penstock.claim_tasks('w', 10, array['doomed'], 30)"
    ).fetchall():
        one(
            "select penstock.fail_task(p_task_id => %s, p_worker_id => 'w', p_error => %s, p_lease => %s, p_permanent => true)",
            claimed["id"],
            CANARY,
            claimed["lease"],
        )
    name = f"ann/{uuid.uuid4().hex[:8]}"
    one("select penstock.set_provider(%s, '{}', %s)", name, ann.tenant)
    one("select penstock.set_provider(%s, '{}')", name)
    one("select penstock.set_price(%s, 'requests', 1, %s)", name, Jsonb({"tenant_id": str(ann.tenant)}))
    one("select penstock.set_limit(%s, 'requests', 1000000)", ann.tenant)
    one(
        "select penstock.record_usage('{\"requests\": 1}', p_tenant_id => %s, p_action => %s)",
        ann.tenant,
        CANARY,
    )
    one(
        "select penstock.record_cost('render', 1, p_tenant_id => %s, p_options => %s)",
        ann.tenant,
        Jsonb({"job_id": str(job), "reason": CANARY}),
    )
    things = Things(
        tenant_id=ann.tenant,
        job_id=job,
        failed_job=failed,
        paused_job=start("work", paused=True),
        task_id=one("select id from penstock.tasks where job_id = %s", job),
        letter_id=one("select id from penstock.dead_letters where job_id = %s", failed),
        schedule_id=one(
            "select penstock.set_schedule(%s, '0 3 * * *', 'report', penstock._now(), %s)",
            f"{CANARY} {uuid.uuid4()}",
            Jsonb({"tenant_id": str(ann.tenant)}),
        ),
        user_id=one("select id from penstock.create_key(%s, 'member', %s)", CANARY, ann.tenant),
        key_id=one("select id from penstock.create_key(%s, 'member', %s)", CANARY, ann.tenant),
        provider=name,
    )
    connection.close()
    return things


_NOTHING: dict[str, Any] = {
    field.name: uuid.uuid4() if "UUID" in str(field.type) else 10**12 if field.type == "int" else "no/body"
    for field in fields(Things)
}
GHOST = Things(**_NOTHING)


def filled(value: Any, things: Things, row: Row) -> Any:
    """A template with the ids in it; one that is an id alone becomes what it is."""
    names = {field.name: getattr(things, field.name) for field in fields(Things)}
    names |= {"job_id": names[row.job], "name": things.provider if row.least == "service" else "nightly"}
    if isinstance(value, str):
        text = value.format(**names)
        return int(text) if value == "{letter_id}" else text
    if isinstance(value, dict):
        return {key: filled(item, things, row) for key, item in value.items()}
    return [filled(item, things, row) for item in value] if isinstance(value, list) else value


def ask(world: World, name: str, headers: dict[str, str], things: Things) -> Any:
    row = ROWS[name]
    method, path = name.split(" ")
    body = filled(row.body, things, row)
    return world.client.request(
        method,
        filled(path + row.query, things, row).replace(" ", "%20"),
        headers=headers,
        json=body,
    )


def plain(answer: Any) -> tuple[int, Any]:
    """What an answer says, without what is different each time."""
    if not answer.content:
        return answer.status_code, None
    body = answer.json()
    if isinstance(body, dict) and "status" in body:
        body.pop("request_id", None)
        # Some name the number that was asked for.
        body["detail"] = re.sub(r"\d+", "…", body["detail"])
    return answer.status_code, body


@pytest.mark.parametrize("name", ROWS)
def test_roles(world: World, name: str) -> None:
    """R1.9, R2.10: who is less than the matrix says is refused; who is that or more is not."""
    row = ROWS[name]
    ann = world.join("ann")
    callers = {
        role: world.member(role, ann.tenant).headers for role in ("viewer", "member", "admin", "owner")
    }
    callers |= {"anon": {}, "worker": bearer(world.key("worker")), "service": bearer(world.key("service"))}
    assert set(callers) == set(ROLES)
    things = make(world, ann)
    for role in ROLES:
        answer = ask(world, name, callers[role], things)
        if role == "anon":
            assert answer.status_code == 401, answer.text
        elif role == "worker" or ROLES.index(role) < ROLES.index(row.least):
            assert answer.status_code == 403, (role, answer.text)
        else:
            assert answer.status_code in row.good, (role, answer.text)
            things = make(world, ann) if not name.startswith("GET") else things


@pytest.mark.parametrize("name", ROWS)
def test_strangers(world: World, name: str) -> None:
    """R0.9: somebody from another tenant learns nothing, not even that it is there, and changes nothing."""
    ann, bob = world.join("ann"), world.join("bob")
    things = make(world, ann)
    before = state(world, ann)
    for headers in (bob.headers, world.member("owner", bob.tenant).headers):
        answer = ask(world, name, headers, things)
        assert answer.status_code == ROWS[name].stranger, answer.text
        for word in (CANARY, str(things.job_id), str(ann.tenant), str(things.key_id)):
            assert word not in answer.text
        if ROWS[name].least != "service":
            assert plain(answer) == plain(ask(world, name, headers, GHOST))
    assert state(world, ann) == before


def state(world: World, ann: Person) -> list[Any]:
    """Everything that is ann's."""
    tables = """select c.relname as name from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r' and a.attname = 'tenant_id'
        order by 1"""
    with world.db.connect() as connection:
        names = [row["name"] for row in connection.execute(tables).fetchall()]
        lines = "select t::text as line from penstock.{} t where tenant_id = %s order by 1"
        return [
            (name, connection.execute(lines.format(name).encode(), [ann.tenant]).fetchall()) for name in names
        ]


def test_the_lists_show_what_they_should(world: World) -> None:
    """The counterpart: the owner finds her things where the stranger does not."""
    ann = world.join("ann")
    things = make(world, ann)
    for name in ("GET /api/jobs", "GET /api/dead-letters", "GET /api/schedules", "GET /api/costs/entries",
                 "GET /api/usage/days", "GET /api/keys"):  # fmt: skip
        assert CANARY in ask(world, name, ann.headers, things).text, name
    for name in ("GET /api/jobs/{job_id}", "GET /api/jobs/{job_id}/tasks", "GET /api/jobs/{job_id}/attempts",
                 "GET /api/dead-letters/{letter_id}"):  # fmt: skip
        assert CANARY in ask(world, name, ann.headers, things).text, name
    assert str(things.job_id) in ask(world, "GET /api/costs", ann.headers, things).text
    assert things.provider in ask(world, "GET /api/prices", ann.headers, things).text
