"""Real supabase clients against the served application."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import supabase
from postgrest import CountMethod
from postgrest.exceptions import APIError

from penstock import testing
from penstock.api.rest import WORKER_FUNCTIONS, catalogue
from tests.api.rest.conftest import JS, Node, Person, Site, refused
from tests.conftest import Eventually

# The client warns of its own way of using a part of itself.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The '(timeout|verify)' parameter is deprecated:DeprecationWarning"
)


class TestSupabasePython:
    """B5/python, B5/role: an unmodified supabase-py can call the contract."""

    def test_the_worker_loop(self, site: Site, ann: Person) -> None:
        """R1.2/any-language, R1.2/without-lease"""
        service = site.service()
        job = (
            service.rpc(
                "start_job",
                {
                    "p_type": "report",
                    "p_params": {"topic": "otters"},
                    "p_tasks": [
                        {"kind": "work", "key": key, "input": {"n": 9007199254740993}} for key in "ab"
                    ],
                    "p_options": {"tenant_id": str(ann.tenant)},
                },
            )
            .execute()
            .data
        )
        claim = {"p_worker_id": "w1", "p_max_tasks": 2, "p_task_types": ["work"], "p_lease_seconds": 30}
        first, second = service.rpc("claim_tasks", claim).execute().data
        assert (first["key"], first["job_id"], first["input"]) == ("a", job, {"n": 9007199254740993})
        held = {"p_task_id": first["id"], "p_worker_id": "w1", "p_lease": first["lease"]}
        assert service.rpc("heartbeat_task", held).execute().data is True
        assert service.rpc("complete_task", {**held, "p_output": {"pages": [1, 2]}}).execute().data is True
        other = {"p_task_id": second["id"], "p_worker_id": "w1", "p_lease": second["lease"]}
        assert service.rpc("fail_task", {**other, "p_error": "boom"}).execute().data is True
        [again] = service.rpc("claim_tasks", claim).execute().data
        assert (again["id"], again["attempt"]) == (second["id"], 2)

        with pytest.raises(APIError) as late:
            service.rpc("complete_task", other).execute()
        assert late.value.code == "PT410"
        assert json.loads(late.value.details or "")["code"] == "lease_lost"

        # The form of older clients: the worker's name instead of the lease.
        seed = {"p_task_id": again["id"], "p_worker_id": "w1", "p_output": {"text": "…"}}
        assert service.rpc("complete_task", seed).execute().data is True
        found = service.rpc("get_job", {"p_job_id": job}, get=True).execute().data
        assert (found["status"], found["progress"]["percent"]) == ("completed", 100)

    async def test_the_async_client(self, site: Site, ann: Person) -> None:
        job = await asyncio.to_thread(site.start, ann.tenant, 3)
        client: Any = await supabase.acreate_client(
            site.url, site.service_key, supabase.AsyncClientOptions(schema="penstock")
        )
        claims = [client.rpc("claim_tasks", {"p_worker_id": f"w{n}"}).execute() for n in range(3)]
        for n, answer in enumerate(await asyncio.gather(*claims)):
            [task] = answer.data
            done = {"p_task_id": task["id"], "p_worker_id": f"w{n}", "p_lease": task["lease"]}
            assert (await client.rpc("complete_task", done).execute()).data is True
        answer = await client.rpc("get_job", {"p_job_id": job}).execute()
        assert answer.data["status"] == "completed"
        await client.postgrest.aclose()

    def test_batches_and_arrays(self, site: Site, ann: Person) -> None:
        site.start(ann.tenant, 3)
        service = site.service()
        tasks = service.rpc("claim_tasks", {"p_worker_id": "w1", "p_max_tasks": 3}).execute().data
        ids, leases = [task["id"] for task in tasks], [task["lease"] for task in tasks]
        done = {
            "p_worker_id": "w1",
            "p_task_ids": ids,
            "p_leases": [*leases[:2], leases[2] + 1],
            "p_outputs": [{"a": [1]}, None, {"b": 2}],
        }
        [late] = service.rpc("complete_tasks", done).execute().data
        assert (late["id"], late["code"]) == (ids[2], "lease_lost")
        rows = site.db.execute("select output from penstock.results order by task_id")
        assert [row["output"] for row in rows] == [{"a": [1]}, None]

    def test_a_client_that_names_no_schema(self, site: Site, ann: Person) -> None:
        client = site.client(site.service_key, schema="public")
        assert client.rpc("claim_tasks", {"p_worker_id": "w1"}).execute().data == []

    def test_a_user_starts_and_reads_own_jobs(self, site: Site, ann: Person, bob: Person) -> None:
        """R0.9/own-rows"""
        theirs = site.start(bob.tenant, 1, secret="of bob")
        client = site.user(ann)
        mine = [
            client.rpc(
                "start_job",
                {"p_type": kind, "p_params": {"n": n}, "p_tasks": [{"kind": "work"}], "p_options": {}},
            )
            .execute()
            .data
            for n, kind in enumerate(["report", "report", "video"])
        ]
        table = client.table("job_list")
        everything = table.select("id", count=CountMethod.exact).order("created_at").execute()
        assert [row["id"] for row in everything.data] == mine
        assert everything.count == 3
        query = client.table("job_list").select("id", "type", "status").eq("type", "report")
        assert query.order("id", desc=True).limit(1).execute().data == [
            {"id": mine[1], "type": "report", "status": "queued"}
        ]
        page = (
            client.table("job_list").select("id", count=CountMethod.exact).order("id").range(1, 1).execute()
        )
        assert (page.data, page.count) == ([{"id": mine[1]}], 3)
        chosen = client.table("job_list").select("id").in_("id", [mine[0], theirs]).execute()
        assert chosen.data == [{"id": mine[0]}]
        either = (
            client.table("job_list").select("id").or_("type.eq.video,params->>n.eq.0").order("id").execute()
        )
        assert [row["id"] for row in either.data] == [mine[0], mine[2]]
        assert client.table("job_list").select("id").contains("params", {"n": 1}).execute().data == [
            {"id": mine[1]}
        ]
        assert client.table("jobs").select("id").eq("id", theirs).maybe_single().execute() is None
        assert client.table("jobs").select("type").eq("id", mine[2]).single().execute().data == {
            "type": "video"
        }
        counted = client.table("job_list").select("*", count=CountMethod.exact, head=True).execute()
        assert (counted.data, counted.count) == ([], 3)
        assert client.rpc("my_tenants", {}, get=True).execute().data == [str(ann.tenant)]
        assert client.rpc("cancel_job", {"p_job_id": mine[2]}).execute().data == "canceled"

    def test_refusals(self, site: Site, ann: Person, bob: Person) -> None:
        theirs = site.start(bob.tenant)
        client = site.user(ann)

        def error(call: Callable[[], Any]) -> str | None:
            with pytest.raises(APIError) as caught:
                call()
            return caught.value.code

        assert error(client.rpc("claim_tasks", {"p_worker_id": "w"}).execute) == "42501"
        assert error(client.rpc("get_job", {"p_job_id": theirs}).execute) == "PT404"
        assert error(client.rpc("cancel_job", {"p_job_id": theirs}).execute) == "PT404"
        assert error(client.rpc("start_job", {"type": "x"}).execute) == "PGRST202"
        assert error(client.rpc("nothing", {}).execute) == "PGRST202"
        assert error(client.table("jobs").insert({"type": "x"}).execute) == "PGRST117"
        assert (
            error(client.table("jobs").update({"status": "completed"}).eq("id", theirs).execute) == "PGRST117"
        )
        assert error(client.table("jobs").delete().eq("id", theirs).execute) == "PGRST117"
        assert error(client.table("jobs").select("id").eq("id", theirs).single().execute) == "PGRST116"
        assert error(client.table("leases").select("*").execute) == "42501"
        assert error(client.table("jobs").select("*, tasks(*)").execute) == "PGRST200"
        with pytest.raises(APIError) as caught:
            client.rpc("start_job", {"p_type": "x", "p_params": {}, "p_tasks": []}).execute()
        assert caught.value.code == "PT422"
        assert json.loads(caught.value.details or "") == {"code": "no_tasks", "field": "tasks"}

    @pytest.mark.slow
    def test_a_worker_s_key_is_for_the_worker_s_functions(self, site: Site, ann: Person) -> None:
        """R1.9/workers, S24, S26"""
        key = site.key("worker")
        job = site.start(ann.tenant)
        worker = site.client(key)
        [task] = worker.rpc("claim_tasks", {"p_worker_id": "w1"}).execute().data
        child = {"p_job_id": job, "p_tasks": [{"kind": "work"}]}
        refused(site.post("add_tasks", key, child), 403, "42501")
        refused(site.post("add_tasks", key, {**child, "p_task_id": None}), 403, "42501")
        lease = {"p_task_id": task["id"], "p_worker_id": "w1", "p_lease": task["lease"]}
        assert len(worker.rpc("add_tasks", {**child, **lease}).execute().data) == 1
        assert worker.rpc("complete_task", lease).execute().data is True
        for function in ("get_job", "cancel_job", "start_job", "create_tenant", "set_setting", "prune"):
            refused(site.post(function, key, {"p_job_id": job}), 403, "42501")
        refused(site.get("jobs", key), 403, "42501")

    def test_the_functions_named_here_are_there(self, site: Site) -> None:
        """A name that was changed elsewhere would shut workers out, or let people in."""
        rows = site.db.execute("select proname from pg_proc where pronamespace = 'penstock'::regnamespace")
        assert {*WORKER_FUNCTIONS, *catalogue.HIDDEN} <= {row["proname"] for row in rows}


class TestSupabaseJavaScript:
    """B5/javascript, B5/role: an unmodified supabase-js can call the contract."""

    @pytest.mark.slow
    def test_what_a_browser_does(self, site: Site, ann: Person, bob: Person, node: Node) -> None:
        theirs = site.start(bob.tenant, 1, secret="of bob")
        output = node("checks.mjs", site.url, site.anon_key, ann.token, theirs)
        assert "of bob" not in output
        answers = json.loads(output)
        job = answers["started"]["data"]
        statuses = {name: answer["status"] for name, answer in answers.items()}
        codes = {name: a["error"]["code"] for name, a in answers.items() if a["error"]}
        assert codes == {
            "notSingle": "PGRST116",
            "foreign": "PT404",
            "claim": "42501",
            "insert": "PGRST117",
            "unknown": "PGRST202",
            "anonymous": "42501",
            "schema": "PGRST106",
        }
        assert [statuses[name] for name in codes] == [406, 404, 403, 405, 404, 401, 406]
        data = {name: answer["data"] for name, answer in answers.items()}
        assert data["job"]["id"] == job
        assert (data["paused"], data["resumed"]) == ("paused", "queued")
        assert (statuses["void"], data["void"]) == (204, None)
        assert data["list"] == [{"id": job, "type": "report", "topic": "otters"}]
        assert answers["list"]["count"] == 1
        assert data["tasks"] == [{"kind": "work", "priority": 1}]
        assert answers["counted"]["count"] == 2
        assert (data["single"], data["maybeSingle"]) == ({"id": job}, None)


class TestDraining:
    """R1.6/dead-worker, R1.2/any-language, B5/javascript: a job of 1,000 tasks, two clients, one of which dies with leases in its hands."""

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    @pytest.mark.parametrize(("victim", "survivor"), [("js", "py"), ("py", "js")])
    def test_nothing_is_lost(
        self,
        site: Site,
        ann: Person,
        clock: testing.Clock,
        node: Node,
        eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        victim: str,
        survivor: str,
    ) -> None:
        job = site.start(ann.tenant, 1000)
        commands = {
            "js": node.command("worker.mjs"),
            "py": [sys.executable, str(JS.parent / "supabase_worker.py")],
        }

        def start(language: str, name: str, *rest: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = tmp_path / name
            with log.open("wb") as file:
                command = [*commands[language], site.url, site.service_key, name, job, *rest]
                process = subprocess.Popen(
                    command, stdout=file, stderr=subprocess.STDOUT, env=node.environment
                )
            return process, log

        dying, dying_log = start(victim, "victim", "10", "205")
        living, living_log = start(survivor, "survivor", "600")
        try:
            monkeypatch.setattr(eventually, "SECONDS", 120)
            eventually(lambda: "holding" in dying_log.read_text() or dying.poll() is not None)
            dying.kill()
            dying.wait()
            assert dying_log.read_text().splitlines()[-1] == "holding 15"
            clock.advance(seconds=60)
            eventually(lambda: living.poll() is not None, "the survivor ends")
        finally:
            for process in (dying, living):
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait()
            print(dying_log.read_text(), living_log.read_text())
        assert living_log.read_text().splitlines()[-1] == "done 795"
        results = site.db.execute("select outcome, output from penstock.results")
        assert sorted(row["output"]["n"] for row in results) == list(range(1000))
        assert {row["outcome"] for row in results} == {"succeeded"}
        lost = site.db.execute("select worker_id, outcome from penstock.attempts")
        assert [(row["worker_id"], row["outcome"]) for row in lost] == [("victim", "lost")] * 15
        [found] = site.db.execute("select status from penstock.jobs")
        assert found["status"] == "completed"
