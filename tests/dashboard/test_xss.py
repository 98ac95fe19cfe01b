"""Cross-site scripting: more than 200 payloads in every field that pages show. None becomes markup.

An independent parser reads the pages: each payload must end up as text or as an attribute value that a browser
does not run.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest

from penstock.dashboard.pages import templates

ADDRESSES = ("href", "src", "action", "formaction", "hx-get", "data-live", "xlink:href")
KNOWN = set(
    [
        "a",
        "article",
        "audio",
        "b",
        "fieldset",
        "legend",
        "body",
        "button",
        "circle",
        "code",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "form",
        "h1",
        "h2",
        "h3",
        "head",
        "header",
        "html",
        "iframe",
        "img",
        "input",
        "kbd",
        "label",
        "li",
        "line",
        "link",
        "main",
        "meta",
        "nav",
        "option",
        "p",
        "path",
        "pre",
        "rect",
        "script",
        "section",
        "select",
        "span",
        "summary",
        "svg",
        "table",
        "tbody",
        "td",
        "text",
        "th",
        "thead",
        "time",
        "title",
        "tr",
        "ul",
        "video",
    ]
)


class Reader(HTMLParser):
    """Collects everything in a page that could run, load or link to something else."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        values = dict(attrs)
        if tag not in KNOWN:
            self.found.append(f"element {tag}")
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc", "http-equiv") or "<" in name:
                self.found.append(f"attribute {name} of {tag}")
            if name in ADDRESSES and not (value or "").startswith(("/dashboard/", "#")):
                self.found.append(f"address {value} of {tag}")
            if name.startswith("hx-") and tag != "main":
                self.found.append(f"attribute {name} of {tag}")
        if tag == "script" and not (values.get("src", "") or "").startswith("/dashboard/static/"):
            self.found.append("an inline script")
        if tag == "form" and values.get("method") not in ("get", "post", "dialog"):
            self.found.append("a form with an unknown method")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style") and data.strip():
            self.found.append(f"text in {self._open[-1]}")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass


def poison(db: Any, payloads: Any, tenant: Any) -> list[Any]:
    """Write the payloads into every field; returns the ids of the jobs."""
    texts = [text.replace("\0", "") for text in payloads]

    def some(n: int) -> str:
        return texts[n % len(texts)]

    def name(text: str) -> str:
        # The database refuses control characters in names.
        return "".join(each if each.isprintable() else " " for each in text) or "x"

    db = db.connect()

    def run(query: str, *values: Any) -> list[Any]:
        cursor = db.execute(query.encode(), values)
        return cursor.fetchall() if cursor.description else []

    for kind in ("x", "y"):
        run("select penstock.define_kind(%s, %s)", kind, json.dumps({"max_attempts": 2}))
    jobs = []
    for n, text in enumerate(texts):
        if n % 10:
            continue
        tasks = [
            {
                "kind": "x",
                "key": name(f"{n + m} {some(n + m)}"[:200]),
                "input": {some(n + m): some(n + m)},
                "phase": name(f"{m % 3} {some(n)}"[:100]),
            }
            for m in range(10)
        ]
        options = {"tenant_id": str(tenant), "idempotency_key": str(n)}
        [row] = run(
            "select penstock.start_job(%s, %s, %s, %s) as id",
            name(text[:200]),
            json.dumps({text: [some(n + m) for m in range(10)]}),
            json.dumps(tasks),
            json.dumps(options),
        )
        jobs.append(row["id"])
    for n in range(0, len(texts), 10):
        worker = name(some(n)[:200])
        run(
            "select penstock.report_worker(%s, %s)",
            worker,
            json.dumps(
                {
                    "host": some(n + 1),
                    "pid": 1,
                    "kinds": ["x", some(n + 2)],
                    "concurrency": 9,
                    "version": some(n + 3),
                }
            ),
        )
        for m, row in enumerate(run("select * from penstock.claim_tasks(%s, 8, %s, 600)", worker, ["x"])):
            if m < 3:
                run(
                    "select penstock.complete_task(%s, %s, %s, %s)",
                    row["id"],
                    worker,
                    json.dumps({some(n + m): some(n + m)}),
                    row["lease"],
                )
            elif m < 6:
                details = json.dumps(
                    {
                        "stack": f'Traceback\n  File "{some(n + m)}", line 1\n    {some(n)}\nE: {some(n + m)}',
                        "type": some(n),
                    }
                )
                run(
                    "select penstock.fail_task(%s, %s, %s, %s, null, true, %s, %s)",
                    row["id"],
                    worker,
                    some(n + m),
                    row["lease"],
                    some(n + m)[:100],
                    details,
                )
            else:
                run(
                    "select penstock.report_progress(%s, %s, %s, 0.5, %s)",
                    row["id"],
                    worker,
                    row["lease"],
                    some(n + m),
                )
    for n, job in enumerate(jobs):
        run("select penstock.pause_job(%s, %s)", job, some(n * 10 + 3)) if n % 3 else run(
            "select penstock.cancel_job(%s, %s)", job, some(n * 10 + 4)
        )
    for n, text in enumerate(texts):
        run("insert into penstock.tenants (name, plan) values (%s, 'unlimited')", text[:200])
        run(
            "insert into penstock.audit_log (at, tenant_id, actor, action, subject, details) values (now(), %s, %s, %s, %s, %s)",
            tenant,
            text,
            some(n + 1),
            some(n + 2),
            json.dumps({text: some(n + 3)}),
        )
        if n % 5 == 0:
            run("select penstock.create_key(%s, 'viewer', %s)", name(text[:200]), tenant)
            run(
                "select penstock.set_schedule(%s, '0 9 * * 1', %s, now() + interval '1 hour', %s)",
                name(text[:200]),
                name(some(n + 1)[:200]),
                json.dumps({"tenant_id": str(tenant), "tasks": [{"kind": "x"}]}),
            )
            run(
                "insert into penstock.artifacts (tenant_id, job_id, task_id, name, path, content_type, bytes, sha256, status, created_by, created_at, begun_at, stored_at) values (%s, %s, 1, %s, %s, %s, 5, repeat('0', 64), 'stored', %s, now(), now(), now())",
                tenant,
                jobs[0],
                text[:200],
                f"{tenant}/{n}.pdf",
                "application/pdf" if n % 10 else some(n)[:200],
                text,
            )
    run(
        "select penstock.set_provider('tts/nova', %s)",
        # A feature with <, > or = is a limit and must be written as one.
        json.dumps({"requests_per_minute": 5, "features": [t for t in texts if not {*t} & {*"<>="}][:20]}),
    )
    run(
        "update penstock.endpoint_states set closed_until = now() + interval '1 hour', closed_reason = %s",
        texts[0],
    )
    run(
        "insert into penstock.provider_events (at, endpoint_id, event, details) select now(), e.id, 'refused', %s from penstock.endpoints e",
        json.dumps({texts[1]: texts}),
    )
    run("update penstock.plans set title = %s", texts[0])
    run("update penstock.settings set comment = %s", texts[2])
    run(
        "select penstock.record_cost('render', 1, null, null, null, null, %s, %s)",
        tenant,
        json.dumps({"provider": texts[3][:200]}),
    )
    return jobs


