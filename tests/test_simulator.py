"""The provider simulator, as the providers' own clients see it, and what it counts."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
import signal
import ssl
import struct
import subprocess
import sys
import wave
import zlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import cli, simulator
from penstock.errors import Invalid, PenstockError
from penstock.simulator import Limits, Simulator, content, server
from penstock.simulator.config import PROVIDERS
from penstock.simulator.limits import Account, Admission, Amount, Rejection
from penstock.simulator.openai import duration

GPT, CLAUDE, EMBEDDING = "gpt-5-mini", "claude-haiku-4-5", "text-embedding-3-small"
MESSAGES: Any = [{"role": "user", "content": "What is a penstock?"}]
PROMPT_TOKENS = 5
TLS = ssl.create_default_context()


class Hand:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Place:
    """A simulator, both clients, and plain HTTP."""

    sim: Simulator
    openai: openai.AsyncOpenAI
    anthropic: anthropic.AsyncAnthropic

    async def chat(self, **fields: Any) -> Any:
        return await self.openai.chat.completions.create(
            **{"model": GPT, "messages": MESSAGES, "max_completion_tokens": 20, **fields}
        )

    async def message(self, **fields: Any) -> Any:
        return await self.anthropic.messages.create(
            **{"model": CLAUDE, "messages": MESSAGES, "max_tokens": 20, **fields}
        )

    async def send(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Any request at all: status, headers and what the JSON of the answer says."""

        def exchange() -> tuple[int, dict[str, str], Any]:
            connection = HTTPConnection(urlsplit(self.sim.url).netloc, timeout=10)
            try:
                connection.request(
                    method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
                )
                response = connection.getresponse()
                return response.status, dict(response.headers), json.loads(response.read())
            finally:
                connection.close()

        return await asyncio.to_thread(exchange)

    async def control(self, method: str, path: str, fields: Any = None) -> Any:
        status, _, answer = await self.send(method, f"/_simulator/{path}", json.dumps(fields).encode())
        return answer if status == 200 else status


@asynccontextmanager
async def simulated(**how: Any) -> AsyncGenerator[Place]:
    # Made once: a TLS context takes longer than many a test, and nobody needs one here.
    one_http = openai.DefaultAsyncHttpxClient(verify=TLS)
    other_http = anthropic.DefaultAsyncHttpxClient(verify=TLS)
    async with (
        simulator.serve(**how) as sim,
        openai.AsyncOpenAI(
            base_url=sim.openai_url, api_key="sk-secret-1234", max_retries=0, http_client=one_http
        ) as one,
        anthropic.AsyncAnthropic(
            base_url=sim.anthropic_url, api_key="ak-secret-5678", max_retries=0, http_client=other_http
        ) as other,
    ):
        yield Place(sim, one, other)


# Answers


async def test_chat_answer_depends_only_on_prompt_and_seed() -> None:
    async with simulated() as place:
        first = await place.chat(max_completion_tokens=None)
        again = await place.chat(max_completion_tokens=None)
        other = await place.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Else?"}]}])
    async with simulated(seed=7) as place:
        seeded = await place.chat(max_completion_tokens=None)
    text = first.choices[0].message.content
    assert text == again.choices[0].message.content
    assert text not in (other.choices[0].message.content, seeded.choices[0].message.content)
    assert first.choices[0].finish_reason == "stop"
    assert first.usage.prompt_tokens == PROMPT_TOKENS
    assert first.usage.completion_tokens == math.ceil(len(text) / 4) <= content.LONGEST_ANSWER
    assert first.usage.total_tokens == PROMPT_TOKENS + first.usage.completion_tokens


async def test_answer_respects_max_tokens() -> None:
    async with simulated() as place:
        for name in ("max_tokens", "max_completion_tokens"):
            chat = await place.chat(**{"max_completion_tokens": None, name: 7})
            assert (chat.usage.completion_tokens, chat.choices[0].finish_reason) == (7, "length")
        message = await place.message(max_tokens=7)
        assert (message.usage.output_tokens, message.stop_reason) == (7, "max_tokens")
        response = await place.openai.responses.create(model=GPT, input="Tell me.", max_output_tokens=16)
        assert response.status == "incomplete"
        assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
        assert response.usage and response.usage.output_tokens == 16 == len(response.output_text) / 4


