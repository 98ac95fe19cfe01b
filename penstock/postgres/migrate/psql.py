"""The same as a script: for psql, or in plain SQL for editors and tools that know no commands of psql."""

from __future__ import annotations

from pathlib import Path

from penstock.postgres.migrate.records import forget_code, prologue, record, record_units
from penstock.postgres.migrate.source import PENSTOCK, SQL, File, Source, read
from penstock.postgres.migrate.statements import repeatable, split, units


def script(
    contract: bool = False, *, folder: Path = SQL, schema: str = PENSTOCK, is_plain: bool = False
) -> str:
    """The SQL that brings a database of any earlier version, or a fresh one, to this one, for psql.

    A script cannot compare: it applies all functions, views, grants and policies in one transaction. With
    `is_plain` it has no commands of psql, and builds indexes in that transaction too.
    """
    source = read(folder, schema)
    if is_plain:
        return _plain_script(source, contract)
    parts = [
        f"-- The schema of {schema}, for psql: for a fresh database, or for one of an earlier version.\n"
        "\\set ON_ERROR_STOP on\n",
        "begin;\n" + prologue(schema, lock=True),
        f"select not exists (select from {schema}.migrations) as penstock_fresh \\gset\n",
        _refuse_changed(source),
    ]
    for file in source.migrations:
        body = f"-- {file.name}\n{file.text.rstrip()}\n{record(schema, file)}"
        if not file.is_transactional:
            body = f"commit;\n{body}begin;\n{prologue(schema, lock=True)}"
        wanted = " and :'penstock_fresh'" if file.is_contract and not contract else ""
        parts.append(
            f"select not exists (select from {schema}.migrations where name = '{file.name}'){wanted}"
            f" as penstock_pending \\gset\n\\if :penstock_pending\n{body}\\endif\n"
        )
    parts += [f"-- {file.name}\n{_repeatable(file)}\n{record(schema, file)}" for file in source.code]
    parts.append(forget_code(schema, source.code) + record_units(source) + "commit;\n")
    return "\n".join(parts)


def _plain_script(source: Source, contract: bool) -> str:
    schema = source.schema
    parts = [
        f"-- The schema of {schema}, in plain SQL: for a fresh database, or for one of an earlier version.\n"
        "begin;\n" + prologue(schema, lock=True),
        "select set_config('penstock.is_fresh',"
        f" (not exists (select from {schema}.migrations))::text, true);\n",
        _refuse_changed(source),
    ]
    for file in source.migrations:
        text = file.text.rstrip()
        if not file.is_transactional:
            text = text.replace(" concurrently ", " ")
        wanted = (
            " and current_setting('penstock.is_fresh')::boolean" if file.is_contract and not contract else ""
        )
        parts.append(
            f"do $penstock_if$\nbegin\n"
            f"if not exists (select from {schema}.migrations where name = '{file.name}'){wanted} then\n"
            f"execute $penstock_then$\n-- {file.name}\n{text}\n{record(schema, file)}$penstock_then$;\n"
            "end if;\nend\n$penstock_if$;\n"
        )
    parts += [f"-- {file.name}\n{_repeatable(file)}\n{record(schema, file)}" for file in source.code]
    parts.append(forget_code(schema, source.code) + record_units(source) + "commit;\n")
    return "\n".join(parts)


def _repeatable(file: File) -> str:
    """The file's text, with a drop before each policy that it creates."""
    text = file.text.rstrip()
    for unit in reversed(units(split(file.name, file.text))):
        first, *_ = repeatable(unit)
        if first not in unit.statements:
            text = f"{text[: first.start]}{first.text}\n{text[first.start :]}"
    return text


def _refuse_changed(source: Source) -> str:
    files = ",\n    ".join(f"('{file.name}', '{file.sha256}')" for file in source.migrations)
    return f"""\
do $$
declare
  v_name text;
begin
  select m.name into v_name from {source.schema}.migrations m join (values
    {files or "(null, null)"}
  ) f (name, sha256) on f.name = m.name and f.sha256 <> m.sha256 order by m.name limit 1;
  if found then
    raise exception '% was changed after it had been applied to this database', v_name;
  end if;
end
$$;
"""
