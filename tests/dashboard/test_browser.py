"""The dashboard in Chromium.

Every page, with and without data, light and dark, on phone and desktop: no serious accessibility problem (axe), no
console error, no request to another host. The main tasks work by mouse and by keyboard alone. With
`PENSTOCK_SCREENSHOTS=1` the tests also write the screenshots of the documentation.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import uvicorn

from penstock import server, sources
from penstock.api.development import Development

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

pytestmark = pytest.mark.slow

AXE = Path(__file__).parent / "axe"
IMAGES = Path(__file__).parent.parent.parent / "docs/images"
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 860}
VARIANTS = [("light", DESK), ("dark", PHONE), ("light", PHONE), ("dark", DESK)]
IS_LONG = bool(os.environ.get("PENSTOCK_SCREENSHOTS"))
RUN_AXE = """async () => {
  const result = await axe.run(document, {
    resultTypes: ["violations"], runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]});
  return result.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160) + " " + node.failureSummary.slice(0, 200)).join(" | ")}`);
}"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core, installed in the version that package-lock.json names."""
    # pyright installs an npm of its own, which is the fallback.
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if not npm:
        pytest.skip("npm is not installed, so axe-core cannot be installed")
    with (AXE / "package.json").open() as lock:
        # One of several test processes installs it; the others wait.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (AXE / "node_modules/.package-lock.json").exists():
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=AXE, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"axe-core cannot be installed: {done.stderr[-500:]}")
    return (AXE / "node_modules/axe-core/axe.min.js").read_text()


class Served:
    """The application on a socket, and browsers that use it."""

    def __init__(self, base: str, chromium: Any) -> None:
        self.base, self._chromium = base, chromium
        self.errors: list[str] = []
        self._contexts: list[Any] = []

    def open(self, **options: Any) -> Any:
        """Open a page in a new browser context."""
        context = self._chromium.new_context(viewport=DESK, reduced_motion="reduce", **options)
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on(
            "console",
            lambda said: said.type in ("error", "warning") and self.errors.append(f"{page.url}: {said.text}"),
        )
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog on {page.url}"), dialog.dismiss()))
        page.on(
            "request",
            lambda sent: (
                sent.url.startswith((self.base, "data:", "blob:"))
                or self.errors.append(f"request to {sent.url}")
            ),
        )
        return page

    def page(self, credential: str, **options: Any) -> Any:
        """Open a page in a new browser context, signed in."""
        page = self.open(**options)
        page.goto(f"{self.base}/dashboard/sign-in")
        page.fill("#credential", credential)
        page.click("button.primary")
        page.wait_for_url(f"{self.base}/dashboard/")
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@contextmanager
def serving(made: Any, chromium: Any) -> Iterator[Served]:
    listening = socket.create_server(("127.0.0.1", 0))
    how = uvicorn.Config(made, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    running = uvicorn.Server(how)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not running.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    served = Served(f"http://127.0.0.1:{listening.getsockname()[1]}", chromium)
    try:
        yield served
    finally:
        served.close()
        running.should_exit = True
        thread.join(20)
    assert not served.errors, served.errors


@pytest.fixture
def served(db: Any, dashboard_settings: Any, chromium: Any) -> Iterator[Served]:
    with serving(server.application(dashboard_settings), chromium) as made:
        yield made


def tenant(db: Any, name: str) -> Any:
    return db.execute("select penstock.create_tenant(%s) as id", [name])[0]["id"]


def key(db: Any, role: str, tenant: Any = None) -> str:
    return db.execute("select secret from penstock.create_key(%s, %s, %s)", [role, role, tenant])[0]["secret"]


@pytest.fixture
def fill(db: Any, beside: Any) -> Any:
    """Creates the sample data."""
    return lambda: beside("sample").fill(db, acme=tenant(db, "Acme"), other=tenant(db, "Other"))


PAGES = (
    "/",
    "/jobs",
    "/bulks",
    "/bulks/new",
    "/jobs/new",
    "/waits",
    "/operations",
    "/notifications",
    "/webhooks",
    "/subscriptions",
    "/spend",
    "/people",
    "/prompts",
    "/sessions",
    "/dead-letters",
    "/schedules",
    "/providers",
    "/workers",
    "/usage",
    "/tenants",
    "/audit",
    "/settings",
)


def check_pages(page: Any, base: str, paths: list[str], axe: str, first: int = 0) -> list[str]:
    """Return accessibility problems and horizontal overflow of these pages."""
    found: list[str] = []
    for n, path in enumerate(paths):
        page.set_viewport_size(DESK)
        page.goto(f"{base}/dashboard{path}")
        page.wait_for_selector("html.scripted")
        page.evaluate(axe)
        # All themes and sizes of all pages take minutes, so only `make screenshots` checks all of them.
        for scheme, size in VARIANTS if IS_LONG else [VARIANTS[(n + first) % 4]]:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size(size)
            found += [f"{path} {scheme} {size['width']}: {line}" for line in page.evaluate(RUN_AXE)]
            wide = page.evaluate(TOO_WIDE)
            if wide > 0:
                found.append(f"{path} {size['width']}: {wide} pixels too wide")
    return found


def test_every_page_with_data_is_accessible_and_fits(served: Served, db: Any, axe: str, fill: Any) -> None:
    sample = fill()
    sample.stop_worker()
    page = served.page(key(db, "service"))
    [task] = db.execute(
        "select id from penstock.tasks where job_id = %s and key = 'audio 2'", [sample.jobs["failed"]]
    )
    paths = [
        *PAGES,
        *(f"/jobs/{sample.jobs['running']}?view={view}" for view in ("graph", "grid", "timeline", "tasks")),
        f"/jobs/{sample.jobs['failed']}",
        f"/jobs/{sample.jobs['failed']}/tasks/{task['id']}",
        "/provider?name=openai/gpt-5",
        f"/tenants/{sample.acme}",
        f"/usage?tenant={sample.acme}",
        f"/confirm?noun=jobs&verb=retry&id={sample.jobs['failed']}",
    ]
    found = check_pages(page, served.base, paths, axe)
    assert not found, "\n".join(found)
    if IS_LONG:
        take_screenshots(page, served.base, sample, task["id"])


def test_every_page_without_data_is_accessible_and_fits(served: Served, db: Any, axe: str) -> None:
    page = served.page(key(db, "service"))
    assert check_pages(page, served.base, [*PAGES, "/nowhere"], axe, 1) == []
    served.errors = [error for error in served.errors if "/nowhere" not in error]
    member = served.page(key(db, "viewer", tenant(db, "New")))
    assert check_pages(member, served.base, ["/", "/jobs", "/usage", "/settings"], axe, 2) == []


def test_header_of_development_fits_a_phone(
    db: Any, dashboard_settings: Any, chromium: Any, axe: str, tmp_path: Path
) -> None:
    developer = Development(uuid4(), "penstock_dev_1", tenant="a tenant with a long name")
    tenant(db, developer.tenant)
    with serving(server.application(dashboard_settings, developer=developer), chromium) as served:
        page = served.open()
        page.goto(f"{served.base}/dev/login?token={developer.token}")
        assert page.is_visible("text=View as tenant")
        for path in ("/", "/jobs", "/settings"):
            page.goto(f"{served.base}/dashboard{path}")
            page.wait_for_selector("html.scripted")
            page.evaluate(axe)
            for size in (PHONE, DESK):
                page.set_viewport_size(size)
                assert page.evaluate(TOO_WIDE) <= 0, (path, size)
                assert page.evaluate(RUN_AXE) == [], (path, size)


def test_failed_task_can_be_found_and_retried_by_mouse(served: Served, db: Any, fill: Any) -> None:
    sample = fill()
    page = served.page(key(db, "admin", sample.acme))
    page.click("nav >> text=Jobs")
    page.click(".tabs >> text=Failed")
    page.click("tr[data-row] td.main a")
    assert "voice_missing" in page.inner_text(".lead")
    page.click('.list a[href*="/tasks/"] >> nth=0')
    page.wait_for_url("**/tasks/*")
    assert "voice_missing" in page.inner_text(".lead") and "reading.py" in page.inner_text(".stack")
    page.click("text=Retry this task…")
    assert "1 failed task runs again" in page.inner_text("main")
    page.click("main button.primary")
    page.wait_for_url("**/tasks/*")
    assert "1 dead letter replayed." in page.inner_text(".flash")
    assert page.inner_text("h1").endswith("queued")


def reach(page: Any, text: str) -> None:
    """Press Tab until an element with this text has the focus."""
    for _ in range(80):
        if page.evaluate("document.activeElement.textContent.trim()").startswith(text):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{text} cannot be reached by keyboard")


def confirm(page: Any) -> None:
    """Confirm the question of the page by keyboard."""
    page.wait_for_url("**/confirm*")
    page.wait_for_function("document.activeElement.matches('main form button')")
    page.keyboard.press("Enter")


def test_failed_task_can_be_found_and_retried_by_keyboard(served: Served, db: Any, fill: Any) -> None:
    sample = fill()
    page = served.page(key(db, "member", sample.acme))
    press = page.keyboard.press
    press("g")
    press("j")
    page.wait_for_url("**/jobs")
    press("/")
    page.keyboard.type("status:fai")
    # The filter box suggests values.
    assert "status:failed" in page.inner_text(".suggestions")
    press("ArrowDown")
    press("Enter")
    press("Enter")
    page.wait_for_url("**filter=status*")
    press("Escape")
    press("j")
    press("Enter")
    page.wait_for_url("**/jobs/0*")
    press("j")
    press("Enter")
    page.wait_for_url("**/tasks/*")
    reach(page, "Retry this task")
    press("Enter")
    confirm(page)
    page.wait_for_url("**/tasks/*")
    assert "1 dead letter replayed." in page.inner_text(".flash")


def test_provider_can_be_paused_by_mouse_and_by_keyboard(served: Served, db: Any, fill: Any) -> None:
    fill()
    page = served.page(key(db, "service"))
    page.click("nav >> text=Providers")
    page.click("a >> text=openai/gpt-5")
    page.click("text=Pause…")
    assert "waiting" in page.inner_text("main") and "costs nothing" in page.inner_text("main")
    page.click("main button.primary")
    page.wait_for_selector("text=openai/gpt-5 paused.")
    press = page.keyboard.press
    for verb, said, status in (
        ("Resume", "openai/gpt-5 resumed.", "active"),
        ("Pause", "openai/gpt-5 paused.", "maintenance"),
    ):
        press("g")
        press("p")
        page.wait_for_url("**/providers")
        press("j")
        press("Enter")
        page.wait_for_url(re.compile(r"/provider\?"))
        reach(page, verb)
        press("Enter")
        confirm(page)
        page.wait_for_selector(f"text={said}")
        [row] = db.execute("select status from penstock.endpoints where name = 'openai/gpt-5'")
        assert row["status"] == status


def xlsx(table: str) -> bytes:
    """The same table as an XLSX file."""
    file = io.BytesIO()
    with sources.open(io.BytesIO(table.encode()), format="csv") as source:
        sources.write((row.data for row in source), source.columns, "xlsx", file)
    return file.getvalue()


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_bulk_job_can_be_previewed_confirmed_watched_and_exported(
    db: Any, dashboard_settings: Any, chromium: Any, axe: str, beside: Any, drain: Any, by: str
) -> None:
    """R0.1/files, R2.7/preview"""
    acme = tenant(db, "Acme")
    films = beside("films")
    app = drain.use(films.make(db.dsn, acme))
    file = {"name": "ideas.csv", "mimeType": "text/csv", "buffer": films.ROWS.encode()}
    if by == "keyboard":
        file = {"name": "ideas.xlsx", "mimeType": "application/octet-stream", "buffer": xlsx(films.ROWS)}

    def work() -> None:
        # In another thread, because the browser's event loop runs in this one.
        thread = threading.Thread(target=drain, args=(app,))
        thread.start()
        thread.join()

    def choose(text: str) -> None:
        if by == "mouse":
            page.click(f"main >> text={text}")
        else:
            reach(page, text)
            page.keyboard.press("Enter")

    with serving(server.application(dashboard_settings, app), chromium) as served:
        work()
        page = served.page(key(db, "member", acme))
        if by == "mouse":
            page.click("nav >> text=Bulk")
        else:
            page.keyboard.press("g")
            page.keyboard.press("b")
        page.wait_for_url("**/bulks")
        choose("New bulk job")
        page.wait_for_url("**/bulks/new")
        with page.expect_file_chooser() as chooser:
            if by == "mouse":
                page.click("#file")
            else:
                while page.evaluate("document.activeElement.id") != "file":
                    page.keyboard.press("Tab")
                page.keyboard.press("Space")
        chooser.value.set_files(file)
        if by == "mouse":
            page.wait_for_function("document.querySelector('#rows').value.includes('otters')")
        else:
            page.wait_for_selector("text=ideas.xlsx")
        choose("Check and forecast")
        page.wait_for_selector("text=7 valid rows")
        choose("Preview the first 5 of 7 rows")
        page.wait_for_url("**/bulks/0*")
        # The page updates without a reload.
        work()
        page.wait_for_selector("text=after you confirm")
        page.wait_for_selector("text=/OTTERS.mp4")
        choose("Run the remaining")
        page.wait_for_selector("h1 >> text=Run the remaining")
        if by == "mouse":
            page.click("main button.primary")
        else:
            confirm(page)
        page.wait_for_selector("text=Confirmed.")
        work()
        page.wait_for_selector("h1 >> text=failed")
        with page.expect_download() as download:
            choose("Export failed rows")
        text = Path(download.value.path()).read_text()
        assert "bad one" in text and "mayflies" in text and "herons" not in text
        path = page.url.removeprefix(f"{served.base}/dashboard")
        if by == "mouse" or IS_LONG:
            found = check_pages(page, served.base, [path, f"{path}/confirm?verb=undo"], axe)
            assert not found, "\n".join(found)
        if IS_LONG and by == "mouse":
            screenshot(page, served.base, "bulk", path, "light", {"width": 1180, "height": 1000})


def test_pages_update_live_and_pause_while_rows_are_selected(served: Served, db: Any, fill: Any) -> None:
    sample = fill()
    page = served.page(key(db, "member", sample.acme))
    page.goto(f"{served.base}/dashboard/jobs")
    page.wait_for_selector("#live[data-state=live]")
    row = f"#job-{sample.jobs['paused']}"
    page.focus(f"{row} td.main a")
    db.execute("select penstock.cancel_job(%s, 'seen live')", [sample.jobs["paused"]])
    page.wait_for_selector(f"{row} >> text=seen live")
    assert page.evaluate("document.activeElement.closest('tr').id") == row[1:]
    # An update does not clear the selection.
    page.keyboard.press("x")
    page.wait_for_selector("#live[data-state=paused]")
    assert "1 selected" in page.inner_text("[data-bar]")
    db.execute("select penstock.cancel_job(%s, 'not yet')", [sample.jobs["running"]])
    page.wait_for_timeout(1500)
    assert page.query_selector("text=not yet") is None and page.is_checked(f"{row} input")
    page.keyboard.press("x")
    page.wait_for_selector("text=not yet")


def test_no_xss_payload_runs(served: Served, db: Any, beside: Any) -> None:
    own = tenant(db, "<img src=x onerror=hit(1)>")
    jobs = beside("test_xss").poison(db, beside("payloads").PAYLOADS, own)
    page = served.page(key(db, "service"))
    page.add_init_script("window.hit = () => { window.wasHit = true; }")
    paths = [
        "/",
        "/jobs",
        "/dead-letters",
        "/audit",
        "/tenants",
        "/workers",
        "/schedules",
        "/settings",
        f"/settings?tenant={own}",
        "/provider?name=tts/nova",
    ]
    for path in [
        *paths,
        *(
            f"/jobs/{job}?view={view}"
            for job, view in zip(jobs, ("graph", "grid", "timeline", "tasks"), strict=False)
        ),
    ]:
        page.goto(f"{served.base}/dashboard{path}")
        page.wait_for_selector("html.scripted")
        # Also check what a refresh inserts.
        page.evaluate("htmx.trigger('#main', 'refresh')")
        page.wait_for_timeout(60)
        assert page.evaluate("window.wasHit") is None, path
    # The files of these artifacts do not exist, so their requests return 404.
    served.errors = [error for error in served.errors if "404" not in error]


def test_dashboard_works_without_scripts(served: Served, db: Any, fill: Any) -> None:
    sample = fill()
    page = served.page(key(db, "member", sample.acme), java_script_enabled=False)
    page.goto(f"{served.base}/dashboard/")
    assert page.is_visible("text=Show as table")
    page.goto(f"{served.base}/dashboard/jobs")
    page.check(f"#job-{sample.jobs['paused']} input")
    page.click("button[value=resume]")
    page.click("main button.primary")
    assert "1 job resumed." in page.inner_text(".flash")
    page.goto(f"{served.base}/dashboard/dead-letters")
    page.check("input[name=every]")
    page.click("button[value=replay]")
    page.click("main button.primary")
    assert "3 dead letters replayed." in page.inner_text(".flash")
    page.click("button[name=theme]")
    assert page.get_attribute("html", "data-theme") == "light"


INK = """() => [...document.querySelectorAll("figure.chart canvas")].map((canvas) => {
  const copy = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height}).getContext("2d");
  copy.drawImage(canvas, 0, 0);
  const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
  let coloured = 0;
  for (let n = 0; n < data.length; n += 4)
    coloured += data[n + 3] > 200 && Math.max(data[n], data[n + 1], data[n + 2]) - Math.min(data[n], data[n + 1], data[n + 2]) > 60;
  return coloured;
})"""


def test_charts_are_drawn_and_updated(db: Any, served: Served, fill: Any) -> None:
    """Also after a refresh: the numbers come from the chart's table, not from the legend's."""
    fill()
    page = served.page(key(db, "service"))
    for _ in range(2):
        page.wait_for_selector("figure.chart canvas")
        drawn = page.evaluate(INK)
        assert len(drawn) == 3 and min(drawn) > 100, drawn
        with page.expect_response(lambda answer: answer.url == f"{served.base}/dashboard/"):
            tenant(db, "Another, so that there is something new")
        page.wait_for_timeout(300)


def screenshot(page: Any, base: str, name: str, path: str, scheme: str, size: dict[str, int]) -> None:
    """Take a screenshot for the documentation."""
    IMAGES.mkdir(exist_ok=True)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    page.goto(f"{base}/dashboard{path}")
    page.wait_for_timeout(400)
    page.screenshot(path=str(IMAGES / f"{name}.png"))


def take_screenshots(page: Any, base: str, sample: Any, task_id: int) -> None:
    running, failed = sample.jobs["running"], sample.jobs["failed"]
    for name, path, scheme, width, height in (
        ("overview", "/", "light", 1180, 780),
        ("job-grid", f"/jobs/{running}?view=grid", "light", 1180, 1000),
        ("job-timeline", f"/jobs/{failed}?view=timeline", "dark", 1180, 1300),
        ("task", f"/jobs/{failed}/tasks/{task_id}", "light", 1180, 660),
        ("providers", "/providers", "light", 1180, 760),
        ("usage", "/usage", "light", 1180, 640),
        ("phone", "/jobs", "dark", 390, 844),
    ):
        # Heartbeats keep the workers alive however long the screenshots take.
        sample.beat()
        screenshot(page, base, name, path, scheme, {"width": width, "height": height})