async def test_answer_has_the_requested_topic_and_length() -> None:
    asked = "Write about {} words, with `## ` before headings, on “{}”."
    async with simulated() as place:

        async def text(words: int, topic: str) -> str:
            messages = [{"role": "user", "content": asked.format(words, topic)}]
            chat = await place.chat(messages=messages, max_completion_tokens=None)
            assert chat.choices[0].finish_reason == "stop"
            return chat.choices[0].message.content

        for words in (30, 300, 3000):
            assert 0.6 * words < len((await text(words, "Otters")).split()) < 1.3 * words
        known, other = await text(300, "The Otter"), await text(300, "Double {0} %s #entry")
        stats = place.sim.stats()
    assert known.count("otter") > 5 and "\n\n## Made for cold water\n\n" in known
    assert other.count("Double {0} %s #entry") > 2 and "{topic}" not in other
    assert stats["accounts"][0]["max_tokens_60s"] >= stats["accounts"][0]["output_tokens"] > 4000


async def test_speech_duration_matches_the_text() -> None:
    async with simulated() as place:
        create: Any = place.openai.audio.speech.create
        sounds = [
            await (await create(model="tts-1", voice="alloy", input=text, response_format="wav")).aread()
            for text in ("a" * 15, "b" * 150)
        ]
        for wrong in ({"response_format": "mp3"}, {"input": "a" * 5000}):
            with pytest.raises(openai.BadRequestError):
                await create(
                    **{"model": "tts-1", "voice": "x", "input": "a", "response_format": "wav", **wrong}
                )
    for sound, seconds in zip(sounds, (1, 10), strict=True):
        with wave.open(io.BytesIO(sound)) as opened:
            assert opened.getnframes() / opened.getframerate() == pytest.approx(seconds, abs=0.02)


async def test_responses_api_accepts_text_or_messages() -> None:
    async with simulated() as place:
        response = await place.openai.responses.create(model=GPT, input="Tell me.", instructions="Be brief.")
        other = await place.openai.responses.create(model=GPT, input=MESSAGES)
    assert response.status == "completed"
    assert response.output_text != other.output_text
    assert response.usage and response.usage.input_tokens == 5


async def test_embeddings_are_unit_vectors() -> None:
    async with simulated() as place:
        create = place.openai.embeddings.create
        two = await create(model=EMBEDDING, input=["otter", "heron"])
        plain = await create(model=EMBEDDING, input="otter", encoding_format="float")
        short = await create(model=EMBEDDING, input=[[1, 2, 3], [4]], dimensions=10)
        large = await create(model="text-embedding-3-large", input=[1, 2])
    first, second = (item.embedding for item in two.data)
    assert len(first) == 1536 and first != second and first == pytest.approx(plain.data[0].embedding)
    assert sum(x * x for x in first) == pytest.approx(1)
    assert [len(item.embedding) for item in short.data] == [10, 10]
    assert [len(item.embedding) for item in large.data] == [3072]
    assert [found.usage.prompt_tokens for found in (two, plain, short, large)] == [4, 2, 4, 2]


async def test_images_are_valid_png_files() -> None:
    async with simulated() as place:
        images = await place.openai.images.generate(model="gpt-image-1", prompt="an otter", n=2)
    assert images.usage and images.usage.output_tokens == 2 * 272
    one, other = (base64.b64decode(image.b64_json or "") for image in images.data or [])
    assert one != other
    assert one.startswith(b"\x89PNG\r\n\x1a\n") and one.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", one[16:24])
    size, kind = struct.unpack(">I4s", one[33:41])
    assert kind == b"IDAT"
    assert len(zlib.decompress(one[41 : 41 + size])) == height * (1 + 3 * width)


async def test_anthropic_messages_report_tokens() -> None:
    async with simulated() as place:
        message = await place.message(max_tokens=500, system="Be brief.")
        counted = await place.anthropic.messages.count_tokens(
            model=CLAUDE, messages=MESSAGES, system="Be brief."
        )
        stats = place.sim.stats()
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens == counted.input_tokens == 8
    assert message.usage.output_tokens == math.ceil(len(message.content[0].text) / 4)
    assert [account["requests"] for account in stats["accounts"]] == [1]


async def test_model_list_includes_models_from_limits() -> None:
    async with simulated(limits={"openai/house-model": {"rpm": 5}, "anthropic/annex": {}}) as place:
        listed = [model.id async for model in place.openai.models.list()]
        others = [model.id async for model in place.anthropic.models.list()]
        assert (await place.chat(model="house-model")).model == "house-model"
    assert {GPT, EMBEDDING, "house-model"} <= set(listed)
    assert {CLAUDE, "annex"} <= set(others)


