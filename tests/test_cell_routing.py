"""One API for several databases: each request reaches the cell of its tenant, and one cell's trouble stays there."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from psycopg.types.json import Jsonb

from penstock import routing, server
from penstock.api.limits import Rate
from penstock.cells import apply, move
from penstock.errors import Limited, Unavailable
from penstock.settings import Settings
from penstock.storage.objects import Folder
from tests.conftest import Eventually
from tests.sql.conftest import Contract
from tests.sql.test_access import join
from tests.test_cell_writes import DATA, store
from tests.test_cells import Pair, pair

__all__ = ["pair"]

pytestmark = pytest.mark.every_postgres

SECRET = "s" * 32
Serve = Callable[..., TestClient]


@pytest.fixture
def serve(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Serve]:
    """Starts one API for both cells."""
    monkeypatch.setattr(routing, "REFRESH_SECONDS", 0.01)
    first, second = (server.ensure_login(each.dsn) for each in pair.dbs)
    with ExitStack() as stack:

        def start(dsn: str = pair.dbs[1].dsn, api_url: str = second) -> TestClient:
            file = tmp_path / "cells.toml"
            file.write_text(f"[1]\ndatabase_url = {json.dumps(dsn)}\napi_url = {json.dumps(api_url)}\n")
            settings = Settings(
                database_url=pair.dbs[0].dsn,
                api_url=first,
                jwt_secret=SECRET,
                home=tmp_path,
                cells_file=file,
                storage=f"file://{tmp_path}/files",
                storage_secret="t" * 32,
            )
            return stack.enter_context(TestClient(server.application(settings)))

        yield start


@pytest.fixture
def served(serve: Serve) -> TestClient:
    return serve()


def key_of(sql: Contract, tenant: uuid.UUID) -> dict[str, str]:
    """The header of a new API key of this tenant."""
    [key] = sql.rows("create_api_key", name="k", role="admin", options=Jsonb({"tenant_id": str(tenant)}))
    return {"Authorization": f"Bearer {key['secret']}"}


def moved_tenant(pair: Pair, name: str = "far") -> tuple[uuid.UUID, dict[str, str]]:
    """A tenant in the second cell, with its key."""
    tenant = pair.old.value("create_tenant", name=name)
    headers = key_of(pair.old, tenant)
    assert move(pair.cells, tenant, 1, seconds=60) == 1
    return tenant, headers


def started(client: TestClient, headers: dict[str, str]) -> uuid.UUID:
    body = {"type": "report", "params": {}, "tasks": [{"kind": "work"}]}
    made = client.post("/api/jobs/start", headers=headers, json=body)
    assert made.status_code == 201, made.text
    return uuid.UUID(made.json()["id"])


def test_two_cells_serve_one_installation(pair: Pair, served: TestClient, eventually: Eventually) -> None:
    """B11/cells: tenants of both databases start and read jobs at one API; each database's workers run its own."""
    near = key_of(pair.old, pair.tenant)
    _, far = moved_tenant(pair)
    jobs = {
        0: started(served, near),
        1: eventually(
            lambda: served.get("/api/jobs", headers=far).status_code == 200 and started(served, far)
        ),
    }
    for cell, sql in enumerate((pair.old, pair.new)):
        assert pair.old.value("cell_of", id=jobs[cell]) == cell
        assert sql.drain() == 1
    for cell, headers in enumerate((near, far)):
        answer = served.get(f"/api/jobs/{jobs[cell]}", headers=headers)
        assert answer.json()["status"] == "completed"
        listed = served.get("/api/jobs", headers=headers).json()["items"]
        assert [job["id"] for job in listed] == [str(jobs[cell])]
    assert served.get(f"/api/jobs/{jobs[0]}", headers=far).status_code == 404


def test_an_api_key_works_before_and_after_its_tenant_moved(
    pair: Pair, served: TestClient, eventually: Eventually
) -> None:
    job = pair.old.start(1)
    headers = key_of(pair.old, pair.tenant)
    assert served.get(f"/api/jobs/{job}", headers=headers).json()["status"] == "queued"
    pair.move()
    answer = eventually(
        lambda: (found := served.get(f"/api/jobs/{job}", headers=headers)).status_code == 200 and found
    )
    assert answer.json()["id"] == str(job)
    assert pair.new.value("cell_of", id=started(served, headers)) == 1
    assert pair.old.one("select count(*) from penstock.jobs") == 0


def test_a_user_reaches_the_cell_of_the_own_tenant(
    pair: Pair, served: TestClient, eventually: Eventually
) -> None:
    ann = join(pair.old, "ann")
    claims = {"sub": str(ann.id), "role": "authenticated", "aud": "authenticated", "exp": time.time() + 600}
    headers = {"Authorization": f"Bearer {jwt.encode(claims, SECRET)}"}
    assert served.get("/api/jobs", headers=headers).status_code == 200
    move(pair.cells, ann.tenant, 1, seconds=60)
    made = eventually(
        lambda: (
            (
                found := served.post("/api/jobs/start", headers=headers, json={"type": "r", "tasks": []})
            ).json()["code"]
            != "tenant_suspended"
            and found
        )
    )
    # Users start no raw tasks: what counts is that the new cell answered.
    assert made.json()["code"] != "tenant_suspended"


