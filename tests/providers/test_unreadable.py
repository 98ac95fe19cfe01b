"""Answers that do not arrive or cannot be read: never stored, and the provider may charge for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from penstock import Context, Fail, Retry
from penstock.providers import (
    Connection,
    Image,
    SpeechRequest,
    TextRequest,
    VideoRequest,
    VisionRequest,
    adapter,
    ask,
    operate,
)
from penstock.providers.connection import Key, host_of
from penstock.providers.hosts import OWN
from penstock.sdk.operations import Operation, Settled
from penstock.simulator import content
from tests.providers.conftest import Wire, recording

REQUESTS: dict[str, Any] = {
    "text": TextRequest("Hello!", 50),
    "speech": SpeechRequest("Hello!", "alloy"),
    "vision": VisionRequest(Image(content.picture("x", 0, 0))),
    "video": VideoRequest("Hello!", 5, 640, 360),
}
ADAPTERS = [
    ("openai/gpt-4o-mini", "text"),
    ("house/llm", "text"),
    ("anthropic/claude-haiku-4-5", "text"),
    ("openai/tts-1", "speech"),
    ("elevenlabs/eleven_flash_v2_5", "speech"),
    ("google/vision-api", "vision"),
    ("replicate/minimax/video-01", "video"),
    ("runway/gen4.5", "video"),
]
BODIES = [
    ("text/html; charset=utf-8", b"<html>502 Bad Gateway</html>"),
    ("application/json", b'{"id": "x", "choi'),
    ("application/json", b"null"),
    ("application/json", b"[]"),
    ("application/json", b'{"error": {"message": "upstream failed"}}'),
    ("application/json", b'{"choices": [{}], "output": 7, "content": 7, "responses": [], "usage": []}'),
]


def connected(provider: str) -> Connection:
    name, known = provider.partition("/")[0], OWN.get(provider.partition("/")[0])
    url = known.url if known else "https://llm.example.org/v1"
    return Connection(name, url, Key(host_of(url), "sk-test"))


async def submit(provider: str, medium: Any, connection: Connection | None = None) -> Any:
    found = adapter(provider, medium)
    return await found.submit(connection or connected(provider), provider.partition("/")[2], REQUESTS[medium])


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body[1][:20].decode())
@pytest.mark.parametrize(("provider", "medium"), ADAPTERS)
async def test_answer_without_the_documented_form_is_lost(
    wire: Wire, provider: str, medium: Any, body: tuple[str, bytes]
) -> None:
    """R0.10/bad-answers: a gateway's page with status 200 is neither a text, a recording nor a film."""
    wire.respond = lambda request: (200, {"content-type": body[0]}, body[1])
    with pytest.raises(Retry) as lost:
        await submit(provider, medium)
    assert lost.value.code == "answer_lost" and provider.partition("/")[0] in str(lost.value)
    assert not hasattr(lost.value, "answer"), "nothing is known to have been used"


@pytest.mark.parametrize("provider", ["openai/gpt-4o-mini", "house/llm", "anthropic/claude-haiku-4-5"])
@pytest.mark.parametrize("count", [None, -5, "many"])
async def test_usage_without_a_valid_number_is_the_upper_estimate(
    wire: Wire, provider: str, count: Any
) -> None:
    names = {"openai": "responses_completed", "anthropic": "messages_end_turn"}
    body = recording(names.get(provider.partition("/")[0], "chat_stop"))["body"]
    body["usage"] = {**body["usage"], **dict.fromkeys(body["usage"], count)}
    wire.respond = lambda request: (200, {"content-type": "application/json"}, json.dumps(body).encode())
    answer = await submit(provider, "text")
    assert answer.text and dict(answer.units) == {"input_tokens": 3, "output_tokens": 50}


@asynccontextmanager
async def server(*, is_cut: bool) -> AsyncGenerator[str]:
    """Takes a request, and never answers, or ends the connection within the answer."""
    open_connections: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if is_cut:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
            await writer.drain()
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        for writer in open_connections:
            writer.close()
        listening.close()
        await listening.wait_closed()


@pytest.mark.parametrize(("provider", "medium"), ADAPTERS)
async def test_answer_that_does_not_arrive_is_lost(provider: str, medium: Any) -> None:
    """R0.11/lost-attempts: the provider took the request, unlike one that cannot be reached."""
    name = provider.partition("/")[0]
    async with server(is_cut=True) as url:
        with pytest.raises(Retry) as lost:
            await submit(provider, medium, Connection(name, url))
    assert lost.value.code == "answer_lost"
    with pytest.raises(Retry) as away:
        await submit(provider, medium, Connection(name, url))
    assert away.value.code == "network_error"


