"""Product telemetry of the app: the names of its events. No text of notes, no address, no payload."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import structlog

Event = Literal[
    "managed_ai_rate_limit_hit",
    "managed_ai_call_succeeded",
    "guardrail_fail_open",
    "prompt_fallback",
    "bulk_discovery_idea_undone",
]
log = structlog.get_logger("penstock.telemetry")


def send(event: Event, user_id: UUID, **properties: Any) -> None:
    """Note an event. Returns at once and never raises."""
    log.info(event, user_id=str(user_id), **properties)
