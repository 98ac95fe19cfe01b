"""Video of Runway: tasks that are polled. Its API sends no webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import httpx

from penstock.providers import failures, wire
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, Submitted, VideoRequest
from penstock.sdk.context import Fail

_MOST_CHARACTERS = 1000  # of UTF-16
_RATIOS = {"16:9": "1280:720", "9:16": "720:1280", "1:1": "960:960"}
_VEO_SECONDS = (4, 6, 8)


class RunwayVideo(Adapter):
    """https://docs.dev.runwayml.com/api/"""

    name = "runway"
    media: ClassVar[frozenset[Medium]] = frozenset({"video"})
    models_path = "/organization"
    headers: ClassVar[Mapping[str, str]] = {"X-Runway-Version": "2024-11-06"}

    async def submit(self, connection: Connection, model: str, request: Request) -> Submitted:
        assert isinstance(request, VideoRequest), f"{model} does not make {request.medium}"
        seconds = request.seconds
        if model.startswith("veo"):
            seconds = next((each for each in _VEO_SECONDS if each >= seconds), _VEO_SECONDS[-1])
        body = {
            "model": model,
            "promptText": _shortened(request.prompt),
            "ratio": _RATIOS[request.aspect_ratio],
            "duration": seconds,
            **request.options,
        }
        response = await self._call(connection, "POST", "/text_to_video", json=body)
        with failures.readable(connection.provider):
            return Submitted(str(response.json()["id"]))

    async def check(self, connection: Connection, external_id: str) -> Answer | None:
        response = await self._call(connection, "GET", f"/tasks/{external_id}")
        name = connection.provider
        with failures.readable(name):
            found = response.json()
            status, urls = found["status"], list(found.get("output") or ())
            code, message = str(found.get("failureCode") or ""), str(found.get("failure") or status)
        if status in ("PENDING", "THROTTLED", "RUNNING"):
            return None
        if status == "SUCCEEDED":
            if not urls:
                failures.empty(name)
            data = await wire.download(connection, str(urls[0]))
            return Answer({"requests": 1}, data=data, media_type="video/mp4")
        if status in ("CANCELLED", "CANCELED"):
            raise Fail(f"{name} canceled the task", code="operation_canceled")
        if status != "FAILED":
            failures.unreadable(name, f"unknown status {status!r}")
        if code.startswith("SAFETY") or ".SAFETY" in code:
            failures.filtered(name, f"{message} ({code})")
        raise Fail(f"{name} failed: {message} ({code or 'no code'})"[:1000], code="provider_failed")

    async def cancel(self, connection: Connection, external_id: str) -> None:
        try:
            await self._call(connection, "DELETE", f"/tasks/{external_id}")
        except Fail as error:
            if failures.status_of(error.__cause__ or error) != 404:
                raise

    async def _call(self, connection: Connection, method: str, path: str, **values: Any) -> httpx.Response:
        return await wire.call(
            connection,
            method,
            path,
            key_header=self.key_header,
            key_prefix=self.key_prefix,
            headers=self.headers,
            **values,
        )


def _shortened(text: str) -> str:
    """The text, cut to the number of UTF-16 code units that the API accepts."""
    return text.encode("utf-16-le")[: _MOST_CHARACTERS * 2].decode("utf-16-le", "ignore")
