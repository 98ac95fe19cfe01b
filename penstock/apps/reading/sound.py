"""Encodes speech as MP3 and M4A: from espeak-ng, or from a provider's recordings.

Audio is streamed, so that a long text needs no more memory than a short one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Iterable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

import espeakng_loader  # pyright: ignore[reportMissingTypeStubs]
import lameenc

from penstock import Fail

KILOBITS = 128
WORDS_PER_MINUTE = 150
PAUSE_SECONDS = 0.6
_SAMPLE = 2  # bytes
# From espeak-ng's speak_lib.h.
_SYNCHRONOUS, _DO_NOT_EXIT, _RATE, _CHARACTERS, _UTF8 = 2, 0x8000, 1, 1, 1
_OK = 0
_Heard = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


def make(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write a file for each format into a folder. Returns the files and their duration."""
    if recordings := request.get("recordings"):
        rate, sound = 24_000, _recorded([folder / name for name in recordings], 24_000)
    else:
        voice = Voice(request["language"])
        rate, sound = voice.rate, voice.say(request["paragraphs"])
    sinks = [_FORMATS[name](folder, rate) for name in request["formats"]]
    samples = 0
    for piece in sound:
        samples += len(piece) // _SAMPLE
        for sink in sinks:
            sink.write(piece)
    if not samples:
        raise Fail("the text has nothing to speak", code="nothing_to_say")
    for sink in sinks:
        sink.close()
    return {
        "files": {sink.name: sink.file.name for sink in sinks},
        "samples": samples,
        "rate": rate,
        "seconds": round(samples / rate, 3),
    }


@cache
def _espeak() -> tuple[ctypes.CDLL, int]:
    """The library and its sample rate."""
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


def _recorded(files: list[Path], rate: int) -> Generator[bytes]:
    """Decode audio files one after the other, as mono samples at this rate."""
    import av
    from av.audio.resampler import AudioResampler
    from av.error import FFmpegError

    for file in files:
        resampler = AudioResampler("s16", "mono", rate)
        try:
            with av.open(str(file)) as recording:
                for frame in recording.decode(audio=0):
                    for part in resampler.resample(frame):
                        yield bytes(part.planes[0])[: part.samples * _SAMPLE]
            for part in resampler.resample(None):
                yield bytes(part.planes[0])[: part.samples * _SAMPLE]
        except (FFmpegError, IndexError) as error:
            raise Fail(f"cannot decode a recording: {error}", code="bad_recording") from None


class Mp3:
    """MP3 at a constant bit rate."""

    name = "mp3"

    def __init__(self, folder: Path, rate: int) -> None:
        self.file = folder / "speech.mp3"
        self._out = self.file.open("wb")
        self._encoder = cast("Any", lameenc).Encoder()
        self._encoder.silence()
        self._encoder.set_bit_rate(KILOBITS)
        self._encoder.set_in_sample_rate(rate)
        self._encoder.set_channels(1)
        # 2 (best) to 9 (fastest). For speech at this bit rate there is no audible difference.
        self._encoder.set_quality(7)

    def write(self, samples: bytes) -> None:
        self._out.write(self._encoder.encode(samples))

    def close(self) -> None:
        self._out.write(self._encoder.flush())
        self._out.close()


class M4a:
    """AAC in an MP4 file."""

    name = "m4a"

    def __init__(self, folder: Path, rate: int) -> None:
        import av

        self._frame: Any = av.AudioFrame
        self.file = folder / "speech.m4a"
        # Put the index first, so that players can start before the download ends.
        self._out: Any = av.open(str(self.file), "w", format="ipod", options={"movflags": "faststart"})
        self._stream = self._out.add_stream("aac", rate=rate, layout="mono", bit_rate=KILOBITS * 1000)
        self._rate, self._samples = rate, 0

    def write(self, samples: bytes) -> None:
        frame = self._frame(format="s16", layout="mono", samples=len(samples) // _SAMPLE)
        frame.planes[0].update(samples)
        frame.sample_rate, frame.pts, frame.time_base = self._rate, self._samples, Fraction(1, self._rate)
        self._samples += frame.samples
        self._out.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._out.mux(self._stream.encode(None))
        self._out.close()


_FORMATS: dict[str, Callable[[Path, int], Mp3 | M4a]] = {"mp3": Mp3, "m4a": M4a}
