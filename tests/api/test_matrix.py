"""Every route, as every role and as a stranger from another tenant. A new route without a line here fails."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from penstock import api
from penstock.api import events
from penstock.settings import Settings
from tests.api.conftest import World, bearer
from tests.api.matrix import (
    CANARY,
    GHOST,
    OF_TENANT,
    ROLES,
    TASKS,
    Row,
    Things,
    filled,
    make,
    operations,
    state,
)

pytestmark = pytest.mark.every_postgres
START = {"type": "report", "tasks": TASKS, "tenant_id": "{tenant_id}"}
SCHEDULE = {"cron": "0 3 * * *", "job_type": "report", "tasks": TASKS, "tenant_id": "{tenant_id}"}
TARGET = {"channel": "webhook", "address": "https://example.com/new", "tenant_id": "{tenant_id}"}
UPLOAD = {"name": "a.pdf", "content_type": "application/pdf", "bytes": 10, "tenant_id": "{tenant_id}"}
BULK = {"type": "sheet", "rows": [{"note": CANARY}], "tenant_id": "{tenant_id}"}
OF_BULK = {"job_id": "bulk_id"}
SHEET = f"note\n{CANARY}\n".encode()
CHECKOUT = {
    "price": "none",
    "success_url": "http://test/",
    "cancel_url": "http://test/",
    "tenant_id": "{tenant_id}",
}
PORTAL = {"return_url": "http://test/", "tenant_id": "{tenant_id}"}
HOLDER = {"worker_id": "w", "lease": 1}
TASK_FILE = {**HOLDER, "name": "a.pdf", "content_type": "application/pdf", "bytes": 10}
LETTERS = {"ids": ["{letter_id}"]}

# fmt: off
ROWS: dict[str, Row] = {
    "POST /api/jobs/start": Row("member", 403, body=START),
    "POST /api/jobs/forecast": Row("member", 403, body=START),
    "GET /api/jobs": Row("viewer", 200, OF_TENANT),
    "GET /api/jobs/{job_id}": Row("viewer", 404),
    "POST /api/jobs/{job_id}/pause": Row("member", 404, body={"reason": CANARY}),
    "POST /api/jobs/{job_id}/resume": Row("member", 404, about={"job_id": "paused_job"}),
    "POST /api/jobs/{job_id}/cancel": Row("member", 404),
    "POST /api/jobs/{job_id}/confirm": Row("member", 404, about={"job_id": "gated_job"}),
    "POST /api/jobs/{job_id}/retry": Row("member", 404, about={"job_id": "failed_job"}),
    "GET /api/jobs/{job_id}/forecast": Row("viewer", 404),
    "GET /api/jobs/{job_id}/costs": Row("viewer", 404),
    "GET /api/jobs/{job_id}/result": Row("viewer", 404),
    "PUT /api/jobs/{job_id}/budget": Row("member", 404, body={"amount": "5"}),
    "GET /api/jobs/{job_id}/tasks": Row("viewer", 404),
    "POST /api/jobs/{job_id}/tasks": Row("member", 404, body={"tasks": TASKS}),
    "GET /api/jobs/{job_id}/tasks/{task_id}": Row("viewer", 404),
    "GET /api/jobs/{job_id}/tasks/{task_id}/why": Row("viewer", 404),
    "GET /api/jobs/{job_id}/attempts": Row("viewer", 404, about={"job_id": "failed_job"}),
    "GET /api/jobs/{job_id}/logs": Row("viewer", 404, about={"job_id": "failed_job"}),
    "GET /api/jobs/{job_id}/artifacts": Row("viewer", 404),
    "POST /api/bulks/start": Row("member", 403, body=BULK),
    "POST /api/bulks/upload": Row("member", 403, "?type=sheet&tenant_id={tenant_id}&format=csv", content=SHEET),
    # Without an app there is no such type for anybody: tests/api/test_bulks.py has one.
    "POST /api/bulks/check": Row("member", 404, "?type=sheet&format=csv", content=SHEET, good=(404,)),
    "POST /api/bulks/forecast": Row("member", 404, "?type=sheet&format=csv", content=SHEET, good=(404,)),
    "GET /api/bulks": Row("viewer", 200, OF_TENANT),
    "GET /api/bulks/{job_id}": Row("viewer", 404, about=OF_BULK),
    "GET /api/bulks/{job_id}/rows": Row("viewer", 404, about=OF_BULK),
    "POST /api/bulks/{job_id}/rows": Row("member", 404, about=OF_BULK, body={"rows": [{"number": 9, "data": {}}]}),
    "POST /api/bulks/{job_id}/upload": Row("member", 404, "?format=csv", about=OF_BULK, content=SHEET),
    "POST /api/bulks/{job_id}/read": Row("member", 404, about=OF_BULK, good=(409,)),
    "POST /api/bulks/{job_id}/undo": Row("member", 404, about=OF_BULK, body={}),
    "GET /api/bulks/{job_id}/export": Row("viewer", 404, about=OF_BULK),
    "POST /api/uploads": Row("member", 403, body=UPLOAD),
    "GET /api/dead-letters": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/dead-letters/{letter_id}": Row("viewer", 404),
    "POST /api/dead-letters/replay": Row("viewer", 200, body=LETTERS),
    "POST /api/dead-letters/discard": Row("viewer", 200, body=LETTERS),
    "GET /api/waits": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/waits/{wait_id}": Row("viewer", 404),
    # The first answer counts: later callers hear 409.
    "POST /api/waits/{wait_id}/answer": Row("member", 404, body={"option": CANARY}, good=(200, 204, 409)),
    "GET /api/operations": Row("viewer", 200, "?filter=tenant:{tenant_id}"),
    "GET /api/operations/{operation_id}": Row("viewer", 404),
    "POST /api/operations/{operation_id}/reconcile": Row("member", 404),
    "POST /api/operations/{operation_id}/cancel": Row("member", 404),
    "GET /api/schedules": Row("viewer", 200, OF_TENANT),
    "PUT /api/schedules": Row("member", 403, "?name=nightly", body=SCHEDULE),
    "DELETE /api/schedules/{schedule_id}": Row("member", 404),
    "GET /api/notifications": Row("viewer", 200, OF_TENANT),
    "GET /api/notification-targets": Row("viewer", 200, OF_TENANT),
    "PUT /api/notification-targets": Row("admin", 403, body=TARGET),
    "DELETE /api/notification-targets/{target_id}": Row("admin", 404),
    "POST /api/notification-targets/{target_id}/test": Row("admin", 404),
    "POST /api/notification-targets/{target_id}/rotate": Row("admin", 404),
    "GET /api/usage": Row("viewer", 403, OF_TENANT),
    "GET /api/usage/days": Row("viewer", 200, OF_TENANT),
    "GET /api/usage/limits": Row("viewer", 403, OF_TENANT),
    "GET /api/plans": Row("viewer", 200),
    "GET /api/billing": Row("viewer", 403, OF_TENANT),
    # Without a Stripe account there is no billing: tests/test_billing.py has the simulator's.
    "POST /api/billing/checkout": Row("admin", 403, body=CHECKOUT, good=(422,)),
    "POST /api/billing/portal": Row("admin", 403, body=PORTAL, good=(409,)),
    "GET /api/entitlements": Row("viewer", 403, OF_TENANT),
    "GET /api/entitlements/gates/{gate}": Row("viewer", 403, OF_TENANT, good=(404,)),
    "GET /api/costs": Row("viewer", 200, OF_TENANT + "&by=job"),
    "GET /api/costs/entries": Row("viewer", 200, OF_TENANT),
    "GET /api/prices": Row("viewer", 200, "?provider={provider}"),
    "GET /api/providers": Row("service", 403),
    "GET /api/providers/events": Row("service", 403, "?name={name}"),
    "POST /api/providers/open": Row("service", 403, "?name={name}"),
    "PUT /api/providers": Row("service", 403, "?name={name}", body={"concurrency": 3}),
    "GET /api/workers": Row("service", 403),
    "GET /api/backlog": Row("service", 403),
    "GET /api/wanted-slots": Row("service", 403),
    "GET /api/me": Row("viewer", 200),
    "GET /api/tenants": Row("viewer", 200),
    "GET /api/tenants/{tenant_id}/members": Row("viewer", 200),
    "PUT /api/tenants/{tenant_id}/members/{user_id}": Row("admin", 403, body={"role": "viewer"}),
    "DELETE /api/tenants/{tenant_id}/members/{user_id}": Row("admin", 403),
    "POST /api/tenants/{tenant_id}/invitations": Row("admin", 403, body={"role": "viewer"}),
    "GET /api/tenants/{tenant_id}/invitations": Row("admin", 403),
    "DELETE /api/invitations/{invitation_id}": Row("admin", 404),
    "POST /api/invitations/look-up": Row("viewer", 404, body={"secret": "psi_none"}, good=(404,)),
    # Keys and the service cannot answer an invitation: tests/sql/test_invitations.py has users who do.
    "POST /api/invitations/accept": Row("viewer", 404, body={"secret": "psi_none"}, good=(403,), key=403),
    "POST /api/invitations/decline": Row("viewer", 404, body={"secret": "psi_none"}, good=(403,), key=403),
    "POST /api/tenants/{tenant_id}/leave": Row("viewer", 403, body={}, good=(403,)),
    "POST /api/keys": Row("admin", 403, body={"name": CANARY, "role": "viewer", "tenant_id": "{tenant_id}"}),
    "GET /api/keys": Row("admin", 403, OF_TENANT),
    "DELETE /api/keys/{key_id}": Row("admin", 404),
    "GET /api/artifacts/{artifact_id}": Row("viewer", 404, good=(307,)),
    "DELETE /api/artifacts/{artifact_id}": Row("member", 404),
    "PUT /api/artifacts/{artifact_id}/link": Row("member", 404, body={"link": "login"}),
    # Without the lease: tests/api/test_task_uploads.py has workers that hold it.
    "POST /api/tasks/{task_id}/artifacts": Row("worker", 403, body=TASK_FILE, good=(410,)),
    "POST /api/tasks/{task_id}/artifacts/{artifact_id}/finish": Row("worker", 403, body=HOLDER, good=(410,)),
    "POST /api/uploads/{artifact_id}/finish": Row("member", 404, about={"artifact_id": "upload_id"}),
    "GET /api/job-types": Row("viewer", 200),
    "GET /api/jobs/{job_id}/events": Row("viewer", 404, is_stream=True),
    "GET /api/jobs/{job_id}/tasks/{task_id}/stream": Row("viewer", 404, is_stream=True),
    "GET /api/events": Row("viewer", 403, OF_TENANT, is_stream=True),
    "GET /metrics": Row("worker", 403),
    "GET /healthz": Row("anybody", 200),
    "GET /readyz": Row("anybody", 200),
    "PUT /storage/{path}": Row("nobody", 403),
    "GET /storage/{path}": Row("nobody", 403),
    "HEAD /storage/{path}": Row("nobody", 403),
}
# fmt: on

# Routes outside of the OpenAPI schema. Each comment names the test of the routes that follow it.
HIDDEN = {
    # A link is enough, whatever the role: tests/api/test_waits.py.
    "/answers/{token}",
    # tests/api/test_links.py
    "/links/{artifact_id}",
    "/links/{artifact_id}/{token}",
    # The app decides who may call its functions: tests/api/test_functions.py.
    "/functions/v1/{name}",
    # Static files of the app: tests/api/test_web.py.
    "/web/{name}",
    "/web/{name}/{file}",
    "/webhooks/{source}",
    # Functions: tests/api/test_function_matrix.py. Tables: tests/sql/test_access.py. Both: tests/api/rest/test_access.py.
    "/rest/v1/rpc/{name}",
    "/rest/v1/{name}",
    "/rest/v1/{path}",
    "/api/openapi.json",
    "/docs",
    "/redoc",
    "/openapi.json",
}


def without_line(app: FastAPI) -> set[str]:
    """The routes without a line in the matrix, also those outside of the OpenAPI schema."""

    def paths(routes: Any) -> Iterator[tuple[str, Any]]:
        for route in routes:
            if (included := getattr(route, "original_router", None)) is not None:
                yield from paths(included.routes)
            else:
                yield getattr(route, "path_format", route.path), route.methods

    found = {
        f"{method} {path}" for path, methods in paths(app.routes) if path not in HIDDEN for method in methods
    }
    return (found | operations(app.openapi())) ^ set(ROWS)


def test_every_route_is_in_the_matrix() -> None:
    """S1, S54: a new route fails here, also outside of the OpenAPI schema."""
    app = api.create(Settings())
    assert without_line(app) == set()
    router = APIRouter(prefix="/api")
    router.add_api_route("/fresh", lambda: 1, include_in_schema=False)
    router.add_api_route("/fresher/{job_id:uuid}", lambda: 1, methods=["POST"])
    app.include_router(router)
    app.openapi_schema = None
    assert without_line(app) == {"GET /api/fresh", "POST /api/fresher/{job_id}"}


def ask(world: World, name: str, headers: dict[str, str], things: Things) -> httpx.Response:
    row = ROWS[name]
    method, path = name.split(" ")
    target = filled(path + row.query, things, row).replace(" ", "%20")
    if row.is_stream:
        return begun(world, target, headers)
    body = filled(row.body, things, row)
    return world.client.request(
        method, target, headers=headers, json=body, content=row.content, follow_redirects=False
    )  # pyright: ignore[reportReturnType]


def begun(world: World, target: str, headers: dict[str, str]) -> httpx.Response:
    """The first event of a stream. The test client would wait for the end of the stream."""
    path, _, query = target.partition("?")
    said: list[bytes] = []
    status = 0

    async def run() -> None:
        nonlocal status
        first = asyncio.Event()

        async def receive() -> Any:
            if not requests:
                await first.wait()
                return {"type": "http.disconnect"}
            return requests.pop()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            said.append(message.get("body", b""))
            # The retry line comes first in every stream; a task without a stream sends nothing after it.
            if (
                b"data:" in said[-1]
                or (path.endswith("/stream") and said[-1])
                or not message.get("more_body", True)
            ):
                first.set()

        requests = [{"type": "http.request", "body": b"", "more_body": False}]
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1), "server": ("testserver", 80), "state": {},
        }  # fmt: skip
        await world.app(scope, receive, send)

    assert world.client.portal is not None
    world.client.portal.call(run)
    return httpx.Response(status, content=b"".join(said))


def plain(answer: httpx.Response) -> tuple[int, Any]:
    """A response without the parts that differ in each request."""
    try:
        body = answer.json()
    except ValueError:
        return answer.status_code, answer.text
    if isinstance(body, dict) and "detail" in body:
        body.pop("request_id", None)
        # Some name the number that was asked for.
        body["detail"] = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+", "…", body["detail"])
    return answer.status_code, body


def expected(row: Row, role: str) -> tuple[int, ...]:
    """The expected response for this role."""
    if row.least == "anybody":
        return (200,)
    if row.least == "nobody":
        return (403,)
    if role == "anon":
        return (401,)
    if role == "worker":
        return row.good if row.least == "worker" else (403,)
    if row.least == "worker":
        return row.good if role == "service" else (403,)
    return row.good if ROLES.index(role) >= ROLES.index(row.least) else (403,)


@pytest.mark.slow
def test_roles(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1.9/users, R0.9/roles, S2: roles below that of the matrix are refused; this role and higher ones are not."""
    monkeypatch.setattr(events.Hub, "TICK_SECONDS", 0.01)
    ann = world.join("ann")
    callers = {
        role: world.member(role, ann.tenant).headers for role in ("viewer", "member", "admin", "owner")
    }
    callers |= {"anon": {}, "worker": bearer(world.key("worker")), "service": bearer(world.key("service"))}
    assert set(callers) == set(ROLES)
    things = make(world, ann)
    wrong: list[Any] = []
    for name, row in ROWS.items():
        for role in ROLES:
            answer = ask(world, name, callers[role], things)
            if answer.status_code not in expected(row, role):
                wrong.append((name, role, answer.status_code, answer.text))
            if answer.status_code in row.good and not name.startswith(("GET", "HEAD")):
                # A tenant has room for a bounded number of keys.
                for key in (things.key_id, things.user_id):
                    world.db.execute("select penstock.revoke_key(%s)", [key])
                things = make(world, ann)
    assert wrong == []


