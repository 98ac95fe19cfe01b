"""Every page, empty and full, for everybody who may look, and nothing for those who may not."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from typing import Any, cast

import pytest

from penstock.dashboard import exports


@dataclass(eq=False)
class Large:
    """A line of a list."""

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
    """Each page answers under the caller's role."""
    operators = ["/workers", "/workers/drain?id=box-1:2210", "/provider?name=openai/gpt-5"]
    operators += [f"/provider/confirm?name=openai/gpt-5&verb={verb}" for verb in ("pause", "resume", "open")]
    operators += [f"/?tenant={sample.acme}", f"/usage?tenant={sample.acme}"]
    for credential, more in ((site.key("service"), operators), (site.key("owner", sample.acme), [])):
        browser = site.browser(credential)
        for path in paths + more:
            answer = browser.get(path)
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
            assert "psk_should_never_be_seen" not in answer.text


def test_a_file_is_whole_and_keeps_only_what_is_in_it(
    site: Any, sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of jobs may bring hundreds of megabytes of params, none of which is in the file."""
    monkeypatch.setattr(exports, "PER_PAGE", 2)
    lines = site.browser(site.key("service")).get("/jobs.csv").text.splitlines()
    assert len(lines) == 1 + sample.db.execute("select count(*) as n from penstock.jobs")[0]["n"] > 5

    kept: list[weakref.ref[Large]] = []

    async def page(held: Any, *, before: int | None, limit: int) -> list[Large]:
        assert not any(line() for line in kept[:-limit])
        found = [Large(number) for number in range((before or 0) + 1, min((before or 0) + limit, 7) + 1)]
        kept.extend(map(weakref.ref, found))
        return found

    rows = asyncio.run(exports.whole(page, exports.fields("id"), cast("Any", None)))
    assert rows == [[number] for number in range(1, 8)]
    assert not any(line() for line in kept)
