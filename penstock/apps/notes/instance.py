"""The app object, to which the other modules add functions, prompts, pages and tasks."""

from __future__ import annotations

from pathlib import Path

from penstock import App

SYNCED = (
    "books",
    "notes",
    "custom_ideas",
    "note_links",
    "lenses",
    "collections",
    "collection_memberships",
)

app = App(
    tenant="notes",
    schema="notes",
    sql=Path(__file__).parent / "sql",
    web=Path(__file__).parent / "web",
    writable_tables=[*SYNCED, "wrapped_key_blobs", "user_profiles", "waitlist_requests", "prompts"],
)
