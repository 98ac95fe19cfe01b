"""The form that maps the columns of a table to those that a bulk type expects."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import Invalid

PREFIX = "map."
"""Fields of the form: `map.EXPECTED` has the name of the column of the table."""


def renames(mapping: Mapping[str, str]) -> dict[str, str]:
    """The `rename` option of a table for the posted fields. Raises Invalid for a column used twice."""
    chosen: dict[str, str] = {}
    for field, column in mapping.items():
        name = field.removeprefix(PREFIX)
        if not column or column == name:
            continue
        if column in chosen:
            raise Invalid(
                f"column {column!r} is chosen for both {chosen[column]} and {name}",
                code="invalid_form",
                hint="Choose each column once.",
            )
        chosen[column] = name
    return chosen
