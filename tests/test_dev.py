"""`penstock dev`: API, dashboard and worker in one command, for this machine only."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import Response
from fastapi.testclient import TestClient

from penstock import api, cli, server, testing
from penstock.api import sessions
from penstock.api.development import Development
from penstock.cli.dev.supervisor import Supervisor
from penstock.errors import Invalid
from penstock.settings import Settings
from tests.conftest import Eventually

pytestmark = pytest.mark.timeout(400)

APP = """\
from penstock import App
app = App()

@app.task
async def double(n: int) -> int:
    return 2 * n

@app.task(cpu_bound=True, max_attempts=1)
def square(n: int) -> int:
    return n * n

@app.job
def sums(numbers: list[int]) -> None:
    for n in numbers:
        square.step(double.step(n))
"""
SECONDS = 120
"""How long a process may take to start, respond or end: on a busy machine it gets little CPU time."""
JOB = {"type": "sums", "params": {"numbers": [1, 2, 3]}}


@dataclass
class Running:
    """`penstock dev` in a process of its own, and what it says."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as lines:
            self.said.extend(lines)

    @property
    def text(self) -> str:
        return "".join(self.said)

    def word(self, pattern: str, eventually: Eventually) -> str:
        """What it printed, once it did."""
        found = eventually(lambda: re.search(pattern, self.text) or self._is_over(pattern), pattern)
        return found[1]

    def _is_over(self, pattern: str) -> None:
        if self.process.poll() is not None:
            self._reading.join(SECONDS)
        assert self.process.poll() is None or re.search(pattern, self.text), self.text

    def ended(self) -> int:
        code = self.process.wait(SECONDS)
        self._reading.join(SECONDS)
        return code

    @property
    def api_process(self) -> int:
        """The API's process, below the one we started."""
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise AssertionError("there is none")


@pytest.fixture
def dev(db: testing.Database, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts it on the test's database."""
    started: list[Running] = []
    (tmp_path / "some_app.py").write_text(APP)

    def start(*arguments: str, **environment: str) -> Running:
        command = [sys.executable, "-m", "penstock", "dev", *arguments, "--port", "0", "--database", db.dsn]
        process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "PENSTOCK_HOME": str(tmp_path / "home"),
                "PENSTOCK_ALLOW_UNSAFE": "1",
                **environment,
            },
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(Running(process))
        return started[-1]

    yield start
    for running in started:
        with suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.ended()


@pytest.mark.slow
def test_dev_serves_a_program_and_a_browser(
    db: testing.Database, dev: Callable[..., Running], eventually: Eventually
) -> None:
    """The printed key starts a job, which completes; the printed link logs a browser in; Ctrl-C stops dev."""
    running = dev("some_app:app")
    url = running.word(r"export PENSTOCK_URL=(\S+) PENSTOCK_KEY=", eventually)
    key = running.word(r"PENSTOCK_KEY=(psk_\w+)", eventually)
    link = running.word(r"(http\S+/dev/login\?token=\S+)", eventually)
    bearer = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, timeout=SECONDS) as client:
        started = client.post("/api/jobs/start", json=JOB, headers=bearer)
        assert started.status_code == 201, started.text
        path = f"/api/jobs/{started.json()['id']}"
        eventually(lambda: client.get(path, headers=bearer).json()["status"] == "completed", "the job's end")

        assert client.get("/api/me").status_code == 401
        assert client.get(link[:-1]).status_code == 401
        assert "set-cookie" not in client.get("/dev/login").headers
        answer = client.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Max-Age=28800" in cookie

        assert client.get("/api/me").json()["role"] == "service_role"
        own = {"Origin": url, "Sec-Fetch-Site": "same-origin"}
        assert client.post("/dev/view", data={"as": "tenant"}, headers=own).status_code == 303
        me = client.get("/api/me").json()
        assert me == client.get("/api/me", headers=bearer).json()
        assert [tenant["name"] for tenant in me["tenants"]] == ["default"]
        assert client.post("/api/jobs/start", json=JOB, headers=own).status_code == 201
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.ended() == 0
    assert "Stopped the API and the worker." in running.text
    assert "Traceback" not in running.text
    said, _, log = running.text.partition("  Worker  ")
    for secret in (key, link.partition("=")[2]):
        assert secret in said and secret not in log


