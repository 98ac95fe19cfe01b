"""Form fields for the params of a job type, made from the JSON schema of its signature."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeAlias, cast

from penstock.dashboard.formatting import HIDDEN, is_secret, redacted, restored
from penstock.dashboard.forms import Form

Kind: TypeAlias = Literal["text", "number", "boolean", "choice", "lines", "json"]

WHOLE = ""
"""The name of the one field of a type without a usable schema: all params as a JSON object."""


@dataclass(frozen=True, slots=True)
class ParamField:
    """One parameter as a field of a form."""

    name: str
    kind: Kind = "json"
    is_required: bool = False
    is_nullable: bool = False
    text: str = ""
    """What the form shows in it."""
    placeholder: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()

    @property
    def input_name(self) -> str:
        """Its name in the posted form. The prefix keeps params from hiding other fields."""
        return f"param.{self.name}"

    @property
    def is_secret(self) -> bool:
        """Whether its value is hidden while it is typed."""
        return self.kind == "text" and is_secret(self.name)


def fields_of(schema: dict[str, Any] | None, params: dict[str, Any] | None = None) -> list[ParamField]:
    """The fields of a type, filled in with these params. Secrets are hidden."""
    shown = cast("dict[str, Any]", redacted(params or {}))
    properties: dict[str, Any] = (schema or {}).get("properties", {})
    if schema is None or (schema.get("additionalProperties") and not properties):
        return [ParamField(WHOLE, text=_document(shown) if shown else "")]
    required = schema.get("required", [])
    found = [
        _field(name, each, name in required, schema.get("$defs", {})) for name, each in properties.items()
    ]
    return [
        replace(field, text=_text(field.kind, shown[field.name])) if field.name in shown else field
        for field in found
    ]


def filled(fields: list[ParamField], form: Form) -> list[ParamField]:
    """The same fields with what was posted."""
    return [replace(field, text=form.get(field.input_name)) for field in fields]


def values_of(
    fields: list[ParamField], original: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The params that filled fields stand for, and what is wrong with the text of which field.

    Hidden values are those of the original, for a job that is run again.
    """
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields:
        try:
            if not field.text:
                # An empty field is the default. A required parameter without a value is reported later.
                if field.is_required and field.is_nullable:
                    values[field.name] = None
                continue
            value = _value(field)
        except ValueError as error:
            problems[field.name] = str(error)
            continue
        known = original if field.name == WHOLE else (original or {}).get(field.name)
        value = restored(value, known)
        values |= value if field.name == WHOLE else {field.name: value}
    return values, problems


def _field(name: str, schema: dict[str, Any], is_required: bool, types: dict[str, Any]) -> ParamField:
    default = schema.get("default")
    whole = schema
    schema, is_nullable = _resolved(schema, types)
    kind: Kind = "json"
    choices: tuple[str, ...] = ()
    match schema:
        case {"enum": [str(), *_] as options}:
            kind, choices = "choice", tuple(map(str, cast("list[Any]", options)))
        case {"type": "string"}:
            kind = "text"
        case {"type": "integer" | "number"}:
            kind = "number"
        case {"type": "boolean"}:
            kind, choices = "boolean", ("true", "false")
        case {"type": "array", "items": {"type": "string"}}:
            kind = "lines"
        case _:
            pass
    return ParamField(
        name,
        kind,
        is_required,
        is_nullable,
        placeholder=_text(kind, redacted({name: default})[name]) if default is not None else "",
        help=str(whole.get("description") or schema.get("description") or "")[:300],
        choices=choices,
    )


def _resolved(schema: dict[str, Any], types: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The schema behind a reference and without null, and whether null is allowed."""
    is_nullable = False
    options: list[dict[str, Any]] = schema.get("anyOf", [])
    some = [each for each in options if each.get("type") != "null"]
    if len(some) == 1 and len(options) == 2:
        schema, is_nullable = some[0], True
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return types.get(reference, schema), is_nullable


def _text(kind: Kind, value: Any) -> str:
    if kind == "lines" and isinstance(value, list):
        lines = cast("list[Any]", value)
        # Items with line breaks, or of another type, are only unambiguous as JSON.
        if lines and all(
            isinstance(line, str) and line.strip() == line and "\n" not in line for line in lines
        ):
            return "\n".join(cast("list[str]", lines))
    if value is None:
        return ""
    return value if isinstance(value, str) and kind in ("text", "choice") else _document(value)


def _value(field: ParamField) -> Any:
    match field.kind:
        case "text" | "choice":
            return field.text
        case "boolean":
            if field.text not in field.choices:
                raise ValueError("choose true or false")
            return field.text == "true"
        case "number":
            value = _parsed(field.text, "write a number such as 12 or 2.5")
            if field.text != HIDDEN and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError("write a number such as 12 or 2.5")
            return value
        case "lines" if not field.text.startswith("["):
            return [line.strip() for line in field.text.splitlines() if line.strip()]
        case _:
            value = _parsed(field.text, "write JSON: text needs quotation marks")
            if field.name == WHOLE and not isinstance(value, dict):
                raise ValueError("write a JSON object such as {}")
            return cast("Any", value)


def _parsed(text: str, hint: str) -> Any:
    if text == HIDDEN:
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ValueError(hint) from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _document(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2 if isinstance(value, dict | list) else None)
