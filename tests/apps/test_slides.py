"""The app that makes thumbnails of slides: its tables, quota, toggle and states, in the database alone."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from penstock import testing
from penstock.apps.slides.app import app
from penstock.postgres import migrate
from penstock.postgres.db import SyncConnection

pytestmark = pytest.mark.every_postgres
DENIED = "42501"
PNG = "image/png"


@dataclass
class Place:
    """A tenant with an event and a speech, and one person of each role."""

    db: testing.Database
    tenant: uuid.UUID = field(init=False)
    event: uuid.UUID = field(init=False)
    speech: uuid.UUID = field(init=False)
    people: dict[str, uuid.UUID] = field(init=False)

    def __post_init__(self) -> None:
        self.tenant = self.one("select penstock.create_tenant(%s)", f"slides {uuid.uuid4()}")
        self.event = self.one(
            "insert into slides.events (tenant_id, name) values (%s, 'Days') returning id", self.tenant
        )
        session = self.one(
            "insert into slides.sessions (tenant_id, event_id, title) values (%s, %s, 'Morning') returning id",
            self.tenant, self.event,
        )  # fmt: skip
        self.speech = self.one(
            "insert into slides.speeches (tenant_id, session_id, title) values (%s, %s, 'Rivers') returning id",
            self.tenant, session,
        )  # fmt: skip
        self.people = {role: uuid.uuid4() for role in ("owner", "admin", "member", "viewer")}
        for role, user in self.people.items():
            self.db.execute(
                "insert into auth.users (id, email) values (%s, %s)", [user, f"{user}@tests.example"]
            )
            self.db.execute("select penstock.set_member(%s, %s, %s)", [self.tenant, user, role])

    def one(self, query: str, *values: Any) -> Any:
        [row] = self.db.execute(query, list(values))
        return next(iter(row.values()))

    def file(self, kind: str = PNG, tenant: uuid.UUID | None = None) -> uuid.UUID:
        """A stored upload."""
        name = uuid.uuid4()
        return self.one(
            "insert into penstock.artifacts (tenant_id, name, path, content_type, bytes, sha256, status, created_by, begun_at, created_at,"
            " stored_at) values (%s, 'slide', %s, %s, 10, repeat('0', 64), 'stored', 'tests', now(), now(), now()) returning id",
            tenant or self.tenant, f"files/{name}", kind,
        )  # fmt: skip

    def slide(self, status: str = "none") -> uuid.UUID:
        return self.one(
            "insert into slides.slides (tenant_id, speech_id, event_id, r2_key, mime_type, thumbnail_status)"
            " values (%s, %s, %s, %s, 'image/png', %s) returning id",
            self.tenant, self.speech, self.event, f"files/{uuid.uuid4()}", status,
        )  # fmt: skip

    def add(self, file: uuid.UUID | None = None) -> uuid.UUID:
        return self.one("select slides.add_slide(%s, %s)", self.speech, file or self.file())

    def toggle(self, enabled: bool = True) -> None:
        self.one("select slides.set_thumbnail_generation(%s, %s)", self.event, enabled)

    def row(self, slide: uuid.UUID) -> dict[str, Any]:
        [row] = self.db.execute("select * from slides.slides where id = %s", [slide])
        return dict(row)

    def jobs(self, kind: str = "thumbnail") -> int:
        return self.one(
            "select count(*) from penstock.jobs where tenant_id = %s and type = %s", self.tenant, kind
        )

    def quota(self) -> tuple[int, int]:
        [row] = self.db.execute("select * from slides.tenants where id = %s", [self.tenant])
        return row["thumbnail_quota_total"], row["thumbnail_quota_used"]

    @contextmanager
    def acting(self, role: str = "member", user: uuid.UUID | None = None) -> Iterator[SyncConnection]:
        """A transaction of a user."""
        with psycopg.Connection[dict[str, Any]].connect(self.db.dsn, row_factory=dict_row) as conn:
            claims = json.dumps({"sub": str(user or self.people[role]), "role": "authenticated"})
            conn.execute("select set_config('request.jwt.claims', %s, true)", [claims])
            conn.execute("set local role authenticated")
            yield conn

    def refused(self, query: str, *values: Any, role: str | None = None) -> dict[str, Any]:
        """The SQLSTATE, and the code of an error with details."""
        with pytest.raises(psycopg.Error) as caught:
            if role is None:
                self.db.execute(query, list(values))
            else:
                with self.acting(role) as conn:
                    conn.execute(query.encode(), list(values))
        details = caught.value.diag.message_detail or "{}"
        found = json.loads(details) if details.startswith("{") else {}
        return {"state": caught.value.sqlstate, "code": found.get("code")}


@pytest.fixture(scope="module")
def slides_db(penstock_server: testing.Server) -> Iterator[testing.Database]:
    """One database with the app's own SQL for all tests of this file: each has a tenant of its own."""
    with penstock_server.database(app.own) as database:
        yield database


