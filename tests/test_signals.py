"""What a provider's answer says about its limits, in the headers and words of each."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import simulator
from penstock.sdk import signals
from penstock.sdk.context import Context, Hooks
from penstock.simulator import Limits, Simulator

TLS = ssl.create_default_context()
MESSAGES: Any = [{"role": "user", "content": "What is a penstock?"}]
PLENTY = {"x-ratelimit-limit-requests": "500", "x-ratelimit-remaining-requests": "499"}


class Refused(Exception):
    """As clients raise it: with the response, and perhaps a decoded body."""

    def __init__(
        self, status: Any, headers: Any = None, body: Any = None, response_body: Any = ValueError
    ) -> None:
        super().__init__("refused")
        self.body = body

        def decoded() -> Any:
            if response_body is ValueError:
                raise ValueError("no JSON")
            return response_body

        self.response = SimpleNamespace(status_code=status, headers=headers, json=decoded)


def http_error(status: int, headers: Mapping[str, str], body: bytes = b"") -> urllib.error.HTTPError:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return urllib.error.HTTPError("http://127.0.0.1/", status, "no", message, BytesIO(body))


# Headers


def test_openai_headers_are_read() -> None:
    headers = {
        "X-RateLimit-Limit-Requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-limit-tokens": "200000",
        "x-ratelimit-remaining-tokens": "150000",
        "x-ratelimit-reset-tokens": "15s",
    }
    assert signals.read(200, headers) == {
        "status": 200,
        "requests": {"limit": 500, "remaining": 499},
        "tokens": {"limit": 200000, "remaining": 150000},
    }


def test_anthropic_headers_are_read() -> None:
    headers = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2026-03-01T12:00:00Z",
        "anthropic-ratelimit-tokens-limit": "30000",
        "anthropic-ratelimit-tokens-remaining": "29000",
        "anthropic-ratelimit-input-tokens-limit": "20000",
        "anthropic-ratelimit-input-tokens-remaining": "19000",
    }
    assert signals.read(200, headers) == {
        "status": 200,
        "requests": {"limit": 50, "remaining": 0},
        "tokens": {"limit": 30000, "remaining": 29000},
    }


def test_daily_limits_are_ignored() -> None:
    """A limit of 200 requests a day is not one of 200 a minute."""
    headers = {
        "x-ratelimit-limit-requests": "200",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "23h38m24s",
        "x-ratelimit-limit-tokens": "10000",
        "x-ratelimit-remaining-tokens": "9000",
        "x-ratelimit-reset-tokens": "2m0s",
    }
    found = signals.read(200, headers)
    assert found == {"status": 200, "tokens": {"limit": 10000, "remaining": 9000}}
    assert not signals.is_scarce(found)


@pytest.mark.parametrize(
    "pair",
    [
        {"limit": "500"},
        {"remaining": "499"},
        {"limit": "many", "remaining": "499"},
        {"limit": "500", "remaining": ""},
        {"limit": "-500", "remaining": "499"},
        {"limit": "nan", "remaining": "1"},
        {"limit": "inf", "remaining": "1"},
        {"limit": "1e16", "remaining": "1"},
        {"limit": "9" * 400, "remaining": "1"},
    ],
)
def test_missing_and_invalid_numbers_are_ignored(pair: dict[str, str]) -> None:
    assert signals.read(200, {f"x-ratelimit-{name}-tokens": text for name, text in pair.items()}) == {
        "status": 200
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6m0s", 360),
        ("1.5s", 1.5),
        ("20ms", 0.02),
        ("1h2m3s", 3723),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("7ns", 7e-9),
        ("0s", 0),
        (" 2s ", 2),
        ("", None),
        ("soon", None),
        ("12", None),
        ("-1s", None),
        ("1s later", None),
        ("1d", None),
    ],
)
def test_go_durations_are_parsed(text: str, seconds: float | None) -> None:
    assert signals.duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2),
        ({"retry-after-ms": "-5", "retry-after": "2"}, 2),
        ({"retry-after": "1000000000"}, 86400),
        ({"retry-after-ms": "1e300"}, 86400),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 86400),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "infinity"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Wed, 99 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 +99999999999999999999"}, None),
        ({"retry-after": "1 Jan 2026 0:3000000000"}, None),
    ],
)
def test_retry_after_is_parsed(headers: dict[str, str], seconds: float | None) -> None:
    assert signals.read(429, headers).get("retry_after_seconds") == seconds


def test_retry_after_date_is_parsed() -> None:
    at = datetime.now(UTC) + timedelta(seconds=30)
    for text in (format_datetime(at, usegmt=True), format_datetime(at.replace(tzinfo=None))):
        assert 20 < signals.read(503, {"retry-after": text})["retry_after_seconds"] <= 30


# Bodies


@pytest.mark.parametrize(
    ("status", "body", "is_exhausted"),
    [
        (429, {"error": {"code": "insufficient_quota", "message": "Pay."}}, True),
        (429, {"code": "insufficient_quota", "message": "Pay."}, True),  # as the openai client hands it on
        (429, {"error": {"type": "insufficient_quota", "code": None, "message": "Pay."}}, True),
        (429, {"error": {"code": "billing_hard_limit_reached", "message": "Pay."}}, True),
        (429, {"error": {"code": "billing_not_active", "message": "Pay."}}, True),
        (
            429,
            {
                "type": "error",
                "error": {
                    "type": "rate_limit_error",
                    "message": "Pay.",
                    "details": {"error_code": "enforced_spend_limit_reached"},
                },
            },
            True,
        ),
        (402, {"error": {"message": "Pay."}}, True),
        (402, None, True),
        (429, {"error": {"code": "rate_limit_exceeded", "message": "Slow."}}, False),
        (429, {"error": {"type": "rate_limit_error", "details": {"error_code": "other"}}}, False),
        (429, {"error": {"type": "rate_limit_error", "details": "insufficient_quota"}}, False),
        (400, {"error": {"code": "insufficient_quota"}}, False),
    ],
)
def test_exhausted_account_differs_from_rate_limit(status: int, body: Any, is_exhausted: bool) -> None:
    assert signals.read(status, {}, body).get("exhausted", False) is is_exhausted


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": {"message": "Slow down."}}, "Slow down."),
        ({"error": "Slow down."}, "Slow down."),
        ({"message": "Slow down."}, "Slow down."),
        ({"error": {"message": "x" * 2000}}, "x" * 500),
        ({"error": {"message": ["odd"]}}, "['odd']"),
        ({"error": {"message": ""}}, None),
        ({"error": None}, None),
        ({"error": {}}, None),
        ({}, None),
        ([{"error": "no"}], None),
        ("<html>Bad Gateway</html>", None),
        (b"\xff", None),
        (17, None),
        (None, None),
    ],
)
def test_message_is_read_from_any_body(body: Any, message: str | None) -> None:
    assert signals.read(429, {}, body).get("message") == message


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "code", "type", "details", "error_code", "message"]), children
        )
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "retry-after",
        "retry-after-ms",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
    ]
)
DATES = st.from_regex(
    r"(Mon, )?[0-9]{1,3} (Jan|Feb|Foo) [0-9]{1,6} [0-9:]{0,12} ?([+-][0-9]{1,12}|GMT|)", fullmatch=True
)


@given(status=st.integers(100, 599), headers=st.dictionaries(NAMES, st.text(max_size=30) | DATES), body=JSON)
def test_any_response_is_read_without_error(status: int, headers: dict[str, str], body: Any) -> None:
    found = signals.read(status, headers, body)
    json.dumps(found, allow_nan=False)
    assert 0 <= found.get("retry_after_seconds", 0) <= 86400
    for meter in ("requests", "tokens"):
        assert all(number >= 0 for number in found.get(meter, {}).values())
    signals.is_scarce(found)
    signals.of(Refused(status, headers, body))


# Exceptions


@pytest.mark.parametrize(
    ("status", "headers", "is_refusal"),
    [
        (429, {}, True),
        (529, {}, True),
        (402, {}, True),
        (503, {"retry-after": "3"}, True),
        (503, {}, False),
        (503, {"retry-after": "soon"}, False),
        (500, {"retry-after": "3"}, False),
        (400, {}, False),
        (401, {}, False),
        (200, PLENTY, False),
    ],
)
def test_rate_limit_statuses_are_recognized(status: int, headers: dict[str, str], is_refusal: bool) -> None:
    """The same for every client: with a response, and as urllib raises it, which is its own."""
    errors: list[BaseException] = [Refused(status, headers), http_error(status, headers)]
    for error in errors:
        found = signals.of(error)
        assert (found is not None) is is_refusal
        own = {} if isinstance(error, Refused) else {"host": "127.0.0.1"}
        assert found is None or found == signals.read(status, headers) | own


def test_body_is_decoded_from_the_response() -> None:
    body = {"error": {"code": "insufficient_quota", "message": "Pay."}}
    wanted = {"status": 429, "message": "Pay.", "exhausted": True}
    assert signals.of(Refused(429, response_body=body)) == wanted
    assert signals.of(Refused(429, body=body, response_body={"error": "not this one"})) == wanted
    assert signals.of(Refused(429)) == {"status": 429}


def test_exception_with_only_a_status_is_read() -> None:
    error = RuntimeError("busy")
    error.status_code = 429  # type: ignore[attr-defined]
    assert signals.of(error) == {"status": 429}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("429"),
        KeyboardInterrupt(),
        SystemExit(429),
        Refused("429"),
        Refused(None),
        urllib.error.URLError("nobody there"),
    ],
)
def test_other_exceptions_have_no_signal(error: BaseException) -> None:
    assert signals.of(error) is None


@pytest.mark.parametrize("headers", [None, {}, [], 7, "text", [("retry-after",)], object()])
def test_invalid_headers_are_ignored(headers: Any) -> None:
    assert signals.of(Refused(429, headers)) == {"status": 429}


def test_headers_as_pairs() -> None:
    assert signals.of(Refused(429, [("Retry-After", "2")])) == {"status": 429, "retry_after_seconds": 2}


def test_urllib_body_is_not_read() -> None:
    """The worker asks in its event loop: nothing is read there that may still be on its way."""
    body = b'{"error": {"code": "insufficient_quota", "message": "Pay."}}'
    with http_error(429, {"Retry-After": "2"}, body) as error:
        limited = {"status": 429, "retry_after_seconds": 2, "host": "127.0.0.1"}
        assert signals.of(error) == limited
        assert error.read() == body
        error.body = json.loads(body)  # type: ignore[attr-defined]
        found = signals.of(error)
    assert found == {**limited, "message": "Pay.", "exhausted": True}


def test_empty_urllib_error_is_read() -> None:
    error = urllib.error.HTTPError("http://127.0.0.1/", 429, "no", None, None)  # type: ignore[arg-type]
    assert signals.of(error) == {"status": 429, "host": "127.0.0.1"}


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://API.example.com:8443/v1?key=secret", "api.example.com"),
        ("https://api.openai.com@evil.example/", "evil.example"),
        ("no address", "unknown"),
        ("http://[::1", "unknown"),
    ],
)
def test_the_host_that_answered_is_read(url: str, host: str) -> None:
    """S72: an answer counts for a provider only if one of its own hosts gave it."""
    error = urllib.error.HTTPError(url, 429, "no", None, None)  # type: ignore[arg-type]
    assert signals.of(error) == {"status": 429, "host": host}


# What is worth telling


@pytest.mark.parametrize(
    ("signal", "is_scarce"),
    [
        ({"status": 200}, False),
        ({"status": 429}, True),
        ({"status": 529}, True),
        ({"status": 503}, False),
        ({"status": 503, "retry_after_seconds": 3}, True),
        ({"status": 402, "exhausted": True}, True),
        ({"status": 500}, False),
        ({"status": 200, "requests": {"limit": 100, "remaining": 20}}, False),
        ({"status": 200, "requests": {"limit": 100, "remaining": 19}}, True),
        ({"status": 200, "tokens": {"limit": 1000, "remaining": 0}}, True),
        (
            {
                "status": 200,
                "requests": {"limit": 100, "remaining": 90},
                "tokens": {"limit": 10, "remaining": 1},
            },
            True,
        ),
    ],
)
def test_only_scarce_signals_are_reported(signal: dict[str, Any], is_scarce: bool) -> None:
    assert signals.is_scarce(signal) is is_scarce


async def test_handler_reports_only_scarce_signals() -> None:
    heard: list[dict[str, Any]] = []

    class Listening(Hooks):
        async def report_signal(self, ctx: Context, signal: dict[str, Any]) -> None:
            heard.append(signal)

    ctx = Context.fake()
    ctx._hooks = Listening()
    for status, headers in (
        (200, PLENTY),
        (200, {**PLENTY, "x-ratelimit-remaining-requests": "3"}),
        (503, {"retry-after": "4"}),
    ):
        await ctx.areport_response(SimpleNamespace(status_code=status, headers=headers))
    assert heard == [
        {"status": 200, "requests": {"limit": 500, "remaining": 3}},
        {"status": 503, "retry_after_seconds": 4},
    ]


# The providers' own clients, and urllib, against the simulator


async def by_openai(sim: Simulator) -> Any:
    http = openai.DefaultAsyncHttpxClient(verify=TLS)
    async with openai.AsyncOpenAI(
        base_url=sim.openai_url, api_key="any", max_retries=0, http_client=http
    ) as client:
        await client.chat.completions.create(model="gpt-5-mini", messages=MESSAGES, max_completion_tokens=20)


async def by_anthropic(sim: Simulator) -> Any:
    http = anthropic.DefaultAsyncHttpxClient(verify=TLS)
    async with anthropic.AsyncAnthropic(
        base_url=sim.anthropic_url, api_key="any", max_retries=0, http_client=http
    ) as client:
        await client.messages.create(model="claude-haiku-4-5", messages=MESSAGES, max_tokens=20)


async def by_urllib(sim: Simulator) -> Any:
    question = {"model": "gpt-5-mini", "messages": MESSAGES, "max_tokens": 20}
    request = urllib.request.Request(  # noqa: S310 (our own)
        f"{sim.openai_url}/chat/completions",
        json.dumps(question).encode(),
        {"authorization": "Bearer any", "content-type": "application/json"},
    )

    def ask() -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(request, timeout=10).close()

    await asyncio.to_thread(ask)


async def refusal(ask: Any, sim: Simulator) -> dict[str, Any] | None:
    """The signal of the first call that does not work."""
    while True:
        try:
            await ask(sim)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            return signals.of(error)
        except urllib.error.HTTPError as error:
            with error:
                return signals.of(error)


@pytest.mark.parametrize("ask", [by_openai, by_anthropic, by_urllib])
async def test_a_limit_that_is_reached(ask: Any) -> None:
    """R3.4/slows: when to come back, and what is left, from the client's own exception."""
    async with simulator.serve(limits=Limits(rpm=2, tpm=20_000), clock=lambda: 1_800_000_000.0) as sim:
        found = await refusal(ask, sim)
        assert found is not None and sim.requests == 3
    assert (found["status"], found["retry_after_seconds"]) == (429, 30)
    assert found["requests"] == {"limit": 2, "remaining": 0}
    assert found["tokens"]["limit"] == 20_000 and found["tokens"]["remaining"] > 19_000
    assert "exhausted" not in found and signals.is_scarce(found)
    assert ("message" in found) is (ask is not by_urllib)


@pytest.mark.parametrize("ask", [by_openai, by_anthropic])
async def test_exhausted_account_is_recognized(ask: Any) -> None:
    async with simulator.serve(quota_exhausted_after=1) as sim:
        found = await refusal(ask, sim)
    assert found is not None and found["status"] == 429 and found["exhausted"] is True
    assert found["message"].startswith(("You exceeded", "You have reached"))
    assert "retry_after_seconds" not in found


async def test_overload_is_read_from_status_529() -> None:
    """Anthropic has a status of its own for it; at OpenAI it is an error like others."""
    async with simulator.serve(faults={"529": 1}) as sim:
        assert await refusal(by_anthropic, sim) == {
            "status": 529,
            "message": "Overloaded",
            "host": "127.0.0.1",
        }
        assert await refusal(by_openai, sim) is None
        assert await refusal(by_urllib, sim) is None


@pytest.mark.parametrize("ask", [by_openai, by_anthropic, by_urllib])
async def test_server_error_is_not_a_rate_limit(ask: Any) -> None:
    async with simulator.serve(faults={"500": 1}) as sim:
        assert await refusal(ask, sim) is None