def test_a_request_names_its_cell(served: TestClient) -> None:
    assert served.get("/api/jobs?cell=7").json()["code"] == "unknown_cell"
    answer = served.get("/api/jobs", headers={"Penstock-Tenant": "nobody"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_tenant")
    assert served.get("/healthz").status_code == 200


def test_a_browser_that_kept_the_number_of_a_removed_cell_is_served(served: TestClient) -> None:
    assert served.get("/dashboard/", headers={"cookie": "penstock_cell=7"}).status_code in (200, 401)


async def test_a_link_of_a_file_opens_before_and_after_its_tenant_moved(
    pair: Pair, served: TestClient, tmp_path: Path, eventually: Eventually
) -> None:
    """The same address, without an account: it may be in a sheet that somebody printed."""
    # Databases of tests are copies of one.
    pair.new.execute("update penstock.link_secrets set secret = sha256('another')")
    apply(pair.cells)
    file = await store(pair, Folder(tmp_path / "files", b"t" * 32))
    headers = key_of(pair.old, pair.tenant)
    answer = served.put(f"/api/artifacts/{file}/link", json={"link": "public"}, headers=headers)
    address = "/links/" + answer.json()["url"].partition("/links/")[2]
    assert served.get(address).content == DATA
    pair.move()
    assert eventually(lambda: (found := served.get(address)).status_code == 200 and found).content == DATA
    forged = address[:-1] + ("0" if address[-1] != "0" else "1")
    assert served.get(forged).status_code == 404


def test_a_link_of_a_wait_is_answered_in_the_cell_of_its_tenant(
    pair: Pair, served: TestClient, eventually: Eventually
) -> None:
    pair.old.start(1)
    task = pair.old.claim_one()
    wait = pair.old.park(task, options=["yes", "no"], link=True)
    token = pair.old.one("select token from penstock.wait_links")
    pair.move()
    assert eventually(lambda: served.get(f"/answers/{token}").status_code == 200)
    assert served.post(f"/answers/{token}", data={"option": "yes"}).status_code == 200
    assert pair.new.one("select option from penstock.waits") == "yes", wait


async def test_guesses_reach_the_databases_in_limited_number(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S96: each unknown key or address costs a query in every cell, on few connections that all tenants share."""
    asked: list[Any] = []
    real = routing.Cells._find

    async def find(self: routing.Cells, what: str, *arguments: Any) -> Any:
        asked.append(what)
        return await real(self, what, *arguments)

    monkeypatch.setattr(routing.Cells, "_find", find)
    known = key_of(pair.old, pair.tenant)["Authorization"]
    settings = Settings(database_url=pair.dbs[0].dsn, jwt_secret=SECRET)
    cells = routing.Cells(pair.cells, {}, settings, Rate(per_second=0.001, burst=20))

    async def ask(path: str, credential: str = "") -> int:
        headers = [(b"authorization", credential.encode())]
        return await cells.of(
            {"type": "http", "path": path, "headers": headers, "query_string": b"", "client": ("10.0.0.1", 1)}
        )

    async with cells.running():
        for _ in range(50):
            assert await ask("/api/jobs", known) == 0
        assert asked == ["key"]
        refused = 0
        for n in range(50):
            try:
                await ask(f"/links/{uuid.uuid4()}/x", f"Bearer psk_{n:064x}" if n % 2 else "")
            except Limited:
                refused += 1
        assert refused >= 30
        assert len(asked) <= 21
        # The client's own key is known already.
        assert await ask("/api/jobs", known) == 0


def test_a_cell_that_is_away_stops_only_its_own_tenants(pair: Pair, serve: Serve) -> None:
    _, far = moved_tenant(pair)
    near = key_of(pair.old, pair.tenant)
    nowhere = "postgresql://127.0.0.1:1/none"
    client = serve(dsn=nowhere, api_url=nowhere)
    assert served_status(client, near) == (200, None)
    assert served_status(client, far) == (503, "cell_unavailable")


def test_a_cell_that_cannot_be_served_is_named_in_the_log_and_tried_again(
    pair: Pair, serve: Serve, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Such as a login for users' requests that has more rights than a user."""
    monkeypatch.setattr(routing, "RESTART_SECONDS", 0.01)
    lines: list[Any] = []
    monkeypatch.setattr(routing.logger, "error", lambda _, **fields: lines.append(fields))
    _, far = moved_tenant(pair)
    client = serve(api_url=pair.dbs[1].dsn)
    assert eventually(lambda: len(lines) > 1 and lines)[0]["cell"] == 1
    assert "more rights than a user" in lines[0]["error"]
    assert served_status(client, far) == (503, "cell_unavailable")
    assert served_status(client, key_of(pair.old, pair.tenant)) == (200, None)


@pytest.mark.parametrize("is_served", [True, False])
async def test_an_api_ends_although_a_cell_drops_its_cancellation(
    pair: Pair, is_served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a connection pool does in Python 3.11 when the event that it waits for comes at the same moment."""
    monkeypatch.setattr(routing, "RESTART_SECONDS", 0.01)
    starting = asyncio.Event()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        starting.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if not is_served:
            raise Unavailable("away")
        yield

    settings = Settings(database_url=pair.dbs[0].dsn, jwt_secret=SECRET)
    cells = routing.Cells(pair.cells, {1: FastAPI(lifespan=lifespan)}, settings, Rate(per_second=1, burst=1))
    async with asyncio.timeout(30), cells.running():
        await starting.wait()


def served_status(client: TestClient, headers: dict[str, str]) -> tuple[int, str | None]:
    answer = client.get("/api/jobs", headers=headers)
    return answer.status_code, answer.json().get("code")
