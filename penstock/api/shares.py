"""Fair shares: a fixed number of slots, of which one tenant and one caller can hold only a part.

Requests above their share wait in a queue of their tenant. A slot that becomes free goes to the waiting
tenant that holds the fewest, so a tenant with a thousand requests delays another tenant by one request at
most.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from penstock.errors import Limited, Unavailable

RETRY_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Share:
    """The size of a shared resource, and of one tenant's part of it."""

    slots: int
    per_tenant: int
    per_caller: int
    waiting: int
    """Requests of one tenant that can wait."""
    seconds: float
    """How long a request waits for a slot."""


@dataclass(eq=False, slots=True)
class _Waiter:
    caller: str
    granted: asyncio.Future[None]


class Shares:
    """The slots of one resource of this process."""

    def __init__(self, what: str, share: Share) -> None:
        self._what = what
        self._share = share
        self._used = 0
        self._by_tenant: Counter[str] = Counter()
        self._by_caller: Counter[str] = Counter()
        # In the order in which the tenants were served last.
        self._queues: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @asynccontextmanager
    async def take(self, tenant: str, caller: str) -> AsyncGenerator[None]:
        """Hold a slot. Raises Limited if the tenant or caller has used up its share."""
        await self.acquire(tenant, caller)
        try:
            yield
        finally:
            self.release(tenant, caller)

    def held(self, tenant: str) -> int:
        """The number of slots that a tenant holds."""
        return self._by_tenant[tenant]

    def waiting(self, tenant: str) -> int:
        """The number of requests of a tenant that wait for a slot."""
        return len(self._queues.get(tenant, ()))

    async def acquire(self, tenant: str, caller: str) -> None:
        """Take a slot, to be given back by `release`."""
        if tenant not in self._queues and self._is_free(tenant, caller):
            self._grant(tenant, caller)
            return
        queue = self._queues.setdefault(tenant, deque())
        if len(queue) >= self._share.waiting:
            raise self._used_up()
        waiter = _Waiter(caller, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        # The tenant's queue may have requests of another caller only, who is at its limit.
        self._serve()
        try:
            async with asyncio.timeout(self._share.seconds):
                await waiter.granted
        except BaseException as error:
            is_at_limit = not self._is_within_share(tenant, caller)
            self._leave(tenant, waiter)
            if not isinstance(error, TimeoutError):
                raise
            raise self._used_up() if is_at_limit else self._all_busy() from None

    def _is_within_share(self, tenant: str, caller: str) -> bool:
        return (
            self._by_tenant[tenant] < self._share.per_tenant
            and self._by_caller[caller] < self._share.per_caller
        )

    def _is_free(self, tenant: str, caller: str) -> bool:
        return self._used < self._share.slots and self._is_within_share(tenant, caller)

    def _grant(self, tenant: str, caller: str) -> None:
        self._used += 1
        self._by_tenant[tenant] += 1
        self._by_caller[caller] += 1

    def release(self, tenant: str, caller: str) -> None:
        """Give a slot back."""
        self._used -= 1
        for counts, name in ((self._by_tenant, tenant), (self._by_caller, caller)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        self._serve()

    def _leave(self, tenant: str, waiter: _Waiter) -> None:
        """End a wait without using the slot, which may have been granted just now."""
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.release(tenant, waiter.caller)
        elif queue := self._queues.get(tenant):
            if waiter in queue:
                queue.remove(waiter)
            if not queue:
                del self._queues[tenant]

    def _serve(self) -> None:
        """Give free slots to waiting requests: first to the tenant that holds the fewest."""
        while self._used < self._share.slots:
            # `sorted` keeps the order of tenants that hold equally many.
            for tenant in sorted(self._queues, key=lambda name: self._by_tenant[name]):
                if waiter := self._next_of(tenant):
                    break
            else:
                return
            self._grant(tenant, waiter.caller)
            waiter.granted.set_result(None)

    def _next_of(self, tenant: str) -> _Waiter | None:
        """Remove and return the tenant's first waiting request that is within its share."""
        queue = self._queues[tenant]
        for waiter in queue:
            if not waiter.granted.done() and self._is_within_share(tenant, waiter.caller):
                queue.remove(waiter)
                self._queues.move_to_end(tenant)
                if not queue:
                    del self._queues[tenant]
                return waiter
        return None

    def _used_up(self) -> Limited:
        return Limited(
            f"this tenant or caller already uses its share of {self._what}",
            code="share_used_up",
            hint="Send fewer requests at once.",
            details={"retry_after_seconds": RETRY_SECONDS},
        )

    def _all_busy(self) -> Unavailable:
        return Unavailable(
            f"no {self._what} became free within {self._share.seconds:g} seconds",
            details={"retry_after_seconds": RETRY_SECONDS},
        )


@dataclass(frozen=True, slots=True)
class ByteShare:
    """The bytes of request bodies that a process holds at once, and one tenant's part of them."""

    total: int
    per_tenant: int
    per_caller: int


class Flights:
    """The bytes of requests that have arrived and are not answered yet."""

    def __init__(self, share: ByteShare) -> None:
        self._share = share
        self._used = 0
        self._by_tenant: Counter[str] = Counter()
        self._by_caller: Counter[str] = Counter()

    @contextmanager
    def open(self, tenant: str, caller: str) -> Generator[Flight]:
        """Count the bytes of a request until its end."""
        flight = Flight(self, tenant, caller)
        try:
            yield flight
        finally:
            flight.close()

    def held(self, tenant: str) -> int:
        """The bytes of a tenant in flight."""
        return self._by_tenant[tenant]

    def add(self, tenant: str, caller: str, size: int) -> None:
        """Count bytes that arrive. Raises Limited or Unavailable if they are too many."""
        if (
            self._by_tenant[tenant] + size > self._share.per_tenant
            or self._by_caller[caller] + size > self._share.per_caller
        ):
            raise Limited(
                "the requests of this tenant or caller that are being received have too many bytes",
                code="share_used_up",
                hint="Send fewer requests at once.",
                details={"retry_after_seconds": RETRY_SECONDS},
            )
        if self._used + size > self._share.total:
            raise Unavailable(
                "the server receives too many bytes at once", details={"retry_after_seconds": RETRY_SECONDS}
            )
        self._change(tenant, caller, size)

    def remove(self, tenant: str, caller: str, size: int) -> None:
        """Forget the bytes of a request that has ended."""
        self._change(tenant, caller, -size)

    def _change(self, tenant: str, caller: str, size: int) -> None:
        self._used += size
        for counts, name in ((self._by_tenant, tenant), (self._by_caller, caller)):
            counts[name] += size
            if not counts[name]:
                del counts[name]


class Flight:
    """The bytes of one request."""

    def __init__(self, flights: Flights, tenant: str, caller: str) -> None:
        self._flights = flights
        self._names = tenant, caller
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes that arrive. Raises Limited or Unavailable if they are too many."""
        self._flights.add(*self._names, size)
        self._size += size

    def close(self) -> None:
        """Forget the bytes."""
        self._flights.remove(*self._names, self._size)
        self._size = 0