@pytest.fixture
def place(slides_db: testing.Database) -> Place:
    return Place(slides_db)


@pytest.fixture
def other(slides_db: testing.Database) -> Place:
    return Place(slides_db)


class TestQuota:
    def test_five_thumbnails_are_free(self, place: Place) -> None:
        """R4.9/free, R4.1/reserve."""
        call = "select * from slides.check_and_increment_thumbnail_quota(%s)"
        found = [tuple(place.db.execute(call, [place.tenant])[0].values()) for _ in range(6)]
        assert found[0] == (True, 1, 5, 4)
        assert found[4] == (True, 5, 5, 0)
        assert found[5] == (False, 5, 5, 0)
        assert place.quota() == (5, 5)

    def test_key_counts_and_returns_once(self, place: Place) -> None:
        """R4.1/double-release."""
        for _ in range(3):
            place.one(
                "select quota_used from slides.check_and_increment_thumbnail_quota(%s, 'a')", place.tenant
            )
        assert place.quota() == (5, 1)
        place.one("select quota_used from slides.check_and_increment_thumbnail_quota(%s, 'b')", place.tenant)
        for _ in range(3):
            place.one("select slides.rollback_thumbnail_quota(%s, 'a')", place.tenant)
        assert place.quota() == (5, 1), "the reservation of b stays"
        assert place.db.execute("select * from penstock.check_accounts()") == []

    def test_rollback_without_a_reservation_changes_nothing(self, place: Place) -> None:
        place.one("select slides.rollback_thumbnail_quota(%s)", place.tenant)
        assert place.quota() == (5, 0)

    def test_rollback_after_a_reset_stays_at_zero(self, place: Place) -> None:
        place.one("select quota_used from slides.check_and_increment_thumbnail_quota(%s)", place.tenant)
        assert place.one("select slides.reset_thumbnail_quota(%s)", place.tenant) == 1
        place.one("select slides.rollback_thumbnail_quota(%s)", place.tenant)
        assert place.quota() == (5, 0)

    def test_pack_is_bought_once_and_used_up(self, place: Place) -> None:
        """R4.9/packs, R4.1/purchase."""
        for _ in range(2):
            assert place.one("select slides.purchase_thumbnail_quota(%s, 3, 'pi_1')", place.tenant) == 8
        call = "select quota_available from slides.check_and_increment_thumbnail_quota(%s)"
        assert [place.one(call, place.tenant) for _ in range(9)] == [True] * 8 + [False]
        assert (
            place.refused("select slides.purchase_thumbnail_quota(%s, 0, 'x')", place.tenant)["code"]
            == "invalid_count"
        )
        assert (
            place.refused("select slides.purchase_thumbnail_quota(%s, 1, null)", place.tenant)["code"]
            == "invalid_key"
        )

    def test_total_below_the_used_amount_stops_new_work(self, place: Place) -> None:
        """R4.1/lowered."""
        for _ in range(3):
            place.one("select quota_used from slides.check_and_increment_thumbnail_quota(%s)", place.tenant)
        place.one("select penstock.set_limit(%s, 'thumbnails', 2)", place.tenant)
        [row] = place.db.execute(
            "select * from slides.check_and_increment_thumbnail_quota(%s)", [place.tenant]
        )
        assert tuple(row.values()) == (False, 3, 2, 0)

    def test_unknown_tenant_is_an_error(self, place: Place) -> None:
        call = "select * from slides.check_and_increment_thumbnail_quota(%s)"
        assert place.refused(call, uuid.uuid4())["code"] == "unknown_tenant"

    @pytest.mark.slow
    def test_parallel_reservations_never_exceed_the_quota(self, place: Place) -> None:
        """R4.1/reserve."""
        call = "select quota_available from slides.check_and_increment_thumbnail_quota(%s)"
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: place.one(call, place.tenant), range(40)))
        assert sum(found) == 5
        assert place.quota() == (5, 5)


