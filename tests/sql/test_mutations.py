"""Whether the checks of test_access detect mutations: each right, policy and protection is removed or widened in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.postgres import db
from tests.sql import test_access
from tests.sql.conftest import Contract
from tests.sql.test_access import (
    CATALOGUE,
    FUNCTIONS,
    RELATIONS,
    ROLES,
    World,
    acting,
    check_members,
    check_profiles,
    check_service,
    documented,
    documented_functions,
    function_cells,
    relation_cells,
    visible,
    world,
)

__all__ = ["world"]

POLICIES = "select * from pg_policies where schemaname = 'penstock' order by tablename, policyname"
PRIVILEGES = ("select", "insert", "update", "delete", "truncate", "references", "trigger")
# They join with a view or a function that asks with its reader's rights as well.
WALLED_TWICE = {"bulk_list", "bulk_row_list", "rate_comparison"}


@contextmanager
def changed(sql: Contract, statement: str) -> Iterator[None]:
    """Apply a statement inside the block, and undo it afterwards."""
    with sql.connection.transaction(force_rollback=True):
        sql.execute(statement)
        yield


def is_noticed(sql: Contract, check: Callable[..., None], *what: Any) -> bool:
    """Whether a check fails, with any error."""
    try:
        with sql.connection.transaction(force_rollback=True):
            check(sql, *what)
    except (AssertionError, psycopg.Error):
        return True
    return False


def check_catalogue(sql: Contract) -> None:
    """The checks of test_access that only read the catalogue."""
    checks = test_access.TestCatalogue()
    checks.test_every_table_has_row_security(sql)
    checks.test_every_view_checks_the_rights_of_its_reader(sql)
    checks.test_every_policy_has_a_role_and_a_condition(sql)
    checks.test_users_have_policies_where_they_have_grants_and_nowhere_else(sql)


def check_admins(sql: Contract, world: World) -> None:
    """An admin of the installation reads what admins changed in other tenants."""
    for person in (world.ann, world.bob):
        sql.value("set_profile_role", user_id=person.id, role="admin")
    query = "select count(*) from penstock.audit_log where action like 'admin.%%' and subject = %s"
    with acting(sql, world.ann.id):
        assert sql.one(query, f"user:{world.bob.id}") == 1


def tables(sql: Contract) -> list[db.Row]:
    return [relation for relation in sql.execute(RELATIONS) if not relation["is_view"]]


def test_the_checks_pass_without_a_mutation(sql: Contract, world: World) -> None:
    assert not is_noticed(sql, check_catalogue)
    assert not is_noticed(sql, check_profiles, world)
    assert not is_noticed(sql, check_admins, world)
    assert not is_noticed(sql, check_service, [table["name"] for table in tables(sql)])
    for relation in visible(sql):
        assert not is_noticed(sql, check_members, world, relation)


def test_a_missing_policy_is_detected(sql: Contract, world: World) -> None:
    """S20: by the catalogue, and by what its readers see."""
    policies = sql.execute(POLICIES)
    assert len(policies) > 70
    empty: list[str] = []
    for policy in policies:
        table, name = policy["tablename"], policy["policyname"]
        with changed(sql, f"drop policy {name} on penstock.{table}"):
            if (table, name) == ("audit_log", "admins_read"):
                assert is_noticed(sql, check_admins, world)
                continue
            # Members and admins both read the audit log: the catalogue still has a policy of the other.
            assert table == "audit_log" or is_noticed(sql, check_catalogue), (table, name)
            if policy["roles"] == ["service_role"]:
                if not sql.one(f"select exists (select from penstock.{table})"):
                    # Nothing is to be seen there, so nothing is missed.
                    empty.append(table)
                    continue
                assert is_noticed(sql, check_service, [table]), (table, name)
            elif policy["cmd"] == "UPDATE":
                assert is_noticed(sql, check_profiles, world), (table, name)
            else:
                assert is_noticed(sql, check_members, world, table), (table, name)
    # Log lines and chunks of one week: two of their three partitions are empty.
    assert len(empty) < 41, empty


def test_a_policy_open_to_everyone_is_detected(sql: Contract, world: World) -> None:
    """S20: the same when it is weakened."""
    weakened = 0
    for policy in sql.execute(POLICIES):
        table, name = policy["tablename"], policy["policyname"]
        if policy["qual"] == "true":
            continue
        checked = " with check (true)" if policy["cmd"] == "UPDATE" else ""
        with changed(sql, f"alter policy {name} on penstock.{table} using (true){checked}"):
            assert is_noticed(sql, check_catalogue), (table, name)
            # What a user does not see, a user does not change either: there is a second wall behind this one.
            if policy["cmd"] != "UPDATE":
                assert is_noticed(sql, check_members, world, table), (table, name)
        weakened += 1
    assert weakened > 25


def test_disabled_row_security_is_detected(sql: Contract, world: World) -> None:
    """S11, S20"""
    seen = set(visible(sql)) - CATALOGUE
    for table in tables(sql):
        name = table["name"]
        with changed(sql, f"alter table penstock.{name} disable row level security"):
            assert is_noticed(sql, check_catalogue), name
            if name in seen:
                assert is_noticed(sql, check_members, world, name), name


def test_a_view_with_owner_rights_is_detected(sql: Contract, world: World) -> None:
    """S16, S20"""
    unseen: set[str] = set()
    for name in (relation["name"] for relation in sql.execute(RELATIONS) if relation["is_view"]):
        with changed(sql, f"alter view penstock.{name} reset (security_invoker)"):
            assert is_noticed(sql, check_catalogue), name
            if name in visible(sql) and not is_noticed(sql, check_members, world, name):
                unseen.add(name)
    assert unseen == WALLED_TWICE


def toggle(privilege: str, thing: str, role: str, is_granted: bool) -> str:
    verb, to = ("revoke", "from") if is_granted else ("grant", "to")
    return f"{verb} {privilege} on {thing} {to} {role}"


def test_every_changed_right_on_a_table_is_detected(sql: Contract) -> None:
    """S16, S20: each granted right is revoked and each other one granted: every cell detects it."""
    before = documented("Tables and views")
    for privilege in PRIVILEGES:
        statements = [
            toggle(privilege, f"penstock.{name}", role, privilege in cell.replace("(", ",").split(", "))
            for name, cells in before.items()
            for role, cell in zip(ROLES, cells, strict=False)
        ]
        with changed(sql, ";".join(statements)):
            after = relation_cells(sql)
            same = [(n, r) for n in before for r in range(len(ROLES)) if before[n][r] == after[n][r]]
            assert same == [], privilege


@pytest.mark.slow
def test_every_changed_right_on_a_column_is_detected(sql: Contract) -> None:
    """S20: a column that becomes writable for users is named."""
    for relation in tables(sql):
        name, columns = relation["name"], relation["columns"]
        with changed(sql, f"grant update ({', '.join(columns)}) on penstock.{name} to authenticated"):
            assert f"update ({', '.join(sorted(columns))})" in relation_cells(sql)[name][1]


def test_every_changed_right_on_a_function_is_detected(sql: Contract) -> None:
    """S15, S20"""
    before = documented_functions(sql)
    statements = [
        toggle("execute", f"function penstock.{f['name']}({', '.join(f['arguments'])})", role, cell == "yes")
        for f in sql.execute(FUNCTIONS)
        for role, cell in zip(ROLES, before[f["name"]], strict=True)
    ]
    with changed(sql, ";".join(statements)):
        after = function_cells(sql)
        assert [(n, r) for n in before for r in range(len(ROLES)) if before[n][r] == after[n][r]] == []
