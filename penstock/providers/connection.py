"""A connection to a provider: address, key and HTTP client. The only place that decides who gets a key.

A key is sent to the host that it belongs to, over https, and nowhere else: not to another address under the
provider's name, not to this machine, and not to the target of a redirect, which is never followed. A proxy of
the environment tunnels the encrypted connection, so it never sees a key.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from penstock.errors import Invalid
from penstock.providers.hosts import OWN
from penstock.settings import is_loopback

SECONDS = 110.0
"""How long a call waits for its answer."""

NO_KEY = "none"
"""What clients send that insist on a key, where none may be sent."""

_ALL = ("http://", "https://", "all://")


@dataclass(frozen=True, slots=True)
class Key:
    """A secret and the host that it belongs to."""

    host: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a provider is, and with which key."""

    provider: str
    url: str
    key: Key | None = None
    seconds: float = SECONDS

    @property
    def host(self) -> str:
        """The host of the address."""
        return host_of(self.url)

    @property
    def is_local(self) -> bool:
        """Whether the address is on this machine: a simulator, or a server of your own."""
        return is_loopback(self.host)

    def secret_for(self, url: str) -> str | None:
        """The key, if this URL is on the key's host and encrypted; else None."""
        if self.key is None or host_of(url) != self.key.host:
            return None
        parts = urlsplit(url)
        # Providers that are known by name have one port. Another server may have any.
        is_own_port = parts.port in (None, 443) or self.provider not in OWN
        return self.key.secret if parts.scheme == "https" and is_own_port else None

    @property
    def secret(self) -> str | None:
        """The key, if the provider's address may get it."""
        return self.secret_for(self.url)

    def http(self, **options: Any) -> httpx.AsyncClient:
        """An HTTP client without redirects; a proxy of the environment is for other machines only."""
        chosen: dict[str, Any] = {**self.http_options(), "timeout": self.seconds, **options}
        return httpx.AsyncClient(**chosen)

    def http_options(self) -> dict[str, Any]:
        """What every HTTP client of a provider is created with."""
        return {
            "verify": _tls(),
            "trust_env": not self.is_local,
            "follow_redirects": False,
            "event_hooks": {"request": [self._guard]},
            # Anthropic's client takes proxies from the environment even without trust_env.
            **({"mounts": dict.fromkeys(_ALL)} if self.is_local else {}),
        }

    def client_headers(self, variable: str, omitted: Any) -> dict[str, Any]:
        """Headers for an official client: the key, and none of those in this environment variable.

        The clients would send them, which may be secrets, to any address.
        """
        lines = os.environ.get(variable, "").split("\n")
        named = (line.partition(":")[0].strip() for line in lines if ":" in line)
        return {**dict.fromkeys(named, omitted), "Authorization": f"Bearer {self.secret or NO_KEY}"}

    async def _guard(self, request: httpx.Request) -> None:
        """Stop any request that would carry the key to another host."""
        if self.key is None or self.secret_for(str(request.url)) is not None:
            return
        if any(self.key.secret in value for value in (str(request.url), *request.headers.values())):
            raise Invalid(
                f"the key of {self.provider} is for {self.key.host} only", code="key_for_other_host"
            )


def host_of(url: str) -> str:
    """The host of a URL, in lower case."""
    try:
        parts = urlsplit(url)
        # The port raises an error if it is not a number up to 65535.
        return "" if parts.port == 0 else (parts.hostname or "").lower()
    except ValueError:
        return ""


def checked_url(url: str) -> str:
    """The URL without a slash at its end; raises Invalid if it is none."""
    # The host is empty if the URL cannot be split.
    if not host_of(url) or (parts := urlsplit(url)).scheme not in ("http", "https") or "@" in parts.netloc:
        # A password before the @ is not shown.
        shown = f"…@{url.rpartition('@')[2]}" if "@" in url else url
        raise Invalid(
            f"a provider's URL must be http or https, without a user (got {shown!r})", code="invalid_address"
        )
    return url.rstrip("/")


@cache
def _tls() -> ssl.SSLContext:
    # Created once, because loading the certificates is slow.
    return ssl.create_default_context()
