"""API keys: scopes, expiry, descendants, and the keys of members who are removed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.test_access import Person, acting, join


def create(sql: Contract, user: Any = None, role: str = "member", **options: Any) -> dict[str, Any]:
    """A key that this user, key or (None) the service creates."""
    if user is None:
        return sql.rows("create_api_key", name="k", role=role, options=Jsonb(options))[0]
    with acting(sql, user):
        return sql.rows("create_api_key", name="k", role=role, options=Jsonb(options))[0]


def is_valid(sql: Contract, key: dict[str, Any]) -> bool:
    return not sql.one("select revoked_at is not null from penstock.api_keys where id = %s", key["id"])


class TestScopes:
    @pytest.mark.parametrize(
        ("scopes", "refused"),
        [
            (["read"], {"start", "admin"}),
            (["start"], {"read", "admin"}),
            (["read", "admin"], {"start"}),
            (None, set()),
        ],
    )
    def test_key_is_limited_to_its_scopes(
        self, sql: Contract, scopes: list[str] | None, refused: set[str]
    ) -> None:
        ann = join(sql, "ann")
        job = Contract(sql.connection, ann.tenant).start()
        key = create(sql, ann, "owner", **({"scopes": scopes} if scopes else {}))
        calls: dict[str, Callable[[], Any]] = {
            "read": lambda: sql.value("get_job", job_id=job),
            "start": lambda: sql.value("pause_job", job_id=job),
            "admin": lambda: sql.rows("list_keys", tenant_id=ann.tenant),
        }
        for scope, call in calls.items():
            with acting(sql, key["id"]):
                if scope in refused:
                    with sql.refused(403, "missing_scope") as refusal:
                        call()
                    assert refusal.details["scope"] == scope
                else:
                    call()

    def test_key_without_read_sees_no_rows_but_uses_its_own_uploads(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        Contract(sql.connection, ann.tenant).start()
        key = create(sql, ann, "member", scopes=["start"])
        with acting(sql, key["id"]):
            assert sql.execute("select * from penstock.jobs") == []
            upload = sql.rows("begin_upload", name="a", content_type="text/plain", bytes=1)[0]
            assert sql.rows("take_upload", artifact_id=upload["id"])

    def test_read_key_replays_no_dead_letters_and_starts_no_actions(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        hers = Contract(sql.connection, ann.tenant)
        job = hers.start()
        sql.kill(sql.claim_one())
        key = create(sql, ann, "member", scopes=["read"])
        with acting(sql, key["id"]):
            assert sql.replay(all=True) == 0
            assert sql.value("discard_dead_letters", filter=Jsonb({"all": True})) == 0
            assert (
                sql.rows("weigh_action", verb="retry", subjects=[str(job)])[0]
                == sql.rows("weigh_action", verb="retry", subjects=[str(uuid.uuid4())])[0]
            )

    @pytest.mark.parametrize("scopes", [[], ["work"], ["read", "admin"], ["x"], "read", [1], {"read": 1}])
    def test_scopes_beyond_the_role_are_rejected(self, sql: Contract, scopes: Any) -> None:
        ann = join(sql, "ann")
        with acting(sql, ann), sql.refused(422, "invalid_scopes", field="scopes"):
            sql.rows("create_api_key", name="k", role="member", options=Jsonb({"scopes": scopes}))

    def test_key_cannot_create_a_key_with_more_scopes(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        parent = create(sql, ann, "owner", scopes=["read", "admin"])
        with acting(sql, parent["id"]), sql.refused(403, "missing_scope"):
            sql.rows("create_api_key", name="k", role="member", options=Jsonb({"scopes": ["start"]}))
        assert create(sql, parent["id"], "member")["scopes"] == ["read", "admin"]
        reader = create(sql, ann, "owner", scopes=["read"])
        with acting(sql, reader["id"]), sql.refused(403, "missing_scope"):
            sql.rows("create_api_key", name="k", role="viewer", options=Jsonb({}))

    def test_lists_show_what_role_and_scopes_allow(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        create(sql, ann, "viewer")
        create(sql, ann, "admin", scopes=["admin"])
        found = sql.rows("list_api_keys", tenant_id=ann.tenant)
        assert {key["role"]: key["scopes"] for key in found} == {"viewer": ["read"], "admin": ["admin"]}
        assert {key["owner_id"] for key in found} == {ann.id}


class TestExpiry:
    def test_key_expires_no_later_than_its_parent(self, sql: Contract, clock: Clock) -> None:
        ann = join(sql, "ann")
        end = clock.now() + timedelta(days=7)
        parent = create(sql, ann, "admin", expires_at=end.isoformat())
        assert create(sql, parent["id"])["expires_at"] == end
        sooner = clock.now() + timedelta(days=1)
        assert create(sql, parent["id"], expires_at=sooner.isoformat())["expires_at"] == sooner
        with acting(sql, parent["id"]):
            with sql.refused(422, "invalid_expiry", field="expires_at"):
                sql.rows("create_key", name="k", role="viewer", expires_at=end + timedelta(seconds=1))
            assert sql.rows("create_key", name="k", role="viewer")[0]["secret"]

    def test_service_key_passes_its_expiry_on(self, sql: Contract, clock: Clock) -> None:
        end = clock.now() + timedelta(days=7)
        parent = create(sql, None, "service", expires_at=end.isoformat())
        with acting(sql, parent["id"], "service_role"):
            made = sql.rows("create_api_key", name="k", role="worker", options=Jsonb({}))[0]
            own = sql.rows(
                "create_api_key", name="k", role="owner", options=Jsonb({"tenant_id": str(sql.tenant)})
            )[0]
        assert made["expires_at"] == own["expires_at"] == end

    def test_setting_limits_the_life_of_new_keys(self, sql: Contract, clock: Clock) -> None:
        ann = join(sql, "ann")
        old = create(sql, ann)
        sql.value("set_setting", name="max_key_days", value=Jsonb(30))
        latest = clock.now() + timedelta(days=30)
        assert create(sql, ann)["expires_at"] == latest
        assert create(sql, None, "worker")["expires_at"] == latest
        with acting(sql, ann), sql.refused(422, "invalid_expiry"):
            sql.rows("create_key", name="k", role="viewer", expires_at=latest + timedelta(hours=1))
        assert old["expires_at"] is None


class TestDescendants:
    def test_revoking_a_key_revokes_the_keys_that_it_created(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        first = create(sql, ann, "admin")
        child = create(sql, first["id"], "admin")
        grandchild = create(sql, child["id"])
        sibling = create(sql, ann)
        with acting(sql, ann):
            sql.value("revoke_key", key_id=first["id"])
        assert [is_valid(sql, key) for key in (first, child, grandchild, sibling)] == [
            False,
            False,
            False,
            True,
        ]
        members = sql.execute("select user_id from penstock.members where tenant_id = %s", ann.tenant)
        assert {row["user_id"] for row in members} == {ann.id, sibling["id"]}
        lines = sql.one("select count(*) from penstock.audit_log where action = 'key.revoked'")
        assert lines == 3
        with acting(sql, ann):
            sql.value("revoke_key", key_id=first["id"])
        assert sql.one("select count(*) from penstock.audit_log where action = 'key.revoked'") == lines

    def test_keys_of_a_removed_member_end(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="admin")
        options = {"tenant_id": str(ann.tenant)}
        his, hers = create(sql, bob, **options, role="admin"), create(sql, ann)
        heir, elsewhere = create(sql, his["id"]), create(sql, bob)
        with acting(sql, ann):
            sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role=None)
        assert [is_valid(sql, key) for key in (his, heir, hers, elsewhere)] == [False, False, True, True]

    def test_keys_of_a_demoted_member_keep_no_more_than_the_new_role(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="owner")
        options = {"tenant_id": str(ann.tenant)}
        keys = {role: create(sql, bob, role, **options) for role in ("owner", "admin", "member", "viewer")}
        for role, left in (
            ("admin", {"admin", "member", "viewer"}),
            ("member", {"member", "viewer"}),
            ("viewer", {"viewer"}),
        ):
            with acting(sql, ann):
                sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role=role)
            assert {name for name, key in keys.items() if is_valid(sql, key)} == left

    def test_removing_a_key_from_its_tenant_ends_it_and_its_descendants(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        first = create(sql, ann, "admin")
        child = create(sql, first["id"])
        with acting(sql, ann):
            sql.value("set_member", tenant_id=ann.tenant, user_id=first["id"], role=None)
        assert not is_valid(sql, first) and not is_valid(sql, child)


# Two connections: the role is checked after the lock.


def user(sessions: Sessions, name: str) -> Person:
    return join(sessions.open(), name)


def as_user(contract: Contract, person: Any, work: Callable[[], Any]) -> Callable[[], Any]:
    """The work in a transaction of this user."""

    def run() -> Any:
        with acting(contract, person):
            return work()

    return run


REMOVE = "select penstock.set_member(%s, %s, null)"


def race(
    sessions: Sessions, prepare: Callable[[Contract, Person], None], act: Callable[[Contract], Any]
) -> None:
    """A member acts while their removal, which holds the lock, has not been committed yet."""
    service, theirs = sessions.open(), sessions.open()
    ann, bob = user(sessions, "ann"), user(sessions, "bob")
    service.execute("select penstock.set_member(%s, %s, 'admin')", ann.tenant, bob.id)
    theirs.tenant = ann.tenant
    with service.connection.transaction():
        prepare(service, ann)
        service.execute(REMOVE, ann.tenant, bob.id)
        call = Call(as_user(theirs, bob, lambda: act(theirs)))
        sessions.wait_until_blocked(theirs, call)
    with pytest.raises(psycopg.Error) as raised:
        call.result()
    assert raised.value.sqlstate in ("PT403", "PT404"), raised.value


@pytest.mark.slow
class TestRoleAfterLock:
    """A member who is removed while the call waits for a lock is refused."""

    def test_create_key(self, sessions: Sessions) -> None:
        race(
            sessions,
            lambda service, ann: None,
            lambda theirs: theirs.rows("create_key", name="k", role="admin", tenant_id=theirs.tenant),
        )

    def test_revoke_key(self, sessions: Sessions) -> None:
        service, found = sessions.open(), []

        def prepare(removing: Contract, ann: Person) -> None:
            found.append(create(service, None, "member", tenant_id=str(ann.tenant)))

        race(sessions, prepare, lambda theirs: theirs.value("revoke_key", key_id=found[0]["id"]))
        assert is_valid(service, found[0])

    def test_answer_wait(self, sessions: Sessions) -> None:
        found: list[uuid.UUID] = []

        def prepare(service: Contract, ann: Person) -> None:
            other = Contract(sessions.database.connect(), ann.tenant)
            other.start()
            task = other.claim_one()
            other.park(task)
            found.append(other.wait_id(task))
            service.execute("select 1 from penstock.waits for update")

        race(sessions, prepare, lambda theirs: theirs.value("answer_wait", wait_id=found[0]))
        assert sessions.open().one("select outcome from penstock.waits") is None

    def test_create_invitation(self, sessions: Sessions) -> None:
        race(
            sessions,
            lambda service, ann: None,
            lambda theirs: theirs.rows("create_invitation", role="viewer", tenant_id=theirs.tenant),
        )

    def test_set_notification_target(self, sessions: Sessions) -> None:
        race(
            sessions,
            lambda service, ann: None,
            lambda theirs: theirs.rows(
                "set_notification_target",
                channel="email",
                address="a@example.org",
                options=Jsonb({"tenant_id": str(theirs.tenant)}),
            ),
        )

    def test_set_member(self, sessions: Sessions) -> None:
        stranger = user(sessions, "stranger")

        def prepare(service: Contract, ann: Person) -> None:
            service.execute("select penstock.set_member(%s, %s, 'viewer')", ann.tenant, stranger.id)

        race(
            sessions,
            prepare,
            lambda theirs: theirs.value(
                "set_member", tenant_id=theirs.tenant, user_id=stranger.id, role="admin"
            ),
        )

    def test_set_schedule(self, sessions: Sessions) -> None:
        options = {"cron": "0 3 * * *", "job_type": "report", "next_run_at": "2100-01-01"}
        race(
            sessions,
            lambda service, ann: None,
            lambda theirs: theirs.value(
                "set_schedule", name="n", **options, options=Jsonb({"tenant_id": str(theirs.tenant)})
            ),
        )

    def test_remove_schedule(self, sessions: Sessions) -> None:
        found: list[uuid.UUID] = []
        options = {"cron": "0 3 * * *", "job_type": "report", "next_run_at": "2100-01-01"}

        def prepare(service: Contract, ann: Person) -> None:
            other = sessions.open()
            found.append(
                other.value(
                    "set_schedule", name="n", **options, options=Jsonb({"tenant_id": str(ann.tenant)})
                )
            )
            service.execute("select 1 from penstock.schedules for update")

        race(sessions, prepare, lambda theirs: theirs.value("remove_schedule", schedule_id=found[0]))

    def test_revoking_and_removing_lock_keys_in_one_order(self, sessions: Sessions) -> None:
        """Revoking a parent waits for the removal of its creator without a deadlock, whatever the ids are."""
        service, other = sessions.open(), sessions.open()
        ann, bob = user(sessions, "ann"), user(sessions, "bob")
        service.execute("select penstock.set_member(%s, %s, 'admin')", ann.tenant, bob.id)
        parent = create(service, bob, "admin", tenant_id=str(ann.tenant))
        child = create(service, parent["id"], "member")
        with service.connection.transaction():
            # As far as a removal gets that has locked the tenant and the smaller of the ids.
            service.execute("select from penstock.tenants where id = %s for update", ann.tenant)
            service.execute("select from penstock.api_keys where id = %s for update", child["id"])
            call = Call(lambda: other.execute("select penstock.revoke_key(%s)", parent["id"]))
            sessions.wait_until_blocked(other, call)
            service.execute(REMOVE, ann.tenant, bob.id)
        call.result()
        assert not is_valid(service, parent) and not is_valid(service, child)

    @pytest.mark.parametrize("verb", ["pause", "cancel"])
    def test_jobs(self, sessions: Sessions, verb: str) -> None:
        found: list[uuid.UUID] = []

        def prepare(service: Contract, ann: Person) -> None:
            other = Contract(sessions.database.connect(), ann.tenant)
            found.append(other.start())
            service.execute("select 1 from penstock.jobs for no key update")

        race(sessions, prepare, lambda theirs: getattr(theirs, verb)(found[0]))

    def test_key_that_is_being_revoked_creates_no_key(self, sessions: Sessions) -> None:
        """Either the new key is refused, or the revocation finds it."""
        service, theirs, others = (sessions.open() for _ in range(3))
        ann = user(sessions, "ann")
        parent = create(service, ann, "admin")
        with service.connection.transaction():
            service.execute("select penstock.revoke_key(%s)", parent["id"])
            call = Call(
                as_user(theirs, parent["id"], lambda: theirs.rows("create_key", name="k", role="viewer"))
            )
            sessions.wait_until_blocked(theirs, call)
        with pytest.raises(psycopg.Error):
            call.result()
        parent = create(service, ann, "admin")
        with acting(theirs, parent["id"]):
            child = theirs.rows("create_key", name="k", role="viewer")[0]
            call = Call(lambda: others.execute("select penstock.revoke_key(%s)", parent["id"]))
            sessions.wait_until_blocked(others, call)
        call.result()
        assert not is_valid(service, child)
