"""The policy of a kind: the providers, bounds and starters of its tasks."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from penstock.testing import Clock
from tests.sql.conftest import Contract
from tests.sql.test_access import Person, acting, join, schedule

NAME = "acme/large"


def define(sql: Contract, kind: str = "paid", **options: Any) -> None:
    sql.value("define_kind", name=kind, options=Jsonb(options))


@pytest.fixture
def ann(sql: Contract) -> Person:
    sql.provider(NAME, requests_per_minute=100, tokens_per_minute=3000)
    sql.provider("acme/small")
    sql.value("set_price", provider=NAME, meter="requests", amount=1)
    return join(sql, "ann")


@pytest.fixture
def me(sql: Contract) -> Contract:
    """The contract without a tenant: the caller is the user who acts."""
    return Contract(sql.connection)


def task(sql: Contract, job: uuid.UUID) -> dict[str, Any]:
    return sql.execute(
        """select l.provider, t.units, t.route, t.timeout_seconds, t.max_attempts
        from penstock.tasks t join penstock.lanes l on l.id = t.lane_id where t.job_id = %s""", job
    )[0]  # fmt: skip


class TestRawTasks:
    """B9, S70: users start job types of the app. They write tasks themselves only where a kind allows it."""

    def test_a_user_cannot_write_tasks(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql)
        with acting(sql, ann), sql.refused(403, "raw_tasks", field="tasks[0].kind"):
            me.start([{"kind": "paid"}])
        job = sql.value("start_job", type="t", tasks=Jsonb([{"kind": "paid"}]),
                        options=Jsonb({"tenant_id": str(ann.tenant)}))  # fmt: skip
        with acting(sql, ann), sql.refused(403, "raw_tasks"):
            me.add(job, [{"kind": "paid"}])

    def test_owners_and_keys_cannot_write_tasks(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql)
        [key] = sql.rows("create_key", name="k", role="owner", tenant_id=ann.tenant)
        with acting(sql, key["id"]), sql.refused(403, "raw_tasks"):
            me.start([{"kind": "paid"}])

    def test_a_kind_allows_it(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql, raw_tasks=True)
        with acting(sql, ann):
            me.start([{"kind": "paid"}])

    def test_the_setting_allows_it_for_kinds_that_do_not_say(
        self, sql: Contract, me: Contract, ann: Person
    ) -> None:
        define(sql)
        define(sql, "closed", raw_tasks=False)
        sql.value("set_setting", name="raw_tasks", value=Jsonb(True))
        with acting(sql, ann):
            me.start([{"kind": "paid"}])
        with acting(sql, ann), sql.refused(403, "raw_tasks", field="tasks[1].kind"):
            me.start([{"kind": "paid"}, {"kind": "closed"}])

    def test_the_service_writes_any_tasks(self, sql: Contract) -> None:
        define(sql, raw_tasks=False)
        job = sql.start([{"kind": "paid", "timeout_seconds": 9999, "max_attempts": 100}])
        sql.add(job, [{"kind": "paid"}])

    def test_a_bulk_job_of_a_user_is_loaded(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql, "posters.load", starters=["admin", "owner"])
        sql.value("define_job_type", name="posters")
        sql.value("define_bulk_type", name="posters")
        with acting(sql, ann):
            [opened] = me.rows("open_bulk", type="posters")
            me.value("add_bulk_rows", job_id=opened["job_id"], rows=Jsonb([{"number": 1, "data": {}}]))
        [key] = sql.rows("create_key", name="k", role="member", tenant_id=ann.tenant)
        with acting(sql, key["id"]), sql.refused(403, "not_a_starter"):
            me.rows("open_bulk", type="posters")

    def test_a_schedule_of_a_user_cannot_write_tasks(
        self, sql: Contract, me: Contract, ann: Person, clock: Clock
    ) -> None:
        define(sql)
        tasks = [{"kind": "paid"}]
        with acting(sql, ann), sql.refused(403, "raw_tasks"):
            schedule(me, clock, tasks=tasks)
        schedule(me, clock, tasks=tasks, tenant_id=str(ann.tenant))
        with acting(sql, ann):
            schedule(me, clock, tasks=tasks, is_enabled=False)
            with sql.refused(403, "raw_tasks"):
                schedule(me, clock, tasks=[*tasks, *tasks])

    def test_a_schedule_fires_with_the_rights_of_its_user(
        self, sql: Contract, me: Contract, ann: Person, clock: Clock
    ) -> None:
        define(sql, starters=["owner"])
        sql.value("define_job_type", name="report")
        [key] = sql.rows("create_key", name="k", role="member", tenant_id=ann.tenant)
        for user, is_allowed in ((key["id"], False), (ann, True)):
            with acting(sql, user):
                made = schedule(me, clock, params={"n": is_allowed})
            due = clock.now()
            clock.advance(seconds=1)
            arguments: dict[str, Any] = {
                "schedule_id": made, "due_at": due, "next_run_at": clock.now(), "starts": [due],
                "tasks": Jsonb([{"kind": "paid"}]),
            }  # fmt: skip
            if is_allowed:
                sql.execute("update penstock.schedules set next_run_at = %s", due)
                assert len(sql.value("fire_schedule", **arguments)) == 1
            else:
                with sql.refused(403, "not_a_starter"):
                    sql.value("fire_schedule", **arguments)


class TestDrawnJobs:
    """B9, S70: the server starts what the app drew, for the user of the request, with the user's role."""

    def drawn(self, sql: Contract, user: Any, tenant: uuid.UUID | None = None) -> uuid.UUID:
        options = {} if tenant is None else {"tenant_id": str(tenant)}
        with acting(sql, user, "service_role"):
            return sql.value("start_drawn_job", type="report", params=Jsonb({}),
                             tasks=Jsonb([{"kind": "paid", "timeout_seconds": 99}]),
                             options=Jsonb(options), user_id=getattr(user, "id", user))  # fmt: skip

    def test_the_user_is_recorded(self, sql: Contract, ann: Person) -> None:
        define(sql, timeout_seconds=30)
        job = sql.job(self.drawn(sql, ann))
        assert job["created_by"] == f"user:{ann.id}" and job["tenant_id"] == str(ann.tenant)
        assert sql.audit(uuid.UUID(job["id"]))[0]["actor"] == f"user:{ann.id}"

    def test_the_role_in_the_tenant_is_checked(self, sql: Contract, ann: Person) -> None:
        define(sql)
        bob = join(sql, "bob")
        with sql.refused(403, "forbidden"):
            self.drawn(sql, bob, ann.tenant)
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="viewer")
        with sql.refused(403, "forbidden"):
            self.drawn(sql, bob, ann.tenant)
        sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="member")
        self.drawn(sql, bob, ann.tenant)

    def test_a_key_needs_the_scope(self, sql: Contract, ann: Person) -> None:
        define(sql)
        for scopes, is_allowed in ((["read"], False), (["start"], True)):
            [key] = sql.rows("create_api_key", name="k", role="member",
                             options=Jsonb({"tenant_id": str(ann.tenant), "scopes": scopes}))  # fmt: skip
            if is_allowed:
                self.drawn(sql, key["id"], ann.tenant)
            else:
                with sql.refused(403, "missing_scope"):
                    self.drawn(sql, key["id"], ann.tenant)

    def test_users_cannot_call_it(self, sql: Contract, ann: Person) -> None:
        define(sql)
        with acting(sql, ann), sql.refused("42501"):
            sql.value("start_drawn_job", type="t", params=Jsonb({}), tasks=Jsonb([{"kind": "paid"}]))

    def test_a_drawn_job_is_for_the_user_of_the_request_only(self, sql: Contract, ann: Person) -> None:
        define(sql)
        bob = join(sql, "bob")
        with acting(sql, bob, "service_role"), sql.refused(403, "forbidden"):
            sql.value("start_drawn_job", type="t", params=Jsonb({}), tasks=Jsonb([{"kind": "paid"}]),
                      options=Jsonb({}), user_id=ann.id)  # fmt: skip


