"""Dead letters over HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path
from pydantic import Field

from penstock.api.fields import NUMERIC, RequestModel
from penstock.api.jobs import Count
from penstock.api.pages import LARGEST, LimitQuery, NumberCursor, Page, filter_query, page
from penstock.api.routes import Conn, router
from penstock.contract import dead_letters
from penstock.types import DeadLetter

routes = router("dead letters")


class Which(RequestModel):
    """A selection of dead letters: those that match all given fields."""

    ids: list[Annotated[int, Field(ge=1, le=LARGEST), NUMERIC]] | None = Field(
        None, max_length=1000, examples=[[17]]
    )
    job_id: UUID | None = None
    kind: str | None = None
    error_code: str | None = None
    reason: Literal["attempts", "time", "permanent", "worker_deaths"] | None = None
    tenant_id: UUID | None = None
    all: Literal[True] | None = Field(None, description="Required if no other field is given.")

    def filter(self) -> dict[str, Any]:
        """The filter for the SQL functions."""
        return self.model_dump(exclude_none=True)


@routes.get("/dead-letters")
async def list_dead_letters(
    conn: Conn,
    filter: Annotated[str, filter_query("kind:render reason:attempts age:<1d")] = "",
    cursor: NumberCursor = None,
    limit: LimitQuery = 50,
) -> Page[DeadLetter]:
    """List dead letters, newest first. Filter by id, job, kind, code, reason, error, tenant or age."""
    found = await dead_letters.list(conn, filter=filter, before=cursor, limit=limit + 1)
    return page(found, limit, lambda letter: letter.id)


@routes.get("/dead-letters/{letter_id:int}")
async def get_dead_letter(conn: Conn, letter_id: Annotated[int, Path(ge=1, le=LARGEST)]) -> DeadLetter:
    """Get a dead letter."""
    return await dead_letters.get(conn, letter_id=letter_id)


@routes.post("/dead-letters/replay")
async def replay_dead_letters(conn: Conn, which: Which) -> Count:
    """Run dead-lettered tasks again with new attempts. Their jobs continue."""
    return Count(count=await dead_letters.replay(conn, filter=which.filter()))


@routes.post("/dead-letters/discard")
async def discard_dead_letters(conn: Conn, which: Which) -> Count:
    """Discard dead letters. Their tasks stay failed."""
    return Count(count=await dead_letters.discard(conn, filter=which.filter()))
