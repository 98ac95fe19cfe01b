"""The results of a handler's steps, as JSON and back: the first run and later ones see the same value."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, get_type_hints

import pydantic
import pydantic_core

from penstock.contract import tasks
from penstock.errors import Invalid


def dump(function: Callable[..., Any], value: Any) -> Any:
    """The result as JSON that PostgreSQL can store."""
    adapter = _annotated(function)
    try:
        plain = (
            pydantic_core.to_jsonable_python(value)
            if adapter is None
            else adapter.dump_python(value, mode="json")
        )
        text = json.dumps(tasks.clean(plain), allow_nan=False)
    except (ValueError, TypeError, RecursionError, pydantic_core.PydanticSerializationError) as error:
        raise Invalid(f"the result of the step cannot be stored: {error}", code="bad_step") from error
    return json.loads(text)


def load(function: Callable[..., Any], stored: Any) -> Any:
    """The stored result, as the type that the function's return annotation names."""
    adapter = _annotated(function)
    return stored if adapter is None else adapter.validate_python(stored, strict=False)


def _annotated(function: Callable[..., Any]) -> pydantic.TypeAdapter[Any] | None:
    # Functions without an annotation are not cached: a lambda would be kept, with what it refers to.
    return _adapter(function) if "return" in getattr(function, "__annotations__", {}) else None


@lru_cache(maxsize=1000)
def _adapter(function: Callable[..., Any]) -> pydantic.TypeAdapter[Any] | None:
    try:
        hint = get_type_hints(function).get("return", Any)
        return None if hint is Any else pydantic.TypeAdapter(hint)
    except (NameError, TypeError, AttributeError, pydantic.errors.PydanticSchemaGenerationError):
        # Without an annotation that pydantic knows, the result is plain JSON.
        return None
