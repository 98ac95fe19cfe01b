"""A simulated telemetry sink that takes events as PostHog does: `POST /batch/` and `POST /i/v0/e/`."""

from __future__ import annotations

import json
from typing import Any, Literal, cast

PATHS = ("/batch/", "/batch", "/i/v0/e/", "/i/v0/e")
MAX_EVENTS = 100_000

Behavior = Literal["ok", "hang", "fail", "slow"]


class TelemetrySink:
    """Keeps the events it got. `behavior`: answers (ok), never answers, fails with 500, or answers slowly."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all events."""
        self.behavior: Behavior = "ok"
        self.slow_seconds = 3.0
        self.requests = 0
        self.events: list[dict[str, Any]] = []

    def take(self, body: bytes | None) -> tuple[int, dict[str, Any]]:
        """Take a request; returns status and document of the response."""
        self.requests += 1
        try:
            document: Any = json.loads(body or b"")
            batch: Any = document.get("batch", [document])
            events = [cast("dict[str, Any]", each) for each in batch if each["event"] and each["distinct_id"]]
            complete = isinstance(document.get("api_key"), str) and len(events) == len(batch)
        except (ValueError, TypeError, KeyError):
            complete, events = False, []
        if not complete:
            return 400, {"type": "validation_error", "detail": "each event needs event and distinct_id"}
        if self.behavior == "fail":
            return 500, {"type": "server_error"}
        self.events = [*self.events, *events][-MAX_EVENTS:]
        return 200, {"status": 1}

    def control(self, behavior: str) -> dict[str, Any]:
        """Change the behavior; returns what the sink has got."""
        if behavior in ("ok", "hang", "fail", "slow"):
            self.behavior = behavior
        return {"behavior": self.behavior, "requests": self.requests, "events": len(self.events)}
