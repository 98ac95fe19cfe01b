"""Speech of espeak-ng on this machine, without a key. Each text is spoken in a process of its own."""

from __future__ import annotations

import asyncio
import ctypes
import io
import sys
import wave
from collections.abc import Generator, Iterable
from functools import cache
from typing import Any, ClassVar

from penstock.extras import required
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, SpeechRequest
from penstock.sdk.context import Fail

WORDS_PER_MINUTE = 150
PAUSE_SECONDS = 0.6
_SAMPLE = 2  # bytes
# From espeak-ng's speak_lib.h.
_SYNCHRONOUS, _DO_NOT_EXIT, _RATE, _CHARACTERS, _UTF8 = 2, 0x8000, 1, 1, 1
_OK = 0
_UNKNOWN_VOICE = 3
_Heard = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class EspeakSpeech(Adapter):
    """https://github.com/espeak-ng/espeak-ng"""

    name = "espeak"
    media: ClassVar[frozenset[Medium]] = frozenset({"speech"})

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        assert isinstance(request, SpeechRequest), f"espeak does not make {request.medium}"
        language = request.language or "en"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.providers.espeak", language,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            data, problem = await process.communicate(request.text.encode())
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode == _UNKNOWN_VOICE:
            raise Fail(f"espeak-ng has no voice for {language!r}", code="unknown_voice")
        if process.returncode != 0:
            raise RuntimeError(f"espeak-ng failed: {problem.decode(errors='replace')[-500:]}")
        units = {"requests": 1, "characters": len(request.text)}
        return Answer(units, data=data, media_type="audio/wav")


@cache
def _espeak() -> tuple[ctypes.CDLL, int]:
    """The library and its sample rate."""
    with required():
        import espeakng_loader  # pyright: ignore[reportMissingTypeStubs]

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data = espeakng_loader.get_data_path().encode()
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DO_NOT_EXIT)
    if rate <= 0:
        raise RuntimeError(f"espeak-ng failed to initialize (code {rate})")
    return library, rate


class Voice:
    """espeak-ng in this process. Its state is global, so only one voice can be used at a time."""

    def __init__(self, language: str) -> None:
        library, self.rate = _espeak()
        # Voice names are such as en, en-us, pt-br. Fall back from the region to the language.
        for name in (language.lower(), language.lower().partition("-")[0]):
            if library.espeak_SetVoiceByName(name.encode()) == _OK:
                break
        else:
            raise Fail(f"espeak-ng has no voice for {language!r}", code="unknown_voice")
        library.espeak_SetParameter(_RATE, WORDS_PER_MINUTE, 0)
        self._library = library
        self._pieces: list[bytes] = []
        # Keep a reference, because the library still calls it.
        self._callback = _Heard(self._hear)
        library.espeak_SetSynthCallback(self._callback)

    def _hear(self, samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            self._pieces.append(ctypes.string_at(samples, count * _SAMPLE))
        return 0

    def say(self, paragraphs: Iterable[str]) -> Generator[bytes]:
        """Speak the paragraphs with a pause between them. Yields samples."""
        pause = bytes(round(self.rate * PAUSE_SECONDS) * _SAMPLE)
        for number, paragraph in enumerate(paragraphs):
            if number:
                yield pause
            for sentences in _short(paragraph):
                # As plain text, without SSML or phonemes.
                words = sentences.encode() + b"\0"
                code = self._library.espeak_Synth(
                    words, ctypes.c_size_t(len(words)), 0, _CHARACTERS, 0, _UTF8, None, None
                )
                if code != _OK:
                    raise RuntimeError(f"espeak-ng failed (code {code})")
                yield from self._pieces
                self._pieces.clear()


def _short(paragraph: str, most: int = 2000) -> Generator[str]:
    """Split a paragraph into pieces, at the end of a sentence or word if possible."""
    while len(paragraph) > most:
        end = max(paragraph.rfind(". ", 0, most), 0) or max(paragraph.rfind(" ", 0, most), 0) or most - 1
        yield paragraph[: end + 1]
        paragraph = paragraph[end + 1 :]
    yield paragraph


def main(language: str) -> int:
    """Speak the text on standard input as a WAV file on standard output."""
    text = sys.stdin.buffer.read().decode()
    try:
        voice = Voice(language)
    except Fail:
        return _UNKNOWN_VOICE
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(_SAMPLE)
        file.setframerate(voice.rate)
        for piece in voice.say(text.split("\n\n")):
            file.writeframes(piece)
    sys.stdout.buffer.write(out.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
