"""Responses of the server: typed documents, events and errors."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, TypeVar, cast

import httpx
from pydantic import TypeAdapter, ValidationError

from penstock.errors import PenstockError, TooLarge, from_problem

T = TypeVar("T")

MOST_BYTES_OF_EVENT = 1 << 20
_JSON_TYPES = ("application/problem+json", "application/json")


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A complete response."""

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The body as JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise invalid_response("the body is not valid JSON") from None

    def field(self, kind: type[T], name: str) -> T:
        """One field of the JSON body."""
        return read(kind, read(dict[str, Any], self.json()).get(name))


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event."""

    id: str | None
    name: str
    data: Any


def read(kind: type[T], document: Any) -> T:
    """Convert a JSON value to this type. Unknown fields are ignored."""
    try:
        return _adapter(kind).validate_python(document)
    except ValidationError as error:
        # Without the input, which may contain a secret.
        [first, *_] = error.errors(include_input=False, include_context=False, include_url=False)
        raise invalid_response(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def error_of(answer: ServerResponse) -> PenstockError:
    """The error in a response, as the same class that the server raised."""
    document: Any = None
    if answer.headers.get("content-type", "").partition(";")[0].strip() in _JSON_TYPES:
        try:
            document = json.loads(answer.body)
        except ValueError:
            document = None
    if 300 <= answer.status < 400:
        return PenstockError(
            f"the server redirected the request ({answer.status})",
            code="redirected",
            hint="Use the new location as base_url. The client does not follow redirects with the key.",
            details={"location": answer.headers.get("location", "").partition("?")[0]},
        )
    error = from_problem(
        answer.status, cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    )
    after = _seconds(answer.headers.get("retry-after"))
    if error.retry_after is None and after is not None:
        error.details["retry_after_seconds"] = after
    return error


def _seconds(header: str | None) -> float | None:
    """Parse Retry-After: seconds or a date."""
    if header is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d+)?", header.strip()):
        return float(header)
    try:
        moment = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max((moment.astimezone(UTC) - datetime.now(UTC)).total_seconds(), 0)


async def parsed(lines: AsyncGenerator[str]) -> AsyncGenerator[Event | None]:
    """Parse server-sent events. Yields None for a comment."""
    name, data, event_id, size = "message", list[str](), None, 0
    async for line in lines:
        size += len(line)
        if size > MOST_BYTES_OF_EVENT:
            raise TooLarge(
                f"the server sent an event larger than {MOST_BYTES_OF_EVENT} bytes", code="answer_too_large"
            )
        if not line:
            if data:
                yield Event(event_id, name, _document("\n".join(data)))
            name, data, size = "message", [], 0
            continue
        part, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match part:
            case "":
                yield None
            case "event":
                name = value
            case "data":
                data.append(value)
            case "id" if value.isascii() and value.isprintable():
                event_id = value
            case _:
                pass


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise invalid_response("an event is not valid JSON") from None


def invalid_response(reason: str) -> PenstockError:
    """An error for a response that is not Penstock's."""
    return PenstockError(
        f"invalid response: {reason}",
        code="unreadable_answer",
        hint="Check that base_url is a Penstock API, and that the client is as new as the server.",
    )
