"""Requests and answers: address, credential, idempotency key, retries, limits, errors, pages, events."""

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

from penstock.client.answers import MOST_BYTES_OF_EVENT, Answer, Event, parsed, read, refusal, unreadable
from penstock.client.transport import IO
from penstock.client.tries import Tries
from penstock.errors import Invalid, TooLarge, Unavailable
from penstock.settings import is_loopback
from penstock.types import Me

T = TypeVar("T")
Query = Mapping[str, Any]

PAGE = 100
_VERSION = version("penstock")
# The API tells every 15 seconds that it is still there.
STREAM_SECONDS = 20.0


class Secret:
    """A credential that is not printed."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "<secret>"

    def reveal(self) -> str:
        """For the one header it is for."""
        return self._value


class Core(Generic[IO]):
    """What all nouns of a client share."""

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
        self.base_url = _address(base_url)
        self.timeout = timeout
        self.max_bytes = max_bytes
        self._key = _secret(key)
        self._tenant = None if tenant is None else identifier(tenant, "tenant")
        self._own_tenant: UUID | None = None
        self._retries = retries
        if self._key is not None and _is_open(self.base_url) and not allow_http:
            raise Invalid(
                f"the key would be sent to {self.base_url} as plain text",
                code="insecure_url",
                hint="Use https; or allow_http=True, on a network that is yours alone.",
            )

    # Asking

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        file: Callable[[], Any] | None = None,
        key: str | None = None,
        tag: str | None = None,
        good: int = 200,
        seconds: float | None = None,
        until: float | None = None,
    ) -> Answer:
        """The answer to a request. A lost one is asked for again with the same key: nothing is done twice.

        `file`: makes what is sent in place of a document, from its beginning each time. `tag`: the ETag of
        what is known already. `good`: a status that is no refusal, beside those below 300 and 304.
        `seconds`: how long to wait, if not `timeout`. `until`: when nobody waits any more, by the monotonic
        clock.
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
        tries = Tries(self._retries, until)
        while True:
            sent = content if file is None else file()
            request = self._request(method, url, headers, sent, tries.seconds(seconds or self.timeout))
            try:
                answer = await self.receive(request, self.max_bytes)
                if answer.status < 300 or answer.status in (304, good):
                    return answer
                error = refusal(answer)
            except Unavailable as lost:
                error = lost
            if key is not None and isinstance(error, Unavailable):
                # For whoever wants to try later what may have been done.
                error.details["idempotency_key"] = key
            await self.io.sleep(tries.pause(error))

    async def get(self, kind: type[T], path: str, query: Query | None = None) -> T:
        """A GET's answer as a value of this type."""
        return read(kind, (await self.ask("GET", path, query=query)).json())

    async def pages(
        self, line: Callable[[Any], T], path: str, query: Query, limit: int | None
    ) -> AsyncGenerator[T]:
        """The lines of a list, page by page as they are needed; at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            answer = await self.ask("GET", path, query={**query, "limit": size, "cursor": cursor})
            page = read(_Page, answer.json())
            for item in page.items:
                yield line(item)
            left = None if left is None else left - len(page.items)
            cursor = page.next
            if cursor is None or not page.items:
                return

    async def tenant(self, chosen: UUID | str | None) -> UUID:
        """The tenant that a call is about where one is needed: the caller's own, if there is just one."""
        if (found := self.tenant_or_none(chosen) or self._own_tenant) is not None:
            return found
        own = (await self.get(Me, "/api/me")).tenants
        if len(own) != 1:
            raise Invalid(
                "it is not said for which tenant",
                code="tenant_missing",
                hint="Client(…, tenant=…), or tenant_id in the call.",
                details={"field": "tenant_id"},
            )
        self._own_tenant = own[0].id
        return self._own_tenant

    def tenant_or_none(self, chosen: UUID | str | None) -> UUID | None:
        """The tenant that a call is about, if that is said."""
        return self._tenant if chosen is None else identifier(chosen, "tenant_id")

    async def save(self, path: str, query: Query, file: BinaryIO) -> None:
        """Write a GET's answer into a file, which is empty. What breaks off is asked for again."""
        tries = self.tries()
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
                    error = refusal(await self.whole(response, self.max_bytes))
                finally:
                    await self.io.close(response)
            except Unavailable as lost:
                error = lost
            await self.io.sleep(tries.pause(error))
            await self.io.work(file.seek, 0)
            await self.io.work(file.truncate)

    # Events

    async def events(
        self, path: str, query: Query | None, last_id: str | None
    ) -> AsyncGenerator[Event | None]:
        """A stream's events until it breaks; None for a word that it is still there."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last_id is not None:
            headers["Last-Event-ID"] = last_id
        url = self.base_url + path + _query(query)
        response = await self.open(self._request("GET", url, headers, None, STREAM_SECONDS))
        try:
            if response.status_code != 200:
                raise refusal(await self.whole(response, self.max_bytes))
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise Unavailable("the server does not stream events here")
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
                raise TooLarge("the server sent an event that has no end", code="answer_too_large")

    # Sending

    async def open(self, request: httpx.Request) -> httpx.Response:
        """The answer's head. Raises Unavailable when none comes."""
        try:
            response = await self.io.send(request)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise Invalid(f"the request cannot be sent: {error}") from None
        except httpx.TransportError as error:
            raise _lost(error) from error
        if response.headers.get("content-encoding", "identity") != "identity":
            await self.io.close(response)
            raise unreadable("it is compressed, which was not asked for")
        return response

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The answer's body as it comes. Raises Unavailable when it breaks off."""
        try:
            async with aclosing(self.io.chunks(response)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except httpx.TransportError as error:
            raise _lost(error) from error

    async def receive(self, request: httpx.Request, most: int) -> Answer:
        """A whole answer of at most so many bytes."""
        response = await self.open(request)
        try:
            return await self.whole(response, most)
        finally:
            await self.io.close(response)

    async def whole(self, response: httpx.Response, most: int) -> Answer:
        """The rest of an answer."""
        body = bytearray()
        async with aclosing(self.chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > most:
                    raise TooLarge(
                        f"the server's answer is larger than {most} bytes",
                        code="answer_too_large",
                        hint="Ask for less at once, or make the client with a larger max_bytes.",
                    )
        return Answer(response.status_code, response.headers, bytes(body))

    def tries(self) -> Tries:
        """For one thing to do."""
        return Tries(self._retries)

    def _request(
        self, method: str, url: str, headers: dict[str, str], content: Any, seconds: float
    ) -> httpx.Request:
        if self._key is not None:
            headers = {**headers, "Authorization": f"Bearer {self._key.reveal()}"}
        return _plain_request(method, url, headers, content, seconds)

    def signed_request(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, content: Any = None
    ) -> httpx.Request:
        """A request to a signed URL. It needs no other credential, and gets none."""
        address = urlsplit(url)
        if address.scheme not in ("https", "http") or not address.hostname:
            raise unreadable("the file's address is none")
        if address.scheme == "http" and self.base_url.startswith("https:"):
            raise Invalid(
                "the file's address is not encrypted, though the API's is",
                code="insecure_url",
                hint="Does the server know its own address? See --proxy-headers of uvicorn.",
            )
        # As it was signed, byte by byte; and apart from the address, which httpx writes into the log.
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
    return Unavailable(f"the server does not answer: {what}", hint="What was sent may have been done.")


# Writing


def path(template: str, *parts: UUID | str | int) -> str:
    """A path with these parts in it; nothing in them leads elsewhere."""
    # Also dots are written so that no part is taken for `..`.
    return template.format(*(quote(str(part), safe="").replace(".", "%2E") for part in parts))


def identifier(value: UUID | str, name: str) -> UUID:
    """An id."""
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (ValueError, AttributeError, TypeError):
        raise Invalid(f"{name} is not a UUID", details={"field": name}) from None


def _idempotency_key(key: str | None) -> str:
    if key is not None and not re.fullmatch(r"[\x20-\x7e]{1,255}", key):
        raise Invalid(
            "an idempotency key has 1 to 255 plain characters",
            code="invalid_key",
            details={"field": "idempotency_key"},
        )
    return key or uuid.uuid4().hex


def _json(body: Any) -> bytes:
    try:
        return to_json(body, inf_nan_mode="constants")
    except (PydanticSerializationError, ValueError) as error:
        raise Invalid(f"this cannot be sent as JSON: {error}") from None


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
            # So that what is counted is what comes, and a part of a file is a part of the file.
            "Accept-Encoding": "identity",
            **(headers or {}),
        },
        content=content,
        extensions={"timeout": httpx.Timeout(seconds).as_dict()},
    )


def _address(text: str) -> str:
    address = urlsplit(text.strip())
    is_plain = not (address.username or address.password or address.query or address.fragment)
    if address.scheme not in ("https", "http") or not address.hostname or not is_plain:
        # Not the text itself: somebody may have put a password into it.
        raise Invalid(
            "base_url is not an address such as https://jobs.example.org", details={"field": "base_url"}
        )
    return f"{address.scheme}://{address.netloc}{address.path.rstrip('/')}"


def _is_open(base_url: str) -> bool:
    address = urlsplit(base_url)
    return address.scheme == "http" and not is_loopback(address.hostname or "")


def _secret(key: str | None) -> Secret | None:
    text = (key or "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise Invalid("the key holds what no key holds: a space, a break, a letter outside of ASCII")
    return Secret(text)
