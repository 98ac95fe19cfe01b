"""Dead letters: tasks that failed permanently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from uuid import UUID

from penstock.client.core import identifier, path
from penstock.client.responses import read
from penstock.client.transport import IO, Resource, call, listing
from penstock.types import DeadLetter

Reason: TypeAlias = Literal["attempts", "time", "permanent", "worker_deaths"]


class Which(TypedDict, total=False):
    """A selection of dead letters: those that match all given fields. `all=True` if none is given."""

    ids: Sequence[int]
    job_id: UUID | str
    kind: str
    error_code: str
    reason: Reason
    tenant_id: UUID | str
    all: Literal[True]


class DeadLetters(Resource[IO]):
    """Tasks that failed permanently."""

    @listing
    def list(
        self, filter: str = "", *, tenant_id: UUID | str | None = None, limit: int | None = None
    ) -> AsyncGenerator[DeadLetter]:
        """Iterate over dead letters, newest first. `filter`: such as `kind:render age:<1d`."""
        tenant = self._core.tenant_or_none(tenant_id)
        chosen = f"tenant:{tenant} {filter}".strip() if tenant else filter
        return self._core.pages(partial(read, DeadLetter), "/api/dead-letters", {"filter": chosen}, limit)

    @call
    async def get(self, letter_id: int) -> DeadLetter:
        """A dead letter by id."""
        return await self._core.get(DeadLetter, path("/api/dead-letters/{}", int(letter_id)))

    @call
    async def replay(self, **which: Unpack[Which]) -> int:
        """Run dead-lettered tasks again with new attempts. Their jobs continue. Returns their number."""
        return await self._act("/api/dead-letters/replay", which)

    @call
    async def discard(self, **which: Unpack[Which]) -> int:
        """Discard dead letters. Their tasks stay failed. Returns their number."""
        return await self._act("/api/dead-letters/discard", which)

    async def _act(self, url_path: str, which: Which) -> int:
        body: dict[str, Any] = {**which}
        if "job_id" in which:
            body["job_id"] = identifier(which["job_id"], "job_id")
        # Stay within the client's tenant if the call names none.
        body["tenant_id"] = self._core.tenant_or_none(which.get("tenant_id"))
        answer = await self._core.request("POST", url_path, body=body)
        return answer.field(int, "count")
