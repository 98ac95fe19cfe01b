"""Field types of request bodies and queries."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
)

M = TypeVar("M", bound=BaseModel)

_AMOUNT = r"^[0-9]{1,12}(\.[0-9]{1,20})?$"
_MOST = 10**12
_INSTANT = r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)"


class RequestModel(BaseModel):
    """A request body or query that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


def with_fields_of(source: type, **others: Any) -> Callable[[type[M]], type[M]]:
    """Add the fields of a dataclass to a response; `others` have another type than there."""

    def decorate(base: type[M]) -> type[M]:
        fields: dict[str, Any] = get_type_hints(source) | others
        fields = {field.name: (fields[field.name], ...) for field in dataclasses.fields(source)}
        return create_model(
            base.__name__, __base__=base, __doc__=base.__doc__, __module__=base.__module__, **fields
        )

    return decorate


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("Input should be a number")
    return value


def _instant(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(_INSTANT, value):
        raise ValueError("Input should be a time with a time zone, such as 2026-01-31T09:00:00Z")
    return value


def _amount(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and not re.fullmatch(_AMOUNT, value)):
        raise ValueError("Input should be an amount such as 12.50")
    return value


NUMERIC = BeforeValidator(_number)
"""For integers, after their bounds: rejects booleans and strings, accepts 3.0 as 3, as JSON does."""

Instant = Annotated[AwareDatetime, BeforeValidator(_instant)]
"""An RFC 3339 time. Bare numbers are rejected, because they could mean seconds or milliseconds."""

Money = Annotated[
    Decimal,
    Field(ge=0, le=_MOST),
    BeforeValidator(_amount),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _AMOUNT},
                {"type": "number", "minimum": 0, "maximum": _MOST},
            ],
            "examples": ["12.50"],
        }
    ),
]
"""An amount in the base currency: a string, which is exact, or a number."""

MoneyText = Annotated[
    Decimal,
    Field(ge=0, le=_MOST),
    BeforeValidator(_amount),
    WithJsonSchema({"type": "string", "pattern": _AMOUNT, "examples": ["12.50"]}),
]
"""An amount in a query string."""

StopAfter = Annotated[
    str, Field(pattern=r"^([1-9][0-9]{0,8}|(100|[1-9]?[0-9](\.[0-9]{1,3})?)%)$", examples=["20", "5%"])
]
"""The number or percentage of failed tasks after which a job pauses."""
