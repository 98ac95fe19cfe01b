"""The dashboard pages of the app: books, notes without their text, ideas, devices, profiles and
managed calls.
"""

from __future__ import annotations

from penstock import App


def declare(app: App) -> None:
    """Declare the pages."""
    app.page(
        "books", "Books", source="book_list", key="id", order="changed_at",
        columns=["title", "author", "isbn", "notes", "deleted", "changed_at"], filters=["title", "deleted"],
    )  # fmt: skip
    app.page(
        "notes", "Notes", source="note_list", key="id", order="changed_at",
        description="The text is not shown: it may be encrypted, and others may see the screen.",
        columns=["id", "book_id", "page", "chapter", "tags", "source", "is_encrypted", "characters",
                 "has_image", "deleted", "changed_at"],
        filters=["book_id", "source", "is_encrypted", "deleted"],
    )  # fmt: skip
    app.page(
        "ideas", "Ideas", source="idea_list", key="id", order="notes",
        description="The ideas of your own library. Kind: custom (you added it), or tag.",
        columns={"name": "Idea", "kind": "Kind", "notes": "Notes", "books": "Books"},
        filters=["name", "kind"],
    )  # fmt: skip
    app.page(
        "devices", "Devices", source="device_list", key="id", order="enrolled_at",
        description="The last sync, to the minute. Empty: the device has not reported one.",
        columns={"device_label": "Device", "type": "Key", "is_active": "Active", "enrolled_at": "Enrolled",
                 "last_sync_at": "Last sync", "owner": "Owner"},
        filters=["type", "is_active", "owner"],
    )  # fmt: skip
    app.page(
        "profiles", "Profiles", source="user_profiles", key="id",
        columns={"display_name": "Name", "email": "E-mail", "user_tier": "Purchased tier",
                 "effective_tier": "Effective tier", "month_usage": "Calls this month",
                 "month_limit": "Limit", "image_storage_bytes_used": "Image bytes",
                 "subscription_status": "Subscription"},
        filters=["email", "user_tier"],
    )  # fmt: skip
    app.page(
        "ai-usage", "Managed calls", source="ai_usage_daily", key="id",
        columns={"window_day": "Day", "action_type": "Action", "request_count": "Calls",
                 "input_tokens": "Input tokens", "output_tokens": "Output tokens"},
        filters=["action_type"],
    )  # fmt: skip