class TestToggle:
    def test_is_off_and_new_slides_are_not_converted(self, place: Place) -> None:
        """R4.2/default."""
        slide = place.add()
        assert place.row(slide)["thumbnail_status"] == "none"
        assert place.jobs() == 0

    def test_on_queues_slides_of_before_and_new_ones(self, place: Place) -> None:
        """R4.2/retroactive."""
        before = [place.add() for _ in range(3)]
        place.toggle()
        place.toggle()
        assert place.jobs("thumbnails_retroactive") == 1, "switching on twice starts one job"
        after = place.add()
        assert place.row(after)["thumbnail_status"] == "pending"
        assert place.jobs() == 1
        job = place.one(
            "select id from penstock.jobs where tenant_id = %s and type = 'thumbnails_retroactive'",
            place.tenant,
        )
        taken = place.one("select slides.select_slides(%s, %s, %s)", place.tenant, place.event, job)
        assert sorted(taken) == sorted(before)
        assert place.one("select slides.select_slides(%s, %s, %s)", place.tenant, place.event, job) == []

    def test_update_of_the_table_starts_the_job_too(self, place: Place) -> None:
        place.add()
        with place.acting("admin") as conn:
            conn.execute(
                "update slides.events set thumbnail_generation_enabled = true where id = %s", [place.event]
            )
        assert place.jobs("thumbnails_retroactive") == 1

    def test_off_keeps_thumbnails_and_returns_queued_slides(self, place: Place) -> None:
        """R4.2/off, R4.9/toggle-off."""
        place.toggle()
        queued, done = place.add(), place.add()
        job = place.row(done)["job_id"]
        place.one("select slides.begin_thumbnail(%s, %s, %s)", place.tenant, done, job)
        assert place.one(
            "select slides.finish_thumbnail(%s, %s, %s, %s)", place.tenant, done, job, place.file()
        )
        place.toggle(False)
        begun = place.one(
            "select slides.begin_thumbnail(%s, %s, %s)", place.tenant, queued, place.row(queued)["job_id"]
        )
        assert "skipped" in begun
        assert place.row(queued)["thumbnail_status"] == "none"
        assert place.row(done)["thumbnail_status"] == "completed"

    def test_event_of_another_tenant_is_unknown(self, place: Place, other: Place) -> None:
        """R4.9/ownership."""
        call = "select slides.set_thumbnail_generation(%s)"
        assert place.refused(call, other.event, role="admin") == {"state": "PT404", "code": "unknown_event"}
        with place.acting("admin") as conn:
            query = "update slides.events set thumbnail_generation_enabled = true where id = %s"
            assert conn.execute(query.encode(), [other.event]).rowcount == 0
        assert other.jobs("thumbnails_retroactive") == 0

    def test_only_owners_and_admins_may_toggle(self, place: Place) -> None:
        call = "select slides.set_thumbnail_generation(%s)"
        for role in ("member", "viewer"):
            assert place.refused(call, place.event, role=role)["code"] == "forbidden"
        assert (
            place.refused("select slides.set_thumbnail_generation(%s, null)", place.event)["code"]
            == "invalid_toggle"
        )

    def test_upload_that_read_off_is_found_by_the_toggle(self, place: Place) -> None:
        """R4.2/retroactive: the upload commits after the toggle began."""
        file = place.file()
        upload = place.db.connect()
        with ThreadPoolExecutor(1) as pool:
            with upload.transaction():
                [row] = upload.execute(
                    "select slides.add_slide(%s, %s) as id", [place.speech, file]
                ).fetchall()
                toggling = pool.submit(place.toggle)
                wait_for_lock(place.db)
                assert not toggling.done()
            toggling.result(timeout=30)
        assert place.jobs() == 0
        job = place.one("select id from penstock.jobs where tenant_id = %s", place.tenant)
        assert place.one("select slides.select_slides(%s, %s, %s)", place.tenant, place.event, job) == [
            row["id"]
        ]

    def test_upload_after_the_toggle_sees_it(self, place: Place) -> None:
        """R4.2/retroactive: the toggle commits after the upload began."""
        file = place.file()
        toggle = place.db.connect()
        with ThreadPoolExecutor(1) as pool:
            with toggle.transaction():
                toggle.execute("select slides.set_thumbnail_generation(%s)", [place.event])
                uploading = pool.submit(place.add, file)
                wait_for_lock(place.db)
                assert not uploading.done()
            slide = uploading.result(timeout=30)
        assert place.jobs() == 1
        assert place.row(slide)["thumbnail_status"] == "pending"
        job = place.one(
            "select id from penstock.jobs where tenant_id = %s and type = 'thumbnails_retroactive'",
            place.tenant,
        )
        assert place.one("select slides.select_slides(%s, %s, %s)", place.tenant, place.event, job) == []

    @pytest.mark.slow
    def test_each_slide_is_queued_once_while_the_event_toggles(self, place: Place) -> None:
        """R4.2/retroactive: uploads and toggles at the same time."""
        stop = threading.Event()

        def toggle() -> None:
            while not stop.is_set():
                place.toggle(False)
                place.toggle(True)

        with ThreadPoolExecutor(5) as pool:
            toggling = pool.submit(toggle)
            added = list(pool.map(lambda _: place.add(), range(60)))
            stop.set()
            toggling.result(timeout=60)
        job = place.one(
            "select id from penstock.jobs where tenant_id = %s and type = 'thumbnails_retroactive' order by id desc limit 1",
            place.tenant,
        )  # fmt: skip
        place.one("select slides.select_slides(%s, %s, %s)", place.tenant, place.event, job)
        rows = [place.row(slide) for slide in added]
        assert {row["thumbnail_status"] for row in rows} == {"pending"}
        assert place.jobs() == sum(row["job_id"] != job for row in rows)


