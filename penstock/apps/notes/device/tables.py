"""The tables of a device: which are synced, with which columns, and which never leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA_VERSION = 17
"""The version of the device's tables. Exports carry it."""


@dataclass(frozen=True)
class Table:
    """A synced table. Every table also has `id`, `created_at`, `updated_at` and `deleted`."""

    columns: tuple[str, ...]
    documents: frozenset[str] = frozenset()
    """Columns with JSON values."""
    parents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Columns with the id of a row in another table. A deleted parent deletes the row."""
    local: tuple[str, ...] = ()
    """Columns that stay on the device."""
    sealed: tuple[str, ...] = ()
    """Columns that are encrypted before they leave the device, if it has a key."""

    @property
    def synced(self) -> tuple[str, ...]:
        """The columns that travel."""
        return ("id", *self.columns, "created_at", "updated_at", "deleted")


SYNCED: dict[str, Table] = {
    "books": Table(("title", "author", "isbn", "cover_url", "cover_source", "cover_resolved_at")),
    "notes": Table(
        (
            "book_id",
            "text",
            "page",
            "chapter",
            "tags",
            "image_path",
            "source",
            "source_id",
            "source_meta",
        ),
        documents=frozenset({"tags", "source_meta"}),
        parents={"book_id": "books"},
        local=("image_data_url",),
        sealed=("text",),
    ),
    "custom_ideas": Table(("name", "description")),
    "note_links": Table(
        ("from_note_id", "to_note_id", "relation_type"),
        parents={"from_note_id": "notes", "to_note_id": "notes"},
    ),
    "lenses": Table(("name", "leaf_ids", "combinator"), documents=frozenset({"leaf_ids"})),
    "collections": Table(("name",)),
    "collection_memberships": Table(
        ("note_id", "collection_id"),
        parents={"note_id": "notes", "collection_id": "collections"},
    ),
}
"""Parents come before children: pushes and imports follow this order."""

LOCAL_ONLY = ("meta", "outbox", "shelf", "embeddings", "discovery_jobs", "note_index")
"""Tables that are never pushed and never exported."""

CLEARED_BY_REPLACE = ("outbox", "shelf", "embeddings", "discovery_jobs", "note_index")
"""Local-only tables about rows that an import by replace removes."""

DEFAULTS: dict[str, dict[str, object]] = {
    "books": {"title": ""},
    "notes": {"text": "", "tags": []},
    "lenses": {"combinator": "AND", "leaf_ids": []},
}
"""Values of a new row that the caller did not give."""
