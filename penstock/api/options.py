"""Request fields for the options of jobs, bulk jobs and tasks, from the table in `penstock.types.options`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Required, TypeAlias, TypeVar, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, create_model
from typing_extensions import TypedDict

from penstock.api.fields import NUMERIC, Instant, Money, MoneyText, StopAfter
from penstock.types import Amount
from penstock.types import options as table

M = TypeVar("M", bound=BaseModel)
D = TypeVar("D")
_Types: TypeAlias = dict[Any, Any]
_TIME_TEXT: Any = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _nullable(types: _Types) -> _Types:
    return {kind | None: written | None for kind, written in types.items()}


# How a type of the table is written in a JSON body, where that is stricter than the type itself.
_IN_BODY = _nullable(
    {
        UUID | str: UUID,
        Amount: Money,
        datetime: Instant,
        float: StrictFloat,
        bool: StrictBool,
        table.StopAfter: StopAfter,
    }
)
# In a query everything is text.
_IN_QUERY = _IN_BODY | _nullable({Amount: MoneyText, float: float, bool: bool})
# Of tasks only types are checked: `start_job` checks the rules and words the errors.
_IN_TASK = _IN_BODY | _nullable({datetime: _TIME_TEXT, bool: bool})


def _written(kind: Any, types: _Types) -> Any:
    if kind in types:
        return types[kind]
    member: Any
    for member in get_args(kind):
        if get_origin(member) is Annotated and get_args(member)[0] is int and types is not _IN_QUERY:
            number: Any = Annotated[member, NUMERIC]
            return number | None
    return kind


def with_options(options: type, *, in_query: bool = False) -> Callable[[type[M]], type[M]]:
    """Add the options of a table as fields to a request."""

    def decorate(base: type[M]) -> type[M]:
        types = _IN_QUERY if in_query else _IN_BODY
        fields: dict[str, Any] = {
            name: (_written(kind, types), Field(None, description=option.help))
            for name, (kind, option) in table.table_of(options).items()
            if option.http
        }
        return create_model(
            base.__name__, __base__=base, __doc__=base.__doc__, __module__=base.__module__, **fields
        )

    return decorate


def as_task_request(base: type[D]) -> type[D]:
    """Make a request of the fields of a task."""
    lines = table.table_of(table.TaskOptions).items()
    fields: dict[str, Any] = {name: _written(kind, _IN_TASK) for name, (kind, _) in lines}
    fields["kind"] = Required[str]
    request: Any = TypedDict(base.__name__, fields, total=False)  # pyright: ignore
    request.__doc__, request.__module__ = base.__doc__, base.__module__
    request.__pydantic_config__ = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})
    return request
