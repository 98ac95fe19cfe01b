"""Adapters of speech, vision and video: recorded answers, and the simulators on the same wire."""

from __future__ import annotations

import base64
import inspect
import io
import json
import wave
from decimal import Decimal
from typing import Any

import pytest

from penstock import Context, Fail, Retry, simulator
from penstock.providers import (
    Adapter,
    Answer,
    Connection,
    Image,
    SpeechRequest,
    Submitted,
    VideoRequest,
    VisionRequest,
    adapter,
    adapters,
    ask,
    catalogue,
    failures,
)
from penstock.providers.connection import Key, host_of
from penstock.providers.hosts import OWN
from penstock.sdk import signals
from penstock.simulator import content
from tests.providers.conftest import RECORDED, Wire, recording

MEDIA = sorted(path.stem for path in RECORDED.glob("*.json") if "medium" in json.loads(path.read_text()))
PICTURE = Image(content.picture("x", 0, 0))
SECRET = "sk-very-secret-key-0123456789"  # noqa: S105 it opens nothing
REQUESTS: dict[str, Any] = {
    "speech": SpeechRequest("Hello!", "alloy", "pt-BR"),
    "vision": VisionRequest(PICTURE, ("pt",)),
    "video": VideoRequest("Hello!", 5, 640, 360),
}
KEYS = {"elevenlabs": "xi-api-key", "google": "x-goog-api-key"}
FILM = b"a film"
VISION = "google/vision-api"


def connected(name: str) -> Connection:
    return Connection(name, OWN[name].url, Key(host_of(OWN[name].url), SECRET))


def replay(wire: Wire, name: str) -> dict[str, Any]:
    found = recording(name)
    body = base64.b64decode(found["bytes"]) if "bytes" in found else json.dumps(found["body"]).encode()
    headers = {"content-type": "application/json", **found.get("headers", {})}
    file = found.get("answer", {}).get("file")

    def respond(request: Any) -> tuple[int, dict[str, str], bytes]:
        return (200, {}, FILM) if str(request.url) == file else (found["status"], headers, body)

    wire.respond = respond
    return found


async def call(found: dict[str, Any]) -> Any:
    how, connection = adapter(found["adapter"], found["medium"]), connected(found["adapter"])
    match found.get("call", "submit"):
        case "check":
            return await how.check(connection, "id1")
        case "cancel":
            return await how.cancel(connection, "id1")
        case _:
            return await how.submit(connection, found["model"], REQUESTS[found["medium"]])


@pytest.mark.parametrize("name", MEDIA)
async def test_recorded_answer_of_media_is_understood(wire: Wire, name: str) -> None:
    """R0.10/contract-tests, R0.10/speech, R0.10/video: each adapter, by what its provider documents."""
    found = replay(wire, name)
    if "answer" in found:
        answer, expected = await call(found), found["answer"]
        if "external_id" in expected:
            assert answer == Submitted(expected["external_id"])
        elif "units" in expected:
            assert dict(answer.units) == expected["units"] and answer.text == expected.get("text", "")
            # The first and the third corner of each word.
            assert [
                [
                    word.text,
                    [round(side, 6) for side in (*word.corners[0], *word.corners[2])],
                    round(word.score, 6),
                ]
                for word in answer.words
            ] == expected.get("words", [])
            assert answer.data == FILM if "file" in expected else True
        else:
            assert answer is None
    elif "signal" in found:
        with pytest.raises(Exception) as limited:
            await call(found)
        signal = signals.of(limited.value)
        assert signal is not None and found["signal"].items() <= signal.items()
        assert signal["host"] == host_of(OWN[found["adapter"]].url)
    else:
        with pytest.raises((Fail, Retry)) as failed:
            await call(found)
        assert failed.value.code == found["failure"]["code"]
        paid = getattr(failed.value, "answer", None)
        assert (paid and dict(paid.units)) == found["failure"].get("units")


