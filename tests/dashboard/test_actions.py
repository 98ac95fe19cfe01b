"""Actions on jobs, dead letters, providers, workers, keys, members and schedules; text formats."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.dashboard import formatting
from penstock.dashboard.schedules import describe_cron


def _status(db: Any, job_id: Any) -> str:
    return db.execute("select status from penstock.jobs where id = %s", [job_id])[0]["status"]


def test_retry_shows_count_and_cost_and_writes_an_audit_line(site: Any, sample: Any) -> None:
    """R3.5/job-states"""
    owner = site.browser(site.key("owner", sample.acme))
    job = sample.jobs["failed"]
    page = owner.get(f"/confirm?noun=jobs&verb=retry&id={job}&next=/jobs/{job}").text
    assert "3 failed" in page and "About 0.00" in page
    answer = owner.post("/act", {"noun": "jobs", "verb": "retry", "id": str(job), "next": f"/jobs/{job}"})
    assert answer.headers["location"] == f"/dashboard/jobs/{job}"
    assert "1 job retried." in owner.get(f"/jobs/{job}").text
    assert "1 job retried." not in owner.get(f"/jobs/{job}").text
    assert _status(sample.db, job) == "running"
    assert not sample.db.execute("select 1 from penstock.dead_letters where job_id = %s", [job])
    [line] = sample.db.execute(
        "select actor from penstock.audit_log where action = 'job.retried' and job_id = %s", [job]
    )
    assert line["actor"] == f"user:{owner.caller.claims['sub']}"


@pytest.mark.slow
def test_action_on_many_jobs_runs_in_batches_in_the_background(site: Any, sample: Any) -> None:
    """The selection is fixed at confirmation and runs under the role of the user who confirmed it."""
    start = "select penstock.start_job('render', '{}', '[{\"kind\": \"render\"}]', %s) as id"
    options = json.dumps({"tenant_id": str(sample.acme), "paused": True})
    every = f"select j.id from generate_series(1, 230) as n cross join lateral ({start} where n > 0) as j"
    many = [row["id"] for row in sample.db.execute(every, [options])]
    owner = site.browser(site.key("owner", sample.acme))
    condition = "status:paused type:render"
    page = owner.get(
        "/confirm", params={"noun": "jobs", "verb": "cancel", "every": "1", "filter": condition}
    ).text
    assert "Cancel 231 jobs?" in page and "in the background" in page
    answer = owner.post(
        "/act", {"noun": "jobs", "verb": "cancel", "every": "1", "filter": condition, "reason": "too many"}
    )
    location = answer.headers["location"]
    assert location.startswith("/dashboard/actions/")
    later = sample.db.execute(start, [options])[0]["id"]
    assert "100 canceled, 131 remaining" in " ".join(owner.client.get(location).text.split())
    # Each batch checks the user's role: losing it refuses the jobs of that batch.
    user = owner.caller.claims["sub"]
    assert sample.db.execute("select penstock.do_actions(60) as n")[0]["n"] == 60
    sample.db.execute("update penstock.members set role = 'viewer' where user_id = %s", [user])
    assert sample.db.execute("select penstock.do_actions(30) as n")[0]["n"] == 30
    sample.db.execute("update penstock.members set role = 'owner' where user_id = %s", [user])
    assert sample.db.execute("select penstock.do_actions(1000) as n")[0]["n"] == 41
    assert sample.db.execute("select penstock.do_actions(1000) as n")[0]["n"] == 0
    page = " ".join(owner.client.get(location).text.split())
    assert "201 canceled" in page and "30 refused" in page
    assert sum(_status(sample.db, job) == "canceled" for job in many) in (200, 201)
    assert _status(sample.db, later) == "paused"
    [line] = sample.db.execute(
        "select actor, details from penstock.audit_log where action = 'job.canceled' order by id desc limit 1"
    )
    assert line["actor"] == f"user:{user}" and line["details"]["reason"] == "too many"
    # Other tenants and other users of this tenant cannot see the action.
    assert site.browser(site.key("owner", sample.other)).client.get(location).status_code == 404
    assert site.browser(site.key("owner", sample.acme)).client.get(location).status_code == 404
    assert site.browser(site.key("service")).client.get(location).status_code == 200


def test_action_rejects_invalid_ids_verbs_and_filters(site: Any, sample: Any) -> None:
    operator = site.browser(site.key("service"))
    for noun, verb, ids in (
        ("jobs", "cancel", ["x"]),
        ("jobs", "cancel", ["1"]),
        ("dead-letters", "replay", [str(sample.jobs["failed"])]),
        ("jobs", "replay", ["1"]),
        ("jobs", "drop", ["1"]),
        ("tables", "cancel", ["1"]),
        ("dead-letters", "replay", ["9" * 30]),
    ):
        assert operator.post("/act", {"noun": noun, "verb": verb, "id": ids}).status_code == 422, (
            noun,
            verb,
            ids,
        )
        assert operator.get("/confirm", params={"noun": noun, "verb": verb, "id": ids}).status_code == 422
    assert operator.get("/confirm?noun=jobs&verb=cancel").headers["location"] == "/dashboard/jobs"
    assert (
        operator.post(
            "/act", {"noun": "jobs", "verb": "cancel", "every": "1", "filter": "color:red"}
        ).status_code
        == 422
    )


def test_dead_letters_can_be_replayed_by_cause_and_discarded(site: Any, sample: Any) -> None:
    member = site.browser(site.key("member", sample.acme))
    found = member.get("/dead-letters", params={"filter": "code:handler_error"}).text
    assert " 1 dead letter that matches <code>" in found and "All 1" not in found
    answer = member.post(
        "/act",
        {
            "noun": "dead-letters",
            "verb": "replay",
            "every": "1",
            "filter": "code:voice_missing",
            "next": "/dead-letters",
        },
    )
    assert answer.status_code == 303 and "2 dead letters replayed" in member.get("/dead-letters").text
    [left] = sample.db.execute("select id, error_code from penstock.dead_letters")
    assert left["error_code"] == "handler_error"
    member.post("/act", {"noun": "dead-letters", "verb": "discard", "id": str(left["id"])})
    assert not sample.db.execute("select 1 from penstock.dead_letters")


def test_provider_can_be_paused_resumed_and_limited(site: Any, sample: Any) -> None:
    operator = site.browser(site.key("service"))
    provider = {"name": "openai/gpt-5"}

    def now() -> Any:
        return sample.db.execute(
            "select status, requests_per_minute as n from penstock.endpoints where name = 'openai/gpt-5'"
        )[0]

    assert "10 waiting tasks stay queued" in " ".join(
        operator.get("/provider/confirm?name=openai/gpt-5&verb=pause").text.split()
    )
    operator.post("/provider", {**provider, "verb": "pause"})
    assert now()["status"] == "maintenance"
    operator.post("/provider", {**provider, "verb": "resume"})
    operator.post("/provider", {**provider, "verb": "limits", "requests_per_minute": "1,200"})
    assert (now()["status"], now()["n"]) == ("active", 1200)
    assert (
        operator.post("/provider", {**provider, "verb": "limits", "requests_per_minute": "-1"}).status_code
        == 422
    )
    assert (
        len(
            sample.db.execute(
                "select 1 from penstock.audit_log where action = 'provider.changed' and actor like 'service:%'"
            )
        )
        >= 3
    )


def test_workers_settings_keys_tenants_members_and_schedules_can_be_changed(site: Any, sample: Any) -> None:
    operator, owner = site.browser(site.key("service")), site.browser(site.key("owner", sample.acme))
    db = sample.db
    operator.post("/workers/drain", {"id": "box-1:2210"})
    assert db.execute("select 1 from penstock.workers where id = 'box-1:2210' and drain_asked_at is not null")
    assert operator.post("/workers/drain", {"id": "nobody"}).status_code == 404
    operator.post("/settings/value", {"name": "maintenance", "value": "true"})
    assert "Maintenance mode: no new tasks start" in operator.get("/").text
    operator.post("/settings/value", {"name": "maintenance", "value": "false"})
    made = owner.post(
        "/settings/keys", {"name": "nightly", "role": "viewer", "days": "30", "tenant": str(sample.acme)}
    )
    assert made.status_code == 200 and "psk_" in made.text and made.headers["cache-control"] == "no-store"
    [key] = db.execute("select id from penstock.api_keys where name = 'nightly' and expires_at is not null")
    owner.post("/settings/keys/revoke", {"id": str(key["id"]), "tenant": str(sample.acme)})
    assert db.execute("select 1 from penstock.api_keys where name = 'nightly' and revoked_at is not null")
    operator.post(f"/tenants/{sample.acme}", {"weight": "2.5", "plan": "basic"})
    assert db.execute(
        "select 1 from penstock.tenants where id = %s and weight = 2.5 and plan = 'basic'", [sample.acme]
    )
    operator.post(
        f"/tenants/{sample.acme}/members",
        {"user_id": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "role": "viewer"},
    )
    assert db.execute("select 1 from penstock.members where user_id = '0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b'")
    [schedule] = db.execute("select id from penstock.schedules where name = 'weekly issue'")
    answer = owner.post(f"/schedules/{schedule['id']}", {"verb": "run"})
    assert "/dashboard/jobs/" in answer.headers["location"]
    owner.post(f"/schedules/{schedule['id']}", {"verb": "pause"})
    assert db.execute("select 1 from penstock.schedules where id = %s and not is_enabled", [schedule["id"]])
    owner.post(f"/schedules/{schedule['id']}", {"verb": "remove"})
    assert not db.execute("select 1 from penstock.schedules where id = %s", [schedule["id"]])


def test_invalid_cron_expression_does_not_break_the_list_of_schedules(site: Any, sample: Any) -> None:
    """Earlier versions stored any text as a cron expression; operators see the schedules of all tenants."""
    sample.db.execute(
        "select penstock.set_schedule('odd', '0 3 * * *', 'publish', now(), %s)",
        [Jsonb({"tenant_id": str(sample.acme)})],
    )
    sample.db.execute("update penstock.schedules set cron = 'every now and then' where name = 'odd'")
    [odd] = sample.db.execute("select id from penstock.schedules where name = 'odd'")
    operator = site.browser(site.key("service"))
    page = operator.get("/schedules")
    assert page.status_code == 200 and "weekly issue" in page.text
    assert "is not a cron expression" in page.text
    operator.post(f"/schedules/{odd['id']}", {"verb": "remove"})
    assert not sample.db.execute("select 1 from penstock.schedules where name = 'odd'")


def test_finished_tasks_are_summed_once_per_minute(site: Any, sample: Any, clock: Any) -> None:
    db = sample.db
    db.execute("delete from penstock.task_sums")
    clock.advance(minutes=2)
    assert db.execute("select penstock._sum_tasks() as n")[0]["n"] >= 1
    assert db.execute("select penstock._sum_tasks() as n")[0]["n"] == 0
    [ended] = db.execute(
        "select count(*) filter (where outcome = 'succeeded') as good, count(*) filter (where outcome = 'failed') as bad from penstock.results"
    )
    clock.advance(minutes=3)
    db.execute("select penstock._sum_tasks()")
    [summed] = db.execute(
        "select sum(succeeded) as good, sum(failed) as bad from penstock.task_sums where tenant_id is null"
    )
    [own] = db.execute(
        "select sum(succeeded) as good from penstock.task_sums where tenant_id = %s", [sample.acme]
    )
    assert 0 < summed["good"] <= ended["good"] and own["good"] == summed["good"]
    assert summed["bad"] in (0, ended["bad"])
    rates = db.execute("select * from penstock.task_rates(null, 60)")
    assert len(rates) == 60 and any(rate["run_p95"] for rate in rates)


def test_cron_expressions_are_described_in_describe_cron() -> None:
    assert (
        describe_cron("0 9 * * 1") == "Mondays at 09:00" and describe_cron("30 2 * * *") == "Daily at 02:30"
    )
    assert (
        describe_cron("*/5 * * * *") == "Every 5 minutes"
        and describe_cron("0 9 * * 1-5") == "Monday to Friday at 09:00"
    )
    assert (
        describe_cron("0 8,17 * * *") == "Daily at 08:00, 17:00"
        and describe_cron("0 0 1 * *") == "Day 1 of each month at 00:00"
    )
    assert (
        describe_cron("7 4-6 2 1-3 *") == "7 4-6 2 1-3 *"
        and describe_cron("0 9 * * 0,3") == "Sundays and Wednesdays at 09:00"
    )


def test_numbers_have_separators_and_counts_have_a_limit() -> None:
    assert formatting.number(500_001, 500_000) == "500,000+" and formatting.number(12345) == "12,345"


def test_money_has_two_decimals_or_those_that_a_small_amount_needs() -> None:
    shown = {"1.5": "1.50", "0.05": "0.05", "0.036": "0.036", "0.00010": "0.0001", "0.000099": "0.000099"}
    assert {text: formatting.money(Decimal(text)) for text in shown} == shown


def test_params_in_brief_hide_secrets_and_are_short() -> None:
    params = {"title": "Otters", "api_key": "psk", "pages": ["one", 2, ""], "n": 3}
    assert formatting.brief(params) == "Otters, one" and formatting.brief({"n": 3, "token": 1}) == "n 3"
    assert len(formatting.brief({"text": "x" * 100})) == 60 and formatting.brief({}) == ""


def test_browsers_have_names() -> None:
    chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/150.0.0.0 Safari/537.36"
    assert formatting.browser(chrome) == "Chrome 150 on Linux"
    assert formatting.browser(f"{chrome} Edg/150.0") == "Edge 150 on Linux"
    safari = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Mobile/15E148 Safari/604.1"
    assert formatting.browser(safari) == "Safari 18 on iPhone"
    assert formatting.browser("curl/8.5") == "curl/8.5" and formatting.browser(None) == "unknown"


def test_nouns_agree_with_their_count() -> None:
    assert formatting.counted(1, "task") == "1 task" and formatting.counted(0, "task") == "0 tasks"
    assert formatting.counted(1234, "dead letter") == "1,234 dead letters"
    assert formatting.counted(101, "task", limit=100) == "100+ tasks"
    assert formatting.plural(1, "task waits", "tasks wait") == "task waits"
    assert formatting.plural(2, "task waits", "tasks wait") == "tasks wait"


def test_sentences_keep_the_case_of_names() -> None:
    assert formatting.sentence("the API key has expired") == "The API key has expired."
    assert (
        formatting.sentence("openai/GPT is full.") == "Openai/GPT is full." and formatting.sentence("") == ""
    )


def test_secrets_are_redacted_by_their_names() -> None:
    hidden = formatting.redacted(
        {"user": "x", "api_key": "k", "deep": [{"Password": "p", "access_token": "t", "tokens": 5}]}
    )
    assert hidden == {
        "user": "x",
        "api_key": formatting.HIDDEN,
        "deep": [{"Password": formatting.HIDDEN, "access_token": formatting.HIDDEN, "tokens": 5}],
    }


def test_stack_traces_are_split_into_app_and_library_frames() -> None:
    assert [
        is_own
        for is_own, _ in formatting.frames(
            'T:\n  File "/a.py"\n    x\n  File "/lib/python3.12/b.py"\n    y\nE: z'
        )
    ] == [True, False, True]
