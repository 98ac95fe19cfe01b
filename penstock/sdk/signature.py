"""A task's input and output as JSON, checked against the parameters and return type of its function."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Never, NoReturn, NotRequired, cast, get_type_hints

import pydantic
import pydantic_core
from typing_extensions import TypedDict

from penstock.contract import tasks
from penstock.errors import Invalid
from penstock.sdk.context import Context

_PLAIN = (str, int, bool, type(None))
# Text that is a number is accepted as one.
_SAMPLES: dict[str, Any] = {
    "string": "1",
    "number": 1,
    "boolean": True,
    "null": None,
    "array": [],
    "object": {},
}


class Step:
    """A placeholder for the output of a task that has not run.

    The body of a job gets one for each task that it draws; `Step(key)` stands for a task that the job has.
    """

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"Step({self._key!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise Invalid(
            f"step {self._key!r} has no output yet: a job's body only draws the graph",
            code="step_used",
            hint="Pass the step as an argument to another task, and use its output there.",
        )

    __bool__ = __str__ = __format__ = __iter__ = __len__ = __getitem__ = __contains__ = __call__ = _refuse
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __mul__ = __mod__ = _refuse
    __int__ = __float__ = __index__ = _refuse
    __hash__ = object.__hash__


def key_of(step: Step) -> str:
    """The key of a step's task. (A function, because reading an attribute of a step raises an error.)"""
    return step._key  # pyright: ignore[reportPrivateUsage]


def encode(value: Any, after: list[str]) -> Any:
    """A value as JSON; each step in it becomes a reference, and its key is added to `after`."""

    def reference(item: Any) -> Any:
        if not isinstance(item, Step):
            raise TypeError(f"a {type(item).__name__} cannot be stored as JSON")
        after.append(key_of(item))
        return {"$from": key_of(item)}

    return pydantic_core.to_jsonable_python(value, fallback=reference)


