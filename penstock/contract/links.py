"""Links of files: who may open them, and what they open."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.postgres import db
from penstock.types import LinkKind


class Linked(NamedTuple):
    """The file that a link opens."""

    tenant_id: UUID
    path: str
    name: str
    content_type: str


async def of_job(
    database: db.Database, *, job_id: UUID, artifact_ids: Sequence[UUID]
) -> builtins.dict[UUID, str]:
    """The paths of the links of a bulk job's files. Files of other jobs have none here."""
    rows = await db.call(
        database, "link_artifacts", p_job_id=job_id, p_artifact_ids=builtins.list(artifact_ids)
    )
    return {row["id"]: row["path"] for row in rows}


async def set(database: db.Database, *, artifact_id: UUID, link: LinkKind) -> str:
    """Change who may open the link of a file. Returns the path of the link."""
    return await db.value(database, "set_artifact_link", p_artifact_id=artifact_id, p_link=link)


async def open(database: db.Database, *, artifact_id: UUID, token: str) -> Linked:
    """The file of a link. Raises NotFound, Gone, or Unauthenticated for a link that asks for a sign-in."""
    [row] = await db.call(database, "open_link", p_artifact_id=artifact_id, p_token=token)
    return Linked(**row)