class TestProviders:
    """B9/counted, S71: the cost of a task is counted whatever providers and units its author names."""

    def test_a_task_gets_its_kinds_provider_and_least_units(
        self, sql: Contract, me: Contract, ann: Person
    ) -> None:
        define(sql, providers=[NAME], units={"tokens": 1000}, raw_tasks=True)
        with acting(sql, ann):
            bare = me.start([{"kind": "paid"}])
            cheap = me.start([{"kind": "paid", "units": {"tokens": 1, "requests": 0, "input_tokens": 1200}}])
        assert task(sql, bare)["provider"] == NAME
        assert task(sql, bare)["units"] == {"requests": 1, "tokens": 1000}
        assert task(sql, cheap)["units"] == {"requests": 1, "tokens": 1200, "input_tokens": 1200}

    def test_members_cannot_spend_uncounted(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql, providers=[NAME], units={"tokens": 1000}, raw_tasks=True)
        with acting(sql, ann):
            me.start([{"kind": "paid"}] * 200)
        assert len(sql.claim(200)) == 3  # of the 3,000 tokens per minute

    def test_a_budget_holds(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql, providers=[NAME], raw_tasks=True)
        with acting(sql, ann):
            me.start([{"kind": "paid"}], budget=0.01)
        assert sql.claim(10) == []

    def test_units_grow_with_the_input(self, sql: Contract) -> None:
        define(sql, units={"tokens": 100}, units_per_kb={"tokens": 250, "characters": 1000})
        job = sql.start([{"kind": "paid", "input": {"text": "x" * 1988}}])
        assert task(sql, job)["units"] == {"tokens": 600, "characters": 2000}

    def test_other_providers_are_refused(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql, providers=[NAME], raw_tasks=True)
        for wrong in ({"provider": "acme/small"}, {"route": {"providers": [NAME, "acme/small"]}}):
            with acting(sql, ann), sql.refused(422, "provider_not_allowed", field="tasks[0].provider"):
                me.start([{"kind": "paid", **wrong}])
        define(sql, "free", providers=[])
        with sql.refused(422, "provider_not_allowed"):
            sql.start([{"kind": "free", "provider": NAME}])
        with sql.refused(422, "provider_not_allowed"):
            sql.start([{"kind": "free", "route": {"features": []}}])

    def test_several_providers_are_tried_in_their_order(self, sql: Contract, ann: Person) -> None:
        define(sql, providers=["acme/small", NAME])
        assert task(sql, sql.start([{"kind": "paid"}]))["provider"] == "acme/small"
        sql.provider("acme/small", status="disabled")
        job = sql.start([{"kind": "paid", "route": {"features": []}}])
        assert task(sql, job)["provider"] == NAME

    def test_a_forecast_counts_the_same(self, sql: Contract, ann: Person) -> None:
        define(sql, providers=[NAME], units={"tokens": 1000})
        found = sql.value("forecast_job", type="t", tasks=Jsonb([{"kind": "paid"}]),
                          options=Jsonb({"tenant_id": str(sql.tenant)}))  # fmt: skip
        assert found["cost"]["expected"] == 1

    def test_amounts_that_are_no_numbers_are_refused(self, sql: Contract) -> None:
        define(sql, units={"tokens": 10})
        for wrong in ("many", [1]):
            with sql.refused(422):
                sql.start([{"kind": "paid", "units": {"tokens": wrong}}])