def decode(value: Any, outputs: dict[str, Any]) -> Any:
    """The value with references replaced by outputs."""
    match value:
        case {"$from": str() as key} if len(cast("dict[str, Any]", value)) == 1 and key in outputs:
            return tasks.load(outputs[key])
        case dict():
            return {key: decode(item, outputs) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [decode(item, outputs) for item in cast("list[Any]", value)]
        case _:
            return value


class Signature:
    """A function's parameters and return type."""

    def __init__(self, function: Callable[..., Any], *, is_handler: bool, without: str | None = None) -> None:
        self._name = function.__name__
        hints = _hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        self.takes_context = bool(parameters) and hints.get(parameters[0].name) is Context
        parameters = parameters[1:] if self.takes_context else parameters
        parameters = [p for p in parameters if p.name != without]
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.POSITIONAL_ONLY):
                raise Invalid(
                    f"{self._name}: parameter {p.name} cannot be passed by name",
                    hint="Inputs are stored by name: use no *args and no positional-only parameters.",
                )
            if is_handler and p.name == "after":
                # The input stores the outputs of the task's dependencies under this name.
                raise Invalid(
                    f"{self._name}: no parameter may be named 'after', because Penstock uses that name"
                )
        self._parameters = inspect.Signature(parameters)
        self._rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        fields: dict[str, Any] = {
            p.name: hints.get(p.name, Any) if p.default is p.empty else NotRequired[hints.get(p.name, Any)]
            for p in parameters
            if p.name != self._rest
        }
        try:
            self._input = _adapter(self._name, fields, takes_rest=self._rest is not None)
            self._output = _output_adapter(hints.get("return", Any)) if is_handler else None
        except (pydantic.PydanticUserError, pydantic_core.SchemaError) as error:
            raise Invalid(f"{self._name}: {str(error).splitlines()[0]}") from error

    @property
    def params(self) -> dict[str, Any]:
        """What SQL checks of the params of a schedule: names, and JSON types that a param always refuses."""
        fields = [p for p in self._parameters.parameters.values() if p.name != self._rest]
        names = [p.name for p in fields]
        try:
            properties: dict[str, Any] = self._input.json_schema().get("properties", {})
        except pydantic.PydanticUserError:
            # A type without a JSON Schema.
            properties = {}
        refused = {name: self._refused_types(name, properties.get(name, {}).get("type")) for name in names}
        return {
            "required": [p.name for p in fields if p.default is p.empty],
            "allowed": None if self._rest else names,
            "refused": {name: types for name, types in refused.items() if types},
        }

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the input with the defaults; None if a type has no JSON schema."""
        try:
            schema = self._input.json_schema()
        except pydantic.PydanticUserError:
            return None
        for name, parameter in self._parameters.parameters.items():
            if name in schema.get("properties", {}) and parameter.default not in (parameter.empty, None):
                # A default that is no JSON is not shown.
                with suppress(ValueError, TypeError):
                    default = pydantic_core.to_jsonable_python(parameter.default)
                    schema["properties"][name]["default"] = default
        return schema

    def problems(self, values: dict[str, Any]) -> dict[str, str]:
        """What is wrong with each parameter, by name; "" stands for the values as a whole."""
        try:
            self._input.validate_python(values)
        except pydantic.ValidationError as error:
            found: dict[str, str] = {}
            for problem in error.errors(include_url=False, include_input=False, include_context=False):
                name, *place = map(str, problem["loc"] or ("",))
                text = f"{'.'.join(place)}: {problem['msg']}" if place else problem["msg"]
                found.setdefault(name, text)
            return found
        return {}

    def _refused_types(self, name: str, type: str | None) -> list[str]:
        """JSON types that do not fit the parameter's schema, and of which a sample is refused as well."""
        if type is None:
            return []
        others = [p for p in self._parameters.parameters if p != name]
        found: list[str] = []
        for sample_type, sample in _SAMPLES.items():
            if sample_type == ("number" if type == "integer" else type):
                continue
            try:
                self.check({name: sample}, pending=others)
            except Invalid:
                found.append(sample_type)
            except Exception:  # noqa: S112 (the app's own validators may raise anything)
                continue
        return found

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        try:
            values = self._parameters.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise Invalid(f"{self._name}: {error}", code="bad_input") from error
        return {**values, **values.pop(self._rest, {})} if self._rest else values

    def check(self, values: dict[str, Any], *, pending: Collection[str] = ()) -> dict[str, Any]:
        """Values as the function gets them: validated and converted. Errors in `pending` ones are ignored."""
        try:
            return self._input.validate_python(values)
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False, include_input=False)
            wrong = next((p for p in problems if p["loc"][:1] not in [(name,) for name in pending]), None)
            if wrong is None:
                return values
            unknown = next((p for p in problems if p["type"] == "extra_forbidden"), wrong)
            raise self._refusal(wrong if len(wrong["loc"]) > 1 else unknown) from error

    def _refusal(self, problem: Any) -> Invalid:
        """An error that says which of the names are known. Others are pydantic's own."""
        field = ".".join(map(str, problem["loc"]))
        match problem["type"]:
            case "extra_forbidden" if len(problem["loc"]) == 1:
                names = ", ".join(self._parameters.parameters) or "no params"
                return _bad_input(field, f"unknown param; {self._name} takes {names}")
            case "missing":
                return _bad_input(field, "this param is required")
            case _:
                return _bad_input(field, problem["msg"])

    def parse(self, texts: dict[str, str]) -> dict[str, Any]:
        """Values from a command line: JSON where the type accepts it, otherwise the text itself."""
        values: dict[str, Any] = {}
        for name, text in texts.items():
            try:
                value = json.loads(text)
                self.check({name: value}, pending=[p for p in self._parameters.parameters if p != name])
            except (ValueError, Invalid):
                value = text
            values[name] = value
        return values

    def encode(self, values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Checked values as JSON, and the keys of the steps that they refer to."""
        after: list[str] = []
        document: dict[str, Any] = {}
        pending: set[str] = set()
        for name, value in values.items():
            known = len(after)
            try:
                document[name] = encode(value, after)
            except (TypeError, ValueError, RecursionError) as error:
                raise _bad_input(name, str(error)) from error
            if len(after) > known:
                pending.add(name)
        self.check(values, pending=pending)
        return document, list(dict.fromkeys(after))

    def dump(self, value: Any) -> Any:
        """A return value as JSON, checked against the declared type."""
        if self._output is None:
            return value if type(value) in _PLAIN else pydantic_core.to_jsonable_python(value)
        return self._output.dump_python(self._output.validate_python(value), mode="json")

    def load(self, output: Any) -> Any:
        """An output converted to the declared type."""
        return output if self._output is None else self._output.validate_python(output)


def _bad_input(field: str, problem: str) -> Invalid:
    return Invalid(f"{field}: {problem}", code="bad_input", details={"field": field})


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    # Type names may be local to the function in which the handler is declared, so look in its frame.
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    try:
        return get_type_hints(function, localns=frame.f_locals, include_extras=True)
    except NameError as error:
        raise Invalid(f"{function.__name__}: unknown type in an annotation: {error}") from error


def _adapter(name: str, fields: dict[str, Any], *, takes_rest: bool) -> pydantic.TypeAdapter[dict[str, Any]]:
    model: Any = cast("Any", TypedDict)(f"{name}_input", fields)
    model.__pydantic_config__ = pydantic.ConfigDict(
        extra="allow" if takes_rest else "forbid", arbitrary_types_allowed=True
    )
    return pydantic.TypeAdapter(model)


def _output_adapter(declared: Any) -> pydantic.TypeAdapter[Any] | None:
    if declared in (Any, None, type(None), object, NoReturn, Never):
        return None
    return pydantic.TypeAdapter(declared)
