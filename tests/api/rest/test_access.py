"""PostgREST's protocol: who may, and people who try things."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import httpx
import pytest

from penstock.api.limits import Limits, Rate
from penstock.api.rest import catalogue
from tests.api.conftest import bearer, token
from tests.api.rest.conftest import KEYS, Person, Site, refused


class TestAccess:
    """R2.10/by-name, B5/role: the role decides, as in the database itself."""

    @pytest.mark.slow
    def test_missing_grants_are_permission_errors(self, site: Site, ann: Person) -> None:
        refused(site.get("jobs", site.anon_key), 401, "42501")
        refused(site.http.get("/rest/v1/jobs"), 401, "42501")
        refused(site.get("leases", ann.token), 403, "42501")
        refused(site.post("my_tenants", site.anon_key), 401, "42501")
        answer = site.post("claim_tasks", ann.token, {"p_worker_id": "w"})
        refused(answer, 403, "42501")
        assert site.http.get("/rest/v1/jobs").headers["www-authenticate"] == "Bearer"

    @pytest.mark.slow
    def test_every_function_for_every_role(self, site: Site, ann: Person) -> None:
        """S2, S15: what is granted in the catalogue can be called, and nothing else."""
        by_role = {"anon": site.anon_key, "authenticated": ann.token, "service_role": site.service_key}
        rows = site.db.execute(
            "select p.proname as name, p.prorettype = 'trigger'::regtype as is_trigger, r.rolname as role, "
            "  has_function_privilege(r.oid, p.oid, 'execute') as may "
            "from pg_proc p, pg_roles r where p.pronamespace = 'penstock'::regnamespace "
            "  and r.rolname in ('anon', 'authenticated', 'service_role')"
        )
        assert len(rows) > 300
        for row in rows:
            answer = site.post(row["name"], by_role[row["role"]], {"no": "such argument"})
            if row["name"].startswith("_") or row["name"] in catalogue.HIDDEN or row["is_trigger"]:
                refused(answer, 404, "PGRST202")
            elif row["may"]:
                body = refused(answer, 404, "PGRST202")
                assert "Perhaps" in body["hint"], row
            else:
                refused(answer, 401 if row["role"] == "anon" else 403, "42501")

    def test_revoked_grant_applies_immediately(self, site: Site, ann: Person) -> None:
        assert site.post("my_tenants", ann.token).status_code == 200
        site.db.execute("revoke execute on function penstock.my_tenants() from authenticated")
        refused(site.post("my_tenants", ann.token), 403, "42501")
        site.db.execute("revoke select on penstock.meters from authenticated")
        refused(site.get("meters", ann.token), 403, "42501")

    def test_catalogue_cache_is_refreshed(
        self, site: Site, ann: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused(site.post("fresh", ann.token), 404, "PGRST202")
        site.db.execute("create function penstock.fresh() returns integer language sql stable as 'select 7'")
        site.db.execute("grant execute on function penstock.fresh() to authenticated")
        refused(site.post("fresh", ann.token), 404, "PGRST202")
        monkeypatch.setattr(catalogue, "FRESH_SECONDS", 0)
        assert site.post("fresh", ann.token).json() == 7

    def test_bad_credentials(self, site: Site) -> None:
        forged = token(uuid.uuid4(), secret="another secret, also of more than 32 bytes")
        for credential in ("nonsense", forged, "psk_" + "0" * 64):
            refused(site.get("jobs", credential), 401, "PGRST301")
            refused(site.post("my_tenants", credential), 401, "PGRST301")

    def test_extra_role_claims_are_ignored(self, site: Site, ann: Person) -> None:
        refused(site.get("leases", token(ann.id, user_role="service_role")), 403, "42501")

    def test_foreign_tenants(self, site: Site, ann: Person, bob: Person) -> None:
        """S1: not a byte of another tenant's, and the same answer as for what does not exist."""
        theirs = site.start(bob.tenant, 1, note="canary of bob")
        site.post("claim_tasks", site.service_key, {"p_worker_id": "w1"})
        rows = site.db.execute(
            "select c.relname as name from pg_class c where c.relnamespace = 'penstock'::regnamespace "
            "and c.relkind in ('r', 'v') and has_table_privilege('authenticated', c.oid, 'select')"
        )
        for row in rows:
            text = site.get(row["name"], ann.token, Prefer="count=exact").text
            assert "canary" not in text, row
            assert str(bob.tenant) not in text, row
            assert theirs not in text, row
        for function in ("get_job", "pause_job", "resume_job", "cancel_job", "retry_job", "forecast"):
            real = site.post(function, ann.token, {"p_job_id": theirs})
            made_up = site.post(function, ann.token, {"p_job_id": str(uuid.uuid4())})
            assert real.status_code in (403, 404), function
            assert (real.status_code, real.json()) == (made_up.status_code, made_up.json()), function
        start = {"p_type": "x", "p_params": {}, "p_tasks": [{"kind": "work"}]}
        answer = site.post("start_job", ann.token, {**start, "p_options": {"tenant_id": str(bob.tenant)}})
        refused(answer, 403, "PT403")

    @pytest.mark.slow
    async def test_requests_do_not_inherit_from_each_other(
        self, site: Site, ann: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S19: many at once, on few connections."""
        monkeypatch.setattr(site.app.state, "rate", Rate(per_second=1e6, burst=1e6))
        monkeypatch.setattr(site.app.state.rates, "tenants", Rate(per_second=1e6, burst=1e6))
        expected = {
            ann.token: (200, [str(ann.tenant)]),
            bob.token: (200, [str(bob.tenant)]),
            site.service_key: (200, []),
            site.anon_key: (401, None),
        }
        limits = httpx.Limits(max_connections=20)
        async with httpx.AsyncClient(base_url=site.url, limits=limits, timeout=60) as http:

            async def ask(credential: str) -> None:
                answer = await http.post("/rest/v1/rpc/my_tenants", headers=bearer(credential))
                status, tenants = expected[credential]
                assert answer.status_code == status
                assert tenants is None or answer.json() == tenants

            await asyncio.gather(*(ask(credential) for _ in range(100) for credential in expected))


INJECTIONS = [
    "'",
    '"',
    "' or 1=1 --",
    "1); drop table penstock.jobs; --",
    '"; drop table penstock.jobs; --',
    "x' union select secret from penstock.settings --",
    "(select pg_sleep(100))",
    "$$;select 1;$$",
    "%s",
    "%(x)s",
    "%",
    "%%",
    "{0}",
    "\\",
    "\\'; select 1",
    "a'||(select current_user)||'",
    "é\u202e\u0000x",
    "pg_catalog.pg_roles",
    "../jobs",
]


# What every role of PostgreSQL may call or read.
ANYBODYS = [
    "pg_sleep",
    "pg_advisory_lock",
    "pg_try_advisory_lock",
    "pg_notify",
    "lo_create",
    "lo_export",
    "lo_import",
    "set_config",
    "current_setting",
    "pg_read_file",
    "pg_ls_dir",
    "pg_terminate_backend",
    "pg_cancel_backend",
    "query_to_xml",
    "dblink",
    "version",
    "nextval",
    "setval",
    "pg_catalog.pg_sleep",
    "penstock.get_job",
    "public.my_tenants",
]
TELLING = [
    "pg_class",
    "pg_stats",
    "pg_stat_activity",
    "pg_stat_user_tables",
    "pg_roles",
    "pg_settings",
    "information_schema",
    "auth.users",
    "users",
]


class TestAttacks:
    """S12, S17, S38, S39: names and values that are meant to become something else."""

    def test_nothing_but_the_contract_is_there(self, site: Site, ann: Person) -> None:
        """S10, S18: not what PostgreSQL gives to everybody: locks, notifications, sleep, files, statistics."""
        for credential in (ann.token, site.service_key):
            for name in ANYBODYS:
                for body in ({}, {"n": 1}, {"seconds": 100}):
                    refused(site.post(name, credential, body), 404, "PGRST202")
            for name in TELLING:
                refused(site.get(name, credential), 404, "PGRST205")

    @pytest.mark.slow
    def test_sql_in_names_and_values(self, site: Site) -> None:
        for number, text in enumerate(INJECTIONS):
            self.inject(site, site.join(f"user{number}"), text)

    def inject(self, site: Site, ann: Person, text: str) -> None:
        mine = site.start(ann.tenant)
        encoded = quote(text, safe="")
        # Taken as a value, these find nothing.
        values: list[dict[str, str]] = [
            {"id": text},
            {"id": f"{text}.1"},
            {"id": f"eq.{text}"},
            {"id": f"in.({text})"},
            {"type": f"eq.{text}"},
            {"type": f"like.never{text}"},
            {"type": f"in.({text})"},
            {"params": f"cs.{text}"},
            {f"params->>{text}": "eq.1"},
            {"or": f"({text})"},
            {"or": f"(type.eq.{text},id.is.null)"},
            {"or": text},
            {text: "eq.1"},
        ]
        # Taken as a name, these find nothing else.
        names: list[dict[str, str]] = [
            {"select": text},
            {"select": f"a{text}:id"},
            {"select": f"x:id{text}"},
            {"select": f"x:params->{text}"},
            {"order": text},
            {"order": f"id.{text}"},
            {"limit": text},
            {"offset": text},
        ]
        for parameters in (*values, *names):
            answer = site.http.get("/rest/v1/jobs", params=parameters, headers=bearer(ann.token))
            if answer.status_code == 200:
                found = answer.json()
                assert found == ([] if parameters in values else [{"x": None}]), (parameters, answer.text)
            else:
                assert answer.status_code in (400, 404, 416, 422), (parameters, answer.text)
                assert set(answer.json()) == KEYS
        calls = [
            site.http.post(f"/rest/v1/rpc/{encoded}", json={}, headers=bearer(ann.token)),
            site.post("get_job", ann.token, {text: 1}),
            site.post("get_job", ann.token, {"p_job_id": text}),
            site.post("cancel_job", ann.token, {"p_job_id": mine, text: 1}),
            site.http.get("/rest/v1/rpc/get_job", params={"p_job_id": text}, headers=bearer(ann.token)),
            site.http.get("/rest/v1/rpc/get_job", params={text: "1"}, headers=bearer(ann.token)),
            site.http.get(f"/rest/v1/{encoded}", headers=bearer(ann.token)),
        ]
        for answer in calls:
            assert answer.status_code in (400, 404, 405, 422), answer.text
        site.post(
            "start_job", ann.token, {"p_type": text, "p_params": {text: text}, "p_tasks": [{"kind": "work"}]}
        )
        rows = site.get("jobs?select=type,params&order=id", ann.token).json()
        assert rows[1:] in ([], [{"type": text, "params": {text: text}}])

    def test_names_from_the_catalogue_are_quoted(self, site: Site, ann: Person) -> None:
        """Even a table that somebody gave a name meant to hurt."""
        name = 'a"; select 1; -- %s'
        quoted = name.replace('"', '""')
        site.db.execute(f'create view penstock."{quoted}" as select 1 as "{quoted}", 2 as "x%y"')
        site.db.execute(f'grant select on penstock."{quoted}" to authenticated')
        answer = site.http.get(
            f"/rest/v1/{quote(name, safe='')}",
            params={"select": "*", "x%y": "eq.2"},
            headers=bearer(ann.token),
        )
        assert answer.json() == [{name: 1, "x%y": 2}]

    def test_profiles(self, site: Site, ann: Person) -> None:
        for schema in (
            "pg_catalog",
            "auth",
            "information_schema",
            "PENSTOCK",
            "penstock,auth",
            "",
            "pg_temp",
        ):
            refused(site.get("users", ann.token, **{"Accept-Profile": schema}), 406, "PGRST106")
            answer = site.post("version", ann.token, **{"Content-Profile": schema})
            refused(answer, 406, "PGRST106")
        for schema in ("penstock", "public"):
            assert site.get("jobs", ann.token, **{"Accept-Profile": schema}).status_code == 200
            # public is only another name for it: what is really in public stays out.
            refused(site.get("pg_stat_activity", ann.token, **{"Accept-Profile": schema}), 404, "PGRST205")
            refused(site.post("set_config", ann.token, **{"Content-Profile": schema}), 404, "PGRST202")
        twice = site.http.get(
            "/rest/v1/jobs",
            headers=[*bearer(ann.token).items(), ("Accept-Profile", "penstock"), ("Accept-Profile", "auth")],
        )
        refused(twice, 406, "PGRST106")

    def test_objects_of_schema_public_are_not_exposed(self, site: Site, ann: Person) -> None:
        site.db.execute(
            "create table public.secrets (x text); grant select on public.secrets to authenticated"
        )
        refused(site.get("secrets", ann.token, **{"Accept-Profile": "public"}), 404, "PGRST205")

    def test_non_object_bodies_are_rejected(self, site: Site, ann: Person) -> None:
        for body in (
            b"[]",
            b"1",
            b"null",
            b'"x"',
            b"{",
            b"{} {}",
            b"\xff",
            b'{"a": NaN}',
            b'{"a": "\\ud800"}',
        ):
            refused(site.post("my_tenants", ann.token, body), 400, "PGRST102")
        refused(site.post("my_tenants", ann.token, b"a=1", **{"Content-Type": "text/csv"}), 400, "PGRST102")
        assert site.post("my_tenants", ann.token, b"").status_code == 200

    def test_depth(self, site: Site, ann: Person) -> None:
        """S39"""
        start = '{"p_type": "x", "p_tasks": [{"kind": "work"}], "p_params": {"a": %s}}'

        def nested(depth: int) -> bytes:
            return (start % ("[" * depth + "]" * depth)).encode()

        assert site.post("start_job", ann.token, nested(50)).status_code == 200
        refused(site.post("start_job", ann.token, nested(100)), 422, "PT422")
        refused(site.post("start_job", ann.token, nested(20_000)), 400, "PGRST102")

    def test_numbers(self, site: Site, ann: Person) -> None:
        for number in ("1e100000", "9" * 4000, "1e308", "-1", "1.5", "99999999999"):
            body = f'{{"p_worker_id": "w", "p_max_tasks": {number}}}'.encode()
            answer = site.post("claim_tasks", site.service_key, body)
            assert answer.status_code in (400, 422), (number, answer.text)
            assert set(answer.json()) == KEYS

    def test_overlong_input(self, site: Site, ann: Person) -> None:
        """S38, S39"""
        many = "&".join(f"priority=neq.{n}" for n in range(200))
        refused(site.get("jobs?" + many, ann.token), 400, "PGRST100")
        group = "or=(" + ",".join(f"priority.eq.{n}" for n in range(200)) + ")"
        refused(site.get("jobs?" + group, ann.token), 400, "PGRST100")
        deep = "or=" + "(and" * 50 + "(id.is.null)" + ")" * 50
        refused(site.get("jobs?" + deep, ann.token), 400, "PGRST100")
        values = "priority=in.(" + ",".join("1" for _ in range(2000)) + ")"
        refused(site.get("jobs?" + values, ann.token), 400, "PGRST100")
        refused(site.get("jobs?type=eq." + "x" * 17_000, ann.token), 414, "PGRST100")
        refused(site.get("j" * 5000, ann.token), 404, "PGRST205")
        columns = ",".join(["id"] * 4000)
        refused(site.get("jobs?select=" + columns, ann.token), 400, "PGRST100")

    def test_large_responses_are_rejected(
        self, site: Site, ann: Person, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S38: a thousand rows may be a thousand large documents, and each of them many times."""
        site.db.execute("select penstock.define_kind('large', '{\"raw_tasks\": true}')")
        body = {
            "p_type": "report",
            "p_params": {},
            "p_tasks": [{"kind": "large", "input": {"text": "x" * 2000}}] * 3,
        }
        assert site.post("start_job", ann.token, body).status_code == 200
        uses = ",".join(f"a{n}:input" for n in range(3))
        assert set(site.get(f"tasks?select={uses}", ann.token).json()[0]) == {"a0", "a1", "a2"}
        refused(site.get(f"tasks?select={uses},a3:input", ann.token), 400, "PGRST100")
        places = ",".join(f"a{n}:input->>text" for n in range(4))
        refused(site.get(f"tasks?select={places}", ann.token), 400, "PGRST100")
        assert site.get("tasks?select=id,input->>a,input->>b,input->>c,input->>d", ann.token).is_success

        monkeypatch.setattr("penstock.api.rest.MOST_BYTES", 5000)
        for credential in (ann.token, site.service_key):
            assert len(site.get("tasks?limit=2", credential).json()) == 2
            found = refused(site.get("tasks", credential), 413, "PT413")
            assert json.loads(found["details"])["code"] == "answer_too_large" and found["hint"]
        claim = {"p_worker_id": "w", "p_max_tasks": 3}
        claimed = site.post("claim_tasks", site.service_key, claim)
        assert len(claimed.json()) == 3, "what a worker was given is never cut short"

    def test_large_rest_bodies_are_rejected(self, site: Site, ann: Person) -> None:
        body = b'{"p_job_id": "' + b"x" * Limits().body_bytes + b'"}'
        refused(site.post("get_job", ann.token, body), 413, "PT413")

        many = b'{"p_job_id": [' + b"[]," * 600_000 + b"[]]}"
        refused(site.post("get_job", ann.token, many), 413, "PT413")

        def endless() -> Iterator[bytes]:
            for _ in range(Limits().body_bytes // 65536 + 10):
                yield b" " * 65536

        with suppress(httpx.WriteError, httpx.RemoteProtocolError):
            answer = site.http.post(
                "/rest/v1/rpc/get_job",
                content=endless(),
                headers={**bearer(ann.token), "Content-Type": "application/json"},
            )
            assert answer.status_code == 413

    def test_too_many_requests(self, site: Site, ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        """S25, S44: users and those who guess credentials are slowed down; the service is not."""
        monkeypatch.setattr(site.app.state, "rate", Rate(per_second=0.01, burst=2))
        for credential, code in ((ann.token, None), (site.anon_key, "42501")):
            for _ in range(2):
                answer = site.post("my_tenants", credential)
                assert answer.json() == [str(ann.tenant)] if code is None else refused(answer, 401, code)
            answer = site.post("my_tenants", credential)
            refused(answer, 429, "PT429")
            assert 0 < int(answer.headers["retry-after"]) <= 100
        refused(site.post("my_tenants", "a guess"), 429, "PT429")
        assert all(site.post("backlog", site.service_key).status_code == 200 for _ in range(5))

    def test_unexpected_error_reveals_nothing(self, site: Site, ann: Person) -> None:
        """S7"""
        site.db.execute(
            "create function penstock.broken() returns integer language plpgsql as "
            "$$ begin raise exception using errcode = 'XX000', message = 'canary', detail = 'canary', hint = 'canary'; end $$"
        )
        site.db.execute("grant execute on function penstock.broken() to authenticated")
        answer = site.post("broken", ann.token)
        refused(answer, 500, "XX000")
        assert "canary" not in answer.text

    def test_errors_do_not_reveal_other_rows(self, site: Site, ann: Person) -> None:
        site.db.execute(
            "create function penstock.twice() returns void language sql security definer as "
            "$$ insert into penstock.meters (name, period, mode, comment) values ('requests', 'day', 'observe', 'x') $$"
        )
        site.db.execute("grant execute on function penstock.twice() to authenticated")
        body = refused(site.post("twice", ann.token), 409, "23505")
        assert body["details"] is None
