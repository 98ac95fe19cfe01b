"""Requests and responses: URL, credentials, idempotency keys, retries, limits, errors, pages, events."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, BinaryIO, Generic, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID

import httpx
from pydantic_core import PydanticSerializationError, to_json

from penstock.client.responses import (
    MOST_BYTES_OF_EVENT,
    Event,
    ServerResponse,
    error_of,
    invalid_response,
    parsed,
    read,
)
from penstock.client.retries import Retries
from penstock.client.transport import IO
from penstock.errors import Invalid, TooLarge, Unavailable
from penstock.settings import is_loopback
from penstock.types import Me

T = TypeVar("T")
Query = Mapping[str, Any]

PAGE = 100
_VERSION = version("penstock")
# The API sends a keep-alive comment every 15 seconds.
STREAM_SECONDS = 20.0


class Secret:
    """A credential that repr() does not reveal."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "<secret>"

    def reveal(self) -> str:
        """The value, for the Authorization header."""
        return self._value


class Core(Generic[IO]):
    """State and methods that all resources of a client share."""

    def __init__(
        self,
        io: IO,
        *,
        base_url: str,
        key: str | None,
        tenant: UUID | str | None,
        timeout: float,
        retries: int,
        max_bytes: int,
        allow_http: bool,
    ) -> None:
        self.io = io
        self.base_url = _checked_url(base_url)
        self.timeout = timeout
        self.max_bytes = max_bytes
        self._key = _secret(key)
        self._tenant = None if tenant is None else identifier(tenant, "tenant")
        self._own_tenant: UUID | None = None
        self._retries = retries
        if self._key is not None and _is_unencrypted(self.base_url) and not allow_http:
            raise Invalid(
                f"the key would be sent unencrypted to {self.base_url}",
                code="insecure_url",
                hint="Use https, or pass allow_http=True on a private network.",
            )

    # Requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        file: Callable[[], Any] | None = None,
        key: str | None = None,
        tag: str | None = None,
        also_accept: int = 200,
        seconds: float | None = None,
        until: float | None = None,
    ) -> ServerResponse:
        """Send a request and return its response. Retries a lost response with the same idempotency key.

        `file`: returns the content to send instead of JSON; called for each try. `tag`: the ETag of the known
        version. `also_accept`: another status to accept, besides those below 300 and 304. `seconds`: timeout
        of this request. `until`: deadline on the monotonic clock.
        """
        headers = {"Accept": "application/json"}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = _json(body)
        if file is not None:
            headers["Content-Type"] = "application/octet-stream"
        if method != "GET":
            headers["Idempotency-Key"] = key = _idempotency_key(key)
        if tag is not None:
            headers["If-None-Match"] = tag
        url = self.base_url + path + _query(query)
        retries = Retries(self._retries, until)
        while True:
            sent = content if file is None else file()
            request = self._request(method, url, headers, sent, retries.seconds(seconds or self.timeout))
            try:
                answer = await self.receive(request, self.max_bytes)
                if answer.status < 300 or answer.status in (304, also_accept):
                    return answer
                error = error_of(answer)
            except Unavailable as lost:
                error = lost
            if key is not None and isinstance(error, Unavailable):
                # Lets the caller repeat the request later, because the server may have processed it.
                error.details["idempotency_key"] = key
            await self.io.sleep(retries.pause(error))

    async def get(self, kind: type[T], path: str, query: Query | None = None) -> T:
        """GET a value of this type."""
        return read(kind, (await self.request("GET", path, query=query)).json())

    async def pages(
        self, convert: Callable[[Any], T], path: str, query: Query, limit: int | None
    ) -> AsyncGenerator[T]:
        """Yield the items of a list, fetching pages as needed; at most `limit` items."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            answer = await self.request("GET", path, query={**query, "limit": size, "cursor": cursor})
            page = read(_Page, answer.json())
            for item in page.items:
                yield convert(item)
            left = None if left is None else left - len(page.items)
            cursor = page.next
            if cursor is None or not page.items:
                return

    async def tenant(self, chosen: UUID | str | None) -> UUID:
        """The tenant of a call that requires one. Default: the client's, or the caller's only tenant."""
        if (found := self.tenant_or_none(chosen) or self._own_tenant) is not None:
            return found
        own = (await self.get(Me, "/api/me")).tenants
        if len(own) != 1:
            raise Invalid(
                f"tenant_id is missing: you belong to {len(own)} tenants",
                code="tenant_missing",
                hint="Pass tenant_id to the call, or tenant to the client.",
                details={"field": "tenant_id"},
            )
        self._own_tenant = own[0].id
        return self._own_tenant

    def tenant_or_none(self, chosen: UUID | str | None) -> UUID | None:
        """The tenant of a call, or the client's; None if neither is set."""
        return self._tenant if chosen is None else identifier(chosen, "tenant_id")

    async def save(self, path: str, query: Query, file: BinaryIO) -> None:
        """Download into an empty file. Starts again if the connection breaks."""
        retries = self.retries()
        while True:
            headers = {"Accept": "*/*"}
            request = self._request("GET", self.base_url + path + _query(query), headers, None, self.timeout)
            try:
                response = await self.open(request)
                try:
                    if response.status_code == 200:
                        async with aclosing(self.chunks(response)) as chunks:
                            async for chunk in chunks:
                                await self.io.work(file.write, chunk)
                        return
                    error = error_of(await self.whole(response, self.max_bytes))
                finally:
                    await self.io.close(response)
            except Unavailable as lost:
                error = lost
            await self.io.sleep(retries.pause(error))
            await self.io.work(file.seek, 0)
            await self.io.work(file.truncate)

    # Events

    async def events(
        self, path: str, query: Query | None, last_id: str | None
    ) -> AsyncGenerator[Event | None]:
        """Yield the events of a stream until it breaks; None for a keep-alive."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        url = self.base_url + path + _query(query)
        response = await self.open(self._request("GET", url, headers, None, STREAM_SECONDS))
        try:
            if response.status_code != 200:
                raise error_of(await self.whole(response, self.max_bytes))
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise Unavailable("the response is not an event stream")
            async with aclosing(self._lines(response)) as lines:
                async for event in parsed(lines):
                    yield event
        finally:
            await self.io.close(response)

    async def _lines(self, response: httpx.Response) -> AsyncGenerator[str]:
        rest = b""
        async for chunk in self.chunks(response):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").removesuffix("\r")
            if len(rest) > MOST_BYTES_OF_EVENT:
                raise TooLarge(
                    f"the server sent an event larger than {MOST_BYTES_OF_EVENT} bytes",
                    code="answer_too_large",
                )

    # Transport

    async def open(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the response's headers. Raises Unavailable if there is no response."""
        try:
            response = await self.io.send(request)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise Invalid(f"cannot send the request: {error}") from None
        except httpx.TransportError as error:
            raise _lost(error) from error
        if response.headers.get("content-encoding", "identity") != "identity":
            await self.io.close(response)
            raise invalid_response("it is compressed although the client did not accept that")
        return response

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """Stream the response's body. Raises Unavailable if the connection breaks."""
        try:
            async with aclosing(self.io.chunks(response)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except httpx.TransportError as error:
            raise _lost(error) from error

    async def receive(self, request: httpx.Request, most: int) -> ServerResponse:
        """Send a request and read the whole response, of at most `most` bytes."""
        response = await self.open(request)
        try:
            return await self.whole(response, most)
        finally:
            await self.io.close(response)

    async def whole(self, response: httpx.Response, most: int) -> ServerResponse:
        """Read the rest of a response, of at most `most` bytes."""
        body = bytearray()
        async with aclosing(self.chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > most:
                    raise TooLarge(
                        f"the response is larger than {most} bytes",
                        code="answer_too_large",
                        hint="Request less at once, or create the client with a larger max_bytes.",
                    )
        return ServerResponse(response.status_code, response.headers, bytes(body))

    def retries(self) -> Retries:
        """A retry counter for one operation."""
        return Retries(self._retries)

    def _request(
        self, method: str, url: str, headers: dict[str, str], content: Any, seconds: float
    ) -> httpx.Request:
        if self._key is not None:
            headers = {**headers, "Authorization": f"Bearer {self._key.reveal()}"}
        return _plain_request(method, url, headers, content, seconds)

    def signed_request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, content: Any = None
    ) -> httpx.Request:
        """A request to a signed URL, without the client's key."""
        address = urlsplit(url)
        if address.scheme not in ("https", "http") or not address.hostname:
            raise invalid_response("the file's URL is invalid")
        if address.scheme == "http" and self.base_url.startswith("https:"):
            raise Invalid(
                "the file's URL uses http although the API uses https",
                code="insecure_url",
                hint="Check that the server knows its public URL; see --proxy-headers of uvicorn.",
            )
        # Sends the signed URL unchanged, and keeps the signature out of the URL that httpx logs.
        target = f"{address.path}?{address.query}" if address.query else address.path
        request = _plain_request(
            method, f"{address.scheme}://{address.netloc}{address.path}", headers, content, self.timeout
        )
        request.extensions["target"] = target.encode("ascii", "replace")
        return request


@dataclass(frozen=True, slots=True)
class _Page:
    items: list[Any]
    next: str | None


def _lost(error: httpx.TransportError) -> Unavailable:
    what = str(error) or type(error).__name__
    return Unavailable(f"no response from the server: {what}", hint="It may have processed the request.")


# Encoding


def path(template: str, *parts: UUID | str | int) -> str:
    """Format a path. The parts are escaped, so that they cannot change the path."""
    # Escapes dots too, so that no part becomes `..`.
    return template.format(*(quote(str(part), safe="").replace(".", "%2E") for part in parts))


def identifier(value: UUID | str, name: str) -> UUID:
    """Parse an id."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise Invalid(f"{name} must be a UUID (got {value!r})", details={"field": name}) from None


def _idempotency_key(key: str | None) -> str:
    if key is not None and not re.fullmatch(r"[\x20-\x7e]{1,255}", key):
        raise Invalid(
            "idempotency_key must have 1 to 255 printable ASCII characters",
            code="invalid_key",
            details={"field": "idempotency_key"},
        )
    return key or uuid.uuid4().hex


def _json(body: Any) -> bytes:
    try:
        return to_json(body, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise Invalid(f"the arguments cannot be encoded as JSON: {error}") from None


def _query(query: Query | None) -> str:
    chosen = {
        name: [*map(str, cast("list[Any]", value))] if isinstance(value, list) else [str(value)]
        for name, value in (query or {}).items()
        if value is not None
    }
    return f"?{urlencode(chosen, doseq=True)}" if chosen else ""


def _plain_request(
    method: str, url: str, headers: Mapping[str, str] | None, content: Any, seconds: float
) -> httpx.Request:
    return httpx.Request(
        method,
        url,
        headers={
            "User-Agent": f"penstock/{_VERSION}",
            # Keeps sizes and ranges those of the uncompressed file.
            "Accept-Encoding": "identity",
            **(headers or {}),
        },
        content=content,
        extensions={"timeout": httpx.Timeout(seconds).as_dict()},
    )


def _checked_url(text: str) -> str:
    address = urlsplit(text.strip())
    is_plain = not (address.username or address.password or address.query or address.fragment)
    if address.scheme not in ("https", "http") or not address.hostname or not is_plain:
        # Without the value, which may contain a password.
        raise Invalid(
            "base_url must be a URL such as https://jobs.example.org, without user, query or fragment",
            details={"field": "base_url"},
        )
    return f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}"


def _is_unencrypted(base_url: str) -> bool:
    address = urlsplit(base_url)
    return address.scheme == "http" and not is_loopback(address.hostname or "")


def _secret(key: str | None) -> Secret | None:
    text = (key or "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise Invalid("the key contains invalid characters: only printable ASCII without spaces is allowed")
    return Secret(text)
