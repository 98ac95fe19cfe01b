"""Who is asking: tokens, keys, logins. A corpus of credentials that must not work, and the few that do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import itertools
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from fastapi.testclient import TestClient
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from psycopg.types.json import Jsonb

from penstock import api, server, testing
from penstock.api import callers, tokens
from penstock.errors import PenstockError, Unauthenticated
from penstock.postgres import db
from penstock.settings import Settings
from tests.api.conftest import ISSUER, SECRET, World, bearer, claims, token

ANN = uuid.UUID("0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def forged(header: Any, body: Any, signature: bytes = b"") -> str:
    return f"{part(header)}.{part(body)}.{part(signature)}"


def twice(values: dict[str, Any], more: bytes) -> bytes:
    """An object that says something of it once more, at the end, where most readers take it from."""
    return json.dumps(values).encode()[:-1] + b", " + more + b"}"


def signed(header: Any, body: Any, secret: bytes) -> str:
    """An HS256 signature over whatever the header says."""
    text = f"{part(header)}.{part(body)}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def corpus() -> dict[str, str]:
    """Tokens that are not good, by what is wrong with them."""
    good = token(ANN)
    header, body, signature = good.split(".")
    now = int(time.time())
    found = {
        "empty": ".",
        "no parts": "gibberish",
        "two parts": f"{header}.{body}",
        "four parts": f"{good}.{signature}",
        "no signature": f"{header}.{body}.",
        "truncated": good[:-5],
        "other body": f"{header}.{part(claims(uuid.uuid4()))}.{signature}",
        "wrong secret": token(ANN, secret="another secret of more than 32 bytes, too"),
        "empty secret": signed({"alg": "HS256", "typ": "JWT"}, claims(ANN), b""),
        "huge": token(ANN, note="x" * 9000),
        "not JSON": f"{part(b'{')}.{body}.{signature}",
        "a list": forged([], []),
        "deep": forged({"alg": "HS256"}, json.loads("[" * 200 + "]" * 200)),
        "expired": token(ANN, exp=now - 60),
        "no expiry": token(ANN, exp=None),
        "expiry as text": token(ANN, exp="tomorrow"),
        "expiry is infinite": signed({"alg": "HS256"}, {**claims(ANN), "exp": float("inf")}, SECRET.encode()),
        "not yet valid": token(ANN, nbf=now + 600),
        "issued in the future": token(ANN, iat=now + 600),
        "other audience": token(ANN, aud="somebody else"),
        "no audience": token(ANN, aud=None),
        "audiences without ours": token(ANN, aud=["a", "b"]),
        "audience as object": signed(
            {"alg": "HS256"}, {**claims(ANN), "aud": {"authenticated": 1}}, SECRET.encode()
        ),
        "other issuer": token(ANN, iss="https://evil.example"),
        "no issuer": token(ANN, iss=None),
        "issuer of the project's keys": token(ANN, iss="supabase"),
        "no user": token(None),
        "empty user": token(""),
        "user is no id": token("ann"),
        "user is a number": signed({"alg": "HS256"}, {**claims(ANN), "sub": 1}, SECRET.encode()),
        "user is SQL": token("' or true --"),
        "no role": token(ANN, role=None),
        "role postgres": token(ANN, role="postgres"),
        "role penstock_api": token(ANN, role="penstock_api"),
        "role is a list": token(ANN, role=["authenticated"]),
        "role in other case": token(ANN, role="SERVICE_ROLE"),
        "service with another audience": token(ANN, role="service_role", aud="else"),
        "service from elsewhere": token(ANN, role="service_role", iss="https://evil.example", aud=None),
        "HS384": jwt.encode(claims(ANN), SECRET + "more of it", "HS384"),
        "crit": signed({"alg": "HS256", "crit": ["b64"], "b64": False}, claims(ANN), SECRET.encode()),
        "jwk in the header": signed(
            {"alg": "HS256", "jwk": {"kty": "oct", "k": part(b"mine")}}, claims(ANN), b"mine"
        ),
        "jku in the header": signed({"alg": "HS256", "jku": "http://127.0.0.1:1/"}, claims(ANN), b"mine"),
        "kid is a path": signed({"alg": "HS256", "kid": "../../dev/null"}, claims(ANN), b""),
        "kid is SQL": signed({"alg": "HS256", "kid": "' union select 'x"}, claims(ANN), b"x"),
        "crit that is not known": signed({"alg": "HS256", "crit": ["exp"]}, claims(ANN), SECRET.encode()),
        "x5u in the header": signed({"alg": "HS256", "x5u": "http://127.0.0.1:1/"}, claims(ANN), b"mine"),
        "a token in a token": signed({"alg": "HS256", "cty": "JWT"}, good.encode(), SECRET.encode()),
        "role said twice": signed(
            {"alg": "HS256"}, twice(claims(ANN), b'"role": "service_role"'), SECRET.encode()
        ),
        "user said twice": signed({"alg": "HS256"}, twice(claims(ANN), b'"sub": "x"'), SECRET.encode()),
        "algorithm said twice": signed(
            twice({"alg": "none"}, b'"alg": "HS256"'), claims(ANN), SECRET.encode()
        ),
        "user in other digits": token(str(ANN).replace("0", "\uff10")),
        "user with underscores": token(str(ANN).replace("-", "_")),
        "user without dashes": token(ANN.hex),
        "user in braces": token(f"{{{ANN}}}"),
        "user as a URN": token(ANN.urn),
        "user with a blank": token(f" {ANN}"),
        "users": signed({"alg": "HS256"}, {**claims(ANN), "sub": [str(ANN)]}, SECRET.encode()),
        "expiry as digits": token(ANN, exp=str(now + 600)),
        "expiry beyond all times": token(ANN, exp=10**20),
        "expiry is true": token(ANN, exp=True),
        "expiry is a list": signed({"alg": "HS256"}, {**claims(ANN), "exp": [now + 600]}, SECRET.encode()),
        "begin as text": token(ANN, nbf="0"),
        "encrypted": f"{part({'alg': 'dir', 'enc': 'A128GCM'})}..{part(b'iv')}.{part(b'text')}.{part(b'tag')}",
    }
    for name in ("none", "None", "NONE", "nOnE", "", None, 0, [], "HS256 "):
        found[f"algorithm {name!r}"] = forged({"alg": name, "typ": "JWT"}, claims(ANN))
        found[f"algorithm {name!r}, signed"] = signed({"alg": name}, claims(ANN), SECRET.encode())
    for name in ("ES256", "RS256", "PS256", "EdDSA", "ES512"):
        found[f"{name} without keys"] = forged({"alg": name, "kid": "a"}, claims(ANN), b"\0" * 64)
    return found


CORPUS = corpus()


# Every way to give a claim, and whether it is good. None leaves it out.
NOW = int(time.time())
# Longer than a test run may take.
LATER = NOW + 86_400
OTHER = "https://evil.example"
EVERY: dict[str, list[tuple[Any, bool]]] = {
    "exp": [(LATER, True), (LATER + 0.5, True), (NOW - 60, False), (None, False), ("soon", False),
            (str(LATER), False), (10**20, False), (-1, False)],
    "nbf": [(None, True), (NOW - 60, True), (LATER, False), ("x", False)],
    "iat": [(NOW - 60, True), (None, True), (LATER, False), ([NOW], False)],
    "aud": [("authenticated", True), (["x", "authenticated"], True), ("Authenticated", False), (None, False),
            ([["authenticated"]], False), ("x", False)],
    "iss": [(ISSUER, True), (ISSUER + "/", False), (OTHER, False), (None, False), ([ISSUER], False)],
    "sub": [(str(ANN), True), (str(ANN).upper(), True), (ANN.hex, False), (None, False), ("", False), ([str(ANN)], False)],
    "role": [("authenticated", True), ("Authenticated", False), ("postgres", False), (None, False)],
}  # fmt: skip


@pytest.mark.shared_world
class TestTokens:
    """S21, S23: the algorithm belongs to the key, and every claim is checked."""

    async def test_only_fully_valid_claims_are_accepted(self) -> None:
        """S23: what is wrong with one claim is not made good by another."""
        verifier = tokens.Tokens(Settings(jwt_secret=SECRET, jwt_issuer=ISSUER))
        tried = accepted = 0
        for combination in itertools.product(*EVERY.values()):
            wrong = sum(not is_good for _, is_good in combination)
            # Of three things that are wrong, two are enough.
            if wrong > 2:
                continue
            values = {
                name: value for name, (value, _) in zip(EVERY, combination, strict=True) if value is not None
            }
            try:
                found = await verifier.verify(signed({"alg": "HS256"}, values, SECRET.encode()))
            except Unauthenticated:
                assert wrong, values
            else:
                assert not wrong, values
                assert found["sub"] == str(ANN)
                accepted += 1
            tried += 1
        assert (tried > 3_900, accepted) == (True, 2 * 2 * 2 * 2 * 2)

    def test_forged_tokens_are_rejected(self, world: World) -> None:
        assert len(CORPUS) >= 60
        for name, bad in CORPUS.items():
            for headers in (bearer(bad), {"apikey": bad}):
                answer = world.client.get("/api/me", headers=headers)
                assert answer.status_code == 401, (name, answer.text)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert bad == "." or bad not in answer.text, name

    def test_valid_user_token_is_accepted(self, world: World) -> None:
        ann = world.join("ann")
        answer = world.client.get("/api/me", headers=ann.headers)
        assert answer.status_code == 200
        assert answer.json()["id"] == str(ann.id)
        assert [tenant["id"] for tenant in answer.json()["tenants"]] == [str(ann.tenant)]
        several = bearer(token(ann.id, aud=["other", "authenticated"]))
        assert world.client.get("/api/me", headers=several).status_code == 200

    def test_user_token_takes_precedence_over_application_key(self, world: World) -> None:
        ann = world.join("ann")
        service = world.service["Authorization"].removeprefix("Bearer ")
        answer = world.client.get("/api/me", headers={**ann.headers, "apikey": service})
        assert answer.json()["role"] == "authenticated"
        assert world.client.get("/api/me", headers={"apikey": service}).json()["role"] == "service_role"

    def test_small_clock_skew_is_accepted(self, world: World) -> None:
        now = int(time.time())
        late = token(world.join("ann").id, exp=now - tokens.LEEWAY_SECONDS + 10, nbf=now + 10)
        assert world.client.get("/api/me", headers=bearer(late)).status_code == 200

    def test_anonymous_requests_are_rejected(self, world: World) -> None:
        now = int(time.time())
        anon = jwt.encode({"iss": "supabase", "role": "anon", "exp": now + 600}, SECRET, "HS256")
        for headers in ({}, {"apikey": anon}, bearer(anon)):
            assert world.client.get("/api/jobs", headers=headers).status_code == 401

    @pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer ", "token x", ""])
    def test_other_authorization_schemes_are_rejected(self, world: World, header: str) -> None:
        answer = world.client.get("/api/me", headers={"Authorization": header})
        assert answer.status_code == 401

    def test_a_service_token_never_acts_as_a_user(self, world: World) -> None:
        """The `sub` of a service token is nobody's id: it must not become the author of anything."""
        ann = world.join("ann")
        both = bearer(token(ann.id, role="service_role", aud=None))
        assert world.client.get("/api/me", headers=both).json() == {
            "role": "service_role",
            "id": None,
            "tenants": [],
        }