TASKS = """\
from penstock import App, Context
app = App()

@app.task(max_attempts=1)
def double(n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is negative")
    return 2 * n


@app.task
async def ask(ctx: Context) -> str | None:
    return (await ctx.wait_for("approval", options=["yes"])).option


class Limited(Exception):
    status_code = 429


@app.task(providers=["some/model"], max_attempts=1)
def call(n: int) -> int:
    raise Limited("too many requests")
"""


@pytest.mark.slow
def test_dev_prints_tasks_reloads_and_keeps_its_credentials(
    db: testing.Database, dev: Callable[..., Running], eventually: Eventually, tmp_path: Path
) -> None:
    """A line for each task, tracebacks of user code, new code without a restart, the same key and link."""
    (tmp_path / "some_app.py").write_text(TASKS)
    running = dev("some_app:app")
    url = running.word(r"export PENSTOCK_URL=(\S+) PENSTOCK_KEY=", eventually)
    key, link = (running.word(pattern, eventually) for pattern in (r"PENSTOCK_KEY=(psk_\w+)", r"(token=\S+)"))
    bearer = {"Authorization": f"Bearer {key}"}

    def start(n: int) -> str:
        body = {"type": "double", "params": {"n": n}}
        answer = httpx.post(f"{url}/api/jobs/start", json=body, headers=bearer, timeout=SECONDS)
        return answer.json()["id"]

    start(1)
    running.word(r"(✓ double \d+  [\d.]+ s)", eventually)
    job_id = start(-1)
    running.word(r"(✗ double \d+  [\d.]+ s  failed permanently: ValueError: -1 is negative)", eventually)
    trace = running.word(r"(Traceback \(most recent call last\):\n.*\n.*raise ValueError)", eventually)
    assert 'some_app.py", line 7, in double' in trace and "penstock/worker" not in running.text
    running.word(rf"({url}/dashboard/jobs/{job_id}/tasks/\d+)", eventually)

    db.execute("select penstock.set_provider('some/model', '{}', null)")
    for type, params in (("ask", {}), ("call", {"n": 1})):
        body = {"type": type, "params": params}
        answer = httpx.post(f"{url}/api/jobs/start", json=body, headers=bearer, timeout=SECONDS)
        assert answer.status_code == 201, answer.text
    running.word(r"(… ask \d+  [\d.]+ s  waits for an answer)", eventually)
    running.word(r"(↻ call \d+  [\d.]+ s  some/model answered 429: runs again)", eventually)
    assert running.text.count("Traceback") == 1, "waiting is not a failure"
    assert "key_created" not in running.text, "the developer's own key is no alert"

    (tmp_path / "some_app.py").write_text(TASKS.replace("n < 0", "n < 0:)"))
    running.word(r"(SyntaxError: .*some_app.py, line 6)", eventually)
    running.word(r"(The worker waits for the next change)", eventually)
    (tmp_path / "some_app.py").write_text(TASKS.replace("is negative", "is below zero"))
    running.word(r"(Running the new code)", eventually)
    start(-2)
    running.word(r"(-2 is below zero)", eventually)

    os.killpg(running.process.pid, signal.SIGINT)
    assert running.ended() == 0
    assert (tmp_path / "home/dev.json").stat().st_mode & 0o777 == 0o600
    again = dev("some_app:app", "--no-reload")
    assert again.word(r"PENSTOCK_KEY=(psk_\w+)", eventually) == key
    assert again.word(r"(token=\S+)", eventually) == link


