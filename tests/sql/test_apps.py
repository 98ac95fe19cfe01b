"""The public functions for apps' SQL, and files that apps keep."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Call, Contract, Sessions
from tests.sql.test_access import acting, join

pytestmark = pytest.mark.every_postgres


class TestHelpers:
    """R2.10/apps: the guarantees for functions and policies of apps."""

    def test_the_clock_is_the_tests_clock(self, sql: Contract, clock: Clock) -> None:
        clock.freeze()
        clock.advance(days=3)
        assert sql.value("clock") == clock.now()

    def test_refuse_raises_status_code_fields_and_hint(self, sql: Contract) -> None:
        with sql.refused(409, "toggle_off") as seen:
            sql.value(
                "refuse", status=409, code="toggle_off", message="the toggle is off", fields=Jsonb({"id": 7})
            )
        assert (seen.message, seen.details["id"]) == ("the toggle is off", 7)
        for wrong in ({"status": 200}, {"code": "Not a code"}, {"message": None}, {"fields": Jsonb([])}):
            with sql.refused(422, "invalid"):
                sql.value("refuse", **{"status": 409, "code": "c", "message": "m", **wrong})

    def test_roles_of_members_are_distinguished(self, sql: Contract) -> None:
        ann, bob = join(sql, "ann"), join(sql, "bob")
        me = Contract(sql.connection)
        assert me.value("is_service") is True and me.value("my_tenant") is None
        assert me.value("is_member", tenant_id=ann.tenant) is True
        me.value("require_member", tenant_id=ann.tenant)
        me.value("set_member", tenant_id=bob.tenant, user_id=ann.id, role="viewer")
        with acting(me, ann):
            assert me.value("is_service") is False
            # Membership elsewhere does not change where one works.
            assert me.value("my_tenant") == ann.tenant
            assert me.value("is_member", tenant_id=ann.tenant) is True
            assert me.value("is_member", tenant_id=bob.tenant) is True
            assert me.value("is_member", tenant_id=bob.tenant, roles=["owner", "admin"]) is False
            me.value("require_member", tenant_id=ann.tenant)
            with me.refused(403, "forbidden"):
                me.value("require_member", tenant_id=bob.tenant)
        with acting(me, bob):
            assert me.value("is_member", tenant_id=ann.tenant) is False

    def test_a_service_claim_does_not_make_a_user_the_service(self, sql: Contract) -> None:
        ann = join(sql, "ann")
        me = Contract(sql.connection)
        with acting(me, ann, forged={"role": "service_role"}):
            assert me.value("is_service") is False

    def test_an_api_key_works_in_its_tenant(self, sql: Contract, tenant: UUID) -> None:
        me = Contract(sql.connection)
        [key] = me.rows("create_key", name="k", role="member", tenant_id=tenant)
        with acting(me, key["id"]):
            assert me.value("my_tenant") == tenant

    def test_an_audit_line_names_the_caller(self, sql: Contract, tenant: UUID) -> None:
        line = sql.value(
            "record_audit",
            action="intake.read",
            subject="patient:7",
            details=Jsonb({"n": 1}),
            tenant_id=tenant,
        )
        [row] = sql.execute("select * from penstock.audit_log where id = %s", line)
        assert (row["action"], row["subject"], row["tenant_id"]) == ("intake.read", "patient:7", tenant)
        assert row["actor"].startswith("service:") and row["details"] == {"n": 1}
        for wrong, code in (
            ({"action": "Read it"}, "invalid_action"),
            ({"subject": "x" * 401}, "invalid_subject"),
            ({"details": Jsonb([])}, "invalid_options"),
        ):
            with sql.refused(422, code):
                sql.value("record_audit", **{"action": "a.b", "subject": "s:1", **wrong})
        with sql.refused(413, "too_large"):
            sql.value("record_audit", action="a.b", subject="s:1", details=Jsonb({"a": "x" * 70_000}))


class TestSettings:
    """B8/meters: an app defines meters and settings, and operators change them."""

    def test_a_meter_of_an_app_is_counted_and_limited(self, sql: Contract) -> None:
        sql.value("set_meter", name="thumbnails", values=Jsonb({"period": "month", "mode": "enforce"}))
        sql.value("set_limit", tenant_id=sql.tenant, meter="thumbnails", amount=5)
        sql.value("record_usage", units=Jsonb({"thumbnails": 5}), tenant_id=sql.tenant, action="convert")
        status = sql.value("get_usage_status", tenant_id=sql.tenant)
        assert (status["usage"]["thumbnails"]["used"], status["usage"]["thumbnails"]["left"]) == (5, 0)
        with sql.refused(429):
            sql.value("reserve_quota", amounts=Jsonb({"thumbnails": 1}), tenant_id=sql.tenant)

    def define(self, sql: Contract, value: Any, comment: str = "Seconds.") -> None:
        sql.value("define_setting", name="intake.timeout", value=Jsonb(value), comment=comment)

    def test_an_operators_value_survives_the_next_migrate(self, sql: Contract) -> None:
        self.define(sql, 1.5)
        assert sql.value("get_setting", name="intake.timeout") == 1.5
        # A number of an app may be a fraction or negative: only the app knows.
        sql.value("set_setting", name="intake.timeout", value=Jsonb(-0.5))
        self.define(sql, 3, "Seconds to wait.")
        assert sql.value("get_setting", name="intake.timeout") == -0.5
        [row] = sql.execute("select comment from penstock.settings where name = 'intake.timeout'")
        assert row["comment"] == "Seconds to wait."

    def test_a_new_type_replaces_the_value(self, sql: Contract) -> None:
        self.define(sql, 1)
        with sql.refused(422, "invalid_setting"):
            sql.value("set_setting", name="intake.timeout", value=Jsonb("2s"))
        self.define(sql, "1s")
        assert sql.value("get_setting", name="intake.timeout") == "1s"

    def test_bad_names_and_values_are_refused(self, sql: Contract) -> None:
        for name in ("retention_days", "Intake.x", "a.b.c", "", None):
            with sql.refused(422, "invalid_setting"):
                sql.value("define_setting", name=name, value=Jsonb(1), comment="")
        for value in (None, Jsonb(None)):
            with sql.refused(422, "invalid_setting"):
                sql.value("define_setting", name="a.b", value=value, comment="")
        with sql.refused(404, "unknown_setting"):
            sql.value("get_setting", name="a.b")
        # Penstock's own settings keep their ranges.
        with sql.refused(422, "invalid_setting"):
            sql.value("set_setting", name="retention_days", value=Jsonb(-1))


class TestKeptFiles:
    """B8/kept-files: a file that an app keeps outlives its job and retention_days, and still counts."""

    def job_file(self, sql: Contract, tenant: UUID, count: int = 1) -> list[UUID]:
        """Files of 100 bytes of an ended job."""
        sql.start([{"kind": "work"}], tenant_id=str(tenant))
        task = sql.claim_one()
        holder = {"worker_id": "w1", "lease": task["lease"]}
        made: list[UUID] = []
        for name in range(count):
            [row] = sql.rows("begin_artifact", task_id=task["id"], **holder, name=str(name), bytes=100)
            sql.value("finish_artifact", artifact_id=row["id"], **holder, bytes=100, sha256="0" * 64)
            made.append(row["id"])
        sql.complete(task)
        return made

    def upload(self, sql: Contract, tenant: UUID) -> UUID:
        """A stored upload of 100 bytes."""
        [begun] = sql.rows(
            "begin_upload", name="a.txt", content_type="text/plain", bytes=100,
            options=Jsonb({"tenant_id": str(tenant)}),
        )  # fmt: skip
        [taken] = sql.rows("take_upload", artifact_id=begun["id"])
        done = {"worker_id": None, "lease": taken["lease"], "bytes": 100, "sha256": "0" * 64}
        sql.value("finish_artifact", artifact_id=begun["id"], **done)
        return begun["id"]

    def due(self, sql: Contract) -> set[UUID]:
        """Remove due files, as the sweep does; returns their ids."""
        while sql.value("prune"):
            pass
        ids = [row["id"] for row in sql.rows("due_artifacts")]
        sql.value("forget_artifacts", ids=ids)
        return set(ids)

    def used(self, sql: Contract, tenant: UUID) -> Any:
        assert sql.rows("check_accounts") == []
        query = (
            "select used from penstock.accounts where tenant_id = %s and meter = 'bytes' and job_id is null"
        )
        return sql.one(query, tenant)

    def test_kept_files_exist_after_91_days(self, sql: Contract, tenant: UUID, clock: Clock) -> None:
        thumbnail, scratch = self.job_file(sql, tenant, 2)
        original, other = self.upload(sql, tenant), self.upload(sql, tenant)
        for kept in (thumbnail, original):
            sql.value("keep_artifact", artifact_id=kept, subject=f"slides.slide:{kept}")
            # Again is the same.
            sql.value("keep_artifact", artifact_id=kept, subject=f"slides.slide:{kept}")
        lines = sql.execute("select * from penstock.audit_log where action = 'artifact.kept'")
        assert len(lines) == 2 and lines[0]["details"]["for"] == f"slides.slide:{thumbnail}"
        clock.advance(days=91)
        assert self.due(sql) == {scratch, other}
        assert sql.one("select count(*) from penstock.jobs") == 0
        rows = sql.execute("select id, status, job_id, task_id from penstock.artifacts order by id")
        assert {row["id"] for row in rows} == {thumbnail, original}
        assert {(row["status"], row["job_id"], row["task_id"]) for row in rows} == {("stored", None, None)}
        assert self.used(sql, tenant) == 200
        assert self.due(sql) == set()
        # When the app lets them go, their time is over.
        assert sql.value("unkeep_artifact", artifact_id=thumbnail) is True
        assert sql.value("unkeep_artifact", artifact_id=thumbnail) is False
        assert self.due(sql) == {thumbnail} and self.used(sql, tenant) == 100
        # An explicit deletion works, kept or not.
        assert sql.value("delete_artifact", artifact_id=original) is True
        assert self.used(sql, tenant) == 0

    def test_a_file_is_kept_until_a_time(self, sql: Contract, tenant: UUID, clock: Clock) -> None:
        short, long = self.upload(sql, tenant), self.upload(sql, tenant)
        [of_job] = self.job_file(sql, tenant)
        for artifact, days in ((short, 10), (long, 120), (of_job, 120)):
            until = clock.now() + timedelta(days=days)
            sql.value("keep_artifact", artifact_id=artifact, subject="a:1", until=until)
        clock.advance(days=89)
        assert self.due(sql) == set(), "keeping never shortens the time"
        clock.advance(days=2)
        assert self.due(sql) == {short}
        clock.advance(days=30)
        assert self.due(sql) == {long, of_job} and self.used(sql, tenant) == 0

    def test_a_job_with_many_kept_files_is_pruned_in_batches(
        self, sql: Contract, tenant: UUID, clock: Clock
    ) -> None:
        for kept in self.job_file(sql, tenant, 5):
            sql.value("keep_artifact", artifact_id=kept, subject="a:1")
        clock.advance(days=91)
        assert all(sql.value("prune", limit=2) <= 2 for _ in range(6))
        assert sql.one("select count(*) from penstock.jobs") == 0
        assert sql.one("select count(*) from penstock.artifacts where status = 'stored'") == 5

    def test_bad_input_is_refused(self, sql: Contract, tenant: UUID) -> None:
        stored = self.upload(sql, tenant)
        for subject in (None, "", "no noun", "noun:", "x:" + "y" * 400):
            with sql.refused(422, "invalid_subject"):
                sql.value("keep_artifact", artifact_id=stored, subject=subject)
        with sql.refused(422, "invalid_time"):
            sql.value("keep_artifact", artifact_id=stored, subject="a:1", until="-infinity")
        with sql.refused(404, "unknown_artifact"):
            sql.value("keep_artifact", artifact_id=tenant, subject="a:1")
        options = Jsonb({"tenant_id": str(tenant)})
        [begun] = sql.rows("begin_upload", name="b", content_type="text/plain", bytes=1, options=options)
        with sql.refused(409, "not_stored"):
            sql.value("keep_artifact", artifact_id=begun["id"], subject="a:1")
        sql.value("delete_artifact", artifact_id=stored)
        with sql.refused(404, "unknown_artifact"):
            sql.value("keep_artifact", artifact_id=stored, subject="a:1")

    def test_a_file_that_is_being_removed_cannot_be_kept(self, sessions: Sessions, clock: Clock) -> None:
        """The sweep has locked the row: keep_artifact waits and then reports an unknown file."""
        sql, other = sessions.open(), sessions.open()
        upload = self.upload(sql, sessions.tenant)
        clock.advance(days=91)
        sql.connection.execute("begin")
        assert [row["id"] for row in sql.rows("due_artifacts")] == [upload]
        call = Call(lambda: other.value("keep_artifact", artifact_id=upload, subject="a:1"))
        sessions.wait_until_blocked(other, call)
        sql.value("forget_artifacts", ids=[upload])
        sql.connection.execute("commit")
        with other.refused(404, "unknown_artifact"):
            call.result()

    def test_a_file_that_was_kept_just_now_is_not_removed(self, sessions: Sessions, clock: Clock) -> None:
        sql, other = sessions.open(), sessions.open()
        [of_job] = self.job_file(sql, sessions.tenant)
        clock.advance(days=91)
        other.connection.execute("begin")
        other.value("keep_artifact", artifact_id=of_job, subject="a:1")
        # The row is locked, so the job stays for now.
        sql.value("prune")
        other.connection.execute("commit")
        while sql.value("prune"):
            pass
        assert sql.one("select count(*) from penstock.jobs") == 0
        assert sql.one("select status from penstock.artifacts") == "stored"
