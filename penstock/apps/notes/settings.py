"""Settings from environment variables.

`NOTES_ANTHROPIC_URL` is the base URL of another Anthropic API, such as the simulator's; the key comes from
`ANTHROPIC_API_KEY`. The model is the database's setting `notes.model`.
"""

from __future__ import annotations

import os


def anthropic_url() -> str | None:
    """The base URL of the Anthropic API; None: Anthropic's own."""
    return os.environ.get("NOTES_ANTHROPIC_URL") or None
