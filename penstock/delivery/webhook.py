"""One webhook: a JSON document, signed as Standard Webhooks prescribes, to an address that was checked."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from contextlib import suppress

import httpx

from penstock.delivery import addresses
from penstock.delivery.outcome import SENT, Outcome
from penstock.types import TakenNotification

_TIMEOUT_SECONDS = 10.0
_BODY_SECONDS = 1.0
_MAX_RESPONSE_BYTES = 64 << 10


def body(notification: TakenNotification) -> bytes:
    """The document that is sent."""
    document = {
        "type": notification.event,
        "timestamp": notification.created_at.isoformat(),
        "data": {
            "tenant_id": str(notification.tenant_id),
            "subject": notification.subject,
            "message": notification.body,
            **notification.details,
        },
    }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False, default=str).encode()


def signature(secret: str, message_id: str, timestamp: int, content: bytes) -> str:
    """The signature of a message: `v1,` and the HMAC of id, time and content."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((message_id.encode(), str(timestamp).encode(), content))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


async def send(
    notification: TakenNotification,
    *,
    allow_private: bool = False,
    resolve: addresses.Resolve | None = None,
) -> Outcome:
    """Send one webhook. A redirect is not followed: it would lead to an address nobody checked."""
    try:
        endpoint = await addresses.check(notification.address, allow_private=allow_private, resolve=resolve)
    except addresses.Refused as error:
        return Outcome("failed", str(error))
    except LookupError as error:
        return Outcome("retry", str(error))
    content = body(notification)
    timestamp = int(time.time())
    message_id = str(notification.id)
    headers = {
        "host": endpoint.host_header,
        "content-type": "application/json",
        "user-agent": "penstock",
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(
            signature(secret, message_id, timestamp, content) for secret in notification.secrets
        ),
    }
    try:
        # No proxy of the environment: it would connect to an address of its own choice.
        async with (
            # httpx limits each read; a receiver that sends byte by byte must end, too.
            asyncio.timeout(_TIMEOUT_SECONDS),
            httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=_TIMEOUT_SECONDS) as client,
            client.stream(
                "POST",
                endpoint.url,
                content=content,
                headers=headers,
                extensions={"sni_hostname": endpoint.host},
            ) as response,
        ):
            await _discard(response)
            return _outcome(response)
    except (httpx.HTTPError, OSError, TimeoutError) as error:
        return Outcome("retry", f"no response: {type(error).__name__}")


async def _discard(response: httpx.Response) -> None:
    """Read the response so that the connection ends cleanly, but not without end. Its status has come."""
    size = 0
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in response.aiter_raw():
                size += len(part)
                if size > _MAX_RESPONSE_BYTES:
                    return


def _outcome(response: httpx.Response) -> Outcome:
    status = response.status_code
    if response.is_success:
        return SENT
    if status == 410:
        return Outcome("gone", "the webhook responded 410 Gone")
    if status in (408, 409, 425, 429) or status >= 500:
        return Outcome("retry", f"the webhook responded {status}")
    return Outcome("failed", f"the webhook responded {status}")
