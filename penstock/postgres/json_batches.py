"""Batches: send many items as JSON arrays of a bounded size, while the next array is read."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from itertools import islice
from typing import Any

from penstock.postgres.db import Json

_BATCH_BYTES = 8_000_000


async def send_in_batches(
    items: Iterable[Any],
    send: Callable[[Json], Coroutine[Any, Any, Any]],
    *,
    max_items: int,
    dumps: Callable[[Any], str] = json.dumps,
    in_thread: bool = False,
) -> int:
    """Send items as JSON arrays of at most `max_items` and a few megabytes; returns the number of batches.

    The next batch is read while the database works on one: in a thread, if reading may take long.
    """
    sending: asyncio.Task[Any] | None = None
    count = 0
    try:
        async for batch in _batches(items, max_items, dumps, in_thread):
            if sending is not None:
                await sending
            sending = asyncio.create_task(send(batch))
            count += 1
        if sending is not None:
            await sending
    finally:
        # After an error too, no statement may still run when the caller ends the transaction.
        if sending is not None and not sending.done():
            await asyncio.wait([sending])
    return count


def json_arrays(items: Iterable[Any], *, max_items: int, dumps: Callable[[Any], str]) -> Iterator[str]:
    """The batches of `send_in_batches` as JSON texts."""
    stream = iter(items)
    while deque(_fill_batch([], texts := list[str](), stream, max_items, dumps), 0) or texts:
        yield f"[{','.join(texts)}]"


async def _batches(
    items: Iterable[Any], max_items: int, dumps: Callable[[Any], str], in_thread: bool
) -> AsyncGenerator[Json]:
    stream = iter(items)
    while True:
        batch: list[Any] = []
        texts: list[str] = []
        steps = _fill_batch(batch, texts, stream, max_items, dumps)
        if in_thread:
            await asyncio.to_thread(deque, steps, 0)
        else:
            for _ in steps:
                # Lets the event loop send the previous batch.
                await asyncio.sleep(0)
        if not batch:
            return
        yield _as_json_array(batch, texts)


def _fill_batch(
    batch: list[Any], texts: list[str], stream: Iterator[Any], max_items: int, dumps: Callable[[Any], str]
) -> Iterator[None]:
    """Read a batch in steps. Each item is serialised once."""
    size, step = 0, 1
    while size < _BATCH_BYTES and (some := list(islice(stream, min(step, max_items - len(batch))))):
        batch += some
        texts.append(dumps(some)[1:-1])
        size += len(texts[-1])
        # Large items are read one by one, so that a batch never exceeds its size by much.
        step = min(100, 2 * step) if len(texts[-1]) < _BATCH_BYTES // 100 else max(1, step // 2)
        yield


def _as_json_array(batch: list[Any], texts: list[str]) -> Json:
    # Keeps the items too, so that an error can name the field that holds a bad value.
    return Json(batch, dumps=lambda _: f"[{','.join(texts)}]")
