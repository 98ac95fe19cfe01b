"""API keys over HTTP: roles, scopes, expiry and revocation."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock import testing
from penstock.api import callers
from tests.api.conftest import World, bearer


@pytest.mark.shared_world
class TestKeys:
    """S24, S25: a key is good for what it was made for, until it is not."""

    def test_a_key_is_a_member_with_its_role(self, world: World) -> None:
        ann = world.join("ann")
        for role in ("owner", "admin", "member", "viewer"):
            key = world.key(role, ann.tenant)
            for headers in (bearer(key), {"apikey": key}):
                answer = world.client.get("/api/me", headers=headers)
                assert answer.status_code == 200
                assert [tenant["id"] for tenant in answer.json()["tenants"]] == [str(ann.tenant)]

    def test_invalid_api_keys_are_rejected(self, world: World) -> None:
        good = world.key("owner", world.join("ann").tenant)
        bad = [
            "psk_",
            good[:-1],
            good + "0",
            good[:-1] + ("0" if good[-1] != "0" else "1"),
            good.upper(),
            good.replace("psk_", "psk-"),
            "psk_" + "0" * 64,
            "psk_" + "'" * 64,
            "psk_" + good[4:12],
            f"{good}, {good}",
        ]
        for key in bad:
            answer = world.client.get("/api/me", headers=bearer(key))
            assert answer.status_code == 401, key
            assert key not in answer.text

    def test_only_the_digest_of_a_key_is_stored(self, world: World) -> None:
        """S25: who reads the database cannot use the keys in it."""
        ann = world.join("ann")
        answer = world.client.post(
            "/api/keys",
            json={"name": "import", "role": "member"},
            headers={**ann.headers, "Idempotency-Key": "once"},
        )
        assert answer.status_code == 201
        secret = answer.json()["secret"]
        for row in world.db.execute(
            "select c.relname as name from pg_class c where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r'"
        ):
            found = world.db.execute(f"select t::text as line from penstock.{row['name']} t")
            assert not [line for line in found if secret in line["line"]], row["name"]
        again = world.client.post(
            "/api/keys",
            json={"name": "import", "role": "member"},
            headers={**ann.headers, "Idempotency-Key": "once"},
        )
        assert again.json() == {**answer.json(), "secret": None}
        listed = world.client.get("/api/keys", headers=ann.headers).json()
        assert [(key["name"], key["role"], secret.startswith(key["prefix"])) for key in listed] == [
            ("import", "member", True)
        ]
        assert secret not in json.dumps(listed, default=str)

    def test_revoked_key_is_rejected_immediately(self, world: World) -> None:
        ann = world.join("ann")
        made = world.client.post(
            "/api/keys", json={"name": "k", "role": "member"}, headers=ann.headers
        ).json()
        key = bearer(made["secret"])
        assert world.client.get("/api/me", headers=key).status_code == 200
        for _ in range(2):
            assert world.client.delete(f"/api/keys/{made['id']}", headers=ann.headers).status_code == 204
        assert world.client.get("/api/me", headers=key).status_code == 401
        assert world.client.get("/api/keys", headers=ann.headers).json()[0]["revoked_at"]
        members = world.client.get(f"/api/tenants/{ann.tenant}/members", headers=ann.headers).json()
        assert [member["user_id"] for member in members["items"]] == [str(ann.id)]

    def test_revoked_service_key_is_rejected_immediately(self, world: World) -> None:
        made = world.client.post(
            "/api/keys", json={"name": "w", "role": "service"}, headers=world.service
        ).json()
        key = bearer(made["secret"])
        assert world.client.get("/api/me", headers=key).status_code == 200
        assert world.client.delete(f"/api/keys/{made['id']}", headers=world.service).status_code == 204
        assert world.client.get("/api/me", headers=key).status_code == 401

    def test_revoked_key_is_rejected_where_no_transaction_is_used(self, world: World) -> None:
        """S24: also while its id is cached, on a route that checks a file without the database."""
        made = world.db.execute("select id, secret from penstock.create_key('k', 'service')")[0]
        key = bearer(made["secret"])
        check = "/api/bulks/check?type=sheet&format=csv"
        assert world.client.post(check, content=b"a\n1\n", headers=key).status_code == 404
        world.db.execute("select penstock.revoke_key(%s)", [made["id"]])
        assert world.client.post(check, content=b"a\n1\n", headers=key).status_code == 401

    def test_service_key_is_limited_to_its_scopes(self, world: World) -> None:
        """S2: reading, starting, working and managing are four rights."""
        world.kind("work")
        ann = world.join("ann")
        work = {"p_worker_id": "w", "p_max_tasks": 1}
        requests: dict[str, tuple[str, str, Any]] = {
            "read": ("GET", "/api/jobs", None),
            "read table": ("GET", "/rest/v1/jobs", None),
            "read metrics": ("GET", "/metrics", None),
            "start": (
                "POST",
                "/api/jobs/start",
                {"type": "t", "tasks": [{"kind": "work"}], "tenant_id": str(ann.tenant)},
            ),
            "start function": (
                "POST",
                "/rest/v1/rpc/start_job",
                {"p_type": "t", "p_params": {}, "p_tasks": [{"kind": "work"}], "p_options": {"tenant_id": str(ann.tenant)}},
            ),
            "work": ("POST", "/rest/v1/rpc/claim_tasks", work),
            "admin": ("POST", "/api/keys", {"name": "n", "role": "service"}),
            "admin member": ("PUT", f"/api/tenants/{ann.tenant}/members/{ann.id}", {"role": "owner"}),
            "admin provider": ("PUT", "/api/providers?name=a/b", {"concurrency": 3}),
            "admin function": ("POST", "/rest/v1/rpc/create_tenant", {"p_name": "x"}),
            "admin key": ("POST", "/rest/v1/rpc/create_key", {"p_name": "x", "p_role": "service"}),
        }  # fmt: skip
        for scope in ("read", "start", "work", "admin"):
            headers = bearer(self._key(world, "service", [scope]))
            for name, (method, url, body) in requests.items():
                answer = world.client.request(method, url, json=body, headers=headers)
                is_metrics_by_worker = scope == "work" and name == "read metrics"
                if name.split()[0] == scope or is_metrics_by_worker:
                    assert answer.status_code < 300, (scope, name, answer.text)
                else:
                    assert answer.status_code == 403, (scope, name, answer.text)

    def _key(self, world: World, role: str, scopes: list[str]) -> str:
        query = "select secret from penstock.create_api_key('k', %s, %s)"
        return world.db.execute(query, [role, Jsonb({"scopes": scopes})])[0]["secret"]

    def test_scopes_and_heirs_over_http(self, world: World, clock: testing.Clock) -> None:
        ann = world.join("ann")
        soon = (clock.now() + timedelta(hours=1)).replace(microsecond=0)
        body = {"name": "k", "role": "admin", "scopes": ["admin", "read"], "expires_at": soon.isoformat()}
        made = world.client.post("/api/keys", json=body, headers=ann.headers).json()
        assert made["scopes"] == ["admin", "read"]
        heir = world.client.post(
            "/api/keys", json={"name": "heir", "role": "viewer"}, headers=bearer(made["secret"])
        ).json()
        assert datetime.fromisoformat(heir["expires_at"]) == soon
        refused = world.client.post(
            "/api/jobs/start", json={"type": "t", "tasks": [{"kind": "w"}]}, headers=bearer(made["secret"])
        )
        assert refused.status_code == 403 and refused.json()["code"] == "missing_scope"
        listed = world.client.get("/api/keys", headers=ann.headers).json()
        assert {key["name"]: key["parent_id"] for key in listed} == {"k": None, "heir": made["id"]}
        assert world.client.delete(f"/api/keys/{made['id']}", headers=ann.headers).status_code == 204
        assert world.client.get("/api/me", headers=bearer(heir["secret"])).status_code == 401

    def test_expired_key_is_rejected(self, world: World, clock: testing.Clock) -> None:
        ann = world.join("ann")
        soon = (clock.now() + timedelta(hours=1)).isoformat()
        made = world.client.post(
            "/api/keys",
            json={"name": "k", "role": "viewer", "expires_at": soon},
            headers=ann.headers,
        ).json()
        assert world.client.get("/api/me", headers=bearer(made["secret"])).status_code == 200
        clock.advance(hours=2)
        assert world.client.get("/api/me", headers=bearer(made["secret"])).status_code == 401

    def test_last_use_is_updated_once_a_minute(
        self, world: World, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(callers, "KNOWN_SECONDS", 0)
        clock.freeze()
        key = world.key("service")
        seen: list[Any] = []
        for seconds in (0, 30, 40):
            clock.advance(seconds=seconds)
            assert world.client.get("/api/me", headers=bearer(key)).status_code == 200
            seen += [
                row["last_used_at"] for row in world.db.execute("select last_used_at from penstock.api_keys")
            ]
        assert seen[0] == seen[1] < seen[2]

    def test_key_removed_from_its_tenant_is_rejected(self, world: World) -> None:
        ann = world.join("ann")
        viewer = world.member("viewer", ann.tenant)
        url = f"/api/tenants/{ann.tenant}/members/{viewer.id}"
        assert world.client.delete(url, headers=ann.headers).status_code == 204
        assert world.client.get("/api/me", headers=viewer.headers).status_code == 401

    def test_key_cannot_be_added_to_another_tenant(self, world: World) -> None:
        """S84: users cannot, and even if the service does so, the key works where it belongs."""
        world.kind("work")
        ann, bob = world.join("ann"), world.join("bob")
        key = world.member("member", ann.tenant)
        answer = world.client.put(
            f"/api/tenants/{bob.tenant}/members/{key.id}", json={"role": "member"}, headers=bob.headers
        )
        assert answer.status_code == 403 and answer.json()["code"] == "consent_required"
        world.db.execute("select penstock.set_member(%s, %s, 'member')", [bob.tenant, key.id])
        started = world.client.post(
            "/api/jobs/start", json={"type": "t", "tasks": [{"kind": "work"}]}, headers=key.headers
        ).json()
        job = world.client.get(f"/api/jobs/{started['id']}", headers=ann.headers).json()
        assert job["tenant_id"] == str(ann.tenant)

    @pytest.mark.parametrize(
        ("role", "may"),
        [
            ("viewer", []),
            ("member", []),
            ("admin", ["admin", "member", "viewer"]),
            ("owner", ["owner", "admin", "member", "viewer"]),
        ],
    )
    def test_keys_cannot_exceed_their_creators_role(self, world: World, role: str, may: list[str]) -> None:
        ann = world.join("ann")
        maker = world.member(role, ann.tenant)
        made = [
            wanted
            for wanted in ("owner", "admin", "member", "viewer", "worker", "service")
            if world.client.post(
                "/api/keys", json={"name": "k", "role": wanted}, headers=maker.headers
            ).status_code
            == 201
        ]
        assert made == may

    def test_admin_cannot_revoke_an_owners_key(self, world: World) -> None:
        ann = world.join("ann")
        owner = world.member("owner", ann.tenant)
        admin = world.member("admin", ann.tenant)
        assert world.client.delete(f"/api/keys/{owner.id}", headers=admin.headers).status_code == 403
        assert world.client.delete(f"/api/keys/{admin.id}", headers=owner.headers).status_code == 204

    @pytest.mark.usefixtures("db")
    def test_the_service_makes_keys_for_workers(self, world: World) -> None:
        body = {"name": "w", "role": "worker"}
        made = world.client.post("/api/keys", json=body, headers=world.service)
        assert made.status_code == 201
        answer = world.client.get("/api/jobs", headers=bearer(made.json()["secret"]))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        [listed] = world.client.get("/api/keys", headers=world.service).json()
        assert listed["role"] == "worker"
        wrong = {"name": "w", "role": "worker", "tenant_id": str(world.join("ann").tenant)}
        assert world.client.post("/api/keys", json=wrong, headers=world.service).status_code == 422
