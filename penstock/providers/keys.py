"""Keys of providers: encrypted in the database, opened only to call their provider.

Each key is encrypted with its own data key (AES-256-GCM), and the data key with the master key of this
process (`PENSTOCK_MASTER_KEY`). Provider, host and tenant are authenticated data: write access to the
database is not enough to send a key to another host.
"""

from __future__ import annotations

import hashlib
import os
import re
from uuid import UUID

from penstock.errors import Invalid, PenstockError
from penstock.extras import required
from penstock.providers.connection import Key, host_of
from penstock.providers.hosts import OWN
from penstock.settings import settings
from penstock.types import SealedKey

_NONCE = 12
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def seal(
    provider: str,
    secret: str,
    *,
    host: str | None = None,
    tenant_id: UUID | None = None,
    master_keys: tuple[bytes, ...] | None = None,
) -> SealedKey:
    """Encrypt a key for the provider's own host, or for another host of a provider that is not known."""
    with required():
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    own = host_of(OWN[provider].url) if provider in OWN else None
    bound = (host or own or "").lower()
    if not _HOST.fullmatch(bound):
        raise Invalid(
            f"provider {provider!r} is not known: which host gets its key? (got {host!r})",
            code="invalid_provider_key",
            hint="Name it, such as --host llm.example.org.",
        )
    if own is not None and bound != own:
        raise Invalid(
            f"keys of {provider} are for {own} only (got {bound!r})",
            code="invalid_provider_key",
            hint="Give another server another provider name.",
        )
    if not secret or secret != secret.strip() or not secret.isascii() or not secret.isprintable():
        raise Invalid("a key must be printable ASCII, without spaces around it", code="invalid_provider_key")
    master = (settings().master_keys if master_keys is None else master_keys)[:1]
    if not master:
        raise PenstockError(
            "keys cannot be stored: there is no master key",
            code="no_master_key",
            hint="Set PENSTOCK_MASTER_KEY, for example to the output of: openssl rand -base64 32",
        )
    bound_to = _bound_to(provider, bound, tenant_id)
    own_key = AESGCM.generate_key(256)
    return SealedKey(
        provider,
        tenant_id,
        bound,
        _encrypt(own_key, secret.encode(), bound_to),
        _encrypt(master[0], own_key, bound_to),
        _master_id(master[0]),
    )


def unseal(key: SealedKey, master_keys: tuple[bytes, ...] | None = None) -> Key:
    """Open a key. Raises an error if its master key is not here, or if its row was changed."""
    with required():
        from cryptography.exceptions import InvalidTag

    for master in settings().master_keys if master_keys is None else master_keys:
        if _master_id(master) == key.master_id:
            bound_to = _bound_to(key.provider, key.host, key.tenant_id)
            try:
                own_key = _decrypt(master, key.wrapped_key, bound_to)
                return Key(key.host, _decrypt(own_key, key.sealed, bound_to).decode())
            except InvalidTag:
                raise PenstockError(
                    f"the stored key of {key.provider} was changed or belongs to another row",
                    code="broken_provider_key",
                    hint=f"Set it again: penstock providers keys set {key.provider}",
                ) from None
    raise PenstockError(
        f"the key of {key.provider} is encrypted with the master key {key.master_id}, which is not set here",
        code="no_master_key",
        hint="Set PENSTOCK_MASTER_KEY to the key with which it was stored.",
    )


def reseal(key: SealedKey, master_keys: tuple[bytes, ...] | None = None) -> SealedKey:
    """The same key, encrypted with the first master key."""
    found = unseal(key, master_keys)
    return seal(key.provider, found.secret, host=key.host, tenant_id=key.tenant_id, master_keys=master_keys)


def of_environment(provider: str) -> Key | None:
    """The provider's key in the environment, for its own host."""
    known = OWN.get(provider)
    secret = os.environ.get(known.variable, "").strip() if known else ""
    return Key(host_of(known.url), secret) if known and secret else None


def _bound_to(provider: str, host: str, tenant_id: UUID | None) -> bytes:
    return f"penstock.provider_keys\n{provider}\n{host}\n{tenant_id or 'all'}".encode()


def _master_id(master: bytes) -> str:
    return hashlib.sha256(b"penstock.master_key\n" + master).hexdigest()[:16]


def _encrypt(key: bytes, data: bytes, bound_to: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE)
    return nonce + AESGCM(key).encrypt(nonce, data, bound_to)


def _decrypt(key: bytes, data: bytes, bound_to: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).decrypt(data[:_NONCE], data[_NONCE:], bound_to)
