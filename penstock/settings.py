"""Every knob that is set from outside: one frozen object, read from the environment once."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from penstock.errors import Invalid

Listen = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. Each field names its variable."""

    database_url: str | None = None
    """`DATABASE_URL`: the PostgreSQL to use. Without it an embedded server is started."""

    home: Path = Path(".penstock")
    """`PENSTOCK_HOME`: the folder for the embedded server's data and for local files."""

    listen: Listen = "auto"
    """`PENSTOCK_LISTEN`: whether workers LISTEN for new work. `off` behind a transaction pooler; `auto`
    tries, and falls back to polling."""

    api_url: str | None = None
    """`PENSTOCK_API_URL`: the login that serves users' requests. It can become `anon` and `authenticated`
    and nothing more; without it `penstock serve` makes one, where it may."""

    jwt_secret: str | None = field(default=None, repr=False)
    """`PENSTOCK_JWT_SECRET`: the secret that HS256 tokens are signed with, of at least 32 bytes. Whoever
    has it can be any user, and the service."""

    jwks_url: str | None = None
    """`PENSTOCK_JWKS_URL`: where the public keys are that users' ES256 and RS256 tokens are signed with."""

    jwt_issuer: str | None = None
    """`PENSTOCK_JWT_ISSUER`: who issues tokens (`iss`), if that is to be checked. Needed with a JWKS."""

    jwt_audience: str = "authenticated"
    """`PENSTOCK_JWT_AUDIENCE`: whom users' tokens are for (`aud`)."""

    allowed_origins: tuple[str, ...] = ()
    """`PENSTOCK_ALLOWED_ORIGINS`: the sites whose pages may use the API from a browser, with commas between
    them; `*` is any. None by default."""

    environment: str = "production"
    """`PENSTOCK_ENVIRONMENT`: what the dashboard calls this installation, on every page."""

    read_only: bool = False
    """`PENSTOCK_READ_ONLY`: whether the dashboard only shows. `1` or `true`; the API is not concerned."""

    storage: str | None = None
    """`PENSTOCK_STORAGE`: where files go, `file:///folder` or `s3://bucket/prefix?endpoint=…&region=…`.
    Without it they are in the folder `artifacts` of `PENSTOCK_HOME`."""

    sheets_credentials: Path | None = None
    """`PENSTOCK_SHEETS_CREDENTIALS`: the file of the Google account whose sheets workers read and write."""

    sheets_url: str | None = None
    """`PENSTOCK_SHEETS_URL`: another address of the Sheets API, such as the simulator's. Tokens come from
    `/token` there."""

    storage_secret: str | None = field(default=None, repr=False)
    """`PENSTOCK_STORAGE_SECRET`: what URLs of local files are signed with, of at least 32 bytes. Without it
    one is made, and kept in `PENSTOCK_HOME`; servers on several machines need the same."""

    url: str | None = None
    """`PENSTOCK_URL`: where the API is that `penstock.Client` asks."""

    key: str | None = field(default=None, repr=False)
    """`PENSTOCK_KEY`: the API key, or a user's token, that it shows there."""


def read(environment: Mapping[str, str]) -> Settings:
    """Settings from a mapping such as `os.environ`. An empty value counts as none."""
    listen = environment.get("PENSTOCK_LISTEN") or "auto"
    if listen not in ("auto", "on", "off"):
        raise Invalid(f"PENSTOCK_LISTEN is {listen!r}", hint="Set it to auto, on or off.")
    return Settings(
        database_url=environment.get("DATABASE_URL") or None,
        home=Path(environment.get("PENSTOCK_HOME") or ".penstock"),
        listen=listen,
        api_url=environment.get("PENSTOCK_API_URL") or None,
        jwt_secret=_secret("PENSTOCK_JWT_SECRET", environment),
        jwks_url=_key_address(environment.get("PENSTOCK_JWKS_URL"), environment.get("PENSTOCK_JWT_ISSUER")),
        jwt_issuer=environment.get("PENSTOCK_JWT_ISSUER") or None,
        jwt_audience=environment.get("PENSTOCK_JWT_AUDIENCE") or "authenticated",
        allowed_origins=tuple(
            origin.strip().rstrip("/")
            for origin in environment.get("PENSTOCK_ALLOWED_ORIGINS", "").split(",")
            if origin.strip()
        ),
        sheets_credentials=Path(sheets)
        if (sheets := environment.get("PENSTOCK_SHEETS_CREDENTIALS"))
        else None,
        sheets_url=environment.get("PENSTOCK_SHEETS_URL") or None,
        environment=environment.get("PENSTOCK_ENVIRONMENT") or "production",
        read_only=_flag("PENSTOCK_READ_ONLY", environment),
        storage=environment.get("PENSTOCK_STORAGE") or None,
        storage_secret=_secret("PENSTOCK_STORAGE_SECRET", environment),
        url=environment.get("PENSTOCK_URL") or None,
        key=environment.get("PENSTOCK_KEY") or None,
    )


def _flag(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(name, "").lower()
    if text not in ("", "0", "1", "false", "true"):
        raise Invalid(f"{name} is {text!r}", hint="Set it to true or false.")
    return text in ("1", "true")


def _secret(name: str, environment: Mapping[str, str]) -> str | None:
    text = environment.get(name)
    if text and len(text.encode()) < 32:
        raise Invalid(f"{name} is shorter than 32 bytes", hint="openssl rand -hex 32")
    return text or None


def _key_address(text: str | None, issuer: str | None) -> str | None:
    if not text:
        return None
    if not re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/", text):
        raise Invalid(
            "PENSTOCK_JWKS_URL is not an https address", hint="Keys that anybody can replace are none."
        )
    if not issuer:
        raise Invalid("PENSTOCK_JWKS_URL needs PENSTOCK_JWT_ISSUER", hint="It is the `iss` of users' tokens.")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than localhost might be any."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@cache
def settings() -> Settings:
    """The process's settings."""
    return read(os.environ)
