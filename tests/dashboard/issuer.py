"""A strict OpenID Connect issuer on loopback: it verifies PKCE, the client, the redirect URI and codes.

`fault` makes its answers wrong in one way, as an attacker or a broken server would.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

REDIRECT = "http://testserver/dashboard/sign-in/callback"


class Issuer:
    """One client, one user. Each refusal of the token endpoint is noted in `refusals`."""

    KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def __init__(self, client: str, secret: str) -> None:
        self.client, self.secret = client, secret
        self.fault = ""
        self.refusals: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                if parts.path == "/authorize":
                    self._send(302, {}, issuer.authorize(query))
                else:
                    self._send(200, issuer.document(parts.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                try:
                    self._send(200, issuer.exchange(form, self.headers.get("Authorization", "")))
                except ValueError as error:
                    issuer.refusals.append(str(error))
                    self._send(400, {"error": "invalid_grant"})

            def _send(self, status: int, document: dict[str, Any], location: str = "") -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                if location:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def document(self, path: str) -> dict[str, Any]:
        if path == "/keys":
            return {
                "keys": [{**json.loads(RSAAlgorithm.to_jwk(self.KEY.public_key())), "kid": "k", "use": "sig"}]
            }
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
        }

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address that the browser is sent to after the person has signed in."""
        assert (query["response_type"], query["client_id"]) == ("code", self.client)
        assert query["redirect_uri"] == REDIRECT, "an unregistered redirect URI"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        state = "x" * 43 if self.fault == "state" else query["state"]
        answer = {"code": code, "state": state, "iss": self.url}
        if self.fault == "issuer of the answer":
            answer["iss"] = "https://evil.example"
        return f"{query['redirect_uri']}?{urlencode(answer)}"

    def exchange(self, form: dict[str, str], authorization: str) -> dict[str, Any]:
        """Exchange a code for tokens. Raises ValueError for anything that does not match."""
        pair = base64.b64encode(f"{self.client}:{self.secret}".encode()).decode()
        if authorization != f"Basic {pair}":
            raise ValueError("client")
        if form.get("grant_type") != "authorization_code":
            raise ValueError("grant type")
        # A code works once, also if the request is refused.
        asked = self._codes.pop(form.get("code", ""), None)
        if asked is None:
            raise ValueError("code")
        digest = sha256(form.get("code_verifier", "").encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            raise ValueError("verifier")
        if form.get("redirect_uri") != asked["redirect_uri"]:
            raise ValueError("redirect URI")
        return {"access_token": "unused", "token_type": "Bearer", "id_token": self._token(asked["nonce"])}

    def _token(self, nonce: str) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url, "aud": self.client, "sub": "ann-1", "nonce": nonce, "iat": now, "exp": now + 60,
        }  # fmt: skip
        changed: dict[str, Any] = {
            "nonce": {"nonce": "x" * 43},
            "issuer": {"iss": "https://evil.example"},
            "audience": {"aud": "another"},
            "expired": {"iat": now - 7200, "exp": now - 3600},
        }
        claims |= changed.get(self.fault, {})
        if self.fault == "algorithm none":
            return jwt.encode(claims, None, "none", {"kid": "k"})  # pyright: ignore[reportArgumentType]
        if self.fault == "public key as secret":
            pem = self.KEY.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            return _hs256(claims, pem)
        key = self.OTHER if self.fault == "another key" else self.KEY
        return jwt.encode(claims, key, "RS256", {"kid": "k"})


def _hs256(claims: dict[str, Any], secret: bytes) -> str:
    """Sign with HS256 and a public key as the secret, which PyJWT itself refuses to do."""
    import hmac

    def encoded(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    head = encoded(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "k"}).encode())
    signed = f"{head}.{encoded(json.dumps(claims).encode())}"
    return f"{signed}.{encoded(hmac.new(secret, signed.encode(), 'sha256').digest())}"


FAULTS = (
    "state", "issuer of the answer", "nonce", "issuer", "audience", "expired", "algorithm none",
    "public key as secret", "another key",
)  # fmt: skip
