"""Secrets that must be read again (S87): no role reads their tables, and only the sender gets them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.conftest import Contract
from tests.sql.test_access import acting, join

TABLES = ("notification_secrets", "wait_links", "provider_keys", "link_secrets")
ADDRESS = "https://hooks.example.com/services/T0/B0/XyZ"


def webhook(sql: Contract, tenant: uuid.UUID | None = None) -> dict[str, Any]:
    options = Jsonb({"tenant_id": str(tenant or sql.tenant)})
    return sql.rows(
        "set_notification_target", channel="webhook", address=ADDRESS, events=["alert"], options=options
    )[0]


@pytest.mark.parametrize("role", ["anon", "authenticated", "service_role"])
@pytest.mark.parametrize("table", TABLES)
def test_no_role_reads_a_table_of_secrets(sql: Contract, table: str, role: str) -> None:
    """S87: neither the owner of the tenant nor a service key, over REST or in SQL."""
    ann = join(sql, "ann")
    webhook(sql, ann.tenant)
    with sql.refused("42501"), acting(sql, ann, role):
        sql.execute(f"select * from penstock.{table}")


def test_secret_is_shown_once_and_then_only_to_the_sender(sql: Contract) -> None:
    """S87: no row that a role may read contains it."""
    made = webhook(sql)
    assert webhook(sql)["secret"] is None, "shown when the target is created, not when it is changed"
    sql.value("notify", tenant_id=sql.tenant, subject="s", body="b")
    [taken] = sql.rows("take_notifications")
    assert taken["secrets"] == [made["secret"]]
    readable = sql.execute(
        "select c.relname as name from pg_class c where c.relnamespace = 'penstock'::regnamespace"
        " and c.relkind in ('r', 'v') and has_table_privilege('service_role', c.oid, 'select')"
    )
    assert len(readable) > 70
    with acting(sql, None, "service_role"):
        for table in readable:
            rows = sql.execute(f"select t::text from penstock.{table['name']} t")
            assert made["secret"] not in str(rows), table


def test_database_restored_without_secrets_gets_new_ones(sql: Contract) -> None:
    """S87: so a dump can leave out the table of secrets."""
    made = webhook(sql)
    sql.execute("delete from penstock.notification_secrets")
    new = sql.value("rotate_notification_secret", target_id=made["id"])
    assert new.startswith("whsec_") and new != made["secret"]
    sql.value("notify", tenant_id=sql.tenant, subject="s", body="b")
    assert sql.rows("take_notifications")[0]["secrets"] == [new]


@pytest.mark.parametrize(("role", "sees"), [("viewer", 0), ("member", 0), ("admin", 1), ("owner", 1)])
def test_addresses_are_for_owners_and_admins(sql: Contract, role: str, sees: int) -> None:
    """S88: the URL of a chat's webhook is enough to post there."""
    ann, bob = join(sql, "ann"), join(sql, "bob")
    sql.value("set_member", tenant_id=ann.tenant, user_id=bob.id, role=role)
    webhook(sql, ann.tenant)
    sql.value("notify", tenant_id=ann.tenant, subject="s", body="b")
    with acting(sql, bob):
        for table in ("notification_targets", "notifications"):
            assert len(sql.execute(f"select * from penstock.{table}")) == sees


def test_key_without_read_reads_no_stacks_and_no_addresses(sql: Contract) -> None:
    """S88: the role of a key is not enough, it needs the scope."""
    ann = join(sql, "ann")
    webhook(sql, ann.tenant)
    options = Jsonb({"tenant_id": str(ann.tenant), "scopes": ["admin"]})
    [key] = sql.rows("create_api_key", name="k", role="admin", options=options)
    with acting(sql, key["id"]):
        assert sql.execute("select * from penstock.notification_targets") == []
        assert sql.execute("select * from penstock.my_admin_tenants()") == []
