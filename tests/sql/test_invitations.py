"""Membership needs consent: invitations, leaving, blocking; erasing a user."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.test_access import Person, acting, join

CANARY = "canary-of-ann"


def invite(
    sql: Contract, by: Person | None, tenant: uuid.UUID, role: str = "member", **options: Any
) -> dict[str, Any]:
    arguments = {"role": role, "tenant_id": tenant, "options": Jsonb(options)}
    if by is None:
        return sql.rows("create_invitation", **arguments)[0]
    with acting(sql, by):
        return sql.rows("create_invitation", **arguments)[0]


def role_of(sql: Contract, tenant: uuid.UUID, person: Person) -> str | None:
    return sql.one(
        "select role from penstock.members where tenant_id = %s and user_id = %s", tenant, person.id
    )


class TestConsent:
    def test_users_cannot_add_members_directly(self, sql: Contract) -> None:
        """S84: only the service may, for an application that asked for consent."""
        ann, bob = join(sql, "ann"), join(sql, "bob")
        with acting(sql, ann), sql.refused(403, "consent_required"):
            sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="viewer")
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="viewer")
        with acting(sql, ann):
            sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="member")
        assert role_of(sql, ann.tenant, bob) == "member"

    def test_invited_user_accepts_once(self, sql: Contract) -> None:
        ann, bob, eve = (join(sql, name) for name in ("ann", "bob", "eve"))
        made = invite(sql, ann, ann.tenant, "admin")
        with acting(sql, bob):
            assert sql.rows("get_invitation", secret=made["secret"])[0]["role"] == "admin"
            assert sql.value("accept_invitation", secret=made["secret"]) == ann.tenant
        assert role_of(sql, ann.tenant, bob) == "admin"
        with acting(sql, eve):
            assert sql.rows("get_invitation", secret=made["secret"]) == []
            with sql.refused(404, "unknown_invitation"):
                sql.value("accept_invitation", secret=made["secret"])
        [listed] = sql.rows("list_invitations", tenant_id=ann.tenant)
        assert (listed["status"], listed["answered_by"]) == ("accepted", bob.id)
        assert made["secret"] not in str(sql.execute("select i::text from penstock.invitations i"))

    def test_expired_revoked_and_declined_invitations_are_worth_nothing(
        self, sql: Contract, clock: Clock
    ) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        made = [invite(sql, ann, ann.tenant, days=days) for days in (1, 30, 30)]
        clock.advance(days=2)
        with acting(sql, ann):
            sql.value("revoke_invitation", invitation_id=made[1]["id"])
        with acting(sql, bob):
            sql.value("decline_invitation", secret=made[2]["secret"])
            for each in made:
                with sql.refused(404, "unknown_invitation"):
                    sql.value("accept_invitation", secret=each["secret"])
        states = {row["id"]: row["status"] for row in sql.rows("list_invitations", tenant_id=ann.tenant)}
        assert [states[each["id"]] for each in made] == ["expired", "revoked", "declined"]

    def test_invitation_for_an_address_is_for_that_user(self, sql: Contract) -> None:
        ann, bob, eve = (join(sql, name) for name in ("ann", "bob", "eve"))
        made = invite(sql, ann, ann.tenant, email="Bob@Example.org")
        with acting(sql, eve), sql.refused(403, "wrong_recipient"):
            sql.value("accept_invitation", secret=made["secret"])
        with acting(sql, bob):
            sql.value("accept_invitation", secret=made["secret"])

    def test_only_those_who_may_set_the_role_invite_with_it(self, sql: Contract) -> None:
        ann, bob, eve = (join(sql, name) for name in ("ann", "bob", "eve"))
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="admin")
        with acting(sql, bob), sql.refused(403, "forbidden"):
            sql.rows("create_invitation", role="owner", tenant_id=ann.tenant)
        with acting(sql, eve), sql.refused(403, "forbidden"):
            sql.rows("create_invitation", role="viewer", tenant_id=ann.tenant)
        made = invite(sql, bob, ann.tenant)
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role=None)
        with acting(sql, eve), sql.refused(409, "inviter_gone"):
            sql.value("accept_invitation", secret=made["secret"])

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ({"days": "soon"}, "invalid_options"), ({"days": 91}, "invalid_expiry"), ({"days": 0}, "invalid_expiry"),
            ({"email": "ann"}, "invalid_address"), ({"email": "a@b\nc.org"}, "invalid_address"),
            ({"email": "a@" + "b" * 10_000}, "invalid_address"), ({"note": "x"}, "unknown_field"),
        ],
    )  # fmt: skip
    def test_invalid_options_are_rejected(self, sql: Contract, options: dict[str, Any], code: str) -> None:
        ann = join(sql, "ann")
        with sql.refused(422, code):
            sql.rows("create_invitation", role="viewer", tenant_id=ann.tenant, options=Jsonb(options))

    def test_keys_and_the_service_accept_nothing(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        made = invite(sql, ann, ann.tenant)
        key = sql.rows("create_key", name="k", role="owner", tenant_id=bob.tenant)[0]
        with acting(sql, key["id"]), sql.refused(403, "forbidden"):
            sql.value("accept_invitation", secret=made["secret"])
        with sql.refused(403, "forbidden"):
            sql.value("accept_invitation", secret=made["secret"])

    def test_user_who_blocked_a_tenant_is_added_by_nobody(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="viewer")
        with acting(sql, bob):
            sql.value("leave_tenant", tenant_id=ann.tenant, block=True)
        assert role_of(sql, ann.tenant, bob) is None
        with sql.refused(409, "blocked"):
            sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="viewer")
        made = invite(sql, ann, ann.tenant)
        with acting(sql, bob):
            sql.value("accept_invitation", secret=made["secret"])
        assert role_of(sql, ann.tenant, bob) == "member"

    @pytest.mark.slow
    def test_two_users_cannot_use_one_invitation(self, sessions: Sessions) -> None:
        first, second, service = sessions.open(), sessions.open(), sessions.open()
        ann, bob, eve = (join(service, name) for name in ("ann", "bob", "eve"))
        made = invite(service, ann, ann.tenant)
        go = threading.Event()

        def accept() -> Any:
            with acting(second, eve):
                go.set()
                return second.value("accept_invitation", secret=made["secret"])

        with acting(first, bob):
            first.value("accept_invitation", secret=made["secret"])
            call = Call(accept)
            go.wait(20)
            sessions.wait_until_blocked(second, call)
        with pytest.raises(psycopg.Error):
            call.result()
        assert role_of(service, ann.tenant, bob) and not role_of(service, ann.tenant, eve)


class TestErase:
    """R2.15/rows, R2.15/ids-only: rows, files and memberships go; ledger and audit log keep ids only."""

    def fill(self, sql: Contract, ann: Person, team: uuid.UUID) -> dict[str, Any]:
        hers = Contract(sql.connection, ann.tenant)
        sql.execute("update penstock.profiles set display_name = %s where user_id = %s", CANARY, ann.id)
        sql.value("set_member", tenant_id=team, user_id=ann.id, role="owner")
        done = hers.start([{"kind": "work", "input": {"note": CANARY}}], params={"note": CANARY})
        sql.complete(sql.claim_one(), {"note": CANARY})
        hers.start([{"kind": "work", "input": {"note": CANARY}}])
        invite(sql, ann, team, email=f"{CANARY}@example.org")
        with acting(sql, ann):
            key = sql.rows("create_key", name=CANARY, role="owner")[0]
            in_team = sql.rows("create_key", name=CANARY, role="member", tenant_id=team)[0]
            upload = sql.rows("begin_upload", name=CANARY, content_type="text/plain", bytes=1)[0]
        sql.rows("open_session", role="authenticated", subject=ann.id)
        sql.value(
            "record_cost",
            cost_type="render",
            amount=1,
            tenant_id=ann.tenant,
            options=Jsonb({"reason": CANARY}),
        )
        return {"done": done, "key": key, "in_team": in_team, "upload": upload}

    def lines(self, sql: Contract, word: str) -> list[str]:
        tables = sql.execute(
            "select relname as name from pg_class where relnamespace = 'penstock'::regnamespace and relkind = 'r'"
        )
        return [
            f"{table['name']}: {row['line']}"
            for table in tables
            for row in sql.execute(f"select t::text as line from penstock.{table['name']} t")
            if word in row["line"]
        ]

    def test_nothing_personal_is_left(self, sql: Contract) -> None:
        sql.execute("insert into auth.users (email) values (%s)", f"{CANARY}@example.org")
        [row] = sql.execute(
            "select user_id as id, tenant_id from penstock.profiles where email like %s", f"{CANARY}%"
        )
        ann = Person(row["id"], row["tenant_id"], CANARY)
        team = sql.value("create_tenant", name="team")
        made = self.fill(sql, ann, team)
        assert len(self.lines(sql, CANARY)) > 8
        done = sql.value("erase_user", user_id=ann.id)
        assert done == {
            "user_id": str(ann.id),
            "tenant_id": str(ann.tenant),
            "teams": [str(team)],
            "without_owner": [str(team)],
        }
        for _ in range(20):
            sql.upkeep()
            sql.value("prune", limit=10000)
        due = sql.rows("due_artifacts", limit=100)
        sql.value("forget_artifacts", ids=[each["id"] for each in due])
        assert self.lines(sql, CANARY) == []
        assert sql.execute("select * from auth.users where id = %s", ann.id) == []
        for table in ("members", "profiles", "jobs", "tasks", "results", "schedules"):
            assert sql.execute(f"select * from penstock.{table} where tenant_id = %s", ann.tenant) == [], (
                table
            )
        assert sql.execute("select * from penstock.sessions") == []
        for key in ("key", "in_team"):
            assert sql.one(
                "select revoked_at is not null from penstock.api_keys where id = %s", made[key]["id"]
            )
        [entry] = sql.execute("select * from penstock.cost_entries where tenant_id = %s", ann.tenant)
        assert (entry["amount"], entry["reason"]) == (1, None)
        assert sql.one("select count(*) from penstock.audit_log where actor = %s", f"user:{ann.id}") > 0
        assert sql.one("select status from penstock.artifacts where id = %s", made["upload"]["id"]) in (
            None,
            "deleted",
        )

    def test_sealed_lines_are_sealed_again(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        with acting(sql, ann):
            sql.rows("create_key", name=CANARY, role="viewer")
        sql.execute(
            "insert into penstock.audit_seals (number, last_id, lines, digest, hash, sealed_at) "
            "select n, l.last_id, d.lines, d.digest, '', now() "
            "from (select max(id) as last_id, 1 as n from penstock.audit_log) as l, "
            "lateral penstock._audit_digest(-9223372036854775808, l.last_id) as d"
        )
        sql.execute("update penstock.audit_seals s set hash = penstock._audit_hash(null, s)")
        assert sql.execute("select * from penstock._broken_seals()") == []
        sql.value("erase_user", user_id=ann.id)
        assert sql.execute("select * from penstock._broken_seals()") == []
        assert sql.one("select count(*) from penstock.audit_log where action = 'audit.resealed'") >= 1

    def test_deleting_the_auth_user_erases(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        sql.value("set_member", tenant_id=bob.tenant, user_id=ann.id, role="member")
        sql.execute("delete from auth.users where id = %s", ann.id)
        assert sql.execute("select * from penstock.members where user_id = %s", ann.id) == []
        assert sql.one("select name from penstock.tenants where id = %s", ann.tenant) == "erased"
        assert role_of(sql, bob.tenant, bob) == "owner"

    def test_ledger_stays_append_only(self, sql: Contract) -> None:
        sql.value("record_cost", cost_type="render", amount=1, tenant_id=sql.tenant)
        with sql.refused(409, "append_only"):
            sql.execute("update penstock.cost_entries set amount = 2")

    def test_keys_and_users_erase_nobody(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        key = sql.rows("create_key", name="k", role="owner", tenant_id=ann.tenant)[0]
        with sql.refused(422, "invalid_user"):
            sql.value("erase_user", user_id=key["id"])
        with acting(sql, ann), sql.refused("42501"):
            sql.value("erase_user", user_id=ann.id)
