"""The HTTP client: `Client` blocks, `AsyncClient` is awaited. Both share one implementation."""

from __future__ import annotations

from typing import Self
from uuid import UUID

from penstock.client.artifacts import Artifacts
from penstock.client.billing import Billing
from penstock.client.bulks import Bulks
from penstock.client.core import Core
from penstock.client.dead_letters import DeadLetters
from penstock.client.invitations import Invitations
from penstock.client.jobs import Jobs, StartedJob
from penstock.client.money import Costs, Usage
from penstock.client.notifications import Notifications
from penstock.client.operations import Providers, Workers
from penstock.client.schedules import Schedules
from penstock.client.task_operations import Operations
from penstock.client.tenants import Keys, Members, Tenants
from penstock.client.transport import IO, Awaiting, Blocking, Resource, call, run
from penstock.client.waits import Waits
from penstock.errors import Invalid
from penstock.settings import settings
from penstock.types import Me

__all__ = ["AsyncClient", "Client", "StartedJob"]


class _Resources(Resource[IO]):
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
                "base_url is missing",
                hint="Pass it, as in Client('https://jobs.example.org'), or set PENSTOCK_URL.",
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
        self.waits = Waits(core)
        self.operations = Operations(core)
        self.schedules = Schedules(core)
        self.notifications = Notifications(core)
        self.usage = Usage(core)
        self.costs = Costs(core)
        self.billing = Billing(core)
        self.providers = Providers(core)
        self.workers = Workers(core)
        self.tenants = Tenants(core)
        self.members = Members(core)
        self.invitations = Invitations(core)
        self.keys = Keys(core)

    def __repr__(self) -> str:
        return f"<penstock.{type(self).__name__} {self._core.base_url}>"

    @call
    async def me(self) -> Me:
        """The caller and its tenants. A service credential lists no tenants."""
        return await self._core.get(Me, "/api/me")


class Client(_Resources[Blocking]):
    """A client of the Penstock API. Thread-safe. Close it with `close()` or use `with Client() as client:`.

    `base_url` and `key`: default to PENSTOCK_URL and PENSTOCK_KEY. `tenant`: default tenant of all calls.
    `timeout`: seconds to wait for the server at each step. `retries`: how often to repeat a request, with the
    same idempotency key, when the response is lost or the server is busy. `max_bytes`: the largest response
    to read into memory. `allow_http`: allow sending the key unencrypted over a network.
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


class AsyncClient(_Resources[Awaiting]):
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
