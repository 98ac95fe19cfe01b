"""Providers on their own addresses, without a network: answers are recorded, and requests are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.providers.connection import Connection
from penstock.providers.hosts import OWN

RECORDED = Path(__file__).parent / "recorded"


Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Wire:
    """What clients send, and what they get: a transport for the HTTP libraries of all clients."""

    respond: Callable[[Any], Reply]
    requests: list[Any] = field(default_factory=list[Any])

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        self.requests.append(request)
        status, headers, body = self.respond(request)
        # Clients have different HTTP libraries with the same names.
        library = sys.modules[type(request).__module__.partition(".")[0]]
        return library.Response(status, headers=headers, content=body, request=request)

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        pass

    def sent(self, number: int = -1) -> Any:
        return json.loads(self.requests[number].content)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """All requests of adapters end here instead of on the network; everything else is as always."""
    for known in OWN.values():
        monkeypatch.delenv(known.variable, raising=False)
    made = Wire(lambda request: (500, {}, b""))
    options = Connection.http_options

    def without_network(self: Connection) -> dict[str, Any]:
        return {**options(self), "transport": made, "trust_env": False}

    monkeypatch.setattr(Connection, "http_options", without_network)
    return made


def recording(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text())


def replay(wire: Wire, name: str) -> dict[str, Any]:
    """Answer every request with a recorded response."""
    found = recording(name)
    headers = {"content-type": "application/json", **found.get("headers", {})}
    wire.respond = lambda request: (found["status"], headers, json.dumps(found["body"]).encode())
    return found