# Streams


async def test_a_chat_is_streamed() -> None:
    async with simulated(latency=(0.01, 0.01)) as place:
        whole = await place.chat(max_completion_tokens=90)
        stream = await place.chat(
            max_completion_tokens=90, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        bare = [chunk async for chunk in await place.chat(stream=True)]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert len(texts) > 5 and "".join(texts) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(texts) - 1) + ["length"]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in bare)


async def test_a_message_is_streamed() -> None:
    async with simulated(latency=(0.01, 0.01)) as place:
        whole = await place.message(max_tokens=90)
        async with place.anthropic.messages.stream(model=CLAUDE, messages=MESSAGES, max_tokens=90) as stream:
            texts = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        events = [event.type async for event in await place.message(stream=True)]
    assert len(texts) > 5 and "".join(texts) == whole.content[0].text
    assert (final.usage.output_tokens, final.stop_reason) == (whole.usage.output_tokens, "max_tokens")
    assert (events[0], events[-1]) == ("message_start", "message_stop")


async def test_slot_is_free_before_the_client_gets_the_response() -> None:
    async with simulated(limits=Limits(concurrency=1)) as place:
        for _ in range(10):
            await place.chat()
            async for _ in await place.chat(stream=True):
                pass
            async for _ in await place.message(stream=True):
                pass
        stats = place.sim.stats()
    assert stats["violation_count"] == 0
    assert [account["max_concurrency"] for account in stats["accounts"]] == [1, 1]


async def test_abandoned_stream_ends(eventually: Any) -> None:
    async with simulated(latency=(60, 60)) as place:
        stream = await place.chat(stream=True)
        assert place.sim.stats()["accounts"][0]["in_flight"] == 1
        await stream.close()
        await eventually.aio(lambda: place.sim.stats()["accounts"][0]["in_flight"] == 0)


# Errors


async def test_errors_match_the_providers() -> None:
    async with simulated() as place:
        with pytest.raises(openai.NotFoundError) as no_model:
            await place.chat(model="nonesuch")
        with pytest.raises(openai.BadRequestError) as bad:
            await place.chat(max_completion_tokens="many")
        with pytest.raises(openai.AuthenticationError):
            await place.chat(extra_headers={"Authorization": openai.Omit()})
        with pytest.raises(anthropic.NotFoundError) as no_claude:
            await place.message(model="gpt-5")
        with pytest.raises(anthropic.BadRequestError) as no_messages:
            await place.message(messages=[])
        with pytest.raises(anthropic.AuthenticationError):
            await place.message(extra_headers={"Authorization": anthropic.Omit()})
        stats = place.sim.stats()
    assert (no_model.value.code, no_model.value.type) == ("model_not_found", "invalid_request_error")
    assert bad.value.param == "max_completion_tokens"
    assert (no_claude.value.type, no_messages.value.type) == ("not_found_error", "invalid_request_error")
    assert no_model.value.request_id and no_claude.value.request_id
    assert stats["statuses"] == {"404": 2, "400": 2, "401": 2}
    assert (stats["violation_count"], stats["accounts"]) == (0, [])


async def test_rate_limit_errors_match_the_providers() -> None:
    clock = Hand()
    async with simulated(limits=Limits(rpm=2), clock=clock) as place:
        for _ in range(2):
            await place.chat()
            await place.message()
        with pytest.raises(openai.RateLimitError) as refused:
            await place.chat()
        with pytest.raises(anthropic.RateLimitError) as other:
            await place.message()
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
        assert "Limit 2, Used 2, Requested 1. Please try again in 30s." in refused.value.message
        assert other.value.type == "rate_limit_error" and "2 requests per minute" in other.value.message
        for error in (refused.value, other.value):
            assert error.response.headers["retry-after"] == "30"
            assert error.response.headers["retry-after-ms"] == "30000"
        clock.now += 29.9
        with pytest.raises(openai.RateLimitError) as refused:
            await place.chat()
        assert refused.value.response.headers["retry-after"] == "1"
        assert refused.value.response.headers["retry-after-ms"] == "100"
        clock.now += 0.1
        await place.chat()
        await place.message()
        stats = place.sim.stats()
    assert stats["violation_count"] == 3
    assert stats["violations"][0] == {
        "at": 1_800_000_000.0,
        "provider": "openai",
        "model": GPT,
        "key": "…1234",
        "limit": "rpm",
        "requested": 1,
        "remaining": 0,
    }
    assert [account["violations"] for account in stats["accounts"]] == [{"rpm": 2}, {"rpm": 1}]
    assert stats["statuses"] == {"200": 6, "429": 3}


