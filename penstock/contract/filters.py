"""The filter language of every list: `status:failed type:publish tenant:acme age:<1d`.

Terms are separated by spaces, and all must match. A term is a field, a colon and a value; of several values
separated by commas, any one matches; a minus before the field excludes. A value that contains a space, a
comma or a quotation mark is quoted: `tenant:"Acme, Inc."`. Each list has its own fields.

A word without a field is `text:word`, in lists that have a text field.

Values always become bound parameters; the SQL around them is literal text of this package. Names of tenants
and ages are looked up in a separate query first, because with constants PostgreSQL plans the list's query
better.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString, TypeAlias
from uuid import UUID

from penstock.errors import Invalid
from penstock.postgres import db

Condition: TypeAlias = tuple[LiteralString, list[Any]]
"""A condition with a `%s` for each of its values."""

Field: TypeAlias = Callable[[Sequence[str]], Condition]
"""Turns the values of a term into a condition, or raises ValueError with what the field takes."""

_KNOWN: LiteralString = """\
select penstock._now(), t.name, t.id from (select) as one left join penstock.tenants t on t.name = any (%s)"""
_VALUE = r'(?:"(?:[^"\\]|\\.)*"|[^\s",]+)'
_TERM = re.compile(
    rf"\s*(?P<minus>-?)(?P<field>[A-Za-z_][A-Za-z0-9_.]*):(?P<values>{_VALUE}(?:,{_VALUE})*)(?=\s|$)"
)
_WORD = re.compile(r'\s*(?P<value>"(?:[^"\\]|\\.)*"|[^\s",:-][^\s",:]*)(?=\s|$)')
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_MOST_SEARCHED = 20
_LONGEST = 100 * 366 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Names:
    """A value to look up: the ids of tenants that are given by name or id."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ago:
    """A value to look up: the time that many seconds ago, by the database's clock."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Term:
    """One `field:value` of a filter."""

    field: str
    values: tuple[str, ...]
    is_excluded: bool = False
    is_bare: bool = False
    """Whether it is a word without a field, which stands for `text:word`."""


def parse(text: str) -> list[Term]:
    """The terms of a filter."""
    terms: list[Term] = []
    place = 0
    while text[place:].strip():
        found = _TERM.match(text, place)
        if found is None and (word := _WORD.match(text, place)) is not None:
            terms.append(Term("text", (_unquoted(word["value"]),), is_bare=True))
            place = word.end()
            continue
        if found is None:
            raise _invalid(f"{text[place:].split()[0]!r} is not a filter term")
        values = tuple(_unquoted(value) for value in re.findall(_VALUE, found["values"]))
        terms.append(Term(found["field"].lower(), values, bool(found["minus"])))
        place = found.end()
    return terms


def unresolved(text: str, fields: Mapping[str, Field]) -> list[Condition]:
    """The conditions of a filter, with values that still have to be looked up."""
    return [_condition(term, fields) for term in parse(text)]


async def conditions(database: db.Database, text: str, fields: Mapping[str, Field]) -> list[Condition]:
    """The conditions of a filter for a list with these fields."""
    found = unresolved(text, fields)
    values = [value for _, some in found for value in some]
    names = {name for value in values if isinstance(value, Names) for name in value.names}
    if not names and not any(isinstance(value, Ago) for value in values):
        return found
    rows = await db.rows(database, _KNOWN, (list(names),))
    ids = [(name, id) for _, name, id in rows if id is not None]

    def resolved(value: Any) -> Any:
        if isinstance(value, Names):
            return uuids(value.names) + [id for name, id in ids if name in value.names]
        return rows[0][0] - timedelta(seconds=value.seconds) if isinstance(value, Ago) else value

    return [(sql, [resolved(value) for value in some]) for sql, some in found]


def every(conditions: Sequence[Condition]) -> Condition:
    """These conditions joined by AND."""
    sql: LiteralString = "true"
    values: list[Any] = []
    for text, some in conditions:
        sql += " and (" + text + ")"
        values += some
    return sql, values


def quoted(value: str) -> str:
    """A value quoted for a filter, if necessary."""
    if re.fullmatch(r'[^\s",]+', value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def page(limit: int) -> int:
    """The given page size; raises Invalid if it is out of range."""
    if not 1 <= limit <= 1000:
        raise Invalid(
            f"limit must be between 1 and 1000 (got {limit})",
            code="invalid_limit",
            details={"field": "limit"},
        )
    return limit


def seconds(text: str) -> float:
    """The seconds of a duration such as `90s`, `2h30m`, `7d`."""
    parts = _DURATION.findall(text)
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or total > _LONGEST:
        raise ValueError("a duration such as 90s, 2h30m or 7d, of at most 100 years")
    return total


def uuids(values: Sequence[str]) -> list[UUID]:
    """The values that are ids."""
    return [UUID(value) for value in values if _UUID.fullmatch(value)]


# Kinds of fields


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
    """The column contains one of these texts, ignoring case."""

    def condition(values: Sequence[str]) -> Condition:
        return (
            "exists (select from unnest(%s::text[]) as part where strpos(lower("
            + column
            + "), lower(part)) > 0)",
            [list(values)],
        )

    return condition


def tenant(column: LiteralString) -> Field:
    """The column is the id of one of these tenants, each given by name or id."""

    def condition(values: Sequence[str]) -> Condition:
        return column + " = any (%s::uuid[])", [Names(tuple(values))]

    return condition


def age(column: LiteralString) -> Field:
    """The column is younger (`<1d`, or just `1d`) or older (`>1h`) than this, by the database's clock."""

    def condition(values: Sequence[str]) -> Condition:
        sign: LiteralString = " < " if values[0].startswith(">") else " > "
        duration = seconds(values[0].lstrip("<>") if len(values) == 1 else "")
        return column + sign + "%s", [Ago(duration)]

    return condition