@pytest.mark.slow
def test_keys_of_the_terminal_rerun_the_last_job_and_quit(
    db: testing.Database, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "some_app.py").write_text(TASKS)
    environment = {**os.environ, "PENSTOCK_HOME": str(tmp_path / "home"), "PENSTOCK_ALLOW_UNSAFE": "1"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child does nothing but exec
        pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(tmp_path)
        command = [
            sys.executable,
            "-m",
            "penstock",
            "dev",
            "some_app:app",
            "--port",
            "0",
            "--database",
            db.dsn,
        ]
        os.execve(sys.executable, command, environment)  # noqa: S606 our own program
    said: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the terminal is closed
            while data := os.read(terminal, 65536):
                said.append(data)

    reading = threading.Thread(target=read)
    reading.start()

    def is_said(text: str) -> bool:
        return text in b"".join(said).decode(errors="replace")

    try:
        eventually(lambda: is_said("q quits"), "the list of keys")
        eventually(lambda: db.execute("select id from penstock.workers"), "the worker")
        db.execute(
            'select penstock.start_job(\'double\', \'{}\', \'[{"kind": "double", "input": {"n": 4}}]\','
            " jsonb_build_object('tenant_id', (select id from penstock.tenants where name = 'default')))"
        )
        os.write(terminal, b"r")
        eventually(lambda: is_said("Started double"), "the second job")
        assert len(db.execute("select id from penstock.jobs")) == 2
        # A key pressed while the worker restarts takes effect once it runs.
        (tmp_path / "some_app.py").write_text(TASKS.replace("2 * n", "3 * n"))
        eventually(lambda: is_said("changed. Restarting."), "the restart")
        os.write(terminal, b"r")
        eventually(lambda: len(db.execute("select id from penstock.jobs")) == 3, "the third job")
        os.write(terminal, b"q")
        eventually(lambda: is_said("Stopped the API and the worker."), "the end")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        reading.join(10)
        os.close(terminal)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["api", "worker", "both"])
def test_failure_of_api_or_worker_stops_both(
    dev: Callable[..., Running], eventually: Eventually, victim: str
) -> None:
    # A worker refuses to start on the test server, which runs without fsync.
    unsafe = {"PENSTOCK_ALLOW_UNSAFE": "" if victim == "worker" else "1"}
    running = dev("some_app:app", **unsafe)
    url = running.word(r"export PENSTOCK_URL=(\S+)", eventually)
    if victim == "worker":
        assert running.ended() == 1
        assert "The worker failed. Stopping." in running.text
        assert "would lose acknowledged work" in running.text
    else:
        assert httpx.get(f"{url}/healthz", timeout=SECONDS).status_code == 200
        child = running.api_process
        os.kill(child if victim == "api" else running.process.pid, signal.SIGKILL)
        assert running.ended() == (1 if victim == "api" else -signal.SIGKILL)
        assert ("The API stopped unexpectedly (by SIGKILL)" in running.text) == (victim == "api")
        assert ("`penstock dev` died" in running.text) == (victim == "both")

    def is_gone() -> bool:
        try:
            httpx.get(f"{url}/healthz")
        except httpx.TransportError:
            return True
        return False

    eventually(is_gone, "the port is closed")


