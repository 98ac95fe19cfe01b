"""Pages and exports, for operators and for owners of a tenant."""

from __future__ import annotations

import asyncio
import json
import re
import weakref
from dataclasses import dataclass
from typing import Any, cast

import pytest

from penstock.dashboard import exports


@dataclass(eq=False)
class Large:
    """An item of a list."""

    id: int


@pytest.fixture
def paths(sample: Any) -> list[str]:
    job = sample.jobs["failed"]
    [task] = sample.db.execute("select id from penstock.tasks where job_id = %s and key = 'audio 2'", [job])
    return [
        "/",
        "/jobs",
        "/jobs?filter=status:failed+type:publish",
        *(f"/jobs/{each}" for each in sample.jobs.values() if each != sample.jobs["other"]),
        *(f"/jobs/{sample.jobs['running']}?view={view}" for view in ("graph", "grid", "timeline", "tasks")),
        f"/jobs/{job}?view=timeline",
        f"/jobs/{job}/tasks/{task['id']}",
        f"/confirm?noun=jobs&verb=retry&id={job}",
        "/dead-letters",
        "/dead-letters?filter=code:voice_missing",
        "/providers",
        "/usage",
        "/tenants",
        f"/tenants/{sample.acme}",
        "/schedules",
        "/audit",
        "/settings",
        "/jobs.csv",
        "/dead-letters.csv",
        "/audit.csv",
        "/costs.csv",
    ]


def test_pages_show_subscriptions_and_plans_that_end(site: Any, sample: Any) -> None:
    sample.db.execute("""select penstock.set_plan_price('price_p', '{"plan": "premium"}')""")
    values = {"id": "sub_1", "customer_id": "cus_1", "tenant_id": str(sample.acme), "status": "past_due"}
    values |= {
        "price_ids": ["price_p"],
        "period_end": "2020-01-01T00:00:00Z",
        "created_at": "2019-12-01T00:00:00Z",
    }
    query = "select penstock.record_subscription(%s, penstock._now())"
    sample.db.execute(query, [json.dumps(values)])
    operator = site.browser(site.key("service"))
    page = operator.get("/subscriptions").text
    assert "sub_1" in page and "Plans that end" in page and "past_due" in page
    assert "Subscription:" in operator.get(f"/tenants/{sample.acme}").text
    assert site.browser(site.key("owner", sample.acme)).get("/subscriptions").status_code == 403


def test_operators_and_owners_can_open_every_page(site: Any, sample: Any, paths: list[str]) -> None:
    """pages read under the caller's role and never show secrets."""
    operators = ["/workers", "/workers/drain?id=box-1:2210", "/provider?name=openai/gpt-5"]
    operators += ["/subscriptions"]
    operators += [f"/provider/confirm?name=openai/gpt-5&verb={verb}" for verb in ("pause", "resume", "open")]
    operators += [f"/?tenant={sample.acme}", f"/usage?tenant={sample.acme}"]
    for credential, more in ((site.key("service"), operators), (site.key("owner", sample.acme), [])):
        browser = site.browser(credential)
        for path in paths + more:
            answer = browser.get(path)
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
            assert "psk_should_never_be_seen" not in answer.text


