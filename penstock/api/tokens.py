"""Verification of JWTs as Supabase issues them: signed with the project's secret or a key from its JWKS.

The key determines the algorithm, not the token: the secret is for HS256 only, a JWKS key for the algorithm of
its type. Headers of a token that point to a key (`jku`, `x5u`, `jwk`) are ignored.
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
"""Allowed clock skew."""

FRESH_SECONDS = 600
"""How long fetched keys are used before they are fetched again."""

FLOOR_SECONDS = 30
"""Minimum time between two fetches, so that tokens with made-up key ids cause no extra ones."""

STALE_SECONDS = 3600
"""How long fetched keys stay valid if they cannot be fetched again."""

_MOST_BYTES = 1 << 20


class Tokens:
    """Verifies tokens."""

    def __init__(self, settings: Settings) -> None:
        self._secret = settings.jwt_secret
        self._issuer = settings.jwt_issuer
        self._audience = settings.jwt_audience
        self._keys = Keys(settings.jwks_url) if settings.jwks_url else None

    async def verify(self, token: str) -> dict[str, Any]:
        """Verify a token and return its claims. Raises Unauthenticated if it is invalid."""
        try:
            _check_keys(token)
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm == "HS256" and self._secret:
                claims = self._read(token, self._secret, "HS256")
            elif algorithm in ("ES256", "RS256") and self._keys is not None:
                claims = await self._verify_by_keys(token, algorithm, header.get("kid"))
            else:
                raise Unauthenticated("the token's signing algorithm is not accepted")
        except (jwt.PyJWTError, ValueError, RecursionError, OverflowError) as error:
            raise Unauthenticated(_reason(error)) from error
        return claims

    async def _verify_by_keys(self, token: str, algorithm: str, kid: object) -> dict[str, Any]:
        assert self._keys is not None
        if not isinstance(kid, str) or len(kid) > 200:
            raise Unauthenticated("the token has no valid key id (kid)")
        key = await self._keys.get(kid)
        if key is None or key.algorithm_name != algorithm:
            raise Unauthenticated("the token is signed with an unknown key")
        claims = self._read(token, key.key, algorithm)
        if claims["role"] == "service_role":
            # JWKS keys sign users' tokens only. Services use the secret or API keys.
            raise Unauthenticated("a token signed with a JWKS key cannot have the role service_role")
        return claims

    def _read(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        claims = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            leeway=LEEWAY_SECONDS,
            # Issuer and audience depend on the role and are checked below.
            options={"require": ["exp", "role"], "verify_aud": False, "verify_iss": False},
        )
        for name in ("exp", "nbf", "iat"):
            if name in claims and not _is_moment(claims[name]):
                raise Unauthenticated(f"the token's {name} is not a valid time")
        match claims["role"]:
            case "authenticated":
                self._check_user(claims)
            case "anon" | "service_role":
                self._check_key(claims)
            case _:
                raise Unauthenticated("the token's role is unknown")
        return claims

    def _check_user(self, claims: dict[str, Any]) -> None:
        if self._issuer and claims.get("iss") != self._issuer:
            raise Unauthenticated("the token has another issuer (iss)")
        if not _is_for(claims.get("aud"), self._audience):
            raise Unauthenticated("the token has another audience (aud)")
        if not isinstance(claims.get("sub"), str):
            raise Unauthenticated("the token's subject (sub) is not a user id")
        # Accept only the canonical form: other spellings of the id could mean another user elsewhere.
        if str(UUID(claims["sub"])) != claims["sub"].lower():
            raise Unauthenticated("the token's subject (sub) is not a user id")
        claims["sub"] = claims["sub"].lower()

    def _check_key(self, claims: dict[str, Any]) -> None:
        """Check a project key: a long-lived token from the issuer `supabase`, without user or audience."""
        if self._issuer and claims.get("iss") not in (self._issuer, "supabase"):
            raise Unauthenticated("the token has another issuer (iss)")
        if "aud" in claims and not _is_for(claims["aud"], self._audience):
            raise Unauthenticated("the token has another audience (aud)")
        # A service credential never acts as a user.
        claims.pop("sub", None)


class Keys:
    """The public keys of a JWKS URL, by key id."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._keys: dict[str, jwt.PyJWK] = {}
        self._tried_at = -float("inf")
        self._fetched_at = -float("inf")
        self._fetching = asyncio.Lock()

    async def get(self, kid: str) -> jwt.PyJWK | None:
        """The key with this id, or None. Raises Unavailable if the keys cannot be fetched."""
        if kid in self._keys and self._age() < FRESH_SECONDS:
            return self._keys[kid]
        async with self._fetching:
            if time.monotonic() - self._tried_at > FLOOR_SECONDS:
                await self._fetch()
        if self._age() > STALE_SECONDS:
            raise Unavailable("the keys that verify tokens (JWKS) cannot be fetched")
        return self._keys.get(kid)

    def _age(self) -> float:
        return time.monotonic() - self._fetched_at

    async def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        try:
            text = await asyncio.to_thread(_download, self._url)
            self._keys = dict(usable_keys(json.loads(text)))
        except (OSError, ValueError, RecursionError):
            return
        self._fetched_at = time.monotonic()


def _download(url: str) -> bytes:
    # The settings check the URL's scheme.
    with urllib.request.build_opener(NoRedirects).open(url, timeout=5) as response:
        return response.read(_MOST_BYTES)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Accept keys from the configured URL only."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        return None


def usable_keys(document: Any, default_kid: str | None = None) -> Iterator[tuple[str, jwt.PyJWK]]:
    """The signature keys of a JWKS. Skips symmetric keys, which cannot be secret in a public document."""
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
            and entry.get("kid", default_kid) is not None
            and entry.get("alg", key.algorithm_name) == key.algorithm_name
        ):
            yield str(entry.get("kid", default_kid)), key


def _check_keys(token: str) -> None:
    """Raise ValueError for a token with duplicate JSON keys, which parsers read differently."""
    for part in token.split(".")[:2]:
        jiter.from_json(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)), catch_duplicate_keys=True)


def _is_moment(value: object) -> bool:
    """Whether this is a Unix time before the year 10000."""
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
            return "the token's signature is invalid"
        case _:
            return "the token is invalid"