async def test_limits_apply_per_provider_model_and_key() -> None:
    async with simulated(limits={"openai": {"rpm": 1}, f"openai/{GPT}": {"rpm": 2}}) as place:
        await place.chat()
        await place.chat()
        await place.chat(model="gpt-5")
        await place.chat(extra_headers={"Authorization": "Bearer another"})
        await place.message()
        await place.message()
        with pytest.raises(openai.RateLimitError):
            await place.chat(model="gpt-5")
        stats = place.sim.stats()
    assert [account["requests"] for account in stats["accounts"]] == [2, 1, 1, 2]
    assert "secret" not in json.dumps(stats)


async def test_maximum_usage_counts_until_the_actual_usage_is_known() -> None:
    """A request counts with its input and all the output it may have; the rest comes back at its end."""
    clock = Hand()
    async with simulated(limits=Limits(tpm=1000), clock=clock) as place:
        chat = await place.chat(max_completion_tokens=990)
        used = chat.usage.total_tokens
        (account,) = place.sim.stats()["accounts"]
        assert (account["tokens"], account["max_tokens_60s"]) == (used, 995)
        with pytest.raises(openai.RateLimitError) as refused:
            await place.chat(max_completion_tokens=990)
        assert refused.value.type == "tokens"
        assert f"Limit 1000, Used {used}, Requested 995" in refused.value.message
        with pytest.raises(openai.RateLimitError) as too_large:
            await place.chat(max_completion_tokens=1000)
        assert f"Request too large for {GPT}" in too_large.value.message
        assert "retry-after" not in too_large.value.response.headers
        # Without a maximum it counts as the longest answer there is.
        await place.chat(max_completion_tokens=None)
        (account,) = place.sim.stats()["accounts"]
    assert account["violations"] == {"tpm": 2}
    assert account["max_tokens_60s"] == 995


async def test_openai_headers_report_remaining_limits() -> None:
    clock = Hand()
    async with simulated(limits=Limits(rpm=60, tpm=6000), clock=clock) as place:
        raw = await place.openai.chat.completions.with_raw_response.create(
            model=GPT, messages=MESSAGES, max_completion_tokens=20
        )
        found = {name: value for name, value in raw.headers.items() if name.startswith("x-ratelimit")}
        assert raw.headers["x-request-id"]
    assert found == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5975",
        "x-ratelimit-reset-tokens": "250ms",
    }


