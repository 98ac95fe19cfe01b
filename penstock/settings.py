"""Settings: one frozen object, read once from environment variables."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from penstock.errors import Invalid

Listen = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the process. Each field names its environment variable."""

    database_url: str | None = None
    """`DATABASE_URL`: the PostgreSQL connection URL. Default: an embedded server."""

    home: Path = Path(".penstock")
    """`PENSTOCK_HOME`: the folder for the embedded server's data and for local files."""

    listen: Listen = "auto"
    """`PENSTOCK_LISTEN`: whether workers LISTEN for new tasks. Set `off` behind a transaction pooler; `auto`
    tries, and falls back to polling."""

    api_url: str | None = None
    """`PENSTOCK_API_URL`: the connection URL for users' requests. Its login can only switch to the roles
    `anon` and `authenticated`. Without it, `penstock serve` creates such a login if it may."""

    jwt_secret: str | None = field(default=None, repr=False)
    """`PENSTOCK_JWT_SECRET`: the secret that signs HS256 tokens, at least 32 bytes. Its holder can act as any
    user and as the service."""

    jwks_url: str | None = None
    """`PENSTOCK_JWKS_URL`: URL of the public keys (JWKS) that verify users' ES256 and RS256 tokens."""

    jwt_issuer: str | None = None
    """`PENSTOCK_JWT_ISSUER`: the required issuer (`iss`) of tokens. Mandatory with `PENSTOCK_JWKS_URL`."""

    jwt_audience: str = "authenticated"
    """`PENSTOCK_JWT_AUDIENCE`: the required audience (`aud`) of users' tokens."""

    allowed_origins: tuple[str, ...] = ()
    """`PENSTOCK_ALLOWED_ORIGINS`: origins that may use the API from a browser (CORS), separated by commas;
    `*` allows any. Default: none."""

    environment: str = "production"
    """`PENSTOCK_ENVIRONMENT`: the name of this installation, shown on every dashboard page."""

    read_only: bool = False
    """`PENSTOCK_READ_ONLY`: `1` or `true` disables changes in the dashboard. Does not affect the API."""

    storage: str | None = None
    """`PENSTOCK_STORAGE`: where files are stored, `file:///folder` or `s3://bucket/prefix?endpoint=…&region=…`.
    Default: the folder `artifacts` in `PENSTOCK_HOME`."""

    sheets_credentials: Path | None = None
    """`PENSTOCK_SHEETS_CREDENTIALS`: the credentials file of the Google account that accesses sheets."""

    sheets_url: str | None = None
    """`PENSTOCK_SHEETS_URL`: the base URL of another Sheets API, such as the simulator's. Tokens are
    requested from its `/token`."""

    storage_secret: str | None = field(default=None, repr=False)
    """`PENSTOCK_STORAGE_SECRET`: the secret that signs URLs of local files, at least 32 bytes. Default:
    generated and kept in `PENSTOCK_HOME`. Servers on several machines need the same secret."""

    max_url_seconds: float = 604_800
    """`PENSTOCK_MAX_URL_SECONDS`: the longest lifetime of a signed URL, from 60 to 604800 (a week, the
    default). Anyone who has the URL can read the file."""

    public_url: str | None = None
    """`PENSTOCK_PUBLIC_URL`: the address under which browsers reach the server, such as
    `https://jobs.example.org`, without a path. Links and cookies follow from it."""

    allowed_hosts: tuple[str, ...] = ()
    """`PENSTOCK_ALLOWED_HOSTS`: host names that requests may name, separated by commas. Default: that of
    `PENSTOCK_PUBLIC_URL`; without it any."""

    oidc_issuer: str | None = None
    """`PENSTOCK_OIDC_ISSUER`: the OpenID Connect issuer that users of the dashboard sign in with."""

    oidc_client_id: str | None = None
    """`PENSTOCK_OIDC_CLIENT_ID`: the dashboard's client id at the issuer."""

    oidc_client_secret: str | None = field(default=None, repr=False)
    """`PENSTOCK_OIDC_CLIENT_SECRET`: the secret of that client. Default: a public client, with PKCE only."""

    oidc_name: str = "single sign-on"
    """`PENSTOCK_OIDC_NAME`: the name of the issuer on the sign-in page."""

    oidc_operators: tuple[str, ...] = ()
    """`PENSTOCK_OIDC_OPERATORS`: subjects or verified e-mail addresses that sign in as operators, separated
    by commas. Default: none."""

    smtp_url: str | None = field(default=None, repr=False)
    """`PENSTOCK_SMTP_URL`: the mail server for notifications, `smtp://user:password@host:587?tls=starttls`
    (or `tls=tls`, `tls=none`)."""

    mail_from: str | None = None
    """`PENSTOCK_MAIL_FROM`: the sender's address of notifications. Mandatory with `PENSTOCK_SMTP_URL`."""

    allow_private_webhooks: bool = False
    """`PENSTOCK_ALLOW_PRIVATE_WEBHOOKS`: `1` or `true` lets webhooks of tenants reach addresses of your own
    network. For tests and for installations whose tenants you trust."""

    stripe_key: str | None = field(default=None, repr=False)
    """`PENSTOCK_STRIPE_KEY`: the secret key of the Stripe account. Without it there is no billing."""

    stripe_webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    """`PENSTOCK_STRIPE_WEBHOOK_SECRET`: the signing secret of the webhook endpoint; several during a
    rotation, separated by commas. Mandatory with `PENSTOCK_STRIPE_KEY`."""

    stripe_url: str | None = None
    """`PENSTOCK_STRIPE_URL`: the base URL of another Stripe API, such as the simulator's."""

    stripe_live: bool = False
    """`PENSTOCK_STRIPE_LIVE`: `1` or `true` for a live key. Events of the other mode are ignored."""

    shield_url: str | None = None
    """`PENSTOCK_SHIELD_URL`: the endpoint of Azure AI Content Safety, whose prompt shield screens texts of
    guarded bulk types. Default: patterns on this machine only."""

    shield_key: str | None = field(default=None, repr=False)
    """`PENSTOCK_SHIELD_KEY`: the key of that endpoint. Mandatory with `PENSTOCK_SHIELD_URL`."""

    telemetry_url: str | None = None
    """`PENSTOCK_TELEMETRY_URL`: the PostHog-compatible server for product events. Default: none are sent."""

    telemetry_key: str | None = field(default=None, repr=False)
    """`PENSTOCK_TELEMETRY_KEY`: the key of the project at that server."""

    master_keys: tuple[bytes, ...] = field(default=(), repr=False)
    """`PENSTOCK_MASTER_KEY`: the key that encrypts keys of providers, 32 bytes as base64; several during a
    rotation, separated by commas: the first encrypts. `PENSTOCK_MASTER_KEY_FILE` names a file with it."""

    traces: bool = False
    """`PENSTOCK_TRACES`: `1` or `true` makes OpenTelemetry spans for starts and attempts. Needs the extra
    `otel`."""

    cells_file: Path | None = None
    """`PENSTOCK_CELLS`: a TOML file with the addresses of the other databases, if there are several: a table
    per cell, `[1]` with `database_url` and `api_url`."""

    url: str | None = None
    """`PENSTOCK_URL`: the base URL of the API for `penstock.Client`."""

    key: str | None = field(default=None, repr=False)
    """`PENSTOCK_KEY`: the API key or user token for `penstock.Client`."""