class TestSlides:
    def test_wrong_type_is_refused(self, place: Place) -> None:
        """R4.6/mismatch: nothing is stored and nothing counted."""
        place.toggle()
        for kind in ("text/plain", "image/gif", "application/zip"):
            found = place.refused("select slides.add_slide(%s, %s)", place.speech, place.file(kind))
            assert found == {"state": "PT422", "code": "invalid_format"}
        assert place.jobs() == 0
        assert place.quota() == (5, 0)

    def test_speech_and_file_must_be_of_the_tenant(self, place: Place, other: Place) -> None:
        """R4.9/ownership."""
        call = "select slides.add_slide(%s, %s)"
        assert place.refused(call, other.speech, place.file(), role="member")["code"] == "unknown_speech"
        assert place.refused(call, place.speech, other.file(), role="member")["code"] == "unknown_artifact"
        assert place.refused(call, place.speech, place.file(), role="viewer")["code"] == "forbidden"
        foreign = other.slide("failed")
        for function in ("retry_thumbnail", "delete_slide", "thumbnail_status"):
            assert (
                place.refused(f"select slides.{function}(%s)", foreign, role="member")["code"]
                == "unknown_slide"
            )

    def test_same_file_twice_is_one_slide(self, place: Place) -> None:
        place.toggle()
        file = place.file()
        assert place.add(file) == place.add(file)
        assert place.jobs() == 1

    def test_file_is_kept(self, place: Place) -> None:
        file = place.file()
        slide = place.add(file)
        assert (
            place.one("select subject from penstock.artifacts where id = %s", file) == f"slides.slide:{slide}"
        )
        place.one("select slides.delete_slide(%s)", slide)
        assert place.one("select subject from penstock.artifacts where id = %s", file) is None

    @pytest.mark.parametrize("table", ["speeches", "sessions"])
    def test_files_of_a_deleted_session_are_not_kept_for_good(self, place: Place, table: str) -> None:
        """R4.9/ownership: admins delete speeches and sessions over REST; their slides go along."""
        file = place.file()
        slide = place.add(file)
        with place.acting("admin") as conn:
            conn.execute(f"delete from slides.{table} where tenant_id = %s".encode(), [place.tenant])
        assert place.db.execute("select from slides.slides where id = %s", [slide]) == []
        assert place.one("select subject from penstock.artifacts where id = %s", file) is None
        lines = "select count(*) from penstock.audit_log where action = 'slides.deleted' and subject = %s"
        assert place.one(lines, f"slide:{slide}") == 1

    def test_slide_stays_kept_when_its_tenant_moves_to_another_cell(self, place: Place) -> None:
        file = place.file()
        slide = place.add(file)
        with place.db.connect() as conn, conn.transaction():
            conn.execute("select set_config('penstock.moving', 'on', true)")
            conn.execute("delete from slides.slides where id = %s", [slide])
        assert place.one("select subject from penstock.artifacts where id = %s", file) is not None

    @pytest.mark.parametrize("first", ["delete", "finish"])
    def test_slide_is_deleted_while_its_conversion_ends(self, place: Place, first: str) -> None:
        """R4.9/ownership: the thumbnail is kept by a slide that exists, or not at all."""
        place.toggle()
        slide, made = place.add(), place.file()
        job = place.row(slide)["job_id"]
        place.one("select slides.begin_thumbnail(%s, %s, %s)", place.tenant, slide, job)
        calls = {
            "delete": ("select slides.delete_slide(%s)", [slide]),
            "finish": ("select slides.finish_thumbnail(%s, %s, %s, %s)", [place.tenant, slide, job, made]),
        }
        (_, other) = (call for name, call in sorted(calls.items(), key=lambda each: each[0] != first))
        conn = place.db.connect()
        with ThreadPoolExecutor(1) as pool:
            with conn.transaction():
                conn.execute(calls[first][0].encode(), calls[first][1])
                waiting = pool.submit(place.one, other[0], *other[1])
                wait_for_lock(place.db)
                assert not waiting.done()
            found = waiting.result(timeout=30)
        assert found == (False if first == "delete" else "")
        assert place.db.execute("select 1 from slides.slides where id = %s", [slide]) == []
        kept = "select subject, kept_until from penstock.artifacts where id = %s"
        assert [row["subject"] for row in place.db.execute(kept, [made])] == [None]

    def test_members_see_their_tenant_only(self, place: Place, other: Place) -> None:
        place.slide()
        other.slide()
        with place.acting("viewer") as conn:
            for name in (
                "events",
                "sessions",
                "speeches",
                "slides",
                "tenants",
                "admins",
                "event_list",
                "slide_list",
            ):
                column = "id" if name == "tenants" else "tenant_id"
                rows = conn.execute(f"select {column} as tenant from slides.{name}".encode()).fetchall()
                # A user also has a tenant of their own.
                found = {row["tenant"] for row in rows}
                assert place.tenant in found and other.tenant not in found, name
        for statement in (
            "insert into slides.slides (tenant_id, speech_id, event_id, r2_key, mime_type) values (null, null, null, 'k', 'x')",
            "update slides.slides set thumbnail_status = 'pending'",
            "select * from slides.check_and_increment_thumbnail_quota(null)",
            "select slides.purchase_thumbnail_quota(null, 1, 'x')",
            "select slides.select_slides(null, null, null)",
            "select * from slides.reservations",
        ):
            assert place.refused(statement, role="admin")["state"] == DENIED

    def test_event_of_another_tenant_cannot_be_written(self, place: Place, other: Place) -> None:
        query = "insert into slides.events (tenant_id, name) values (%s, 'x')"
        assert place.refused(query, other.tenant, role="admin")["state"] == DENIED
        assert place.refused(query, place.tenant, role="viewer")["state"] == DENIED
        crossing = "insert into slides.sessions (tenant_id, event_id, title) values (%s, %s, 'x')"
        assert place.refused(crossing, place.tenant, other.event, role="admin")["state"] == "23503"