async def test_anthropic_headers_report_remaining_limits() -> None:
    clock = Hand()
    async with simulated(limits=Limits(rpm=60, itpm=30_000, otpm=8000), clock=clock) as place:
        raw = await place.anthropic.messages.with_raw_response.create(
            model=CLAUDE, messages=MESSAGES, max_tokens=800
        )
        prefix = "anthropic-ratelimit-"
        found = {name.removeprefix(prefix): value for name, value in raw.headers.items() if prefix in name}
        assert raw.headers["request-id"]
    assert found == {
        "requests-limit": "60",
        "requests-remaining": "59",
        "requests-reset": "2027-01-15T08:00:01Z",
        "tokens-limit": "38000",
        "tokens-remaining": "37000",
        "tokens-reset": "2027-01-15T08:00:06Z",
        "input-tokens-limit": "30000",
        "input-tokens-remaining": "30000",
        "input-tokens-reset": "2027-01-15T08:00:01Z",
        "output-tokens-limit": "8000",
        "output-tokens-remaining": "7000",
        "output-tokens-reset": "2027-01-15T08:00:06Z",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (0.9999, "1s"),
        (1.5, "1.5s"),
        (59.999, "59.999s"),
        (90.5, "1m30.5s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (3661.001, "1h1m1.001s"),
    ],
)
def test_durations_use_go_syntax(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_concurrency_limit_is_enforced(eventually: Any) -> None:
    async with simulated(limits=Limits(concurrency=2), latency=(3600, 3600)) as place:
        chats = [asyncio.create_task(place.chat()) for _ in range(4)]
        messages = [asyncio.create_task(place.message()) for _ in range(3)]
        await eventually.aio(lambda: sum(task.done() for task in (*chats, *messages)) == 3)
        stats = place.sim.stats()
    assert [each["limit"] for each in stats["violations"]] == ["concurrency"] * 3
    assert {account["max_concurrency"] for account in stats["accounts"]} == {2}
    assert {account["in_flight"] for account in stats["accounts"]} == {2}
    assert {account["in_flight"] for account in place.sim.stats()["accounts"]} == {0}
    refused = [await asyncio.gather(task, return_exceptions=True) for task in (*chats, *messages)]
    assert sum(isinstance(error, openai.RateLimitError) for (error,) in refused) == 2
    assert sum(isinstance(error, anthropic.RateLimitError) for (error,) in refused) == 1


async def test_exhausted_quota_rejects_requests() -> None:
    async with simulated(quota_exhausted_after=2) as place:
        for _ in range(2):
            await place.chat()
            await place.message()
        with pytest.raises(openai.RateLimitError) as refused:
            await place.chat(model="gpt-5")
        with pytest.raises(anthropic.RateLimitError) as other:
            await place.message()
        place.sim.configure(quota_exhausted_after=None)
        await place.chat()
        place.sim.configure(quota_exhausted=True)
        with pytest.raises(openai.RateLimitError):
            await place.chat()
        stats = place.sim.stats()
    assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
    assert other.value.error_code == "enforced_spend_limit_reached"
    for error in (refused.value, other.value):
        assert "retry-after" not in error.response.headers
    assert stats["violation_count"] == 0


# Faults


async def outcomes(place: Place, count: int) -> list[int]:
    found: list[int] = []
    for _ in range(count):
        try:
            await place.chat()
            found.append(200)
        except openai.APIStatusError as error:
            found.append(error.status_code)
    return found


async def test_faults_are_deterministic_for_a_seed() -> None:
    faults = {"429": 0.2, "500": 0.2, "529": 0.2}
    async with simulated(faults=faults, seed=3) as place:
        first = await outcomes(place, 20)
        place.sim.reset()
        place.sim.configure(latency=(0, 0.001))
        assert await outcomes(place, 20) == first
        stats = place.sim.stats()
    async with simulated(faults=faults, seed=4) as place:
        assert await outcomes(place, 20) != first
    assert set(first) == {200, 429, 500, 503}
    assert stats["faults"] == {"429": first.count(429), "500": first.count(500), "529": first.count(503)}
    assert stats["violation_count"] == 0
    (account,) = stats["accounts"]
    assert (account["requests"], account["input_tokens"]) == (20, first.count(200) * PROMPT_TOKENS)


async def test_faults_match_the_providers_errors() -> None:
    async with simulated(faults={"429": 1}) as place:
        with pytest.raises(openai.RateLimitError) as refused:
            await place.chat()
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.response.headers["retry-after"] == "1"
        with pytest.raises(anthropic.RateLimitError):
            await place.message()
        place.sim.configure(faults={"500": 1})
        with pytest.raises(openai.InternalServerError):
            await place.chat()
        with pytest.raises(anthropic.InternalServerError) as broken:
            await place.message()
        assert (broken.value.status_code, broken.value.type) == (500, "api_error")
        place.sim.configure(faults={"529": 1})
        with pytest.raises(openai.InternalServerError):
            await place.chat()
        with pytest.raises(anthropic.InternalServerError) as overloaded:
            await place.message(stream=True)
        assert (overloaded.value.status_code, overloaded.value.type) == (529, "overloaded_error")


async def test_timeout_fault_counts_usage_without_a_response(eventually: Any) -> None:
    async with simulated(faults={"timeout": 1}) as place:
        with pytest.raises(openai.APITimeoutError):
            await place.chat(timeout=openai.Timeout(30, read=0.1))
        with pytest.raises(anthropic.APITimeoutError):
            await place.message(timeout=anthropic.Timeout(30, read=0.1))
        await eventually.aio(
            lambda: all(account["in_flight"] == 0 for account in place.sim.stats()["accounts"])
        )
        stats = place.sim.stats()
    assert [account["output_tokens"] for account in stats["accounts"]] == [20, 20]
    assert (stats["faults"], stats["statuses"]) == ({"timeout": 2}, {})


async def test_hanging_requests_end_with_the_simulator(eventually: Any) -> None:
    async with AsyncExitStack() as serving:
        sim = await serving.enter_async_context(simulator.serve(faults={"timeout": 1}))
        async with openai.AsyncOpenAI(base_url=sim.openai_url, api_key="any", max_retries=0) as client:
            chat = client.chat.completions.create
            hanging = asyncio.create_task(chat(model=GPT, messages=MESSAGES))
            await eventually.aio(lambda: sim.stats()["faults"])
            sim.configure(faults={}, latency=(3600, 3600))
            waiting = asyncio.create_task(chat(model=GPT, messages=MESSAGES))
            await eventually.aio(lambda: sim.stats()["accounts"][0]["in_flight"] == 2)
            await serving.aclose()
            with pytest.raises(openai.InternalServerError):
                await hanging
            assert (await waiting).usage


# What is counted


def account_of(now: float = 0, **limits: int) -> Account:
    return Account("openai", GPT, "…", Limits(**limits), now)


def admit(account: Account, now: float, input_tokens: int = 0, output_tokens: int = 0) -> Admission:
    found = account.admit(Amount.of(input_tokens, output_tokens), now)
    assert isinstance(found, Admission)
    return found


def refuse(account: Account, now: float, input_tokens: int = 0, output_tokens: int = 0) -> Rejection:
    found = account.admit(Amount.of(input_tokens, output_tokens), now)
    assert isinstance(found, Rejection)
    return found


def test_bucket_refills_up_to_its_limit() -> None:
    account = account_of(rpm=7)
    for _ in range(7):
        admit(account, 0)
    assert refuse(account, 0).wait == pytest.approx(60 / 7)
    now = 0.0
    for _ in range(100):
        # Waiting exactly as told is always enough.
        now += refuse(account, now).wait
        admit(account, now)
    for _ in range(7):
        admit(account, now + 1000)
    refuse(account, now + 1000)


def test_each_limit_counts_its_own_unit() -> None:
    account = account_of(itpm=100, otpm=50, tpm=120)
    admit(account, 0, 60, 20)
    assert refuse(account, 0, 41, 0).limit == "itpm"
    assert refuse(account, 0, 38, 28).limit == "tpm"
    assert refuse(account, 0, 0, 31).limit == "otpm"
    assert refuse(account, 0, 0, 51).wait == math.inf
    admit(account, 0, 40, 0)
    assert account.violations == {"itpm": 1, "tpm": 1, "otpm": 2}


def test_hourly_limits_are_enforced() -> None:
    account = account_of(rph=2, tph=1000)
    admit(account, 0, 500)
    assert refuse(account, 0, 600).limit == "tph"
    admit(account, 0, 1)
    refused = refuse(account, 60, 1)
    assert (refused.limit, refused.wait) == ("rph", pytest.approx(1740))
    admit(account, 1800)


def test_usage_above_the_estimate_makes_the_bucket_negative() -> None:
    account = account_of(tpm=100)
    account.settle(admit(account, 0, 10, 10), Amount.of(10, 150), 0)
    assert refuse(account, 0, 1).wait == pytest.approx(61 * 60 / 100)
    assert account.buckets["tpm"].remaining == 0
    assert account.stats(0)["max_tokens_60s"] == 160


def test_changed_limits_keep_the_remaining_amount() -> None:
    account = account_of(rpm=10, tpm=100)
    for _ in range(8):
        admit(account, 0, 10)
    account.change(Limits(rpm=5, tpm=1000, concurrency=9), 0)
    assert account.buckets["rpm"].remaining == 2
    assert account.buckets["tpm"].remaining == 20
    admit(account, 0)
    assert refuse(account, 0).limit == "concurrency"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 100), st.integers(0, 100)), max_size=40))