def read(environment: Mapping[str, str]) -> Settings:
    """Read settings from a mapping such as `os.environ`. An empty value counts as unset."""
    listen = environment.get("PENSTOCK_LISTEN") or "auto"
    if listen not in ("auto", "on", "off"):
        raise Invalid(f"PENSTOCK_LISTEN must be auto, on or off (got {listen!r})")
    return Settings(
        database_url=environment.get("DATABASE_URL") or None,
        home=Path(environment.get("PENSTOCK_HOME") or ".penstock"),
        listen=listen,
        api_url=environment.get("PENSTOCK_API_URL") or None,
        jwt_secret=_secret("PENSTOCK_JWT_SECRET", environment),
        jwks_url=_jwks_url(environment.get("PENSTOCK_JWKS_URL"), environment.get("PENSTOCK_JWT_ISSUER")),
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
        max_url_seconds=_seconds("PENSTOCK_MAX_URL_SECONDS", environment, 604_800),
        public_url=(public_url := _public_url(environment.get("PENSTOCK_PUBLIC_URL"))),
        allowed_hosts=_hosts(environment.get("PENSTOCK_ALLOWED_HOSTS"), public_url),
        **_oidc(environment, public_url),
        smtp_url=_smtp_url(environment.get("PENSTOCK_SMTP_URL"), environment.get("PENSTOCK_MAIL_FROM")),
        mail_from=environment.get("PENSTOCK_MAIL_FROM") or None,
        allow_private_webhooks=_flag("PENSTOCK_ALLOW_PRIVATE_WEBHOOKS", environment),
        traces=_flag("PENSTOCK_TRACES", environment),
        **_stripe(environment),
        **_shield(environment),
        telemetry_url=_telemetry_url(environment.get("PENSTOCK_TELEMETRY_URL")),
        telemetry_key=environment.get("PENSTOCK_TELEMETRY_KEY") or None,
        master_keys=_master_keys(environment),
        cells_file=Path(cells) if (cells := environment.get("PENSTOCK_CELLS")) else None,
        url=environment.get("PENSTOCK_URL") or None,
        key=environment.get("PENSTOCK_KEY") or None,
    )


