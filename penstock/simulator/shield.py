"""Azure AI Content Safety's prompt shield: `POST /contentsafety/text:shieldPrompt`."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, cast

from pydantic import BaseModel, ConfigDict, Field

PATH = "/contentsafety/text:shieldPrompt"
MARKER = "SIMULATE-ATTACK"
_KEPT = 1000
_MOST_CHARACTERS = 10_000
_MOST_DOCUMENTS = 5


class ShieldConfig(BaseModel):
    """The behavior of the simulated prompt shield."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    marker: str = Field(default=MARKER, min_length=1)
    """A text with this word counts as an attack."""
    status: int | None = Field(default=None, ge=400, le=599)
    """Every request gets this error."""
    is_hanging: bool = False
    """Requests get no answer."""


class ShieldStats(TypedDict):
    """Statistics of the simulated prompt shield."""

    requests: int
    statuses: dict[str, int]
    attacks: int


class ShieldServer:
    """The shield without HTTP."""

    def __init__(self, config: Callable[[], ShieldConfig]) -> None:
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Forget statistics and texts."""
        self.texts: deque[str] = deque(maxlen=_KEPT)
        """The last texts that were sent, for tests that look for data that must not leave."""
        self._statuses: Counter[str] = Counter()
        self._attacks = 0

    def stats(self) -> ShieldStats:
        """The statistics since the last reset."""
        return {
            "requests": self._statuses.total(),
            "statuses": dict(self._statuses),
            "attacks": self._attacks,
        }

    def respond(
        self, method: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, Any]]:
        """Answer a request: its status and its document."""
        status, found = self._answer(method, query, headers, body)
        self._statuses[str(status)] += 1
        return status, found

    def _answer(
        self, method: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, dict[str, Any]]:
        config = self._config()
        if method != "POST":
            return _error(405, "MethodNotAllowed", f"{method} is not allowed")
        if not headers.get("ocp-apim-subscription-key"):
            return _error(401, "Unauthorized", "Ocp-Apim-Subscription-Key is missing")
        if not query.get("api-version"):
            return _error(400, "InvalidRequest", "api-version is missing")
        prompt, documents = _read(body)
        if prompt is None:
            return _error(400, "InvalidRequestBody", "the body must have userPrompt and documents")
        if len(documents) > _MOST_DOCUMENTS or any(
            len(text) > _MOST_CHARACTERS for text in (prompt, "".join(documents))
        ):
            return _error(400, "InvalidRequestBody", "too many documents, or a text is too long")
        self.texts.extend([prompt, *documents])
        if config.status is not None:
            return _error(config.status, "TooManyRequests" if config.status == 429 else "Error", "simulated")
        attacks = [config.marker in text for text in (prompt, *documents)]
        self._attacks += sum(attacks)
        return 200, {
            "userPromptAnalysis": {"attackDetected": attacks[0]},
            "documentsAnalysis": [{"attackDetected": attack} for attack in attacks[1:]],
        }


def _read(body: bytes | None) -> tuple[str | None, list[str]]:
    try:
        fields: Any = json.loads(body or b"")
    except ValueError:
        return None, []
    if not isinstance(fields, dict):
        return None, []
    found = cast("dict[str, Any]", fields)
    prompt, documents = found.get("userPrompt", ""), found.get("documents", [])
    if not isinstance(prompt, str) or not isinstance(documents, list):
        return None, []
    texts = cast("list[Any]", documents)
    return (prompt, texts) if all(isinstance(text, str) for text in texts) else (None, [])


def _error(status: int, code: str, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": code, "message": message}}
