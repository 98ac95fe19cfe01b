"""JWTs as Supabase issues them: signed with the project's secret, or with a key from its JWKS.

The algorithm belongs to the key, not to the token: the secret is for HS256 only, and a key from the JWKS for
what its type says. What a token says about where its key is to be found (`jku`, `x5u`, `jwk`) is not read.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, cast
from uuid import UUID

import jiter
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from penstock.errors import PenstockError, Unauthenticated, Unavailable
from penstock.settings import Settings

LEEWAY_SECONDS = 30
"""By how much clocks may differ."""

FRESH_SECONDS = 600
"""How long fetched keys are used before they are looked up again."""

FLOOR_SECONDS = 30
"""The least time between two look-ups, so that tokens with made-up key ids cause no more of them."""

STALE_SECONDS = 3600
"""How long keys are still used when they cannot be looked up any more."""

_MOST_BYTES = 1 << 20


class Tokens:
    """Verifies tokens."""

    def __init__(self, settings: Settings) -> None:
        self._secret = settings.jwt_secret
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._keys = Keys(settings.jwks_url) if settings.jwks_url else None

    async def verify(self, token: str) -> dict[str, Any]:
        """The claims of a token, if all of it holds. Raises Unauthenticated otherwise."""
        try:
            _check_keys(token)
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm == "HS256" and self._secret:
                claims = self._read(token, self._secret, "HS256")
            elif algorithm in ("ES256", "RS256") and self._keys is not None:
                claims = await self._verify_by_keys(token, algorithm, header.get("kid"))
            else:
                raise Unauthenticated("the token is not signed in a way that is accepted here")
        except (jwt.PyJWTError, ValueError, RecursionError, OverflowError) as error:
            raise Unauthenticated(_reason(error)) from error
        return claims

    async def _verify_by_keys(self, token: str, algorithm: str, kid: object) -> dict[str, Any]:
        assert self._keys is not None
        if not isinstance(kid, str) or len(kid) > 200:
            raise Unauthenticated("the token does not say which key it was signed with")
        key = await self._keys.get(kid)
        if key is None or key.algorithm_name != algorithm:
            raise Unauthenticated("the token is signed with a key that is not known here")
        claims = self._read(token, key.key, algorithm)
        if claims["role"] == "service_role":
            # These keys sign users' tokens. The service has the secret, or API keys.
            raise Unauthenticated("this token cannot make its bearer the service")
        return claims

    def _read(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        claims = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            leeway=LEEWAY_SECONDS,
            # Who it is from and for depends on the role, which is only known now: see below.
            options={"require": ["exp", "role"], "verify_aud": False, "verify_iss": False},
        )
        for name in ("exp", "nbf", "iat"):
            if name in claims and not _is_moment(claims[name]):
                raise Unauthenticated("the token's times are none")
        match claims["role"]:
            case "authenticated":
                self._check_user(claims)
            case "anon" | "service_role":
                self._check_key(claims)
            case _:
                raise Unauthenticated("the token's role is none that is known here")
        return claims

    def _check_user(self, claims: dict[str, Any]) -> None:
        if self._issuer and claims.get("iss") != self._issuer:
            raise Unauthenticated("the token is from another issuer")
        if not _is_for(claims.get("aud"), self._audience):
            raise Unauthenticated("the token is for another audience")
        if not isinstance(claims.get("sub"), str):
            raise Unauthenticated("the token names no user")
        # One way to write it: others that mean the same user might be somebody else's name elsewhere.
        if str(UUID(claims["sub"])) != claims["sub"].lower():
            raise Unauthenticated("the token names no user")
        claims["sub"] = claims["sub"].lower()

    def _check_key(self, claims: dict[str, Any]) -> None:
        """The project's own keys are tokens of ten years without a user or an audience, from `supabase`."""
        if self._issuer and claims.get("iss") not in (self._issuer, "supabase"):
            raise Unauthenticated("the token is from another issuer")
        if "aud" in claims and not _is_for(claims["aud"], self._audience):
            raise Unauthenticated("the token is for another audience")
        # Nobody acts as the service and as a user at once.
        claims.pop("sub", None)


class Keys:
    """The public keys at an address, by their ids."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried_at = -float("inf")
        self._fetched_at = -float("inf")
        self._fetching = asyncio.Lock()

    async def get(self, kid: str) -> jwt.PyJWK | None:
        """The key of this id; None if there is none. Raises Unavailable when that cannot be found out."""
        if kid in self._keys and self._age() < FRESH_SECONDS:
            return self._keys[kid]
        async with self._fetching:
            if time.monotonic() - self._tried_at > FLOOR_SECONDS:
                await self._fetch()
        if self._age() > STALE_SECONDS:
            raise Unavailable("the keys that tokens are signed with cannot be fetched now")
        return self._keys.get(kid)

    def _age(self) -> float:
        return time.monotonic() - self._fetched_at

    async def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        try:
            text = await asyncio.to_thread(_download, self._url)
            self._keys = dict(_usable(json.loads(text)))
        except (OSError, ValueError, RecursionError):
            return
        self._fetched_at = time.monotonic()


def _download(url: str) -> bytes:
    # The scheme is checked where the setting is read.
    with urllib.request.build_opener(_Stay).open(url, timeout=5) as response:
        return response.read(_MOST_BYTES)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Keys come from the address that was configured, and from no other."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        return None


def _usable(document: Any) -> Iterator[tuple[str, jwt.PyJWK]]:
    """The keys that sign. A secret in a public document is none, so symmetric keys do not count."""
    if not isinstance(document, dict):
        raise ValueError("not a key set")
    for entry in cast("dict[str, Any]", document).get("keys") or ():
        if entry.get("kty") not in ("EC", "RSA") or entry.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(entry, "ES256" if entry["kty"] == "EC" else "RS256")
        except (jwt.PyJWTError, PenstockError):
            continue
        material = key.key
        is_curve = isinstance(material, EllipticCurvePublicKey) and isinstance(material.curve, SECP256R1)
        is_long = isinstance(material, RSAPublicKey) and material.key_size >= 2048
        if (
            (is_curve or is_long)
            and entry.get("kid")
            and entry.get("alg", key.algorithm_name) == key.algorithm_name
        ):
            yield str(entry["kid"]), key


def _check_keys(token: str) -> None:
    """Raise ValueError for a token that says something twice: which of them counts depends on the reader."""
    for part in token.split(".")[:2]:
        jiter.from_json(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), catch_duplicate_keys=True)


def _is_moment(value: object) -> bool:
    """Whether this is a number of seconds between 1970 and the year 10000."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 253_402_300_800


def _is_for(audience: object, wanted: str) -> bool:
    return audience == wanted or (isinstance(audience, list) and wanted in cast("list[object]", audience))


def _reason(error: Exception) -> str:
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidSignatureError():
            return "the token's signature is not valid"
        case _:
            return "the token is not valid"
