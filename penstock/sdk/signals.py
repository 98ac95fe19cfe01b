"""Reads rate-limit signals from providers' responses and converts them to one format.

A signal is `{"status", "retry_after_seconds", "exhausted", "message", "requests": {"limit", "remaining"},
"tokens": {"limit", "remaining"}}`, the argument of `penstock.report_provider`. The signal of an exception has
the `host` that answered, if the exception says so: a handler may call other hosts than its provider's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit

_LONGEST_SECONDS = 86400.0
# Go durations: 6m0s, 1.5s, 20ms, 1h2m3s.
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
# Error codes for an empty account, from providers that respond with 429 for that too.
_EXHAUSTED = {
    "insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "enforced_spend_limit_reached",
}  # fmt: skip
_LIMITED_STATUSES = {429, 529}


def read(status: int, headers: Mapping[str, str], body: Any = None) -> dict[str, Any]:
    """The signal of a response."""
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
        # A reset in hours means a daily limit, not the minute's window.
        reset = duration(lower.get(f"x-ratelimit-reset-{meter}", ""))
        if limit is not None and left is not None and not (reset is not None and reset > 120):
            signal[meter] = {"limit": limit, "remaining": left}
    error = _error(body)
    if words := error.get("message"):
        signal["message"] = str(words)[:500]
    codes = {
        str(error.get("code")),
        str(error.get("type")),
        str(_mapping(error.get("details")).get("error_code")),
    }
    if status == 402 or (status == 429 and codes & _EXHAUSTED):
        signal["exhausted"] = True
    return signal


def of(error: BaseException) -> dict[str, Any] | None:
    """The signal of an exception that reports a rate limit or an exhausted account; None for others.

    Supports what HTTP clients have in common (httpx, requests, openai, anthropic): a `response` with
    `status_code` and `headers`, and sometimes a decoded `body`; and urllib's HTTPError. Does not read the
    body of an HTTPError, which could block: a handler that has read it sets it as `body`.
    """
    if isinstance(error, HTTPError):
        # Not getattr, which HTTPError delegates to a file that may be missing.
        own = vars(error)
        return _from_host(own.get("url"), _limited_signal(error.code, error.headers, own.get("body")))
    response: Any = getattr(error, "response", None)
    status: Any = getattr(response, "status_code", None) or getattr(error, "status_code", None)
    if not isinstance(status, int):
        return None
    body: Any = getattr(error, "body", None)
    signal = _limited_signal(
        status, getattr(response, "headers", None), _decoded(response) if body is None else body
    )
    return _from_host(_url(response) or _url(error), signal)


def _url(source: Any) -> Any:
    """The address of a response, or of the request that led to it."""
    try:
        return getattr(source, "url", None) or getattr(getattr(source, "request", None), "url", None)
    except Exception:
        # httpx raises an error if a response has no request.
        return None


def _from_host(url: Any, signal: dict[str, Any] | None) -> dict[str, Any] | None:
    if signal is None or url is None:
        return signal
    try:
        host = urlsplit(str(url)).hostname
    except ValueError:
        host = None
    # An address without a readable host belongs to no provider.
    return {**signal, "host": host or "unknown"}


def is_scarce(signal: Mapping[str, Any]) -> bool:
    """Whether a signal is worth reporting: limited, or less than 20 % left."""
    if _is_limited(signal):
        return True
    meters = (signal.get(meter) for meter in ("requests", "tokens"))
    return any(meter is not None and meter["remaining"] < 0.2 * meter["limit"] for meter in meters)


def duration(text: str) -> float | None:
    """Seconds of a duration such as 6m0s; None if it is not one."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse Retry-After in any common form: milliseconds, seconds, an HTTP date."""
    if (milliseconds := _float(headers.get("retry-after-ms"))) is not None:
        return min(_LONGEST_SECONDS, milliseconds / 1000)
    text = headers.get("retry-after")
    if text is None:
        return None
    if (found := _float(text)) is not None:
        return min(_LONGEST_SECONDS, found)
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError, IndexError):
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


def _limited_signal(status: int, headers: Any, body: Any) -> dict[str, Any] | None:
    signal = read(status, _headers(headers), body)
    return signal if _is_limited(signal) else None


def _is_limited(signal: Mapping[str, Any]) -> bool:
    status = signal.get("status")
    if status == 503:
        # Without Retry-After, 503 is an ordinary error.
        return "retry_after_seconds" in signal
    return status in _LIMITED_STATUSES or bool(signal.get("exhausted"))


def _decoded(response: Any) -> Any:
    try:
        return response.json()
    except Exception:
        # A response without a readable body still has a status and headers.
        return None


def _headers(found: Any) -> dict[str, str]:
    try:
        return dict(found or {})
    except (TypeError, ValueError):
        return {}


def _error(body: Any) -> dict[str, Any]:
    found = _mapping(body)
    error = found.get("error", found)
    return _mapping(error) if isinstance(error, Mapping) else {"message": error}


def _mapping(value: Any) -> dict[str, Any]:
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}
