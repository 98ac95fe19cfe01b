"""Identifies callers, and opens transactions in which the database sees that caller.

Users' requests use a database login that can only switch to users' roles; verified service credentials use
another login. So a bug in the API cannot give a user the rights of the service.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, LiteralString
from uuid import UUID

from fastapi import Request, Response

from penstock.api.limits import Limits, Rates
from penstock.api.sessions import Sessions
from penstock.api.shares import Shares
from penstock.api.tokens import Tokens
from penstock.contract import sessions
from penstock.errors import Forbidden, PenstockError, TimedOut, Unauthenticated
from penstock.postgres import db
from penstock.types import Scope

DatabaseRole = Literal["anon", "authenticated", "service_role"]

_KEY = re.compile(r"psk_[0-9a-f]{64}")
_SESSION = re.compile(r"pss_[0-9a-f]{64}")
_LONGEST = 8192

KNOWN_SECONDS = 60
"""How long the id and scopes of a key are cached: they never change. Every transaction checks whether the
key has been revoked or has expired."""
MOST_KNOWN = 10_000

# Everything is local to the transaction, so that nothing stays on the connection. The idle timeout frees the
# locks of a request within a minute if this machine disappears.
_BECOME: LiteralString = """\
select set_config('role', %s, true), set_config('request.jwt.claims', %s, true),
  set_config('penstock.actor', %s, true), set_config('statement_timeout', %s, true),
  set_config('idle_in_transaction_session_timeout', '60s', true)"""
_HOME: LiteralString = "select tenant_id from penstock.profiles where user_id = %s"
_CANCELED = "57014"
_COSTLY = ("share_used_up", "body_too_slow", "check_too_slow", "too_many_tasks")
REFUSAL_COST = 20
"""Requests that a refused share, a canceled statement or a body above its limit counts as."""
_BECOME_KEY: LiteralString = _BECOME + "; select penstock.check_key()"
_BECOME_SESSION: LiteralString = _BECOME + "; select penstock.check_session()"

# Whether the login has or can get more rights than a user, and whether it can switch to the users' roles.
_LOGIN: LiteralString = """\
select exists (
    select from pg_roles r where pg_has_role(session_user, r.oid, 'member') and (
      r.rolsuper or r.rolbypassrls or r.rolcreaterole or r.rolreplication or r.rolname = 'service_role'
      or r.rolname like 'pg\\_%%' or r.oid = (select nspowner from pg_namespace where nspname = 'penstock'))),
  pg_has_role(session_user, 'anon', 'member') and pg_has_role(session_user, 'authenticated', 'member')"""


class SessionToken(str):
    """The token of a dashboard session. Only the dashboard's cookie is one: the API accepts no such token."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    role: DatabaseRole
    """The database role of the request."""
    claims: dict[str, Any]
    """The value of `request.jwt.claims`."""
    is_key: bool = False
    """Whether `sub` is the id of an API key."""
    scopes: frozenset[str] | None = None
    """The scopes of a key; None for other credentials, which have no scopes."""
    token: str = ""
    """Prefix of the token's digest, which distinguishes callers without a user id."""
    session: UUID | None = None
    """The dashboard session of the request."""
    tenant: UUID | None = None
    """The tenant whose shares the caller uses: that of the key, or of the user's profile."""

    @property
    def is_over(self) -> bool:
        """Whether the token has expired since the request began. Keys have no expiry here."""
        expires = self.claims.get("exp")
        return expires is not None and expires < time.time()

    @property
    def is_worker(self) -> bool:
        """Whether this is a worker's key, which can only call worker functions."""
        return self.scopes == frozenset({"work"})

    def may(self, scope: Scope) -> bool:
        """Whether the scopes of a service key allow this. Tenants' keys are checked by the database."""
        return self.scopes is None or self.role != "service_role" or scope in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless the scopes of a service key allow this."""
        if not self.may(scope):
            raise Forbidden(
                f"the API key does not have the scope {scope}",
                code="missing_scope",
                hint="Create a key with this scope.",
                details={"scope": scope},
            )

    @property
    def name(self) -> str:
        """The caller's name for rate limits and logs."""
        return f"{self.role}:{self.claims.get('sub') or self.token}"

    @property
    def share(self) -> str:
        """The name of the caller's tenant in shares and rate limits; without a tenant, the caller's name."""
        return f"tenant:{self.tenant}" if self.tenant else self.name


