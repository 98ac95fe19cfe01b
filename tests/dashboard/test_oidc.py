"""Sign-in with a real OpenID Connect server on loopback, and answers that must be refused."""

from __future__ import annotations

import base64
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi.testclient import TestClient
from jwt.algorithms import RSAAlgorithm

from penstock import api, dashboard, testing
from penstock.api import oidc as module
from penstock.api.oidc import Identity, Login, Oidc
from penstock.errors import Unauthenticated
from penstock.settings import Settings
from tests.dashboard import issuer as STRICT

pytestmark = pytest.mark.filterwarnings("ignore")
CLIENT = "penstock-dashboard"
SECRET = "a-secret-of-the-client"  # noqa: S105 of a server on loopback


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """A real server: discovery, authorization with PKCE, token endpoint, JWKS."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import oidc_provider_mock as server
    users = [
        server.User(sub="ann-1", claims={"email": "ann@example.org", "email_verified": True}),
        server.User(sub="eve-1", claims={"email": "boss@example.org", "email_verified": False}),
        server.User(sub="boss-1", claims={"email": "boss@example.org", "email_verified": True}),
    ]
    with server.run_server_in_thread(require_nonce=True, user_claims=users) as running:
        yield f"http://localhost:{running.server_port}"


@pytest.fixture(scope="module")
def strict() -> Iterator[Any]:
    """An issuer that verifies all it can, and whose answers can be wrong."""
    made = STRICT.Issuer(CLIENT, SECRET)
    yield made
    made.close()


@pytest.fixture
def site(db: testing.Database, dashboard_settings: Settings, issuer: str) -> Iterator[Any]:
    yield from serving(db, dashboard_settings, issuer)


@pytest.fixture
def strict_site(db: testing.Database, dashboard_settings: Settings, strict: Any) -> Iterator[Any]:
    strict.fault = ""
    strict.refusals.clear()
    yield from serving(db, dashboard_settings, strict.url)


def serving(db: testing.Database, dashboard_settings: Settings, issuer: str) -> Iterator[Any]:
    """The site with a sign-in at this issuer."""
    settings = replace(
        dashboard_settings,
        public_url="http://testserver",
        oidc_issuer=issuer,
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
        oidc_name="Example SSO",
        oidc_operators=("boss@example.org",),
    )
    app = api.create(settings)
    dashboard.mount(app)
    with TestClient(app, follow_redirects=False) as client:
        client.db = db  # pyright: ignore[reportAttributeAccessIssue]
        yield client


def browser(site: Any) -> Any:
    made = TestClient(site.app, follow_redirects=False)
    made.portal = site.portal
    return made


def ask_issuer(address: str, sub: str) -> str:
    """What a person does at the issuer: choose a user, be sent back. Returns the callback's path and query."""
    answer = httpx.post(address, data={"sub": sub})
    assert answer.status_code in (302, 303), answer.text
    parts = urlsplit(answer.headers["location"])
    assert (parts.scheme, parts.netloc) == ("http", "testserver")
    return f"{parts.path}?{parts.query}"


def sign_in(client: Any, sub: str, next: str = "/jobs") -> Any:
    begun = client.get("/dashboard/sign-in/oidc", params={"next": next})
    assert begun.status_code == 303, begun.text
    return client.get(ask_issuer(begun.headers["location"], sub))


def test_user_signs_in_and_gets_a_personal_tenant(site: Any) -> None:
    """S85: the same subject is the same user the next time."""
    assert "Sign in with Example SSO" in site.get("/dashboard/sign-in").text
    for _ in range(2):
        client = browser(site)
        answer = sign_in(client, "ann-1")
        assert answer.headers["location"] == "/dashboard/jobs", answer.text
        assert client.get("/dashboard/jobs").status_code == 200
        assert client.get("/dashboard/workers").status_code == 403, "a user is no operator"
    [identity] = site.db.execute("select * from penstock.identities")
    [profile] = site.db.execute("select * from penstock.profiles where user_id = %s", [identity["user_id"]])
    assert (identity["subject"], profile["email"]) == ("ann-1", "ann@example.org")
    [tenant] = site.db.execute("select * from penstock.tenants where id = %s", [profile["tenant_id"]])
    assert tenant["is_personal"] and tenant["name"] == "ann"


