"""Shared parts of the simulated providers: validated requests, replies and errors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from penstock.simulator.limits import Account, Rejection

Reason = Literal[
    "invalid",
    "no_key",
    "no_model",
    "no_path",
    "no_method",
    "too_large",
    "rate",
    "quota",
    "error",
    "overloaded",
]

MOST_TOKENS = 1_000_000
"""Maximum output tokens of any model."""

_LONGEST_MODEL = 200


class Problem(Exception):
    """An error response."""

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        param: str | None = None,
        model: str = "",
        rejection: Rejection | None = None,
    ) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.param = param
        self.model = model
        self.rejection = rejection


@dataclass(frozen=True, slots=True)
class Behavior:
    """How a language model answers a request."""

    outcome: Literal["refusal", "filter", "truncated"] | None = None
    """None: it answers the whole question."""
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """A parsed request, with seed, number and time for the answer."""

    fields: dict[str, Any]
    seed: int
    number: int
    """The number of the request, for ids."""
    now: float
    behavior: Behavior = Behavior()

    def model(self) -> str:
        """The model's name."""
        model = self.text("model")
        if len(model) > _LONGEST_MODEL:
            raise Problem("no_model", model=model[:_LONGEST_MODEL])
        return model

    def text(self, name: str) -> str:
        """A required text field."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise invalid(name, "a string", value)
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false, and false if it is not there."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(name, "a boolean", value)
        return bool(value)

    def count(self, name: str, most: int | None = None) -> int | None:
        """A field that is a positive number, if it is there."""
        value = self.fields.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise invalid(name, "a positive integer", value)
        if most is not None and value > most:
            raise Problem("invalid", f"Invalid '{name}': expected a value <= {most}.", param=name)
        return value

    def messages(self, name: str) -> list[dict[str, Any]]:
        """A field that must be a list of messages."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not value:
            raise invalid(name, "a non-empty array", cast("object", value))
        for number, message in enumerate(cast("list[Any]", value)):
            if not isinstance(message, dict) or not isinstance(
                cast("dict[str, Any]", message).get("role"), str
            ):
                raise invalid(f"{name}[{number}]", "an object with a role", cast("object", message))
        return cast("list[dict[str, Any]]", value)


@dataclass(frozen=True, slots=True)
class Reply:
    """The response of a request and its usage."""

    model: str
    input_tokens: int
    output_tokens: int
    most_output_tokens: int
    """Output tokens to count before the answer is known."""
    parts: list[bytes]
    """One document, or the events of a stream."""
    is_stream: bool = False
    media_type: str = "application/json"


Endpoint = Callable[[ProviderRequest], Reply]


class Provider(ABC):
    """The API of a provider."""

    name: ClassVar[str]
    models: ClassVar[tuple[str, ...]]
    """The listed models."""
    prefixes: ClassVar[tuple[str, ...]]
    """Prefixes of accepted model names, so that new models work without an update."""
    request_id: ClassVar[str]
    """The response header with the request id."""
    sends_retry_after: ClassVar[bool] = True
    """Whether a 429 says when to try again."""
    endpoints: ClassVar[Mapping[str, Endpoint]]
    """Handlers of rate-limited POST requests by path."""

    @abstractmethod
    def key(self, headers: Mapping[str, str]) -> str:
        """The key of a request. Raises Problem if it is missing."""

    @abstractmethod
    def error(self, problem: Problem, request_id: str) -> tuple[int, dict[str, Any]]:
        """Status and body of an error."""

    @abstractmethod
    def limit_headers(self, account: Account, now: float) -> dict[str, str]:
        """The rate-limit headers of a response."""

    @abstractmethod
    def listing(self, models: list[str]) -> dict[str, Any]:
        """The list of models."""


def invalid(name: str, expected: str, value: object) -> Problem:
    """An error for a missing field or a wrong type."""
    if value is None:
        return Problem("invalid", f"Missing required parameter: '{name}'.", param=name)
    return Problem("invalid", f"Invalid type for '{name}': expected {expected}.", param=name)


def document(value: object) -> bytes:
    """Encode as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def bearer(headers: Mapping[str, str]) -> str:
    """The bearer token in the header `authorization`, if any."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