class TestStates:
    def test_key_and_time_only_when_completed(self, place: Place) -> None:
        """R4.4/completed-only."""
        slide = place.slide("processing")
        for change in (
            "thumbnail_status = 'completed'",
            "thumbnail_r2_key = 'k'",
            "thumbnail_generated_at = now()",
            "thumbnail_status = 'completed', thumbnail_r2_key = 'k'",
        ):
            query = f"update slides.slides set {change} where id = %s"
            assert place.refused(query, slide)["state"] == "23514", change

    def test_only_these_changes_of_state(self, place: Place) -> None:
        """R4.4/states."""
        allowed = {
            ("none", "pending"), ("pending", "processing"), ("pending", "failed"), ("pending", "none"),
            ("processing", "completed"), ("processing", "failed"), ("processing", "none"), ("failed", "pending"),
        }  # fmt: skip
        states = ("none", "pending", "processing", "completed", "failed")
        insert = """
        insert into slides.slides (tenant_id, speech_id, event_id, r2_key, mime_type, thumbnail_status, thumbnail_r2_key,
          thumbnail_generated_at) select %s, %s, %s, 'k', 'image/png', %s, case when %s = 'completed' then 'k' end,
          case when %s = 'completed' then now() end returning id"""
        update = """
        update slides.slides set thumbnail_status = %s, thumbnail_r2_key = case when %s = 'completed' then 'k' end,
          thumbnail_generated_at = case when %s = 'completed' then now() end where id = %s"""
        found = set[tuple[str, str]]()
        for old in states:
            for new in states:
                slide = place.one(insert, place.tenant, place.speech, place.event, old, old, old)
                try:
                    place.db.execute(update, [new, new, new, slide])
                    found.add((old, new))
                except psycopg.Error as error:
                    assert error.sqlstate == "PT409"
        assert found - {(each, each) for each in states} == allowed

    def test_retry_starts_from_none_or_failed_only(self, place: Place) -> None:
        """R4.9/start-states."""
        call = "select slides.retry_thumbnail(%s)"
        assert place.refused(call, place.slide())["code"] == "generation_disabled"
        place.toggle()
        for status, is_allowed in (
            ("none", True),
            ("failed", True),
            ("pending", False),
            ("processing", False),
        ):
            slide = place.slide(status)
            if is_allowed:
                assert place.row(slide)["job_id"] is None and place.one(call, slide)
                assert place.row(slide)["thumbnail_status"] == "pending"
            else:
                assert place.refused(call, slide)["code"] == "illegal_transition"
        failed = [place.slide("failed") for _ in range(3)]
        assert place.one("select slides.retry_event(%s)", place.event) == len(failed)

    def test_report_of_another_job_changes_nothing(self, place: Place) -> None:
        place.toggle()
        slide = place.add()
        stranger = uuid.uuid4()
        assert "skipped" in place.one(
            "select slides.begin_thumbnail(%s, %s, %s)", place.tenant, slide, stranger
        )
        assert (
            place.one("select slides.settle_thumbnail(%s, %s, %s)", place.tenant, slide, stranger) == "gone"
        )
        assert place.row(slide)["thumbnail_status"] == "pending"

    def test_canceled_job_returns_its_slides(self, place: Place) -> None:
        """R4.4/states: the sweeper settles slides of a job that was canceled."""
        place.toggle()
        slide = place.add()
        place.one("select penstock.cancel_job(%s)", place.row(slide)["job_id"])
        place.db.execute(
            "update slides.slides set updated_at = now() - interval '5 minutes' where id = %s", [slide]
        )
        place.one("select slides.sweep_thumbnails()")
        assert place.row(slide)["thumbnail_status"] == "none"


