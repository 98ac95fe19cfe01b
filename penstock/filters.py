"""The filter language of every list: `status:failed type:publish tenant:acme age:<1d`.

Terms are separated by blanks, and all must hold. A term is a field, a colon and a value; several values with
commas between them mean any of them; a minus before the field excludes. A value with a blank, a comma or a
quotation mark in it is put in quotation marks: `tenant:"Acme, Inc."`. What a field may be is up to the list.

Values only ever become bound parameters. The SQL around them is literal text of this package. What a value
means (whose name it is, when an hour ago was) is asked before: only to what it knows, PostgreSQL finds a way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString, TypeAlias
from uuid import UUID

from penstock import db
from penstock.errors import Invalid

Condition: TypeAlias = tuple[LiteralString, list[Any]]
"""A condition with a `%s` for each of its values."""

Field: TypeAlias = Callable[[Sequence[str]], Condition]
"""Makes a condition of the values a term has, or raises ValueError that says what it takes instead."""

_KNOWN: LiteralString = """\
select penstock._now(), t.name, t.id from (select) as one left join penstock.tenants t on t.name = any (%s)"""
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[^\s",]+)'
_TERM = re.compile(rf"\s*(?P<minus>-?)(?P<field>[A-Za-z_]+):(?P<values>{_VALUE}(?:,{_VALUE})*)(?=\s|$)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LONGEST = 100 * 366 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Names:
    """A value: the ids of the tenants of these names, or that these are."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ago:
    """A value: so long ago, by the database's clock."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a filter."""

    field: str
    values: tuple[str, ...]
    is_excluded: bool = False


def parse(text: str) -> list[Term]:
    """The terms of a filter."""
    terms: list[Term] = []
    place = 0
    while text[place:].strip():
        found = _TERM.match(text, place)
        if found is None:
            raise _wrong(f"{text[place:].split()[0]!r} is not a term of a filter")
        values = tuple(_unquoted(value) for value in re.findall(_VALUE, found["values"]))
        terms.append(Term(found["field"].lower(), values, bool(found["minus"])))
        place = found.end()
    return terms


def meant(text: str, fields: Mapping[str, Field]) -> list[Condition]:
    """What a filter says, with values that are still to be looked up."""
    return [_condition(term, fields) for term in parse(text)]


async def conditions(database: db.Database, text: str, fields: Mapping[str, Field]) -> list[Condition]:
    """What a filter means for a list with these fields."""
    found = meant(text, fields)
    values = [value for _, some in found for value in some]
    names = {name for value in values if isinstance(value, Names) for name in value.names}
    if not names and not any(isinstance(value, Ago) for value in values):
        return found
    rows = await db.rows(database, _KNOWN, (list(names),))
    ids = [(name, id) for _, name, id in rows if id is not None]

    def known(value: Any) -> Any:
        if isinstance(value, Names):
            return uuids(value.names) + [id for name, id in ids if name in value.names]
        return rows[0][0] - timedelta(seconds=value.seconds) if isinstance(value, Ago) else value

    return [(sql, [known(value) for value in some]) for sql, some in found]


def every(conditions: Sequence[Condition]) -> Condition:
    """All of these conditions as one."""
    sql: LiteralString = "true"
    values: list[Any] = []
    for text, some in conditions:
        sql += " and (" + text + ")"
        values += some
    return sql, values


def quoted(value: str) -> str:
    """A value as a filter has it."""
    if re.fullmatch(r'[^\s",]+', value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def page(limit: int) -> int:
    """The size of a page, if it is one."""
    if not 1 <= limit <= 1000:
        raise Invalid("a page has 1 to 1000 lines", code="invalid_limit", details={"field": "limit"})
    return limit


def seconds(text: str) -> float:
    """A duration such as `90s`, `2h30m`, `7d`."""
    parts = _DURATION.findall(text)
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or total > _LONGEST:
        raise ValueError("a duration such as 90s, 2h30m or 7d, of at most 100 years")
    return total


def uuids(values: Sequence[str]) -> list[UUID]:
    """Those of the values that are ids."""
    return [UUID(value) for value in values if _UUID.fullmatch(value)]


# The fields a list can have


def words(column: LiteralString, choices: Sequence[str] = ()) -> Field:
    """The column is one of these words."""

    def condition(values: Sequence[str]) -> Condition:
        if choices and not set(values) <= set(choices):
            raise ValueError(f"one of {', '.join(choices)}")
        return column + " = any (%s)", [list(values)]

    return condition


def numbers(column: LiteralString) -> Field:
    """The column is one of these numbers."""

    def condition(values: Sequence[str]) -> Condition:
        if not all(re.fullmatch(r"\d{1,18}", value) for value in values):
            raise ValueError("a number")
        return column + " = any (%s)", [[int(value) for value in values]]

    return condition


def ids(column: LiteralString) -> Field:
    """The column is one of these ids."""

    def condition(values: Sequence[str]) -> Condition:
        try:
            return column + " = any (%s)", [[UUID(value) for value in values]]
        except ValueError:
            raise ValueError("an id such as 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b") from None

    return condition


def part(column: LiteralString) -> Field:
    """The column contains one of these texts, in whatever case."""

    def condition(values: Sequence[str]) -> Condition:
        return (
            "exists (select from unnest(%s::text[]) as part where strpos(lower("
            + column
            + "), lower(part)) > 0)",
            [list(values)],
        )

    return condition


def tenant(column: LiteralString) -> Field:
    """The column is the id of one of these tenants, each given by its name or by its id."""

    def condition(values: Sequence[str]) -> Condition:
        return column + " = any (%s::uuid[])", [Names(tuple(values))]

    return condition


def age(column: LiteralString) -> Field:
    """The column is less (`<1d`, or plain `1d`) or more (`>1h`) than so long ago, by the database's clock."""

    def condition(values: Sequence[str]) -> Condition:
        sign: LiteralString = " < " if values[0].startswith(">") else " > "
        duration = seconds(values[0].lstrip("<>") if len(values) == 1 else "")
        return column + sign + "%s", [Ago(duration)]

    return condition


def _condition(term: Term, fields: Mapping[str, Field]) -> Condition:
    if term.field not in fields:
        raise _wrong(f"there is no field {term.field!r} to filter by", fields)
    try:
        sql, values = fields[term.field](term.values)
    except ValueError as error:
        raise _wrong(
            f"{term.field}:{','.join(term.values)} does not fit: {term.field} takes {error}"
        ) from None
    return ("not coalesce(" + sql + ", false)" if term.is_excluded else sql), values


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _wrong(problem: str, fields: Mapping[str, Field] | None = None) -> Invalid:
    hint = f"Fields: {', '.join(fields)}." if fields else "Write field:value, such as status:failed age:<1d."
    return Invalid(problem, code="invalid_filter", hint=hint, details={"field": "filter"})