class TestBounds:
    """S71: a task asks for no more time, attempts and priority than its kind allows."""

    def test_users_stay_within_the_kinds_own_values(self, sql: Contract, me: Contract, ann: Person) -> None:
        define(sql, timeout_seconds=30, max_attempts=2, raw_tasks=True)
        for field, value in (("timeout_seconds", 31622400), ("max_attempts", 100)):
            with acting(sql, ann), sql.refused(422, field=f"tasks[0].{field}"):
                me.start([{"kind": "paid", field: value}])
        with acting(sql, ann):
            me.start([{"kind": "paid", "timeout_seconds": 10, "max_attempts": 1}])

    def test_declared_bounds_hold_for_everybody(self, sql: Contract) -> None:
        define(sql, timeout_seconds=30, max_timeout_seconds=60, attempts_limit=5, min_priority=3)
        sql.start([{"kind": "paid", "timeout_seconds": 60, "max_attempts": 5, "priority": 3}])
        wrongs = (("timeout_seconds", 61, "invalid_timeout"), ("max_attempts", 6, "invalid_attempts"),
                  ("priority", 2, "invalid_priority"))  # fmt: skip
        for field, value, code in wrongs:
            with sql.refused(422, code, field=f"tasks[0].{field}"):
                sql.start([{"kind": "paid", field: value}])
        with sql.refused(422, "invalid_priority"):
            sql.start([{"kind": "paid"}], priority=0)

    @pytest.mark.parametrize(("starters", "allowed"), [
        (None, {"owner", "admin", "member"}), (["owner", "admin"], {"owner", "admin"}),
        (["key"], {"owner", "admin", "member"}), (["service"], set()), ([], set()),
    ])  # fmt: skip
    def test_only_its_starters_start_it(
        self, sql: Contract, me: Contract, ann: Person, starters: list[str] | None, allowed: set[str]
    ) -> None:
        define(sql, starters=starters, raw_tasks=True)
        for role in ("owner", "admin", "member"):
            [key] = sql.rows("create_key", name="k", role=role, tenant_id=ann.tenant)
            with acting(sql, key["id"]):
                if role in allowed:
                    me.start([{"kind": "paid"}])
                else:
                    with sql.refused(403, "not_a_starter"):
                        me.start([{"kind": "paid"}])
        if starters == ["key"]:
            with acting(sql, ann), sql.refused(403, "not_a_starter"):
                me.start([{"kind": "paid"}])
        sql.start([{"kind": "paid"}])


