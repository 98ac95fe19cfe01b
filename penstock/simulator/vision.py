"""Google Cloud Vision: `POST /v1/images:annotate` with DOCUMENT_TEXT_DETECTION.

It reads no picture: the words depend on the picture's bytes, and stand in lines on a page of its size.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from penstock.simulator import content
from penstock.simulator.limits import Account
from penstock.simulator.provider import Endpoint, Problem, Provider, ProviderRequest, Reply, document

_MODEL = "vision-api"
_MOST_IMAGES = 16
_MOST_BYTES = 10 << 20
_MOST_TOKENS = 40
_WORDS_PER_LINE = 8
_MARGIN = 0.1
_LINE = 0.04
"""Height of a line with its gap, as a part of the page."""
_FEATURES = ("DOCUMENT_TEXT_DETECTION", "TEXT_DETECTION")
_ERRORS = {
    "invalid": (400, "INVALID_ARGUMENT"),
    "no_key": (403, "PERMISSION_DENIED"),
    "no_model": (404, "NOT_FOUND"),
    "no_path": (404, "NOT_FOUND"),
    "no_method": (404, "NOT_FOUND"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "rate": (429, "RESOURCE_EXHAUSTED"),
    "quota": (403, "PERMISSION_DENIED"),
    "error": (500, "INTERNAL"),
    "overloaded": (503, "UNAVAILABLE"),
}
_MESSAGES = {
    "rate": "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service "
    "'vision.googleapis.com' for consumer 'project_number:1'.",
    "quota": "This API method requires billing to be enabled. Please enable billing on project #1.",
    "error": "Internal error encountered.",
    "overloaded": "The service is currently unavailable.",
}


def _annotate(request: ProviderRequest) -> Reply:
    wanted: Any = request.fields.get("requests")
    if not isinstance(wanted, list) or not wanted:
        raise Problem("invalid", "Request must specify image and features.")
    each = cast("list[Any]", wanted)
    if len(each) > _MOST_IMAGES:
        raise Problem("invalid", f"Too many images per request: the limit is {_MOST_IMAGES}.")
    if sum(len(str(one)) for one in each) > _MOST_BYTES:
        raise Problem("invalid", f"Request payload size exceeds the limit: {_MOST_BYTES} bytes.")
    answers = [_answer(one, request.seed) for one in each]
    return Reply(_MODEL, 0, 0, 0, [document({"responses": answers})])


def _answer(wanted: Any, seed: int) -> dict[str, Any]:
    try:
        features = [feature["type"] for feature in wanted["features"]]
        data = base64.b64decode(wanted["image"]["content"], validate=True)
    except (KeyError, TypeError, ValueError):
        return _bad("Bad image data.")
    if not set(features) & set(_FEATURES):
        raise Problem("invalid", f"Only {' and '.join(_FEATURES)} are simulated.")
    size = _size(data)
    if size is None:
        return _bad("Bad image data.")
    text = content.answer(hashlib.sha256(data).hexdigest(), seed, _MOST_TOKENS)[0]
    words = text.split()
    if not words:
        return {}
    return {"fullTextAnnotation": {"text": text, "pages": [_page(words, size)]}}


def _bad(message: str) -> dict[str, Any]:
    return {"error": {"code": 3, "message": message, "status": "INVALID_ARGUMENT"}}


def _page(words: list[str], size: tuple[int, int]) -> dict[str, Any]:
    """A page whose words stand in lines, as DOCUMENT_TEXT_DETECTION returns it."""
    width, height = size
    step = (1 - 2 * _MARGIN) / _WORDS_PER_LINE
    made: list[dict[str, Any]] = []
    for start in range(0, len(words), _WORDS_PER_LINE):
        line = words[start : start + _WORDS_PER_LINE]
        top = _MARGIN + start // _WORDS_PER_LINE * _LINE
        for column, word in enumerate(line):
            left = _MARGIN + column * step
            box = (left, top, left + 0.9 * step, top + 0.6 * _LINE)
            made.append(_word(word, box, size, is_last=column == len(line) - 1))
    return {"width": width, "height": height, "blocks": [{"paragraphs": [{"words": made}]}]}


def _word(
    text: str, box: tuple[float, float, float, float], size: tuple[int, int], *, is_last: bool
) -> dict[str, Any]:
    left, top, right, bottom = (
        round(side * length) for side, length in zip(box, (*size, *size), strict=True)
    )
    symbols: list[dict[str, Any]] = [{"text": letter, "confidence": 0.98} for letter in text]
    symbols[-1]["property"] = {"detectedBreak": {"type": "LINE_BREAK" if is_last else "SPACE"}}
    # As in Google's JSON, a coordinate of 0 is left out.
    corners = [
        {name: value for name, value in (("x", x), ("y", y)) if value}
        for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))
    ]
    return {"boundingBox": {"vertices": corners}, "symbols": symbols, "confidence": 0.98}


def _size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG or JPEG."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    position = 2 if data.startswith(b"\xff\xd8") else len(data)
    while position + 9 <= len(data):
        marker, length = data[position + 1], int.from_bytes(data[position + 2 : position + 4])
        # A frame header, which has the size. C4, C8 and CC are other segments.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[position + 7 : position + 9]), int.from_bytes(
                data[position + 5 : position + 7]
            )
        position += 2 + length
    return None


class GoogleVision(Provider):
    """https://cloud.google.com/vision/docs/reference/rest/v1/images/annotate"""

    name = "google"
    models = (_MODEL,)
    prefixes = ()
    request_id = "x-request-id"
    sends_retry_after = False
    endpoints: ClassVar[Mapping[str, Endpoint]] = {"/v1/images:annotate": _annotate}

    def key(self, headers: Mapping[str, str]) -> str:
        # Clients of Penstock send no key to this machine.
        return headers.get("x-goog-api-key", "").strip() or "none"

    def limit_headers(self, account: Account, now: float) -> dict[str, str]:
        return {}

    def listing(self, models: list[str]) -> dict[str, Any]:
        return {"models": models}

    def error(self, problem: Problem, request_id: str) -> tuple[int, dict[str, Any]]:
        code, status = _ERRORS[problem.reason]
        message = _MESSAGES.get(problem.reason) or problem.message or "Not found."
        return code, {"error": {"code": code, "message": message, "status": status}}
