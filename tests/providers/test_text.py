"""Adapters of text: recorded answers through the official clients, and the simulators on the same wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import Context, Fail, Retry, simulator
from penstock.providers import (
    Answer,
    Connection,
    Image,
    Schema,
    TextRequest,
    VisionRequest,
    adapter,
    ask,
    most_units,
    reasoning_units,
    room_to_think,
)
from penstock.providers.catalogue import shipped
from penstock.providers.connection import Key, host_of
from penstock.providers.hosts import OWN
from penstock.providers.openai_text import CompatibleText
from penstock.sdk import signals
from penstock.simulator import answers, content
from tests.providers.conftest import RECORDED, Wire, recording, replay

TEXTS = sorted(
    path.stem
    for path in RECORDED.glob("*.json")
    if path.stem.split("_")[0] in ("chat", "responses", "messages")
)
MODELS = {"openai": "gpt-5.4-mini", "anthropic": "claude-haiku-5-5", "openai-compatible": "gpt-4o-mini"}
PATHS = {
    "openai": "/v1/responses",
    "anthropic": "/v1/messages",
    "openai-compatible": "/v1/chat/completions",
}
REQUEST = TextRequest("Hello!", 50, system="Be brief.", language="pt-BR")


def connected(name: str) -> Connection:
    provider = "openai" if name == "openai-compatible" else name
    url = OWN[provider].url
    return Connection(provider, url, Key(host_of(url), "sk-test"))


async def submit(name: str, request: Any = REQUEST) -> Any:
    found = CompatibleText() if name == "openai-compatible" else adapter(name, request.medium)
    return await found.submit(connected(name), MODELS[name], request)


@pytest.mark.parametrize("name", TEXTS)
async def test_recorded_answer_of_text_is_understood(wire: Wire, name: str) -> None:
    """R0.10/text: a whole answer with its units, or a failure with a code and what it cost."""
    found = replay(wire, name)
    how = found["adapter"]
    if "answer" in found:
        answer = await submit(how)
        assert (answer.text, dict(answer.units)) == (found["answer"]["text"], found["answer"]["units"])
    elif "signal" in found:
        with pytest.raises(Exception) as limited:
            await submit(how)
        signal = signals.of(limited.value)
        assert signal is not None and found["signal"].items() <= signal.items()
        assert signal["host"] == host_of(connected(how).url)
    else:
        with pytest.raises((Fail, Retry)) as failed:
            await submit(how)
        assert failed.value.code == found["failure"]["code"]
        paid = getattr(failed.value, "answer", None)
        assert (paid and dict(paid.units)) == found["failure"].get("units")
    [request] = wire.requests
    assert request.url.path == PATHS[how] and request.url.host == host_of(connected(how).url)


@pytest.mark.parametrize("how", PATHS)
async def test_request_has_language_and_room_to_think(wire: Wire, how: str) -> None:
    replay(wire, {"openai": "responses_completed", "anthropic": "messages_end_turn"}.get(how, "chat_stop"))
    await submit(how)
    sent = wire.sent()
    assert "pt-BR" in json.dumps(sent) and "Be brief." in json.dumps(sent)
    most = sent.get("max_output_tokens") or sent.get("max_completion_tokens") or sent["max_tokens"]
    provider = connected(how).provider
    assert most == 50 + room_to_think(f"{provider}/{MODELS[how]}")
    assert room_to_think("openai/gpt-5.4-mini") > 10_000 == 10_000 + room_to_think("openai/gpt-4o-mini")
    assert room_to_think("openai/gpt-9") > 10_000 and room_to_think("house/qwen") == 0


def test_a_route_reserves_the_room_that_adapters_allow() -> None:
    """A reservation without a provider, and what a route adds for one, make up the reservation with it."""
    request = TextRequest("Why?", 50, system="Be brief.", language="pt-BR")
    plain, extra = most_units(request), reasoning_units()
    texts = [name for name, model in shipped().models.items() if "text" in model.media]
    for name in [*texts, "openai/gpt-9", "anthropic/claude-9", "house/qwen", "simulator/gpt-brook"]:
        added = extra.get(name) or extra.get(f"{name.partition('/')[0]}/*") or {"output_tokens": 0}
        assert added == {"output_tokens": room_to_think(name)}, name
        assert most_units(request, name) == {
            **plain,
            "output_tokens": 50 + added["output_tokens"],
        }


@pytest.mark.parametrize("how", PATHS)
async def test_images_schemas_and_turns_reach_the_wire(wire: Wire, how: str) -> None:
    replay(wire, {"openai": "responses_completed", "anthropic": "messages_end_turn"}.get(how, "chat_stop"))
    picture = Image(content.picture("x", 0, 0))
    schema = Schema("thing", {"type": "object"})
    turns: Any = (("assistant", "one"), ("user", "two"))
    await submit(how, TextRequest("Look.", 50, schema=schema, images=(picture,), turns=turns))
    sent = json.dumps(wire.sent())
    assert all(word in sent for word in ("iVBOR", "json_schema", "one", "two"))
    await submit(how, VisionRequest(picture, ("de", "en")))
    sent = json.dumps(wire.sent())
    assert all(word in sent for word in ("iVBOR", "Transcribe", "de, en"))


@pytest.mark.parametrize("name", ["chat_stop", "messages_end_turn"])
async def test_limits_are_read_from_headers(wire: Wire, name: str) -> None:
    found = replay(wire, name)
    answer = await submit(found["adapter"])
    assert answer.signal["requests"]["remaining"] == answer.signal["requests"]["limit"] - 1
    assert signals.is_scarce(answer.signal)


def test_recordings_name_their_source() -> None:
    for path in RECORDED.glob("*.json"):
        found = recording(path.stem)
        assert found["source"].startswith("https://") and {"answer", "failure", "signal"} & set(found), path


# The simulators


class Spending:
    """A context that keeps the usage that is reported."""

    def __init__(self) -> None:
        self.ctx = Context.fake(provider="openai/gpt-5.4-mini")
        self.units: list[dict[str, float]] = []
        self.ctx._hooks.usage = self._usage  # type: ignore[method-assign]

    async def _usage(self, ctx: Context, units: dict[str, float], variant: str) -> None:
        self.units.append(units)


PROVIDERS = ["openai/gpt-5.4-mini", "house/gpt-4o-mini", "anthropic/claude-haiku-5-5"]


def url_at(running: simulator.Simulator, provider: str) -> str:
    return running.anthropic_url if provider.startswith("anthropic") else running.openai_url


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_simulated_models_answer_official_clients(provider: str) -> None:
    spending = Spending()
    async with simulator.serve(reasoning_tokens=40) as running:
        request = TextRequest("Write about “otters” in about 30 words.", 300)
        answer = await ask(spending.ctx, request, provider=provider, url=url_at(running, provider))
        picture = Image(content.picture("x", 0, 0))
        seen = await ask(
            spending.ctx, VisionRequest(picture), provider=provider, url=url_at(running, provider)
        )
        schema = Schema("thing", {"type": "object", "properties": {"a": {"type": "integer"}}})
        document = await ask(
            spending.ctx,
            TextRequest("A thing.", 100, schema=schema),
            provider=provider,
            url=url_at(running, provider),
        )
    assert isinstance(answer, Answer) and "otter" in answer.text.lower()
    assert answer.units["output_tokens"] == 40 + content.tokens(answer.text)
    assert seen.text and isinstance(json.loads(document.text)["a"], int)
    assert spending.units == [dict(each.units) for each in (answer, seen, document)]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("outcome", "code"),
    [("refusal", "model_refused"), ("filter", "content_filtered"), ("truncated", "answer_truncated")],
)
async def test_unusable_answer_fails_and_is_paid_for(provider: str, outcome: Any, code: str) -> None:
    """R0.10/bad-answers: refused, filtered and cut-off answers are failures with a code, never text."""
    spending = Spending()
    async with simulator.serve(answers={outcome: 1}) as running:
        with pytest.raises((Fail, Retry)) as failed:
            await ask(
                spending.ctx, TextRequest("Write.", 300), provider=provider, url=url_at(running, provider)
            )
    # Anthropic has no filter beside its refusals.
    expected = "model_refused" if (provider.startswith("anthropic") and outcome == "filter") else code
    assert failed.value.code == expected
    assert len(spending.units) == 1 and spending.units[0]["input_tokens"] > 0


@pytest.mark.parametrize(("thought", "is_enough"), [(20_000, True), (30_000, False)])
async def test_reasoning_uses_its_own_room(thought: int, is_enough: bool) -> None:
    """R0.10/bad-answers: a model that thinks answers, unless it thinks for longer than its room."""
    async with simulator.serve(reasoning_tokens=thought) as running:
        request = TextRequest("Write about “otters” in about 30 words.", 100)
        call = ask(Context.fake(), request, provider="openai/gpt-5.4-mini", url=running.openai_url)
        if is_enough:
            assert (await call).units["output_tokens"] > thought
            return
        with pytest.raises(Retry) as failed:
            await call
    assert failed.value.code == "answer_truncated"


def test_refusal_of_the_simulator_is_no_answer() -> None:
    assert "can't" in answers.REFUSAL