@pytest.mark.parametrize("provider", ["openai/gpt-4o-mini", "google/vision-api"])
async def test_answer_that_is_too_late_is_lost(provider: str) -> None:
    """Of an official client, and of documented wire."""
    medium = "text" if provider.startswith("openai") else "vision"
    async with server(is_cut=False) as url:
        with pytest.raises(Retry) as lost:
            await submit(provider, medium, Connection(provider.partition("/")[0], url, seconds=0.5))
    assert lost.value.code == "answer_lost" and "Timeout" in str(lost.value)


# Films that were paid for


class Asking:
    """A context whose operation was submitted before, and is checked now."""

    async def operation(self, object: str, *, check: Any, **values: Any) -> Any:
        return await check(Operation(uuid4(), object, "id1"))


async def checked(wire: Wire, provider: str, status: int, body: tuple[str, bytes]) -> Settled | None:
    async def save(answer: Any) -> None:
        raise AssertionError("there is no film")

    wire.respond = lambda request: (status, {"content-type": body[0]}, body[1])
    context: Any = Asking()
    return await operate(
        context, REQUESTS["video"], provider=provider, object="film", save=save, url="http://127.0.0.1:1/v1"
    )


@pytest.mark.parametrize("provider", ["replicate/minimax/video-01", "runway/gen4.5"])
async def test_film_outlives_checks_without_an_answer(wire: Wire, provider: str) -> None:
    """No attempt is spent, and nothing ends: the next check asks again."""
    for body in [*BODIES, ("application/json", b'{"status": "MELTED"}')]:
        assert await checked(wire, provider, 200, body) is None
    assert await checked(wire, provider, 503, ("text/plain", b"")) is None
    with pytest.raises(Exception) as limited:
        await checked(wire, provider, 429, ("application/json", b"{}"))
    assert not isinstance(limited.value, Fail | Retry), "the worker reads the limit from it"


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("replicate/minimax/video-01", b'{"status": "succeeded", "output": null}'),
        ("runway/gen4.5", b'{"status": "SUCCEEDED", "output": []}'),
    ],
)
async def test_success_without_a_film_ends_the_operation(wire: Wire, provider: str, body: bytes) -> None:
    settled = await checked(wire, provider, 200, ("application/json", body))
    assert settled is not None and (settled.outcome, settled.code) == ("failed", "empty_text")


@pytest.mark.parametrize("provider", ["replicate/minimax/video-01", "runway/gen4.5"])
async def test_page_instead_of_a_film_is_no_film(wire: Wire, provider: str) -> None:
    file = "https://files.example.org/film.mp4"
    done = {
        "replicate": f'{{"status": "succeeded", "output": "{file}"}}',
        "runway": f'{{"status": "SUCCEEDED", "output": ["{file}"]}}',
    }[provider.partition("/")[0]].encode()
    pages = {"text/html": b"<html>expired</html>", "application/xml": b"<Error/>", "video/mp4": b""}
    for kind, page in pages.items():
        wire.respond = lambda request, kind=kind, page=page: (
            (200, {"content-type": kind}, page)
            if str(request.url) == file
            else (200, {"content-type": "application/json"}, done)
        )
        with pytest.raises(Retry) as lost:
            await adapter(provider, "video").check(connected(provider), "id1")
        assert lost.value.code == ("answer_lost" if page else "empty_text")


async def test_cancel_reads_no_answer(wire: Wire) -> None:
    wire.respond = lambda request: (200, {"content-type": "text/html"}, b"<html>")
    for provider in ("replicate/minimax/video-01", "runway/gen4.5"):
        await adapter(provider, "video").cancel(connected(provider), "id1")
    assert [request.method for request in wire.requests] == ["POST", "DELETE"]


async def test_task_with_an_unreadable_answer_reports_no_usage(wire: Wire) -> None:
    wire.respond = lambda request: (200, {"content-type": "text/html"}, b"<html>")
    reported: list[Any] = []
    ctx = Context.fake(provider="house/llm")

    async def usage(ctx: Context, units: dict[str, float], variant: str) -> None:
        reported.append(units)

    ctx._hooks.usage = usage  # type: ignore[method-assign]
    with pytest.raises(Retry):
        await ask(ctx, REQUESTS["text"], provider="house/llm", url="http://127.0.0.1:1/v1")
    assert reported == []
