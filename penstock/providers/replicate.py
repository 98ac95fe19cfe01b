"""Video of models at Replicate: predictions with webhook and poll."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import httpx

from penstock.providers import failures, wire
from penstock.providers.connection import Connection
from penstock.providers.interface import Adapter, Answer, Medium, Request, Submitted, VideoRequest
from penstock.sdk.context import Fail

_FILTERED = ("flagged as sensitive", "nsfw", "content policy", "(e005)")


class ReplicateVideo(Adapter):
    """https://replicate.com/docs/reference/http"""

    name = "replicate"
    media: ClassVar[frozenset[Medium]] = frozenset({"video"})
    models_path = "/account"

    async def submit(self, connection: Connection, model: str, request: Request) -> Submitted:
        assert isinstance(request, VideoRequest), f"{model} does not make {request.medium}"
        wanted = {
            "prompt": request.prompt,
            "duration": request.seconds,
            "aspect_ratio": request.aspect_ratio,
            **request.options,
        }
        body: dict[str, Any] = {"input": wanted}
        if request.webhook_url is not None:
            body |= {"webhook": request.webhook_url, "webhook_events_filter": ["completed"]}
        response = await self._call(connection, "POST", f"/models/{model}/predictions", json=body)
        with failures.readable(connection.provider):
            return Submitted(str(response.json()["id"]))

    async def check(self, connection: Connection, external_id: str) -> Answer | None:
        response = await self._call(connection, "GET", f"/predictions/{external_id}")
        name = connection.provider
        with failures.readable(name):
            found = response.json()
            status, output = found["status"], found.get("output")
            message = str(found.get("error") or status)
        if status in ("starting", "processing"):
            return None
        if status == "succeeded":
            urls = cast("list[Any]", output) if isinstance(output, list) else [output]
            if not urls or not isinstance(urls[0], str):
                failures.empty(name)
            data = await wire.download(connection, urls[0])
            return Answer({"requests": 1}, data=data, media_type="video/mp4")
        if status in ("canceled", "aborted"):
            raise Fail(f"{name} canceled the prediction", code="operation_canceled")
        if status != "failed":
            failures.unreadable(name, f"unknown status {status!r}")
        if any(word in message.lower() for word in _FILTERED):
            failures.filtered(name, message)
        raise Fail(f"{name} failed: {message}"[:1000], code="provider_failed")

    async def cancel(self, connection: Connection, external_id: str) -> None:
        await self._ended(connection, "POST", f"/predictions/{external_id}/cancel")

    async def _ended(self, connection: Connection, method: str, path: str) -> None:
        """A call about work that may be gone, or have ended."""
        try:
            await self._call(connection, method, path)
        except Fail as error:
            response: Any = getattr(error.__cause__, "response", None)
            if not isinstance(response, httpx.Response) or response.status_code not in (404, 409, 422):
                raise

    async def _call(self, connection: Connection, method: str, path: str, **values: Any) -> httpx.Response:
        return await wire.call(
            connection, method, path, key_header=self.key_header, key_prefix=self.key_prefix, **values
        )
