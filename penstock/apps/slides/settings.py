"""Settings from environment variables.

`CLOUDCONVERT_API_KEY`, `CLOUDCONVERT_URL` (default: CloudConvert's API), `CLOUDCONVERT_WEBHOOK_SECRET`
(several, separated by spaces, during a rotation), and `SLIDES_PUBLIC_URL`: the server's address, for
webhooks. Without it CloudConvert is only polled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock import Fail
from penstock.settings import is_loopback

API = "https://api.cloudconvert.com/v2"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach CloudConvert, and how it reaches us."""

    url: str
    key: str
    webhook_url: str | None
    timeout: float
    """Seconds until a conversion counts as timed out."""
    checks: tuple[float, ...]
    """Ages in seconds at which a conversion is checked without a webhook."""
    answer_timeout: float
    """Seconds to wait for an answer of CloudConvert."""


def settings() -> Settings:
    """Read the settings from the environment."""
    url = os.environ.get("CLOUDCONVERT_URL") or API
    key = os.environ.get("CLOUDCONVERT_API_KEY") or (
        "local" if is_loopback(urlsplit(url).hostname or "") else ""
    )
    if not key:
        raise Fail("environment variable CLOUDCONVERT_API_KEY is not set", code="no_key")
    public = os.environ.get("SLIDES_PUBLIC_URL")
    checks = os.environ.get("SLIDES_CHECK_SECONDS", "30 60 120").split()
    return Settings(
        url=url.rstrip("/"),
        key=key,
        webhook_url=f"{public.rstrip('/')}/webhooks/cloudconvert" if public else None,
        timeout=float(os.environ.get("SLIDES_TIMEOUT_SECONDS", "300")),
        checks=tuple(float(each) for each in checks),
        answer_timeout=float(os.environ.get("SLIDES_ANSWER_SECONDS", "30")),
    )


def webhook_secrets() -> list[str]:
    """The secrets that sign webhooks. Without one every webhook is rejected."""
    return os.environ.get("CLOUDCONVERT_WEBHOOK_SECRET", "").split()