@dataclass(frozen=True, slots=True)
class Pools:
    """The connections of one API process."""

    users: db.Pool
    service: db.Pool
    exports: db.Pool
    """For users' exports, which hold a connection for long."""


ANON = Caller("anon", {"role": "anon"})
_SERVICE = Caller("service_role", {"role": "service_role"})


class Callers:
    """Identifies callers and opens transactions as them. One per application, at `app.state.callers`."""

    def __init__(
        self,
        pools: Pools,
        tokens: Tokens,
        development: Sessions | None = None,
        *,
        limits: Limits,
        rates: Rates,
    ) -> None:
        self._pools = pools
        self._tokens = tokens
        self._sessions = development
        self._rates = rates
        self._known: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._homes: OrderedDict[str, tuple[UUID | None, float]] = OrderedDict()
        self._milliseconds = str(round(limits.statement_seconds * 1000))
        self._read_milliseconds = str(round(limits.read_seconds * 1000))
        self._export_seconds = limits.export_seconds
        self.connections = Shares("database connections", limits.connections)
        self.exports = Shares("exports", limits.exports)

    async def of(self, request: Request, credential: str | None) -> Caller:
        """The caller with this credential or session; anon if the request has neither.

        Raises Unauthenticated if the credential or session is invalid.
        """
        if isinstance(credential, SessionToken):
            return await self._of_session(request, credential)
        if credential is None:
            session = self._sessions.claims(request) if self._sessions else None
            return await self._at_home(Caller(session["role"], session)) if session else ANON
        return await self.bearing(credential)

    def is_new(self, credential: str | None) -> bool:
        """Whether this is a key that is not cached, so that checking it needs a query."""
        if isinstance(credential, SessionToken):
            return True
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
        token = sha256(credential.encode()).hexdigest()[:12]
        return await self._at_home(Caller(claims["role"], claims, token=token))

    async def open_session(self, caller: Caller, user_agent: str | None) -> str:
        """Open a dashboard session for this caller. Returns the token for the browser's cookie."""
        sub, expires = caller.claims.get("sub"), caller.claims.get("exp")
        return await sessions.open(
            self._pools.service,
            role=caller.role,
            subject=UUID(sub) if sub else None,
            user_agent=user_agent,
            expires_at=datetime.fromtimestamp(expires, UTC) if expires else None,
        )

    async def of_identity(self, issuer: str, subject: str, email: str | None, *, is_operator: bool) -> Caller:
        """The caller with this verified identity; creates the user at the first sign-in."""
        user_id = await db.value(
            self._pools.service, "sign_in_identity", p_issuer=issuer, p_subject=subject, p_email=email
        )
        role: DatabaseRole = "service_role" if is_operator else "authenticated"
        return Caller(role, {"role": role, "sub": str(user_id)})

    async def close_session(self, token: str) -> None:
        """End a dashboard session."""
        await db.call(self._pools.service, "close_session", p_digest=_digest(token))

    async def _of_session(self, request: Request, token: str) -> Caller:
        found = []
        if _SESSION.fullmatch(token):
            # A page that refreshes itself does not keep the session alive.
            is_active = "hx-request" not in request.headers
            found = await db.call(
                self._pools.service, "use_session", p_digest=_digest(token), p_is_active=is_active
            )
        if not found:
            raise Unauthenticated("the session has ended", hint="Sign in again.")
        [row] = found
        claims = {"role": row["role"], "penstock_session": str(row["id"])}
        if row["subject"]:
            claims["sub"] = str(row["subject"])
        caller = Caller(
            row["role"],
            claims,
            scopes=None if row["scopes"] is None else frozenset(row["scopes"]),
            token=str(row["id"])[:12],
            session=row["id"],
        )
        return await self._at_home(caller)

    def forget(self, response: Response) -> None:
        """Log the browser out, if it has a session."""
        if self._sessions:
            self._sessions.end(response)

    @asynccontextmanager
    async def acting(
        self, caller: Caller, *, read_only: bool = False, is_export: bool = False
    ) -> AsyncGenerator[db.Connection]:
        """Open a transaction as this caller. Commits at the end, rolls back on an exception.

        A user waits for a connection within the share of its tenant. An export uses a connection of its own.
        Raises Unauthenticated if the caller's key has been revoked or has expired, and Limited if the share
        is used up.
        """
        calls = self._calls(caller, read_only, is_export)
        async with self._share(caller, calls, is_export), db.connection(calls) as conn:
            yield conn

    def calling(
        self, caller: Caller, *, read_only: bool = False
    ) -> AbstractAsyncContextManager[db.PoolWithSetup]:
        """What makes each statement a transaction as this caller, in one message to the database.

        For handlers with one statement: the caller's key is checked with it, not before. Otherwise as
        `acting`.
        """
        return self._share(caller, self._calls(caller, read_only))

    @asynccontextmanager
    async def _share(
        self, caller: Caller, calls: db.PoolWithSetup, is_export: bool = False
    ) -> AsyncGenerator[db.PoolWithSetup]:
        """The calls of this caller, within the share of its tenant."""
        if caller.role == "service_role":
            yield calls
            return
        shares = self.exports if is_export else self.connections
        with self.counting(caller):
            await shares.acquire(caller.share, caller.name)
            try:
                async with _limited(self._export_seconds) if is_export else nullcontext():
                    yield calls
            finally:
                shares.release(caller.share, caller.name)

    def _calls(self, caller: Caller, read_only: bool, is_export: bool = False) -> db.PoolWithSetup:
        """Transactions as this caller."""
        if caller.role == "service_role":
            # The audit log shows which service key or session was used; users are identified by the claims.
            is_named = caller.is_key or (caller.claims.get("sub") and (caller.session or not caller.token))
            actor = f"service:{caller.claims['sub']}" if is_named else ""
            return _as_caller(self._pools.service, caller, actor, self._milliseconds, read_only)
        pool = self._pools.exports if is_export else self._pools.users
        milliseconds = self._read_milliseconds if read_only and not is_export else self._milliseconds
        return _as_caller(pool, caller, "", milliseconds, read_only)

    @asynccontextmanager
    async def acting_for(self, caller: Caller) -> AsyncGenerator[tuple[db.Connection, UUID | None]]:
        """Open a transaction of the service for a user's request, and return it with the user's id.

        For functions that only trusted code may call, such as `start_drawn_job`: they check the user's role.
        The request keeps the share of its tenant meanwhile.
        """
        if caller.role == "service_role":
            async with self.acting(caller) as conn:
                yield conn, None
            return
        user_id, service = UUID(str(caller.claims["sub"])), replace(caller, role="service_role")
        calls = _as_caller(self._pools.service, service, f"user:{user_id}", self._milliseconds, False)
        async with db.connection(calls) as conn:
            yield conn, user_id

    @contextmanager
    def counting(self, caller: Caller) -> Generator[None]:
        """Count a refused share and a canceled statement as several requests of the caller.

        Otherwise a loop of them, which costs the caller nothing, would keep the process busy.
        """
        try:
            yield
        except PenstockError as error:
            is_canceled = getattr(error.__cause__, "sqlstate", None) == _CANCELED
            if is_canceled or error.code in _COSTLY:
                self.charge(caller, REFUSAL_COST)
            raise

    async def require_tenant(self, caller: Caller, tenant_id: UUID | None) -> str:
        """The share of the tenant that a change would be made in. Raises Forbidden if the caller may not.

        Called before anything that takes long.
        """
        if caller.role == "service_role":
            return caller.share if tenant_id is None else f"tenant:{tenant_id}"
        async with self.acting(caller, read_only=True) as conn:
            return f"tenant:{await db.value(conn, 'require_tenant', p_tenant_id=tenant_id)}"

    def charge(self, caller: Caller, count: float) -> None:
        """Count a request of this caller as several more."""
        self._rates.charge(caller.name, caller.share, count)

    def take(self, caller: Caller, count: float) -> None:
        """Count a request that costs as much as several before it runs. Raises Limited."""
        self._rates.callers.take(caller.name, count)
        if caller.tenant is not None:
            self._rates.tenants.take(caller.share, count)

    async def confirm(self, caller: Caller) -> None:
        """Raise Unauthenticated if the caller's key has been revoked or has expired.

        For requests that do their work without a transaction: the cache does not know of a revocation.
        """
        async with self.acting(caller, read_only=True):
            pass

    async def check(self) -> None:
        """Raise Unavailable unless the database responds on both logins."""
        for pool in (self._pools.users, self._pools.service):
            await db.rows(pool, "select 1", ())

    async def _of_key(self, secret: str) -> Caller:
        if not _KEY.fullmatch(secret):
            raise Unauthenticated("the API key is invalid")
        digest = _digest(secret)
        caller, until = self._known.get(digest, (None, 0.0))
        if caller is not None and time.monotonic() < until:
            return caller
        found = await db.call(self._pools.service, "use_api_key", p_digest=digest)
        if not found:
            self._known.pop(digest, None)
            raise Unauthenticated("the API key is invalid")
        key_id, role = str(found[0]["id"]), found[0]["role"]
        database_role: DatabaseRole = "service_role" if role in ("worker", "service") else "authenticated"
        claims = {"role": database_role, "sub": key_id}
        caller = Caller(
            database_role,
            claims,
            is_key=True,
            scopes=frozenset(found[0]["scopes"]),
            tenant=found[0]["tenant_id"],
        )
        self._known[digest] = caller, time.monotonic() + KNOWN_SECONDS
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return caller

    async def _at_home(self, caller: Caller) -> Caller:
        """Add the tenant of the user's profile, which other tenants cannot change by adding the user."""
        user_id = caller.claims.get("sub")
        if caller.role != "authenticated" or user_id is None:
            return caller
        tenant_id, until = self._homes.get(user_id, (None, 0.0))
        if time.monotonic() >= until:
            async with self.acting(_SERVICE, read_only=True) as conn:
                found = await db.rows(conn, _HOME, (user_id,))
            tenant_id = found[0][0] if found else None
            self._homes[user_id] = tenant_id, time.monotonic() + KNOWN_SECONDS
            self._homes.move_to_end(user_id)
            if len(self._homes) > MOST_KNOWN:
                self._homes.popitem(last=False)
        return replace(caller, tenant=tenant_id)


