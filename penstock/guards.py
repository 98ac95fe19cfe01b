"""Guards text before it is sent to a provider: redacts personal data and screens for prompt injection.

    @app.bulk(row=Note, key=["id"], batch=25, guard=["text"])
    def tags(rows: list[BulkRow[Note]]):
        return tag.step(rows)

`Guard` names the columns and both hooks; the defaults work without configuration. With `PENSTOCK_SHIELD_URL`
each text is also screened by Azure's prompt shield. When the shield does not answer, the text passes and the
verdict says so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from penstock.errors import Invalid
from penstock.redaction import redact_personal
from penstock.settings import is_loopback, settings

SECONDS = 2.0
"""How long an answer of the shield may take."""
_LONGEST = 10_000  # characters that the shield takes in one request
_AT_ONCE = 8
_VERSION = "2024-09-01"
log = structlog.get_logger("penstock.guards")

_INJECTION = re.compile(
    r"\b(?:ignore|disregard|forget|override)\b[^.\n]{0,40}\b(?:previous|prior|above|earlier|preceding|all)\b"
    r"[^.\n]{0,40}\b(?:instruction|prompt|rule|direction|message)s?\b"
    r"|\b(?:reveal|print|repeat|show|output)\b[^.\n]{0,40}\b(?:system|hidden|initial)\s+(?:prompt|instructions?)"
    r"|\byou are (?:now|no longer)\b[^.\n]{0,60}\b(?:assistant|model|dan|ai|unrestricted|jailbroken)\b"
    r"|</?\s*(?:system|instructions?)\s*>|<\|im_(?:start|end)\|>|\[/?INST\]",
    re.I,
)


class Verdict(NamedTuple):
    """What a screen says about a text."""

    is_attack: bool
    is_unchecked: bool = False
    """Whether the shield did not answer, so that only the patterns of this module were applied."""


Redact = Callable[[str], str]
Screen = Callable[[Sequence[str]], Awaitable[Sequence[Verdict]]]


class Shield:
    """A client of Azure AI Content Safety's prompt shield. Fails open: an outage never blocks a text."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url.rstrip("/"), key

    async def screen(self, texts: Sequence[str]) -> list[Verdict]:
        """Screen each text separately."""
        import httpx

        host = httpx.URL(self._url).host
        slots = asyncio.Semaphore(_AT_ONCE)
        async with httpx.AsyncClient(timeout=SECONDS, trust_env=not is_loopback(host)) as http:

            async def one(text: str) -> Verdict:
                if _INJECTION.search(text):
                    return Verdict(is_attack=True)
                parts = [text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST)]
                try:
                    async with slots, asyncio.timeout(SECONDS * max(1, len(parts))):
                        return Verdict(any([await self._is_attack(http, part) for part in parts]))
                except (httpx.HTTPError, TimeoutError, ValueError, KeyError, TypeError) as error:
                    log.warning("guard.fail_open", error=type(error).__name__)
                    return Verdict(is_attack=False, is_unchecked=True)

            return list(await asyncio.gather(*map(one, texts)))

    async def _is_attack(self, http: object, text: str) -> bool:
        import httpx

        assert isinstance(http, httpx.AsyncClient)
        response = await http.post(
            f"{self._url}/contentsafety/text:shieldPrompt",
            params={"api-version": _VERSION},
            headers={"Ocp-Apim-Subscription-Key": self._key},
            json={"userPrompt": text, "documents": []},
        )
        response.raise_for_status()
        found = response.json()["userPromptAnalysis"]["attackDetected"]
        if not isinstance(found, bool):
            raise ValueError("attackDetected is not a boolean")
        return found


async def screen_by_pattern(texts: Sequence[str]) -> list[Verdict]:
    """Screen texts on this machine, for sentences that give instructions to a model."""
    return [Verdict(_INJECTION.search(text) is not None) for text in texts]


async def screen(texts: Sequence[str]) -> Sequence[Verdict]:
    """The default screen: the shield of `PENSTOCK_SHIELD_URL`, and patterns on this machine."""
    chosen = settings()
    if chosen.shield_url is None:
        return await screen_by_pattern(texts)
    return await Shield(chosen.shield_url, chosen.shield_key or "").screen(texts)


@dataclass(frozen=True, slots=True)
class Guard:
    """Which text columns of a bulk type are guarded, and how. None switches a hook off."""

    columns: Sequence[str]
    redact: Redact | None = redact_personal
    screen: Screen | None = screen

    @classmethod
    def of(cls, given: Guard | Sequence[str] | None) -> Guard | None:
        """A guard from the names of columns."""
        if given is None or isinstance(given, Guard):
            return given
        if isinstance(given, str) or not given:
            raise Invalid(f"guard must be a list of columns or a Guard (got {given!r})")
        return cls(tuple(given))
