"""The two ways to wait, and methods that are written once for both.

Everything above this module is `async`. `Awaiting` really waits in the event loop. `Blocking` does the same
with blocking calls, so that a coroutine on it never suspends: it runs to its end in one step, without a loop.
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

# A way to this machine does not lead over a proxy: it would see what is not encrypted.
_LOCAL: dict[str, None] = {"all://localhost": None, "all://127.0.0.1": None, "all://[::1]": None}


class Blocking:
    """Waits where it stands."""

    def __init__(self) -> None:
        self._http = httpx.Client(follow_redirects=False, mounts=_LOCAL)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, of which only the head has been read."""
        return self._http.send(request, stream=True)

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The answer's body as it comes."""
        for chunk in response.iter_raw():
            yield chunk

    async def close(self, response: httpx.Response) -> None:
        """Read no more of it."""
        response.close()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)  # noqa: ASYNC251 nobody else is waiting here

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with a file."""
        return function(*args, **kwargs)

    def body(self, chunks: AsyncGenerator[bytes]) -> Iterator[bytes]:
        """What is sent, as httpx takes it."""
        return iterate(chunks)

    async def end(self) -> None:
        """Close all connections."""
        self._http.close()


class Awaiting:
    """Waits in the event loop."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(follow_redirects=False, mounts=_LOCAL)

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, of which only the head has been read."""
        return await self._http.send(request, stream=True)

    async def chunks(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        """The answer's body as it comes."""
        async for chunk in response.aiter_raw():
            yield chunk

    async def close(self, response: httpx.Response) -> None:
        """Read no more of it."""
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def work(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with a file."""
        return await asyncio.to_thread(function, *args, **kwargs)

    def body(self, chunks: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        """What is sent, as httpx takes it."""
        return chunks

    async def end(self) -> None:
        """Close all connections."""
        await self._http.aclose()


IO = TypeVar("IO", Blocking, Awaiting)


class Noun(Generic[IO]):
    """What a client can be asked about."""

    def __init__(self, core: Core[IO]) -> None:
        self._core = core


class call(Generic[P, T]):
    """Makes a coroutine a method that blocks on a `Client`, and is awaited on an `AsyncClient`."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, noun: Noun[Blocking], owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, noun: Noun[Awaiting], owner: Any) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: Any) -> Any:
        if noun is None:
            return self
        bound = cast("Callable[..., Coroutine[Any, Any, T]]", self._function.__get__(noun))
        if isinstance(noun._core.io, Awaiting):  # pyright: ignore[reportPrivateUsage]
            return bound

        @wraps(bound)
        def blocking(*args: P.args, **kwargs: P.kwargs) -> T:
            return run(bound(*args, **kwargs))

        return blocking


class listing(Generic[P, T]):
    """Makes an async generator a method that gives an iterator, async on an `AsyncClient`."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncGenerator[T]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, noun: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, noun: Noun[Blocking], owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, noun: Noun[Awaiting], owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, noun: Noun[Any] | None, owner: Any) -> Any:
        if noun is None:
            return self
        bound = cast("Callable[..., AsyncGenerator[T]]", self._function.__get__(noun))
        if isinstance(noun._core.io, Awaiting):  # pyright: ignore[reportPrivateUsage]
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
    raise AssertionError("what blocks does not suspend")


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