@pytest.mark.parametrize("name", MEDIA)
async def test_only_the_own_host_gets_the_key(wire: Wire, name: str) -> None:
    """R0.10/keys: the file of a video is on another host, which gets none."""
    found = replay(wire, name)
    try:
        await call(found)
    except Exception:
        assert "answer" not in found
    own = host_of(OWN[found["adapter"]].url)
    for request in wire.requests:
        sent = str(request.url) + str(dict(request.headers))
        if request.url.host == own:
            assert SECRET in request.headers[KEYS.get(found["adapter"], "authorization")]
            assert SECRET not in str(request.url)
        else:
            assert SECRET not in sent


async def test_requests_have_the_documented_form(wire: Wire) -> None:
    replay(wire, "replicate_created")
    video = VideoRequest("A river", 6, 360, 640, webhook_url="https://x.example.org/w", options={"fps": 24})
    await adapter("replicate", "video").submit(connected("replicate"), "minimax/video-01", video)
    assert wire.requests[-1].url.path == "/v1/models/minimax/video-01/predictions"
    assert wire.sent() == {
        "input": {"prompt": "A river", "duration": 6, "aspect_ratio": "9:16", "fps": 24},
        "webhook": "https://x.example.org/w",
        "webhook_events_filter": ["completed"],
    }
    replay(wire, "runway_created")
    long = VideoRequest("🌊" * 900, 5, 640, 360)
    await adapter("runway", "video").submit(connected("runway"), "veo3.1", long)
    sent = wire.sent()
    assert (sent["ratio"], sent["duration"], sent["promptText"]) == ("1280:720", 6, "🌊" * 500)
    assert wire.requests[-1].headers["x-runway-version"] == "2024-11-06"
    replay(wire, "elevenlabs_speech")
    for model, language in (("eleven_flash_v2_5", "pt"), ("eleven_multilingual_v2", None)):
        answer = await adapter("elevenlabs", "speech").submit(
            connected("elevenlabs"), model, SpeechRequest("Hello world", "a/b", "pt-BR")
        )
        assert wire.sent().get("language_code") == language
    assert wire.requests[-1].url.raw_path == b"/v1/text-to-speech/a%2Fb?output_format=pcm_24000"
    assert isinstance(answer, Answer)
    with wave.open(io.BytesIO(answer.data or b"")) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, 4)
    replay(wire, "vision_text")
    await adapter("google", "vision").submit(connected("google"), "vision", VisionRequest(PICTURE, ("de",)))
    [wanted] = wire.sent()["requests"]
    assert wanted["features"] == [{"type": "DOCUMENT_TEXT_DETECTION"}]
    assert wanted["imageContext"] == {"languageHints": ["de"]}


async def test_local_voice_speaks_without_a_key() -> None:
    """espeak-ng behind the same interface as the providers."""
    answer = await ask(Context.fake(), SpeechRequest("Water runs.", "", "en"), provider="espeak/local")
    with wave.open(io.BytesIO(answer.data or b"")) as sound:
        assert sound.getnframes() / sound.getframerate() > 0.4
    with pytest.raises(Fail) as failed:
        await ask(Context.fake(), SpeechRequest("x", "", "tlh-klingon"), provider="espeak/local")
    assert failed.value.code == "unknown_voice"


async def test_simulated_providers_speak_and_read() -> None:
    async with simulator.serve() as running:
        spoken = await ask(
            Context.fake(),
            SpeechRequest("Hello world", "george"),
            provider="elevenlabs/eleven_flash_v2_5",
            url=running.url,
        )
        read = await ask(Context.fake(), VisionRequest(PICTURE), provider=VISION, url=running.url)
    assert spoken.units["characters"] == 11 and (spoken.data or b"").startswith(b"RIFF")
    assert read.text.split() == [word.text for word in read.words] and read.units == {"requests": 1}
    for word in read.words:
        (left, top), _, (right, bottom), _ = word.corners
        assert 0 <= left < right <= 1 and 0 <= top < bottom <= 1


