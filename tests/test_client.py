"""The client over HTTP, against the real API on a socket; between them, where needed, a proxy that breaks things."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import inspect
import io
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, assert_type

import pydantic
import pytest
from fastapi import FastAPI

import penstock
from penstock import App, AsyncClient, Client, Worker, api, errors, testing
from penstock.client import core, progress, responses, transport, watching
from penstock.client import jobs as client_jobs
from penstock.contract import jobs
from penstock.postgres import db
from penstock.settings import Settings, settings
from penstock.storage import objects as storage
from penstock.types import Job, JobChange, LinkedArtifact
from tests.api.conftest import Person, World, api_settings, serving
from tests.conftest import Eventually
from tests.test_storage import bucket, credentials, s3

__all__ = ["api_settings", "bucket", "credentials", "s3"]

PDF = b"%PDF-1.7\n" + bytes(range(256)) * 1000


# A server, people, and a proxy


class Served(World):
    """The application on a socket."""

    url: str

    def client(self, key: str, url: str | None = None, **options: Any) -> Client:  # type: ignore[override]
        return Client(url or self.url, key, **options)

    def start(self, person: Person, count: int = 1, **options: Any) -> uuid.UUID:
        self.kind("work")
        chosen = json.dumps({"tenant_id": str(person.tenant), **options}, default=str)
        tasks = json.dumps([{"kind": "work", "key": f"k{n}"} for n in range(count)])
        [row] = self.db.execute("select penstock.start_job('report', '{}', %s, %s) as id", [tasks, chosen])
        return row["id"]

    def do(self, output: Any = None, error: str | None = None) -> None:
        """Do the next task, as a worker does."""
        [task] = self.db.execute("select id, lease from penstock.claim_tasks('w', 1)")
        if error is None:
            query = "select penstock.complete_task(%s, 'w', %s, %s)"
            self.db.execute(query, [task["id"], json.dumps(output), task["lease"]])
        else:
            query = (
                "select penstock.fail_task(%s, 'w', %s, %s, p_permanent => true, p_error_code => 'bad_voice')"
            )
            self.db.execute(query, [task["id"], error, task["lease"]])


class Idea(pydantic.BaseModel):
    title: str
    seconds: int = 5


@pytest.fixture
def served(db: testing.Database, api_settings: Settings) -> Iterator[Served]:
    app = App(database_url=db.dsn)

    @app.task
    def draw(text: str) -> str:
        return text

    @app.bulk(row=Idea, key=["title"])
    def ideas(row: Idea) -> Any:
        return draw.step(row.title)

    @ideas.undo
    async def undo(ctx: Any, connection: Any, row: Any, change: Any) -> None: ...

    made = api.create(api_settings, app)
    with serving(made) as site:
        world = Served(db, made, None)  # type: ignore[arg-type]
        world.url = site.url
        yield world


@pytest.fixture
def ann(served: Served) -> Person:
    return served.join("ann")


@pytest.fixture
def ask(served: Served, ann: Person) -> Iterator[Client]:
    """A client with a key of an owner."""
    with Client(served.url, served.key("owner", ann.tenant)) as made:
        yield made


@dataclass
class Asked:
    """A request that came by."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def answer(self, status: str, body: str = "", **headers: str) -> bytes:
        """What to say to it, instead of the server."""
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


@dataclass
class Cut:
    """So much of an answer passes before the connection is cut: a number of bytes, or up to a mark in it."""

    size: int = 0
    mark: bytes | None = None

    def of(self, passed: bytes) -> bytes:
        if self.mark is None:
            return passed[: self.size]
        head, mark, rest = passed.partition(self.mark)
        return head + mark + rest.partition(b"\n\n")[0] + b"\n\n" if b"\n\n" in rest else passed


Plan = Callable[[Asked], "bytes | Cut | None"]