def _public_url(text: str | None) -> str | None:
    if not text:
        return None
    url = text.rstrip("/")
    if not re.fullmatch(r"https?://[A-Za-z0-9.-]+(:\d+)?|https?://\[[0-9a-f:]+\](:\d+)?", url):
        raise Invalid(
            f"PENSTOCK_PUBLIC_URL must be a URL without a path (got {text!r})",
            hint="Such as https://jobs.example.org.",
        )
    return url


def _hosts(text: str | None, public_url: str | None) -> tuple[str, ...]:
    """The host names that requests may name, without ports, in lower case."""
    given = [each.strip().lower() for each in (text or "").split(",") if each.strip()]
    if not given and public_url:
        authority = public_url.partition("://")[2]
        given = [authority.partition("]")[0] + "]" if authority[0] == "[" else authority.partition(":")[0]]
    return tuple(each.lower() for each in given)


def _oidc(environment: Mapping[str, str], public_url: str | None) -> dict[str, Any]:
    issuer = environment.get("PENSTOCK_OIDC_ISSUER") or None
    if issuer is None:
        return {}
    if not re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", issuer):
        raise Invalid(f"PENSTOCK_OIDC_ISSUER must be an https URL (got {issuer!r})")
    if not environment.get("PENSTOCK_OIDC_CLIENT_ID") or not public_url:
        raise Invalid("PENSTOCK_OIDC_ISSUER requires PENSTOCK_OIDC_CLIENT_ID and PENSTOCK_PUBLIC_URL")
    operators = environment.get("PENSTOCK_OIDC_OPERATORS", "").split(",")
    return {
        "oidc_issuer": issuer,
        "oidc_client_id": environment["PENSTOCK_OIDC_CLIENT_ID"],
        "oidc_client_secret": environment.get("PENSTOCK_OIDC_CLIENT_SECRET") or None,
        "oidc_name": environment.get("PENSTOCK_OIDC_NAME") or "single sign-on",
        "oidc_operators": tuple(each.strip() for each in operators if each.strip()),
    }


def _stripe(environment: Mapping[str, str]) -> dict[str, Any]:
    key = environment.get("PENSTOCK_STRIPE_KEY") or None
    if key is None:
        return {}
    texts = environment.get("PENSTOCK_STRIPE_WEBHOOK_SECRET", "").split(",")
    secrets = tuple(each.strip() for each in texts if each.strip())
    if not secrets:
        raise Invalid("PENSTOCK_STRIPE_KEY requires PENSTOCK_STRIPE_WEBHOOK_SECRET")
    is_live = _flag("PENSTOCK_STRIPE_LIVE", environment)
    if is_live != ("_live_" in key):
        raise Invalid(
            "PENSTOCK_STRIPE_LIVE does not match PENSTOCK_STRIPE_KEY",
            hint="Set PENSTOCK_STRIPE_LIVE=1 with a live key (sk_live_…), and only with one.",
        )
    return {
        "stripe_key": key,
        "stripe_webhook_secrets": secrets,
        "stripe_url": environment.get("PENSTOCK_STRIPE_URL") or None,
        "stripe_live": is_live,
    }