def test_windows_record_the_maximum(steps: list[tuple[int, int, int]]) -> None:
    account, now, seen = account_of(), 0, list[tuple[int, int]]()
    most_requests = most_tokens = 0
    for wait, counted, used in steps:
        now += wait
        admission = admit(account, now, counted)
        for tokens in (counted, used):
            recent = [t for at, t in seen if at > now - 60] + [tokens]
            most_requests, most_tokens = max(most_requests, len(recent)), max(most_tokens, sum(recent))
        account.settle(admission, Amount.of(used, 0), now)
        seen.append((now, used))
    stats = account.stats(now)
    assert (stats["max_requests_60s"], stats["max_tokens_60s"]) == (most_requests, most_tokens)
    assert stats["max_requests_3600s"] == len(steps)


def test_late_correction_does_not_change_a_past_window() -> None:
    account = account_of()
    late = admit(account, 0, 100)
    admit(account, 61, 10)
    account.settle(late, Amount.of(1000, 0), 62)
    stats = account.stats(62)
    assert (stats["max_tokens_60s"], stats["max_tokens_3600s"]) == (100, 1010)


def test_used_capacity_is_a_share_of_the_limit() -> None:
    account = account_of(rpm=60, tpm=1000)
    for second in range(120):
        account.settle(admit(account, second, 10), Amount.of(5, 0), second + 1)
    assert account.stats(500)["used"] == {"rpm": 1, "tpm": 0.3}
    assert account.stats(120, 60)["used"] == {
        "rpm": pytest.approx(1, abs=0.02),
        "tpm": pytest.approx(0.3, abs=0.01),
    }
    assert account.stats(500, 60)["used"] == {"rpm": 0, "tpm": 0}
    assert account_of(rpm=60).stats(0)["used"] == {"rpm": 0}


