"""Streams of bytes on their way into storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable

from penstock.storage.content import HEAD_BYTES


async def peek(data: bytes | AsyncIterable[bytes]) -> tuple[bytes, bytes | AsyncIterable[bytes]]:
    """The first bytes, and the whole data including them."""
    if isinstance(data, bytes):
        return data[:HEAD_BYTES], data
    source, head = aiter(data), b""
    while len(head) < HEAD_BYTES and (chunk := await anext(source, None)) is not None:
        head += chunk

    async def whole() -> AsyncGenerator[bytes]:
        yield head
        async for chunk in source:
            yield chunk

    return head[:HEAD_BYTES], whole()


async def confirmed(
    chunks: AsyncIterable[bytes], confirm: Callable[[], Awaitable[object]]
) -> AsyncGenerator[bytes]:
    """The chunks. The end is held back until it is confirmed: storage replaces a file only then."""
    async for chunk in chunks:
        yield chunk
    await confirm()
