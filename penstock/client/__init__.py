"""The client over HTTP: `Client` blocks, `AsyncClient` is awaited; what they do is written once."""

from __future__ import annotations

from typing import Self
from uuid import UUID

from penstock.client.artifacts import Artifacts
from penstock.client.bulks import Bulks
from penstock.client.core import Core
from penstock.client.dead_letters import DeadLetters
from penstock.client.jobs import Jobs, StartedJob
from penstock.client.money import Costs, Usage
from penstock.client.operations import Providers, Workers
from penstock.client.schedules import Schedules
from penstock.client.tenants import Keys, Members, Tenants
from penstock.client.transport import IO, Awaiting, Blocking, Noun, call, run
from penstock.errors import Invalid
from penstock.settings import settings
from penstock.types import Me

__all__ = ["AsyncClient", "Client", "StartedJob"]


class _Nouns(Noun[IO]):
    def __init__(
        self,
        io: IO,
        base_url: str | None,
        key: str | None,
        tenant: UUID | str | None,
        timeout: float,
        retries: int,
        max_bytes: int,
        allow_http: bool,
    ) -> None:
        address = base_url or settings().url
        if address is None:
            raise Invalid(
                "nothing says where the API is",
                hint="Client('https://jobs.example.org'), or set PENSTOCK_URL.",
                details={"field": "base_url"},
            )
        core = Core(
            io,
            base_url=address,
            key=key if key is not None else settings().key,
            tenant=tenant,
            timeout=timeout,
            retries=retries,
            max_bytes=max_bytes,
            allow_http=allow_http,
        )
        super().__init__(core)
        self.jobs = Jobs(core)
        self.bulks = Bulks(core)
        self.artifacts = Artifacts(core)
        self.dead_letters = DeadLetters(core)
        self.schedules = Schedules(core)
        self.usage = Usage(core)
        self.costs = Costs(core)
        self.providers = Providers(core)
        self.workers = Workers(core)
        self.tenants = Tenants(core)
        self.members = Members(core)
        self.keys = Keys(core)

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self._core.base_url}>"

    @call
    async def me(self) -> Me:
        """Who is asking, and in which tenants they are; of the service no tenants are listed."""
        return await self._core.get(Me, "/api/me")


class Client(_Nouns[Blocking]):
    """Asks a Penstock API. May be used by several threads; `with Client() as client:` closes it.

    `base_url` and `key` are taken from PENSTOCK_URL and PENSTOCK_KEY where they are not given. `tenant` is
    whose things are meant where a call does not say. `timeout`: seconds to wait for the server at each step.
    `retries`: how often a request is sent again, with the same idempotency key, when its answer is lost or
    the server is busy. `max_bytes`: the largest answer that is read into memory. `allow_http`: send the key
    over a network as plain text.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        tenant: UUID | str | None = None,
        timeout: float = 30,
        retries: int = 5,
        max_bytes: int = 64 << 20,
        allow_http: bool = False,
    ) -> None:
        super().__init__(Blocking(), base_url, key, tenant, timeout, retries, max_bytes, allow_http)

    def close(self) -> None:
        """Close all connections."""
        run(self._core.io.end())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Nouns[Awaiting]):
    """`Client` for async code: the same methods, awaited; lists are async iterators. For one event loop."""

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        tenant: UUID | str | None = None,
        timeout: float = 30,
        retries: int = 5,
        max_bytes: int = 64 << 20,
        allow_http: bool = False,
    ) -> None:
        super().__init__(Awaiting(), base_url, key, tenant, timeout, retries, max_bytes, allow_http)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._core.io.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
