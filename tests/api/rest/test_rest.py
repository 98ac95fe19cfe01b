"""PostgREST's protocol: calls, lists, and their forms."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from penstock.api.rest import catalogue, queries
from tests.api.conftest import bearer
from tests.api.rest.conftest import Person, Site, refused


class TestCalls:
    """The forms of a call and of its answer."""

    def test_forms_of_results(self, site: Site, ann: Person) -> None:
        job = site.start(ann.tenant, 2)
        scalar = site.post("pause_job", ann.token, {"p_job_id": job})
        assert (scalar.status_code, scalar.json()) == (200, "paused")
        assert scalar.headers["content-type"] == "application/json; charset=utf-8"
        document = site.post("get_job", ann.token, {"p_job_id": job})
        assert document.json()["id"] == job
        values = site.post("my_tenants", ann.token)
        assert values.json() == [str(ann.tenant)]
        assert values.headers["content-range"] == "0-0/*"
        rows = site.post("backlog", site.service_key)
        assert [row["kind"] for row in rows.json()] == ["work"]
        nothing = site.post("set_budget", ann.token, {"p_job_id": job, "p_amount": 3})
        assert (nothing.status_code, nothing.content) == (204, b"")
        assert "content-type" not in nothing.headers
        row = site.post("upkeep", site.service_key, Accept="application/vnd.pgrst.object+json")
        assert isinstance(row.json(), dict)

    def test_null_is_a_value(self, site: Site) -> None:
        site.db.execute(
            "create function penstock.nothing() returns text language sql stable as 'select null::text'"
        )
        site.db.execute("grant execute on function penstock.nothing() to anon")
        assert site.post("nothing", site.anon_key).text == "null"

    def test_a_call_by_get(self, site: Site, ann: Person) -> None:
        job = site.start(ann.tenant)
        found = site.get(f"rpc/get_job?p_job_id={job}", ann.token)
        assert found.json()["id"] == job
        head = site.http.head(f"/rest/v1/rpc/get_job?p_job_id={job}", headers=bearer(ann.token))
        assert (head.status_code, head.content) == (200, b"")
        refused(site.get(f"rpc/cancel_job?p_job_id={job}", ann.token), 405, "25006")
        [row] = site.db.execute("select status from penstock.jobs")
        assert row["status"] == "queued"

    def test_get_cannot_write_even_through_a_stable_function(self, site: Site) -> None:
        """A function that lies about itself is stopped by the transaction, not by our reading of it."""
        site.db.execute(
            "create function penstock.liar() returns bigint language plpgsql stable security definer as "
            "$$ begin return (select nextval('penstock.audit_log_id_seq')); end $$"
        )
        site.db.execute("grant execute on function penstock.liar() to service_role")
        refused(site.get("rpc/liar", site.service_key), 405, "25006")
        refused(site.post("liar", site.service_key), 405, "25006")

    def test_a_set_can_be_filtered_ordered_and_cut(self, site: Site, ann: Person) -> None:
        site.start(ann.tenant, 3)
        claim = {"p_worker_id": "w1", "p_max_tasks": 3}
        query = "claim_tasks?select=id,number:input->n&input->n=gt.0&order=id.desc&limit=1"
        rows = site.post(query, site.service_key, claim, Prefer="count=exact")
        assert rows.json() == [{"id": rows.json()[0]["id"], "number": 2}]
        assert (rows.status_code, rows.headers["content-range"]) == (206, "0-0/2")
        assert rows.headers["preference-applied"] == "count=exact"
        # What is not shown was claimed all the same, as with PostgREST.
        assert site.post("claim_tasks", site.service_key, claim).json() == []

    def test_failed_response_rolls_back_the_call(self, site: Site, ann: Person) -> None:
        site.start(ann.tenant, 3)
        claim = {"p_worker_id": "w1", "p_max_tasks": 3}
        single = site.post("claim_tasks", site.service_key, claim, Accept="application/vnd.pgrst.object+json")
        body = refused(single, 406, "PGRST116")
        assert body["details"] == "The result contains 3 rows"
        assert len(site.post("claim_tasks", site.service_key, claim).json()) == 3

    def test_return_minimal(self, site: Site, ann: Person) -> None:
        job = site.start(ann.tenant)
        answer = site.post("get_job", ann.token, {"p_job_id": job}, Prefer="return=minimal")
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["preference-applied"] == "return=minimal"

    def test_unknown_preferences(self, site: Site, ann: Person) -> None:
        assert site.post("my_tenants", ann.token, Prefer="tx=rollback, respond-async").status_code == 200
        strict = site.post("my_tenants", ann.token, Prefer="handling=strict, max-affected=1")
        refused(strict, 400, "PGRST122")

    @pytest.mark.slow
    def test_database_errors_are_passed_on(self, site: Site, ann: Person) -> None:
        task = {"kind": "nothing"}
        answer = site.post("start_job", ann.token, {"p_type": "x", "p_params": {}, "p_tasks": [task]})
        body = refused(answer, 422, "PT422")
        assert json.loads(body["details"])["code"] == "unknown_kind"
        assert answer.headers["content-type"] == "application/json"

    def test_wrong_arguments(self, site: Site, ann: Person) -> None:
        body = refused(site.post("get_job", ann.token, {"job": 1}), 404, "PGRST202")
        assert body["hint"] == "Perhaps you meant to call the function penstock.get_job(p_job_id)"
        refused(site.post("get_job", ann.token), 404, "PGRST202")
        refused(site.post("get_job", ann.token, {"p_job_id": str(uuid.uuid4()), "more": 1}), 404, "PGRST202")
        refused(site.get("rpc/get_job?p_job=1", ann.token), 404, "PGRST202")
        refused(site.post("get_job", ann.token, {"p_job_id": "no id"}), 400, "22P02")
        refused(site.get("rpc/get_job?p_job_id=no-id", ann.token), 400, "22P02")

    def test_methods(self, site: Site, ann: Person) -> None:
        for method in ("PUT", "PATCH", "DELETE"):
            answer = site.http.request(method, "/rest/v1/rpc/get_job", headers=bearer(ann.token))
            refused(answer, 405, "PGRST101")
            refused(site.http.request(method, "/rest/v1/jobs", headers=bearer(ann.token)), 405, "PGRST117")
        refused(site.http.post("/rest/v1/jobs", headers=bearer(ann.token), json={}), 405, "PGRST117")
        refused(site.get("rpc/get_job/more", ann.token), 404, "PGRST125")
        refused(site.get("", ann.token), 404, "PGRST125")

    def test_a_slow_function_is_stopped(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        site.db.execute("create function penstock.slow() returns void language sql as 'select pg_sleep(600)'")
        site.db.execute("grant execute on function penstock.slow() to service_role")
        monkeypatch.setattr(site.app.state.callers, "_milliseconds", "50")
        body = refused(site.post("slow", site.service_key), 500, "57014")
        assert body["message"] == "canceling statement due to statement timeout"


# Of five jobs, numbered from 0, those that a query finds.
FILTERS: dict[str, list[int]] = {
    "": [0, 1, 2, 3, 4],
    "params->n=eq.3": [3],
    "params->>n=in.(1,2,9)": [1, 2],
    "params->>n=not.in.(1,2,9)": [0, 3, 4],
    "params->n=gte.2&params->n=lt.4": [2, 3],
    "params->n=neq.2": [0, 1, 3, 4],
    "params->>title=like.*job)*1": [1],
    "params->>title=ilike.IT'S*3": [3],
    "params->>title=eq.It's, a (job) 2": [2],
    'params->>title=in.("It\'s, a (job) 2",x)': [2],
    "run_at=is.null&priority=eq.5": [0, 1, 2, 3, 4],
    "run_at=not.is.null": [],
    "run_at=is.not_null": [],
    "or=(params->n.eq.0,and(params->n.gt.2,params->n.lt.4))": [0, 3],
    "not.or=(params->n.eq.0,params->n.eq.1)": [2, 3, 4],
    "and=(params->n.gt.0,not.or(params->n.eq.1,params->n.eq.2))": [3, 4],
    'or=(params->>title.eq."It\'s, a (job) 4",params->n.in.(1))': [1, 4],
    'params=cs.{"n": 4}': [4],
    "run_at=isdistinct.2026-01-01": [0, 1, 2, 3, 4],
    "type=in.()": [],
}


@pytest.mark.shared_world
class TestLists:
    """Tables and views."""

    @pytest.fixture
    def jobs(self, site: Site, ann: Person) -> list[str]:
        made: list[str] = []
        for n in range(5):
            made.append(site.start(ann.tenant, 1, n=n, title=f"It's, a (job) {n}"))
            # Ids of the same millisecond have no order.
            time.sleep(0.002)
        return made

    @pytest.mark.slow
    def test_filters(self, site: Site, ann: Person, jobs: list[str]) -> None:
        for query, found in FILTERS.items():
            answer = site.get(f"job_list?select=n:params->n&order=id&{query}", ann.token)
            assert answer.status_code == 200, (query, answer.text)
            assert [row["n"] for row in answer.json()] == found, query

    def test_order(self, site: Site, ann: Person, jobs: list[str]) -> None:
        def ids(order: str) -> list[str]:
            return [row["id"] for row in site.get(f"jobs?select=id&order={order}", ann.token).json()]

        assert ids("id.desc") == jobs[::-1]
        assert ids("run_at.asc.nullsfirst,id") == jobs
        assert ids("priority,params->n.desc") == jobs[::-1]
        refused(site.get("jobs?order=id.up", ann.token), 400, "PGRST100")
        refused(site.get("jobs?order=id.nullslast.desc", ann.token), 400, "PGRST100")
        refused(site.get("jobs?order=nothing", ann.token), 400, "42703")

    def test_pages(self, site: Site, ann: Person, jobs: list[str]) -> None:
        def page(query: str, **headers: str) -> tuple[int, list[str], str]:
            answer = site.get("jobs?select=id&order=id" + query, ann.token, **headers)
            assert answer.status_code < 400, answer.text
            return answer.status_code, [r["id"] for r in answer.json()], answer.headers["content-range"]

        count = {"Prefer": "count=exact"}
        assert page("") == (200, jobs, "0-4/*")
        assert page("&limit=2") == (200, jobs[:2], "0-1/*")
        assert page("", **count) == (200, jobs, "0-4/5")
        assert page("&limit=2&offset=1", **count) == (206, jobs[1:3], "1-2/5")
        assert page("", Range="3-9", **count) == (206, jobs[3:], "3-4/5")
        assert page("", Range="3-", **{"Range-Unit": "items"}) == (200, jobs[3:], "3-4/*")
        assert page("&offset=5", **count) == (206, [], "*/5")
        assert page("&id=is.null", **count) == (200, [], "*/0")
        body = refused(site.get("jobs?offset=6", ann.token, **count), 416, "PGRST103")
        assert body["details"] == "An offset of 6 was requested, but there are only 5 rows."
        refused(site.get("jobs?limit=-1", ann.token), 416, "PGRST103")
        refused(site.get("jobs", ann.token, Range="5-1"), 416, "PGRST103")
        refused(site.get(f"jobs?limit={10**30}", ann.token), 400, "PGRST100")
        refused(site.get("jobs?limit=1e3", ann.token), 400, "PGRST100")

    def test_response_is_limited_to_1000_rows(self, site: Site, ann: Person) -> None:
        site.start(ann.tenant, 1001)
        answer = site.get("tasks?select=id&limit=5000", ann.token, Prefer="count=exact")
        assert len(answer.json()) == 1000
        assert (answer.status_code, answer.headers["content-range"]) == (206, "0-999/1001")

    def test_columns(self, site: Site, ann: Person, jobs: list[str]) -> None:
        [whole] = site.get(f"jobs?id=eq.{jobs[0]}", ann.token).json()
        assert {"id", "tenant_id", "status", "params"} <= set(whole)
        answer = site.get(f'jobs?id=eq.{jobs[0]}&select=job:id,"status",n:params->n', ann.token)
        assert answer.json() == [{"job": jobs[0], "status": "queued", "n": 0}]
        [row] = site.get(f"jobs?id=eq.{jobs[0]}&select=*,again:id" + ",*" * 90, ann.token).json()
        assert row == {**whole, "again": jobs[0]}
        refused(site.get("jobs?select=id::text", ann.token), 400, "PGRST100")
        refused(site.get("jobs?select=count()", ann.token), 400, "PGRST200")
        refused(site.get("jobs?select=nothing", ann.token), 400, "42703")
        refused(site.get("jobs?nothing=eq.1", ann.token), 400, "42703")

    def test_forms(self, site: Site, ann: Person, jobs: list[str]) -> None:
        one = site.get(
            f"jobs?select=id,run_at&id=eq.{jobs[0]}", ann.token, Accept="application/vnd.pgrst.object+json"
        )
        assert one.json() == {"id": jobs[0], "run_at": None}
        assert one.headers["content-type"] == "application/vnd.pgrst.object+json; charset=utf-8"
        stripped = site.get(
            f"jobs?select=id,run_at&id=eq.{jobs[0]}",
            ann.token,
            Accept="application/vnd.pgrst.array+json;nulls=stripped",
        )
        assert stripped.json() == [{"id": jobs[0]}]
        refused(site.get("jobs", ann.token, Accept="text/csv"), 406, "PGRST107")

    def test_every_relation_can_be_read_by_the_service(self, site: Site) -> None:
        """All column types pass through."""
        rows = site.db.execute(
            "select relname as name from pg_class where relnamespace = 'penstock'::regnamespace "
            "and relkind in ('r', 'v', 'p') and not relispartition"
        )
        assert len(rows) > 40
        for row in rows:
            answer = site.get(f"{row['name']}?limit=1", site.service_key, Prefer="count=exact")
            allowed = (
                (403,)
                if row["name"] in ("notification_secrets", "wait_links", "provider_keys", "link_secrets")
                else (200, 206)
            )
            assert answer.status_code in allowed, (row["name"], answer.text)


class TestReading:
    """Parts of the query string, without a database."""

    def test_values_always_become_parameters(self) -> None:
        columns = {
            "id": catalogue.Column("id", "id", "bigint"),
            "data": catalogue.Column("data", "data", "jsonb"),
        }
        source = queries.RowSource("penstock.t", columns, "t")
        pairs = [("id", "eq.V1"), ("data->>V2", "in.(V3,V4)"), ("or", "(id.gt.V5,data->V6->>V7.is.null)")]
        page = queries.read(source, [*pairs, ("order", "data->V8.desc")], None, 10)
        text, values = queries.statement(
            source, page, is_single=False, is_stripped=False, is_counted=True, most_bytes=99
        )
        assert "V" not in text
        where = ["V1", "V2", ["V3", "V4"], "V5", "V6", "V7"]
        assert values == [*where, "V8", 10, 0, 99, *where]
        assert text.count("%s") == len(values)
