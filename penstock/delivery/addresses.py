"""Which network addresses a webhook may reach.

A tenant chooses the URL, so it must not lead into the operator's network. The name is resolved once, every
address it resolves to is checked, and the request connects to one of the checked addresses: a name that
resolves to another address a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host name, as text."""

_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
# Not public, whatever the tables of this Python version say.
_BLOCKED = tuple(
    map(
        ip_network,
        ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "fec0::/10", "5f00::/16"),
    )
)
_PORTS = frozenset({80, 443})
_MIN_OTHER_PORT = 8080
_RESOLVE_SECONDS = 5.0


class Refused(Exception):
    """The URL must not be requested."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked URL: where to connect, and what to ask there."""

    scheme: str
    host: str
    """As the URL names it, for the Host header and for the certificate."""
    address: str
    port: int
    target: str
    """Path and query."""

    @property
    def url(self) -> str:
        """The URL with the checked address instead of the name."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.scheme}://{address}:{self.port}{self.target}"

    @property
    def host_header(self) -> str:
        """The name, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.scheme) else f"{host}:{self.port}"


async def check(url: str, *, allow_private: bool = False, resolve: Resolve | None = None) -> Endpoint:
    """Resolve and check a URL; raises Refused if it leads to an address that is not public."""
    scheme, host, port, target = _parts(url)
    if not allow_private and port not in _PORTS and port < _MIN_OTHER_PORT:
        raise Refused(f"port {port} is not allowed (allowed: 80, 443, and 8080 and above)")
    try:
        found = await asyncio.wait_for((resolve or _resolve)(host, port), _RESOLVE_SECONDS)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise LookupError(f"the name {host} cannot be resolved") from error
    if not found:
        raise LookupError(f"the name {host} has no address")
    for address in found:
        if not allow_private and not is_public(address):
            # The address itself is not repeated: the operator's network is not the tenant's business.
            raise Refused(f"{host} leads to an address that is not public")
    return Endpoint(scheme, host, found[0], port, target)


def is_public(text: str) -> bool:
    """Whether an address is on the public internet, also when it is wrapped in an IPv6 address."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        return all(is_public(str(inner)) for inner in _wrapped(address)) and _is_public(address)
    return _is_public(address)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    is_blocked = any(address in network for network in _BLOCKED if network.version == address.version)
    return address.is_global and not (is_blocked or address.is_multicast or address.is_reserved)


def _wrapped(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that a router or the kernel would reach through this one."""
    found = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    if address.teredo is not None:
        found.extend(address.teredo)
    packed = address.packed
    if any(address in network for network in _NAT64) or not any(packed[:12]):
        found.append(IPv4Address(packed[-4:]))
    return found


def _parts(url: str) -> tuple[str, str, int, str]:
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in url) or "\\" in url:
        raise Refused("the URL contains a space, control character or backslash")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Refused(f"invalid URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise Refused(f"the scheme must be http or https (got {parts.scheme!r})")
    if parts.username is not None or parts.password is not None:
        raise Refused("the URL must not contain a user name or password")
    if not host or "%" in host:
        raise Refused("the URL names no valid host")
    if port == 0:
        raise Refused("port 0 is not allowed")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, host, port or _default_port(parts.scheme), target


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


async def _resolve(host: str, port: int) -> list[str]:
    # The C library also reads odd spellings such as 0x7f.1 and 2130706433: its result is what gets checked.
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