# Keys from a JWKS


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


# API keys


@pytest.mark.shared_world
class TestKeys:
    """S24, S25: a key is good for what it was made for, until it is not."""

    def test_a_key_is_a_member_with_its_role(self, world: World) -> None:
        ann = world.join("ann")
        for role in ("owner", "admin", "member", "viewer"):
            key = world.key(role, ann.tenant)
            for headers in (bearer(key), {"apikey": key}):
                answer = world.client.get("/api/me", headers=headers)
                assert answer.status_code == 200
                assert [tenant["id"] for tenant in answer.json()["tenants"]] == [str(ann.tenant)]

    def test_invalid_api_keys_are_rejected(self, world: World) -> None:
        good = world.key("owner", world.join("ann").tenant)
        bad = [
            "psk_",
            good[:-1],
            good + "0",
            good[:-1] + ("0" if good[-1] != "0" else "1"),
            good.upper(),
            good.replace("psk_", "psk-"),
            "psk_" + "0" * 64,
            "psk_" + "'" * 64,
            "psk_" + good[4:12],
            f"{good}, {good}",
        ]
        for key in bad:
            answer = world.client.get("/api/me", headers=bearer(key))
            assert answer.status_code == 401, key
            assert key not in answer.text

    def test_only_the_digest_of_a_key_is_stored(self, world: World) -> None:
        """S25: who reads the database cannot use the keys in it."""
        ann = world.join("ann")
        answer = world.client.post(
            "/api/keys",
            json={"name": "import", "role": "member"},
            headers={**ann.headers, "Idempotency-Key": "once"},
        )
        assert answer.status_code == 201
        secret = answer.json()["secret"]
        for row in world.db.execute(
            "select c.relname as name from pg_class c where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r'"
        ):
            found = world.db.execute(f"select t::text as line from penstock.{row['name']} t")
            assert not [line for line in found if secret in line["line"]], row["name"]
        again = world.client.post(
            "/api/keys",
            json={"name": "import", "role": "member"},
            headers={**ann.headers, "Idempotency-Key": "once"},
        )
        assert again.json() == {**answer.json(), "secret": None}
        listed = world.client.get("/api/keys", headers=ann.headers).json()
        assert [(key["name"], key["role"], secret.startswith(key["prefix"])) for key in listed] == [
            ("import", "member", True)
        ]
        assert secret not in json.dumps(listed, default=str)

    def test_revoked_key_is_rejected_immediately(self, world: World) -> None:
        ann = world.join("ann")
        made = world.client.post(
            "/api/keys", json={"name": "k", "role": "member"}, headers=ann.headers
        ).json()
        key = bearer(made["secret"])
        assert world.client.get("/api/me", headers=key).status_code == 200
        for _ in range(2):
            assert world.client.delete(f"/api/keys/{made['id']}", headers=ann.headers).status_code == 204
        assert world.client.get("/api/me", headers=key).status_code == 401
        assert world.client.get("/api/keys", headers=ann.headers).json()[0]["revoked_at"]
        members = world.client.get(f"/api/tenants/{ann.tenant}/members", headers=ann.headers).json()
        assert [member["user_id"] for member in members["items"]] == [str(ann.id)]

    def test_revoked_service_key_is_rejected_immediately(self, world: World) -> None:
        made = world.client.post(
            "/api/keys", json={"name": "w", "role": "service"}, headers=world.service
        ).json()
        key = bearer(made["secret"])
        assert world.client.get("/api/me", headers=key).status_code == 200
        assert world.client.delete(f"/api/keys/{made['id']}", headers=world.service).status_code == 204
        assert world.client.get("/api/me", headers=key).status_code == 401

    def test_revoked_key_is_rejected_where_no_transaction_is_used(self, world: World) -> None:
        """S24: also while its id is cached, on a route that checks a file without the database."""
        made = world.db.execute("select id, secret from penstock.create_key('k', 'service')")[0]
        key = bearer(made["secret"])
        check = "/api/bulks/check?type=sheet&format=csv"
        assert world.client.post(check, content=b"a\n1\n", headers=key).status_code == 404
        world.db.execute("select penstock.revoke_key(%s)", [made["id"]])
        assert world.client.post(check, content=b"a\n1\n", headers=key).status_code == 401

    def test_service_key_is_limited_to_its_scopes(self, world: World) -> None:
        """S2: reading, starting, working and managing are four rights."""
        world.kind("work")
        ann = world.join("ann")
        work = {"p_worker_id": "w", "p_max_tasks": 1}
        requests: dict[str, tuple[str, str, Any]] = {
            "read": ("GET", "/api/jobs", None),
            "read table": ("GET", "/rest/v1/jobs", None),
            "read metrics": ("GET", "/metrics", None),
            "start": (
                "POST",
                "/api/jobs/start",
                {"type": "t", "tasks": [{"kind": "work"}], "tenant_id": str(ann.tenant)},
            ),
            "start function": (
                "POST",
                "/rest/v1/rpc/start_job",
                {"p_type": "t", "p_params": {}, "p_tasks": [{"kind": "work"}], "p_options": {"tenant_id": str(ann.tenant)}},
            ),
            "work": ("POST", "/rest/v1/rpc/claim_tasks", work),
            "admin": ("POST", "/api/keys", {"name": "n", "role": "service"}),
            "admin member": ("PUT", f"/api/tenants/{ann.tenant}/members/{ann.id}", {"role": "owner"}),
            "admin provider": ("PUT", "/api/providers?name=a/b", {"concurrency": 3}),
            "admin function": ("POST", "/rest/v1/rpc/create_tenant", {"p_name": "x"}),
            "admin key": ("POST", "/rest/v1/rpc/create_key", {"p_name": "x", "p_role": "service"}),
        }  # fmt: skip
        for scope in ("read", "start", "work", "admin"):
            headers = bearer(self._key(world, "service", [scope]))
            for name, (method, url, body) in requests.items():
                answer = world.client.request(method, url, json=body, headers=headers)
                is_metrics_by_worker = scope == "work" and name == "read metrics"
                if name.split()[0] == scope or is_metrics_by_worker:
                    assert answer.status_code < 300, (scope, name, answer.text)
                else:
                    assert answer.status_code == 403, (scope, name, answer.text)

    def _key(self, world: World, role: str, scopes: list[str]) -> str:
        query = "select secret from penstock.create_api_key('k', %s, %s)"
        return world.db.execute(query, [role, Jsonb({"scopes": scopes})])[0]["secret"]

    def test_scopes_and_heirs_over_http(self, world: World, clock: testing.Clock) -> None:
        ann = world.join("ann")
        soon = (clock.now() + timedelta(hours=1)).replace(microsecond=0)
        body = {"name": "k", "role": "admin", "scopes": ["admin", "read"], "expires_at": soon.isoformat()}
        made = world.client.post("/api/keys", json=body, headers=ann.headers).json()
        assert made["scopes"] == ["admin", "read"]
        heir = world.client.post(
            "/api/keys", json={"name": "heir", "role": "viewer"}, headers=bearer(made["secret"])
        ).json()
        assert datetime.fromisoformat(heir["expires_at"]) == soon
        refused = world.client.post(
            "/api/jobs/start", json={"type": "t", "tasks": [{"kind": "w"}]}, headers=bearer(made["secret"])
        )
        assert refused.status_code == 403 and refused.json()["code"] == "missing_scope"
        listed = world.client.get("/api/keys", headers=ann.headers).json()
        assert {key["name"]: key["parent_id"] for key in listed} == {"k": None, "heir": made["id"]}
        assert world.client.delete(f"/api/keys/{made['id']}", headers=ann.headers).status_code == 204
        assert world.client.get("/api/me", headers=bearer(heir["secret"])).status_code == 401

    def test_expired_key_is_rejected(self, world: World, clock: testing.Clock) -> None:
        ann = world.join("ann")
        soon = (clock.now() + timedelta(hours=1)).isoformat()
        made = world.client.post(
            "/api/keys",
            json={"name": "k", "role": "viewer", "expires_at": soon},
            headers=ann.headers,
        ).json()
        assert world.client.get("/api/me", headers=bearer(made["secret"])).status_code == 200
        clock.advance(hours=2)
        assert world.client.get("/api/me", headers=bearer(made["secret"])).status_code == 401

    def test_last_use_is_updated_once_a_minute(
        self, world: World, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(callers, "KNOWN_SECONDS", 0)
        clock.freeze()
        key = world.key("service")
        seen: list[Any] = []
        for seconds in (0, 30, 40):
            clock.advance(seconds=seconds)
            assert world.client.get("/api/me", headers=bearer(key)).status_code == 200
            seen += [
                row["last_used_at"] for row in world.db.execute("select last_used_at from penstock.api_keys")
            ]
        assert seen[0] == seen[1] < seen[2]

    def test_key_removed_from_its_tenant_is_rejected(self, world: World) -> None:
        ann = world.join("ann")
        viewer = world.member("viewer", ann.tenant)
        url = f"/api/tenants/{ann.tenant}/members/{viewer.id}"
        assert world.client.delete(url, headers=ann.headers).status_code == 204
        assert world.client.get("/api/me", headers=viewer.headers).status_code == 401

    def test_key_cannot_be_added_to_another_tenant(self, world: World) -> None:
        """S84: users cannot, and even if the service does so, the key works where it belongs."""
        world.kind("work")
        ann, bob = world.join("ann"), world.join("bob")
        key = world.member("member", ann.tenant)
        answer = world.client.put(
            f"/api/tenants/{bob.tenant}/members/{key.id}", json={"role": "member"}, headers=bob.headers
        )
        assert answer.status_code == 403 and answer.json()["code"] == "consent_required"
        world.db.execute("select penstock.set_member(%s, %s, 'member')", [bob.tenant, key.id])
        started = world.client.post(
            "/api/jobs/start", json={"type": "t", "tasks": [{"kind": "work"}]}, headers=key.headers
        ).json()
        job = world.client.get(f"/api/jobs/{started['id']}", headers=ann.headers).json()
        assert job["tenant_id"] == str(ann.tenant)

    @pytest.mark.parametrize(
        ("role", "may"),
        [
            ("viewer", []),
            ("member", []),
            ("admin", ["admin", "member", "viewer"]),
            ("owner", ["owner", "admin", "member", "viewer"]),
        ],
    )
    def test_keys_cannot_exceed_their_creators_role(self, world: World, role: str, may: list[str]) -> None:
        ann = world.join("ann")
        maker = world.member(role, ann.tenant)
        made = [
            wanted
            for wanted in ("owner", "admin", "member", "viewer", "worker", "service")
            if world.client.post(
                "/api/keys", json={"name": "k", "role": wanted}, headers=maker.headers
            ).status_code
            == 201
        ]
        assert made == may

    def test_admin_cannot_revoke_an_owners_key(self, world: World) -> None:
        ann = world.join("ann")
        owner = world.member("owner", ann.tenant)
        admin = world.member("admin", ann.tenant)
        assert world.client.delete(f"/api/keys/{owner.id}", headers=admin.headers).status_code == 403
        assert world.client.delete(f"/api/keys/{admin.id}", headers=owner.headers).status_code == 204

    @pytest.mark.usefixtures("db")
    def test_the_service_makes_keys_for_workers(self, world: World) -> None:
        body = {"name": "w", "role": "worker"}
        made = world.client.post("/api/keys", json=body, headers=world.service)
        assert made.status_code == 201
        answer = world.client.get("/api/jobs", headers=bearer(made.json()["secret"]))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        [listed] = world.client.get("/api/keys", headers=world.service).json()
        assert listed["role"] == "worker"
        wrong = {"name": "w", "role": "worker", "tenant_id": str(world.join("ann").tenant)}
        assert world.client.post("/api/keys", json=wrong, headers=world.service).status_code == 422


# The login


@pytest.mark.shared_world
class TestLogin:
    @pytest.mark.parametrize(
        "change",
        [
            "grant service_role to {role}",
            "alter role {role} bypassrls",
            "alter role {role} superuser",
            "alter role {role} createrole",
            "grant postgres to {role}",
            "revoke anon from {role}",
        ],
    )
    def test_unsafe_api_logins_are_rejected(
        self, db: testing.Database, api_settings: Settings, change: str
    ) -> None:
        """S13: whoever got hold of the API's login would have no more than users have."""
        role = f"penstock_login_{uuid.uuid4().hex[:8]}"
        db.execute(f"create role {role} login noinherit in role anon, authenticated")
        try:
            db.execute(change.format(role=role))
            assert api_settings.api_url
            found = replace(api_settings, api_url=api_settings.api_url.replace(server.LOGIN, role))
            with pytest.raises(PenstockError) as refusal, TestClient(api.create(found)):
                pass
            assert refusal.value.code == "unsafe_login"
        finally:
            db.execute(f"drop role {role}")

    def test_database_owner_is_rejected_as_api_login(
        self, db: testing.Database, api_settings: Settings
    ) -> None:
        found = replace(api_settings, api_url=db.dsn)
        with pytest.raises(PenstockError) as refusal, TestClient(api.create(found)):
            pass
        assert refusal.value.code == "unsafe_login"

    async def test_api_login_cannot_switch_to_service_role(self, api_settings: Settings) -> None:
        assert api_settings.api_url
        async with db.pool(api_settings.api_url, max_size=1) as pool:
            for role in ("service_role", "postgres"):
                with pytest.raises(PenstockError):
                    await db.rows(pool, "select set_config('role', %s, false)", (role,))

    def test_connection_keeps_no_caller_state(self, world: World) -> None:
        """S19: after a request the pooled connection is nobody's."""
        ann = world.join("ann")
        assert world.client.get("/api/jobs", headers=ann.headers).status_code == 200
        callers = world.app.state.callers

        async def look() -> list[Any]:
            return [
                await db.rows(
                    pool,
                    "select current_setting('role'), current_setting('request.jwt.claims', true), current_setting('statement_timeout')",
                    (),
                )
                for pool in (callers._pools.users, callers._pools.service)
            ]

        portal: Callable[..., Any] = world.client.portal.call  # pyright: ignore[reportOptionalMemberAccess]
        for [(role, found, timeout)] in portal(look):
            assert (role, found or "", timeout) == ("none", "", "0")

    def test_requests_have_timeouts(self, world: World) -> None:
        """One whose server vanished in the middle of it holds nobody up for long."""
        anybody = callers.Caller("anon", {"role": "anon"})

        async def look() -> Any:
            async with world.app.state.callers.acting(anybody) as held:
                names = ("statement_timeout", "idle_in_transaction_session_timeout")
                return await db.rows(held, "select current_setting(%s), current_setting(%s)", names)

        portal: Callable[..., Any] = world.client.portal.call  # pyright: ignore[reportOptionalMemberAccess]
        assert portal(look) == [("10s", "1min")]


def test_issuer_and_audience_come_from_settings(db: testing.Database, api_settings: Settings) -> None:
    found = replace(api_settings, jwt_audience="ours")
    with TestClient(api.create(found)) as client:
        assert client.get("/api/me", headers=bearer(token(ANN, aud="ours"))).status_code == 200
        assert client.get("/api/me", headers=bearer(token(ANN))).status_code == 401


def test_starting_and_reading_a_job_are_single_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller, the check of the key, the statement and its commit are one message to PostgreSQL."""
    ann = world.join("ann")
    key = bearer(world.key("member", ann.tenant))
    world.db.execute("select penstock.define_kind('noop', '{\"raw_tasks\": true}')")
    world.client.get("/api/me", headers=key)
    messages: list[bytes] = []
    execute = psycopg.AsyncCursor[Any].execute

    async def recorded(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        messages.append(query if isinstance(query, bytes) else str(query).encode())
        return await execute(cursor, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", recorded)
    job = {"type": "report", "tasks": [{"kind": "noop"}]}
    started = world.client.post("/api/jobs/start", headers=key, json=job)
    assert started.status_code == 201, started.text
    [start] = [message for message in messages if b"start_job" in message]
    assert messages == [start] and b"check_key()" in start and b"'role'" in start
    messages.clear()
    assert world.client.get(f"/api/jobs/{started.json()['id']}", headers=key).status_code == 200
    assert len(messages) == 2 and all(b"set transaction read only" in message for message in messages)
