"""How migrate takes a file of SQL apart, and how it compares what PostgreSQL prints."""

from __future__ import annotations

import pytest

from penstock.postgres import migrate
from penstock.postgres.migrate.expressions import flatten
from penstock.postgres.migrate.statements import repeatable, split, units

FILE = """\
-- A comment; with a semicolon.
create or replace function s.f(p_text text default ';') returns int language sql as $$ select 1; $$;
comment on function s.f(text) is 'it''s; fine';
create function s.g() returns int begin atomic; select case when true then 1; end; end; /* ; */
create or replace procedure S."G;"() language plpgsql as $body$ begin perform $$;$$; end $body$;
create or replace trigger t before update of a, b on s.things for each row execute function s.f();
drop policy if exists p on s.things;
create policy p on s.things using (a in (select 1));
create or replace view s.v as select e'\\';' as x;
grant select on s.v to anon;
revoke all on all tables in schema s from public;
alter default privileges in schema s grant select on tables to anon;
insert into s.things values (1)"""


def test_a_file_is_split_into_statements_by_object() -> None:
    statements = list(split("f.sql", FILE))
    assert all(FILE[s.start :].startswith(s.text) for s in statements)
    assert "".join(s.text for s in statements).count("\n") == 0
    found = [(unit.kind, unit.key, len(unit.statements)) for unit in units(statements)]
    assert [(kind, key if kind != "statement" else "", count) for kind, key, count in found] == [
        ("function", "function s.f", 2),
        ("function", "function s.g", 1),
        ("function", "function s.G;", 1),
        ("trigger", "trigger t on s.things", 1),
        ("policy", "policy p on s.things", 2),
        ("view", "view s.v", 1),
        ("grants", "grants", 2),
        ("statement", "", 1),
        ("statement", "", 1),
    ]


def test_a_policy_is_dropped_before_it_is_created() -> None:
    [unit] = units(split("f.sql", 'create policy "P" on s.t using (true);'))
    assert [s.text for s in repeatable(unit)] == [
        'drop policy if exists "P" on s.t;',
        'create policy "P" on s.t using (true);',
    ]


def test_penstocks_own_code_defines_objects() -> None:
    """A statement that names no object is not repaired, and runs again when any other object changes."""
    others = {unit.statements[0].text.split()[0] for unit in migrate.read().units if unit.kind == "statement"}
    assert others == {"insert"}


@pytest.mark.parametrize(
    ("printed", "flat"),
    [
        ("(((a) AND (b)) AND (c))", "((a) AND (b) AND (c))"),
        ("((a) AND ((b) AND (c)))", "((a) AND (b) AND (c))"),
        ("(((a) OR (b)) OR ((c) OR (d)))", "((a) OR (b) OR (c) OR (d))"),
        ("(((a) OR (b)) AND (c))", "(((a) OR (b)) AND (c))"),
        ("((NOT ((a) AND (b))) AND (c))", "((NOT ((a) AND (b))) AND (c))"),
        ("((f((a) AND (b))) AND (c))", "((f((a) AND (b))) AND (c))"),
        ("((x = ') AND ('::text) AND (\"a AND b\" > 1))", "((x = ') AND ('::text) AND (\"a AND b\" > 1))"),
        ("(a = 1)", "(a = 1)"),
    ],
)
def test_nested_conditions_are_compared_flat(printed: str, flat: str) -> None:
    assert flatten(printed) == flat
