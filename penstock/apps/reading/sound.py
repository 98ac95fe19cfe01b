"""Encodes speech as MP3 and M4A: from espeak-ng, or from a provider's recordings.

Audio is streamed, so that a long text needs no more memory than a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import lameenc

from penstock import Fail
from penstock.providers.espeak import Voice

KILOBITS = 128
_SAMPLE = 2  # bytes


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
