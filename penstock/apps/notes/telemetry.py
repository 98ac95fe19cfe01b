"""Product telemetry of the app: the names of its events. No text of notes, no address, no payload."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from penstock import telemetry

Event = Literal[
    "managed_ai_rate_limit_hit",
    "managed_ai_call_succeeded",
    "guardrail_fail_open",
    "prompt_fallback",
    "bulk_discovery_idea_undone",
]


def send(event: Event, user_id: UUID, **properties: object) -> None:
    """Send an event. Returns at once and never raises."""
    telemetry.send(event, user_id, **properties)