class Proxy:
    """Passes requests on to a server. A plan decides what becomes of each answer: it passes, it is cut, or
    something else is said and the server hears nothing."""

    def __init__(self, url: str) -> None:
        self._server = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.plan: Plan = lambda _: None
        self.asked: list[Asked] = []
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def seen(self, method: str, path: str) -> list[Asked]:
        return [one for one in self.asked if one.method == method and re.search(path, one.path)]

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _pass(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            asked, sent = self._read(connection)
            if asked is None:
                return
            self.asked.append(asked)
            decided = self.plan(asked)
            if isinstance(decided, bytes):
                connection.sendall(decided)
                return
            with socket.create_connection(self._server) as server:
                server.sendall(sent)
                passed = b""
                while chunk := server.recv(1 << 16):
                    whole = passed + chunk
                    allowed = whole if decided is None else decided.of(whole)
                    connection.sendall(allowed[len(passed) :])
                    # What is dropped as a whole is read to its end: the server has done it then.
                    if decided is not None and decided != Cut() and allowed != whole:
                        return
                    passed = allowed

    def _read(self, connection: socket.socket) -> tuple[Asked | None, bytes]:
        sent = b""
        while b"\r\n\r\n" not in sent:
            if not (chunk := connection.recv(1 << 16)):
                return None, b""
            sent += chunk
        head, _, body = sent.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(1 << 16)
        method, path, _ = first.split(" ")
        # One request for each connection: the answer's end is the connection's.
        kept = [line for line in lines if not line.lower().startswith("connection:")]
        whole = "\r\n".join([first, *kept, "Connection: close"]).encode() + b"\r\n\r\n" + body
        return Asked(method, path, headers, body), whole


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    made = Proxy(served.url)
    yield made
    made.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long clients would have waited: here they do not."""
    taken: list[float] = []

    async def sleep(_: Any, seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr(transport.Blocking, "sleep", sleep)
    return taken


def lost(*paths: str) -> Plan:
    """A plan: the first answer of each path is lost on the way back, all others pass."""
    left = list(paths)

    def plan(asked: Asked) -> Cut | None:
        for path in left:
            if re.search(path, asked.path):
                left.remove(path)
                return Cut()
        return None

    return plan


# Both clients, everything they can do


async def got(value: Any) -> Any:
    """What a method gives, of either client: lists are read to their end."""
    if inspect.isawaitable(value):
        return await value
    if inspect.isasyncgen(value):
        return [item async for item in value]
    return list(value) if inspect.isgenerator(value) else value


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_every_route_has_a_method(served: Served, ann: Person, tmp_path: Path, kind: Any) -> None:
    """And each method works. A new route that no client asks fails here."""
    owner, service = (
        kind(served.url, served.key("owner", ann.tenant)),
        kind(served.url, served.key("service")),
    )
    served.kind("work")
    tasks = [{"kind": "work", "key": "a", "input": {"n": 1}}, {"kind": "work", "key": "b", "after": ["a"]}]
    due = datetime(2020, 1, 1, tzinfo=UTC)

    # jobs
    forecast = await got(owner.jobs.forecast("report", tasks=tasks, budget=Decimal("1.50")))
    assert forecast.tasks == 2 and forecast.budget.amount == Decimal("1.50")
    started = await got(
        owner.jobs.start("report", {"a": due}, tasks, budget=Decimal("1.5"), priority=3, run_at=due)
    )
    job = await got(started.get())
    assert (job.id, job.tenant_id, job.params) == (started.id, ann.tenant, {"a": "2020-01-01T00:00:00Z"})
    assert (job.progress.done, job.progress.total, job.priority) == (0, 2, 3)
    assert [phase.total for phase in job.progress.phases] == [2]
    assert [each.id for each in await got(owner.jobs.list("status:queued"))] == [job.id]
    assert await got(owner.jobs.get(str(job.id))) == job
    assert await got(owner.jobs.pause(job.id, "lunch")) == "paused"
    assert (await got(owner.jobs.get(job.id))).status_reason == "lunch"
    assert await got(owner.jobs.resume(job.id)) == "queued"
    assert (await got(owner.jobs.forecast_rest(job.id))).tasks == (await got(started.forecast())).tasks == 2
    [third] = await got(owner.jobs.add_tasks(job.id, [{"kind": "work", "key": "c"}]))
    found = await got(owner.jobs.tasks(job.id))
    assert [(task.key, task.status) for task in found] == [("a", "queued"), ("b", "blocked"), ("c", "queued")]
    assert await got(owner.jobs.task(job.id, third)) == found[2]
    assert (await got(owner.jobs.explain(job.id, third))).status == "queued"
    # tasks end
    for error in (None, "no such voice", None):
        served.do({"n": 1}, error)
    assert [job.status for job in await got(owner.jobs.watch(job.id))] == ["failed"]
    assert await got(owner.jobs.logs(job.id)) == await got(owner.jobs.stream(job.id, third)) == []
    assert [each.name for each in await got(owner.jobs.types())] == ["draw"]
    [attempt] = await got(owner.jobs.attempts(job.id))
    assert (attempt.error_code, attempt.error_message) == ("bad_voice", "no such voice")
    assert list(await got(started.outputs())) == list(await got(owner.jobs.outputs(job.id))) == ["a", "b"]
    with pytest.raises(penstock.JobFailed, match="1 of 3 tasks failed; work: bad_voice: no such voice"):
        await got(owner.jobs.wait(job.id, "1m"))
    assert await got(owner.jobs.retry(job.id)) == 1
    assert await got(owner.jobs.cancel(job.id)) == "canceled"

    # dead letters
    doomed = served.start(ann)
    served.do(error="again")
    [letter] = await got(owner.dead_letters.list(f"job:{doomed}"))
    assert await got(owner.dead_letters.get(letter.id)) == letter and letter.reason == "permanent"
    assert await got(owner.dead_letters.replay(job_id=doomed, kind="work")) == 1
    served.do(error="and again")
    assert await got(owner.dead_letters.discard(all=True)) == 1
    assert await got(owner.dead_letters.list()) == []

    # schedules
    made = await got(owner.schedules.set("by night/../.", "0 3 * * *", "report", tasks=tasks, missed="skip"))
    [schedule] = await got(owner.schedules.list())
    assert (schedule.id, schedule.name, schedule.tasks) == (made, "by night/../.", tasks)
    await got(owner.schedules.remove(made))
    assert await got(owner.schedules.list()) == []

    # money
    served.db.execute("select penstock.set_limit(%s, 'requests', 100)", [ann.tenant])
    query = "select penstock.record_usage('{\"requests\": 2}', p_tenant_id => %s, p_action => 'call')"
    served.db.execute(query, [ann.tenant])
    query = "select penstock.record_cost('render', 0.0000015, p_tenant_id => %s, p_options => %s)"
    served.db.execute(query, [ann.tenant, json.dumps({"job_id": str(job.id)})])
    usage = {line.meter: line for line in (await got(owner.usage.status())).usage}
    assert (usage["requests"].used, usage["requests"].left) == (2, 98)
    assert [(day.action, day.amount) for day in await got(owner.usage.days()) if day.action == "call"] == [
        ("call", Decimal(2))
    ]
    assert [limit.amount for limit in await got(owner.usage.limits()) if limit.meter == "requests"] == [100]
    assert "free" in {plan.name for plan in await got(owner.usage.plans())}
    served.db.execute("""select penstock.set_gate('export', '{"feature": "pdf"}')""")
    assert (await got(owner.usage.entitlements())).capabilities == {"pdf": False}
    assert (await got(owner.usage.check_gate("export"))).would_have_blocked
    assert (await got(owner.billing.status())).tier == "free"
    cost = Decimal("0.0000015")
    assert [line.amount for line in await got(owner.costs.sums("job"))] == [cost]
    assert [entry.amount for entry in await got(owner.costs.entries(job_id=job.id))] == [cost]
    assert await got(owner.costs.prices(provider="ann/own")) == []
    paid = await got(owner.costs.of_job(job.id))
    assert (paid.cost, paid.budget) == (cost, Decimal("1.5"))
    waiting = await got(owner.jobs.start("draw", {"text": "a"}))
    await got(owner.costs.set_budget(waiting.id, Decimal("2.25")))
    assert (await got(owner.costs.of_job(waiting.id))).budget == Decimal("2.25")

    # live
    changes = owner.jobs.changes()
    change = await anext(changes) if kind is AsyncClient else next(changes)
    assert isinstance(change, JobChange) and change.progress.total
    await changes.aclose() if kind is AsyncClient else changes.close()
    watch = waiting.watch()
    first = await anext(watch) if kind is AsyncClient else next(watch)
    await got(owner.jobs.cancel(waiting.id, "enough"))
    last = (await got(watch))[-1]
    assert (first.status, last.status, last.status_reason) == ("queued", "canceled", "enough")

    # artifacts
    kept = await got(owner.artifacts.upload(PDF, name="scan.pdf"))
    assert (kept.bytes, kept.sha256) == (len(PDF), hashlib.sha256(PDF).hexdigest())
    assert await got(owner.artifacts.read(kept)) == PDF
    assert (await got(owner.artifacts.download(kept.id, tmp_path))).read_bytes() == PDF
    assert replace(await got(owner.artifacts.get(kept.id)), url="") == replace(kept, url="")
    assert "/storage/" in await got(owner.artifacts.url(kept.id, expires_in=60))
    assert f"/links/{kept.id}" in await got(owner.artifacts.link(kept.id, "login"))
    assert await got(owner.artifacts.list(job.id)) == await got(owner.jobs.artifacts(job.id)) == []
    await got(owner.artifacts.delete(kept.id))
    with pytest.raises(penstock.NotFound):
        await got(owner.artifacts.get(kept.id))

    # who
    me = await got(owner.me())
    assert [tenant.id for tenant in me.tenants] == [ann.tenant]
    assert [tenant.id for tenant in await got(owner.tenants.list())] == [ann.tenant]
    new = await got(owner.keys.create("nightly", "viewer"))
    assert new.secret.startswith("psk_") and new.secret not in repr(new)
    assert {key.name for key in await got(owner.keys.list())} == {"test", "nightly"}
    await got(owner.members.set(new.id, "member"))
    assert {member.user_id: member.role for member in await got(owner.members.list())}[new.id] == "member"
    await got(owner.members.remove(new.id))
    await got(owner.keys.revoke(new.id))

    # bulk jobs
    sheet = tmp_path / "ideas.csv"
    sheet.write_text("title,seconds\notters,7\nherons,long\n")
    checked = await got(owner.bulks.check("ideas", sheet))
    assert (checked.rows, checked.good, checked.problems[0].line) == (2, 1, 3)
    assert (await got(owner.bulks.forecast("ideas", sheet, budget=2))).tasks == 1
    uploaded = await got(owner.bulks.upload("ideas", sheet, stop_after=3, idempotency_key="sheet"))
    assert (
        await got(owner.bulks.upload("ideas", sheet, stop_after=3, idempotency_key="sheet"))
    ).id == uploaded.id
    sheet.write_text("title,seconds\notters,7\nherons,6\nowls,1\n")
    assert (await got(owner.bulks.add_file(uploaded.id, sheet))).added == 1
    assert (await got(owner.bulks.add_rows(uploaded.id, {9: {"title": "voles"}}))).added == 1
    bulk = await got(owner.bulks.get(uploaded.id))
    assert (bulk.rows.total, bulk.source["name"], bulk.job.status) == (4, "ideas.csv", "queued")
    assert [row.key for row in await got(owner.bulks.rows(uploaded.id, states=["waiting"], limit=2))] == [
        "otters",
        "herons",
    ]
    exported = await got(owner.bulks.export(uploaded.id, tmp_path / "out.jsonl"))
    assert [json.loads(line)["title"] for line in exported.read_text().splitlines()] == [
        "otters", "herons", "owls", "voles",
    ]  # fmt: skip
    sheet_job = await got(owner.bulks.start("ideas", source={"type": "google-sheets", "id": "1a"}))
    await got(owner.bulks.read_again(sheet_job.id))
    await got(owner.jobs.cancel(sheet_job.id))
    posted = await got(owner.bulks.start("ideas", [{"title": "a"}], source={"name": "May"}, preview=True))
    assert {each.id for each in await got(owner.bulks.list("type:ideas"))} == {
        posted.id,
        sheet_job.id,
        uploaded.id,
    }
    served.db.execute(
        "insert into penstock.bulk_changes (tenant_id, job_id, row_number, name, applied_at)"
        " values (%s, %s, 1, 'title', now())",
        [ann.tenant, posted.id],
    )
    assert (await got((await got(owner.bulks.undo(posted.id, rows=[1]))).get())).type == "ideas.undo"
    gated = await got(owner.jobs.start("report", tasks=[{"kind": "work", "confirm": True}]))
    assert await got(owner.jobs.confirm(gated.id)) == 1

    # waits
    served.kind("asking")
    asking = await got(owner.jobs.start("report", tasks=[{"kind": "asking"}]))
    [claimed] = served.db.execute("select id, lease from penstock.claim_tasks('w', 1, array['asking'])")
    of_lease = [claimed["id"], claimed["lease"]]
    opened = "select penstock.open_wait(%s, 'w', %s, 'approval', '{\"options\": [\"yes\"]}') ->> 'id' as id"
    [wait] = served.db.execute(opened, of_lease)
    served.db.execute("select penstock.park_task(%s, 'w', %s, %s)", [*of_lease, wait["id"]])
    assert [str(each.id) for each in await got(owner.waits.list("status:open"))] == [wait["id"]]
    assert await got(owner.waits.answer(wait["id"], "yes")) is True
    assert (await got(owner.waits.get(wait["id"]))).option == "yes"
    # operations
    converting = await got(owner.jobs.start("report", tasks=[{"kind": "asking"}]))
    [claimed] = served.db.execute("select id, lease from penstock.claim_tasks('w', 1, array['asking'])")
    begun = "select penstock.begin_operation(%s, 'w', %s, 'slide:1', 300) ->> 'id' as id"
    [operation] = served.db.execute(begun, [claimed["id"], claimed["lease"]])
    assert [str(each.id) for each in await got(owner.operations.list("status:pending"))] == [operation["id"]]
    assert (await got(owner.operations.get(operation["id"]))).object == "slide:1"
    assert await got(owner.operations.reconcile(operation["id"])) == 1
    assert await got(owner.operations.cancel(operation["id"])) == "canceled"
    assert await got(owner.operations.reconcile(operation["id"])) == 0
    await got(owner.jobs.cancel(converting.id))
    await got(owner.jobs.cancel(asking.id))
    assert await got(owner.jobs.result(asking.id)) is None

    # notifications and invitations
    target = await got(owner.notifications.set_target("webhook", "https://example.com/hook"))
    assert target.secret is not None
    assert [each.id for each in await got(owner.notifications.targets())] == [target.id]
    sent = await got(owner.notifications.send_test(target.id))
    assert [each.id for each in await got(owner.notifications.list())] == [sent]
    assert await got(owner.notifications.rotate_secret(target.id)) != target.secret
    await got(owner.notifications.remove_target(target.id))
    invited = await got(owner.invitations.create("viewer"))
    assert invited.id in [each.id for each in await got(owner.invitations.list())]
    assert (await got(owner.invitations.get(invited.secret))).role == "viewer"
    # Only people answer invitations and leave.
    with pytest.raises(errors.Forbidden):
        await got(owner.invitations.accept(invited.secret))
    other = served.join(f"bob{uuid.uuid4().hex[:6]}")
    bob: Any = kind(served.url, other.headers["Authorization"].removeprefix("Bearer "))
    assert (
        await got(bob.invitations.accept((await got(owner.invitations.create("viewer"))).secret))
        == ann.tenant
    )
    await got(bob.invitations.leave(ann.tenant))
    await got(bob.invitations.decline((await got(owner.invitations.create("viewer"))).secret))
    await got(owner.invitations.revoke(invited.id))

    # operations
    assert await got(service.providers.set("ann/own", concurrency=2, features=["fast"])) > 0
    [provider] = [each for each in await got(service.providers.list()) if each.name == "ann/own"]
    assert (provider.concurrency, provider.features) == (2, ["fast"])
    await got(service.providers.open("ann/own"))
    assert [event.event for event in await got(service.providers.events("ann/own"))] == [
        "opened", "changed",
    ]  # fmt: skip
    assert await got(service.workers.list()) == []
    assert {lane.kind for lane in await got(service.workers.backlog())} >= {"work"}
    assert {slots.kind for slots in await got(service.workers.wanted_slots())} >= {"work"}

    for each in (owner, service, bob):
        await each.aclose() if kind is AsyncClient else each.close()
    assert routes_of(served.app) - asked_of(served.app) == FOR_OTHERS


# For probes and for Prometheus; what a browser asks of a file before it reads it; what needs an account at Stripe
# (tests/test_billing.py); and uploads of workers in other languages (tests/api/test_task_uploads.py).
FOR_OTHERS = {
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "HEAD /storage/{path}",
    "POST /api/billing/checkout",
    "POST /api/billing/portal",
    "POST /api/tasks/{task_id}/artifacts",
    "POST /api/tasks/{task_id}/artifacts/{artifact_id}/finish",
}


def routes_of(app: FastAPI) -> set[str]:
    paths: dict[str, Any] = app.openapi()["paths"]
    return {f"{method.upper()} {path}" for path, item in paths.items() for method in item}


def asked_of(app: FastAPI) -> set[str]:
    """The routes that answered, and did not refuse."""
    samples = [sample for metric in app.state.metrics.requests.collect() for sample in metric.samples]
    return {
        f"{sample.labels['method']} {sample.labels['route']}"
        for sample in samples
        if sample.value and sample.labels["status"] < "400" and sample.labels["status"] != "0"
    }


def test_both_clients_have_typed_methods() -> None:
    """One body for both, and each with its own types: checked by pyright, and here for what `help` shows."""

    def blocking(client: Client) -> None:
        assert_type(client.jobs.get("id"), Job)
        assert_type(client.jobs.list("x"), Iterator[Job])
        assert_type(client.jobs.start("x").wait("1m", progress=True), Job)
        assert_type(client.artifacts.upload(b""), LinkedArtifact)

    async def awaiting(client: AsyncClient) -> None:
        assert_type(await client.jobs.get("id"), Job)
        assert_type([job async for job in client.jobs.list("x")], list[Job])
        assert_type(await (await client.jobs.start("x")).wait("1m"), Job)

    assert blocking and awaiting
    with Client("http://localhost") as made:
        assert list(inspect.signature(made.jobs.pause).parameters) == ["job_id", "reason"]
        assert "Running tasks finish" in str(made.jobs.pause.__doc__)
        assert not inspect.iscoroutinefunction(made.jobs.pause)


async def test_blocking_client_works_in_a_running_loop(served: Served, ask: Client) -> None:
    """As in a notebook."""
    assert [tenant.name for tenant in ask.tenants.list()] and ask.me().tenants


# What goes wrong


async def test_client_raises_the_sdk_errors(served: Served, ann: Person, ask: Client) -> None:
    """The same class, code, hint and details, whichever way was taken."""
    job = served.start(ann)
    ask.jobs.cancel(job)
    wrong: list[tuple[Any, Callable[[], Any]]] = [
        (lambda pool: jobs.get(pool, job_id=ann.id), lambda: ask.jobs.get(ann.id)),
        (lambda pool: jobs.pause(pool, job_id=job), lambda: ask.jobs.pause(job)),
        (lambda pool: jobs.retry(pool, job_id=job), lambda: ask.jobs.retry(job)),
        (
            lambda pool: jobs.start(pool, type="x", tasks=[{"kind": "nobody's"}], tenant_id=ann.tenant),
            lambda: ask.jobs.start("x", tasks=[{"kind": "nobody's"}]),
        ),
        (lambda pool: jobs.list(pool, filter="colour:red"), lambda: list(ask.jobs.list("colour:red"))),
    ]
    async with db.pool(served.db.dsn, name="test") as pool:
        for by_sdk, by_client in wrong:
            with pytest.raises(penstock.PenstockError) as there:
                await by_sdk(pool)
            with pytest.raises(penstock.PenstockError) as here:
                await asyncio.to_thread(by_client)
            one, other = there.value, here.value
            assert other.details.pop("request_id")
            assert (type(one), one.code, one.hint, one.details) == (
                type(other), other.code, other.hint, other.details,
            )  # fmt: skip
            assert (one.status, one.message) == (other.status, other.message)


def test_every_error_survives_the_round_trip() -> None:
    for row in errors.TABLE:
        error = row.error("why", code="a_code", hint="do", details={"status": "ended", "field": "x"})
        problem = errors.to_problem(error)
        back = errors.from_problem(error.status, json.loads(json.dumps(problem)))
        # An unknown code leaves only the status, which these share with another error.
        shared = {errors.NotMigrated: errors.PenstockError, errors.JobFailed: errors.PenstockError,
                  errors.Gone: errors.LeaseLost}  # fmt: skip
        assert type(back) is shared.get(row.error, row.error)
        assert (back.code, back.hint, back.details, str(back)) == ("a_code", "do", error.details, "why\ndo")
        assert type(errors.from_problem(row.status, errors.to_problem(row.error()))) is row.error


def test_missing_permissions_are_reported(served: Served, ann: Person, ask: Client) -> None:
    with Client(served.url, "psk_" + "0" * 64) as stranger, pytest.raises(errors.Unauthenticated) as bad:
        stranger.jobs.get(ann.id)
    assert (bad.value.code, bad.value.status) == ("unauthenticated", 401)
    with pytest.raises(penstock.Forbidden):
        ask.providers.list()
    with Client(served.url, served.key("service")) as service:
        with pytest.raises(penstock.Invalid) as unsaid:
            service.usage.days()
        assert unsaid.value.code == "tenant_missing"
        assert service.usage.days(tenant_id=ann.tenant) == []
    bob = served.join("bob")
    mine, others = served.start(ann), served.start(bob)
    with Client(served.url, served.key("service"), tenant=ann.tenant) as narrow:
        assert [job.id for job in narrow.jobs.list()] == [mine]
        assert [job.id for job in narrow.jobs.list(tenant_id=bob.tenant)] == [others]
        assert narrow.jobs.start("draw", {"text": "x"}).get().tenant_id == ann.tenant
        for _ in range(3):
            served.do(error="no")
        assert narrow.dead_letters.replay(all=True) == 2, "bob's is left"
        assert [letter.job_id for letter in ask.dead_letters.list()] == []
        assert narrow.keys.create("loop", "worker").tenant_id is None


def test_lost_response_starts_one_job(served: Served, ann: Person, proxy: Proxy, pauses: list[float]) -> None:
    """The server had committed; the same key gives what was done, and does nothing twice."""
    served.kind("work")
    proxy.plan = lost("/jobs/start", "/tasks", "/pause", "/keys", "/uploads$", "/finish", "/storage")
    with Client(proxy.url, served.key("owner", ann.tenant)) as ask:
        job = ask.jobs.start("report", tasks=[{"kind": "work"}])
        ids = ask.jobs.add_tasks(job.id, [{"kind": "work"}] * 3)
        assert ask.jobs.pause(job.id) == "paused"
        key = ask.keys.create("lost", "viewer")
        file = ask.artifacts.upload(b"{}", name="a.json")
    assert [row["id"] for row in served.db.execute("select id from penstock.jobs")] == [job.id]
    assert len(ids) == 3 and len(served.db.execute("select 1 from penstock.tasks")) == 4
    assert (
        key.secret is None
        and len(served.db.execute("select 1 from penstock.api_keys where name = 'lost'")) == 1
    )
    assert [row["id"] for row in served.db.execute("select id from penstock.artifacts")] == [file.id]
    for path in ("/jobs/start", "/tasks", "/pause", "/keys", "/uploads$", "/finish"):
        keys = [asked.headers["idempotency-key"] for asked in proxy.seen("POST", path)]
        assert len(keys) >= 2 and len(set(keys)) == 1, path
    assert len(pauses) == 7


def test_busy_server_is_retried(served: Served, ann: Person, proxy: Proxy, pauses: list[float]) -> None:
    answers = iter([
        ("429 Too Many Requests", {"Retry_After": "7"}),
        ("503 Service Unavailable", {}),
        ("502 Bad Gateway", {"Content_Type": "text/html"}),
        ("504 Gateway Timeout", {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    ])  # fmt: skip

    def plan(asked: Asked) -> bytes | None:
        found = next(answers, None)
        return found and asked.answer(found[0], "<h1>no</h1>", **found[1])

    proxy.plan = plan
    with Client(proxy.url, served.key("owner", ann.tenant)) as ask:
        assert ask.jobs.start("draw", {"text": "x"}).get().status == "queued"
    assert len({asked.headers["idempotency-key"] for asked in proxy.seen("POST", "start")}) == 1
    assert len(pauses) == 4 and 7 <= pauses[0] <= 7.5
    for pause, longest in zip(pauses[1:], (1, 2, 4), strict=True):
        assert 0 <= pause <= longest, "full jitter, doubling"


@pytest.mark.parametrize(
    ("status", "headers", "tries", "error"),
    [
        ("503 Service Unavailable", {}, 3, penstock.Unavailable),
        ("429 Too Many Requests", {}, 1, penstock.Limited),
        ("429 Too Many Requests", {"Retry_After": "86400"}, 1, penstock.Limited),
        ("500 Internal Server Error", {}, 1, penstock.PenstockError),
        ("400 Bad Request", {}, 1, penstock.Invalid),
        ("409 Conflict", {}, 1, penstock.Conflict),
        ("418 I'm a teapot", {}, 1, penstock.Invalid),
        ("308 Permanent Redirect", {"Location": "http://127.0.0.1:1/api/me?x=y"}, 1, penstock.PenstockError),
        ("200 OK", {"Content_Encoding": "gzip"}, 1, penstock.PenstockError),
        ("200 OK", {}, 1, penstock.PenstockError),
    ],
)  # fmt: skip
def test_retries_are_bounded_and_only_for_retryable_errors(
    proxy: Proxy,
    pauses: list[float],
    status: str,
    headers: dict[str, str],
    tries: int,
    error: type[Exception],
) -> None:
    proxy.plan = lambda asked: asked.answer(status, "<h1>no</h1>", **headers)
    with Client(proxy.url, "secret-key", retries=2) as ask, pytest.raises(error) as refused:
        ask.keys.create("a", "viewer")
    assert len(proxy.asked) == tries
    assert "secret-key" not in f"{refused.value!r} {refused.value.details}"  # type: ignore[attr-defined]
    if tries > 1:
        assert refused.value.details["idempotency_key"] == proxy.asked[0].headers["idempotency-key"]  # type: ignore[attr-defined]


def test_unreachable_server_is_unavailable(pauses: list[float]) -> None:
    with Client("http://127.0.0.1:1", "k", retries=2) as ask, pytest.raises(penstock.Unavailable):
        ask.me()
    assert len(pauses) == 2


# Lists


def test_pages_are_fetched_on_demand(
    served: Served, ann: Person, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "PAGE", 2)
    started = [served.start(ann, 5) for _ in range(5)]
    with Client(proxy.url, served.key("viewer", ann.tenant)) as ask:
        lines = ask.jobs.list()
        assert next(lines).id == started[4]
        assert len(proxy.asked) == 1
        assert [job.id for job in lines] == started[3::-1]
        assert [job.id for job in ask.jobs.list(limit=3)] == started[:1:-1]
        assert [task.key for task in ask.jobs.tasks(started[0])] == [f"k{n}" for n in range(5)]
        assert list(ask.jobs.list(limit=0)) == []


def test_many_tasks_in_one_request(served: Served, ann: Person, ask: Client) -> None:
    """What is kept of the answer, in case it is lost, holds all their ids."""
    job = served.start(ann)
    assert len(set(ask.jobs.add_tasks(job, [{"kind": "work"}] * 20_000))) == 20_000


# Watching


@pytest.mark.slow
def test_watch_resumes_a_broken_stream(
    served: Served, ann: Person, proxy: Proxy, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is opened again after the last event that was heard; each state is told once."""
    monkeypatch.setattr(watching, "_RECONNECT_SECONDS", 0.05)
    job = served.start(ann, 3)
    streams = iter([Cut(mark=b"data: ")] * 2)
    proxy.plan = lambda asked: next(streams, None) if asked.path.endswith("/events") else None
    with Client(proxy.url, served.key("viewer", ann.tenant)) as ask, ThreadPoolExecutor(1) as others:
        told: list[Job] = []
        watched = others.submit(lambda: told.extend(ask.jobs.watch(job)))
        for done in range(3):
            eventually(partial(lambda least: len(proxy.seen("GET", "/events$")) > least, min(done, 2)))
            served.do()
        watched.result(30)
    assert all(one != other and one.progress.done <= other.progress.done for one, other in pairwise(told))
    assert told[-1].status == "completed" and told[-1].progress.percent == 100
    first, *again = proxy.seen("GET", "/events$")
    assert "last-event-id" not in first.headers
    assert len(again) >= 2 and all(len(asked.headers["last-event-id"]) == 16 for asked in again)
    assert any("if-none-match" in asked.headers for asked in proxy.seen("GET", f"{job}$"))


def test_watch_polls_without_a_stream(
    served: Served, ann: Person, proxy: Proxy, eventually: Eventually, pauses: list[float]
) -> None:
    """Behind what does not let streams through, with tags."""
    job = served.start(ann)
    proxy.plan = lambda asked: (
        asked.answer("200 OK", "<h1>no</h1>") if asked.path.endswith("/events") else None
    )
    with Client(proxy.url, served.key("viewer", ann.tenant)) as ask, ThreadPoolExecutor(1) as others:
        waited = others.submit(ask.jobs.wait, job, 60)
        eventually(lambda: len(proxy.seen("GET", f"{job}$")) > 5)
        served.do()
        assert waited.result(30).status == "completed"
    looks = proxy.seen("GET", f"{job}$")
    assert all("if-none-match" in look.headers for look in looks[1:])
    assert len(proxy.seen("GET", "/events$")) < len(looks) / 2


def test_wait_sends_no_requests_between_events(
    served: Served, ann: Person, proxy: Proxy, eventually: Eventually
) -> None:
    job = served.start(ann, 5)
    with Client(proxy.url, served.key("viewer", ann.tenant)) as ask, ThreadPoolExecutor(1) as others:
        waited = others.submit(ask.jobs.wait, job, 60)
        eventually(lambda: proxy.seen("GET", "/events$"))
        for _ in range(5):
            served.do()
        assert waited.result(30).progress.done == 5
    assert len(proxy.seen("GET", f"{job}$")) == 2


def test_wait_survives_a_server_restart(
    served: Served, ann: Person, proxy: Proxy, pauses: list[float]
) -> None:
    job = served.start(ann)
    answers = iter([None, Cut(mark=b"data: "), *["503 Service Unavailable"] * 8])

    def plan(asked: Asked) -> bytes | Cut | None:
        said = next(answers, "over")
        if said == "over":
            with contextlib.suppress(ValueError):
                served.do()
            return None
        return asked.answer(said) if isinstance(said, str) else said

    proxy.plan = plan
    with Client(proxy.url, served.key("viewer", ann.tenant), retries=0) as ask:
        assert ask.jobs.wait(job).status == "completed"
    assert len(proxy.seen("GET", "/events$")) > 2


def test_wait_stops_after_timeout(served: Served, ann: Person, ask: Client) -> None:
    job = served.start(ann)
    with pytest.raises(penstock.TimedOut, match=r"did not end within 0\.2 s"):
        ask.jobs.wait(job, 0.2)
    with pytest.raises(penstock.Invalid):
        ask.jobs.wait(job, "soon")


async def test_many_waits_run_concurrently(served: Served, ann: Person) -> None:
    async with AsyncClient(served.url, served.key("member", ann.tenant)) as ask:
        started = await asyncio.gather(*(ask.jobs.start("draw", {"text": str(n)}) for n in range(5)))
        waits = [asyncio.create_task(job.wait("20s")) for job in started]
        for _ in started:
            await asyncio.to_thread(served.do, "ok")
        assert {job.status for job in await asyncio.gather(*waits)} == {"completed"}
        assert list((await started[0].outputs()).values()) == ["ok"]


def test_event_parser_reads_events() -> None:
    async def lines() -> AsyncGenerator[str]:
        for line in (
            ": hi",
            "id: 1",
            "event: progress",
            "data: {",
            "data: }",
            "",
            "id: é",
            "data: 2",
            "",
            "",
            "data: 3",
        ):
            yield line

    found = list(transport.iterate(responses.parsed(lines())))
    assert found == [None, responses.Event("1", "progress", {}), responses.Event("1", "message", 2)]


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_wait_shows_progress_on_a_terminal(
    served: Served, ann: Person, ask: Client, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phases, percent, cost of the budget, and the reason for waiting; nothing that steers the terminal."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "_FETCH_SECONDS", 0)
    name = "ann/slow"
    served.db.execute('select penstock.set_provider(%s, \'{"status": "maintenance"}\')', [name])
    served.db.execute("select penstock.set_price(%s, 'requests', 0.25)", [name])
    served.kind("work")
    tasks = [{"kind": "work", "phase": "draw"}, {"kind": "work", "phase": "bind", "provider": name}]
    job = ask.jobs.start("report", tasks=tasks, budget=2)
    with ThreadPoolExecutor(1) as others:
        waited = others.submit(job.wait, 60, progress=True)
        eventually(lambda: "is waiting: " in screen.getvalue(), "that there is no worker")
        served.do()
        eventually(lambda: "1/2 tasks" in screen.getvalue(), "half of it")
        eventually(lambda: "is waiting: ann/slow" in screen.getvalue(), "the reason")
        served.db.execute('select penstock.set_provider(%s, \'{"status": "active"}\')', [name])
        eventually(lambda: served.db.execute("select 1 from penstock.ready"), "something to do")
        served.do()
        assert waited.result(30).status == "completed"
    shown = screen.getvalue()
    assert "\x1b[2J" not in shown and "draw" in shown
    assert re.search("█{30}", shown) and "100%" in shown and "✓ completed" in shown
    assert "0.00 of 2.00 spent" in shown and "0.25 of 2.00 spent" in shown


def test_wait_shows_no_progress_without_a_terminal(
    served: Served, ann: Person, ask: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    job = served.start(ann)
    served.do()
    assert ask.jobs.wait(job, progress=True).status == "completed"
    assert capsys.readouterr().err == ""


# Files


@pytest.mark.parametrize("how", ["path", "bytes", "stream", "pipe"])
def test_file_is_uploaded_and_downloaded(
    served: Served, ann: Person, proxy: Proxy, tmp_path: Path, how: str
) -> None:
    """The key is shown to the API alone; the storage gets the signed URL."""
    (tmp_path / "scan.pdf").write_bytes(PDF)
    with contextlib.ExitStack() as stack:
        ask = stack.enter_context(Client(proxy.url, served.key("member", ann.tenant)))
        file = stack.enter_context((tmp_path / "scan.pdf").open("rb"))
        pipe = stack.enter_context(
            subprocess.Popen(["cat", tmp_path / "scan.pdf"], stdout=subprocess.PIPE)
        ).stdout
        source: Any = {"path": tmp_path / "scan.pdf", "bytes": PDF, "stream": file, "pipe": pipe}[how]
        kept = ask.artifacts.upload(source, name="scan.pdf")
        assert kept.sha256 == hashlib.sha256(PDF).hexdigest()
        assert not file.closed, "it is the caller's"
        place = ask.artifacts.download(kept, tmp_path / "down.pdf")
    assert place.read_bytes() == PDF
    stored = [asked for asked in proxy.asked if asked.path.startswith("/storage/")]
    assert [asked.method for asked in stored] == ["PUT", "GET"]
    for asked in stored:
        assert not {"authorization", "apikey", "cookie", "idempotency-key"} & set(asked.headers)


def test_broken_download_resumes(
    served: Served, ann: Person, proxy: Proxy, tmp_path: Path, pauses: list[float]
) -> None:
    """By ranges, within a call and from call to call; and the file is there only when it is whole."""
    cuts = iter([Cut(100_000), Cut(100_000), Cut(50_000)])
    with Client(proxy.url, served.key("member", ann.tenant), retries=1) as ask:
        kept = ask.artifacts.upload(PDF, name="a.pdf")
        proxy.plan = lambda asked: next(cuts, None) if asked.path.startswith("/storage/") else None
        assert ask.artifacts.download(kept.id, tmp_path / "a.pdf").read_bytes() == PDF
        ranges = [
            int(asked.headers.get("range", "bytes=0-")[6:-1]) for asked in proxy.seen("GET", "/storage/")
        ]
        assert ranges[0] == 0 and sorted(ranges) == ranges and len(set(ranges)) == 4
        # from call to call
        proxy.asked.clear()
        proxy.plan = lambda asked: (
            Cut(0 if "range" in asked.headers else 100_000) if asked.path.startswith("/storage/") else None
        )
        with pytest.raises(penstock.Unavailable):
            ask.artifacts.download(kept.id, tmp_path / "b.pdf")
        [part] = tmp_path.glob("b.pdf.*.part")
        had = part.stat().st_size
        assert had > 50_000 and not (tmp_path / "b.pdf").exists()
        proxy.plan = lambda _: None
        proxy.asked.clear()
        assert ask.artifacts.download(kept.id, tmp_path / "b.pdf").read_bytes() == PDF
        assert [asked.headers["range"] for asked in proxy.seen("GET", "/storage/")] == [f"bytes={had}-"]
        # what is left there may be anything
        part.write_bytes(b"spoilt" * 1000)
        assert ask.artifacts.download(kept.id, tmp_path / "b.pdf").read_bytes() == PDF
        assert sorted(path.name for path in tmp_path.glob("*.pdf*")) == ["a.pdf", "b.pdf"]


def test_wrong_digest_is_rejected(
    served: Served, ann: Person, ask: Client, tmp_path: Path, api_settings: Settings
) -> None:
    kept = ask.artifacts.upload(PDF, name="../../etc/pass wd.pdf")
    assert ask.artifacts.download(kept, tmp_path) == tmp_path / "pass wd.pdf"
    [file] = [path for path in (api_settings.home / "artifacts").rglob("*.pdf") if path.is_file()]
    file.write_bytes(PDF[:-1] + b"!")
    with pytest.raises(penstock.PenstockError) as refused:
        ask.artifacts.download(kept, tmp_path / "x.pdf")
    assert refused.value.code == "wrong_digest"
    with pytest.raises(penstock.PenstockError):
        ask.artifacts.read(kept)
    assert not list(tmp_path.glob("x.pdf*"))


@pytest.mark.slow
def test_files_are_transferred_through_s3(
    served: Served, ann: Person, ask: Client, bucket: storage.Bucket, tmp_path: Path
) -> None:
    """With the bucket's own URLs, byte for byte as they were signed."""
    served.app.state.storage = bucket
    kept = ask.artifacts.upload(PDF, name="ein Blatt.pdf")
    assert not kept.url.startswith(served.url)
    part = tmp_path / f"a.pdf.{kept.sha256[:16]}.part"
    part.write_bytes(PDF[:1000])
    assert ask.artifacts.download(kept, tmp_path / "a.pdf").read_bytes() == PDF


def test_large_output_is_loaded_from_its_file(
    db: testing.Database,
    served: Served,
    ann: Person,
    ask: Client,
    drain: testing.Drain,
    api_settings: Settings,
) -> None:
    app = App(tenant=ann.tenant)

    @app.task
    def lots(n: int) -> str:
        return "x" * n

    drain.use(app)
    app.storage = storage.of(api_settings)
    job = lots.start(2_000_000)
    drain(app)
    assert ask.jobs.outputs(job.id) == {"lots-1": "x" * 2_000_000}


# Care


def test_key_is_never_printed_or_leaked(
    served: Served,
    ann: Person,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Neither it nor a signature is in what is printed or logged."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "httpcore")
    key = served.key("owner", ann.tenant)
    # It would see what is not encrypted.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with Client(served.url, key) as ask:
        job = ask.jobs.start("draw", {"text": "x"})
        kept = ask.artifacts.upload(PDF, name="a.pdf")
        ask.artifacts.download(kept, tmp_path)
        seen = f"{ask!r} {job!r} {kept!r} {ask.jobs!r} {vars(vars(ask)['_core'])!r}"
    assert repr(ask) == f"<penstock.Client {served.url}>"
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "/storage/" in logged
    for secret in (key, re.findall(r"[?&](?:signature|s)=([^&]+)", kept.url)[0]):
        assert secret not in seen and secret not in logged


@pytest.mark.parametrize(
    "url",
    ["http://jobs.example.org", "http://10.0.0.1", "http://localhost.example.org", "http://[::ffff:8.8.8.8]"],
)
def test_key_is_not_sent_unencrypted(url: str) -> None:
    with pytest.raises(penstock.Invalid) as refused:
        Client(url, "k")
    assert refused.value.code == "insecure_url"
    Client(url).close()
    Client(url, "k", allow_http=True).close()


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("jobs.example.org", "k"),
        ("ftp://jobs.example.org", "k"),
        ("https://me:password@jobs.example.org", "k"),
        ("https://jobs.example.org/?x=1", "k"),
        ("https://jobs.example.org", "k\r\nX-Evil: 1"),
        ("https://jobs.example.org", "schlüssel"),
    ],
)
def test_invalid_url_and_key_are_rejected(url: str, key: str) -> None:
    with pytest.raises(penstock.Invalid) as refused:
        Client(url, key)
    assert "password" not in str(refused.value) and "Evil" not in str(refused.value)


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument, or the variable."""
    monkeypatch.setenv("PENSTOCK_URL", "https://one.example.org/")
    monkeypatch.setenv("PENSTOCK_KEY", "from-there\n")
    settings.cache_clear()
    try:
        assert repr(Client()) == "<penstock.Client https://one.example.org>"
        assert "two.example.org" in repr(AsyncClient("https://two.example.org"))
        monkeypatch.delenv("PENSTOCK_URL")
        settings.cache_clear()
        with pytest.raises(penstock.Invalid, match="PENSTOCK_URL"):
            Client()
        assert "from-there" not in repr(settings())
    finally:
        settings.cache_clear()


def test_redirects_are_not_followed(proxy: Proxy) -> None:
    """S75"""
    proxy.plan = lambda asked: asked.answer("404 Not Found")
    with Client(proxy.url, "k") as ask:
        for wrong in ("../keys", "x/../../healthz", "", "*"):
            with pytest.raises(penstock.Invalid):
                ask.jobs.get(wrong)
        with pytest.raises(penstock.NotFound):
            ask.schedules.set("../../healthz?x&y#z", "* * * * *", "x")
    assert [asked.path for asked in proxy.asked] == ["/api/schedules?name=..%2F..%2Fhealthz%3Fx%26y%23z"]
    assert core.path("/api/{}/x", "../a?b") == "/api/%2E%2E%2Fa%3Fb/x"


def test_endless_responses_are_rejected(proxy: Proxy) -> None:
    body = json.dumps({"items": ["x" * 5000], "next": None})
    proxy.plan = lambda asked: asked.answer("200 OK", body, Content_Type="application/json")
    with Client(proxy.url, "k", max_bytes=4000) as ask, pytest.raises(errors.TooLarge) as refused:
        list(ask.jobs.list())
    assert refused.value.code == "answer_too_large"
    bomb = gzip.compress(b"0" * 10_000_000).decode("latin-1")
    proxy.plan = lambda asked: asked.answer("200 OK", bomb, Content_Encoding="gzip")
    with Client(proxy.url, "k") as ask, pytest.raises(penstock.PenstockError, match="compressed"):
        ask.me()


def test_http_file_url_is_rejected_if_the_api_uses_https() -> None:
    with Client("https://jobs.example.org", "k") as ask:
        send = vars(ask)["_core"].signed_request
        with pytest.raises(penstock.Invalid):
            send("GET", "http://files.example.org/a?signature=1")
        with pytest.raises(penstock.PenstockError):
            send("GET", "file:///etc/passwd")
        request = send("GET", "https://files.example.org/a%2Fb?signature=1%2f")
    assert (str(request.url), request.extensions["target"]) == (
        "https://files.example.org/a%2Fb",
        b"/a%2Fb?signature=1%2f",
    )
    assert "authorization" not in request.headers


def test_client_imports_are_light() -> None:
    """It loads no driver of a database, and no server."""
    heavy = "psycopg", "fastapi", "obstore", "penstock.sdk.app", "penstock.postgres.db"
    script = (
        f"import sys, penstock; penstock.Client; print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_client_docs_run(
    db: testing.Database, api_settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/client.md from top to bottom; whoever waits there lets a worker run first."""
    app = App(database_url=db.dsn, tenant="acme")

    @app.task(raw_tasks=True)
    def write(topic: str) -> str:
        return f"All about {topic}."

    @app.job
    def publish(topics: list[str]) -> None:
        for topic in topics:
            write.step(topic)

    original = client_jobs._wait  # pyright: ignore[reportPrivateUsage]

    async def work_first(*args: Any) -> Job:
        with ThreadPoolExecutor(1) as others:
            others.submit(asyncio.run, Worker(app, drain=True).run()).result(30)
            others.submit(asyncio.run, app.aclose()).result(30)
        return await original(*args)

    text = (Path(__file__).parents[1] / "docs/client.md").read_text()
    parts = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(client_jobs, "_wait", work_first)
    monkeypatch.setenv("PENSTOCK_ALLOW_UNSAFE", "1")
    monkeypatch.chdir(tmp_path)
    with serving(api.create(api_settings, app)) as site:
        world = World(db, None, None)  # type: ignore[arg-type]
        [tenant] = db.execute("select penstock.ensure_tenant('acme') as id")
        monkeypatch.setenv("PENSTOCK_URL", site.url)
        monkeypatch.setenv("PENSTOCK_KEY", world.key("owner", tenant["id"]))
        settings.cache_clear()
        try:
            exec(compile("\n\n".join(parts), "client.md", "exec"), {"__name__": "guide"})  # noqa: S102 our own page
        finally:
            settings.cache_clear()
    assert len(parts) == 5
