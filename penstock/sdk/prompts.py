"""Prompts of an app: the active version from the database, cached, and the constant in the code without it.

summary = app.prompt("summary", "Summarize in {{words}} words:\\n{{text}}", model="claude-sonnet-4-5")

@app.task
async def summarize(ctx: Context, text: str) -> str:
    prompt = await ctx.aprompt(summary)
    ...prompt.render(words=50, text=text)...
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from penstock.contract import prompts
from penstock.errors import Invalid
from penstock.postgres import db
from penstock.types import Prompt, variables_of

R = TypeVar("R")
log = structlog.get_logger("penstock.prompts")
FRESH_SECONDS = 300
"""How long the active versions are kept before they are read again, give or take a tenth."""
RETRY_SECONDS = 15
"""When the database is asked again after it could not answer."""
ANSWER_SECONDS = 1.8
"""How long a caller waits for the database before it gets the constant."""
MAX_JOBS = 1000
"""How many jobs' versions are kept."""


class DeclaredPrompt:
    """A prompt that an app declares, with the constant that it falls back to."""

    def __init__(self, registry: Prompts, constant: Prompt) -> None:
        self._registry, self.constant = registry, constant
        self.name = constant.name

    async def aget(self) -> Prompt:
        """The active version, or the constant as version 0. Takes at most 2 seconds and never raises.

        For code outside of tasks; a handler uses `ctx.aprompt`. Put `details` of the result into the usage
        that you record.
        """
        return await self._registry.get(self)

    def get(self) -> Prompt:
        """`aget` for code that is not async."""
        return self._registry.block(self.aget())


class Prompts:
    """The prompts of an app, and what it knows of their versions."""

    def __init__(
        self,
        connections: Callable[[], AbstractAsyncContextManager[db.Pool]],
        block: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        self._connections, self.block = connections, block
        self.declared: dict[str, DeclaredPrompt] = {}
        self.clock: Callable[[], float] = time.monotonic
        self.fallbacks: dict[str, int] = {}
        """How often the constant was used in place of the database's answer, by the name of the prompt."""
        self._active: dict[str, Prompt] | None = None
        self._read_again_at = float("-inf")
        self._reading: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()
        self._jobs: OrderedDict[UUID, dict[str, Prompt]] = OrderedDict()

    def declare(self, name: str, body: str, model: str | None, max_tokens: int | None) -> DeclaredPrompt:
        """Declare a prompt with its constant."""
        if name in self.declared:
            raise Invalid(f"a prompt named {name!r} already exists", details={"field": "name"})
        constant = Prompt(name, 0, body, model, max_tokens, True, variables_of(body))
        self.declared[name] = DeclaredPrompt(self, constant)
        return self.declared[name]

    @property
    def constants(self) -> list[Prompt]:
        """The constants of all prompts."""
        return [each.constant for each in self.declared.values()]

    def forget(self) -> None:
        """Read all versions again when they are needed, because the app uses another database."""
        self._active, self._read_again_at = None, float("-inf")
        self._jobs.clear()

    async def get(self, prompt: DeclaredPrompt) -> Prompt:
        """The active version of a prompt, or its constant."""
        if self.clock() >= self._read_again_at:
            await self._refresh()
        return self._found(prompt, self._active)

    async def get_for_job(self, prompt: DeclaredPrompt, job_id: UUID) -> Prompt:
        """The version that a job keeps, else the active one, or the constant."""
        if job_id not in self._jobs:
            found = await self._bounded(self._read_job(job_id))
            if found is None:
                return self._found(prompt, None)
            self._jobs[job_id] = {each.name: each for each in found}
            while len(self._jobs) > MAX_JOBS:
                self._jobs.popitem(last=False)
        pinned = self._jobs[job_id]
        return self._found(prompt, pinned) if prompt.name in pinned else await self.get(prompt)

    def _found(self, prompt: DeclaredPrompt, versions: dict[str, Prompt] | None) -> Prompt:
        version = None if versions is None else versions.get(prompt.name)
        constant = prompt.constant
        if version is not None and version.version > 0:
            unknown = variables_of(version.body) - (constant.variables or frozenset())
            if not unknown:
                return Prompt(
                    version.name, version.version, version.body, version.model or constant.model,
                    version.max_tokens or constant.max_tokens, False, constant.variables,
                )  # fmt: skip
            # An older release of the code still runs: it cannot render this version.
            log.error(
                "prompt.unknown_variable", name=prompt.name, version=version.version, unknown=min(unknown)
            )
        if version is not None or versions is None:
            self.fallbacks[prompt.name] = self.fallbacks.get(prompt.name, 0) + 1
        return constant

    async def _refresh(self) -> None:
        """Read the active versions: one task per event loop reads, others use the old ones meanwhile."""
        loop = asyncio.get_running_loop()
        reading = self._reading.get(loop)
        if reading is not None and not reading.done():
            if self._active is None:
                await asyncio.shield(reading)
            return
        self._reading[loop] = reading = loop.create_task(self._read(), name="prompts")
        await asyncio.shield(reading)

    async def _read(self) -> None:
        found = await self._bounded(self._read_active())
        if found is None:
            self._active, wait = None, RETRY_SECONDS
        else:
            self._active = {each.name: each for each in found}
            wait = FRESH_SECONDS * random.uniform(0.9, 1.1)
        self._read_again_at = self.clock() + wait

    async def _read_active(self) -> list[Prompt]:
        async with self._connections() as pool, db.answering(pool, ANSWER_SECONDS) as conn:
            return await prompts.active(conn)

    async def _read_job(self, job_id: UUID) -> list[Prompt]:
        async with self._connections() as pool, db.answering(pool, ANSWER_SECONDS) as conn:
            return await prompts.pinned(conn, job_id=job_id)

    async def _bounded(self, work: Coroutine[Any, Any, R]) -> R | None:
        """The result of a read, or None if it fails or takes too long."""
        reading = asyncio.ensure_future(work)
        # Does not wait for a canceled read to end: ending a dead connection takes time too.
        await asyncio.wait([reading], timeout=ANSWER_SECONDS)
        if not reading.done():
            reading.add_done_callback(_ignore)
            reading.cancel()
            log.warning("prompt.database_away", error=f"no answer within {ANSWER_SECONDS:g} s")
            return None
        if (error := reading.exception()) is not None:
            log.warning("prompt.database_away", error=str(error))
            return None
        return reading.result()


def _ignore(reading: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned read, so that asyncio does not log it."""
    if not reading.cancelled():
        reading.exception()
