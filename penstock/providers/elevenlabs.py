"""Speech of ElevenLabs."""

from __future__ import annotations

import io
import wave
from typing import Any, ClassVar, cast
from urllib.parse import quote

import httpx

from penstock.providers import failures, wire
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, SpeechRequest

_RATE = 24_000


class ElevenLabsSpeech(Adapter):
    """https://elevenlabs.io/docs/api-reference/text-to-speech/convert"""

    name = "elevenlabs"
    media: ClassVar[frozenset[Medium]] = frozenset({"speech"})
    models_path = "/v1/models"
    key_header = "xi-api-key"
    key_prefix = ""

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        assert isinstance(request, SpeechRequest), f"{model} does not make {request.medium}"
        body: dict[str, Any] = {"text": request.text, "model_id": model}
        if request.language and ("v2_5" in model or "v3" in model):
            # The other models find the language in the text, and reject the parameter.
            body["language_code"] = request.language.partition("-")[0].lower()
        try:
            response = await wire.call(
                connection,
                "POST",
                f"/v1/text-to-speech/{quote(request.voice, safe='')}",
                key_header=self.key_header,
                params={"output_format": f"pcm_{_RATE}"},
                json=body,
            )
        except Exception as error:
            # An empty account answers 401, as a wrong key does.
            if _code(error) == "quota_exceeded":
                raise failures.Exhausted(connection.provider, connection.url) from error
            raise
        failures.check_file(connection.provider, response.headers.get("content-type", ""))
        counted = response.headers.get("x-character-count") or response.headers.get("character-cost") or ""
        characters = int(counted) if counted.isascii() and counted.isdecimal() else len(request.text)
        answer = Answer(
            {"requests": 1, "characters": characters},
            data=_wav(response.content),
            media_type="audio/wav",
            signal=self.limits(response.status_code, response.headers),
        )
        if not response.content:
            with failures.paid(answer):
                failures.empty(connection.provider)
        return answer


def _code(error: BaseException) -> str:
    response: Any = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(response, httpx.Response):
        return ""
    try:
        detail: Any = response.json()["detail"]
        fields = cast("dict[str, Any]", detail) if isinstance(detail, dict) else {}
        # Older answers have the code as the status.
        return str(fields.get("code") or fields.get("status") or "")
    except (ValueError, KeyError, TypeError):
        return ""


def _wav(samples: bytes) -> bytes:
    """Samples of 16 bits as a file."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(samples[: len(samples) // 2 * 2])
    return out.getvalue()