def _shield(environment: Mapping[str, str]) -> dict[str, Any]:
    url, key = environment.get("PENSTOCK_SHIELD_URL"), environment.get("PENSTOCK_SHIELD_KEY")
    if not url:
        return {}
    if not re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", url):
        raise Invalid(f"PENSTOCK_SHIELD_URL must be an https URL (got {url!r})")
    if not key:
        raise Invalid("PENSTOCK_SHIELD_URL requires PENSTOCK_SHIELD_KEY")
    return {"shield_url": url, "shield_key": key}


def _telemetry_url(text: str | None) -> str | None:
    if text and not re.match(r"https?://[^/?#]", text):
        raise Invalid(f"PENSTOCK_TELEMETRY_URL must be an http or https URL (got {text!r})")
    return text or None


def _master_keys(environment: Mapping[str, str]) -> tuple[bytes, ...]:
    text, path = environment.get("PENSTOCK_MASTER_KEY", ""), environment.get("PENSTOCK_MASTER_KEY_FILE")
    if path and not text:
        try:
            text = Path(path).read_text()
        except (OSError, ValueError) as error:
            raise Invalid(f"cannot read PENSTOCK_MASTER_KEY_FILE {path!r}: {error}") from error
    keys: list[bytes] = []
    for part in re.split(r"[,\s]+", text.strip()) if text.strip() else ():
        try:
            keys.append(base64.b64decode(part, validate=True))
        except ValueError:
            keys.append(b"")
        if len(keys[-1]) != 32:
            # The value itself is a secret and does not belong in an error.
            raise Invalid(
                "PENSTOCK_MASTER_KEY must be 32 bytes as base64",
                hint="Generate one with: openssl rand -base64 32",
            )
    return tuple(keys)


def _flag(name: str, environment: Mapping[str, str]) -> bool:
    text = environment.get(name, "").lower()
    if text not in ("", "0", "1", "false", "true"):
        raise Invalid(f"{name} must be true or false (got {text!r})")
    return text in ("1", "true")


def _seconds(name: str, environment: Mapping[str, str], default: float) -> float:
    text = environment.get(name) or f"{default}"
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 60 <= int(text) <= default:
        raise Invalid(f"{name} must be between 60 and {default:.0f} seconds (got {text!r})")
    return float(text)


def _secret(name: str, environment: Mapping[str, str]) -> str | None:
    text = environment.get(name)
    if text and len(text.encode()) < 32:
        raise Invalid(
            f"{name} must have at least 32 bytes (got {len(text.encode())})",
            hint="Generate one with: openssl rand -hex 32",
        )
    return text or None


def _smtp_url(text: str | None, sender: str | None) -> str | None:
    if text and not sender:
        raise Invalid(
            "PENSTOCK_SMTP_URL requires PENSTOCK_MAIL_FROM",
            hint="Set it to the address that e-mail comes from.",
        )
    return text or None


def _jwks_url(text: str | None, issuer: str | None) -> str | None:
    if not text:
        return None
    if not re.match(r"https://|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/", text):
        raise Invalid(
            f"PENSTOCK_JWKS_URL must be an https URL (got {text!r})",
            hint="Plain http is allowed only for this machine: others could replace the keys in transit.",
        )
    if not issuer:
        raise Invalid(
            "PENSTOCK_JWKS_URL requires PENSTOCK_JWT_ISSUER",
            hint="Set it to the `iss` claim of your users' tokens.",
        )
    return text


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only. Names other than localhost are not trusted."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@cache
def settings() -> Settings:
    """The settings of this process."""
    return read(os.environ)
