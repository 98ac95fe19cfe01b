"""Users' tokens: only those with fully valid claims are accepted; forged ones are rejected."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from typing import Any

import jwt
import pytest

from penstock.api import tokens
from penstock.errors import Unauthenticated
from penstock.settings import Settings
from tests.api.conftest import ISSUER, SECRET, World, bearer, claims, token
from tests.api.forging import ANN, forged, part, signed, twice


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


# Values of each claim, and whether the token is accepted with them. None leaves the claim out.
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
