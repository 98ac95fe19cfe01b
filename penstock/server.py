"""`penstock serve`: the API on a socket, with a login of its own for users' requests."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import uvicorn
from psycopg.conninfo import make_conninfo

from penstock import api, db
from penstock.app import App
from penstock.errors import Invalid
from penstock.settings import Settings

LOGIN = "penstock_api"

# Several servers may start at once: whoever comes second finds it made, with its memberships.
_MAKE_LOGIN = """
do $$
begin
  if not exists (select from pg_roles where rolname = 'penstock_api') then
    create role penstock_api login noinherit in role anon, authenticated;
  end if;
exception when duplicate_object or unique_violation then
  null;
end
$$"""


def ensure_login(dsn: str) -> str:
    """The address at which the login for users' requests reaches the same database; made where it is missing.

    For servers that trust whoever reaches their socket, as the embedded one does: it gets no password.
    """
    with db.connect(dsn, name="penstock serve") as connection:
        connection.execute(_MAKE_LOGIN)
    return make_conninfo(dsn, user=LOGIN, password=None)


def run(settings: Settings, *, host: str, port: int, app: App | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C; what is being answered then is answered first."""
    check_address(settings, host)
    uvicorn.run(
        api.create(settings, app),
        host=host,
        port=port,
        # The API logs requests itself, without what may be secret in them.
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=20,
        h11_max_incomplete_event_size=32 << 10,
    )


def check_address(settings: Settings, host: str) -> None:
    """Refuse an address that others can reach while no token could be checked."""
    if settings.jwt_secret or settings.jwks_url or is_loopback(host):
        return
    raise Invalid(
        f"{host} can be reached by others, and nothing says whose tokens are good",
        code="unsafe_address",
        hint="Set PENSTOCK_JWT_SECRET or PENSTOCK_JWKS_URL, or serve on 127.0.0.1.",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than localhost might be any."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def with_logins(settings: Settings, *, is_embedded: bool) -> Settings:
    """The settings with the login for users: the one given, or on the embedded server one that is made."""
    if is_embedded and settings.database_url:
        return replace(settings, api_url=ensure_login(settings.database_url))
    if not settings.api_url:
        raise Invalid(
            "PENSTOCK_API_URL is missing: the login that serves users' requests",
            code="no_api_login",
            hint="create role penstock_api login noinherit password '…' in role anon, authenticated;",
        )
    return settings
