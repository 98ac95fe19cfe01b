"""Every page, empty and full, for everybody who may look, and nothing for those who may not."""

from __future__ import annotations

from typing import Any

import pytest


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
        "/lanes",
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


def test_every_page_is_there_for_an_operator_and_an_owner(site: Any, sample: Any, paths: list[str]) -> None:
    """R3.5 and the rest of what a page shows, under the caller's role."""
    operators = ["/workers", "/workers/drain?id=box-1:2210", "/provider?name=openai/gpt-5"]
    operators += [f"/provider/confirm?name=openai/gpt-5&verb={verb}" for verb in ("pause", "resume", "open")]
    operators += [f"/?tenant={sample.acme}", f"/usage?tenant={sample.acme}"]
    for credential, more in ((site.key("service"), operators), (site.key("owner", sample.acme), [])):
        browser = site.browser(credential)
        for path in paths + more:
            answer = browser.get(path)
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
            assert "psk_should_never_be_seen" not in answer.text
