"""Sign-in with an OpenID Connect issuer: authorization code with PKCE.

The ID token comes from the issuer's token endpoint over TLS; its signature, issuer, audience, times and nonce
are checked all the same. Addresses come from the issuer's discovery document. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import secrets
import time
import urllib.request
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import jwt

from penstock.api.tokens import LEEWAY_SECONDS, NoRedirects, usable_keys
from penstock.errors import Unauthenticated, Unavailable
from penstock.settings import Settings, is_loopback

FRESH_SECONDS = 600
"""How long the discovery document is used before it is fetched again."""
_MOST_BYTES = 1 << 20
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class Login:
    """What the browser keeps between the start of a sign-in and the issuer's answer."""

    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Who signed in, by the issuer's word."""

    issuer: str
    subject: str
    email: str | None
    """The verified e-mail address."""


class Oidc:
    """The sign-in with the configured issuer."""

    def __init__(self, settings: Settings) -> None:
        assert settings.oidc_issuer and settings.oidc_client_id
        self.issuer = settings.oidc_issuer
        self.name = settings.oidc_name
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._operators = frozenset(each.lower() for each in settings.oidc_operators)
        self._document: dict[str, str] = {}
        self._fetched_at = -float("inf")

    def is_operator(self, identity: Identity) -> bool:
        """Whether the subject or the verified address is in the list of operators."""
        names = {identity.subject.lower(), (identity.email or "").lower()} - {""}
        return bool(names & self._operators)

    async def begin(self, redirect_uri: str) -> tuple[str, Login]:
        """Begin a sign-in. Returns the address to send the browser to."""
        login = Login(*(secrets.token_urlsafe(32) for _ in range(3)))
        challenge = base64.urlsafe_b64encode(sha256(login.verifier.encode()).digest()).rstrip(b"=").decode()
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._client_id,
                "redirect_uri": redirect_uri,
                "scope": "openid email",
                "state": login.state,
                "nonce": login.nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        endpoint = (await self._discover())["authorization_endpoint"]
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{query}", login

    async def finish(self, login: Login, redirect_uri: str, answer: dict[str, str]) -> Identity:
        """Finish a sign-in with the issuer's answer. Raises Unauthenticated if anything does not match."""
        if not hmac.compare_digest(answer.get("state", "").encode(), login.state.encode()):
            raise Unauthenticated("the sign-in was begun in another browser or has expired")
        if answer.get("iss", self.issuer) != self.issuer:
            raise Unauthenticated("the answer comes from another issuer")
        if "code" not in answer:
            raise Unauthenticated(f"the issuer refused the sign-in ({answer.get('error', '')[:100]})")
        document = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": redirect_uri,
            "code_verifier": login.verifier,
            "client_id": self._client_id,
        }
        headers: dict[str, str] = {}
        if self._client_secret:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        try:
            tokens = await _fetch(document["token_endpoint"], form, headers)
            keys = dict(usable_keys(await _fetch(document["jwks_uri"]), default_kid=""))
            return self._identity(str(tokens.get("id_token")), keys, login.nonce)
        except (jwt.PyJWTError, OSError, ValueError, RecursionError) as error:
            raise Unauthenticated("the issuer's answer is invalid") from error

    def _identity(self, token: str, keys: dict[str, jwt.PyJWK], nonce: str) -> Identity:
        header = jwt.get_unverified_header(token)
        kid = header.get("kid")
        key = keys.get(str(kid)) if kid else next(iter(keys.values()), None) if len(keys) == 1 else None
        # The key determines the algorithm, not the token.
        if key is None or header.get("alg") != key.algorithm_name:
            raise ValueError("the ID token is signed with an unknown key")
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm_name],
            audience=self._client_id,
            issuer=self.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud", "sub", "nonce"]},
        )
        audience: Any = claims["aud"]
        if (
            isinstance(audience, list)
            and len(cast("list[Any]", audience)) > 1
            and claims.get("azp") != self._client_id
        ):
            raise ValueError("the ID token is for another client")
        if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
            raise ValueError("the ID token belongs to another sign-in")
        subject, email = claims["sub"], claims.get("email")
        if not isinstance(subject, str) or not 1 <= len(subject) <= 255:
            raise ValueError("the ID token has no valid subject")
        is_verified = claims.get("email_verified") is True and isinstance(email, str) and len(email) <= 320
        return Identity(self.issuer, subject, email if is_verified else None)

    async def _discover(self) -> dict[str, str]:
        if time.monotonic() - self._fetched_at > FRESH_SECONDS:
            try:
                found = await _fetch(self.issuer.rstrip("/") + "/.well-known/openid-configuration")
                if found.get("issuer") != self.issuer:
                    raise ValueError("the discovery document names another issuer")
                self._document = {name: _checked(str(found.get(name)), self.issuer) for name in _ENDPOINTS}
            except (OSError, ValueError, RecursionError) as error:
                raise Unavailable("the sign-in service cannot be reached", hint="Try again later.") from error
            self._fetched_at = time.monotonic()
        return self._document


def _checked(url: str, issuer: str) -> str:
    """Accept an https address; plain http only for an issuer on this machine."""
    parts = urlsplit(url)
    is_local = is_loopback(urlsplit(issuer).hostname or "") and is_loopback(parts.hostname or "")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise ValueError("the discovery document has an address without TLS")
    return url


async def _fetch(url: str, form: dict[str, str] | None = None, headers: dict[str, str] | None = None) -> Any:
    def load() -> Any:
        data = urlencode(form).encode() if form is not None else None
        request = urllib.request.Request(url, data, {"Accept": "application/json", **(headers or {})})  # noqa: S310
        with urllib.request.build_opener(NoRedirects).open(request, timeout=5) as response:
            document = json.loads(response.read(_MOST_BYTES))
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
        return cast("dict[str, Any]", document)

    return await asyncio.to_thread(load)
