"""Identifies callers, and opens transactions in which the database sees that caller.

Users' requests use a database login that can only switch to users' roles; verified service credentials use
another login. So a bug in the API cannot give a user the rights of the service.
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

from penstock.api.sessions import Sessions
from penstock.api.tokens import Tokens
from penstock.errors import PenstockError, Unauthenticated
from penstock.postgres import db

DatabaseRole = Literal["anon", "authenticated", "service_role"]

_KEY = re.compile(r"psk_[0-9a-f]{64}")
_LONGEST = 8192

KNOWN_SECONDS = 60
"""How long the owner of a key is cached: a digest always belongs to the same key id. Every transaction checks
whether the key has been revoked or has expired."""
MOST_KNOWN = 10_000

# Everything is local to the transaction, so that nothing stays on the connection. The idle timeout frees the
# locks of a request within a minute if this machine disappears.
_BECOME: LiteralString = """\
select set_config('role', %s, true), set_config('request.jwt.claims', %s, true),
  set_config('penstock.actor', %s, true), set_config('statement_timeout', %s, true),
  set_config('idle_in_transaction_session_timeout', '60s', true)"""
_BECOME_KEY: LiteralString = _BECOME + "; select penstock.check_key()"

# Whether the login has or can get more rights than a user, and whether it can switch to the users' roles.
_LOGIN: LiteralString = """\
select exists (
    select from pg_roles r where pg_has_role(session_user, r.oid, 'member') and (
      r.rolsuper or r.rolbypassrls or r.rolcreaterole or r.rolreplication or r.rolname = 'service_role'
      or r.rolname like 'pg\\_%%' or r.oid = (select nspowner from pg_namespace where nspname = 'penstock'))),
  pg_has_role(session_user, 'anon', 'member') and pg_has_role(session_user, 'authenticated', 'member')"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    role: DatabaseRole
    """The database role of the request."""
    claims: dict[str, Any]
    """The value of `request.jwt.claims`."""
    is_key: bool = False
    """Whether `sub` is the id of an API key."""
    is_worker: bool = False
    """Whether this is a worker's key, which can only call worker functions."""
    token: str = ""
    """Prefix of the token's digest, which distinguishes callers without a user id."""

    @property
    def is_over(self) -> bool:
        """Whether the token has expired since the request began. Keys have no expiry here."""
        expires = self.claims.get("exp")
        return expires is not None and expires < time.time()

    @property
    def name(self) -> str:
        """The caller's name for rate limits and logs."""
        return f"{self.role}:{self.claims.get('sub') or self.token}"


ANON = Caller("anon", {"role": "anon"})


class Callers:
    """Identifies callers and opens transactions as them. One per application, at `app.state.callers`."""

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
        """The caller with this credential or session; anon if the request has neither.

        Raises Unauthenticated if the credential or session is invalid.
        """
        if credential is None:
            session = self._sessions.claims(request) if self._sessions else None
            return Caller(session["role"], session) if session else ANON
        return await self.bearing(credential)

    def is_new(self, credential: str | None) -> bool:
        """Whether this is a key that is not cached, so that checking it needs a query."""
        if credential is None or not credential.startswith("psk_"):
            return False
        return _digest(credential) not in self._known

    async def bearing(self, credential: str) -> Caller:
        """The caller with this token or key. Raises Unauthenticated if it is invalid."""
        if len(credential) > _LONGEST:
            raise Unauthenticated(f"the credential is longer than {_LONGEST} characters")
        if credential.startswith("psk_"):
            return await self._of_key(credential)
        claims = await self._tokens.verify(credential)
        return Caller(claims["role"], claims, token=sha256(credential.encode()).hexdigest()[:12])

    def forget(self, response: Response) -> None:
        """Log the browser out, if it has a session."""
        if self._sessions:
            self._sessions.end(response)

    @asynccontextmanager
    async def acting(self, caller: Caller, *, read_only: bool = False) -> AsyncGenerator[db.Connection]:
        """Open a transaction as this caller. Commits at the end, rolls back on an exception.

        Raises Unauthenticated if the caller's key has been revoked or has expired.
        """
        is_service = caller.role == "service_role"
        # The audit log shows which service key was used; users are identified by the claims.
        actor = f"service:{caller.claims['sub']}" if is_service and caller.is_key else ""
        async with db.transaction_with_setup(
            self._service if is_service else self._users,
            _BECOME_KEY if caller.is_key else _BECOME,
            (caller.role, json.dumps(caller.claims), actor, self._milliseconds),
            read_only=read_only,
        ) as conn:
            yield conn

    async def check(self) -> None:
        """Raise Unavailable unless the database responds on both logins."""
        for pool in (self._users, self._service):
            await db.rows(pool, "select 1", ())

    async def _of_key(self, secret: str) -> Caller:
        if not _KEY.fullmatch(secret):
            raise Unauthenticated("the API key is invalid")
        digest = _digest(secret)
        caller, until = self._known.get(digest, (None, 0.0))
        if caller is not None and time.monotonic() < until:
            return caller
        found = await db.call(self._service, "use_key", p_digest=digest)
        if not found:
            self._known.pop(digest, None)
            raise Unauthenticated("the API key is invalid")
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
    """The credential in a request's headers. A user's token takes precedence over an application's key."""
    header = request.headers.get("authorization")
    if header is None:
        return request.headers.get("apikey") or None
    scheme, _, credential = header.partition(" ")
    if scheme.lower() != "bearer" or not credential.strip():
        raise Unauthenticated("the Authorization header must be of the form: Bearer TOKEN")
    return credential.strip()


async def check_login(users: db.Pool) -> None:
    """Raise unless the login for users can switch to the users' roles and to nothing more."""
    [(is_more, is_user)] = await db.rows(users, _LOGIN, ())
    if is_more:
        raise PenstockError(
            "the login of PENSTOCK_API_URL has or can get more rights than a user",
            code="unsafe_login",
            hint="Use another login: create role penstock_api login noinherit in role anon, authenticated;",
        )
    if not is_user:
        raise PenstockError(
            "the login of PENSTOCK_API_URL cannot switch to the roles anon and authenticated",
            code="unsafe_login",
            hint="Run: grant anon, authenticated to penstock_api;",
        )
