"""Speech of OpenAI and of hosts with the same API."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.providers import failures
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, SpeechRequest
from penstock.providers.openai_text import client

MOST_CHARACTERS = 4096


class OpenAISpeech(Adapter):
    """https://developers.openai.com/api/docs/api-reference/audio/createSpeech"""

    name = "openai"
    media: ClassVar[frozenset[Medium]] = frozenset({"speech"})
    models_path = "/models"

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        assert isinstance(request, SpeechRequest), f"{model} does not make {request.medium}"
        fields: dict[str, Any] = {"model": model, "voice": request.voice, "input": request.text}
        if request.language and "gpt-" in model:
            # The older models have no instructions, and no model a parameter for the language.
            fields["instructions"] = f"Read in the language {request.language} (BCP 47)."
        async with client(connection) as api:
            with failures.mapped(connection.provider):
                create: Any = api.audio.speech.with_raw_response.create
                response = await create(**fields, response_format="wav")
            data = response.content
        if data and not (data.startswith(b"RIFF") and data[8:12] == b"WAVE"):
            failures.unreadable(connection.provider, "not a WAV file")
        units = {"requests": 1, "characters": len(request.text)}
        signal = self.limits(response.status_code, response.headers)
        answer = Answer(units, data=data, media_type="audio/wav", signal=signal)
        if not data:
            with failures.paid(answer):
                failures.empty(connection.provider)
        return answer