@dataclass(frozen=True, slots=True)
class Search:
    """Jobs that `find_jobs` finds by this field."""

    field: str
    excluded: LiteralString | None = None
    """The condition that excludes, on the columns of the list. None: it cannot be excluded."""

    def __call__(self, values: Sequence[str]) -> Condition:
        if len(values) > _MOST_SEARCHED or not all(value.strip() for value in values):
            raise ValueError(f"up to {_MOST_SEARCHED} texts")
        # As an array, so that the list is read by its ids whatever the planner believes.
        return "id = any (array(select penstock.find_jobs(%s, %s)))", [self.field, list(values)]


@dataclass(frozen=True, slots=True)
class SearchPath:
    """Jobs that `find_jobs` finds by a path below this name: `params.title:otters`."""

    name: str

    def at(self, path: str) -> Search:
        """The field of one path."""
        return Search(f"{self.name}.{path}")

    def __call__(self, values: Sequence[str]) -> Condition:
        raise ValueError("a path and a value, such as params.title:otters")


def _field(term: Term, fields: Mapping[str, Field]) -> Field:
    name, _, path = term.field.partition(".")
    parent = fields.get(name)
    if path and isinstance(parent, SearchPath):
        return parent.at(path)
    if term.field in fields:
        return fields[term.field]
    if term.is_bare:
        raise _invalid(f"{term.values[0]!r} is not a filter term")
    raise _invalid(f"unknown filter field {term.field!r}", fields)


def _condition(term: Term, fields: Mapping[str, Field]) -> Condition:
    field = _field(term, fields)
    if term.is_excluded and isinstance(field, Search):
        if field.excluded is None:
            raise _invalid(f"filter field {term.field} cannot be excluded")
        return f"not coalesce({field.excluded}, false)", [[value.lower() for value in term.values]]
    try:
        sql, values = field(term.values)
    except ValueError as error:
        raise _invalid(f"filter field {term.field} takes {error} (got {','.join(term.values)!r})") from None
    return ("not coalesce(" + sql + ", false)" if term.is_excluded else sql), values


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _invalid(message: str, fields: Mapping[str, Field] | None = None) -> Invalid:
    hint = f"Fields: {', '.join(fields)}." if fields else "Write field:value, such as status:failed age:<1d."
    return Invalid(message, code="invalid_filter", hint=hint, details={"field": "filter"})
