"""What a provider's answer says about its limits: one dialect for each, one form for the database.

A signal is `{"status", "retry_after_seconds", "exhausted", "message", "requests": {"limit", "remaining"},
"tokens": {"limit", "remaining"}}`, as `penstock.report_provider` takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_LONGEST_SECONDS = 86400.0
# Go's way to write durations: 6m0s, 1.5s, 20ms, 1h2m3s.
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
# An empty account, in the words of those who answer 429 for that too.
_EXHAUSTED = {
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "enforced_spend_limit_reached",
}  # fmt: skip
_REFUSALS = {429, 529}


def read(status: int, headers: Mapping[str, str], body: Any = None) -> dict[str, Any]:
    """The signal of an answer."""
    lower = {str(name).lower(): str(value) for name, value in headers.items()}
    signal: dict[str, Any] = {"status": status}
    if (wait := _retry_after(lower)) is not None:
        signal["retry_after_seconds"] = wait
    for meter in ("requests", "tokens"):
        limit = _number(
            lower.get(f"x-ratelimit-limit-{meter}") or lower.get(f"anthropic-ratelimit-{meter}-limit")
        )
        left = _number(
            lower.get(f"x-ratelimit-remaining-{meter}") or lower.get(f"anthropic-ratelimit-{meter}-remaining")
        )
        # Requests that take hours to come back are counted by the day: not a minute's window.
        reset = duration(lower.get(f"x-ratelimit-reset-{meter}", ""))
        if limit is not None and left is not None and not (reset is not None and reset > 120):
            signal[meter] = {"limit": limit, "remaining": left}
    error = _error(body)
    if words := error.get("message"):
        signal["message"] = str(words)[:500]
    details: Any = error.get("details")
    codes = {str(error.get("code")), str(error.get("type"))}
    if isinstance(details, Mapping):
        codes.add(str(details.get("error_code")))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if status == 402 or (status == 429 and codes & _EXHAUSTED):
        signal["exhausted"] = True
    return signal


def of(error: BaseException) -> dict[str, Any] | None:
    """The signal of an exception that stands for a refusal; None for any other.

    Knows what clients have in common (httpx, requests, openai, anthropic): a `response` with `status_code`
    and `headers`, and sometimes a decoded `body`.
    """
    response: Any = getattr(error, "response", None)
    status: Any = getattr(response, "status_code", None) or getattr(error, "status_code", None)
    if not isinstance(status, int):
        return None
    headers: Any = getattr(response, "headers", None)
    body: Any = getattr(error, "body", None)
    if body is None:
        try:
            body = response.json()
        except Exception:
            # Whatever is wrong with it: an answer without a body is one too.
            body = None
    signal = read(status, headers if isinstance(headers, Mapping) else dict(headers or {}), body)
    if status in _REFUSALS or signal.get("exhausted") or (status == 503 and "retry_after_seconds" in signal):
        return signal
    return None


def is_scarce(signal: Mapping[str, Any]) -> bool:
    """Whether an answer is worth telling the others: refused, or hardly anything left."""
    if signal.get("status") in _REFUSALS or signal.get("exhausted"):
        return True
    meters = (signal.get(meter) for meter in ("requests", "tokens"))
    return any(meter is not None and meter["remaining"] < 0.2 * meter["limit"] for meter in meters)


def duration(text: str) -> float | None:
    """Seconds of a duration such as 6m0s; None for what is none."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, in any of the ways that are in use: milliseconds, seconds, an HTTP date."""
    if (milliseconds := _float(headers.get("retry-after-ms"))) is not None:
        return min(_LONGEST_SECONDS, milliseconds / 1000)
    text = headers.get("retry-after")
    if text is None:
        return None
    if (found := _float(text)) is not None:
        return min(_LONGEST_SECONDS, found)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return min(_LONGEST_SECONDS, max(0.0, (at - datetime.now(UTC)).total_seconds()))


def _float(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if 0 <= found < float("inf") else None


def _number(text: str | None) -> int | None:
    found = _float(text)
    return None if found is None or found > 10**15 else int(found)


def _error(body: Any) -> dict[str, Any]:
    if not isinstance(body, Mapping):
        return {}
    found: Any = body.get("error", body)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return dict(found) if isinstance(found, Mapping) else {"message": found}  # pyright: ignore[reportUnknownArgumentType]