class TestFailures:
    def test_failures_have_a_type_and_a_message(self, place: Place) -> None:
        """R4.9/error-types, R4.5/log."""
        slide = place.slide()
        insert = """
        insert into slides.thumbnail_failure_log (tenant_id, event_id, slide_id, error_type, error_message)
        values (%s, %s, %s, %s, %s)"""
        where = [place.tenant, place.event, slide]
        place.db.execute(insert, [*where, "network_error", "no route"])
        assert place.refused(insert, *where, "other", "x")["code"] == "invalid_error_type"
        assert place.refused(insert, *where, "network_error", "")["code"] == "invalid_outcome"
        assert (
            place.refused(insert, place.tenant, place.event, uuid.uuid4(), "network_error", "x")["code"]
            == "unknown_slide"
        )
        [row] = place.db.execute(
            "select * from slides.thumbnail_failure_log where event_id = %s", [place.event]
        )
        assert (row["slide_id"], row["error_type"], row["error_message"]) == (
            slide,
            "network_error",
            "no route",
        )

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("quota_exceeded", "quota_exceeded"), ("operation_timeout", "webhook_timeout"), ("wrong_type", "invalid_format"),
            ("network_error", "network_error"), ("ConnectError", "network_error"), (None, "cloudconvert_api_error"),
            ("no_key", "cloudconvert_api_error"),
        ],
    )  # fmt: skip
    def test_error_codes_map_to_five_types(self, place: Place, code: str | None, expected: str) -> None:
        """R4.9/error-types."""
        assert place.one("select slides._error_type(%s)", code) == expected


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("select * from slides.slides where tenant_id = %(t)s and speech_id = %(s)s", "slides_s"),
        ("select * from slides.slides where tenant_id = %(t)s and thumbnail_status = 'failed'", "slides_"),
        ("select id from slides.slides where tenant_id = %(t)s and event_id = %(e)s and thumbnail_status = 'none'"
         " order by id limit 500", "slides_none"),
        ("select * from slides.cloudconvert_jobs where slide_id = %(s)s", "operations_object"),
        ("select * from slides.thumbnail_failure_log where tenant_id = %(t)s and event_id = %(e)s", "failures_scope"),
    ],
)  # fmt: skip
def test_queries_of_the_app_use_an_index(place: Place, query: str, index: str) -> None:
    """R4.7/retroactive, R4.7/status, R4.7/failures: none reads more than its own rows, however many there are."""
    with place.db.connect() as conn, conn.transaction():
        conn.execute("set local enable_seqscan = off")
        values = {"t": place.tenant, "s": place.speech, "e": place.event}
        rows = conn.execute(f"explain {query}".encode(), values).fetchall()
    assert index in "\n".join(row["QUERY PLAN"] for row in rows)


