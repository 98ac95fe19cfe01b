"""Who is asking, and a transaction in which the database sees exactly that caller.

A user's request runs on a login that cannot become more than a user; what a verified service credential asks
runs on another login. So a mistake above this line cannot give a user the service's rights.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, LiteralString

from fastapi import Request, Response

from penstock import db
from penstock.api.sessions import Sessions
from penstock.api.tokens import Tokens
from penstock.errors import PenstockError, Unauthenticated

DatabaseRole = Literal["anon", "authenticated", "service_role"]

_KEY = re.compile(r"psk_[0-9a-f]{64}")
_LONGEST = 8192

KNOWN_SECONDS = 60
"""How long it is remembered whose a key is: its SHA-256 and its id belong together for good. Whether it has
ended is asked in each transaction."""
MOST_KNOWN = 10_000

# All of it ends with the transaction: nothing is left behind on the connection. Should this machine vanish
# in the middle of a request, others wait for what it had in hand for a minute, and not for hours.
_BECOME: LiteralString = """\
select set_config('role', %s, true), set_config('request.jwt.claims', %s, true),
  set_config('penstock.actor', %s, true), set_config('statement_timeout', %s, true),
  set_config('idle_in_transaction_session_timeout', '60s', true)"""
_BECOME_KEY: LiteralString = _BECOME + "; select penstock.check_key()"

# What the login is or could become, that a user is not; and whether it can become what users are.
_LOGIN: LiteralString = """\
select exists (
    select from pg_roles r where pg_has_role(session_user, r.oid, 'member') and (
      r.rolsuper or r.rolbypassrls or r.rolcreaterole or r.rolreplication or r.rolname = 'service_role'
      or r.rolname like 'pg\\_%%' or r.oid = (select nspowner from pg_namespace where nspname = 'penstock'))),
  pg_has_role(session_user, 'anon', 'member') and pg_has_role(session_user, 'authenticated', 'member')"""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking."""

    role: DatabaseRole
    """The database role the request runs under."""
    claims: dict[str, Any]
    """What becomes `request.jwt.claims`."""
    is_key: bool = False
    """Whether `sub` is an API key's id."""
    is_worker: bool = False
    """Whether this is a service credential for the worker verbs only."""
    token: str = ""
    """The beginning of its token's digest: tells those apart that name no user."""

    @property
    def is_over(self) -> bool:
        """Whether the token has expired meanwhile. What has no time, such as a key, does not by itself."""
        expires = self.claims.get("exp")
        return expires is not None and expires < time.time()

    @property
    def name(self) -> str:
        """Who this is, for limits and logs."""
        return f"{self.role}:{self.claims.get('sub') or self.token}"


ANON = Caller("anon", {"role": "anon"})


class Callers:
    """Finds out who is asking, and acts as they may. One per application, at `app.state.callers`."""

    def __init__(
        self,
        users: db.Pool,
        service: db.Pool,
        tokens: Tokens,
        sessions: Sessions | None = None,
        *,
        seconds: float = 10,
    ) -> None:
        self._users = users
        self._service = service
        self._tokens = tokens
        self._sessions = sessions
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._milliseconds = str(round(seconds * 1000))

    async def of(self, request: Request, credential: str | None) -> Caller:
        """Who sent this request, which shows this credential; anon when it shows none, and has no session.

        Raises Unauthenticated for a bad one.
        """
        if credential is None:
            session = self._sessions.claims(request) if self._sessions else None
            return Caller(session["role"], session) if session else ANON
        return await self.bearing(credential)

    def is_new(self, credential: str | None) -> bool:
        """Whether this is a key that nobody has come with: to tell if it is good costs a query."""
        if credential is None or not credential.startswith("psk_"):
            return False
        return _digest(credential) not in self._known

    async def bearing(self, credential: str) -> Caller:
        """Whose token or key this is. Raises Unauthenticated for a bad one."""
        if len(credential) > _LONGEST:
            raise Unauthenticated("the credential is too long")
        if credential.startswith("psk_"):
            return await self._of_key(credential)
        claims = await self._tokens.verify(credential)
        return Caller(claims["role"], claims, token=sha256(credential.encode()).hexdigest()[:12])

    def forget(self, response: Response) -> None:
        """Let the browser that gets this response be logged in no more, if it was."""
        if self._sessions:
            self._sessions.end(response)

    @asynccontextmanager
    async def acting(self, caller: Caller, *, read_only: bool = False) -> AsyncGenerator[db.Connection]:
        """A transaction as this caller; commits at the end, rolls back on an exception.

        Raises Unauthenticated if the caller's key has ended meanwhile.
        """
        is_service = caller.role == "service_role"
        # The audit log shows which of the service's keys it was; a user's name comes from the claims.
        actor = f"service:{caller.claims['sub']}" if is_service and caller.is_key else ""
        async with db.transaction_with_setup(
            self._service if is_service else self._users,
            _BECOME_KEY if caller.is_key else _BECOME,
            (caller.role, json.dumps(caller.claims), actor, self._milliseconds),
            read_only=read_only,
        ) as held:
            yield held

    async def check(self) -> None:
        """Raise Unavailable unless the database answers on both logins."""
        for pool in (self._users, self._service):
            await db.rows(pool, "select 1", ())

    async def _of_key(self, secret: str) -> Caller:
        if not _KEY.fullmatch(secret):
            raise Unauthenticated("the API key is not valid")
        digest = _digest(secret)
        caller, until = self._known.get(digest, (None, 0.0))
        if caller is not None and time.monotonic() < until:
            return caller
        found = await db.call(self._service, "use_key", p_digest=digest)
        if not found:
            self._known.pop(digest, None)
            raise Unauthenticated("the API key is not valid")
        key_id, role = str(found[0]["id"]), found[0]["role"]
        database_role: DatabaseRole = "service_role" if role in ("worker", "service") else "authenticated"
        claims = {"role": database_role, "sub": key_id}
        caller = Caller(database_role, claims, is_key=True, is_worker=role == "worker")
        self._known[digest] = caller, time.monotonic() + KNOWN_SECONDS
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return caller


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def shown(request: Request) -> str | None:
    """The credential a request shows. A user's token beside an application's key is the user's request."""
    header = request.headers.get("authorization")
    if header is None:
        return request.headers.get("apikey") or None
    scheme, _, credential = header.partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise Unauthenticated("the Authorization header is not a bearer token")
    return credential.strip()


async def check_login(users: db.Pool) -> None:
    """Refuse to serve users on a login that could become more than a user, whatever is asked of it."""
    [(is_more, is_user)] = await db.rows(users, _LOGIN, ())
    if is_more:
        raise PenstockError(
            "the login of PENSTOCK_API_URL could become more than a user",
            code="unsafe_login",
            hint="create role penstock_api login noinherit in role anon, authenticated;",
        )
    if not is_user:
        raise PenstockError(
            "the login of PENSTOCK_API_URL cannot become anon and authenticated",
            code="unsafe_login",
            hint="grant anon, authenticated to penstock_api;",
        )
