"""Query strings in PostgREST's syntax: select, filters, order, limit and offset.

Values always become bound parameters, cast to the type of their column. Names are looked up in the catalogue,
and the statement contains the catalogue's quoted names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.api.rest.catalogue import Column
from penstock.api.rest.errors import RestError, parse_error, shortened

Sql: TypeAlias = tuple[str, list[Any]]
"""A part of a statement, with a `%s` for each of its values."""

MOST_FILTERS = 100
MOST_VALUES = 1000
"""Values in one `in` filter."""
MOST_DEPTH = 8
PATTERN_COST = 1.0
FILTER_COST = 0.1
"""Requests that a filter counts as: one with a pattern (like, ilike), and any other."""
MOST_USES = 3
"""How often a column or JSON path can be selected, because each use repeats it in the response."""
_LARGEST = 2**63 - 1

_GROUPS = ("and", "or", "not.and", "not.or")
WORDS = ("select", "order", "limit", "offset", *_GROUPS)
"""Parameters that are not column names."""

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
class RowSource:
    """The relation or function result to read rows from."""

    sql: str
    columns: Mapping[str, Column]
    name: str
    is_scalar: bool = False
    """Whether a row is a single value in a column `value`."""


@dataclass(slots=True)
class Query:
    """A parsed query string."""

    select: Sql
    where: Sql
    order: str
    limit: int | None
    offset: int
    order_values: list[Any] = field(default_factory=list[Any])
    cost: float = 0
    """Requests that the filters count as, on top of one: patterns are compared with every row."""
    columns: list[str] = field(default_factory=list[str])
    """The columns that select and order use, quoted; `*` for all."""


def read(
    source: RowSource, parameters: Sequence[tuple[str, str]], range_header: str | None, most_rows: int | None
) -> Query:
    """Parse a query string. `most_rows` is the maximum number of rows in one response."""
    if len(parameters) > MOST_FILTERS:
        raise parse_error(f"the query string has more than {MOST_FILTERS} parameters")
    single = dict(parameters)
    columns: list[str] = []
    order, order_values = _order(source, single.get("order", ""), columns)
    limit, offset = _page(single, range_header)
    if most_rows is not None:
        limit = most_rows if limit is None else min(limit, most_rows)
    budget = Budget()
    return Query(
        select=_select(source, single.get("select", "*"), columns),
        where=filters(source, parameters, budget) or ("true", []),
        cost=budget.cost,
        order=order,
        order_values=order_values,
        limit=limit,
        offset=offset,
        columns=list(dict.fromkeys(columns)),
    )


def statement(
    source: RowSource,
    query: Query,
    *,
    is_single: bool,
    is_stripped: bool,
    is_counted: bool,
    most_bytes: int | None,
) -> Sql:
    """Build a statement that returns one row: the body, its number of rows, and the total without a limit.

    A body larger than `most_bytes` is null.
    """
    where, where_values = query.where
    select, select_values = query.select
    page = f"select {select} from {source.sql} where {where}{query.order} limit %s offset %s"  # noqa: S608 names from the catalogue
    # In the order of the placeholders.
    values = [*select_values, *where_values, *query.order_values, query.limit, query.offset, most_bytes]
    # The whole row, also of a relation that has a column `page`.
    body = f"json_agg({'page.value' if source.is_scalar else 'page.*'})"
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


def filters(source: RowSource, parameters: Iterable[tuple[str, str]], budget: Budget) -> Sql | None:
    """The condition of all filters of a query string; None if it has none."""
    conditions: list[Sql] = []
    for name, value in parameters:
        if name in _GROUPS:
            conditions.append(_item(source, name + value, budget, MOST_DEPTH))
        elif name not in WORDS:
            conditions.append(_condition(source, name, value, budget, is_nested=False))
    return _joined(conditions, "and") if conditions else None


class Budget:
    """Counts the conditions of a request across all nested groups, and what they cost."""

    def __init__(self) -> None:
        self._left = MOST_FILTERS
        self.cost = 0.0

    def take(self, expression: str) -> None:
        self._left -= 1
        is_pattern = expression.removeprefix("not.").startswith(("like.", "ilike."))
        self.cost += PATTERN_COST if is_pattern else FILTER_COST
        if self._left < 0:
            raise parse_error(f"the query string has more than {MOST_FILTERS} filters")


def _item(source: RowSource, text: str, budget: Budget, depth: int) -> Sql:
    """Parse one item of `or=(…)`: a condition or a nested group."""
    if depth == 0:
        raise parse_error(f"filter groups are nested more than {MOST_DEPTH} levels deep")
    if (group := _GROUP.fullmatch(text)) is None:
        name, dot, expression = text.partition(".")
        if not dot:
            raise parse_error(f"failed to parse logic tree ({shortened(text)})")
        return _condition(source, name, expression, budget, is_nested=True)
    parts = [_item(source, part, budget, depth - 1) for part in _list(group["rest"])]
    if not parts:
        raise parse_error(f"failed to parse logic tree ({shortened(text)})")
    condition, values = _joined(parts, group["word"])
    return (f"not ({condition})" if group["not"] else condition), values


def _condition(source: RowSource, name: str, expression: str, budget: Budget, *, is_nested: bool) -> Sql:
    budget.take(expression)
    column = _Field.find(source, name)
    is_negated = expression.startswith("not.")
    operator, dot, value = expression.removeprefix("not.").partition(".")
    if not dot:
        raise parse_error(
            f'"failed to parse filter ({shortened(expression)})"',
            "a filter has the form operator.value",
        )
    condition, values = _comparison(column, operator, value, is_nested=is_nested)
    return (f"not ({condition})" if is_negated else condition), [*column.values, *values]


def _comparison(column: _Field, operator: str, value: str, *, is_nested: bool) -> Sql:
    if operator == "in":
        given = [_unquoted(part) for part in _list(value)]
        if len(given) > MOST_VALUES:
            raise parse_error(f"the filter has more than {MOST_VALUES} values")
        return f"{column.sql} = any (%s::{column.type}[])", [given]
    if is_nested:
        # Within a group, quoted values may contain commas and parentheses.
        value = _unquoted(value)
    if operator == "is":
        if value.lower() not in _IS:
            raise parse_error(
                f"failed to parse filter (is.{shortened(value)})", f"is accepts {', '.join(_IS)}"
            )
        return f"{column.sql} {_IS[value.lower()]}", []
    if operator in ("like", "ilike"):
        return f"{column.sql} {operator} %s", [value.replace("*", "%")]
    if operator not in _OPERATORS:
        known = ", ".join([*_OPERATORS, "in", "is", "like", "ilike"])
        raise parse_error(
            f"failed to parse filter ({shortened(operator)}.…)", f"supported operators: {known}"
        )
    return f"{column.sql} {_OPERATORS[operator]} %s::{column.type}", [value]


def _joined(conditions: Sequence[Sql], word: str) -> Sql:
    text = f" {word} ".join(f"({condition})" for condition, _ in conditions)
    return text, [value for _, values in conditions for value in values]


# Columns


@dataclass(frozen=True, slots=True)
class _Field:
    """A column, or a path into a JSON column: `params`, `params->>topic`."""

    sql: str
    values: list[Any]
    type: str
    label: str
    column: str
    """The quoted name of the column."""

    @classmethod
    def find(cls, source: RowSource, text: str) -> _Field:
        name, arrow, _ = text.partition("->")
        column = source.columns.get(_unquoted(name.strip()))
        if column is None:
            # PostgreSQL's own message, without putting the name into SQL.
            raise RestError(400, "42703", f"column {source.name}.{shortened(name)} does not exist")
        if not arrow:
            return cls(column.sql, [], column.type, column.name, column.sql)
        steps = _STEP.findall(text[len(name) :])
        if "".join(sign + key for sign, key in steps) != text[len(name) :] or len(steps) > MOST_DEPTH:
            raise parse_error(f"failed to parse column ({shortened(text)})")
        if column.type not in ("json", "jsonb"):
            raise RestError(404, "42883", f"column {source.name}.{column.name} is not JSON")
        sql, values, type = column.sql, list[Any](), column.type
        for sign, key in steps:
            if type == "text":
                raise parse_error(f"failed to parse column ({shortened(text)})", "->> must be the last step")
            is_index = re.fullmatch(r"\d{1,9}", key) is not None
            sql = f"({sql} {sign} %s::{'integer' if is_index else 'text'})"
            values.append(int(key) if is_index else key)
            type = "text" if sign == "->>" else column.type
        return cls(sql, values, type, steps[-1][1], column.sql)


def _select(source: RowSource, text: str, columns: list[str]) -> Sql:
    if source.is_scalar:
        if text.strip() not in ("", "*"):
            raise RestError(400, "42703", f"{source.name} returns a scalar, which has no columns")
        return "value", []
    chosen: list[str] = []
    values: list[Any] = []
    uses = Counter[str]()
    for part in _column_list(text) or ("*",):
        if part.strip() == "*":
            # Select all columns once: PostgreSQL limits the number of columns.
            chosen += ["*"] if "*" not in chosen else []
            columns.append("*")
            continue
        if "(" in part:
            raise RestError(
                400,
                "PGRST200",
                f"Could not find a relationship in the schema cache for {shortened(part)}",
                hint="Embedding is not supported: read the tables separately, or call a function.",
            )
        alias = _ALIASED.fullmatch(part)
        name = alias["field"] if alias else part
        if "::" in name:
            raise parse_error(
                f"failed to parse select parameter ({shortened(part)})", "casts are not supported"
            )
        column = _Field.find(source, name)
        columns.append(column.column)
        uses[f"{column.sql} {column.values}"] += 1
        if uses[f"{column.sql} {column.values}"] > MOST_USES:
            raise parse_error(f"{shortened(name)} is selected more than {MOST_USES} times")
        label = alias["alias"].strip() if alias else column.label
        if not _LABEL.fullmatch(label):
            raise parse_error(
                f"failed to parse select parameter ({shortened(part)})", "the alias must be a plain name"
            )
        chosen.append(f'{column.sql} as "{label}"')
        values += column.values
    return ", ".join(chosen), values


def _order(source: RowSource, text: str, columns: list[str]) -> tuple[str, list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    for term in _column_list(text):
        name, *words = term.split(".")
        column = _Field.find(source, name)
        columns.append(column.column)
        directions = [_DIRECTIONS.get(word) for word in words]
        kinds = [word.startswith("nulls") for word in words]
        if None in directions or kinds not in ([], [False], [True], [False, True]):
            raise parse_error(
                f'"failed to parse order ({shortened(text)})"',
                "use column.asc or column.desc, optionally followed by .nullsfirst or .nullslast",
            )
        terms.append(column.sql + "".join(direction or "" for direction in directions))
        values += column.values
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


def out_of_range(details: str) -> RestError:
    """An error for an unsatisfiable range."""
    return RestError(416, "PGRST103", "Requested range not satisfiable", details=details)


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or int(text) > _LARGEST:
        raise parse_error(f"failed to parse {what.lower()} ({shortened(text)})", "it must be an integer")
    if int(text) < 0:
        raise out_of_range(f"{what} should be greater than or equal to zero.")
    return int(text)


# Lists


def _list(text: str) -> list[str]:
    """Split a list such as `(a,"b,c",d)`."""
    if not (text.startswith("(") and text.endswith(")") and len(text) >= 2):
        raise parse_error(f"failed to parse list ({shortened(text)})", "a list must be in parentheses")
    return list(_split(text[1:-1])) if text != "()" else []


def column_names(source: RowSource, text: str) -> list[str]:
    """Parse a list of plain columns, such as `"a",b`. Raises RestError for an unknown one."""
    names = [_unquoted(part.strip()) for part in _column_list(text)]
    for name in names:
        if name not in source.columns:
            raise unknown_column(source, name)
    return list(dict.fromkeys(names))


def unknown_column(source: RowSource, name: str) -> RestError:
    """An error for a column of a write that the table does not have."""
    text = f"Could not find the '{shortened(name)}' column of '{source.name}' in the schema cache"
    return RestError(400, "PGRST204", text)


def _column_list(text: str) -> list[str]:
    """Split a list of columns, and limit its length."""
    parts = list(_split(text)) if text.strip() else []
    if len(parts) > MOST_FILTERS:
        raise parse_error(f"the list has more than {MOST_FILTERS} columns")
    return parts


def _split(text: str) -> Iterator[str]:
    """Split at commas outside of quotation marks, parentheses and braces."""
    start = depth = 0
    is_quoted = is_escaped = False
    for position, character in enumerate(text):
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
            yield text[start:position]
            start = position + 1
        if depth < 0:
            break
    if is_quoted or depth != 0:
        raise parse_error(f"failed to parse ({shortened(text)})", "unbalanced quotation marks or parentheses")
    yield text[start:]


def _unquoted(text: str) -> str:
    is_quoted = len(text) >= 2 and text[0] == text[-1] == '"'
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if is_quoted else text
