"""Text in pictures, by Google Cloud Vision."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

from penstock.providers import failures, wire
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, VisionRequest
from penstock.sdk.context import Fail, Retry

# Codes of google.rpc: internal, unavailable, resource exhausted, deadline exceeded.
_PASSING = (13, 14, 8, 4)


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
        response = await wire.call(
            connection,
            "POST",
            "/v1/images:annotate",
            key_header=self.key_header,
            json={"requests": [wanted]},
        )
        with failures.readable(connection.provider):
            found: dict[str, Any] = response.json()["responses"][0]
            if error := found.get("error"):
                text = f"{connection.provider} failed ({error.get('code')}): {error.get('message')}"[:1000]
                if error.get("code") in _PASSING:
                    raise Retry(text, code="provider_failed")
                raise Fail(text, code="provider_refused")
            # A picture without text has no annotation: that is an answer.
            annotation: dict[str, Any] = found.get("fullTextAnnotation") or {"text": ""}
            text = str(annotation.get("text", ""))
        signal = self.limits(response.status_code, response.headers)
        return Answer({"requests": 1, "pages": 1}, text, signal=signal)