def test_switching_on_costs_what_the_chosen_provider_costs(place: Place) -> None:
    """Thumbnails of LibreOffice on the own machine are free."""
    place.slide()
    price = "select cost_to_queue from slides.event_list where tenant_id = %s and slides_to_queue = 1"
    with place.acting("viewer") as conn:
        [row] = conn.execute(price.encode(), [place.tenant]).fetchall()
    assert row["cost_to_queue"] == Decimal("0.02")
    try:
        place.db.execute("select penstock.set_setting('slides.provider', '\"libreoffice/local\"')")
        assert place.one(price, place.tenant) == 0
    finally:
        place.db.execute("select penstock.set_setting('slides.provider', '\"cloudconvert/jobs\"')")


@pytest.mark.parametrize("name", list(app.pages))
def test_members_can_read_the_columns_of_each_page(place: Place, name: str) -> None:
    """R4.9/ownership."""
    page = app.pages[name]
    with place.acting("viewer") as conn:
        columns = ", ".join([*page.read_columns, *page.filters])
        conn.execute(f"select {columns} from slides.{page.source}".encode())
    for action in page.actions.values():
        arguments = place.one(
            "select proargnames from pg_proc where proname = %s and pronamespace = 'slides'::regnamespace",
            action.function,
        )
        assert {action.argument, *action.values} <= set(arguments)


@pytest.mark.slow
def test_schema_is_applied_removed_and_applied_again(db: testing.Database) -> None:
    """R4.8/tested."""
    assert app.own is not None
    for _ in range(2):
        migrate.migrate(db.dsn, folder=app.own.folder, schema=app.own.schema)
        place = Place(db)
        place.add()
        migrate.rollback(db.dsn, 0, folder=app.own.folder, schema=app.own.schema)
        left = db.execute(
            "select 1 from pg_class where relnamespace = to_regnamespace('slides') and relkind = 'r'"
        )
        assert left == []


def wait_for_lock(database: testing.Database) -> None:
    """Return when a session of the database waits for a lock."""
    query = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if database.execute(query):
            return
    pytest.fail("no session waits for a lock")