def test_export_reads_all_pages_and_keeps_only_the_exported_cells(
    site: Any, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of jobs may hold hundreds of megabytes of params, none of which is exported."""
    monkeypatch.setattr(exports, "PER_PAGE", 2)
    lines = site.browser(site.key("service")).get("/jobs.csv").text.splitlines()
    assert len(lines) == 1 + sample.db.execute("select count(*) as n from penstock.jobs")[0]["n"] > 5

    kept: list[weakref.ref[Large]] = []

    async def page(conn: Any, *, before: int | None, limit: int) -> list[Large]:
        assert not any(line() for line in kept[:-limit])
        found = [Large(number) for number in range((before or 0) + 1, min((before or 0) + limit, 7) + 1)]
        kept.extend(map(weakref.ref, found))
        return found

    rows = asyncio.run(exports.all_rows(page, exports.fields("id"), cast("Any", None)))
    assert rows == [[number] for number in range(1, 8)]
    assert not any(line() for line in kept)


def recent_jobs(page: str) -> list[str]:
    return re.findall(r'<tr id="job-([0-9a-f-]{36})" data-row>', page)


def test_overview_lists_the_recent_jobs_of_the_tenant_or_of_all(site: Any, sample: Any) -> None:
    listed = sample.db.execute("select id, tenant_id from penstock.jobs order by id desc")
    own = [str(row["id"]) for row in listed if row["tenant_id"] == sample.acme]
    operator = site.browser(site.key("service"))
    everything = operator.get("/").text
    assert len(listed) > 8
    assert recent_jobs(everything) == [str(row["id"]) for row in listed[:8]]
    assert f'href="/dashboard/jobs/{sample.jobs["running"]}">River animals</a>' in everything
    assert "6 of 49 done" in everything and "5 of 5 canceled" in everything
    owner = site.browser(site.key("owner", sample.acme)).get("/").text
    assert recent_jobs(owner) == own[:8] and str(sample.jobs["other"]) not in owner
    assert recent_jobs(operator.get(f"/?tenant={sample.acme}").text) == own[:8]


def test_old_address_of_the_providers_page_redirects(site: Any) -> None:
    answer = site.browser(site.key("service")).get("/lanes?tenant=0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
    assert answer.status_code == 307
    assert answer.headers["location"] == "/dashboard/providers?tenant=0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


def test_audit_log_and_job_show_names_of_actors(site: Any, sample: Any) -> None:
    db, job = sample.db, sample.jobs["paused"]
    [ann] = db.execute("insert into auth.users (email) values ('ann@example.org') returning id")
    db.execute("select penstock.set_member(%s, %s, 'owner')", [sample.acme, ann["id"]])
    [nightly] = db.execute(
        "select id, secret from penstock.create_key('nightly', 'member', %s)", [sample.acme]
    )
    [deploy] = db.execute("select secret from penstock.create_key('deploy bot', 'service')")
    site.browser(nightly["secret"]).post("/act", {"noun": "jobs", "verb": "resume", "id": str(job)})
    site.browser(deploy["secret"]).post("/act", {"noun": "jobs", "verb": "pause", "id": str(job)})
    site.browser(nightly["secret"]).post("/act", {"noun": "jobs", "verb": "cancel", "id": str(job)})
    # A revoked key keeps its name.
    db.execute("select penstock.revoke_key(%s)", [nightly["id"]])
    for path in ("/jobs", f"/jobs/{job}"):
        assert "canceled by nightly" in site.browser(site.key("service")).get(path).text, path
    for path in (f"/jobs/{job}", "/audit"):
        operator = site.browser(site.key("service")).get(path).text
        owner = site.browser(site.key("owner", sample.acme)).get(path).text
        assert ">nightly<" in operator and ">deploy bot<" in operator
        assert ">nightly<" in owner and "deploy bot" not in owner
        assert "(database login)" in operator and ">service:" not in operator and ">user:" not in operator
    member = site.browser(site.key("member", sample.acme)).get(f"/jobs/{job}").text
    assert f">user …{str(nightly['id'])[-8:]}<" in member
    assert ">ann<" in site.browser(site.key("service")).get(f"/tenants/{sample.acme}").text


def test_overview_lists_what_to_do_now(site: Any, sample: Any) -> None:
    operator, member = site.browser(site.key("service")), site.browser(site.key("member", sample.acme))
    viewer, other = (
        site.browser(site.key("viewer", sample.acme)),
        site.browser(site.key("member", sample.other)),
    )
    assert "Openai/" not in operator.get("/").text  # the name of a closed provider keeps its case
    page = member.get("/").text
    assert "What to do now" in page and "1 job is paused: until the new templates are there" in page
    assert "2 tasks of kind narrate failed permanently" in page
    [retry] = [link for link in re.findall(r'href="([^"]+)">Retry…', page) if "narrate" in link]
    confirmation = member.client.get(retry.replace("&amp;", "&"))
    assert "Replay 2 dead letters?" in confirmation.text
    assert "is paused" not in viewer.get("/").text and "is paused" not in other.get("/").text
    assert "is paused" in operator.get("/").text


def test_percentage_and_bar_of_a_job_agree(site: Any, sample: Any) -> None:
    page = site.browser(site.key("service")).get(f"/jobs/{sample.jobs['running']}").text
    head = page.partition("<h2>Progress")[2]
    percent = int(re.findall(r"(\d+) %", head)[0])
    [bar] = re.findall(r"<svg.*?</svg>", head, re.S)[:1]
    assert f'aria-label="{percent} %:' in bar
    assert sum(
        float(width) for width in re.findall(r'width="([\d.]+)%" height="8" rx="1"', bar)
    ) == pytest.approx(percent)


def test_files_are_grouped_by_document_and_sorted_as_people_count(site: Any, sample: Any) -> None:
    db, job = sample.db, sample.jobs["completed"]
    ids = {
        row["key"]: row["id"]
        for row in db.execute("select key, id from penstock.tasks where job_id = %s", [job])
    }
    files = [
        ("book.pdf", "book"),
        *((f"{n}.pdf", f"pages {n}") for n in (4, 2, 1)),
        ("10.txt", "chapter 1"),
        ("9.txt", "chapter 1"),
    ]
    for name, key in files:
        db.execute(
            """insert into penstock.artifacts (tenant_id, job_id, task_id, name, path, content_type, bytes, sha256, status, created_by, created_at, begun_at, stored_at)
            values (%s, %s, %s, %s, %s, 'application/pdf', 10, repeat('0', 64), 'stored', 'test', now(), now(), now())""",
            [sample.acme, job, ids[key], name, f"{sample.acme}/{name}"],
        )
    page = site.browser(site.key("viewer", sample.acme)).get(f"/jobs/{job}?view=tasks").text
    shelves = re.findall(r'<h3 class="shelf">(.*?) <span', page)
    assert shelves == ["book", "chapter 1", "chapter 2", "chapter 4"]
    names = re.findall(r"<figcaption><a [^>]*>(.*?)</a>", page)
    assert names == ["book.pdf", "1.pdf", "9.txt", "10.txt", "2.pdf", "4.pdf"]


def test_jobs_have_titles_and_are_found_by_what_they_are_about(site: Any, sample: Any) -> None:
    db = sample.db
    db.execute("""select penstock.define_params('{"publish": {"title": "{title}"}}')""")
    statement = """select penstock.start_job('publish', %s, '[{"kind": "write", "key": "one"}]', %s) as id"""
    params = json.dumps({"title": "<b>Otters</b> at dawn", "api_key": "psk_hidden"})
    [row] = db.execute(statement, [params, json.dumps({"tenant_id": str(sample.acme), "tags": ["Urgent"]})])
    member, other = (
        site.browser(site.key("member", sample.acme)),
        site.browser(site.key("member", sample.other)),
    )
    title, link = "&lt;b&gt;Otters&lt;/b&gt; at dawn", f'href="/dashboard/jobs/{row["id"]}"'
    for path in ("/", "/jobs", f"/jobs/{row['id']}"):
        page = member.get(path).text
        assert title in page and "<b>Otters" not in page and "urgent" in page, path
    assert "River animals</a>" in member.get("/usage").text
    for filter in (
        "otters",
        "text:dawn",
        "tag:urgent",
        'params.title:"<b>otters</b> at dawn"',
        "dawn status:queued",
    ):
        answer = member.get("/jobs", params={"filter": filter}).text
        assert link in answer and answer.count("data-row") == 1, filter
        assert link not in other.get("/jobs", params={"filter": filter}).text
    assert link not in member.get("/jobs", params={"filter": "hidden"}).text
    assert link not in member.get("/jobs", params={"filter": "-tag:urgent"}).text
    answer = member.get("/jobs", params={"filter": "-text:otters"}).text
    assert "cannot be excluded" in answer


def test_tasks_have_one_name_on_every_page(site: Any, sample: Any) -> None:
    operator, job = site.browser(site.key("service")), sample.jobs["failed"]
    [task] = sample.db.execute("select id from penstock.tasks where job_id = %s and key = 'audio 2'", [job])
    link = f'<a href="/dashboard/jobs/{job}/tasks/{task["id"]}">audio 2</a>'
    for path in ("/dead-letters", f"/jobs/{job}"):
        assert link in operator.get(path).text, path
    page = operator.get(f"/jobs/{job}/tasks/{task['id']}").text
    depends_on = page.partition("<dt>Depends on</dt>")[2].partition("</dd>")[0]
    assert re.findall(r">([^<]+)</a>", depends_on) == ["pages 2"]


def test_alerts_name_tenants_and_keys(site: Any, sample: Any) -> None:
    operator = site.browser(site.key("service"))
    site.key("viewer", sample.acme)
    page = (
        operator.get("/").text.partition('<section class="card" id="alerts">')[2].partition("</section>")[0]
    )
    assert re.findall(r'<td class="main"[^>]*>([^<]*)</td>', page) == ["tenant Acme", "service"]


def test_grid_and_files_have_a_row_for_each_document_of_a_common_plan(site: Any, sample: Any) -> None:
    tasks: list[dict[str, Any]] = [{"kind": "render", "key": "plan"}]
    for name in ("1 Springs", "2 Brooks"):
        tasks.append({"kind": "write", "key": name, "after": ["plan"]})
        tasks.append({"kind": "typeset", "key": f"{name} pdf", "after": ["plan", name]})
    tasks.append({"kind": "bind", "key": "book", "after": ["plan", "1 Springs pdf", "2 Brooks pdf"]})
    job = site.load("sample").start(sample.db, sample.acme, "book", tasks)
    page = site.browser(site.key("service")).get(f"/jobs/{job}?view=grid").text
    rows = re.findall(r'<th scope="row">([^<]*)</th>\s*<td>', page)
    assert rows == ["plan", "1 Springs", "2 Brooks", "book"]


def test_job_of_one_task_shows_its_input_as_params(site: Any, sample: Any) -> None:
    start, db = site.load("sample").start, sample.db
    job = start(db, sample.acme, "render", [{"kind": "render", "input": {"scene": "dusk"}}], params={})
    page = site.browser(site.key("service")).get(f"/jobs/{job}").text
    assert "dusk" in page.partition("<h2>Parameters</h2>")[2].partition("</pre>")[0]