class TestDeclaring:
    def test_a_kind_declares_its_whole_policy(self, sql: Contract, me: Contract, ann: Person) -> None:
        """B9/kinds: providers and their price, least units, bounds, starters; for every caller."""
        policy: dict[str, Any] = {
            "providers": [NAME], "units": {"tokens": 1000}, "max_timeout_seconds": 60, "attempts_limit": 2,
            "min_priority": 3, "starters": ["member"], "raw_tasks": True,
        }  # fmt: skip
        define(sql, timeout_seconds=30, **policy)
        with acting(sql, ann), sql.refused(403, "not_a_starter"):
            me.start([{"kind": "paid"}])
        policy["starters"] = ["owner"]
        define(sql, timeout_seconds=30, **policy)
        with acting(sql, ann):
            for wrong in (
                {"provider": "acme/small"},
                {"timeout_seconds": 61},
                {"max_attempts": 3},
                {"priority": 2},
            ):
                with sql.refused(422):
                    me.start([{"kind": "paid", **wrong}])
            job = me.start([{"kind": "paid", "units": {"tokens": 1}}])
        assert task(sql, job)["units"] == {"requests": 1, "tokens": 1000}
        sql.complete(sql.claim_one())
        assert sql.one("select sum(amount) from penstock.cost_entries where job_id = %s", job) == 1

    def test_an_earlier_version_keeps_the_policy(self, sql: Contract) -> None:
        define(sql, providers=[NAME], raw_tasks=True)
        define(sql, max_attempts=7)
        found = sql.execute(
            "select providers, raw_tasks, max_attempts from penstock.kinds where name = 'paid'"
        )
        assert found == [{"providers": [NAME], "raw_tasks": True, "max_attempts": 7}]
        define(sql, providers=None)
        assert sql.one("select providers from penstock.kinds where name = 'paid'") is None

    @pytest.mark.parametrize("wrong", [
        {"providers": ["no slash"]}, {"providers": "acme/large"}, {"units": {"tokens": -1}},
        {"units": {"nothing": 1}}, {"units": 3}, {"starters": ["friends"]}, {"min_priority": 11},
        {"max_timeout_seconds": 0}, {"attempts_limit": 101}, {"raw_tasks": "perhaps"},
    ])  # fmt: skip
    def test_invalid_policies_are_refused(self, sql: Contract, wrong: dict[str, Any]) -> None:
        with sql.refused(422):
            define(sql, **wrong)
