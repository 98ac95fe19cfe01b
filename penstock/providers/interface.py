"""The interface of all adapters: requests, answers, and the calls of a provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from penstock.errors import Invalid
from penstock.providers.connection import Connection
from penstock.sdk import signals

Medium: TypeAlias = Literal["text", "speech", "vision", "video"]


@dataclass(frozen=True, slots=True)
class Image:
    """A picture."""

    data: bytes = field(repr=False)
    media_type: str = "image/png"


@dataclass(frozen=True, slots=True)
class Schema:
    """The JSON schema that an answer must fit."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt for a language model."""

    medium: ClassVar[Medium] = "text"

    prompt: str
    max_tokens: int
    """Most tokens of the answer, without those that a reasoning model thinks."""
    system: str = ""
    language: str | None = None
    """The language to answer in, as a BCP 47 tag. It becomes a sentence of the system prompt."""
    schema: Schema | None = None
    images: tuple[Image, ...] = ()
    turns: tuple[tuple[Literal["assistant", "user"], str], ...] = ()
    """Later messages of the conversation, after the prompt."""

    @property
    def instructions(self) -> str:
        """The system prompt with the language."""
        if self.language is None:
            return self.system
        return f"{self.system} Answer in the language {self.language} (BCP 47).".strip()


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A text to read aloud."""

    medium: ClassVar[Medium] = "speech"

    text: str
    voice: str
    language: str | None = None


@dataclass(frozen=True, slots=True)
class VisionRequest:
    """A picture whose text is to be read."""

    medium: ClassVar[Medium] = "vision"

    image: Image
    languages: tuple[str, ...] = ()
    max_tokens: int = 4000
    prompt: str = "Transcribe all text in this picture, in reading order. Answer with the text only."


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """A film to generate."""

    medium: ClassVar[Medium] = "video"

    prompt: str
    seconds: int
    width: int
    height: int
    webhook_url: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Input of this model that others do not have."""

    @property
    def aspect_ratio(self) -> Literal["16:9", "9:16", "1:1"]:
        """The nearest of the ratios that all providers have."""
        if self.width == self.height:
            return "1:1"
        return "16:9" if self.width > self.height else "9:16"


Request: TypeAlias = TextRequest | SpeechRequest | VisionRequest | VideoRequest


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a picture, and where it stands."""

    text: str
    corners: tuple[tuple[float, float], ...]
    """Top left, top right, bottom right and bottom left as the word is read: in a picture that is upside
    down, the first is at the bottom right. As parts of the picture's width and height."""
    score: float
    """How sure the provider is, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a provider made, and the units that it charges for."""

    units: Mapping[str, float]
    """By meter: input_tokens, output_tokens (with reasoning), characters, seconds, requests."""
    text: str = ""
    data: bytes | None = field(default=None, repr=False)
    """A recording (WAV) or a film."""
    media_type: str = "text/plain"
    words: tuple[Word, ...] = ()
    """Of a picture, from providers that return places."""
    signal: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the headers say about the provider's limits, in the form of `penstock.sdk.signals`."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The provider works on the request; ask with `check`."""

    external_id: str


class Adapter(ABC):
    """One API of a provider. Calls raise Fail or Retry with a code of docs/errors.md, or the client's
    own error, from which the worker reads a rate limit or an exhausted account."""

    name: ClassVar[str]
    """The provider: the part of `name/model` before the slash."""
    media: ClassVar[frozenset[Medium]]
    models_path: ClassVar[str | None] = None
    """A free GET request that needs the key; None: there is none."""
    key_header: ClassVar[str] = "authorization"
    key_prefix: ClassVar[str] = "Bearer "
    headers: ClassVar[Mapping[str, str]] = {}
    """Headers of every request."""

    @abstractmethod
    async def submit(self, connection: Connection, model: str, request: Request) -> Answer | Submitted:
        """Send the request: the answer, or the id of work that takes longer."""

    async def check(self, connection: Connection, external_id: str) -> Answer | None:
        """The answer of submitted work; None while it runs. Raises Fail if it failed."""
        raise Invalid(f"{self.name} answers at once: there is nothing to check")

    async def cancel(self, connection: Connection, external_id: str) -> None:
        """End submitted work. May be called more than once."""
        raise Invalid(f"{self.name} answers at once: there is nothing to cancel")

    def limits(self, status: int, headers: Mapping[str, str]) -> dict[str, Any]:
        """What a response says about the limits."""
        return signals.read(status, headers)
