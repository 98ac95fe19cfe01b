"""Signatures of webhooks, checked over the raw bytes of the body, in constant time."""

from __future__ import annotations

import base64
import binascii
import hmac
import time
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from penstock.errors import Invalid

Scheme: TypeAlias = Literal["stripe", "cloudconvert", "standard"]
TOLERANCE_SECONDS = 300
"""How far the time in a signature may be from now, in both directions."""


def verify(
    scheme: Scheme,
    headers: Mapping[str, Sequence[str]],
    body: bytes,
    secrets: Sequence[str],
    *,
    now: float | None = None,
) -> None:
    """Raise Invalid unless one of the secrets signed this body. Several secrets allow a rotation.

    `headers`: every value of each header, by lower-case name. A signature header that is sent twice is
    rejected, because receivers disagree about which one counts.
    """
    if not secrets or not all(secrets):
        raise Invalid("this webhook has no secret", code="bad_signature")
    clock = time.time() if now is None else now
    match scheme:
        case "stripe":
            is_good = _stripe(_one(headers, "stripe-signature"), body, secrets, clock)
        case "cloudconvert":
            is_good = _is_signed(_one(headers, "cloudconvert-signature"), body, secrets)
        case "standard":
            is_good = _standard(headers, body, secrets, clock)
    if not is_good:
        raise Invalid("the signature does not match the body", code="bad_signature")


def _one(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    if len(values) != 1:
        raise Invalid(f"the header {name} must be sent once (got {len(values)})", code="bad_signature")
    return values[0]


def _stripe(header: str, body: bytes, secrets: Sequence[str], now: float) -> bool:
    parts = [part.partition("=")[::2] for part in header.split(",")]
    times = [value for name, value in parts if name == "t"]
    signatures = [value for name, value in parts if name == "v1"]
    if len(times) != 1 or not signatures:
        raise Invalid("the header stripe-signature must have one t and a v1", code="bad_signature")
    _require_fresh(times[0], now)
    signed = times[0].encode() + b"." + body
    return any(_is_signed(each, signed, secrets) for each in signatures)


def _standard(headers: Mapping[str, Sequence[str]], body: bytes, secrets: Sequence[str], now: float) -> bool:
    identifier, moment = _one(headers, "webhook-id"), _one(headers, "webhook-timestamp")
    _require_fresh(moment, now)
    signed = f"{identifier}.{moment}.".encode() + body
    expected = [hmac.digest(_standard_key(secret), signed, "sha256") for secret in secrets]
    found = False
    for each in _one(headers, "webhook-signature").split(" "):
        version, _, signature = each.partition(",")
        if version == "v1":
            found |= any(hmac.compare_digest(_decoded(signature), digest) for digest in expected)
    return found


def _standard_key(secret: str) -> bytes:
    key = _decoded(secret.removeprefix("whsec_"))
    if len(key) < 16:
        raise Invalid(
            "the secret of a standard webhook must be base64 of 16 or more bytes", code="bad_signature"
        )
    return key


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _is_signed(signature: str, signed: bytes, secrets: Sequence[str]) -> bool:
    given = signature.encode("utf-8", "replace")
    found = False
    for secret in secrets:
        expected = hmac.new(secret.encode(), signed, "sha256").hexdigest().encode()
        found |= hmac.compare_digest(given, expected)
    return found


def _require_fresh(moment: str, now: float) -> None:
    """Also in the future: a signature must not be usable for longer than the tolerance."""
    if not (moment.isascii() and moment.isdecimal() and len(moment) < 16):
        raise Invalid("the time of the signature is not a number of seconds", code="bad_signature")
    if abs(now - int(moment)) > TOLERANCE_SECONDS:
        raise Invalid("the time of the signature is more than 5 minutes from now", code="bad_signature")