def test_operator_needs_a_verified_address(site: Any) -> None:
    """S85: who only claims to have the operator's address is a user like others."""
    boss, eve = browser(site), browser(site)
    assert sign_in(boss, "boss-1").status_code == sign_in(eve, "eve-1").status_code == 303
    assert boss.get("/dashboard/workers").status_code == 200
    assert eve.get("/dashboard/workers").status_code == 403
    users = site.db.execute("select user_id from penstock.identities")
    assert len({row["user_id"] for row in users}) == 2, "accounts are never joined by address"


def test_request_to_the_issuer_has_pkce_state_and_nonce(site: Any, issuer: str) -> None:
    begun = site.get("/dashboard/sign-in/oidc")
    address = begun.headers["location"]
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert address.startswith(issuer)
    assert query["code_challenge_method"] == "S256" and len(query["code_challenge"]) == 43
    assert query["redirect_uri"] == "http://testserver/dashboard/sign-in/callback"
    assert len(query["state"]) >= 40 and len(query["nonce"]) >= 40
    [cookie] = [each for each in begun.headers.get_list("set-cookie") if each.startswith("penstock_oidc=")]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie


def test_answer_is_bound_to_the_browser(site: Any) -> None:
    """S85: an attacker cannot sign a victim in with the attacker's answer (login CSRF)."""
    attacker, victim, other = browser(site), browser(site), browser(site)
    begun = attacker.get("/dashboard/sign-in/oidc")
    callback = ask_issuer(begun.headers["location"], "ann-1")
    assert victim.get(callback).status_code == 401, "no sign-in was begun here"
    other.get("/dashboard/sign-in/oidc")
    assert other.get(callback).status_code == 401, "another sign-in was begun here"
    assert attacker.get(callback).status_code == 303
    assert attacker.get(callback).status_code == 401, "an answer works once"
    denied = browser(site)
    denied.get("/dashboard/sign-in/oidc")
    assert denied.get("/dashboard/sign-in/callback?error=access_denied&state=x").status_code == 401


@pytest.mark.parametrize(
    "next", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x"]
)
def test_return_path_is_local(site: Any, next: str) -> None:
    client = browser(site)
    assert sign_in(client, "ann-1", next).headers["location"] == "/dashboard/"
    # Also if the cookie was changed on the way.
    begun = client.get("/dashboard/sign-in/oidc")
    state, nonce, verifier, _ = json.loads(base64.urlsafe_b64decode(client.cookies["penstock_oidc"]))
    forged = base64.urlsafe_b64encode(json.dumps([state, nonce, verifier, next]).encode()).decode()
    again = TestClient(site.app, follow_redirects=False, headers={"Cookie": f"penstock_oidc={forged}"})
    again.portal = site.portal
    answer = again.get(ask_issuer(begun.headers["location"], "ann-1"))
    assert answer.headers["location"] == "/dashboard/"


class TestStrictIssuer:
    """S85: the issuer verifies PKCE, the client and the redirect URI; its wrong answers are refused."""

    def answer(self, client: Any) -> str:
        """Begin a sign-in and return the path of the issuer's answer."""
        begun = client.get("/dashboard/sign-in/oidc")
        found = httpx.get(begun.headers["location"])
        assert found.status_code == 302
        parts = urlsplit(found.headers["location"])
        return f"{parts.path}?{parts.query}"

    def test_user_signs_in(self, strict_site: Any, strict: Any) -> None:
        client = browser(strict_site)
        assert client.get(self.answer(client)).status_code == 303
        assert client.get("/dashboard/jobs").status_code == 200
        assert strict.refusals == []

    @pytest.mark.parametrize("fault", STRICT.FAULTS)
    def test_wrong_answer_opens_no_session(self, strict_site: Any, strict: Any, fault: str) -> None:
        client = browser(strict_site)
        strict.fault = fault
        refused = client.get(self.answer(client))
        assert refused.status_code == 401
        assert not any("penstock_session=" in each for each in refused.headers.get_list("set-cookie"))
        assert client.get("/dashboard/jobs").status_code in (303, 401)
        assert strict_site.db.execute("select * from penstock.sessions") == []
        assert strict_site.db.execute("select * from penstock.identities") == []

    @pytest.mark.parametrize(
        ("changed", "refusal"), [("verifier", "verifier"), ("code", "code"), ("redirect", "redirect URI")]
    )
    def test_issuer_refuses_what_does_not_match(
        self, strict_site: Any, strict: Any, monkeypatch: pytest.MonkeyPatch, changed: str, refusal: str
    ) -> None:
        """A stolen code is worth nothing without the verifier of the browser that began the sign-in."""
        client = browser(strict_site)
        path = self.answer(client)
        cookie = client.cookies["penstock_oidc"]
        state, nonce, verifier, target = json.loads(base64.urlsafe_b64decode(cookie))
        if changed == "verifier":
            value = json.dumps([state, nonce, "v" * 43, target])
            cookie = base64.urlsafe_b64encode(value.encode()).decode()
        elif changed == "code":
            path = path.replace("code=", "code=x")
        else:
            monkeypatch.setattr(
                "penstock.dashboard.sign_in._callback", lambda request: "http://testserver/elsewhere"
            )
        again = TestClient(
            strict_site.app, follow_redirects=False, headers={"Cookie": f"penstock_oidc={cookie}"}
        )
        again.portal = strict_site.portal
        assert again.get(path).status_code == 401
        assert strict.refusals == [refusal]
        assert verifier not in path, "the verifier never travels through the browser's address"
        assert strict_site.db.execute("select * from penstock.sessions") == []

    def test_other_client_secret_is_refused(self, strict_site: Any, strict: Any) -> None:
        client = browser(strict_site)
        path = self.answer(client)
        strict_site.app.state.oidc._client_secret = "x"  # noqa: S105
        assert client.get(path).status_code == 401
        assert strict.refusals == ["client"]


