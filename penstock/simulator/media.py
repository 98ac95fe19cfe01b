"""Simulated media: speech of ElevenLabs, videos of Replicate and Runway."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import httpx

from penstock.errors import Invalid
from penstock.simulator import content
from penstock.simulator.provider import Behavior

PATHS = re.compile(
    r"/v1/(text-to-speech/[^/]+|models/[^/]+/[^/]+/predictions|predictions/\w+(/cancel)?"
    r"|text_to_video|tasks/[\w-]+|video-files/\w+\.mp4|account|organization)"
)
SECRET = "whsec_" + base64.b64encode(b"simulated-webhook-secret").decode()
"""The secret that signs webhooks of the simulated Replicate."""


@dataclass(slots=True)
class MediaResponse:
    """A response: a document or bytes."""

    status: int
    document: Any = None
    body: bytes | None = None
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class _Video:
    id: str
    provider: Literal["replicate", "runway"]
    model: str
    prompt: str
    seconds: int
    created_at: float
    outcome: str | None
    webhook: str | None = None
    is_canceled: bool = False


class MediaServer:
    """Videos, webhooks and statistics."""

    def __init__(
        self, behavior: Callable[[], Behavior], clock: Callable[[], float], seconds: Callable[[], float]
    ) -> None:
        self._behavior, self._clock, self._seconds = behavior, clock, seconds
        self.url = ""
        self.secret = SECRET
        self._running: set[asyncio.Task[None]] = set()
        self.reset()

    def reset(self) -> None:
        """Forget videos and statistics."""
        self.videos: dict[str, _Video] = {}
        self.requests: Counter[str] = Counter()
        self.webhooks: Counter[str] = Counter()
        for task in list(self._running):
            task.cancel()

    async def aclose(self) -> None:
        """End webhooks that wait."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def respond(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> MediaResponse:
        """Answer a request whose path matches PATHS."""
        parts = path.removeprefix("/v1/").split("/")
        self.requests[f"{method} {parts[0]}"] += 1
        try:
            fields: Any = json.loads(body or b"{}")
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            return MediaResponse(400, {"detail": "The body must be a JSON object."})
        return self._respond(method, parts, query, headers, cast("dict[str, Any]", fields))

    def _respond(
        self,
        method: str,
        parts: list[str],
        query: Mapping[str, str],
        headers: Mapping[str, str],
        fields: dict[str, Any],
    ) -> MediaResponse:
        match method, *parts:
            case "POST", "text-to-speech", voice:
                return self._speak(voice, query, fields)
            case "POST", "models", owner, name, "predictions":
                return self._predict(f"{owner}/{name}", fields)
            case "GET", "predictions", id if id in self.videos:
                return MediaResponse(200, self._prediction(self.videos[id]))
            case "POST", "predictions", id, "cancel" if id in self.videos:
                self.videos[id].is_canceled = True
                return MediaResponse(200, self._prediction(self.videos[id]))
            case "POST", "text_to_video":
                return self._film(headers, fields)
            case "GET", "tasks", id if id in self.videos:
                return MediaResponse(200, self._task(self.videos[id]))
            case "DELETE", "tasks", id if id in self.videos:
                self.videos[id].is_canceled = True
                return MediaResponse(204, body=b"")
            case "GET", "video-files", name if name.removesuffix(".mp4") in self.videos:
                video = self.videos[name.removesuffix(".mp4")]
                return MediaResponse(200, body=render(video.prompt, video.seconds), media_type="video/mp4")
            case "GET", "account" | "organization":
                return MediaResponse(200, {"name": "simulator", "creditBalance": 1000})
            case _:
                return MediaResponse(404, {"detail": "The requested resource could not be found."})

    # Speech

    def _speak(self, voice: str, query: Mapping[str, str], fields: dict[str, Any]) -> MediaResponse:
        text = fields.get("text")
        if not isinstance(text, str) or not text:
            return MediaResponse(422, {"detail": [{"loc": ["body", "text"], "msg": "Field required"}]})
        if query.get("output_format") != "pcm_24000":
            detail = {"status": "invalid_output_format", "message": "Only pcm_24000 is simulated."}
            return MediaResponse(400, {"detail": detail})
        headers = {"x-character-count": str(len(text)), "request-id": hashlib.md5(text.encode()).hexdigest()}  # noqa: S324
        samples = content.sound(text + voice, 0)[44:]
        return MediaResponse(200, body=samples, media_type="audio/pcm", headers=headers)

    # Videos

    def _predict(self, model: str, fields: dict[str, Any]) -> MediaResponse:
        wanted: Any = fields.get("input")
        if not isinstance(wanted, dict) or not cast("dict[str, Any]", wanted).get("prompt"):
            return MediaResponse(
                422, {"detail": "- input.prompt: is required", "title": "Input validation failed"}
            )
        given = cast("dict[str, Any]", wanted)
        video = self._begin("replicate", model, str(given["prompt"]), given.get("duration"))
        if isinstance(fields.get("webhook"), str):
            video.webhook = fields["webhook"]
            self._run(self._deliver(video))
        return MediaResponse(201, self._prediction(video))

    def _film(self, headers: Mapping[str, str], fields: dict[str, Any]) -> MediaResponse:
        if not headers.get("x-runway-version"):
            return MediaResponse(400, {"error": "X-Runway-Version header is required."})
        prompt, ratio = fields.get("promptText"), fields.get("ratio")
        if not isinstance(prompt, str) or not prompt or len(prompt) > 1000 or not isinstance(ratio, str):
            return MediaResponse(400, {"error": "Validation of body failed", "issues": []})
        video = self._begin("runway", str(fields.get("model")), prompt, fields.get("duration"))
        return MediaResponse(200, {"id": video.id})

    def _begin(self, provider: Any, model: str, prompt: str, seconds: Any) -> _Video:
        id = hashlib.sha256(f"{provider}{len(self.videos)}{prompt}".encode()).hexdigest()[:26]
        length = seconds if isinstance(seconds, int) and 1 <= seconds <= 60 else 5
        made = _Video(id, provider, model, prompt, length, self._clock(), self._behavior().outcome)
        self.videos[id] = made
        return made

    def _state(self, video: _Video) -> Literal["running", "succeeded", "failed", "canceled"]:
        if video.is_canceled:
            return "canceled"
        if self._clock() - video.created_at < self._seconds():
            return "running"
        return "failed" if video.outcome else "succeeded"

    def _file(self, video: _Video) -> str:
        return f"{self.url}/v1/video-files/{video.id}.mp4"

    def _prediction(self, video: _Video) -> dict[str, Any]:
        state = self._state(video)
        base = f"{self.url}/v1/predictions/{video.id}"
        return {
            "id": video.id,
            "model": video.model,
            "version": "hidden",
            "input": {"prompt": video.prompt, "duration": video.seconds},
            "output": self._file(video) if state == "succeeded" else None,
            "error": "The input or output was flagged as sensitive. (E005)" if state == "failed" else None,
            "logs": "",
            "metrics": {"predict_time": self._seconds()} if state == "succeeded" else {},
            "status": "processing" if state == "running" else state,
            "created_at": "2026-11-18T10:00:00Z",
            "data_removed": False,
            "urls": {"get": base, "cancel": f"{base}/cancel"},
        }

    def _task(self, video: _Video) -> dict[str, Any]:
        state = self._state(video)
        found: dict[str, Any] = {"id": video.id, "createdAt": "2026-11-18T10:00:00Z"}
        match state:
            case "running":
                return {**found, "status": "RUNNING", "progress": 0.5}
            case "succeeded":
                return {**found, "status": "SUCCEEDED", "output": [self._file(video)]}
            case "failed":
                failure = "The prompt was rejected by our content moderation."
                return {**found, "status": "FAILED", "failure": failure, "failureCode": "SAFETY.INPUT.TEXT"}
            case "canceled":
                return {**found, "status": "CANCELLED"}

    async def _deliver(self, video: _Video) -> None:
        """Send the webhook of a prediction that has ended, signed as Standard Webhooks are."""
        while self._state(video) == "running":  # noqa: ASYNC110 the clock may be a test's own
            await asyncio.sleep(0.02)
        headers, body = self.signed(video)
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
                answer = await client.post(str(video.webhook), content=body, headers=headers)
            self.webhooks["sent" if answer.is_success else "refused"] += 1

    def signed(self, video: _Video) -> tuple[dict[str, str], bytes]:
        """Headers and body of a video's webhook."""
        body = json.dumps(self._prediction(video)).encode()
        moment, identifier = str(int(time.time())), f"msg_{video.id}"
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        digest = hmac.digest(key, f"{identifier}.{moment}.".encode() + body, "sha256")
        headers = {
            "content-type": "application/json",
            "webhook-id": identifier,
            "webhook-timestamp": moment,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }
        return headers, body

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


def render(prompt: str, seconds: int) -> bytes:
    """A small film in one color, as long as asked for. The same prompt gives the same one."""
    try:
        import av
        from PIL import Image
    except ImportError as error:
        raise Invalid("videos need PyAV and Pillow: pip install 'penstock[apps]'") from error
    color = tuple(hashlib.sha256(prompt.encode()).digest()[:3])
    out = io.BytesIO()
    opened: Any
    with av.open(out, "w", format="mp4") as opened:
        stream = opened.add_stream("libx264", rate=4, options={"preset": "ultrafast", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = 128, 72, "yuv420p"
        for number in range(seconds * 4):
            frame: Any = cast("Any", av.VideoFrame).from_image(Image.new("RGB", (128, 72), color))
            frame.pts = number
            opened.mux(stream.encode(frame))
        opened.mux(stream.encode(None))
    return out.getvalue()