# Its clock, and its control


async def test_clock_runs_at_the_configured_speed() -> None:
    async with simulated(speed=1000, latency=(20, 20), limits=Limits(rpm=1)) as place:
        before = place.sim.clock()
        await place.chat()
        assert place.sim.clock() - before >= 20
        place.sim.configure(latency=(60, 60))
        await place.message()
        await place.chat()
        assert place.sim.stats()["violation_count"] == 0


async def test_simulator_is_controlled_over_http() -> None:
    clock = Hand()
    async with simulated(clock=clock) as place:
        await place.chat()
        changed = await place.control(
            "POST", "config", {"limits": {"default": {"rpm": 1}}, "latency": [0, 0]}
        )
        assert changed["limits"]["default"]["rpm"] == 1
        assert changed == await place.control("GET", "config")
        await place.chat()
        with pytest.raises(openai.RateLimitError):
            await place.chat()
        stats = await place.control("GET", "stats")
        assert stats == place.sim.stats()
        assert (stats["requests"], stats["violation_count"]) == (3, 1)
        clock.now += 100
        recent = await place.control("GET", "stats?seconds=60")
        assert (stats["accounts"][0]["used"], recent["accounts"][0]["used"]) == ({"rpm": 2}, {"rpm": 0})
        await place.control("POST", "config", {"quota_exhausted": True})
        assert (await place.control("POST", "reset"))["requests"] == 0
        assert place.sim.stats()["accounts"] == []
        with pytest.raises(openai.RateLimitError) as refused:
            await place.chat()
        assert refused.value.code == "insufficient_quota"


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {"limit": {}},
        {"self": 1},
        {"limits": {"nobody": {"rpm": 1}}},
        {"limits": {"openai/": {"rpm": 1}}},
        {"limits": {"default": {"rpm": 0}}},
        {"limits": {"default": {"rpm": "1"}}},
        {"limits": {"default": {"speed": 1}}},
        {"limits": 5},
        {"faults": {"418": 0.1}},
        {"faults": {"429": 0.6, "500": 0.6}},
        {"faults": {"429": -1}},
        {"latency": [2, 1]},
        {"latency": [0, 1e9]},
        {"latency": 1},
        {"quota_exhausted_after": -1},
    ],
    ids=repr,
)
def test_invalid_configuration_is_rejected(fields: Any) -> None:
    sim = Simulator(simulator.Config())
    with pytest.raises((Invalid, TypeError)):
        sim.configure(**fields)
    assert sim.config == simulator.Config()


