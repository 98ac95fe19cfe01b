"""The query string of a list, as PostgREST has it: select, filters, order, limit and offset.

Values only ever become bound parameters, cast to the type of the column they are compared with. Names are
looked up in the catalogue; what is put into the statement is the catalogue's own spelling.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.api.rest.catalogue import Column
from penstock.api.rest.refusals import Refused, misread, shortened

Sql: TypeAlias = tuple[str, list[Any]]
"""A piece of a statement, with a `%s` for each of its values."""

MOST_FILTERS = 100
MOST_VALUES = 1000
"""Of one `in`."""
MOST_DEPTH = 8
MOST_USES = 3
"""Of one column, or of one place in a document: each has it in the answer once more."""
_LARGEST = 2**63 - 1

_GROUPS = ("and", "or", "not.and", "not.or")
WORDS = ("select", "order", "limit", "offset", *_GROUPS)
"""Parameters that are no column's name."""

_OPERATORS = {
    "eq": "=",
    "neq": "<>",
    "gt": ">",
    "gte": ">=",
    "lt": "<",
    "lte": "<=",
    "isdistinct": "is distinct from",
    "cs": "@>",
    "cd": "<@",
    "ov": "&&",
}
_IS = {
    "null": "is null",
    "not_null": "is not null",
    "true": "is true",
    "false": "is false",
    "unknown": "is unknown",
}
_DIRECTIONS = {"asc": " asc", "desc": " desc", "nullsfirst": " nulls first", "nullslast": " nulls last"}
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_STEP = re.compile(r"(->>?)([^->]+)")
_ALIASED = re.compile(r"(?P<alias>[^:\"]*):(?!:)(?P<field>.*)", re.DOTALL)
_GROUP = re.compile(r"(?P<not>not\.)?(?P<word>and|or)(?P<rest>\(.*\))", re.DOTALL)
_RANGE = re.compile(r"(?:items=)?(\d{1,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from."""

    sql: str
    columns: Mapping[str, Column]
    name: str
    is_scalar: bool = False
    """Whether a row is a bare value, in a column `value`."""


@dataclass(slots=True)
class Reading:
    """What of a source is wanted."""

    select: Sql
    where: Sql
    order: str
    limit: int | None
    offset: int
    order_values: list[Any] = field(default_factory=list[Any])


def read(
    source: Source, parameters: Sequence[tuple[str, str]], range_header: str | None, most_rows: int | None
) -> Reading:
    """Understand a query string. `most_rows` is what one answer holds at most."""
    if len(parameters) > MOST_FILTERS:
        raise misread(f"there are more than {MOST_FILTERS} parameters in the query string")
    single = dict(parameters)
    order, order_values = _order(source, single.get("order", ""))
    limit, offset = _page(single, range_header)
    if most_rows is not None:
        limit = most_rows if limit is None else min(limit, most_rows)
    return Reading(
        select=_select(source, single.get("select", "*")),
        where=_where(source, parameters),
        order=order,
        order_values=order_values,
        limit=limit,
        offset=offset,
    )


def statement(
    source: Source,
    reading: Reading,
    *,
    is_single: bool,
    is_stripped: bool,
    is_counted: bool,
    most_bytes: int | None,
) -> Sql:
    """Gives one row: the body, the number of rows in it, and the number there would be without a limit.

    A body of more than `most_bytes` is null.
    """
    where, where_values = reading.where
    select, select_values = reading.select
    page = f"select {select} from {source.sql} where {where}{reading.order} limit %s offset %s"  # noqa: S608 names from the catalogue
    # In the order of the text.
    values = [*select_values, *where_values, *reading.order_values, reading.limit, reading.offset, most_bytes]
    body = f"json_agg({'page.value' if source.is_scalar else 'page'})"
    if is_stripped:
        body = f"json_strip_nulls({body})"
    body = f"coalesce(({body} -> 0)::text, 'null')" if is_single else f"coalesce({body}::text, '[]')"
    total = "null"
    if is_counted:
        total = f"(select count(*) from {source.sql} where {where})"  # noqa: S608 the same
        values += where_values
    whole = f"select {body} as body, count(*) as count, {total} as total from page"  # noqa: S608 the same
    bounded = "case when octet_length(body) > %s::bigint then null else body end"
    return f"page as ({page}) select {bounded}, count, total from ({whole}) as whole", values  # noqa: S608 the same


# Filters


def _where(source: Source, parameters: Iterable[tuple[str, str]]) -> Sql:
    budget = _Budget()
    conditions: list[Sql] = []
    for name, value in parameters:
        if name in _GROUPS:
            conditions.append(_item(source, name + value, budget, MOST_DEPTH))
        elif name not in WORDS:
            conditions.append(_condition(source, name, value, budget, is_nested=False))
    return _joined(conditions, "and") if conditions else ("true", [])


class _Budget:
    """How many conditions are left to a request, however they are nested."""

    def __init__(self) -> None:
        self._left = MOST_FILTERS

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise misread(f"there are more than {MOST_FILTERS} filters")


def _item(source: Source, text: str, budget: _Budget, depth: int) -> Sql:
    """One part of `or=(…)`: a condition, or another group."""
    if depth == 0:
        raise misread(f"groups of filters are nested more than {MOST_DEPTH} deep")
    if (group := _GROUP.fullmatch(text)) is None:
        name, dot, expression = text.partition(".")
        if not dot:
            raise misread(f"failed to parse logic tree ({shortened(text)})")
        return _condition(source, name, expression, budget, is_nested=True)
    parts = [_item(source, part, budget, depth - 1) for part in _list(group["rest"])]
    if not parts:
        raise misread(f"failed to parse logic tree ({shortened(text)})")
    condition, values = _joined(parts, group["word"])
    return (f"not ({condition})" if group["not"] else condition), values


def _condition(source: Source, name: str, expression: str, budget: _Budget, *, is_nested: bool) -> Sql:
    budget.take()
    place = _Field.find(source, name)
    is_negated = expression.startswith("not.")
    operator, dot, value = expression.removeprefix("not.").partition(".")
    if not dot:
        raise misread(
            f'"failed to parse filter ({shortened(expression)})"',
            "a filter is an operator, a dot and a value",
        )
    condition, values = _comparison(place, operator, value, is_nested=is_nested)
    return (f"not ({condition})" if is_negated else condition), [*place.values, *values]


def _comparison(place: _Field, operator: str, value: str, *, is_nested: bool) -> Sql:
    if operator == "in":
        given = [_unquoted(part) for part in _list(value)]
        if len(given) > MOST_VALUES:
            raise misread(f"there are more than {MOST_VALUES} values in a filter")
        return f"{place.sql} = any (%s::{place.type}[])", [given]
    if is_nested:
        # Within a group a quoted value may hold commas and brackets.
        value = _unquoted(value)
    if operator == "is":
        if value.lower() not in _IS:
            raise misread(f"failed to parse filter (is.{shortened(value)})", f"is takes {', '.join(_IS)}")
        return f"{place.sql} {_IS[value.lower()]}", []
    if operator in ("like", "ilike"):
        return f"{place.sql} {operator} %s", [value.replace("*", "%")]
    if operator not in _OPERATORS:
        known = ", ".join([*_OPERATORS, "in", "is", "like", "ilike"])
        raise misread(f"failed to parse filter ({shortened(operator)}.…)", f"the operators are {known}")
    return f"{place.sql} {_OPERATORS[operator]} %s::{place.type}", [value]


def _joined(conditions: Sequence[Sql], word: str) -> Sql:
    text = f" {word} ".join(f"({condition})" for condition, _ in conditions)
    return text, [value for _, values in conditions for value in values]


# Columns


@dataclass(frozen=True, slots=True)
class _Field:
    """A column, or a part of a JSON document in one: `params`, `params->>topic`."""

    sql: str
    values: list[Any]
    type: str
    label: str

    @classmethod
    def find(cls, source: Source, text: str) -> _Field:
        name, arrow, _ = text.partition("->")
        column = source.columns.get(_unquoted(name.strip()))
        if column is None:
            # PostgreSQL's own words for it, in which nothing of the text becomes SQL.
            raise Refused(400, "42703", f"column {source.name}.{shortened(name)} does not exist")
        if not arrow:
            return cls(column.sql, [], column.type, column.name)
        steps = _STEP.findall(text[len(name) :])
        if "".join(sign + key for sign, key in steps) != text[len(name) :] or len(steps) > MOST_DEPTH:
            raise misread(f"failed to parse column ({shortened(text)})")
        if column.type not in ("json", "jsonb"):
            raise Refused(404, "42883", f"column {source.name}.{column.name} is not a JSON document")
        sql, values, type = column.sql, list[Any](), column.type
        for sign, key in steps:
            if type == "text":
                raise misread(f"failed to parse column ({shortened(text)})", "nothing comes after ->>")
            is_index = re.fullmatch(r"\d{1,9}", key) is not None
            sql = f"({sql} {sign} %s::{'integer' if is_index else 'text'})"
            values.append(int(key) if is_index else key)
            type = "text" if sign == "->>" else column.type
        return cls(sql, values, type, steps[-1][1])


def _select(source: Source, text: str) -> Sql:
    if source.is_scalar:
        if text.strip() not in ("", "*"):
            raise Refused(400, "42703", f"{source.name} gives values, which have no columns")
        return "value", []
    chosen: list[str] = []
    values: list[Any] = []
    uses = Counter[str]()
    for part in _few(text) or ("*",):
        if part.strip() == "*":
            # Once is enough, and a statement has room for so many columns only.
            chosen += ["*"] if "*" not in chosen else []
            continue
        if "(" in part:
            raise Refused(
                400,
                "PGRST200",
                f"Could not find a relationship in the schema cache for {shortened(part)}",
                hint="Tables are not embedded here: read them one by one, or call a function.",
            )
        alias = _ALIASED.fullmatch(part)
        name = alias["field"] if alias else part
        if "::" in name:
            raise misread(f"failed to parse select parameter ({shortened(part)})", "there are no casts here")
        place = _Field.find(source, name)
        uses[f"{place.sql} {place.values}"] += 1
        if uses[f"{place.sql} {place.values}"] > MOST_USES:
            raise misread(f"{shortened(name)} is selected more than {MOST_USES} times")
        label = alias["alias"].strip() if alias else place.label
        if not _LABEL.fullmatch(label):
            raise misread(f"failed to parse select parameter ({shortened(part)})", "give it a plain name")
        chosen.append(f'{place.sql} as "{label}"')
        values += place.values
    return ", ".join(chosen), values


def _order(source: Source, text: str) -> tuple[str, list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    for term in _few(text):
        name, *words = term.split(".")
        place = _Field.find(source, name)
        directions = [_DIRECTIONS.get(word) for word in words]
        kinds = [word.startswith("nulls") for word in words]
        if None in directions or kinds not in ([], [False], [True], [False, True]):
            raise misread(
                f'"failed to parse order ({shortened(text)})"',
                "asc or desc may follow a column, then nullsfirst or nullslast",
            )
        terms.append(place.sql + "".join(direction or "" for direction in directions))
        values += place.values
    return (" order by " + ", ".join(terms) if terms else ""), values


# Pages


def _page(single: Mapping[str, str], range_header: str | None) -> tuple[int | None, int]:
    limit = _number(single["limit"], "Limit") if "limit" in single else None
    offset = _number(single["offset"], "Offset") if "offset" in single else 0
    found = _RANGE.fullmatch(range_header.strip()) if range_header else None
    if found is None or "limit" in single or "offset" in single:
        return limit, offset
    first, last = int(found[1]), int(found[2]) if found[2] else None
    if last is not None and last < first:
        raise out_of_range(
            "The lower boundary must be lower than or equal to the upper boundary in the Range header."
        )
    return (None if last is None else last - first + 1), first


def out_of_range(details: str) -> Refused:
    """A page that cannot be."""
    return Refused(416, "PGRST103", "Requested range not satisfiable", details=details)


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or int(text) > _LARGEST:
        raise misread(f"failed to parse {what.lower()} ({shortened(text)})", "it is a whole number")
    if int(text) < 0:
        raise out_of_range(f"{what} should be greater than or equal to zero.")
    return int(text)


# Lists


def _list(text: str) -> list[str]:
    """The parts of `(a,"b,c",d)`."""
    if not (text.startswith("(") and text.endswith(")") and len(text) >= 2):
        raise misread(f"failed to parse list ({shortened(text)})", "a list is in brackets")
    return list(_split(text[1:-1])) if text != "()" else []


def _few(text: str) -> list[str]:
    """The parts of a list of columns, which is not meant to be long."""
    parts = list(_split(text)) if text.strip() else []
    if len(parts) > MOST_FILTERS:
        raise misread(f"there are more than {MOST_FILTERS} columns")
    return parts


def _split(text: str) -> Iterator[str]:
    """Parts between commas that are in no quotation marks, brackets or braces."""
    start = depth = 0
    is_quoted = is_escaped = False
    for place, character in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif is_quoted and character == "\\":
            is_escaped = True
        elif character == '"':
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif character in "({":
            depth += 1
        elif character in ")}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:place]
            start = place + 1
        if depth < 0:
            break
    if is_quoted or depth != 0:
        raise misread(f"failed to parse ({shortened(text)})", "quotation marks and brackets come in pairs")
    yield text[start:]


def _unquoted(text: str) -> str:
    is_quoted = len(text) >= 2 and text[0] == text[-1] == '"'
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if is_quoted else text
