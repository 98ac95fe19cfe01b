"""The master key on several devices: enrol with a passphrase, or take it over from another device.

The server keeps wrapped keys in `wrapped_key_blobs` and hands out a transfer only while it is fresh.
"""

from __future__ import annotations

import platform
from typing import Any, Protocol, cast

from penstock.apps.notes.device import crypto
from penstock.apps.notes.device.crypto import Cipher, WrongKey

TRANSFER_MS = 600_000
"""How long another device may take a transfer over."""


class Rest(Protocol):
    """Requests to `/rest/v1`; HttpServer has it."""

    def call(self, path: str, body: Any, *, method: str | None = None) -> Any:
        """Send a request and return the JSON of the response."""
        ...


def device_label(program: str = "Penstock notes") -> str:
    """What the list of devices shows. Set at enrolment, never changed."""
    return f"{platform.system() or 'Unknown'} · {program}"


def enrol(rest: Rest, cipher: Cipher, passphrase: str, label: str | None = None) -> str:
    """Store the master key for this device, wrapped with a passphrase.

    Returns the id of the blob, which is the `device_id` of HttpServer.
    """
    blob = {"type": "pin-v1", "blob": crypto.wrap(cipher, passphrase), "is_active": True}
    [row] = rest.call("wrapped_key_blobs", {**blob, "device_label": label or device_label()})
    return row["id"]


def unlock(rest: Rest, passphrase: str) -> Cipher:
    """Open the master key with a passphrase of any active device. Raises WrongKey."""
    query = "wrapped_key_blobs?type=eq.pin-v1&is_active=is.true&select=blob&order=created_at.desc"
    for row in cast("list[dict[str, str]]", rest.call(query, None)):
        try:
            return crypto.unwrap(row["blob"], passphrase)
        except WrongKey:
            continue
    raise WrongKey("the passphrase opens no key of this account")


def offer(rest: Rest, cipher: Cipher) -> str:
    """Offer the master key to another device. Returns the code to type there; it works for ten minutes."""
    code = crypto.transfer_code()
    body = {"type": "transfer-v1", "blob": crypto.wrap(cipher, code, "transfer-v1"), "is_active": True}
    rest.call("wrapped_key_blobs", {**body, "device_label": device_label()})
    return code


def accept(rest: Rest, user_id: str, code: str) -> Cipher:
    """Take the master key over from another device. Raises WrongKey for a wrong or an old code."""
    arguments = {"p_user_id": user_id, "p_max_age_ms": TRANSFER_MS}
    found = rest.call("rpc/select_fresh_transfer_blob", arguments)
    for row in cast("list[dict[str, str]]", found):
        return crypto.unwrap(row["blob"], code.strip().upper(), "transfer-v1")
    raise WrongKey("there is no fresh transfer: offer the key again on the other device")


def revoke(rest: Rest, blob_id: str) -> None:
    """Deactivate the key of a lost device."""
    rest.call(f"wrapped_key_blobs?id=eq.{blob_id}", {"is_active": False}, method="PATCH")