@pytest.mark.slow
def test_revoked_key_is_rejected_on_every_route(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S24: at once, also while the server remembers the key; with signed URLs of files and streams among them."""
    monkeypatch.setattr(events.Hub, "TICK_SECONDS", 0.01)
    ann = world.join("ann")
    things = make(world, ann)
    owner, service = world.member("owner", ann.tenant), world.key("service")
    keys = {"owner": owner.headers, "service": bearer(service)}
    for headers in keys.values():
        assert world.client.get("/api/me", headers=headers).status_code == 200
    for row in world.db.execute("select id from penstock.api_keys where revoked_at is null"):
        world.db.execute("select penstock.revoke_key(%s)", [row["id"]])
    before = state(world, ann)
    wrong: list[Any] = []
    for name, row in ROWS.items():
        if row.least in ("anybody", "nobody"):
            continue
        for role, headers in keys.items():
            answer = ask(world, name, headers, things)
            # The server refuses a tenant's key there without asking the database.
            is_foreign = role == "owner" and row.least in ("service", "worker")
            if answer.status_code not in ((401, 403) if is_foreign else (401,)):
                wrong.append((name, role, answer.status_code, answer.text[:200]))
    assert wrong == []
    assert state(world, ann) == before


@pytest.mark.slow
def test_strangers(world: World) -> None:
    """R0.9/no-existence, S1, S5, S7: a stranger from another tenant learns nothing, not even existence, and changes nothing."""
    ann, bob = world.join("ann"), world.join("bob")
    strangers = (bob.headers, world.member("owner", bob.tenant).headers)
    things = make(world, ann)
    secret = (CANARY, str(things.job_id), str(ann.tenant), str(things.key_id), str(things.artifact_id))
    before = state(world, ann)
    wrong: list[Any] = []
    for name, row in ROWS.items():
        for headers in strangers:
            answer = ask(world, name, headers, things)
            # An error may repeat the id that was asked for.
            told = re.sub(r"with id [0-9a-f-]{36}", "", answer.text)
            is_key = headers is not strangers[0]
            expected = row.key if is_key and row.key is not None else row.stranger
            if answer.status_code != expected or any(word in told for word in secret):
                wrong.append((name, answer.status_code, answer.text))
            if row.least != "service" and plain(answer) != plain(ask(world, name, headers, GHOST)):
                wrong.append((name, "is told apart from what does not exist", answer.text))
        if state(world, ann) != before:
            wrong.append((name, "changed something"))
            before = state(world, ann)
    assert wrong == []


def test_owner_sees_own_rows_in_lists(world: World) -> None:
    """The counterpart: the owner sees her rows where the stranger does not."""
    ann = world.join("ann")
    things = make(world, ann)
    for name in ("GET /api/bulks/{job_id}/rows", "GET /api/bulks/{job_id}/export"):
        assert CANARY in ask(world, name, ann.headers, things).text, name
    for name in ("GET /api/jobs", "GET /api/dead-letters", "GET /api/schedules", "GET /api/costs/entries",
                 "GET /api/usage/days", "GET /api/keys"):  # fmt: skip
        assert CANARY in ask(world, name, ann.headers, things).text, name
    for name in ("GET /api/jobs/{job_id}", "GET /api/jobs/{job_id}/tasks", "GET /api/jobs/{job_id}/attempts",
                 "GET /api/dead-letters/{letter_id}"):  # fmt: skip
        assert CANARY in ask(world, name, ann.headers, things).text, name
    assert str(things.job_id) in ask(world, "GET /api/costs", ann.headers, things).text
    assert things.provider in ask(world, "GET /api/prices", ann.headers, things).text
