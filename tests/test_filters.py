"""The filter language."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.contract import filters
from penstock.contract.filters import Term
from penstock.errors import Invalid


def test_a_filter_is_parsed_into_terms() -> None:
    assert filters.parse("") == []
    assert filters.parse('  status:failed,queued  -type:"a, \\"b\\""\tAGE:<1d ') == [
        Term("status", ("failed", "queued")),
        Term("type", ('a, "b"',), is_excluded=True),
        Term("age", ("<1d",)),
    ]
    assert filters.parse("error:a:b error:it's") == [Term("error", ("a:b",)), Term("error", ("it's",))]


@pytest.mark.parametrize(
    "text", ["-x", ":", "x:", "x:,", "x:a,", 'x:"', 'x:"a"b', "--x:1", "a-b:1", "x :1", "x: 1"]
)
def test_invalid_filters_are_rejected(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        filters.parse(text)
    assert refused.value.code == "invalid_filter"


def test_word_without_a_field_is_text_where_the_list_has_text() -> None:
    assert filters.parse('otters "at dawn" a:b') == [
        Term("text", ("otters",), is_bare=True),
        Term("text", ("at dawn",), is_bare=True),
        Term("a", ("b",)),
    ]
    assert filters.unresolved("otters", {"text": filters.words("text")}) == [
        ("text = any (%s)", [["otters"]])
    ]
    with pytest.raises(Invalid, match="'otters' is not a filter term"):
        filters.unresolved("otters", {"status": filters.words("status")})


@given(st.text(min_size=1))
def test_any_value_can_be_quoted(value: str) -> None:
    assert filters.parse(f"type:{filters.quoted(value)}") == [Term("type", (value,))]


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with contextlib.suppress(Invalid):
        filters.unresolved(text, {"status": filters.words("status"), "age": filters.age("created_at")})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("2h30m", 9000), ("1.5h", 5400), ("1w", 604800), ("0s", 0)],
)
def test_durations_are_parsed(text: str, expected: float) -> None:
    assert filters.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "1", "s", "1x", "-1s", "1 s", "1s!", "9999999w", "1e3s"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="a duration"):
        filters.seconds(text)


def test_values_are_bound_parameters() -> None:
    fields = {
        "type": filters.words("type"),
        "error": filters.part("message"),
        "tenant": filters.tenant("tenant_id"),
        "age": filters.age("created_at"),
    }
    sql, values = filters.every(filters.unresolved("type:evil -error:evil tenant:evil,worse age:>2m", fields))
    assert "evil" not in sql
    assert sql.count("%s") == len(values)
    assert values == [["evil"], ["evil"], filters.Names(("evil", "worse")), filters.Ago(120)]


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_page_sizes_out_of_range_are_rejected(limit: int) -> None:
    with pytest.raises(Invalid):
        filters.page(limit)