@pytest.mark.slow
async def test_any_request_gets_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_BYTES", 100_000)
    posts = ["/v1/messages/count_tokens", *(path for provider in PROVIDERS for path in provider.endpoints)]
    base = {"model": GPT, "messages": MESSAGES, "max_tokens": 5, "input": "x", "prompt": "x"}
    wrong: list[Any] = [None, "x", {}, True, [[]], [{}], {"role": []}, 0, 10**30, "\ud800"]
    bodies = [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"1",
        b"[" * 50_000,
        b'{"a":' * 20_000,
        b'{"model": NaN}',
        b"x" * 200_000,
    ]
    bodies += [json.dumps({**base, name: value}).encode() for name in base for value in wrong]
    bodies += [
        json.dumps({**base, name: value}).encode()
        for name in (
            "stream",
            "stream_options",
            "n",
            "dimensions",
            "system",
            "instructions",
            "encoding_format",
        )
        for value in wrong
    ]
    headers = {"authorization": "Bearer x", "anthropic_version": "2023-06-01"}
    async with simulated(limits=Limits(tpm=10**9)) as place:

        def send_all(path: str) -> list[int]:
            connection = HTTPConnection(urlsplit(place.sim.url).netloc, timeout=10)
            found: list[int] = []
            for body in bodies:
                connection.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
                response = connection.getresponse()
                response.read()
                found.append(response.status)
            connection.close()
            return found

        for path in posts:
            statuses = await asyncio.to_thread(send_all, path)
            assert set(statuses) <= {200, 400, 404, 413}, (path, statuses)
            assert statuses[:10] == [400] * 9 + [413], path
        for method, path, expected in (
            ("GET", "/v1/chat/completions", 405),
            ("POST", "/v1/models", 405),
            ("POST", "/v1/nothing", 404),
            ("GET", "/", 404),
            ("GET", "/_simulator/nothing", 404),
            ("POST", "/_simulator/stats", 404),
            ("GET", "/_simulator/stats?seconds=x", 422),
            ("GET", "/_simulator/stats?seconds=nan", 422),
            ("GET", "/_simulator/stats?seconds=1e9", 422),
            ("POST", "/_simulator/config", 422),
        ):
            status, _, answer = await place.send(method, path, b"[", **headers)
            assert (status, "error" in answer) == (expected, True), path
        status, _, answer = await place.send("POST", "/v1/messages", b"{}", x_api_key="x")
        assert (status, answer["type"]) == (400, "error")
        # Somebody who hangs up in the middle of a sentence.
        _, writer = await asyncio.open_connection(*urlsplit(place.sim.url).netloc.split(":"))
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await place.chat()
        stats = place.sim.stats()
    assert all(account["in_flight"] == 0 for account in stats["accounts"])


# Where it listens


async def test_simulator_listens_on_loopback_only() -> None:
    for host in ("0.0.0.0", "192.0.2.1", "example.com", "::", ""):  # noqa: S104
        with pytest.raises(Invalid, match="loopback addresses only"):
            async with simulator.serve(host=host):
                pass
    async with simulated(host="localhost") as place:
        port = urlsplit(place.sim.url).port or 0
        assert place.sim.url.startswith("http://127.0.0.1:")
        with pytest.raises(PenstockError, match="cannot listen"):
            async with simulator.serve(port=port):
                pass
    for speed in (0, -1, math.nan, math.inf):
        with pytest.raises(Invalid):
            async with simulator.serve(speed=speed):
                pass


@pytest.mark.slow
async def test_simulate_command_runs_until_stopped(tmp_path: Path) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps({f"openai/{GPT}": {"rpm": 1}}))
    arguments = ["simulate", "--limits", str(limits), "--latency", "0", "--seed", "5", "--faults", "429=0"]
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "penstock", *arguments], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert process.stdout
        words = (await asyncio.to_thread(process.stdout.readline)).split()
        assert words[0::2] == ["OpenAI:", "Anthropic:", "Sheets:", "CloudConvert:", "Stripe:"]
        async with openai.AsyncOpenAI(base_url=words[1], api_key="any", max_retries=0) as client:
            await client.chat.completions.create(model=GPT, messages=MESSAGES)
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model=GPT, messages=MESSAGES)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--host", "0.0.0.0"],  # noqa: S104
        ["--latency", "slow"],
        ["--latency", "2..1"],
        ["--faults", "429"],
        ["--faults", "418=0.5"],
        ["--limits", "/nowhere.json"],
        ["--limits", "/nowhere.json", "--rpm", "1"],
        ["--speed", "0"],
        ["--sheet", "/nowhere.csv"],
        ["--sheets-faults", "529=0.5"],
    ],
    ids=" ".join,
)
def test_simulate_command_rejects_invalid_options(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["simulate", *arguments]) == 2
    assert capsys.readouterr().err.startswith("Error: ")


def test_cli_does_not_import_a_web_server() -> None:
    script = "import sys, penstock.cli; sys.exit(bool({'uvicorn', 'starlette'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], env=os.environ).returncode == 0
