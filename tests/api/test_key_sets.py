"""Tokens that are verified with the public keys of a key server (JWKS)."""

from __future__ import annotations

import http.server
import itertools
import json
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi.testclient import TestClient
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from penstock import api, testing
from penstock.api import tokens
from penstock.errors import Unauthenticated
from penstock.settings import Settings
from tests.api.conftest import ISSUER, SECRET, World, bearer, claims
from tests.api.forging import ANN, forged, part, signed


def public(key: Any, kid: str | None, **others: Any) -> dict[str, Any]:
    algorithm: Any = ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else RSAAlgorithm
    document = json.loads(algorithm.to_jwk(key.public_key()))
    document.pop("key_ops", None)
    return {**document, **({"kid": kid} if kid else {}), **others}


class KeyServer:
    """Serves a key set on loopback, and counts who asks."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.asked = 0
        self.is_broken = False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                text = b"<html>" if outer.is_broken else json.dumps({"keys": outer.keys}).encode()
                self.send_response(503 if outer.is_broken else 200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks.json"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def key_server() -> Iterator[KeyServer]:
    made = KeyServer()
    yield made
    made.close()


@pytest.fixture
def curve() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


_HEARING: list[list[tuple[str, Any]]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Python tells of every file that is opened, every program and every connection. It cannot be told to stop."""
    if _HEARING and event in ("open", "subprocess.Popen", "os.system", "socket.connect"):
        for heard in _HEARING:
            heard.append((event, arguments[1] if event == "socket.connect" else arguments[0]))


sys.addaudithook(_hear)