async def test_simulated_vision_has_quotas_and_errors_in_the_form_of_google() -> None:
    """R3.6/outside-ocr: what a lane must cope with; the simulator counts what passes a quota."""
    now = [1000.0]

    async def read(picture: Image = PICTURE) -> Any:
        return await ask(Context.fake(), VisionRequest(picture), provider=VISION, url=running.url)

    async def failure(picture: Image = PICTURE) -> Any:
        with pytest.raises(Exception) as failed:
            await read(picture)
        return failed.value

    async with simulator.serve(limits={"google": {"rpm": 2}}, clock=lambda: now[0]) as running:
        await read()
        await read()
        signal = signals.of(await failure())
        assert signal is not None and (signal["status"], signal.get("retry_after_seconds")) == (429, None)
        assert running.stats()["violation_count"] == 1
        now[0] += 30
        await read()
        running.configure(limits={}, faults={"500": 1})
        assert failures.status_of(await failure()) == 500
        running.configure(faults={"529": 1})
        assert failures.status_of(await failure()) == 503
        running.configure(faults={}, quota_exhausted=True)
        signal = signals.of(await failure())
        assert signal is not None and signal["status"] == 402, "an account without billing is an empty one"
        running.configure(quota_exhausted=False)
        assert (await failure(Image(b"no picture"))).code == "provider_refused"
        large = Image(PICTURE.data + bytes(8 << 20))
        refused = await failure(large)
        assert refused.code == "provider_refused" and "10485760" in str(refused)
    assert running.stats()["violation_count"] == 1


def test_catalogue_prices_a_picture_read_by_google() -> None:
    assert catalogue.price(VISION, {"requests": 1000}) == Decimal("1.50")


@pytest.mark.parametrize("provider", ["replicate/minimax/video-01", "runway/gen4.5"])
async def test_simulated_providers_make_videos(provider: str) -> None:
    name, _, model = provider.partition("/")
    now = [1000.0]
    async with simulator.serve(video_seconds=30, clock=lambda: now[0]) as running:
        connection, how = Connection(name, running.media_url), adapter(provider, "video")
        made = await how.submit(connection, model, REQUESTS["video"])
        other = await how.submit(connection, model, REQUESTS["video"])
        assert isinstance(made, Submitted) and isinstance(other, Submitted)
        assert await how.check(connection, made.external_id) is None
        await how.cancel(connection, other.external_id)
        now[0] += 31
        answer = await how.check(connection, made.external_id)
        assert answer is not None and b"ftyp" in (answer.data or b"")[:12]
        with pytest.raises(Fail) as canceled:
            await how.check(connection, other.external_id)
        assert canceled.value.code == "operation_canceled"
        running.configure(answers={"filter": 1})
        made = await how.submit(connection, model, REQUESTS["video"])
        assert isinstance(made, Submitted)
        now[0] += 31
        with pytest.raises(Fail) as filtered:
            await how.check(connection, made.external_id)
    assert filtered.value.code == "content_filtered"


def test_all_adapters_share_one_interface() -> None:
    """R0.10/interface: submit, check, cancel, limits, and units that the catalogue prices."""
    found = [each for group in adapters().values() for each in group]
    made = {medium for each in found for medium in each.media}
    assert made == {"text", "speech", "vision", "video"} and len(found) >= 8
    for each in found:
        for name in ("submit", "check", "cancel", "limits"):
            expected = inspect.signature(getattr(Adapter, name)).parameters
            assert list(inspect.signature(getattr(type(each), name)).parameters) == list(expected), each
        assert each.limits(429, {"retry-after": "3"})["retry_after_seconds"] == 3
    answer = Answer({"input_tokens": 100, "output_tokens": 10}, "x")
    assert catalogue.price("anthropic/claude-sonnet-5-5", answer.units) == Decimal("0.0003")


def test_unknown_medium_of_a_provider_is_refused() -> None:
    with pytest.raises(Fail) as failed:
        adapter("anthropic/claude-haiku-5-5", "video")
    assert failed.value.code == "unknown_provider"
