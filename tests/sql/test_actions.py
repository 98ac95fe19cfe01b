"""Actions on many jobs: which jobs are queued, and in which order."""

from __future__ import annotations

import uuid

import pytest

from tests.sql.conftest import Contract
from tests.sql.test_access import acting, join

pytestmark = pytest.mark.every_postgres


def test_ids_that_the_caller_may_not_change_are_not_queued(sql: Contract) -> None:
    """S67, B9/shared: invented ids, and ids of jobs that a viewer sees, give the workers nothing to do."""
    ann, bob = join(sql, "ann"), join(sql, "bob")
    sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role="viewer")
    job = str(sql.start(1, tenant_id=str(ann.tenant)))
    invented = [str(uuid.uuid4()) for _ in range(300)]
    with acting(sql, bob):
        action = sql.value("start_action", verb="cancel", subjects=[job, *invented])
    assert sql.one("select count(*) from penstock.action_items where action_id = %s", action) == 0
    [row] = sql.execute(
        "select total, done, refused, finished_at is not null as is_over from penstock.actions where id = %s",
        action,
    )
    assert row == {"total": 301, "done": 0, "refused": 301, "is_over": True}
    with acting(sql, ann):
        action = sql.value("start_action", verb="cancel", subjects=[job, *invented])
    [row] = sql.execute("select total, done, refused from penstock.actions where id = %s", action)
    assert row == {"total": 301, "done": 1, "refused": 300}


def test_users_take_turns(sql: Contract) -> None:
    """S67, B9/shared: a small action does not wait for the end of a large one."""
    ann, bob = join(sql, "ann"), join(sql, "bob")
    actions = {}
    for person, count in ((ann, 400), (bob, 110)):
        jobs = [str(sql.start(1, tenant_id=str(person.tenant))) for _ in range(count)]
        with acting(sql, person):
            actions[person.name] = sql.value("start_action", verb="pause", subjects=jobs)
    done = "select done from penstock.actions where id = %s"
    for _ in range(2):
        assert sql.value("do_actions", bite=20) > 0
    assert sql.one(done, actions["bob"]) == 110
    assert 100 <= sql.one(done, actions["ann"]) < 400


def test_tenants_take_turns_before_their_users(sql: Contract) -> None:
    """S67, B9/shared: a tenant with many users gets no more turns than one with a single user."""
    ann, bob = join(sql, "ann"), join(sql, "bob")
    crowd = [join(sql, f"helper{n}") for n in range(3)]
    for person in crowd:
        sql.value("set_member", tenant_id=ann.tenant, user_id=person.id, role="member")
    done = "select coalesce(sum(done), 0) from penstock.actions where tenant_id = %s"
    for person in (ann, *crowd, bob):
        tenant = bob.tenant if person is bob else ann.tenant
        jobs = [str(sql.start(1, tenant_id=str(tenant))) for _ in range(140)]
        with acting(sql, person):
            sql.value("start_action", verb="pause", subjects=jobs)
    before = sql.one(done, ann.tenant)
    for _ in range(2):
        assert sql.value("do_actions", bite=20) > 0
    assert sql.one(done, bob.tenant) == 140
    assert sql.one(done, ann.tenant) == before


def test_a_tenant_has_a_limited_number_of_open_subjects(sql: Contract) -> None:
    """S67"""
    ann = join(sql, "ann")
    jobs = [str(sql.start(1, tenant_id=str(ann.tenant))) for _ in range(2)]
    sql.execute(
        "insert into penstock.actions (actor, user_id, tenant_id, verb, total, created_at) "
        "values ('user:other', gen_random_uuid(), %s, 'pause', 999999, now())",
        ann.tenant,
    )
    with acting(sql, ann):
        with sql.refused(429, "share_used_up"):
            sql.value("start_action", verb="pause", subjects=jobs)
        sql.value("start_action", verb="pause", subjects=jobs[:1])


def test_a_user_has_a_limited_number_of_open_subjects(sql: Contract) -> None:
    """S67"""
    ann = join(sql, "ann")
    jobs = [str(sql.start(1, tenant_id=str(ann.tenant))) for _ in range(2)]
    sql.execute(
        "insert into penstock.actions (actor, user_id, verb, total, created_at) "
        "values ('user:' || %s, %s, 'pause', 499999, now())",
        ann.id,
        ann.id,
    )
    with acting(sql, ann):
        with sql.refused(429, "share_used_up"):
            sql.value("start_action", verb="pause", subjects=jobs)
        sql.value("start_action", verb="pause", subjects=jobs[:1])