class TestAnswers:
    """S85: what the issuer's answer must be. Signed by a key of the test, as another server might."""

    KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    ISSUER = "https://issuer.example"

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        every = {
            "iss": self.ISSUER, "aud": CLIENT, "sub": "ann-1", "nonce": "n" * 43, "iat": now, "exp": now + 60,
            "email": "a@b.c", "email_verified": True, **changed,
        }  # fmt: skip
        return {name: value for name, value in every.items() if value is not None}

    async def finish(self, monkeypatch: pytest.MonkeyPatch, token: str, **answer: str) -> Identity:
        jwk = {**json.loads(RSAAlgorithm.to_jwk(self.KEY.public_key())), "kid": "k", "use": "sig"}
        documents = {
            "/.well-known/openid-configuration": {
                "issuer": self.ISSUER,
                "authorization_endpoint": f"{self.ISSUER}/a",
                "token_endpoint": f"{self.ISSUER}/t",
                "jwks_uri": f"{self.ISSUER}/k",
            },
            "/t": {"id_token": token},
            "/k": {"keys": [jwk]},
        }

        async def fetch(url: str, *rest: Any) -> Any:
            return documents[urlsplit(url).path]

        monkeypatch.setattr(module, "_fetch", fetch)
        oidc = Oidc(Settings(oidc_issuer=self.ISSUER, oidc_client_id=CLIENT))
        given = {"code": "c", "state": "s" * 43, **answer}
        return await oidc.finish(Login("s" * 43, "n" * 43, "v" * 43), "http://testserver/x", given)

    def token(self, key: Any = None, **changed: Any) -> str:
        return jwt.encode(self.claims(**changed), key or self.KEY, "RS256", {"kid": "k"})

    async def test_valid_answer_is_accepted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = await self.finish(monkeypatch, self.token(), iss=self.ISSUER)
        assert found == Identity(self.ISSUER, "ann-1", "a@b.c")
        for changed in ({"email_verified": False}, {"email_verified": "true"}, {"email_verified": None}):
            assert (await self.finish(monkeypatch, self.token(**changed))).email is None

    @pytest.mark.parametrize(
        "changed",
        [
            {"nonce": "x" * 43}, {"nonce": None}, {"aud": "another"}, {"aud": [CLIENT, "another"]}, {"iss": "https://evil.example"},
            {"exp": 1}, {"exp": None}, {"iat": None}, {"sub": None}, {"sub": ""}, {"sub": "x" * 300},
        ],
    )  # fmt: skip
    async def test_other_claims_are_refused(
        self, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
    ) -> None:
        with pytest.raises(Unauthenticated):
            await self.finish(monkeypatch, self.token(**changed))

    async def test_other_keys_algorithms_states_and_issuers_are_refused(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        none = jwt.encode(self.claims(), None, "none", {"kid": "k"})  # pyright: ignore[reportArgumentType]
        hmac = jwt.encode(self.claims(), "a secret of more than thirty-two bytes", "HS256", {"kid": "k"})
        for token in (self.token(self.OTHER), none, hmac, "nonsense", ""):
            with pytest.raises(Unauthenticated):
                await self.finish(monkeypatch, token)
        for answer in ({"state": "x"}, {"state": ""}, {"iss": "https://evil.example"}):
            with pytest.raises(Unauthenticated):
                await self.finish(monkeypatch, self.token(), **answer)
