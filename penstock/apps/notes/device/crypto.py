"""End-to-end encryption: sealed texts, and the master key wrapped for a device.

| what | format |
|---|---|
| sealed text | `enc:v1:` + base64(nonce ‖ ciphertext), AES-256-GCM, bound to the record (`note:<id>`) |
| wrapped key (`pin-v1`, `transfer-v1`) | base64 of JSON: scrypt parameters, salt, nonce, ciphertext |

The server stores both and can read neither.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from dataclasses import dataclass
from typing import Any

from penstock import extras

with extras.required():
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

PREFIX = "enc:v1:"
_NONCE = 12
_COST = 2**15
"""scrypt's n: about 0.1 s and 32 MB for a guess."""
_MAX_COST = 2**17
"""A larger cost in a stored blob is refused: it would use up the memory of the device."""


class WrongKey(ValueError):
    """The key or passphrase does not open this."""


def is_sealed(text: object) -> bool:
    """Whether a text is ciphertext."""
    return isinstance(text, str) and text.startswith(PREFIX)


@dataclass(frozen=True, repr=False)
class Cipher:
    """Seals and opens texts and vectors with the master key."""

    key: bytes

    @classmethod
    def generate(cls) -> Cipher:
        """A new master key."""
        return cls(secrets.token_bytes(32))

    def seal(self, text: str, bound_to: str) -> str:
        """Encrypt a text. A text that is sealed already stays as it is."""
        return text if is_sealed(text) else PREFIX + _encode(self.seal_bytes(text.encode(), bound_to))

    def open(self, text: str, bound_to: str) -> str:
        """Decrypt a sealed text; a plain one stays as it is. Raises WrongKey."""
        if not is_sealed(text):
            return text
        return self.open_bytes(_decode(text.removeprefix(PREFIX)), bound_to).decode()

    def seal_bytes(self, data: bytes, bound_to: str) -> bytes:
        """Encrypt bytes, such as an embedding."""
        nonce = os.urandom(_NONCE)
        return nonce + AESGCM(self.key).encrypt(nonce, data, bound_to.encode())

    def open_bytes(self, data: bytes, bound_to: str) -> bytes:
        """Decrypt bytes. Raises WrongKey if the key, the record or a bit differs."""
        try:
            return AESGCM(self.key).decrypt(data[:_NONCE], data[_NONCE:], bound_to.encode())
        except (InvalidTag, ValueError) as error:
            raise WrongKey("the key does not open this text, or it was changed") from error


def wrap(cipher: Cipher, passphrase: str, kind: str = "pin-v1") -> str:
    """The master key, encrypted with a key derived from the passphrase."""
    salt, nonce = os.urandom(16), os.urandom(_NONCE)
    sealed = AESGCM(_derive(passphrase, salt, _COST)).encrypt(nonce, cipher.key, kind.encode())
    parts = {"n": _COST, "salt": _encode(salt), "nonce": _encode(nonce), "key": _encode(sealed)}
    return _encode(json.dumps(parts).encode())


def unwrap(blob: str, passphrase: str, kind: str = "pin-v1") -> Cipher:
    """Open a wrapped master key. Raises WrongKey for a wrong passphrase or a blob of another kind."""
    try:
        parts: dict[str, Any] = json.loads(_decode(blob))
        cost = int(parts["n"])
        if not 2**14 <= cost <= _MAX_COST or cost & (cost - 1):
            raise WrongKey(f"the cost of a wrapped key must be a power of 2 up to {_MAX_COST} (got {cost})")
        derived = _derive(passphrase, _decode(parts["salt"]), cost)
        key = AESGCM(derived).decrypt(_decode(parts["nonce"]), _decode(parts["key"]), kind.encode())
    except (InvalidTag, KeyError, TypeError, ValueError) as error:
        raise WrongKey("the passphrase does not open this key") from error
    return Cipher(key)


def transfer_code() -> str:
    """A code to read from one device and type on another: 100 bits, without characters that look alike."""
    letters = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
    return "-".join("".join(secrets.choice(letters) for _ in range(5)) for _ in range(4))


def _derive(passphrase: str, salt: bytes, cost: int) -> bytes:
    return Scrypt(salt=salt, length=32, n=cost, r=8, p=1).derive(passphrase.encode())


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
