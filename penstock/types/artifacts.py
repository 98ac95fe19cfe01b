"""Types of artifacts, with the names of SQL, HTTP and the CLI."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

OUTPUT = "output.json"
"""Name of the file for an output that is too large for the database."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored file, from a task or uploaded by a client."""

    id: UUID
    tenant_id: UUID
    job_id: UUID | None
    task_id: int | None
    name: str
    path: str
    content_type: str
    bytes: int
    sha256: str
    created_at: datetime
    stored_at: datetime
    type: str
    """What it is, such as `audio_mp3`: from the task, or from the content type."""
    metadata: dict[str, Any]
    """What the task says about it, such as `pages`, or `duration` in seconds."""

    @property
    def pages(self) -> int | None:
        """The number of pages, if the task said so."""
        return self.metadata.get("pages")

    @property
    def duration(self) -> float | None:
        """The duration in seconds, if the task said so."""
        return self.metadata.get("duration")


@dataclass(frozen=True, slots=True)
class KeptArtifact(Artifact):
    """A file that an app keeps beyond `retention_days`."""

    subject: str
    """What it belongs to, as noun:id."""
    kept_until: datetime | None
    """None: without end."""


@dataclass(frozen=True, slots=True)
class LinkedArtifact(Artifact):
    """A file with a URL; anyone who has the URL can read the file until it expires."""

    url: str = field(repr=False)


LinkKind: TypeAlias = Literal["public", "signed", "login"]
"""Who may open the link of a file: anyone who has it, the same for a time, or members who sign in."""


def referred(output: Any) -> UUID | None:
    """The id of the file that an output refers to; None if this is the output itself."""
    match output:
        case {"$artifact": {"artifact_id": str() as text}} if len(cast("dict[str, Any]", output)) == 1:
            with suppress(ValueError):
                return UUID(text)
        case _:
            pass
    return None
