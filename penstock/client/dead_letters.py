"""Dead letters: tasks that failed for good."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from uuid import UUID

from penstock.client.answers import read
from penstock.client.core import identifier, path
from penstock.client.transport import IO, Noun, call, listing
from penstock.types import DeadLetter

Reason: TypeAlias = Literal["attempts", "time", "permanent", "worker_deaths"]


class Which(TypedDict, total=False):
    """Which dead letters: all that match every field given. `all=True` where none is."""

    ids: Sequence[int]
    job_id: UUID | str
    kind: str
    error_code: str
    reason: Reason
    tenant_id: UUID | str
    all: Literal[True]


class DeadLetters(Noun[IO]):
    """Tasks that failed for good."""

    @listing
    def list(
        self, filter: str = "", *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[DeadLetter]:
        """Dead letters, newest first. `filter`: by id, job, kind, code, reason, error, tenant, age."""
        tenant = self._core.tenant_or_none(tenant_id)
        chosen = f"tenant:{tenant} {filter}".strip() if tenant else filter
        return self._core.pages(partial(read, DeadLetter), "/api/dead-letters", {"filter": chosen}, limit)

    @call
    async def get(self, letter_id: int) -> DeadLetter:
        """One dead letter."""
        return await self._core.get(DeadLetter, path("/api/dead-letters/{}", int(letter_id)))

    @call
    async def replay(self, **which: Unpack[Which]) -> int:
        """Run dead-lettered tasks again, with fresh attempts; their jobs go on. Returns how many."""
        return await self._act("/api/dead-letters/replay", which)

    @call
    async def discard(self, **which: Unpack[Which]) -> int:
        """Forget dead letters; their tasks stay failed. Returns how many."""
        return await self._act("/api/dead-letters/discard", which)

    async def _act(self, where: str, which: Which) -> int:
        body: dict[str, Any] = {**which}
        if "job_id" in which:
            body["job_id"] = identifier(which["job_id"], "job_id")
        # Within the client's tenant also where nothing else is said.
        body["tenant_id"] = self._core.tenant_or_none(which.get("tenant_id"))
        answer = await self._core.ask("POST", where, body=body)
        return answer.field(int, "count")
