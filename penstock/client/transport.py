"""Blocking and async I/O, and decorators for methods that are written once for both.

Everything above this module is `async`. `Awaiting` uses the event loop. `Blocking` makes blocking calls, so
that a coroutine on it never suspends and runs to its end in one step, without a loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import httpx

if TYPE_CHECKING:
    from penstock.client.core import Core

P = ParamSpec("P")
T = TypeVar("T")

# Requests to this machine bypass proxies, which would see unencrypted keys.
_LOCAL: dict[str, None] = {"all://localhost": None, "all://127.0.0.1": None, "all://[::1]": None}


class Blocking:
    """Blocking I/O."""

    def __init__(self) -> None:
        self._http = httpx.Client(follow_redirects=False, mounts=_LOCAL)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the response's headers."""
        return self._http.send(request, stream=True)

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """Stream the response's body."""
        for chunk in response.iter_raw():
            yield chunk

    async def close(self, response: httpx.Response) -> None:
        """Close the response."""
        response.close()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 this class blocks by design

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function, such as a file operation."""
        return function(*args, **kwargs)

    def body(self, chunks: AsyncGenerator[bytes]) -> Iterator[bytes]:
        """A request body for httpx."""
        return iterate(chunks)

    async def end(self) -> None:
        """Close all connections."""
        self._http.close()


class Awaiting:
    """I/O in the event loop."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(follow_redirects=False, mounts=_LOCAL)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the response's headers."""
        return await self._http.send(request, stream=True)

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """Stream the response's body."""
        async for chunk in response.aiter_raw():
            yield chunk

    async def close(self, response: httpx.Response) -> None:
        """Close the response."""
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function, such as a file operation."""
        return await asyncio.to_thread(function, *args, **kwargs)

    def body(self, chunks: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """A request body for httpx."""
        return chunks

    async def end(self) -> None:
        """Close all connections."""
        await self._http.aclose()


IO = TypeVar("IO", Blocking, Awaiting)


class Resource(Generic[IO]):
    """A group of methods of a client, such as `client.jobs`."""

    def __init__(self, core: Core[IO]) -> None:
        self._core = core


class call(Generic[P, T]):
    """Turns a coroutine function into a method: blocking on a `Client`, awaited on an `AsyncClient`."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, resource: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: Resource[Awaiting], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: Any) -> Any:
        if resource is None:
            return self
        bound = cast("Callable[..., Coroutine[Any, Any, T]]", self._function.__get__(resource))
        if isinstance(resource._core.io, Awaiting):  # pyright: ignore[reportPrivateUsage]
            return bound

        @wraps(bound)
        def blocking(*args: P.args, **kwargs: P.kwargs) -> T:
            return run(bound(*args, **kwargs))

        return blocking


class listing(Generic[P, T]):
    """Turns an async generator function into a method that returns an iterator; async on an `AsyncClient`."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncGenerator[T]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, resource: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Blocking], owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, resource: Resource[Awaiting], owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: Any) -> Any:
        if resource is None:
            return self
        bound = cast("Callable[..., AsyncGenerator[T]]", self._function.__get__(resource))
        if isinstance(resource._core.io, Awaiting):  # pyright: ignore[reportPrivateUsage]
            return bound

        @wraps(bound)
        def blocking(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return iterate(bound(*args, **kwargs))

        return blocking


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on `Blocking`: it never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError("a blocking coroutine must not suspend")


def iterate(steps: AsyncGenerator[T]) -> Generator[T]:
    """Run an async generator on `Blocking`."""
    try:
        while True:
            try:
                step = run(steps.__anext__())
            except StopAsyncIteration:
                return
            yield step
    finally:
        run(steps.aclose())
