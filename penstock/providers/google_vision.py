"""Text in pictures, by Google Cloud Vision."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx

from penstock.providers import failures, wire
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, VisionRequest, Word
from penstock.sdk.context import Fail, Retry

# Codes of google.rpc: internal, unavailable, resource exhausted, deadline exceeded.
_PASSING = (13, 14, 8, 4)
# Google answers 400 to a key that it does not know, and 403 to an account without billing.
_NO_KEY = ("API key not valid", "API_KEY_INVALID")
_NO_BILLING = ("requires billing to be enabled", "BILLING_DISABLED")


class GoogleVision(Adapter):
    """https://cloud.google.com/vision/docs/reference/rest/v1/images/annotate"""

    name = "google"
    media: ClassVar[frozenset[Medium]] = frozenset({"vision"})
    key_header = "x-goog-api-key"
    key_prefix = ""

    async def submit(self, connection: Connection, model: str, request: Request) -> Answer:
        assert isinstance(request, VisionRequest), f"{model} does not make {request.medium}"
        wanted: dict[str, Any] = {
            "image": {"content": base64.b64encode(request.image.data).decode()},
            "features": [{"type": "DOCUMENT_TEXT_DETECTION"}],
        }
        if request.languages:
            wanted["imageContext"] = {"languageHints": list(request.languages)}
        response = await self._call(connection, {"requests": [wanted]})
        with failures.readable(connection.provider):
            found: dict[str, Any] = response.json()["responses"][0]
            if error := found.get("error"):
                text = f"{connection.provider} failed ({error.get('code')}): {error.get('message')}"[:1000]
                if error.get("code") in _PASSING:
                    raise Retry(text, code="provider_failed")
                raise Fail(text, code="provider_refused")
            # A picture without text has no annotation: that is an answer.
            annotation: dict[str, Any] = found.get("fullTextAnnotation") or {}
            text, words = str(annotation.get("text", "")), tuple(_words(annotation))
        signal = self.limits(response.status_code, response.headers)
        # A request has one picture, which is what Google charges for.
        return Answer({"requests": 1}, text, words=words, signal=signal)

    async def _call(self, connection: Connection, body: dict[str, Any]) -> httpx.Response:
        try:
            return await wire.call(
                connection, "POST", "/v1/images:annotate", key_header=self.key_header, json=body
            )
        except Fail as error:
            text = str(error)
            if any(words in text for words in _NO_BILLING):
                raise failures.Exhausted(connection.provider, connection.url) from error
            if any(words in text for words in _NO_KEY):
                raise Fail(text, code="provider_key_refused") from error
            raise


def _words(annotation: dict[str, Any]) -> Iterator[Word]:
    """The words of an annotation. Google splits at punctuation; parts without a break between are joined."""
    for page in annotation.get("pages", []):
        for block in page.get("blocks", []):
            for paragraph in block.get("paragraphs", []):
                parts: list[dict[str, Any]] = []
                for part in paragraph.get("words", []):
                    parts.append(part)
                    if _break_after(part):
                        yield _joined(parts, page)
                        parts = []
                if parts:
                    yield _joined(parts, page)


def _break_after(part: dict[str, Any]) -> str | None:
    """The kind of the break after a part of a word; None: the word goes on."""
    found = part["symbols"][-1].get("property", {}).get("detectedBreak", {})
    return None if found.get("isPrefix") else found.get("type")


def _joined(parts: list[dict[str, Any]], page: dict[str, Any]) -> Word:
    text = "".join(symbol["text"] for part in parts for symbol in part["symbols"])
    # A hyphen that Google sees as the end of the line is not among the symbols.
    text += "-" if _break_after(parts[-1]) == "HYPHEN" else ""
    first, last = _corners(parts[0], page), _corners(parts[-1], page)
    score = sum(float(part.get("confidence", 1)) for part in parts) / len(parts)
    return Word(text, (first[0], last[1], last[2], first[3]), score)


def _corners(part: dict[str, Any], page: dict[str, Any]) -> tuple[tuple[float, float], ...]:
    """The corners as parts of the picture. Coordinates of 0 are left out of Google's JSON."""
    box = part["boundingBox"]
    if found := box.get("normalizedVertices"):
        width, height = 1, 1
    else:
        found, width, height = box["vertices"], page["width"], page["height"]
    if len(found) != 4:
        raise ValueError(f"a box has {len(found)} corners")
    return tuple((each.get("x", 0) / width, each.get("y", 0) / height) for each in found)
