"""Google's token endpoint: service accounts, authorized users and their tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

PATH = "/token"
PROJECT = "penstock-simulator"

_SCOPE = "https://www.googleapis.com/auth/spreadsheets"
_AUDIENCE = "https://oauth2.googleapis.com/token"
_SECONDS = 3600


class Tokens:
    """Accounts and their tokens."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.url = ""
        self.count = 0
        self._keys: dict[str, rsa.RSAPublicKey] = {}
        self._users: dict[str, tuple[str, str]] = {}
        self._tokens: dict[str, tuple[str, float]] = {}

    def service_account(self, name: str) -> dict[str, Any]:
        """Create a service account. Returns the content of its credentials file."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        email = f"{name}@{PROJECT}.iam.gserviceaccount.com"
        self._keys[email] = key.public_key()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": secrets.token_hex(8),
            "private_key": pem.decode(),
            "client_email": email,
            "client_id": "1",
            "token_uri": self.url,
        }

    def user(self, email: str) -> dict[str, Any]:
        """Create a user. Returns the content of the credentials file of an authorized user."""
        refresh, secret = secrets.token_urlsafe(), secrets.token_urlsafe()
        self._users[refresh] = (email, secret)
        return {
            "type": "authorized_user",
            "client_id": "simulator",
            "client_secret": secret,
            "refresh_token": refresh,
            "token_uri": self.url,
        }

    def issue(self, email: str) -> str:
        """Issue a token."""
        token = f"ya29.{secrets.token_urlsafe(24)}"
        self._tokens[token] = (email, self._clock() + _SECONDS)
        return token

    def expire(self) -> None:
        """Expire all tokens."""
        self._tokens.clear()

    def owner(self, headers: Mapping[str, str]) -> str | None:
        """The owner of a request's token, if it is valid."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        email, expires = self._tokens.get(token.strip(), ("", 0.0))
        return email if scheme.lower() == "bearer" and expires > self._clock() else None

    def grant(self, method: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer a token request with status and body."""
        form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        try:
            match form.get("grant_type") if method == "POST" else None:
                case "urn:ietf:params:oauth:grant-type:jwt-bearer":
                    email = self._asserted(form.get("assertion", ""))
                case "refresh_token":
                    email = self._refreshed(form)
                case _:
                    raise _Denied("unsupported_grant_type", "Invalid grant_type")
        except _Denied as denied:
            code, words = denied.args
            return 401 if code == "invalid_client" else 400, {"error": code, "error_description": words}
        self.count += 1
        return 200, {"access_token": self.issue(email), "expires_in": _SECONDS - 1, "token_type": "Bearer"}

    def _asserted(self, assertion: str) -> str:
        try:
            issuer = str(jwt.decode(assertion, options={"verify_signature": False}).get("iss"))
            if issuer not in self._keys:
                raise _Denied("invalid_grant", "Invalid grant: account not found")
            claims = jwt.decode(
                assertion,
                self._keys[issuer],
                algorithms=["RS256"],
                audience=[_AUDIENCE, self.url],
                options={"require": ["iss", "aud", "exp", "iat"]},
            )
        except jwt.InvalidSignatureError:
            raise _Denied("invalid_grant", "Invalid JWT Signature.") from None
        except jwt.PyJWTError as error:
            raise _Denied("invalid_grant", f"Invalid JWT: {error}") from None
        if claims["exp"] - claims["iat"] > _SECONDS:
            raise _Denied("invalid_grant", "Invalid JWT: Token must be a short-lived token (60 minutes).")
        if _SCOPE not in str(claims.get("scope", "")).split():
            raise _Denied("invalid_scope", "Invalid OAuth scope or ID token audience provided.")
        return issuer

    def _refreshed(self, form: Mapping[str, str]) -> str:
        email, secret = self._users.get(form.get("refresh_token", ""), ("", ""))
        if not email:
            raise _Denied("invalid_grant", "Token has been expired or revoked.")
        if not secrets.compare_digest(form.get("client_secret", ""), secret):
            raise _Denied("invalid_client", "The provided client secret is invalid.")
        return email


class _Denied(Exception):
    """A rejected token request."""