async def test_failed_start_leaves_no_process(
    db: testing.Database, tmp_path: Path, developer: Development, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python waits at its end for processes that still run, and the API runs until its parent ends."""

    def fail(_: Supervisor) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(Supervisor, "_start_worker", fail)
    found = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), home=tmp_path)
    with server.bind("127.0.0.1", 0) as listening:
        dev = Supervisor(found, listening, "some_app:app", developer, 1, "http://x", is_reloading=False)
        with pytest.raises(OSError, match="no more processes"):
            await dev.run()
    assert multiprocessing.active_children() == []


# Rejected requests


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])  # noqa: S104 nothing is bound
def test_public_address_is_rejected(
    db: testing.Database, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    for command in ("dev", "serve"):
        assert cli.execute([command, "--host", host, "--port", "0", "--database", db.dsn, "-o", "json"]) == 2
        assert '"code": "unsafe_address"' in capsys.readouterr().err


def test_used_port_is_reported() -> None:
    with server.bind("127.0.0.1", 0) as taken, pytest.raises(Exception, match="already in use") as refusal:
        server.bind("127.0.0.1", taken.getsockname()[1])
    assert getattr(refusal.value, "code", None) == "address_in_use"


async def test_remote_database_needs_confirmation(
    db: testing.Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.77", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        host = probe.getsockname()[0]
    found = re.search(r"@127\.0\.0\.1:(\d+)/", db.tcp_dsn)
    assert found

    ended: list[asyncio.Task[Any]] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", int(found[1]))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                target.write(data)
            target.close()
            await target.wait_closed()

        both = (asyncio.create_task(copy(reader, to_writer)), asyncio.create_task(copy(to_reader, writer)))
        ended.extend(both)

    async with await asyncio.start_server(pass_on, host, 0) as forwarding:
        port = forwarding.sockets[0].getsockname()[1]
        dsn = db.tcp_dsn.replace(found[0], f"@{host}:{port}/")
        command = ["dev", "--port", "0", "--database", dsn, "-o", "json"]
        assert await asyncio.to_thread(cli.execute, command) == 2
        await asyncio.wait(ended)
    said = capsys.readouterr().err
    assert "confirmation_missing" in said and f"The database is on {host}" in said


@pytest.fixture
def developer() -> Development:
    return Development(uuid4(), "penstock_dev_1")


@pytest.fixture
def client(db: testing.Database, tmp_path: Path, developer: Development) -> Iterator[TestClient]:
    """A browser that is logged in, in this process."""
    found = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), home=tmp_path)
    [row] = db.execute("select penstock.ensure_tenant('default') as id")
    db.execute("select penstock.set_member(%s, %s, 'owner')", [row["id"], developer.user_id])
    db.execute("select penstock.define_kind('work', '{\"raw_tasks\": true}')")
    app = server.application(found, developer=developer)
    with TestClient(app, base_url="http://localhost:1", client=("127.0.0.1", 9)) as made:
        assert made.get("/dev/login", params={"token": developer.token}).status_code == 200
        own = {"Sec-Fetch-Site": "same-origin"}
        assert made.post("/dev/view", data={"as": "tenant"}, headers=own).status_code == 200
        yield made


def test_job_page_of_development_marks_the_chosen_view(db: testing.Database, client: TestClient) -> None:
    [tenant] = db.execute("select id from penstock.tenants")
    options = json.dumps({"tenant_id": str(tenant["id"])})
    [job] = db.execute("select penstock.start_job('x', '{}', '[{\"kind\": \"work\"}]', %s) as id", [options])
    for view in ("graph", "timeline"):
        page = client.get(f"/dashboard/jobs/{job['id']}", params={"view": view}).text
        tabs = page.partition('aria-label="View of the tasks"')[2].partition("</nav>")[0]
        assert re.findall(r'aria-current="true">(\w+)', tabs) == [view.capitalize()]


async def test_a_server_that_stops_ends_its_event_streams(
    db: testing.Database, tmp_path: Path, developer: Development
) -> None:
    """An open dashboard neither delays the restart after a change nor fills the terminal with a traceback."""
    found = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), home=tmp_path)
    listening = server.bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with AsyncExitStack() as running, httpx.AsyncClient(base_url=url, timeout=30) as browser:
        await running.enter_async_context(server.serving(found, listening, developer=developer))
        assert (await browser.get("/dev/login", params={"token": developer.token})).status_code in (200, 303)
        async with browser.stream("GET", "/dashboard/live") as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("retry:")
            stopping = asyncio.create_task(running.aclose())
            # Reading a stream that was canceled would raise, because its body is incomplete.
            assert "event: end" not in [line async for line in lines]
            await stopping


def test_only_own_pages_may_change_data(client: TestClient) -> None:
    """S33: browsers send cookies with every request: also from a page of another site, or another port of this host."""
    job = {"type": "report", "tasks": [{"kind": "work"}]}
    good: list[dict[str, str]] = [
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-origin"},
    ]
    bad: list[dict[str, str]] = [
        {},
        {"Origin": "null"},
        {"Origin": "http://localhost:2"},
        {"Origin": "https://localhost:1"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:1.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    ]
    for headers in good:
        assert client.post("/api/jobs/start", json=job, headers=headers).status_code == 201, headers
    for headers in bad:
        for method, path in (
            ("POST", "/api/jobs/start"),
            ("DELETE", f"/api/keys/{uuid4()}"),
            ("POST", "/rest/v1/rpc/start_job"),
        ):
            answer = client.request(method, path, json=job, headers=headers)
            assert answer.status_code == 403, (headers, answer.text)
        assert client.get("/api/jobs", headers=headers).status_code == 200
    jobs = client.get("/api/jobs").json()["items"]
    assert len(jobs) == len(good)


def test_developer_is_an_operator_who_can_view_as_tenant(
    client: TestClient, developer: Development, db: testing.Database
) -> None:
    own = {"Sec-Fetch-Site": "same-origin"}
    assert client.get("/dashboard/workers").status_code == 403, "the fixture switched to the tenant"
    assert "View as operator" in client.get("/dashboard/").text
    page = client.post("/dev/view", data={"as": "operator"}, headers=own)
    assert page.status_code == 200 and "View as tenant" in page.text
    assert client.get("/dashboard/workers").status_code == 200
    assert client.post("/dev/view", data={"as": "tenant"}).status_code == 403, "another site sent it"
    value = client.cookies[developer.cookie]
    client.cookies.clear()
    assert client.post("/dev/view", data={"as": "operator"}, headers=own).status_code == 401
    client.cookies[developer.cookie] = value
    job = {"type": "report", "tasks": [{"kind": "work"}]}
    [tenant] = db.execute("select id from penstock.tenants where name = 'default'")
    given = {**job, "tenant_id": str(tenant["id"])}
    assert client.post("/api/jobs/start", json=given, headers=own).status_code == 201
    [made] = db.execute("select created_by from penstock.jobs")
    assert made["created_by"] == f"service:{developer.user_id}"


def test_requests_from_other_machines_are_rejected(client: TestClient, developer: Development) -> None:
    """Another name may lead here (DNS rebinding), and a proxy speaks for somebody else."""
    login = f"/dev/login?token={developer.token}"
    for name in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8080", "[::1]"):
        assert client.get("/api/me", headers={"Host": name}).status_code == 200, name
    refused = [
        *({"Host": name} for name in (
            "evil.example", "evil.example:1", "localhost.evil.example", "127.0.0.1.evil.example", "localhost.",
            "192.0.2.2:8080", "0.0.0.0",  # noqa: S104 it is a name
            "[::]:1", "[2001:db8::1]", "", "localhost@evil.example",
        )),
        *({name: "127.0.0.1"} for name in (
            "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "Via", "X-Real-IP",
        )),
    ]  # fmt: skip
    for headers in refused:
        for path in ("/api/me", login, "/healthz", "/rest/v1/job_list"):
            answer = client.get(path, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "not_local"), headers
            assert "set-cookie" not in answer.headers
    strange: Any = client.app
    with TestClient(strange, base_url="http://localhost:1", client=("192.0.2.9", 9)) as elsewhere:
        assert elsewhere.get(login).status_code == 403


def test_invalid_sessions_are_rejected(
    client: TestClient, developer: Development, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = client.cookies[developer.cookie]
    claims = {"role": "service_role", "sub": str(uuid4())}

    def cookie() -> str:
        response = Response()
        sessions.Sessions(developer.cookie).begin(response, claims)
        found = re.search(r"=([^;]+);", response.headers["set-cookie"])
        assert found
        return found[1]

    client.cookies.clear()
    bad = ["", "x", good[:-2], good.rpartition(".")[0] + ".", cookie(), f"{good}.{good}"]
    for value in bad:
        for path in ("/api/me", "/rest/v1/job_list"):
            assert client.get(path, headers={"Cookie": f"{developer.cookie}={value}"}).status_code == 401
    monkeypatch.setattr(sessions, "SECONDS", -60)
    late = client.get("/dev/login", params={"token": developer.token}, follow_redirects=False)
    value = re.findall(r"=([^;]+);", late.headers["set-cookie"])[0]
    assert client.get("/api/me", headers={"Cookie": f"{developer.cookie}={value}"}).status_code == 401


def test_session_cookie_works_only_in_development(
    client: TestClient, db: testing.Database, tmp_path: Path, developer: Development
) -> None:
    """The login and its sessions are there for development only."""
    value = client.cookies[developer.cookie]
    found = Settings(database_url=db.dsn, api_url=server.ensure_login(db.dsn), home=tmp_path)
    with TestClient(api.create(found), base_url="http://localhost:1") as public:
        headers = {"Cookie": f"{developer.cookie}={value}"}
        assert client.get("/api/me", headers=headers).status_code == 200
        assert public.get("/api/me", headers=headers).status_code == 401
        assert public.get("/dev/login", params={"token": developer.token}).status_code == 404


def test_missing_api_login_is_reported(db: testing.Database) -> None:
    """Over TCP the server wants a password, which a login that we make has not."""
    with pytest.raises(Invalid) as refusal:
        server.with_development_login(Settings(database_url=db.tcp_dsn))
    assert refusal.value.code == "no_api_login"
    given = Settings(database_url=db.tcp_dsn, api_url="postgresql://penstock_api@db/x")
    assert server.with_development_login(given) == given
