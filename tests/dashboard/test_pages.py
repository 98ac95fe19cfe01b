"""Pages and exports, for operators and for owners of a tenant."""

from __future__ import annotations

import asyncio
import json
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