def _as_caller(
    pool: db.Pool, caller: Caller, actor: str, milliseconds: str, read_only: bool
) -> db.PoolWithSetup:
    become = _BECOME_SESSION if caller.session else _BECOME_KEY if caller.is_key else _BECOME
    values = (caller.role, json.dumps(caller.claims), actor, milliseconds)
    return db.PoolWithSetup(pool, become, values, read_only)


@asynccontextmanager
async def _limited(seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimedOut(f"the export did not end within {seconds:g} seconds") from None


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


LOGIN_HINT = (
    "Create a login and put its address into PENSTOCK_API_URL: "
    "create role penstock_api login noinherit password '…' in role anon, authenticated;"
)


async def check_login(users: db.Pool) -> None:
    """Raise unless the login for users can switch to the users' roles and to nothing more."""
    [(is_more, is_user)] = await db.rows(users, _LOGIN, ())
    if is_more:
        raise PenstockError(
            "the login of PENSTOCK_API_URL has or can get more rights than a user",
            code="unsafe_login",
            hint=LOGIN_HINT,
        )
    if not is_user:
        raise PenstockError(
            "the login of PENSTOCK_API_URL cannot switch to the roles anon and authenticated",
            code="unsafe_login",
            hint="Run: grant anon, authenticated to penstock_api;",
        )