@pytest.mark.slow
def test_no_payload_becomes_markup(site: Any) -> None:
    """S32"""
    payloads = site.load("payloads").PAYLOADS
    assert len(set(payloads)) >= 200
    tenant = site.tenant("<img src=x onerror=hit(1)>")
    jobs = poison(site.db, payloads, tenant)
    tasks = site.db.execute("select job_id, id from penstock.tasks order by id")
    pages = [
        "/", f"/?tenant={tenant}", "/dead-letters", "/providers", "/provider?name=tts/nova", "/provider/confirm?name=tts/nova&verb=open",
        "/usage", f"/usage?tenant={tenant}", "/workers", f"/tenants/{tenant}", "/schedules", "/settings", f"/settings?tenant={tenant}",
        *(f"/jobs/{job}?view={('graph', 'grid', 'timeline', 'tasks')[n % 4]}" for n, job in enumerate(jobs)),
        *(f"/jobs/{row['job_id']}/tasks/{row['id']}" for row in tasks[::2]),
        *(f"/confirm?noun=jobs&verb=cancel&id={job}" for job in jobs[:2]),
    ]  # fmt: skip
    operator = site.browser(site.key("service"))
    seen = ""
    for path in pages:
        answer = operator.get(path)
        assert answer.status_code == 200, (path, answer.text[:500])
        found = Reader(answer.text).found
        assert not found, (path, found)
        seen += answer.text
    # Read every page of each list, and use each payload as a filter and as a flash message.
    for path in ("/jobs", "/dead-letters", "/audit", "/tenants"):
        more: str | None = path
        while more:
            answer = operator.client.get(more if more.startswith("/dashboard") else f"/dashboard{more}")
            assert not (found := Reader(answer.text).found), (more, found)
            seen += answer.text
            more = (
                next(iter(re.findall(r'href="([^"]*)" rel="next"', answer.text)), "").replace("&amp;", "&")
                or None
            )
    for n, text in enumerate(payloads):
        path = ("/jobs", "/dead-letters", "/audit")[n % 3]
        operator.client.cookies.set("penstock_flash", quote(text), path="/dashboard")
        answer = operator.get(path, params={"filter": text})
        assert not (found := Reader(answer.text).found), (path, text, found)
    # Check that the payloads were shown at all.
    shown = sum(templates.from_string("{{ text }}").render(text=text[:60]) in seen for text in payloads)
    assert shown > 180, shown
