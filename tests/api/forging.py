"""Tokens that are put together by hand, valid and forged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from typing import Any

ANN = uuid.UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def forged(header: Any, body: Any, signature: bytes = b"") -> str:
    return f"{part(header)}.{part(body)}.{part(signature)}"


def twice(values: dict[str, Any], more: bytes) -> bytes:
    """A JSON object with a field that repeats an earlier one. Most parsers take the last value."""
    return json.dumps(values).encode()[:-1] + b", " + more + b"}"


def signed(header: Any, body: Any, secret: bytes) -> str:
    """A token with an HS256 signature, whatever algorithm its header names."""
    text = f"{part(header)}.{part(body)}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"