class Turned:
    """A monotonic clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def by_keys(
    db: testing.Database, api_settings: Settings, key_server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, Turned]]:
    """The application with the key server and no secret, and the clock of its cache."""
    turned = Turned()
    monkeypatch.setattr(tokens, "time", turned)
    app = api.create(replace(api_settings, jwt_secret=None, jwks_url=key_server.url))
    with TestClient(app) as client:
        yield World(db, app, client), turned


class TestKeySets:
    """S21, S22, S24: keys that others publish."""

    def ask(self, world: World, key: Any, kid: str | None, algorithm: str = "ES256", **others: Any) -> int:
        bad = jwt.encode(claims(ANN, **others), key, algorithm, headers={"kid": kid} if kid else None)
        return world.client.get("/api/me", headers=bearer(bad)).status_code

    def test_algorithm_comes_from_the_key(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, _ = by_keys
        long = rsa.generate_private_key(65537, 2048)
        key_server.keys = [public(curve, "a", alg="ES256", use="sig"), public(long, "b", alg="RS256")]
        assert self.ask(world, curve, "a") == 200
        assert self.ask(world, long, "b", "RS256") == 200
        assert self.ask(world, curve, "b") == 401
        assert self.ask(world, long, "a", "RS256") == 401
        assert self.ask(world, curve, None) == 401
        assert self.ask(world, ec.generate_private_key(ec.SECP256R1()), "a") == 401
        assert self.ask(world, long, "b", "PS256") == 401
        assert key_server.asked == 1

    def test_public_key_is_not_accepted_as_hs256_secret(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        """Algorithm confusion: HS256 with what everybody can fetch."""
        world, _ = by_keys
        long = rsa.generate_private_key(65537, 2048)
        key_server.keys = [
            public(curve, "a"),
            public(long, "b"),
            {"kty": "oct", "kid": "c", "k": part(b"x" * 32)},
        ]
        for key in (curve, long):
            for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
                material = key.public_key().public_bytes(
                    encoding, serialization.PublicFormat.SubjectPublicKeyInfo
                )
                for kid in ("a", "b", "c"):
                    bad = signed({"alg": "HS256", "kid": kid}, claims(ANN), material)
                    assert world.client.get("/api/me", headers=bearer(bad)).status_code == 401
        bad = signed({"alg": "HS256", "kid": "c"}, claims(ANN), b"x" * 32)
        assert world.client.get("/api/me", headers=bearer(bad)).status_code == 401

    def test_weak_and_unsupported_jwks_keys_are_ignored(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, _ = by_keys
        other = ec.generate_private_key(ec.SECP384R1())
        key_server.keys = [
            public(other, "a"),
            public(curve, "b", use="enc"),
            public(curve, "c", alg="RS256"),
            public(curve, None),
            {"kty": "EC", "kid": "d", "crv": "P-256", "x": "AA", "y": "AA"},
            {"kty": "EC"},
            public(curve, "good"),
        ]
        assert self.ask(world, other, "a", "ES384") == 401
        for kid in ("b", "c", "d"):
            assert self.ask(world, curve, kid) == 401
        assert self.ask(world, curve, "good") == 200

    def test_zero_signature_is_rejected(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, _ = by_keys
        key_server.keys = [public(curve, "a")]
        for signature in (b"", b"\0" * 64, b"\0" * 32 + b"\1" * 32):
            bad = forged({"alg": "ES256", "kid": "a"}, claims(ANN), signature)
            assert world.client.get("/api/me", headers=bearer(bad)).status_code == 401

    async def test_key_urls_in_tokens_are_ignored(self, key_server: KeyServer) -> None:
        """S22: whatever its header names, nothing is opened and nobody is asked but the key server, once."""
        both = Settings(jwt_secret=SECRET, jwt_issuer=ISSUER, jwks_url=key_server.url)
        verifier = tokens.Tokens(both)
        url = "http://127.0.0.1:9/keys"
        places: list[dict[str, Any]] = [
            {"jku": url}, {"x5u": url}, {"jku": "file:///etc/passwd"}, {"x5c": [part(b"x")]}, {"x5t": "x"},
            {"jwk": {"kty": "oct", "k": part(b"mine")}}, {"jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"}},
        ]  # fmt: skip
        kids: list[Any] = [
            "../../dev/null", "/etc/passwd", "file:///etc/passwd", url, "' or 1=1 --", "a\0b", "%00", "$(id)",
            "x" * 1000, {"a": 1}, ["a"], 0, None, "a",
        ]  # fmt: skip
        heard: list[tuple[str, Any]] = []
        _HEARING.append(heard)
        try:
            for place, kid, algorithm in itertools.product(places, kids, ("HS256", "ES256", "RS256", "none")):
                bad = signed({"alg": algorithm, "kid": kid, **place}, claims(ANN), b"mine")
                with pytest.raises(Unauthenticated):
                    await verifier.verify(bad)
        finally:
            _HEARING.remove(heard)
        assert [event for event, _ in heard if event != "socket.connect"] == []
        own = ("127.0.0.1", int(key_server.url.split(":")[2].split("/")[0]))
        assert {address for _, address in heard} <= {own}
        assert key_server.asked == 1

    def test_jwks_token_cannot_have_service_role(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, _ = by_keys
        key_server.keys = [public(curve, "a")]
        assert self.ask(world, curve, "a", role="service_role") == 401
        assert self.ask(world, curve, "a", role="service_role", aud=None, iss="supabase") == 401

    def test_key_rotation_is_detected_with_bounded_fetches(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, turned = by_keys
        key_server.keys = [public(curve, "old")]
        assert self.ask(world, curve, "old") == 200
        for _ in range(20):
            assert self.ask(world, curve, uuid.uuid4().hex) == 401
        assert key_server.asked == 1

        fresh = ec.generate_private_key(ec.SECP256R1())
        key_server.keys = [public(fresh, "new")]
        turned.now += tokens.FLOOR_SECONDS + 1
        assert self.ask(world, fresh, "new") == 200
        assert self.ask(world, curve, "old") == 401
        assert key_server.asked == 2

    def test_removed_jwks_key_is_rejected_after_the_cache_expires(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, turned = by_keys
        key_server.keys = [public(curve, "a")]
        assert self.ask(world, curve, "a") == 200
        key_server.keys = []
        assert self.ask(world, curve, "a") == 200
        turned.now += tokens.FRESH_SECONDS + 1
        assert self.ask(world, curve, "a") == 401

    def test_cached_keys_survive_a_short_jwks_outage(
        self, by_keys: tuple[World, Turned], key_server: KeyServer, curve: ec.EllipticCurvePrivateKey
    ) -> None:
        world, turned = by_keys
        key_server.is_broken = True
        assert self.ask(world, curve, "a") == 503
        key_server.is_broken = False
        key_server.keys = [public(curve, "a")]
        turned.now += tokens.FLOOR_SECONDS + 1
        assert self.ask(world, curve, "a") == 200
        key_server.is_broken = True
        turned.now += tokens.FRESH_SECONDS + 1
        assert self.ask(world, curve, "a") == 200
        turned.now += tokens.STALE_SECONDS
        assert self.ask(world, curve, "a") == 503
